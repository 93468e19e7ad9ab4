// The demo's data loader with malformed files.
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "data.h"
#include "idx.h"
#include "support/catch.h"

namespace {

// A folder that the destructor removes.
class Folder {
 public:
  Folder() {
    if (::mkdtemp(path_) == nullptr) throw std::runtime_error("mkdtemp");
  }
  ~Folder() {
    for (const std::string& file : files_) ::unlink(file.c_str());
    ::rmdir(path_);
  }
  std::string path() const { return path_; }

  std::string write(const std::string& name, const std::string& bytes, bool compressed = false) {
    const std::string file = path_ + ("/" + name);
    const gzFile out = gzopen(file.c_str(), compressed ? "wb" : "wbT");  // T: without compression
    if (!bytes.empty()) gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(out);
    files_.insert(file);
    return file;
  }

 private:
  char path_[32] = "/tmp/weft_idx_XXXXXX";
  std::set<std::string> files_;
};

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

std::string idx(std::initializer_list<uint32_t> dims, size_t size, char fill = 1) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) bytes += big_endian(dim);
  return bytes + std::string(size, fill);
}

std::string error_of(const std::string& path, uint32_t rank = 3, uint64_t max_bytes = 1 << 20) {
  try {
    read_idx(path, rank, max_bytes);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an IDX file is read, plain or compressed") {
  Folder folder;
  for (const bool compressed : {false, true}) {
    const IdxFile file = read_idx(folder.write("f", idx({2, 3, 4}, 24, 7), compressed), 3);
    CHECK(file.dims == std::vector<uint32_t>{2, 3, 4});
    CHECK(file.bytes == std::vector<uint8_t>(24, 7));
  }
}

TEST_CASE("an IDX file that ends early or late is refused") {
  Folder folder;
  for (const bool compressed : {false, true}) {
    const std::string whole = idx({2, 3, 4}, 24);
    for (size_t size = 0; size < whole.size(); ++size) {
      CHECK(
          contains(error_of(folder.write("f", whole.substr(0, size), compressed)), "ends in the middle of"));
    }
    CHECK(contains(error_of(folder.write("f", whole + "x", compressed)), "more bytes than its dimensions"));
  }
}

TEST_CASE("dimensions are checked before memory is allocated") {
  Folder folder;
  CHECK(contains(error_of(folder.write("f", idx({0xffffffff, 0xffffffff, 0xffffffff}, 8))), "more than"));
  CHECK(contains(error_of(folder.write("f", idx({65536, 65536, 65536}, 8))), "more than"));
  CHECK(contains(error_of(folder.write("f", idx({1 << 20, 2, 1}, 8))), "more than"));
  CHECK(contains(error_of(folder.write("f", idx({0, 28, 28}, 0))), "empty dimension"));
}

TEST_CASE("another magic number, folder or missing file is refused by name") {
  Folder folder;
  CHECK(contains(error_of(folder.write("f", idx({3}, 3)), 3), "no IDX file"));
  CHECK(contains(error_of(folder.write("f", "GET / HTTP/1.1\r\n\r\n")), "no IDX file"));
  CHECK(contains(error_of(folder.path() + "/absent"), "No such file"));
  CHECK(contains(error_of(folder.path()), "directory"));
}

TEST_CASE("a damaged compressed file is refused") {
  Folder folder;
  std::string noise;
  for (uint32_t i = 0; i < 5000; ++i) noise.push_back(static_cast<char>(i * 2654435761u >> 24));
  const std::string path = folder.write("f", idx({5000, 1, 1}, 0) + noise, true);
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  REQUIRE(file != nullptr);
  std::fseek(file, -6, SEEK_END);  // in the checksum
  std::fputc(0x55, file);
  std::fputc(0xaa, file);
  std::fclose(file);
  CHECK(contains(error_of(path), "damaged"));
}

TEST_CASE("images and labels must fit each other") {
  Folder folder;
  const auto write = [&](uint32_t images, uint32_t side, uint32_t labels, char label) {
    folder.write("train-images-idx3-ubyte", idx({images, side, side}, images * side * side));
    folder.write("train-labels-idx1-ubyte", idx({labels}, labels, label));
  };
  const auto error = [&]() -> std::string {
    try {
      load_fashion(folder.path(), "train", 0);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(contains(error(), "apt-get install dataset-fashion-mnist"));
  write(5, 28, 4, 1);
  CHECK(contains(error(), "4 labels"));
  write(5, 27, 5, 1);
  CHECK(contains(error(), "28 x 28"));
  write(5, 28, 5, 10);
  CHECK(contains(error(), "expected 0 to 9"));
  write(5, 28, 5, 9);
  CHECK(error().empty());
  CHECK(load_fashion(folder.path(), "train", 3).count == 3);
  CHECK(load_fashion(folder.path(), "train", 7).count == 5);
}

TEST_CASE("shards of ranks are disjoint, and orders follow from the seed") {
  Dataset data{100, std::vector<uint8_t>(100 * kPixels), std::vector<uint8_t>(100)};
  for (uint32_t i = 0; i < 100; ++i) data.pixels[i * kPixels] = static_cast<uint8_t>(i);
  const auto images = [&](int rank, uint32_t epoch, uint64_t seed) {
    Shard shard(data, rank, 3, seed);
    shard.start_epoch(epoch);
    std::vector<float> pixels(33 * kPixels), first;
    std::vector<uint8_t> labels(33);
    shard.batch(0, 33, pixels.data(), labels.data());
    for (uint32_t i = 0; i < 33; ++i) first.push_back(pixels[i * kPixels]);
    return first;
  };
  std::set<float> seen;
  for (int rank = 0; rank < 3; ++rank) {
    for (const float image : images(rank, 0, 5)) CHECK(seen.insert(image).second);
  }
  CHECK(seen.size() == 99);
  CHECK(images(1, 2, 5) == images(1, 2, 5));
  CHECK(images(1, 2, 5) != images(1, 3, 5));
  CHECK(images(1, 2, 5) != images(1, 2, 6));
  const auto set = [](const std::vector<float>& values) {
    return std::set<float>(values.begin(), values.end());
  };
  CHECK(set(images(1, 2, 5)) == set(images(1, 3, 5)));
}
