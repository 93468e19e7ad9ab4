#!/usr/bin/env python3
"""The table of docs/reference/environment.md, from the table that the library reads.

Usage: variables_page.py WEFT [--write]    WEFT: the command weft

Without --write it fails if the page differs."""
import json
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/environment.md"
BEGIN, END = "<!-- variables -->\n", "<!-- end of variables -->\n"


def cell(text):
    return text.replace("|", "\\|")


def table(variables):
    lines = ["| variable | values | if it is not set | meaning |", "|---|---|---|---|"]
    for each in variables:
        meaning = each["meaning"] + (" Equal on all ranks." if each["equal_on_all_ranks"] else "")
        lines.append(f"| `{each['name']}` | {cell(each['values'])} | {cell(each['unset'])} | {cell(meaning)} |")
    return "\n".join(lines) + "\n"


def main():
    weft, *options = sys.argv[1:]
    told = subprocess.run([weft, "info", "--env", "--json"], stdout=subprocess.PIPE, text=True, check=False)
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = before + BEGIN + table(json.loads(told.stdout)["variables"]) + END + after
    if options == ["--write"]:
        PAGE.write_text(made)
    elif made != text:
        print("docs/reference/environment.md is not the library's table of variables: run tools/variables_page.py WEFT --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
