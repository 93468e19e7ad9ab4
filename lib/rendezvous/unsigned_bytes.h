// Casts bytes to unsigned char, which libsodium's functions take.
#pragma once

#include <cstddef>

namespace weft {

inline const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
inline unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

}  // namespace weft
