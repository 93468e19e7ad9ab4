// Bytes that cross a process boundary: an owned buffer, a writer, and a bounds-checking reader.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weft {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

// Appends little-endian integers and length-prefixed strings.
class ByteWriter {
 public:
  template <class Int>
    requires std::is_integral_v<Int> || std::is_enum_v<Int>
  ByteWriter& put(Int value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof value);
    return *this;
  }
  ByteWriter& put_f64(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return put(bits);
  }
  ByteWriter& put_string(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    return put_raw(std::as_bytes(std::span(text.data(), text.size())));
  }
  ByteWriter& put_bytes(ByteView bytes) {
    put(static_cast<uint32_t>(bytes.size()));
    return put_raw(bytes);
  }
  ByteWriter& put_raw(ByteView bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads the output of a ByteWriter. The first read beyond the end marks the reader as bad; it and all later
// reads return zero or empty. Check ok() (or done()) once at the end, before using any value as an index or a
// size.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  template <class Int>
    requires std::is_integral_v<Int> || std::is_enum_v<Int>
  Int get() {
    std::array<std::byte, sizeof(Int)> raw{};
    if (take(sizeof(Int))) std::memcpy(raw.data(), bytes_.data() + at_ - sizeof(Int), sizeof(Int));
    return std::bit_cast<Int>(raw);
  }
  double get_f64() {
    const uint64_t bits = get<uint64_t>();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // Reads a string of at most `most` bytes; a longer one marks the reader as bad.
  std::string get_string(uint32_t most) {
    const ByteView raw = get_bytes(most);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  ByteView get_bytes(uint32_t most) {
    const uint32_t size = get<uint32_t>();
    if (size > most || !take(size)) {
      ok_ = false;
      return {};
    }
    return bytes_.subspan(at_ - size, size);
  }
  ByteView get_raw(size_t size) { return take(size) ? bytes_.subspan(at_ - size, size) : ByteView{}; }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && at_ == bytes_.size(); }  // everything was read without an error

 private:
  bool take(size_t size) {
    if (!ok_ || size > bytes_.size() - at_) {
      ok_ = false;
      return false;
    }
    at_ += size;
    return true;
  }
  ByteView bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace weft
