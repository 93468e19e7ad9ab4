#!/usr/bin/env python3
"""Counts sentences that are hard to read, and fails if there are more than LIMITS allows. `make lint` runs it.

usage: check_prose.py [--show N] [--change BASE] [FILE ...]

opener   a comment, docstring or paragraph begins without a subject: Of, What, Whether, Who, In which ...
long     a sentence has more than 35 words in a document, or 40 in a comment, docstring or string literal
word     a word that docs/dev/words.md replaces
text     an error text, log line or help text has such a word, or a phrase of RIDDLE: it does not name what is wrong
wide     a line of a document is wider than 100 columns (tables, code and links excepted)

LIMITS only goes down: a change that rewrites a place lowers it.
"""
import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"opener": 0, "long": 11, "word": 0, "text": 0, "wide": 0}

OPENER = re.compile(r"(Of|What|Whether|Who|Whose|In which|One that|That which|With which|From which)\b")
WORD = re.compile(
    r"\b(cables?|fruitless|furnish\w*|founding|heirs?|roll calls?|farewells?|lineages?|straight buckets?|by turns|"
    r"goes on|is said to|signs? of life|resident buckets?|contests?|make_up|vices?)\b", re.IGNORECASE)
RIDDLE = re.compile(
    r"\b(is not around|(breaks?|broke) the rules|taken back|is no (number|text|list|size|rank|manifest|option)|"
    r"(is|are) not there|(is|was|are|were) (said|told|meant)|whoever|nobody|somebody|noticed? nothing|heard of|"
    r"(do|does|did) not come|went on|go on|so many (times|seconds|steps|processes))\b")
WIDEST, DOCUMENT_WORDS, COMMENT_WORDS = 100, 35, 40
C_FILES = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh")
HASH_FILES = (".py", ".sh", ".build")
EXEMPT = ("docs/dev/words.md", "tools/check_prose.py", "tests/scripts/test_check_prose.py")


def paragraphs_of_document(text):
    """Yields (line, paragraph) of everything but code, tables, headings and pictures. A list item is a paragraph."""
    fence, start, parts = False, 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        bare = line.strip()
        item = re.match(r"([-*]|\d+\.)\s+", bare)
        skipped = fence or bare.startswith(("```", "|", "#", "<!--", "!["))
        if parts and (not bare or item or skipped):
            yield start, " ".join(parts)
            parts = []
        fence ^= bare.startswith("```")
        if bare and not skipped:
            start = start if parts else number
            parts.append(bare[item.end():] if item else bare)


def comments_of_c(text):
    """Yields (line, comment) of comments on lines of their own; neighbouring // lines are one comment."""
    inside, start, parts = False, 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        bare = line.strip()
        inside = inside or bare.startswith("/*")
        part = ""
        if inside or bare.startswith("//"):
            part = re.sub(r"^(//+|/\*+|\*+/?)\s?", "", bare).replace("*/", "").strip()
        inside = inside and "*/" not in bare
        if parts and not part:
            yield start, " ".join(parts)
            parts = []
        if part:
            start = start if parts else number
            parts.append(part)


def strings_of_c(text):
    """Yields (line, literal), with adjacent literals joined. Names of included files are no texts."""
    text = re.sub(r"(?m)^[ \t]*#[ \t]*include.*", "", text)
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', text):
        literal = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', found[0]))
        yield text.count("\n", 0, found.start()) + 1, literal.replace("\\n", "\n")


def comments_of_hash(text):
    start, parts = 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        bare = line.strip()
        part = bare.lstrip("#").strip() if bare.startswith("#") and not bare.startswith("#!") else ""
        if parts and not part:
            yield start, " ".join(parts)
            parts = []
        if part:
            start = start if parts else number
            parts.append(part)


def texts_of_python(text):
    """Yields (line, text) of the strings of raised exceptions and of calls that print help or end the program.

    A formatted string is one text, with {} for its values.
    """
    def called(node):
        return getattr(node.func, "attr", getattr(node.func, "id", ""))

    for node in ast.walk(ast.parse(text)):
        inside = [node.exc] if isinstance(node, ast.Raise) and node.exc is not None else []
        if isinstance(node, ast.Call) and called(node) in ("error", "exit", "fail"):
            inside = node.args
        elif isinstance(node, ast.Call) and called(node) in ("add_argument", "add_parser", "ArgumentParser"):
            inside = [keyword.value for keyword in node.keywords if keyword.arg in ("help", "description", "epilog")]
        parts = [part for value in inside for part in ast.walk(value)]
        formatted = [part for part in parts if isinstance(part, ast.JoinedStr)]
        within = {id(value) for one in formatted for value in ast.walk(one)} - {id(one) for one in formatted}
        for part in parts:
            if id(part) in within:
                continue
            if isinstance(part, ast.JoinedStr):
                yield part.lineno, "".join(str(getattr(value, "value", "")) if isinstance(value, ast.Constant) else "{}"
                                           for value in part.values)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            value = ast.get_docstring(node)
            line = node.body[0].lineno if value else 0
            for paragraph in re.split(r"\n\s*\n", value or ""):
                if not paragraph.startswith("    "):  # indented paragraphs are code
                    # Each item of a list, and each entry of a list of arguments ("name  meaning"), begins a sentence.
                    yield line, re.sub(r"\n(?![\w, ]+  \S|- )", " ", paragraph)


def problems(name, text):
    """Yields (kind, line, excerpt) of each place in one file."""
    document = name.endswith(".md")
    prose, quoted = [], []
    if document:
        prose = list(paragraphs_of_document(text))
        fence = False
        for number, line in enumerate(text.split("\n"), 1):
            fence ^= line.strip().startswith("```")
            if len(line) > WIDEST and not fence and not line.lstrip().startswith(("|", "![", "<!--")) and "](" not in line:
                yield "wide", number, f"{len(line)} columns"
    elif name.endswith(C_FILES):
        prose, quoted = list(comments_of_c(text)), list(strings_of_c(text))
    elif name.endswith(HASH_FILES):
        prose = list(comments_of_hash(text))
        if name.endswith(".py"):
            prose += docstrings(text)
            quoted = list(texts_of_python(text))
    most = DOCUMENT_WORDS if document else COMMENT_WORDS
    for number, block in prose:
        if OPENER.match(block):
            yield "opener", number, block
        found = WORD.search(block)
        if found:
            yield "word", number, f"{found[0]}: {block}"
    for number, block in [] if name.startswith("tests/") else quoted:
        found = WORD.search(block) or RIDDLE.search(block)
        if found:
            yield "text", number, f"{found[0]}: {block}"
    for number, block in prose + quoted:
        for sentence in re.split(r"(?<=[.;:])\s+(?=[A-Z`(])|\n", block):
            if len(sentence.split()) > most:
                yield "long", number, sentence


def tracked(base):
    command = ["git", "diff", "--name-only", base] if base else ["git", "ls-files"]
    listing = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [name for name in listing.splitlines() if name.endswith((".md",) + C_FILES + HASH_FILES)
            and name not in EXEMPT and (ROOT / name).is_file()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=5, help="places to show of each kind")
    parser.add_argument("--change", metavar="BASE", help="only files that differ from this commit")
    parser.add_argument("files", nargs="*", help="only these files")
    arguments = parser.parse_args()
    found = {kind: [] for kind in LIMITS}
    for name in arguments.files or tracked(arguments.change):
        for kind, line, excerpt in problems(name, (ROOT / name).read_text()):
            found[kind].append(f"{name}:{line}: {excerpt[:110]}")
    whole = not arguments.files and not arguments.change
    failed = [kind for kind in found if whole and len(found[kind]) > LIMITS[kind]]
    for kind, places in found.items():
        print(f"prose: {kind} {len(places)}" + (f", {LIMITS[kind]} allowed" if whole else ""))
        for place in places[:arguments.show if kind in failed or not whole else 0]:
            print("  " + place)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
