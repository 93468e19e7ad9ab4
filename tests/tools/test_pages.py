#!/usr/bin/env python3
"""Man pages and completions, which tools/command_pages.py makes from the commands' option tables.
Usage: test_pages.py WEFT WEFT_BENCH FOLDER, where WEFT_BENCH may be empty and FOLDER has the built files"""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tools")]
import cases  # noqa: E402
import command_pages  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, BENCH, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
TABLE = command_pages.table_of(*filter(None, (WEFT, BENCH)))


def completions(line):
    """Return what bash offers at the end of a line."""
    words = line.split(" ")
    script = (f"source {shlex.quote(str(FOLDER / 'weft'))}; COMP_WORDS=({' '.join(map(shlex.quote, words))}); "
              f"COMP_CWORD={len(words) - 1}; _weft; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    result = cases.run(["bash", "--norc", "-c", script])
    expect(result.returncode == 0 and not result.stderr, "bash takes the file", result)
    return [word for word in result.stdout.split("\n") if word]


def commands(table=TABLE, called="weft"):
    """Yield every command with its words."""
    yield called, table
    for inner in table["commands"]:
        yield from commands(inner, f"{called} {inner['name']}")


def test_completion():
    """bash completes every command, every option and the values of options that have few"""
    for called, command in commands():
        names = [inner["name"] for inner in command["commands"]]
        if names:
            expect_equal(completions(called + " "), names)
        options = [name for option in command["options"] for name in option["names"]]
        expect("--help" in options, "each has help", called)
        expect_equal(sorted(completions(called + " -")), sorted(options), called)
    expect_equal(completions("weft sta"), ["status"])
    expect_equal(completions("weft trace m"), ["merge"])
    if BENCH:
        expect_equal(completions("weft bench all_reduce --memory p"), ["private"])
    expect_equal(completions("weft run -n 2 -- prog -"), [])
    expect_equal(completions("weft report --output "), [])  # bash completes file names there


def test_help_agrees():
    """the table has the options that the help of each command shows"""
    for called, command in commands():
        words = called.split()[1:]
        shown = cases.run([WEFT, *words, "--help"]).stdout
        for option in command["options"]:
            for name in option["names"]:
                line = re.search(rf"^ +(?:-\w,)?{name}(?:,[-\w]+)*( (?!Needs:|Excludes:)\S+)?", shown, re.M)
                expect(line, f"{called} --help shows {name}", shown)
                expect_equal(option["value"] is None, line[1] is None, f"whether {called} {name} takes a value", line[0])


def test_man_pages():
    """each command has a man page that names its options, and man has no warning about it"""
    expect_equal(sorted(path.name for path in FOLDER.glob("*.1")), sorted(f"{page}.1" for page in command_pages.man_pages(TABLE)))
    for page, (called, command) in command_pages.man_pages(TABLE).items():
        path = FOLDER / f"{page}.1"
        if shutil.which("groff"):
            result = cases.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=100n", path], environment={"GROFF_NO_SGR": "1"})
            expect(result.returncode == 0 and not result.stderr, "groff has no warning", result.stderr)
            shown = result.stdout.replace("\u2010", "-").replace("\u2212", "-")
            expect(f"{page} - {command['help'].split()[0]}" in shown, "its name and what it does", shown)
            for option in command["options"]:
                expect(all(name in shown for name in option["names"]), f"{called} {option['names']}", shown)
        if shutil.which("mandoc"):
            lint = cases.run(["mandoc", "-Tlint", "-Wwarning", path])
            expect_equal(lint.returncode, 0, lint.stdout)
    for called, command in commands():
        words = called.split()
        if len(words) == 3:  # in the page of its parent
            expect(f".SS {called}" in (FOLDER / f"weft-{words[1]}.1").read_text(), "it has a section", called)


cases.main(globals())
