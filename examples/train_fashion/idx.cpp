#include "idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

// Reads a file through gzread, which also reads uncompressed files.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) fail(path_, std::strerror(errno != 0 ? errno : ENOMEM));
  }
  ~Reader() { gzclose(file_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Reads exactly size bytes.
  void read(uint8_t* out, uint64_t size, const char* what) {
    while (size > 0) {
      const int got = gzread(file_, out, static_cast<unsigned>(std::min<uint64_t>(size, 1 << 20)));
      if (got <= 0) fail_read(what);
      out += got;
      size -= static_cast<uint64_t>(got);
    }
  }

  uint32_t big_endian(const char* what) {
    uint8_t b[4];
    read(b, 4, what);
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
  }

  // Checks that the file ends. Also verifies the checksum behind the last byte.
  void expect_end() {
    uint8_t byte = 0;
    const int got = gzread(file_, &byte, 1);
    if (got < 0) fail_read("the end");
    if (got > 0) fail(path_, "has more bytes than its dimensions specify");
  }

 private:
  [[noreturn]] void fail_read(const char* what) {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_ERRNO) fail(path_, std::strerror(errno));
    if (code != Z_OK && code != Z_BUF_ERROR) fail(path_, std::string("is damaged: ") + text);
    fail(path_, std::string("ends in the middle of ") + what + ": the file is incomplete");
  }

  std::string path_;
  gzFile file_;
};

}  // namespace

IdxFile read_idx(const std::string& path, uint32_t rank, uint64_t max_bytes) {
  errno = 0;
  Reader reader(path);
  constexpr uint32_t kUnsignedBytes = 0x08;
  const uint32_t magic = reader.big_endian("its magic number");
  if (const uint32_t wanted = kUnsignedBytes << 8 | rank; magic != wanted) {
    fail(path, "is no IDX file of unsigned bytes in " + std::to_string(rank) +
                   " dimensions: its first 4 bytes are " + std::to_string(magic) + ", expected " +
                   std::to_string(wanted));
  }
  IdxFile file;
  uint64_t size = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    file.dims.push_back(reader.big_endian("its dimensions"));
    if (file.dims[i] == 0) fail(path, "has an empty dimension: dimension " + std::to_string(i) + " is 0");
    size *= file.dims[i];  // no overflow: both factors are below 2^32, see the next line
    if (size > std::min<uint64_t>(max_bytes, UINT32_MAX)) {
      fail(path, "has dimensions of more than " + std::to_string(std::min<uint64_t>(max_bytes, UINT32_MAX)) +
                     " bytes in all");
    }
  }
  file.bytes.resize(size);
  reader.read(file.bytes.data(), size, "its data");
  reader.expect_end();
  return file;
}
