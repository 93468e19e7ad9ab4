// The state of hooks across steps, by name of the parameter, so that it does not depend on buckets: f32
// arrays of a few kinds ("error", "q"), and the number of steps. Used by hooks, whose calls never overlap.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/log.h"
#include "base/status.h"

namespace weft {

class HookState {
 public:
  // Values that this rank did not send; of no use to other ranks.
  static constexpr std::string_view kError = "error";

  // ErrorWatch's fields of buckets, by their first parameters.
  static constexpr std::string_view kWatch = "watch";

  explicit HookState(std::shared_ptr<Log> log) : log_(std::move(log)) {}

  // Returns the array of a parameter. If there is none, or one of another size, it is filled with zeros.
  std::vector<float>& array(std::string_view kind, const char* param, uint64_t count);
  // Returns the array of a parameter; null if there is none.
  const std::vector<float>* find(std::string_view kind, const char* param) const;
  // Sets all arrays of a kind to zero: a step failed, or the communicator has other ranks.
  void clear(std::string_view kind);
  // Removes all arrays of this kind.
  void drop(std::string_view kind);
  // Sets the rank of this hook and the number of ranks. If another rank saved the loaded state, the error
  // memory (kError) is set to zero, now or when it is loaded.
  void set_rank(int rank, int size);

  // Returns the number of steps before this one, including those before a save and load. Called in stage 0 of
  // every bucket.
  uint64_t iteration(const weft_bucket& bucket);

  // lost: selects parameters whose error memory is saved as zeros.
  void save(Bytes* bytes, const std::function<bool(const std::string& param)>& lost = {}) const;
  // kArg for bytes that save did not write; the state is unchanged then. Data that is not used is logged,
  // here and once rank and parameters are known.
  Status load(ByteView bytes);
  uint64_t memory_bytes() const;

 private:
  using Arrays = std::map<std::string, std::vector<float>, std::less<>>;

  void note(const std::string& what) const;
  void note_unclaimed();

  const std::shared_ptr<Log> log_;  // null: no logging
  int rank_ = -1;                   // unknown until a plan is made
  int size_ = 0;                    // likewise
  int loaded_rank_ = -1;            // rank that saved the loaded state, while rank_ is unknown
  int loaded_size_ = 0;             // likewise
  uint64_t base_ = 0;               // iteration of the reducer's step 0, modulo 2^64
  uint64_t next_ = 0;               // the iteration after the last one
  bool loaded_ = false;             // next_ comes from load, and base_ must be computed from it
  // Kind and parameter of loaded arrays that no plan has requested yet.
  std::set<std::pair<std::string, std::string>> unclaimed_;
  std::map<std::string, Arrays, std::less<>> kinds_;
};

}  // namespace weft
