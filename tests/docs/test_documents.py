#!/usr/bin/env python3
"""Runs the blocks of code in README and in the documents for users, page by page, each page in a folder of its own.

A comment before a block says how it is tested:

    <!-- test: run FILE -->              a program of two ranks: C, which is compiled first, or Python
    <!-- test: run FILE in TEMPLATE -->  the same; tests/docs/templates/TEMPLATE has a line BLOCK, which the block replaces
    <!-- test: save FILE -->             a file for later blocks of the page
    <!-- test: shell -->                 commands; ./train is examples/hello_allreduce there
    <!-- test: shell fails -->           commands whose exit code is not 0
    <!-- test: output -->                lines that the block before has printed, in any order; ... stands for any text
    <!-- test: none KEY -->              not tested, for the reason in tests/docs/exempt.txt
    <!-- from: PATH -->                  quoted from that file, which tools/check_docs.py compares

Usage: test_documents.py CC BUILD WEFT
"""
import collections
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal, skip  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
CC, BUILD, WEFT = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
PARTS = ("tutorials", "how-to", "reference", "explanation")
PAGES = [ROOT / "README.md", ROOT / "COMPATIBILITY.md", ROOT / "docs/index.md",
         *(page for part in PARTS for page in sorted((ROOT / "docs" / part).glob("*.md")))]
BLOCK = re.compile(r"(?:^ *<!-- (test|from): ([^\n]+?) -->\n)?^( *)```\w*\n(.*?)^ *```$", re.M | re.S)
Block = collections.namedtuple("Block", "page line kind words text")


def blocks_of(page):
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        block = re.sub(f"^{match[3]}", "", match[4], flags=re.M)
        words = (match[2] or "").split()
        kind = match[1] if match[1] != "test" else words.pop(0)
        found.append(Block(page.relative_to(ROOT), text.count("\n", 0, match.start(3)) + 1, kind, words, block))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


class Folder:
    """A page's folder while its blocks run: what they save, and a folder bin with the commands that they use."""

    def __init__(self, folder):
        self.path = Path(folder)
        self.python = sys.executable
        binaries = self.path / "bin"
        binaries.mkdir()
        (binaries / "weft").symlink_to(WEFT)
        self.script("weftsync", f'exec "{WEFT}" "$@"')
        for name, target in (("build", BUILD), ("tools", ROOT / "tools"), ("examples", ROOT / "examples"),
                             ("train", BUILD / "examples/hello_allreduce")):
            (self.path / name).symlink_to(target)
        (self.path / "weft.pc").write_text(f"libdir={BUILD}\nName: weft\nDescription: Weft\nVersion: 0.9\n"
                                           f"Libs: -L{BUILD} -lweft\nCflags: -I{ROOT}/include\n")
        self.environment = {"PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(self.path), "PKG_CONFIG_PATH": str(self.path),
                            "PYTHONPATH": str(ROOT / "python"), "WEFT_LIBRARY": str(BUILD / "libweft.so.0.9"),
                            "LD_LIBRARY_PATH": str(BUILD), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1"}

    def script(self, name, line):
        path = self.path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def use_python(self, text):
        """Chooses an interpreter that can import the modules of the program. Skips the page if there is none."""
        modules = set(re.findall(r"^ *(?:import|from) (accelerate|jax|lightgbm|torch)\b", text, re.M))
        for python in (sys.executable, BUILD / "torch/bin/python"):
            if Path(python).exists() and all(cases.run([python, "-I", "-c", f"import {name}"]).returncode == 0 for name in modules):
                if "jax" in modules and not ((BUILD / "libweft-jax.so").exists() or os.environ.get("WEFT_JAX_LIBRARY")):
                    skip("needs libweft-jax.so, which is not built")
                self.python = python
                self.script("python3", f'exec "{python}" "$@"')
                return
        skip(f"needs {', '.join(sorted(modules))}")

    def run(self, command):
        return cases.run(command, timeout=300, environment=self.environment, cwd=self.path)

    def shell(self, text):
        """Runs commands. Skips the page if it has no launcher that they call."""
        if re.search(r"\btorchrun|torch\.distributed", text):
            self.use_python("import torch")
            self.script("torchrun", f'exec "{self.python}" -m torch.distributed.run "$@"')
        for line in text.splitlines():
            program = re.match(r"mpirun|cmake", line)
            if program and not shutil.which(program[0]):
                skip(f"{program[0]} is not here")
        return self.run(["bash", "-euo", "pipefail", "-c", text])

    def save(self, block):
        text = block.text
        if block.words[1:2] == ["in"]:
            template = (ROOT / "tests/docs/templates" / block.words[2]).read_text()
            place = re.search(r"^( *)BLOCK\n", template, re.M)
            text = template.replace(place[0], re.sub("^(?=.)", place[1], text, flags=re.M))
        (self.path / block.words[0]).write_text(text)
        return self.path / block.words[0], text

    def program(self, block):
        source, text = self.save(block)
        if source.suffix == ".py":
            self.use_python(text)
            command = [self.python, source]
            if "weftsync.torch" in text:
                return self.run([self.python, "-m", "torch.distributed.run", "--nproc-per-node", 2, source])
        else:
            command = [source.with_suffix("")]
            result = self.run([CC, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", source, "-o", *command,
                               f"-I{ROOT / 'include'}", f"-L{BUILD}", "-lweft"])
            if result.returncode != 0:
                return result
        return self.run([WEFT, "run", "-n", 2, "--prefix", "none", "--", *command])


def check_output(text, printed):
    for line in text.splitlines():
        pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", line.strip()))
        expect(re.search(f"^ *{pattern} *$", printed, re.M), f"no line {line!r} was printed", printed)


def page_case(blocks):
    def case():
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            place, result = Folder(folder), None
            for block in blocks:
                where = f"{block.page}:{block.line}"
                if block.kind == "output":
                    check_output(block.text, result.stdout + result.stderr)
                elif block.kind == "save":
                    place.save(block)
                elif block.kind in ("run", "shell"):
                    result = place.program(block) if block.kind == "run" else place.shell(block.text)
                    expect((result.returncode == 0) != ("fails" in block.words), f"{where}: exit code {result.returncode}", result.stdout, result.stderr)
    case.__doc__ = f"the code of {blocks[0].page} works"
    return case


def test_every_block():
    """each block of code is run, quoted from a file, or exempt for a reason; the number of exempt ones is the listed one"""
    kinds = ("run", "shell", "save", "output", "none", "from")
    untested = [f"{block.page}:{block.line}: {block.text.splitlines()[0]}" for block in BLOCKS if block.kind not in kinds]
    expect(not untested, "blocks without a test, and without a reason in tests/docs/exempt.txt:", *untested)
    listed = {}
    for line in (ROOT / "tests/docs/exempt.txt").read_text().splitlines():
        if not line.startswith("#"):
            key, number, reason = line.split(None, 2)
            expect(len(reason.split()) > 2, f"exempt.txt: {key} has a reason")
            listed[key] = int(number)
    counts = collections.Counter(block.words[0] for block in BLOCKS if block.kind == "none")
    print(f"{len(BLOCKS)} blocks of code: {sum(counts.values())} exempt,",
          ", ".join(f"{number} {kind}" for kind, number in collections.Counter(block.kind for block in BLOCKS).items() if kind != "none"))
    expect_equal(dict(counts), listed)


def test_errors():
    """docs/reference/errors.md has a row for each status of the C API"""
    names = re.findall(r"^#define (WEFT_ERR_\w+) \d+", (ROOT / "include/weft/core.h").read_text(), re.M)
    expect_equal(re.findall(r"^\| `(WEFT_ERR_\w+)` \|", (ROOT / "docs/reference/errors.md").read_text(), re.M), names)


def subcommands(*words):
    """Yields each command of weft that has no subcommands of its own, or does something without them."""
    listed = re.search(r"^Subcommands:\n((?: .*\n)+)", cases.run([WEFT, *words, "--help"]).stdout, re.M)
    names = re.findall(r"^  (\w+)", listed[1], re.M) if listed else []
    if words == ("bench",):
        names = ["faults", "form"]  # one row is for all other benchmarks
    for name in names:
        yield from subcommands(*words, name)
    if words and (not names or words == ("bench",)):
        yield " ".join(("weft", *words))


def test_commands():
    """docs/reference/commands.md has a row for each command"""
    listed = re.findall(r"^\| `(weft(?: [a-z]+)+)", (ROOT / "docs/reference/commands.md").read_text(), re.M)
    expect_equal(sorted(listed), sorted(subcommands()))


GROUPS = {"integers": ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"], "f16, bf16, f32, f64": ["f16", "bf16", "f32", "f64"],
          "c64, c128": ["c64", "c128"], "f8": ["f8_e4m3", "f8_e5m2"], "bool": ["bool"]}


def table_of(collectives):
    """Returns the collectives of `weft info --json` as a table: a row for each group of collectives and operations."""
    rows = {}
    for collective, operations in collectives.items():
        if collective == "barrier":
            continue
        operations = operations if isinstance(operations, dict) else {"": operations}
        alike = collections.defaultdict(list)  # operations with the same types
        for operation, types in operations.items():
            alike[tuple(types)].append(operation)
        cells = []
        for types, names in sorted(alike.items(), key=lambda item: item[1]):
            whole = [set(group) <= set(types) for group in GROUPS.values()]
            expect_equal(sum(map(len, (group for group, here in zip(GROUPS.values(), whole) if here))), len(types), collective, types)
            cells.append(f" {', '.join(names)} | " + " | ".join("yes" if here else "" for here in whole) + " |")
        rows.setdefault(tuple(cells), []).append(collective)
    lines = ["| collective | op | " + " | ".join(GROUPS) + " |", "|---" * (2 + len(GROUPS)) + "|"]
    lines += [f"| {', '.join(names) if first else ''} |{cell}" for cells, names in rows.items()
              for first, cell in zip([True] + [False] * len(cells), cells)]
    return "\n".join(re.sub(r" +\|", " |", line) for line in lines) + "\n"


def test_collectives():
    """the table of docs/reference/backends.md is what weft info reports, for each backend that is available"""
    tables = {table_of(backend["collectives"]["host"]) for backend in
              json.loads(cases.run([WEFT, "info", "--json"]).stdout)["backends"] if backend["available"]}
    expect_equal(len(tables), 1)
    table = tables.pop()
    expect(table in (ROOT / "docs/reference/backends.md").read_text(), "docs/reference/backends.md has the table", table)


def main():
    found = {"test_every_block": test_every_block, "test_errors": test_errors, "test_commands": test_commands,
             "test_collectives": test_collectives}
    for page in dict.fromkeys(block.page for block in BLOCKS):
        blocks = [block for block in BLOCKS if block.page == page]
        if any(block.kind in ("run", "shell") for block in blocks):
            found[f"test_{page}"] = page_case(blocks)
    cases.main(found)


main()
