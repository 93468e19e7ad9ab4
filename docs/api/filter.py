#!/usr/bin/env python3
"""Turns a header's plain comments into Doxygen's: filter.py HEADER. A comment behind code describes that code.

Members whose meaning is the same in every struct get their description here.
"""
import re
import sys

BEHIND = re.compile(r"(?<=\S)(\s+)/\* ")  # after a member or a macro, on its line
BEFORE = re.compile(r"^(\s*)/\* (?!-{4}|clang-format)", re.MULTILINE)
COMMON = [(re.compile(r"^( +size_t struct_size;)$"), r"\1 /**< sizeof this struct as the caller knows it; its INIT macro sets it */"),
          (re.compile(r"^( +\w+ reserved\d?(\[\d+\])?;)$"), r"\1 /**< 0 */"),
          (re.compile(r"^(#define WEFT_(?:DTYPE|OP|COLL)_(\w+) \d+)$"), r"\1 /**< \2; see its type */"),
          (re.compile(r"^(#define (WEFT_\w+)_INIT) "), r"/** Initialises a struct with its defaults. */ \1 "),
          (re.compile(r"^( +void\* \w*user_data;)$"), r"\1 /**< passed to the program's functions; default NULL */")]
with open(sys.argv[1], encoding="utf-8") as header:
    text = header.read()
text = re.sub(r"^/\* (?=weft/)", r"/** \\file\n * ", text)
lines = [BEHIND.sub(r"\1/**< ", line) if not line.lstrip().startswith(("/*", "*")) else line for line in text.split("\n")]
for pattern, documented in COMMON:
    lines = [pattern.sub(documented, line) for line in lines]
NUMBERED = re.compile(r"^ \* +(\d+)\. ", re.MULTILINE)  # an item of the list of conventions
text = "\n".join(lines).replace("<communicator>", "\\<communicator\\>").replace("<rank>", "\\<rank\\>")
sys.stdout.write(NUMBERED.sub(r" * <br><b>\1.</b> ", BEFORE.sub(r"\1/** ", text)))
