// The data of a benchmark: numbers that every rank can predict for every other rank. They are cheap to write
// again before every call, and small enough that sums are exact in every type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A short repeated sequence; element i of a buffer written at `offset` is number (i + offset) of it. Its
// length is a prime, so that data in the wrong place is detected.
class Tile {
 public:
  static constexpr uint64_t kLength = 4099;

  // Returns the inputs of one rank.
  static Tile of_rank(int32_t dtype, int32_t op, int rank);
  // Returns the result of reducing the inputs of ranks 0 .. ranks-1. factor: of premul_sum.
  static Tile reduced(int32_t dtype, int32_t op, int ranks, double factor);

  void fill(std::byte* data, uint64_t count, uint64_t offset) const;
  // True if data contains these numbers. Averages may differ by the dtype's rounding. With part_of_largest,
  // values may differ by this part of the largest number.
  bool matches(const std::byte* data, uint64_t count, uint64_t offset, double part_of_largest = 0) const;

 private:
  Tile(int32_t dtype, const std::vector<double>& values);

  uint32_t size_;  // of an element
  std::vector<double> values_;
  std::vector<std::byte> twice_;  // the sequence, twice
  int32_t dtype_;
};
