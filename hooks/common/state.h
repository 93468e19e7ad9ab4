// What hooks remember from step to step, by name of the parameter, so that it does not depend on buckets:
// arrays of f32 of a few kinds ("error", "q"), and how many steps were made. Used by hooks, whose calls
// never overlap.
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
  static constexpr std::string_view kError = "error";  // what this rank did not send; of no use to others

  static constexpr std::string_view kWatch = "watch";  // of buckets, by their first parameters: ErrorWatch

  explicit HookState(std::shared_ptr<Log> log) : log_(std::move(log)) {}

  // The array of a parameter; zeros if there is none yet, or one of another size.
  std::vector<float>& array(std::string_view kind, const char* param, uint64_t count);
  // The array of a parameter, null if there is none.
  const std::vector<float>* find(std::string_view kind, const char* param) const;
  // All arrays of a kind become zeros: a step failed, or the communicator has other ranks.
  void clear(std::string_view kind);
  // No array of this kind is known any more.
  void drop(std::string_view kind);
  // The rank that this hook works for, and how many there are; errors that another rank saved become zeros,
  // now or when loaded.
  void set_rank(int rank, int size);

  // Steps that were made before this one, over saving and loading. Called in every stage 0.
  uint64_t iteration(const weft_bucket& bucket);
  // What that said last.
  uint64_t last_iteration() const { return next_ - 1; }

  // lost: parameters whose errors are written as zeros.
  void save(Bytes* bytes, const std::function<bool(const std::string& param)>& lost = {}) const;
  // kArg for what save did not write; then nothing has changed. What of it is not used goes to the log, here
  // and once it is known for which rank and parameters it is used.
  Status load(ByteView bytes);
  uint64_t memory_bytes() const;

 private:
  using Arrays = std::map<std::string, std::vector<float>, std::less<>>;

  void note(const std::string& what) const;
  void note_unclaimed();

  const std::shared_ptr<Log> log_;  // null: none
  int rank_ = -1;                   // unknown until a plan is made
  int size_ = 0;                    // the same
  int loaded_rank_ = -1;            // of what was loaded while rank_ was unknown
  int loaded_size_ = 0;             // the same
  uint64_t base_ = 0;               // iteration of the reducer's step 0, modulo 2^64
  uint64_t next_ = 0;               // the iteration after the last one
  bool loaded_ = false;             // next_ comes from load: base_ is to be set anew
  // Kind and parameter: loaded, and of none so far.
  std::set<std::pair<std::string, std::string>> unclaimed_;
  std::map<std::string, Arrays, std::less<>> kinds_;
};

}  // namespace weft
