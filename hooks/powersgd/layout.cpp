#include "layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "common/bucket.h"

namespace weft::hook_powersgd {
namespace {

bool same_shape(const Matrix& a, const Matrix& b) {
  return a.rows == b.rows && a.columns == b.columns;
}

// Makes a name for the matrix of a bucket with these parameters. The name depends on the parameters'
// arrangement, because the stored factors are of no use for another one.
void name_square(const weft_bucket& bucket, std::array<char, 24>* name) {
  uint64_t hash = bucket.count;
  for (const weft_bucket_param& p : params_of(bucket)) hash = mix(mix(hash ^ p.count), p.name);
  name->fill(0);
  std::copy_n("bucket ", 7, name->begin());
  std::to_chars(name->data() + 7, name->data() + name->size() - 1, hash, 16);
}

}  // namespace

void Layout::lay_out(const weft_bucket& bucket) {
  matrices.clear();
  offsets.clear();
  groups.clear();
  pieces.clear();
  p_count = q_count = piece_count = 0;
  p_bytes = settings_.batched ? lay_out_square(bucket) : lay_out_params(bucket);
  place_factors();
  if (matrices.empty()) p_bytes = 0;
  q_bytes = p_bytes + round_up(p_sent() * sizeof(float), 64);
  scratch_bytes = q_bytes + q_sent() * sizeof(float);
}

bool Layout::compresses(const weft_bucket_param& param, uint64_t* rows, uint64_t* columns) const {
  if (param.ndim < 2 || param.count == 0) return false;
  int outer = 0;
  for (int d = 1; d < param.ndim; d++) {
    if (param.strides[d] > param.strides[outer]) outer = d;
  }
  *rows = static_cast<uint64_t>(param.shape[outer]);
  *columns = param.count / *rows;
  const auto rank = static_cast<double>(std::min({*rows, *columns, settings_.rank}));
  return static_cast<double>(*rows + *columns) * rank * settings_.min_rate < static_cast<double>(param.count);
}

// Returns the offset of the factors in scratch: after the values.
uint64_t Layout::lay_out_params(const weft_bucket& bucket) {
  uint64_t rows = 0;
  uint64_t columns = 0;
  for (const weft_bucket_param& p : params_of(bucket)) {
    if (compresses(p, &rows, &columns)) add_matrix(p.name, p.offset, rows, columns);
  }
  if (matrices.empty()) return 0;
  for (const weft_bucket_param& p : params_of(bucket)) {
    if (p.count == 0 || compresses(p, &rows, &columns)) continue;
    pieces.push_back({p.offset, p.count, piece_count});
    piece_count += p.count;
  }
  return values_bytes(bucket);
}

uint64_t Layout::lay_out_square(const weft_bucket& bucket) {
  auto side = static_cast<uint64_t>(std::sqrt(static_cast<double>(bucket.count)));
  while (side * side < bucket.count) side++;
  if (2 * side * settings_.rank >= bucket.count) return 0;  // compression gains nothing
  name_square(bucket, &square_name_);
  add_matrix(square_name_.data(), 0, side, side);
  return round_up(side * side * sizeof(float), 64);
}

void Layout::add_matrix(const char* name, uint64_t offset, uint64_t rows, uint64_t columns) {
  matrices.push_back({name, offset, rows, columns, std::min({rows, columns, settings_.rank}), 0, 0});
}

void Layout::place_factors() {
  if (settings_.batch) {
    std::sort(matrices.begin(), matrices.end(), [](const Matrix& a, const Matrix& b) {
      return std::tie(a.rows, a.columns, a.offset) < std::tie(b.rows, b.columns, b.offset);
    });
  }
  for (uint64_t i = 0; i < matrices.size(); i++) {
    Matrix& m = matrices[i];
    m.p = p_count;
    m.q = q_count;
    p_count += m.p_count();
    q_count += m.q_count();
    offsets.push_back(m.offset);
    const bool joins = settings_.batch && i > 0 && same_shape(matrices[i - 1], m);
    if (joins) {
      groups.back().count++;
    } else {
      groups.push_back({i, 1});
    }
  }
}

}  // namespace weft::hook_powersgd
