#!/usr/bin/env python3
"""Checks that documents only refer to existing make targets, tests, linked files and scripts, and sources to existing documents.
Code that a document quotes must be in the file that it names: `<!-- from: PATH -->` before a block."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (".h", ".c", ".cpp", ".cu", ".py", ".sh", ".build", ".in", ".txt")


def make_targets(root):
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (root / "Makefile").read_text(), re.M))


def check_document(path, root, targets):
    text = path.read_text()
    name = path.relative_to(root)
    problems = []
    fences = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S))
    for code in re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:\$ )?(make [^\n]*)$", fences, re.M):
        match = re.match(r"(?:\$ )?make ([a-z][a-z0-9-]*)", code)
        if match and match.group(1) not in targets:
            problems.append(f"{name}: `make {match.group(1)}` is not a target of the Makefile")
    for link in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        if "://" not in link and not link.startswith("mailto:") and not (path.parent / link).exists():
            problems.append(f"{name}: links to {link}, which does not exist")
    for source, code in re.findall(r"<!-- from: (\S+) -->\n```\w*\n(.*?)^```", text, re.M | re.S):
        if not (root / source).exists() or code not in (root / source).read_text():
            problems.append(f"{name}: quotes code of {source} that is not in that file: {code.splitlines()[0]!r} ...")
    # A test is named by its suite, or by its path: unit/test_plan is tests/unit/reducer/test_plan.cpp.
    for folder, inner, test in re.findall(r"\b(?:tests/)?([a-z]+)/([a-z]+/)?(test_\w+)", text):
        there = root / "tests" / folder
        places = [there / inner] if inner else [there, *there.glob("*/")]
        if there.is_dir() and not any((place / (test + ending)).exists() for place in places
                                      for ending in (".cpp", ".py", ".sh", ".c")):
            problems.append(f"{name}: names the test {folder}/{inner}{test}, which does not exist")
    headings = re.findall(r"^##+ .*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    for heading in sorted({one for one in headings if headings.count(one) > 1}):
        problems.append(f"{name}: has the heading {heading!r} more than once")
    if text.count("<!-- from: ") != len(re.findall(r"<!-- from: \S+ -->\n```", text)):
        problems.append(f"{name}: a comment `from:` is not followed by a block of code")
    return problems


def check_sources(root):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [f"{name}: names {document}, which does not exist" for name in listed.split("\0")
            if name.endswith(SOURCES) and (root / name).is_file()
            for document in sorted(set(re.findall(r"\bdocs/[\w/-]+\.md", (root / name).read_text())))
            if not (root / document).exists()]


def check(root):
    targets = make_targets(root)
    documents = sorted([*root.glob("*.md"), *(root / "docs").glob("**/*.md"), *(root / "bench").glob("**/*.md")])
    return documents, [problem for path in documents for problem in check_document(path, root, targets)] + check_sources(root)


def main():
    documents, problems = check(ROOT)
    print("\n".join(problems) if problems else f"docs: {len(documents)} documents name what exists")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
