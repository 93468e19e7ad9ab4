// A composite operation: several collectives in order, for operations that no backend implements itself.
// CompositeLane runs them on a lane of the backend. In each of them the ranks compare the whole call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/collectives.h"

namespace weft {

// The stages of one composite operation. Called under the progress lock, except construction and destruction.
// Outlives the operation.
class Composite {
 public:
  virtual ~Composite() = default;
  enum class Next {
    kRun,   // run *stage
    kMore,  // no stage yet, but there is more to compute: call again
    kOver,
  };
  // Returns the next stage, after the previous one has succeeded. Does a bounded amount of work (about a
  // megabyte). All ranks get the same stages. On entry *stage is a barrier with the call's dtype and device.
  // A stage on host memory of its own clears the device.
  virtual Status next(CollectiveArgs* stage, Next* what) = 0;
  // Returns the algorithm's name, a static string; null: the name is that of the last stage.
  virtual const char* name() const = 0;
};

// Executes composite operations, and others behind them, on a lane that has allocated what it needs
// (CollectiveLane::prepare) and keeps its own memory. Threads: progress lock.
class CompositeLane final : public CollectiveLane {
 public:
  // slot: of the next operation of the lane below.
  explicit CompositeLane(std::shared_ptr<CollectiveLane> below, uint64_t slot)
      : below_(std::move(below)), below_slot_(slot) {}

  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return composite_ != nullptr ? result_ : below_->result(); }
  void abandon() override { below_->abandon(); }
  std::vector<int> writers() const override { return below_->writers(); }
  std::vector<int> missing() const override { return below_->missing(); }
  bool waits_for(int rank) const override { return below_->waits_for(rank); }
  std::vector<int> absent() const override { return below_->absent(); }
  const char* algorithm() const override;
  std::optional<uint64_t> moved_bytes() const override {
    return composite_ != nullptr ? moved_ : below_->moved_bytes();
  }

 private:
  Poll advance();

  const std::shared_ptr<CollectiveLane> below_;
  uint64_t below_slot_;  // a composite operation takes several
  WholeCall whole_;
  Dtype dtype_ = Dtype::kU8;
  const DeviceCall* device_ = nullptr;
  Composite* composite_ = nullptr;  // of the running operation; null: the lane below executes it
  std::optional<uint64_t> moved_;   // sum over the stages so far
  bool staged_ = false;             // a stage is running
  bool over_ = false;
  Status result_;
};

}  // namespace weft
