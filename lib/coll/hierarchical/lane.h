// A lane of collectives over one lane inside the host and one across hosts. An operation runs piece by piece
// through a plan's stages (hierarchical_plan.h). The local stages of a piece overlap the neighbouring piece's
// exchange across hosts, in an order that is the same on all ranks of a host. Created by hierarchical.cpp.
#pragma once

#include <memory>
#include <vector>

#include "coll/hierarchical/hierarchical_plan.h"
#include "coll/hierarchical/piece_scratch.h"
#include "coll/progress_reports.h"
#include "device/arena.h"

namespace weft::coll {

// Threads: as transport/collectives.h says.
class HierarchicalLane final : public CollectiveLane {
 public:
  // across: null on ranks that do not communicate across hosts. All borrowed objects outlive the lane.
  HierarchicalLane(const Grouping& grouping, const DeviceOps& host, std::shared_ptr<Arena> arena,
                   ProgressReports& progress_reports, const LaneKey& key,
                   std::unique_ptr<CollectiveLane> local, std::unique_ptr<CollectiveLane> across);
  ~HierarchicalLane() override;

  Status prepare(const DeviceCall& call) override;
  void start(const CollectiveArgs& args, uint64_t slot) override;
  Poll poll() override;
  Status result() const override { return result_; }
  void abandon() override;
  std::vector<int> writers() const override { return local_.lane->writers(); }
  std::vector<int> missing() const override;
  bool waits_for(int rank) const override;
  std::vector<int> absent() const override;
  const char* algorithm() const override { return algorithm_; }
  std::optional<uint64_t> moved_bytes() const override { return moved_; }
  void rest() override;
  uint64_t memory_bytes() const override {
    return scratch_.memory_bytes() + local_.lane->memory_bytes() +
           (across_.lane ? across_.lane->memory_bytes() : 0);
  }

 private:
  // One of the two lanes below, with slots of its own. It executes the operations of pieces one after the
  // other.
  struct Below {
    std::unique_ptr<CollectiveLane> lane;
    uint64_t slot = 0;
    bool running = false;
  };
  Composed operation() { return {grouping_, host_, args_, dtype_size(args_.dtype), inputs_}; }
  bool spreads() const { return grouping_.even && plan_->spreads != Spreads::kNever; }
  uint64_t most(const Composed& op, bool spread) const;
  uint64_t need(const Composed& op, bool spread) const;
  void cut(Piece* piece);
  Piece& piece(uint64_t number) { return pieces_[number % kInFlight]; }
  void run(Below& below, void (*stage_of)(const Composed&, const Piece&, CollectiveArgs*),
           const Piece& piece);
  // Each returns true if it did something. Failures go to result_.
  bool advance_local();
  bool advance_across();
  bool poll_below(Below& below);
  void finish(Status status);

  static constexpr uint64_t kInFlight = PieceScratch::kParts;

  const Grouping& grouping_;
  const DeviceOps& host_;
  ProgressReports& progress_reports_;

  Below local_;
  Below across_;

  // The running operation. Pieces are numbered. Each stage counts the pieces that have begun it and ended it.
  CollectiveArgs args_;
  WholeCall whole_;
  ProgressReports::Wait wait_;
  const HierarchicalPlan* plan_ = nullptr;
  bool running_ = false;
  bool ending_ = false;  // failed, and a device may still be working
  Status result_;
  const char* algorithm_ = "";
  std::optional<uint64_t> moved_;  // bytes moved by the lanes below
  uint64_t cut_ = 0;               // elements that are already in pieces
  bool all_cut_ = false;
  Piece pieces_[kInFlight];
  bool back_running_ = false;  // the local lane runs a piece's last stage; false: its first
  uint64_t inside_ = 0;        // pieces that ended the first stage
  uint64_t exchanged_ = 0;     // pieces that ended the second stage
  uint64_t back_ = 0;          // pieces that ended the last stage

  // Kept between operations.
  PieceScratch scratch_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace weft::coll
