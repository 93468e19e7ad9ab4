#!/usr/bin/env python3
"""The check `sizes` of tools/lint.py finds long files, full folders and classes that should be split, and none of these in a
tree that keeps the limits."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import lint  # noqa: E402


def problems(files):
    """Return what the check says about a repository of these files: by path their texts, or numbers of empty lines."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for name, text in files.items():
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text if isinstance(text, str) else "\n" * text)
        with mock.patch.object(lint, "ROOT", Path(folder)):
            return lint.check_sizes(None)


def full(folder, count):
    return {f"{folder}/{number}.py": 1 for number in range(count)}


class Sizes(unittest.TestCase):
    def test_what_keeps_the_limits_is_accepted(self):
        self.assertEqual(problems({"lib/core/a.cpp": lint.LONG, "tests/b.cpp": lint.TOO_LONG + 1}), [])
        self.assertEqual(problems(full("tools/a", lint.FULL) | full("tools/a/b", lint.FULL)), [])

    def test_a_long_file_fails(self):
        [problem] = problems({"lib/core/a.cpp": lint.TOO_LONG + 1})
        self.assertIn("lib/core/a.cpp", problem)

    def test_a_full_folder_fails(self):
        [problem] = problems(full("tests/unit", lint.FULL + 1) | full("tests", 3))
        self.assertIn(f"tests/unit: {lint.FULL + 1} files", problem)

    def test_folders_of_data_may_be_full(self):
        self.assertEqual(problems(full("tests/fuzz/corpus/hook", lint.FULL + 1)), [])


def members(count):
    """Return the text of a class with so many data members, and of everything else that a class may contain."""
    return """// class Comment { int a_; };
class Lane final : public Task {
 public:
  explicit Lane(int a) : first_(a), more_{a} {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  Lane& operator=(Lane&&) = default;
  template <class Done>
  void run(Done&& done, int times = 1) const {
    const int a = 1;
    for (int b = 0; b < a; b++) done();
  }
  static constexpr int kSlots = 3, kMore = 4;
  using Key = std::pair<int, int>;
  enum class State { kDone, kRuns };
  friend class Engine;

 private:
  struct Run {
    int begin = 0;
    int end = 0;
  };
  std::function<void(int round)> call_;
  std::map<std::pair<int, int>, Run> runs_ = {};
  std::atomic<uint64_t> first_{0}, more_{std::min(1, 2)};
""" + "".join(f"  Clock* clock{number}_ = nullptr;  // guarded\n" for number in range(count - 4)) + "};\n"


class Classes(unittest.TestCase):
    def test_classes_within_the_limits_are_accepted(self):
        self.assertEqual(problems({"lib/a/lane.h": members(25)}), [])
        self.assertEqual(problems({"tests/a.h": members(26)}), [])
        self.assertEqual(problems({"lib/a/lane.cpp": "namespace a {\nint Lane::f() const {\n  Clock::now();\n}\n}\n",
                                   "lib/a/clock.cpp": "std::string name(int a);\nClock::Clock(int a)\n    : a_(a) {}\n",
                                   "lib/b/lane.cpp": "Status Lane::open() {}\n"}), [])

    def test_a_class_with_many_members_fails(self):
        [problem] = problems({"lib/a/lane.h": members(26)})
        self.assertIn("lib/a/lane.h:2: Lane has 26 data members", problem)
        [problem] = problems({"tools/weft/a.cpp": "struct Many {\n" + "  int a, b;\n" * 13 + "};\n"})
        self.assertIn("Many has 26", problem)

    def test_a_class_in_several_sources_fails(self):
        for definition in ("void Lane::close() {}", "Lane::~Lane() {", "std::vector<int> Lane::all(int a) const {",
                           "bool Lane::operator==(const Lane& other) const {", "std::unique_ptr<Lane> Lane::make(\n    int a) {"):
            [problem] = problems({"lib/a/lane.cpp": "Status Lane::open() {\n}\n", "lib/a/more.cpp": definition + "\n"})
            self.assertIn("lib/a/lane.cpp and lib/a/more.cpp: member functions of Lane in each", problem)


if __name__ == "__main__":
    unittest.main()
