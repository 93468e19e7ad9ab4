// Fashion-MNIST, and the images of each rank in their order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

constexpr uint32_t kPixels = 28 * 28;
constexpr uint32_t kClasses = 10;

struct Dataset {
  uint32_t count = 0;
  std::vector<uint8_t> pixels;  // count * kPixels
  std::vector<uint8_t> labels;  // count, below kClasses
};

// Loads "train" or "t10k" from folder, at most `limit` images (0: all). Throws std::runtime_error, which
// names the Debian package if the folder has no such files.
Dataset load_fashion(const std::string& folder, const std::string& part, uint32_t limit);

// Random numbers that are equal on all platforms, unlike std::shuffle: Steele, Lea and Flood's SplitMix64.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // in [0, 1)

 private:
  uint64_t state_;
};

// The images of one rank: a fixed part of the training set, disjoint from every other rank's, in a new order
// in every epoch. It depends only on the seed, so any process can compute any rank's part.
class Shard {
 public:
  Shard(const Dataset& data, int rank, int ranks, uint64_t seed);
  // Shuffles the images for this epoch.
  void start_epoch(uint32_t epoch);
  uint32_t size() const { return static_cast<uint32_t>(indices_.size()); }
  // Writes batch `step` of `batch` images of the epoch: pixels scaled to about [-1, 1], and labels.
  void batch(uint32_t step, uint32_t batch, float* pixels, uint8_t* labels) const;

 private:
  const Dataset& data_;
  const uint64_t seed_;
  std::vector<uint32_t> part_;     // as dealt
  std::vector<uint32_t> indices_;  // in the order of this epoch
};
