#include "made_together.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/text.h"
#include "environment/config.h"

namespace weft::test {
namespace {

constexpr auto kPatience = std::chrono::minutes(5);  // the other ranks may still be in another test case

template <class Stream>
void need(const Stream& stream, const std::string& name) {
  if (!stream.good()) throw std::runtime_error(cat(name, " cannot be read or written"));
}

uint64_t number(std::ifstream& in) {
  uint64_t value = 0;
  in.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

void put(std::ofstream& out, uint64_t value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

MadeTogether::MadeTogether(std::string folder, int rank, int ranks)
    : folder_(std::move(folder)), rank_(rank), ranks_(ranks) {}

std::string MadeTogether::file(int round, int rank) const {
  return cat(folder_, "/", round, "-", rank);
}

// Writes for each item the number of its parts, their sizes, and the parts.
void MadeTogether::write(size_t items, const std::function<std::vector<Bytes>(size_t)>& make) const {
  const std::string name = file(round_, rank_), unfinished = name + ".part";
  std::ofstream out(unfinished, std::ios::binary);
  for (auto i = static_cast<size_t>(rank_); i < items; i += static_cast<size_t>(ranks_)) {
    const std::vector<Bytes> parts = make(i);
    put(out, parts.size());
    for (const Bytes& part : parts) put(out, part.size());
    for (const Bytes& part : parts) {
      out.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
    }
  }
  out.close();
  need(out, unfinished);
  std::filesystem::rename(unfinished, name);
}

void MadeTogether::read(int from, const std::vector<size_t>& wanted,
                        std::vector<std::vector<Bytes>>* taken) const {
  const std::string name = file(round_, from);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!std::filesystem::exists(name)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error(cat("rank ", from, " has not made its share of the references"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::ifstream in(name, std::ios::binary);
  for (auto i = static_cast<size_t>(from); i < taken->size(); i += static_cast<size_t>(ranks_)) {
    std::vector<uint64_t> at = {0}, sizes(number(in));
    for (uint64_t& size : sizes) at.push_back(at.back() + (size = number(in)));
    const std::streamoff begin = in.tellg();
    for (const size_t part : wanted) {
      Bytes& bytes = (*taken)[i].emplace_back(sizes.at(part));
      in.seekg(begin + static_cast<std::streamoff>(at[part]));
      in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    in.seekg(begin + static_cast<std::streamoff>(at.back()));
    need(in, name);
  }
}

std::vector<std::vector<Bytes>> MadeTogether::run(size_t items,
                                                  const std::function<std::vector<Bytes>(size_t)>& make,
                                                  const std::vector<size_t>& wanted) {
  round_++;
  write(items, make);
  std::vector<std::vector<Bytes>> taken(items);
  for (int r = 0; r < ranks_; r++) read(r, wanted, &taken);
  // A rank that has written this round has read the previous one, so this rank's previous file can go.
  std::filesystem::remove(file(round_ - 1, rank_));
  return taken;
}

MadeTogether* made_together() {
  static const auto made = []() -> std::unique_ptr<MadeTogether> {
    const char* const folder = std::getenv("WEFT_TEST_SHARED");
    Environment environment;
    if (folder == nullptr || !process_environment(&environment).ok() || environment.launch.size < 2)
      return nullptr;
    return std::make_unique<MadeTogether>(folder, environment.launch.rank, environment.launch.size);
  }();
  return made.get();
}

}  // namespace weft::test
