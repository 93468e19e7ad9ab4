// The layout of a bucket's matrices and factors, and the options of powersgd. Used by powersgd.cpp with the
// hook's turn. It is recomputed for every bucket, and allocates nothing once it has seen the largest one.
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
  bool alternate = false;  // one factor per step
  bool batch = false;      // multiplies matrices of equal shape together
  double epsilon = 0;
  uint64_t seed = 0;
  bool rescue = false;          // sends a bucket uncompressed while its error memory keeps growing
  uint64_t statistics = 10000;  // compressed steps between log lines; 0: none
};

// A matrix in a bucket's values, and its factors.
struct Matrix {
  const char* name;  // key of its stored factors: the parameter's name, or one for the bucket
  uint64_t offset, rows, columns, rank;
  uint64_t p, q;  // offsets of its factors among all Ps and all Qs, in values

  uint64_t p_count() const { return rows * rank; }
  uint64_t q_count() const { return columns * rank; }
};

// A piece of the bucket's values that is sent uncompressed, and its offset among all pieces.
struct Piece {
  uint64_t offset, count, at;
};

// Matrices of one shape that each operation processes together. Their factors are consecutive.
struct Group {
  uint64_t first, count;
};

class Layout {
 public:
  explicit Layout(const Settings& settings) : settings_(settings) {}

  void lay_out(const weft_bucket& bucket);
  // True if a parameter is sent as factors. Sets the shape of its matrix in memory: its outermost dimension
  // by all the others.
  bool compresses(const weft_bucket_param& param, uint64_t* rows, uint64_t* columns) const;

  // Return the number of values that a collective sends. The step's first collective also sends the pieces,
  // after the factors.
  uint64_t p_sent() const { return p_count + piece_count; }
  uint64_t q_sent() const { return settings_.alternate ? q_count + piece_count : q_count; }

  std::vector<Matrix> matrices;
  std::vector<uint64_t> offsets;  // of the matrices
  std::vector<Group> groups;
  std::vector<Piece> pieces;
  uint64_t p_count = 0, q_count = 0, piece_count = 0;  // in values
  uint64_t p_bytes = 0, q_bytes = 0;                   // offsets in scratch
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
