#include "common/state.h"

#include <algorithm>

#include "base/text.h"

namespace weft {
namespace {

constexpr uint32_t kVersion = 2;
constexpr uint32_t kMostKinds = 16;
constexpr uint32_t kMostName = 65536;

}  // namespace

std::vector<float>& HookState::array(std::string_view kind, const char* param, uint64_t count) {
  if (!unclaimed_.empty()) unclaimed_.erase({std::string(kind), param});
  auto arrays = kinds_.find(kind);
  if (arrays == kinds_.end()) arrays = kinds_.emplace(kind, Arrays()).first;
  auto found = arrays->second.find(std::string_view(param));
  if (found == arrays->second.end()) found = arrays->second.emplace(param, std::vector<float>()).first;
  if (found->second.size() != count) {
    if (!found->second.empty()) {
      note(cat("'", kind, "' of parameter '", param, "' is reset to zero: it now has ", count,
               " values, and had ", found->second.size()));
    }
    found->second.assign(count, 0.0f);
  }
  return found->second;
}

const std::vector<float>* HookState::find(std::string_view kind, const char* param) const {
  const auto arrays = kinds_.find(kind);
  if (arrays == kinds_.end()) return nullptr;
  const auto found = arrays->second.find(std::string_view(param));
  return found != arrays->second.end() ? &found->second : nullptr;
}

void HookState::clear(std::string_view kind) {
  const auto arrays = kinds_.find(kind);
  if (arrays == kinds_.end()) return;
  for (auto& [param, values] : arrays->second) std::fill(values.begin(), values.end(), 0.0f);
}

void HookState::drop(std::string_view kind) {
  note_unclaimed();
  const auto arrays = kinds_.find(kind);
  if (arrays != kinds_.end()) kinds_.erase(arrays);
}

void HookState::set_rank(int rank, int size) {
  rank_ = rank;
  size_ = size;
  if (loaded_rank_ >= 0 && loaded_rank_ != rank) {
    clear(kError);
    note(cat("rank ", rank, " has loaded the state that rank ", loaded_rank_,
             " saved: steps and factors are kept, the error memory starts at zero"));
  }
  if (loaded_size_ > 0 && loaded_size_ != size) {
    note(cat("it was saved by ", loaded_size_, " ranks, and ", size, " ranks use it",
             size < loaded_size_ ? ": the error memory of the other ranks is lost" : ""));
  }
  loaded_rank_ = -1;
  loaded_size_ = 0;
}

void HookState::note(const std::string& what) const {
  if (log_ != nullptr) log_->warn(cat("saved state of a hook: ", what));
}

// Logs loaded arrays that are not used. Called after the plans, which have requested all arrays that they
// need.
void HookState::note_unclaimed() {
  for (const auto& [kind, arrays] : kinds_) {
    std::vector<std::string> names;
    for (const auto& [of, param] : unclaimed_) {
      if (of == kind) names.push_back(cat("'", param, "'"));
    }
    if (names.empty()) continue;
    note(cat("'", kind, "' of ", list_text(names, 4),
             " belongs to no parameter or bucket of this reducer: it is not used"));
  }
  unclaimed_.clear();
}

uint64_t HookState::iteration(const weft_bucket& bucket) {
  if (loaded_) note_unclaimed();
  if (loaded_) base_ = next_ - bucket.step;
  loaded_ = false;
  next_ = base_ + bucket.step + 1;
  return base_ + bucket.step;
}

void HookState::save(Bytes* bytes, const std::function<bool(const std::string& param)>& lost) const {
  ByteWriter writer;
  writer.put(kVersion)
      .put(next_)
      .put(static_cast<int32_t>(rank_ >= 0 ? rank_ : loaded_rank_))
      .put(static_cast<int32_t>(rank_ >= 0 ? size_ : loaded_size_))
      .put(static_cast<uint32_t>(kinds_.size()));
  for (const auto& [kind, arrays] : kinds_) {
    writer.put_string(kind).put(static_cast<uint64_t>(arrays.size()));
    for (const auto& [param, values] : arrays) {
      writer.put_string(param).put(static_cast<uint64_t>(values.size()));
      if (lost && kind == kError && lost(param)) {
        const std::vector<float> zeros(values.size());
        writer.put_raw(std::as_bytes(std::span(zeros)));
      } else {
        writer.put_raw(std::as_bytes(std::span(values)));
      }
    }
  }
  *bytes = writer.take();
}

Status HookState::load(ByteView bytes) {
  const auto bad = [&](const std::string& what) {
    return Status::error(Code::kArg, cat("the saved state of a hook (", bytes.size(), " bytes) ", what));
  };
  ByteReader reader(bytes);
  const auto version = reader.get<uint32_t>();
  if (version != kVersion) return bad(cat("has format version ", version, ", expected ", kVersion));
  const auto next = reader.get<uint64_t>();
  const auto rank = reader.get<int32_t>();
  const auto size = reader.get<int32_t>();
  const auto kinds = reader.get<uint32_t>();
  if (!reader.ok() || kinds > kMostKinds || rank < -1 || size < 0)
    return bad("is damaged or incomplete: load another one");
  decltype(kinds_) read;
  for (uint32_t k = 0; k < kinds && reader.ok(); k++) {
    Arrays& arrays = read[reader.get_string(kMostName)];
    const auto count = reader.get<uint64_t>();
    for (uint64_t i = 0; i < count && reader.ok(); i++) {
      std::vector<float>& values = arrays[reader.get_string(kMostName)];
      const auto elements = reader.get<uint64_t>();
      if (!reader.ok() || elements > bytes.size() / sizeof(float))
        return bad("is damaged or incomplete: load another one");
      const ByteView raw = reader.get_raw(elements * sizeof(float));
      if (!reader.ok()) return bad("is damaged or incomplete: load another one");
      values.resize(elements);
      if (elements > 0) std::memcpy(values.data(), raw.data(), raw.size());
    }
  }
  if (!reader.done()) return bad("is damaged or incomplete: load another one");
  unclaimed_.clear();
  for (const auto& [kind, arrays] : read) {
    const auto mine = kinds_.find(kind);
    for (const auto& [param, values] : arrays) {
      const bool claimed = rank_ >= 0 && mine != kinds_.end() && mine->second.contains(param);
      if (!claimed) unclaimed_.emplace(kind, param);
    }
  }
  kinds_ = std::move(read);
  next_ = next;
  loaded_ = true;
  loaded_rank_ = rank;
  loaded_size_ = size;
  if (rank_ >= 0) set_rank(rank_, size_);
  return {};
}

uint64_t HookState::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [kind, arrays] : kinds_) {
    for (const auto& [param, values] : arrays) bytes += values.capacity() * sizeof(float) + param.capacity();
  }
  return bytes;
}

}  // namespace weft
