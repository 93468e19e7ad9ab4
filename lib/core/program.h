// An operation that is executed as several collectives, one after the other, for what no backend does itself.
// ProgramLane runs them on a lane of the backend; ranks compare the whole call in each of them.
#pragma once

#include <cstdint>
#include <memory>

#include "core/collectives.h"

namespace weft {

// Of one operation. Under the drive lock, except construction and destruction; outlives the operation.
class Program {
 public:
  virtual ~Program() = default;
  enum class Next {
    kRun,   // *stage
    kMore,  // nothing yet, but there is more to compute: ask again
    kOver,
  };
  // What follows, now that the stage before it has succeeded. A bounded amount of work (about a megabyte).
  // The same stages on all ranks. *stage is a barrier with the call's dtype and device: a stage on memory of
  // the program's own has none.
  virtual Status next(CollectiveArgs* stage, Next* what) = 0;
  // Static; null: that of its last stage.
  virtual const char* name() const = 0;
};

// A lane whose operations may be programs. Drive lock.
class ProgramLane final : public CollectiveLane {
 public:
  explicit ProgramLane(std::unique_ptr<CollectiveLane> below) : below_(std::move(below)) {}

  Status prepare(const DeviceCall& call) override { return below_->prepare(call); }
  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return program_ != nullptr ? result_ : below_->result(); }
  void abandon() override { below_->abandon(); }
  std::vector<int> writers() const override { return below_->writers(); }
  std::vector<int> missing() const override { return below_->missing(); }
  bool waits_for(int rank) const override { return below_->waits_for(rank); }
  std::vector<int> absent() const override { return below_->absent(); }
  void share_waits(WaitNotes* notes) override { below_->share_waits(notes); }
  const char* algorithm() const override;
  std::optional<uint64_t> moved_bytes() const override {
    return program_ != nullptr ? moved_ : below_->moved_bytes();
  }
  uint64_t memory_bytes() const override { return below_->memory_bytes(); }

 private:
  Poll advance();

  const std::unique_ptr<CollectiveLane> below_;
  uint64_t below_slot_ = 0;  // a program takes several
  WholeCall whole_;
  Dtype dtype_ = Dtype::kU8;
  const DeviceCall* device_ = nullptr;
  Program* program_ = nullptr;     // of the running operation; null: it is the lane's below
  std::optional<uint64_t> moved_;  // by the stages so far
  bool staged_ = false;            // a stage runs
  bool over_ = false;
  Status result_;
};

}  // namespace weft
