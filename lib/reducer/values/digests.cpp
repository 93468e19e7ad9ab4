#include "reducer/values/digests.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace weft {
namespace {

constexpr uint64_t kPackedBytes = 4096;  // hashed at a time, for values with gaps

class Hash {
 public:
  Hash() { crypto_generichash_init(&state_, nullptr, 0, crypto_generichash_BYTES_MIN); }
  void add(const std::byte* data, uint64_t size) {
    crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(data), size);
  }
  uint64_t value() {
    std::array<unsigned char, crypto_generichash_BYTES_MIN> full;
    crypto_generichash_final(&state_, full.data(), full.size());
    uint64_t out;
    std::memcpy(&out, full.data(), sizeof out);
    return out;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

uint64_t digest_value(const Layout& layout, const std::byte* value) {
  Hash hash;
  const uint64_t element = layout.element_bytes();
  if (layout.dense()) {
    if (layout.count() > 0) hash.add(value, layout.count() * element);
    return hash.value();
  }
  std::array<std::byte, kPackedBytes> packed;
  const uint64_t most = kPackedBytes / element;
  for (uint64_t first = 0; first < layout.count(); first += most) {
    const uint64_t count = std::min(most, layout.count() - first);
    layout.pack(value, packed.data(), first, count);
    hash.add(packed.data(), count * element);
  }
  return hash.value();
}

uint64_t digest_range(std::span<const uint64_t> digests) {
  if (digests.size() == 1) return digests.front();
  Hash hash;
  hash.add(reinterpret_cast<const std::byte*>(digests.data()), digests.size_bytes());
  return hash.value();
}

DigestSearch::Row DigestSearch::row() const {
  Row row{};
  for (size_t k = 0, at = begin_; at < end_; k++, at += width()) {
    row[k] = digest_range(mine_.subspan(at, std::min(width(), end_ - at)));
  }
  return row;
}

bool DigestSearch::descend(std::span<const Row> rows) {
  const size_t step = width();
  for (size_t k = 0; begin_ + k * step < end_; k++) {
    const bool differs =
        std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row[k] != rows.front()[k]; });
    if (!differs) continue;
    begin_ += k * step;
    end_ = std::min(begin_ + step, end_);
    found_ = step == 1;
    for (size_t r = 0; found_ && r < rows.size(); r++) column_.push_back(rows[r][k]);
    return true;
  }
  return false;
}

std::vector<int> minority(std::span<const uint64_t> digests) {
  std::map<uint64_t, size_t> holders;
  for (const uint64_t digest : digests) holders[digest]++;
  uint64_t right = digests.front();
  for (const uint64_t digest : digests) {
    if (holders[digest] > holders[right]) right = digest;
  }
  std::vector<int> out;
  for (size_t r = 0; r < digests.size(); r++) {
    if (digests[r] != right) out.push_back(static_cast<int>(r));
  }
  return out;
}

}  // namespace weft
