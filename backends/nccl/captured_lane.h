// All-reduces in graphs that programs capture. They have an NCCL communicator of their own, because Weft
// cannot make all ranks launch captured and other operations in one order.
#pragma once

#include <memory>
#include <mutex>

#include "communicator.h"
#include "transport/graph_lane.h"

namespace weft::nccl {

// Threads: as transport/graph_lane.h says.
class CapturedLane final : public GraphLane {
 public:
  static Status open(const Communicator& like, std::shared_ptr<GraphLane>* lane);
  explicit CapturedLane(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  Status identify(Bytes* id) override;
  Status connect(ByteView id) override;
  Status connected(bool* done) override;
  Status allocate(uint64_t size, std::byte** memory) override;
  DeviceStream stream() const override { return communicator_->stream(); }
  uint64_t table_bytes() const override;
  Status put(const CollectiveArgs& args, std::byte* table, Deadline deadline) override;
  Status health() override;
  void give_up(const Status& why) override;

 private:
  Status capture(const CollectiveArgs& args, std::byte* table, Deadline deadline);

  const std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<std::byte> memory_;
  std::mutex mutex_;  // held while the lane is abandoned
};

}  // namespace weft::nccl
