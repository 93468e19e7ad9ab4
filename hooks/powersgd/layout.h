// Where a bucket's matrices and their factors lie, and what powersgd's options are. Used by powersgd.cpp
// with the hook's turn; made anew for every bucket that it looks at, without allocating once it has
// seen the largest.
#pragma once

#include <weft/weft.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::hook_powersgd {

enum class Feedback { kLocal, kOff, kDdp };

struct Settings {
  std::string name;
  bool batched = false;  // a bucket is one square matrix
  uint64_t rank = 1;
  uint64_t start = 1000;
  double min_rate = 2;
  Feedback feedback = Feedback::kLocal;
  bool warm_start = true;
  bool alternate = false;  // one factor a step
  bool batch = false;      // matrices of equal shape go through each operation together
  double epsilon = 0;
  uint64_t seed = 0;
  bool rescue = false;          // a bucket whose error memory keeps growing goes uncompressed
  uint64_t statistics = 10000;  // compressed steps between lines of log; 0: none
};

// A matrix among a bucket's values, and its factors.
struct Matrix {
  const char* name;  // what its factors are remembered by: the parameter's, or one of the bucket's own
  uint64_t offset, rows, columns, rank;
  uint64_t p, q;  // where its factors begin, in values among all Ps and all Qs

  uint64_t p_count() const { return rows * rank; }
  uint64_t q_count() const { return columns * rank; }
};

// What is sent as it is: a piece of the bucket's values, and where it lies among all pieces.
struct Piece {
  uint64_t offset, count, at;
};

// Matrices that go through each operation together: of one shape, their factors one behind the other.
struct Group {
  uint64_t first, count;
};

class Layout {
 public:
  explicit Layout(const Settings& settings) : settings_(settings) {}

  void lay_out(const weft_bucket& bucket);
  // Whether a parameter travels as factors; then also the matrix that it is in memory: its outermost
  // dimension by all the others.
  bool compresses(const weft_bucket_param& param, uint64_t* rows, uint64_t* columns) const;

  // The pieces travel behind the factors of a step's first collective.
  uint64_t p_sent() const { return p_count + piece_count; }
  uint64_t q_sent() const { return settings_.alternate ? q_count + piece_count : q_count; }

  std::vector<Matrix> matrices;
  std::vector<uint64_t> offsets;  // theirs
  std::vector<Group> groups;
  std::vector<Piece> pieces;
  uint64_t p_count = 0, q_count = 0, piece_count = 0;  // values
  uint64_t p_bytes = 0, q_bytes = 0;                   // where they begin in scratch
  uint64_t scratch_bytes = 0;

 private:
  uint64_t lay_out_params(const weft_bucket& bucket);
  uint64_t lay_out_square(const weft_bucket& bucket);
  void add_matrix(const char* name, uint64_t offset, uint64_t rows, uint64_t columns);
  void place_factors();

  const Settings& settings_;
  std::array<char, 24> square_name_{};
};

}  // namespace weft::hook_powersgd
