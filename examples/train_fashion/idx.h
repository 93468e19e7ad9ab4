// Reads the IDX files of the MNIST family, plain or compressed with gzip. Their contents are not trusted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct IdxFile {
  std::vector<uint32_t> dims;
  std::vector<uint8_t> bytes;  // the product of dims, row-major
};

// Reads unsigned bytes in `rank` dimensions. Throws std::runtime_error with the path and the error: no such
// file, another magic number, dimensions of 0 or beyond max_bytes, fewer or more bytes than the dimensions
// state, damaged compression.
IdxFile read_idx(const std::string& path, uint32_t rank, uint64_t max_bytes = uint64_t{1} << 30);
