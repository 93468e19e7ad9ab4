#include "reducer/feature/sparse/sparse_gradient.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/text.h"
#include "reducer/bucket/buckets.h"
#include "reducer/step/counts.h"

namespace weft {
namespace {

constexpr uint64_t kLast = SparseGradient::kCollectives;

}  // namespace

Status SparseGradient::put(const weft_sparse& entries, bool accumulated) {
  const std::lock_guard lock(mutex_);
  if (!accumulated) complete_ = 0;
  mine_.truncate(complete_);
  return mine_.append(shape_, entries);
}

Status SparseGradient::complete(const DeviceOps& ops) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(mine_.coalesce(shape_, ops));
  complete_ = mine_.count();
  return {};
}

void SparseGradient::leave_empty() {
  const std::lock_guard lock(mutex_);
  mine_.truncate(0);
  complete_ = 0;
}

void SparseGradient::begin(const Terms& terms) {
  terms_ = terms;
  own_ = {mine_.rows(), mine_.values(), terms.absent ? 0 : complete_};
  counts_.resize(static_cast<size_t>(terms.size));
  at_.resize(counts_.size());
  inputs_.resize(counts_.size());
}

Status SparseGradient::enter(uint32_t stage) {
  stage_ = stage;
  row_ = 0;
  std::fill(at_.begin(), at_.end(), 0);
  if (!terms_.sends) {
    way_ = Way::kAlone;
    stage_ = kLast;
    return make_room_for_result();
  }
  switch (stage) {
    case 0:
      takes_place_[0] = true;
      return {};
    case 1:
      WEFT_TRY(take_counts());
      takes_place_[1] = way_ == Way::kEntries;
      return {};
    case 2:
      if (takes_place_[1]) WEFT_TRY(check_received());
      takes_place_[2] = way_ != Way::kNothing && shape_.row_bytes > 0;
      return make_room_for_values();
    default:
      return make_room_for_result();
  }
}

// Checks the ranks' entry counts and chooses how the gradient is communicated. All ranks choose alike,
// because all have the same counts.
Status SparseGradient::take_counts() {
  WEFT_TRY(judge_counts(counts_, shape_.rows, &most_));
  way_ = choose();
  if (way_ != Way::kEntries) return {};
  WEFT_TRY(rows_.reserve(counts_.size() * most_ * sizeof(int64_t)));
  std::fill(std::copy_n(own_.rows, own_.count, own_rows()), own_rows() + most_, 0);
  return {};
}

// Chooses the way with less traffic: an all-gather of entries in blocks of the largest count, or an
// all-reduce of the whole gradient. Computes in floating point, because products may be large; its rounding
// is the same on all ranks.
SparseGradient::Way SparseGradient::choose() const {
  if (most_ == 0) return Way::kNothing;
  const auto ranks = static_cast<double>(counts_.size());
  const auto bytes = static_cast<double>(shape_.row_bytes + sizeof(int64_t));
  const double entries = (ranks - 1) * static_cast<double>(most_) * bytes;
  const double whole =
      2 * (ranks - 1) / ranks * static_cast<double>(shape_.rows) * static_cast<double>(shape_.row_bytes);
  return entries <= whole || shape_.row_bytes == 0 ? Way::kEntries : Way::kWhole;
}

// Checks that each list is sorted and within the shape, because merge() does not.
Status SparseGradient::check_received() const {
  for (size_t r = 0; r < counts_.size(); r++) {
    if (are_rows(rows_.as<int64_t>() + r * most_, counts_[r], shape_.rows)) continue;
    const int rank = static_cast<int>(r);
    return Status::error(Code::kMismatch,
                         cat("rank ", rank, " sent sparse rows that do not ascend or are outside 0 to ",
                             shape_.rows - 1))
        .with_ranks({rank});
  }
  return {};
}

Status SparseGradient::make_room_for_values() {
  if (way_ == Way::kEntries) return values_.reserve(counts_.size() * most_ * shape_.row_bytes);
  if (way_ == Way::kWhole) return result_values_.reserve(shape_.rows * shape_.row_bytes);
  return {};
}

Status SparseGradient::make_room_for_result() {
  result_count_ = 0;
  uint64_t rows = 0;
  switch (way_) {
    case Way::kNothing:
      return {};
    case Way::kWhole:
      rows = shape_.rows;
      break;
    case Way::kAlone:
      rows = own_.count;
      break;
    case Way::kEntries:
      rows = std::min(shape_.rows, std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}));
  }
  WEFT_TRY(result_rows_.reserve(rows * sizeof(int64_t)));
  if (shape_.extents.size() > 1) {
    WEFT_TRY(result_indices_.reserve(rows * shape_.extents.size() * sizeof(int64_t)));
  }
  return result_values_.reserve(rows * shape_.row_bytes);
}

bool SparseGradient::work(const DeviceOps& ops) {
  if (stage_ == 2) {
    if (way_ == Way::kEntries) return write_values(ops);
    if (way_ == Way::kWhole) return write_whole(ops);
  }
  return stage_ < kLast || merge(ops);
}

uint64_t SparseGradient::piece() const {
  return std::max<uint64_t>(kPieceBytes / std::max<uint64_t>(shape_.row_bytes, 64), 1);
}

// Writes this rank's values to its block, and zeros up to the end of the block.
bool SparseGradient::write_values(const DeviceOps& ops) {
  const uint64_t count = std::min(piece(), most_ - row_);
  const uint64_t mine = std::min(count, std::max(own_.count, row_) - row_);
  std::byte* const block =
      values_.data() + (static_cast<uint64_t>(terms_.rank) * most_ + row_) * shape_.row_bytes;
  CopyArgs copy;
  copy.src = own_.values + row_ * shape_.row_bytes;
  copy.dst = block;
  copy.count = mine * shape_.row_elements;
  copy.src_dtype = copy.dst_dtype = shape_.dtype;
  copy.scale = terms_.factor;
  if (copy.count > 0) ops.copy(copy);
  if (shape_.row_bytes > 0) {
    std::memset(block + mine * shape_.row_bytes, 0, (count - mine) * shape_.row_bytes);
  }
  row_ += count;
  return row_ == most_;
}

// Writes this rank's values as a whole gradient to the place of the result.
bool SparseGradient::write_whole(const DeviceOps& ops) {
  const uint64_t count = std::min(piece(), shape_.rows - row_);
  std::byte* const whole = result_values_.data();
  std::memset(whole + row_ * shape_.row_bytes, 0, count * shape_.row_bytes);
  row_ += count;
  CopyArgs copy;
  copy.count = shape_.row_elements;
  copy.src_dtype = copy.dst_dtype = shape_.dtype;
  copy.scale = terms_.factor;
  for (uint64_t& at = at_.front(); at < own_.count && static_cast<uint64_t>(own_.rows[at]) < row_; at++) {
    copy.src = own_.values + at * shape_.row_bytes;
    copy.dst = whole + static_cast<uint64_t>(own_.rows[at]) * shape_.row_bytes;
    ops.copy(copy);
  }
  return row_ == shape_.rows;
}

SparseGradient::List SparseGradient::list(size_t rank) const {
  if (way_ == Way::kAlone) return own_;
  return {rows_.as<int64_t>() + rank * most_, values_.data() + rank * most_ * shape_.row_bytes,
          counts_[rank]};
}

// Merges the ranks' lists, which are sorted by row, and sums entries of the same row. Handles a bounded
// number of rows a call. Returns true when the result is complete.
bool SparseGradient::merge(const DeviceOps& ops) {
  const size_t lists = way_ == Way::kAlone ? 1 : counts_.size();
  FoldArgs fold;
  fold.dtype = shape_.dtype;
  fold.inputs = inputs_.data();
  fold.output_count = 1;
  fold.count = shape_.row_elements;
  fold.postscale = way_ == Way::kAlone ? terms_.factor : 1 / terms_.divisor;
  for (uint64_t left = piece(); way_ == Way::kEntries || way_ == Way::kAlone; left--) {
    if (left == 0) return false;
    int64_t row = INT64_MAX;
    for (size_t r = 0; r < lists; r++) {
      const List list = this->list(r);
      if (at_[r] < list.count) row = std::min(row, list.rows[at_[r]]);
    }
    if (row == INT64_MAX) break;
    fold.input_count = 0;
    for (size_t r = 0; r < lists; r++) {
      const List list = this->list(r);
      if (at_[r] == list.count || list.rows[at_[r]] != row) continue;
      inputs_[static_cast<size_t>(fold.input_count++)] = list.values + at_[r]++ * shape_.row_bytes;
    }
    std::byte* sum = result_values_.data() + result_count_ * shape_.row_bytes;
    fold.outputs = &sum;
    if (fold.count > 0) ops.fold(fold);
    result_rows_.as<int64_t>()[result_count_++] = row;
  }
  end();
  return true;
}

void SparseGradient::end() {
  if (way_ == Way::kWhole) {
    result_count_ = shape_.rows;
    std::iota(result_rows_.as<int64_t>(), result_rows_.as<int64_t>() + result_count_, 0);
  }
  if (shape_.extents.size() > 1) {
    shape_.to_indices(result_rows_.as<int64_t>(), result_count_, result_indices_.as<int64_t>());
  }
}

void SparseGradient::fill(uint32_t collective, CollectiveArgs* args) {
  const auto rank = static_cast<uint64_t>(terms_.rank);
  switch (collective) {
    case 0:
      args->src = reinterpret_cast<const std::byte*>(&own_.count);
      args->dst = reinterpret_cast<std::byte*>(counts_.data());
      args->dtype = Dtype::kU64;
      args->count = 1;
      return;
    case 1:
      args->src = reinterpret_cast<const std::byte*>(own_rows());
      args->dst = rows_.data();
      args->dtype = Dtype::kI64;
      args->count = most_;
      return;
    default:
      args->dtype = shape_.dtype;
  }
  if (way_ == Way::kWhole) {
    args->coll = Coll::kAllReduce;
    args->op = ReduceOp::kSum;
    args->count = shape_.rows * shape_.row_elements;
    args->postscale = 1 / terms_.divisor;
    args->src = args->dst = result_values_.data();
  } else {
    args->count = most_ * shape_.row_elements;
    args->src = values_.data() + rank * most_ * shape_.row_bytes;
    args->dst = values_.data();
  }
}

weft_bucket_entries* SparseGradient::hide() {
  shown_ = {sizeof shown_, shape_.rows, shape_.row_elements, 0, nullptr, nullptr};
  return &shown_;
}

Status SparseGradient::show_own(const DeviceOps& ops) {
  WEFT_TRY(shown_rows_.reserve(own_.count * sizeof(int64_t)));
  WEFT_TRY(shown_values_.reserve(own_.count * shape_.row_bytes));
  std::copy_n(own_.rows, own_.count, shown_rows_.as<int64_t>());
  CopyArgs copy;
  copy.src = own_.values;
  copy.dst = shown_values_.data();
  copy.count = own_.count * shape_.row_elements;
  copy.src_dtype = copy.dst_dtype = shape_.dtype;
  copy.scale = terms_.factor;
  if (copy.count > 0) ops.copy(copy);
  terms_.factor = 1;
  shown_.count = own_.count;
  shown_.rows = shown_rows_.as<int64_t>();
  shown_.values = shown_values_.data();
  return {};
}

Status SparseGradient::take_shown() {
  const uint64_t count = shown_.count;
  if (count > own_.count) {
    return Status::error(Code::kHook, cat("the hook left ", count, " entries of ", own_.count,
                                          "; it may only remove entries"));
  }
  own_ = {shown_rows_.as<int64_t>(), shown_values_.data(), count};
  if (are_rows(own_.rows, count, shape_.rows)) return {};
  uint64_t wrong = 0;
  while (are_rows(own_.rows, wrong + 1, shape_.rows)) wrong++;
  return Status::error(Code::kHook, cat("the hook left rows that do not ascend or are outside 0 to ",
                                        shape_.rows - 1, ": entry ", wrong, " has row ", own_.rows[wrong],
                                        wrong > 0 ? cat(" after row ", own_.rows[wrong - 1]) : ""));
}

void SparseGradient::show_result() {
  shown_.count = result_count_;
  shown_.rows = result_rows_.as<int64_t>();
  shown_.values = result_values_.data();
}

void SparseGradient::result(weft_sparse* result) const {
  result->struct_size = sizeof *result;
  result->count = result_count_;
  result->indices = (shape_.extents.size() > 1 ? result_indices_ : result_rows_).as<int64_t>();
  result->values = result_values_.data();
}

SparseGradients::SparseGradients(const Manifest& manifest, const HostAllocator& allocator) {
  gradients_.resize(manifest.params.size());
  for (size_t i = 0; i < gradients_.size(); i++) {
    if (!manifest.params[i].sparse()) continue;
    gradients_[i] = std::make_unique<SparseGradient>(manifest.params[i], allocator, &bytes_);
  }
}

}  // namespace weft
