"""Adds to the site what is not Markdown in docs: MkDocs calls these functions while it builds.

- The reference of the C ABI, which Doxygen has made in the folder of WEFT_DOCS_C_REFERENCE, becomes reference/c.
- A file elsewhere in the repository that a document links to becomes a page of the site below source/. A header of the C
  ABI has its page in reference/c.
- The name of a C function, type, field or constant in a document links to its reference. In documents for users a name weft_...
  that no header has, and that is no metric, is an error.
"""
import logging
import os
import posixpath
import re
import xml.etree.ElementTree
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent.parent
HEADERS = ROOT / "include/weft"
REFERENCE = Path(os.environ["WEFT_DOCS_C_REFERENCE"])
LANGUAGES = {".c": "c", ".h": "c", ".cpp": "cpp", ".py": "python", ".sh": "bash", ".json": "json"}
LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
NAME = re.compile(r"(?<![\[`])`(weft_[a-z0-9_]+|WEFT_[A-Z0-9_]+)((?:\.\w+)?)(\(\))?`(?![\]`])")
# As on GitHub, a list in the documents may follow its paragraph without a blank line, and two spaces indent what belongs to an
# item. MkDocs' Markdown needs the line, and four spaces.
PARAGRAPH_BEFORE_LIST = re.compile(r"^((?![-*] |\d+\. |\||#|<!--)\S.*)\n(?=(?:[-*]|\d+\.) )", re.M)
INDENTED = re.compile(r"^( +)(?=\S)", re.M)
log = logging.getLogger("mkdocs.hooks.pages")
symbols = {}
METRIC = re.compile(r'"(weft_\w+)",\s*"(?:counter|gauge|summary)"')
metrics = set()  # names that are no C names, and have no page
originals = {}  # page of source/ -> its file in the repository


def on_files(files, config):
    for path in sorted(REFERENCE.glob("**/*")):
        if path.is_file() and path.suffix != ".tag":
            name = path.relative_to(REFERENCE).as_posix()
            files.append(File.generated(config, f"reference/c/{name}", abs_src_path=str(path),
                                        inclusion=InclusionLevel.NOT_IN_NAV))
    read_symbols()
    originals.clear()
    todo = [(file.src_uri, ROOT / "docs" / file.src_uri) for file in files.documentation_pages()]
    while todo:
        page, path = todo.pop()
        for link in LINK.finditer(path.read_text()):
            target = outside(path, link[2])
            if target and target.parent != HEADERS and page_of(target) not in originals:
                originals[page_of(target)] = target
                files.append(File.generated(config, page_of(target), content=content(target), inclusion=InclusionLevel.NOT_IN_NAV))
                if target.suffix == ".md":
                    todo.append((page_of(target), target))
    return files


def read_symbols():
    for path in (ROOT / "lib").glob("**/*metrics*.cpp"):
        metrics.update(METRIC.findall(path.read_text()))
    for compound in xml.etree.ElementTree.parse(REFERENCE / "weft.tag").getroot():
        kind, name = compound.get("kind"), compound.findtext("name")
        if kind in ("struct", "file"):
            symbols[name] = compound.findtext("filename")
        for member in compound.iter("member"):
            address = f"{member.findtext('anchorfile')}#{member.findtext('anchor')}"
            symbols[f"{name}.{member.findtext('name')}" if kind == "struct" else member.findtext("name")] = address


def outside(path, link):
    """Returns the repository's file that a link of the file `path` leads to; None for one in docs and for an address."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = (path.parent / link).resolve()
    if target.is_dir():
        target = target / "README.md"
    if not target.is_file() or target.is_relative_to(ROOT / "docs"):
        return None
    return target


def page_of(target):
    """Returns the site's page of a file of the repository. Headers of the C ABI are in its reference."""
    if target.parent == HEADERS:
        return "reference/c/" + symbols[target.name]
    name = target.relative_to(ROOT).as_posix()
    return "source/" + (name if name.endswith(".md") else name + ".md")


def content(target):
    if target.suffix == ".md":
        return target.read_text()
    return f"# {target.relative_to(ROOT)}\n\n```{LANGUAGES.get(target.suffix, 'text')}\n{target.read_text()}```\n"


def on_page_markdown(markdown, page, **_):
    uri = page.file.src_uri
    path = originals.get(uri, ROOT / "docs" / uri)
    if path.suffix != ".md":
        return markdown
    # Every second part is a block of code.
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.M | re.S)
    for index in range(1, len(parts), 2):
        parts[index] = re.sub("^(?=.)", re.match(" *", parts[index])[0], parts[index], flags=re.M)
    for index in range(0, len(parts), 2):
        parts[index] = INDENTED.sub(r"\1\1", PARAGRAPH_BEFORE_LIST.sub(r"\1\n\n", parts[index]))
        parts[index] = LINK.sub(lambda link: linked(link, path, uri), parts[index])
        if not uri.startswith("source/"):
            parts[index] = NAME.sub(lambda name: named(name, uri), parts[index])
    return "".join(parts)


def linked(link, path, uri):
    target = outside(path, link[2])
    if target:
        to = page_of(target)
    elif uri in originals and "://" not in link[2]:
        there = (path.parent / link[2]).resolve()
        if not there.is_relative_to(ROOT / "docs"):
            return link[0]
        to = there.relative_to(ROOT / "docs").as_posix()
    else:
        return link[0]
    return f"{link[1]}({posixpath.relpath(to, posixpath.dirname(uri) or '.')}{link[3] or ''})"


def named(name, uri):
    address = symbols.get(name[1] + name[2])
    if address is None:
        if name[1].startswith("weft_") and name[1] not in metrics and not uri.startswith("dev/"):  # which names deleted functions
            log.warning("%s names %s, which no header of include/weft has", uri, name[0])
        return name[0]
    return f"[{name[0]}]({posixpath.relpath('reference/c/' + address, posixpath.dirname(uri) or '.')})"
