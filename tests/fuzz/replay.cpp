// Runs a fuzz target over its corpus, and over modified copies of it that are the same in every run.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"
#include "support/catch.h"
#include "support/seed.h"

// Defined in the program's own about.cpp.
extern const char* const fuzz_name;
extern const char* const fuzz_corpus;

namespace {

using Content = std::vector<uint8_t>;

std::vector<Content> corpus() {
  std::vector<Content> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(fuzz_corpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// Changes, removes or inserts a few bytes.
Content change(Content input, std::mt19937& random) {
  static constexpr uint8_t kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % std::max<size_t>(end, 1)); };
  for (size_t changes = 1 + below(4); changes > 0; changes--) {
    const size_t at = below(input.size() + 1);
    const auto byte = random() % 2 == 0 ? kTelling[below(5)] : static_cast<uint8_t>(random());
    const auto place = input.begin() + static_cast<ptrdiff_t>(at);
    if (at == input.size() || random() % 4 == 0) {
      input.insert(place, byte);
    } else if (random() % 4 == 0) {
      input.erase(place, place + static_cast<ptrdiff_t>(std::min(1 + below(8), input.size() - at)));
    } else {
      *place = byte;
    }
  }
  return input;
}

}  // namespace

TEST_CASE(std::string("the parser of ") + fuzz_name + " takes its corpus and changes of it without harm") {
  const std::vector<Content> inputs = corpus();
  REQUIRE(!inputs.empty());
  CHECK(LLVMFuzzerTestOneInput(nullptr, 0) == 0);
  std::mt19937 random(20260100 + static_cast<uint32_t>(weft::test::base_seed()));
  for (const Content& input : inputs) {
    CHECK(LLVMFuzzerTestOneInput(input.data(), input.size()) == 0);
    for (int i = 0; i < 500; i++) {
      const Content changed = change(input, random);
      LLVMFuzzerTestOneInput(changed.data(), changed.size());
    }
  }
}
