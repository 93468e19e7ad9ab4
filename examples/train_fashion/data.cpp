#include "data.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "idx.h"

namespace {

// Finds the file, plain or compressed; Debian's package has compressed files.
std::string find(const std::string& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    if (std::string path = folder + "/" + name + suffix; ::access(path.c_str(), R_OK) == 0) return path;
  }
  throw std::runtime_error(
      "cannot read Fashion-MNIST in the folder " + folder + ": there is no readable " + name +
      "[.gz].\nOn Debian or Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere: download the four "
      "files "
      "of https://github.com/zalandoresearch/fashion-mnist and name their folder with --data DIR.");
}

void shuffle(std::vector<uint32_t>* values, uint64_t seed) {
  SplitMix64 random(seed);
  for (uint64_t i = values->size(); i > 1; --i) std::swap((*values)[i - 1], (*values)[random.below(i)]);
}

}  // namespace

Dataset load_fashion(const std::string& folder, const std::string& part, uint32_t limit) {
  const std::string images_path = find(folder, part + "-images-idx3-ubyte");
  IdxFile images = read_idx(images_path, 3);
  IdxFile labels = read_idx(find(folder, part + "-labels-idx1-ubyte"), 1);
  if (images.dims[1] != 28 || images.dims[2] != 28) {
    throw std::runtime_error(images_path + ": images are " + std::to_string(images.dims[1]) + " x " +
                             std::to_string(images.dims[2]) + " pixels, expected 28 x 28");
  }
  if (images.dims[0] != labels.dims[0]) {
    throw std::runtime_error(images_path + ": has " + std::to_string(images.dims[0]) +
                             " images, but there are " + std::to_string(labels.dims[0]) +
                             " labels beside it");
  }
  if (const uint32_t label = *std::max_element(labels.bytes.begin(), labels.bytes.end()); label >= kClasses) {
    throw std::runtime_error(images_path + ": one of its labels is " + std::to_string(label) +
                             ", expected 0 to 9");
  }
  Dataset data{images.dims[0], std::move(images.bytes), std::move(labels.bytes)};
  if (limit != 0 && limit < data.count) {
    data.count = limit;
    data.pixels.resize(uint64_t{limit} * kPixels);
    data.labels.resize(limit);
  }
  return data;
}

Shard::Shard(const Dataset& data, int rank, int ranks, uint64_t seed)
    : data_(data), seed_(seed + static_cast<uint64_t>(rank) * 0x100000000u) {
  std::vector<uint32_t> all(data.count);
  std::iota(all.begin(), all.end(), 0u);
  shuffle(&all, seed);
  const uint32_t each = data.count / static_cast<uint32_t>(ranks);
  const auto first = all.begin() + static_cast<int64_t>(each) * rank;
  part_.assign(first, first + each);
  indices_ = part_;
}

void Shard::start_epoch(uint32_t epoch) {
  indices_ = part_;
  shuffle(&indices_, seed_ + 1 + epoch);
}

void Shard::batch(uint32_t step, uint32_t batch, float* pixels, uint8_t* labels) const {
  for (uint32_t i = 0; i < batch; ++i) {
    const uint32_t index = indices_.at(uint64_t{step} * batch + i);
    const uint8_t* image = &data_.pixels[uint64_t{index} * kPixels];
    for (uint32_t p = 0; p < kPixels; ++p)
      pixels[i * kPixels + p] = static_cast<float>(image[p]) / 128.0f - 0.6f;
    labels[i] = data_.labels[index];
  }
}
