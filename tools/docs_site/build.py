#!/usr/bin/env python3
"""Builds the documents as a site, in BUILD/site/index.html: build.py BUILD. `make docs` and `make lint` run it.

A link or anchor that leads nowhere is an error, and so is a function of the C or Python API without a comment. The site
loads nothing from other servers. MkDocs is installed in BUILD/docs-tools.
"""
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import package_venv  # noqa: E402
from docs_site import check_site  # noqa: E402


def reference(build):
    """Lets Doxygen make the C ABI's reference. Returns its folder; raises RuntimeError for an item without a comment."""
    folder = build / "reference"
    folder.mkdir(exist_ok=True)
    settings = (ROOT / "docs/api/Doxyfile").read_text() + f'OUTPUT_DIRECTORY = "{folder}"\nGENERATE_TAGFILE = "{folder}/weft.tag"\n'
    result = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        raise RuntimeError(result.stdout)
    return folder


def main():
    build = Path(sys.argv[1]).resolve()
    try:
        folder = reference(build)
        packages = (HERE / "requirements.txt").read_text().split()
        tools = package_venv.prepare(build, "docs-tools", packages) / "bin"
    except RuntimeError as error:
        sys.exit(str(error))
    environment = {**os.environ, "WEFT_DOCS_C_REFERENCE": str(folder), "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(HERE)}
    for command in ([tools / "python", HERE / "check_python.py"],
                    [tools / "mkdocs", "build", "--strict", "--config-file", ROOT / "mkdocs.yml", "--site-dir", build / "site"]):
        code = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment).returncode
        if code != 0:
            sys.exit(code)
    problems = check_site.problems(build / "site")
    print("\n".join(problems) if problems else f"docs: {build}/site/index.html")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
