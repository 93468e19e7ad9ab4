// The norms of a reducer's gradients, and what the ranks decide from them at the end of a step: the factor of
// the results, and whether the step is skipped. Part of a reducer's state; feature/norms measures.
// Threads: under the engine's progress lock during a step, then the program's thread.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

namespace weft {

// A rank's request in finish. Sent as raw bytes.
struct FinishRecord {
  static constexpr uint32_t kSkip = 1;           // skip the step
  static constexpr uint32_t kSkipNonfinite = 2;  // skip it if a result is not finite
  static constexpr uint32_t kJoined = 4;         // the rank has joined and requests nothing
  double clip_norm = 0;                          // 0: no limit
  uint32_t flags = 0;
  uint32_t reserved = 0;

  bool has(uint32_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(FinishRecord) == 16);

// The decision of the ranks.
struct FinishDecision {
  double total = 0;        // the norm of all results
  double factor = 1;       // factor applied to the results
  uint64_t nonfinite = 0;  // parameters with a result that is not finite
  bool skipped = false;
};

// records: one per rank, from other processes. kMismatch, naming a rank, for an invalid record, or for ranks
// that clip or skip differently. total, nonfinite: equal on all ranks.
Status decide_finish(const std::vector<FinishRecord>& records, double total, uint64_t nonfinite,
                     FinishDecision* decision);

// True if gradients cannot hold every value of the communication dtype: results are rounded on their way
// back, and may overflow.
inline bool rounds(Dtype comm_dtype, Dtype held) {
  return comm_dtype != held && dtype_size(held) <= dtype_size(comm_dtype);
}

class Norms {
 public:
  // A parameter's sums are added up over pieces of this size, in order. The size thus affects the result's
  // bits.
  static constexpr uint64_t kPieceElements = 1u << 16;

  explicit Norms(size_t params) : params_(params), sums_(2 * params) {}

  void clear(uint64_t param) { sums_[param] = sums_[params_ + param] = 0; }
  void add(uint64_t param, const Squares& piece) {
    sums_[param] += piece.sum;
    sums_[params_ + param] += piece.finite ? 0 : 1;
  }
  // Returns the sums of squares of all parameters, followed by the number of pieces of each parameter that
  // are not finite.
  std::vector<double>& sums() { return sums_; }

  double norm(uint64_t param) const;  // finite if and only if the parameter's whole result is finite
  double total() const;               // summed in the order of the parameters
  uint64_t nonfinite() const;
  FinishDecision decision;  // of the last step

  // ---- requests in finish (feature/norms)
  // Forgets the requests of the last step. Called before a step opens, by the program's thread.
  void prepare() {
    published_.store(false, std::memory_order_relaxed);
    received_ = nullptr;
  }
  // Passes this rank's request. The program's thread, once a step.
  void publish(const FinishRecord& request) {
    request_ = request;
    published_.store(true, std::memory_order_release);
  }
  // Returns this rank's request; null before publish.
  const FinishRecord* request() const {
    return published_.load(std::memory_order_acquire) ? &request_ : nullptr;
  }
  // The requests of all ranks, which live as long as the step; null until they are here.
  void receive(const std::vector<FinishRecord>* requests) { received_ = requests; }
  const std::vector<FinishRecord>* received() const { return received_; }

  uint64_t memory_bytes() const { return sizeof *this + sums_.capacity() * sizeof(double); }

 private:
  const size_t params_;
  std::vector<double> sums_;
  FinishRecord request_;
  std::atomic<bool> published_{false};  // request_ is set
  const std::vector<FinishRecord>* received_ = nullptr;
};

}  // namespace weft
