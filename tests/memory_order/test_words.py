#!/usr/bin/env python3
"""docs/dev/memory-order.md lists every word that threads share without a lock. Usage: test_words.py"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

FOLDERS = ("lib", "backends", "hooks")
# A declaration ends with a semicolon; a parameter does not, and a reference is no word of its own.
NAMES = re.compile(r"(?:, \w+)?(?:[\s>\[\]*]|const\b)*(?P<names>\w+(?:\{[^;{}]*\})?(?:, *\w+(?:\{[^;{}]*\})?)*)\s*(?:\{[^;]*\}|=[^;]*)?;")
MADE = re.compile(r"\b(\w+) = std::make_(?:shared|unique)<std::atomic<")
BUILT_IN = re.compile(r"__(?:atomic|sync)_\w+\(&([\w.>-]+)|std::atomic_ref(?:<\w+>)?\(\*?([\w.>-]+)")


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)


def after_template(text, at):
    """Return the index behind the angle brackets that open at text[at]."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"<": 1, ">": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise AssertionError(text[at:at + 80])


def words_in(text):
    """Return the names of the atomic words that a source declares, and of others that it accesses as such."""
    text = without_comments(text)
    names = set(MADE.findall(text))
    for found in re.finditer(r"std::atomic<", text):
        rest = text[after_template(text, found.end() - 1):]
        declared = NAMES.match(rest)
        if declared:
            names |= set(re.findall(r"\w+", re.sub(r"\{[^{}]*\}", "", declared["names"])))
    for first, second in BUILT_IN.findall(text):
        names.add(re.split(r"->|\.", first or second)[-1])
    return names - {"reinterpret_cast"}


def declared_words():
    """Return the words, by the path of the source."""
    sources = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".h", ".cpp")]
    words = {path: words_in(path.read_text(encoding="utf-8")) for path in sources}
    return {path: names for path, names in words.items() if names}


def listed_rows():
    """Return the document's rows: the names in the first cell, and the files in the second."""
    rows = []
    for line in (ROOT / "docs/dev/memory-order.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) in (3, 6):
            rows.append((set(re.findall(r"`([^`]+)`", cells[0])), re.findall(r"[\w/]+\.(?:h|cpp)\b", cells[1])))
    return rows


def is_named(path, files):
    return any(f"/{path.relative_to(ROOT)}".endswith(f"/{file}") for file in files)


def test_sources():
    """the declarations that the check finds in a text are the declared words"""
    text = """
      std::atomic<bool> plain{false};  // std::atomic<bool> comment;
      const std::unique_ptr<std::atomic<bool>[]> first, second;
      static std::atomic<int> made{0}, more{1};
      std::array<std::atomic<int>, kEntries> many{};
      std::atomic<uint64_t>* const pointer = nullptr;
      void call(std::atomic<int>* parameter, const std::atomic<int>& other);
      std::atomic<int>& reference = plain;
      const auto shared = std::make_shared<std::atomic<bool>>(false);
      member(std::make_unique<std::atomic<int>[]>(3)) {}
      __atomic_load_n(&number, __ATOMIC_RELAXED);
      std::atomic_ref(*ticket->word).store(1);
    """
    expect_equal(words_in(text), {"plain", "first", "second", "made", "more", "many", "pointer", "shared", "number", "word"})


def test_words_are_listed():
    """each word is in a row that names its file"""
    rows = listed_rows()
    missing = [f"{path.relative_to(ROOT)}: {name}" for path, names in declared_words().items() for name in sorted(names)
               if not any(name in listed and is_named(path, files) for listed, files in rows)]
    expect(not missing, f"{len(missing)} words are not in docs/dev/memory-order.md", "\n".join(missing))


def test_rows_are_words():
    """each word of a row is in one of its files"""
    words = declared_words()
    for listed, files in listed_rows():
        known = {name for path, names in words.items() if is_named(path, files) for name in names}
        expect(listed <= known, f"{listed - known} is no word of {files}")


cases.main(globals())
