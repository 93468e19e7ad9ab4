#!/usr/bin/env python3
"""Makes man pages and the completion of bash from the option tables of the weft command itself.

Usage: command_pages.py man FOLDER VERSION WEFT [WEFT_BENCH]
       command_pages.py bash FILE WEFT [WEFT_BENCH]

`weft --command-table` prints the table (tools/weft/command_table.h); that of `weft bench` comes from its own program.
Meson calls this for the files that are installed, and tests/tools/test_pages.py checks them.
"""
import json
import re
import subprocess
import sys
from pathlib import Path


def table_of(program, *more):
    """Return the table of all commands; those of later programs replace the ones of the same name."""
    tables = [json.loads(subprocess.run([one, "--command-table"], check=True, capture_output=True, text=True).stdout)
              for one in (program, *more)]
    whole = tables[0]
    for other in tables[1:]:
        names = {command["name"]: command for command in other["commands"]}
        whole["commands"] = [names.get(command["name"], command) for command in whole["commands"]]
    return whole


def value_text(option):
    """Return the value as help shows it: "PATH", "TEXT:{copy,view}"."""
    return None if option["value"] is None else re.sub(r":.*", "", option["value"]) or "TEXT"


def choices_of(option):
    found = re.search(r"\{([^{}]*)\}", option["value"] or "")
    return [re.sub(r"->.*", "", choice) for choice in found[1].split(",")] if found else []


# Man pages

def roff(text):
    """Escape text for roff, whose commands begin with a dot or an apostrophe at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def synopsis(called, command):
    words = [f".B {roff(called)}"]
    if command["commands"]:
        words.append(".I COMMAND")
    words.append("[\\fIOPTIONS\\fR]")
    for option in command["options"]:
        if option["positional"]:
            name = f"\\fI{roff(option['positional'])}\\fR" + ("..." if option["several"] else "")
            words.append(name if option["required"] else f"[{name}]")
    return "\n".join(words)


def options_section(command):
    lines = []
    for option in command["options"]:
        value = value_text(option)
        if option["positional"]:
            head = f"\\fI{roff(option['positional'])}\\fR"
        else:
            head = ", ".join(f"\\fB{roff(name)}\\fR" for name in option["names"])
            head += f" \\fI{roff(value)}\\fR" if value else ""
        choices = choices_of(option)
        about = option["help"] + (f" (one of: {', '.join(choices)})" if choices else "")
        lines += [".TP", head, roff(about)]
    return lines


def preformatted(text):
    return [".nf", roff(text), ".fi"] if text else []


def command_sections(called, command, heading):
    lines = []
    for inner in command["commands"]:
        name = f"{called} {inner['name']}"
        lines += [f".{heading} {roff(name)}", roff(inner["help"]) + ".", ".PP", synopsis(name, inner)]
        lines += options_section(inner)
        lines += [".PP", *preformatted(inner["footer"])] if inner["footer"] else []
        lines += command_sections(name, inner, heading)
    return lines


def man_page(called, command, version, related):
    page = called.replace(" ", "-")
    lines = [f'.TH {roff(page.upper())} 1 "" "weft {version}" "Weft"', ".SH NAME", f"{roff(page)} \\- {roff(command['help'])}",
             ".SH SYNOPSIS", synopsis(called, command), ".SH OPTIONS", *options_section(command)]
    if command["footer"]:
        lines += [".SH DESCRIPTION", *preformatted(command["footer"])]
    if command["commands"] and called == "weft":
        lines.append(".SH COMMANDS")
        for inner in command["commands"]:
            lines += [".TP", f"\\fB{roff(inner['name'])}\\fR", roff(inner["help"])]
    elif command["commands"]:
        lines += [".SH COMMANDS", *command_sections(called, command, "SS")]
    lines += [".SH SEE ALSO", ",\n".join(f".BR {roff(name)} (1)".replace("(1)", "(1)") for name in related)]
    return "\n".join(lines) + "\n"


def man_pages(table):
    """Return the name and the text of each page but for the version."""
    names = {"weft": ("weft", table)}
    for command in table["commands"]:
        names[f"weft-{command['name']}"] = (f"weft {command['name']}", command)
    return names


def write_man(folder, version, table):
    pages = man_pages(table)
    for page, (called, command) in pages.items():
        related = [name for name in pages if name != page] if page == "weft" else ["weft"]
        Path(folder, f"{page}.1").write_text(man_page(called, command, version, related))


# Completion

BASH = """# Completes the weft command in bash. Made from its option tables by tools/command_pages.py.
_weft() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path= word
  local -A commands=(
%(commands)s
  )
  local -A options=(
%(options)s
  )
  local -A values=(
%(values)s
  )
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -- ]] && { COMPREPLY=(); return; }
    [[ " ${commands[weft$path]} " == *" $word "* ]] && path+=" $word"
  done
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "${options[weft$path]}" -- "$current"))
  elif [[ $previous == -* && -n ${values[weft$path $previous]} ]]; then
    COMPREPLY=($(compgen -W "${values[weft$path $previous]}" -- "$current"))
  elif [[ $previous != -* || " ${options[weft$path]} " != *" $previous "* ]]; then
    COMPREPLY=($(compgen -W "${commands[weft$path]}" -- "$current"))
  else
    COMPREPLY=()
  fi
}
complete -o default -F _weft weft
"""


def completion_rows(called, command, rows):
    names = [name for option in command["options"] for name in option["names"]]
    rows["commands"].append((called, [inner["name"] for inner in command["commands"]]))
    rows["options"].append((called, names))
    for option in command["options"]:
        for name in option["names"] if choices_of(option) else ():
            rows["values"].append((f"{called} {name}", choices_of(option)))
    for inner in command["commands"]:
        completion_rows(f"{called} {inner['name']}", inner, rows)


def bash_completion(table):
    rows = {"commands": [], "options": [], "values": []}
    completion_rows("weft", table, rows)
    return BASH % {name: "\n".join(f'    ["{key}"]="{" ".join(words)}"' for key, words in found) for name, found in rows.items()}


def main(kind, target, *more):
    if kind == "man":
        write_man(target, more[0], table_of(*more[1:]))
    elif kind == "bash":
        Path(target).write_text(bash_completion(table_of(*more)))
    else:
        sys.exit(f"command_pages.py: {kind!r} is no kind of page: man or bash")


if __name__ == "__main__":
    main(*sys.argv[1:])
