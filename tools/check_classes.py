#!/usr/bin/env python3
"""Checks the sizes of classes: at most 25 data members, and member functions in one .cpp only. lint.py's `sizes` runs it.

It reads the text of files that clang-format has formatted, without a compiler.
"""
import re
import sys
from pathlib import Path

from check_layers import strip

FOLDERS = ("lib", "backends", "hooks", "tools/weft")
MOST_MEMBERS = 25
# A member function is defined at the start of a line: `Status Comm::close(`.
DEFINITION = re.compile(r"^(?![#/\s}])(?:[^=;(]*?[\s*&])?((?:\w+::)+)(?:~?\w+|operator[^(]*)\(", re.M)
HEAD = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:alignas\(\w+\)\s+)?(\w+)(?:\s+final)?\s*(?::[^;{(]*)?\{")
NO_MEMBER = re.compile(r"^(?:using|typedef|friend|static|static_assert|template|enum|class|struct|union)\b|\(|\boperator\b")
ARGUMENTS = re.compile(r"<[^<>]*>")


def body_of(code, begin):
    """Returns the text between the brace at `begin` and its partner, with every inner block replaced by {}."""
    depth, text = 0, []
    for char in code[begin:]:
        if char == "}":
            depth -= 1
            if depth == 0:
                break
        if depth == 1 or (depth == 2 and char == "{"):
            text.append(char)
        if char == "{":
            depth += 1
            if depth == 2:
                text.append("{}")
    return "".join(text)


def data_members(body):
    """Counts the data members that a class's body declares."""
    body = re.sub(r"\balignas\(\w+\)|\b(?:public|private|protected):|\[\[\w+\]\]", "", body)
    while (shorter := ARGUMENTS.sub("", body)) != body:
        body = shorter
    body = re.sub(r"\)([^;{}()]*)\{\}", r")\1;", body)  # the body of a function ends its definition
    count = 0
    for statement in body.split(";"):
        declared = re.sub(r"\{\}|=[^,]*", "", statement).strip()
        if declared and not NO_MEMBER.search(declared):
            count += 1 + declared.count(",")
    return count


def check(root, files):
    """Returns the problems of the given files, which are paths relative to root."""
    problems, places = [], {}
    for name in files:
        code = strip((Path(root) / name).read_text(errors="replace"))
        if name.endswith((".cpp", ".cu")):
            for match in DEFINITION.finditer(code):
                places.setdefault((str(Path(name).parent), match[1][:-2]), set()).add(name)
        for match in HEAD.finditer(code):
            count = data_members(body_of(code, match.end() - 1))
            if count > MOST_MEMBERS:
                line = code.count("\n", 0, match.start()) + 1
                problems.append(f"{name}:{line}: {match[1]} has {count} data members; at most {MOST_MEMBERS} are "
                                "allowed; split the class")
    problems += [f"{' and '.join(sorted(names))}: member functions of {word} in each; a class lives in one .cpp: split the class"
                 for (_, word), names in sorted(places.items()) if len(names) > 1]
    return problems


def main():
    root = Path(__file__).resolve().parent.parent
    files = sorted(str(path.relative_to(root)) for folder in FOLDERS for path in (root / folder).rglob("*")
                   if path.suffix in (".h", ".cpp", ".cu"))
    problems = check(root, files)
    print("\n".join(problems) if problems else f"classes: {len(files)} files keep the limits")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
