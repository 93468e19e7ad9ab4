"""Turns the package's docstrings into Markdown for mkdocstrings.

A docstring lists arguments and fields as lines "name, name   meaning", whose meaning may continue on indented lines. Each
entry becomes an item of a list. Indented paragraphs are code, in Markdown as well.
"""
import re

import griffe

ENTRY = re.compile(r"([A-Za-z_]\w*(?:, \*{0,2}\w+)*) {2,}(\S.*)")


def markdown(text):
    lines, entry = [], False
    for line in text.split("\n"):
        found = ENTRY.fullmatch(line)
        if found:
            if not entry and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"- {names}: {escaped(found[2])}")
            entry = True
        elif entry and line.startswith("  "):
            lines.append("  " + escaped(line.strip()))
        else:
            if line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")
            lines.append(line if line.startswith("    ") else escaped(line))
            entry = False
    return "\n".join(lines)


def escaped(line):
    """Returns the line with the characters that Markdown would take for markup escaped, and names of documents as links."""
    line = re.sub(r"(?<!`)\*(?!`)|__", lambda found: "".join("\\" + one for one in found[0]), line).replace("<", "&lt;")
    return re.sub(r"\bdocs/([\w/-]+)\.md", r"[\g<0>](../\1.md)", line)


class Entries(griffe.Extension):
    """Rewrites each docstring. The docstring of an enumeration gets the names of its values."""

    def on_instance(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class(self, *, cls, **_):
        if cls.docstring and any("enum." in str(base) for base in cls.bases):
            names = [name for name, member in cls.members.items() if member.is_attribute and name.isupper()]
            if not any(f"- `{name}" in cls.docstring.value for name in names):
                cls.docstring.value += "\n\nValues: " + ", ".join(f"`{name}`" for name in names)
