// The export of the nccl module, libweft-nccl.so.
#include "transport/backend.h"

#include <utility>

#include "base/text.h"
#include "captured_lane.h"
#include "communicator.h"
#include "environment/config.h"
#include "lane.h"
#include "library.h"
#include "message_lane.h"

namespace weft::nccl {
namespace {

Status load_library(const Libraries& libraries, std::shared_ptr<const Library>* library) {
  if (!libraries.nccl.empty()) return load(libraries.nccl, library);
  return load(process_settings().nccl_library, library);
}

Status probe(const Libraries& libraries, std::string* detail) {
  std::shared_ptr<const Library> library;
  WEFT_TRY(load_library(libraries, &library));
  *detail = cat("NCCL ", version_text(library->version), " (", library->file, ")");
  return {};
}

// Executes collectives on devices with NCCL, and those on host memory with `below`.
class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(std::shared_ptr<Communicator> communicator, std::unique_ptr<Collectives> below)
      : below_(std::move(below)), communicator_(std::move(communicator)) {}

  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    if (key.kind != LaneKey::Kind::kCollective) return open_pair(key, lane);
    std::unique_ptr<CollectiveLane> below;
    WEFT_TRY(below_->open_lane(key, &below));
    *lane = std::make_unique<Lane>(communicator_, std::move(below), key.first_slot);
    return {};
  }
  bool executes(Coll coll) const override { return below_->executes(coll); }
  bool executes_on_device(Coll coll) const override { return below_->executes_on_device(coll); }
  bool on_device() const override { return true; }
  bool takes(int device, const CollectiveArgs& args) const override {
    return device == communicator_->device() && nccl::executes(args);
  }
  Status allocate_on_device(int device, uint64_t size, std::shared_ptr<std::byte>* memory) override {
    if (device != communicator_->device()) return Collectives::allocate_on_device(device, size, memory);
    return Communicator::allocate(communicator_, size, memory);
  }
  Status open_graph_lane(int device, std::shared_ptr<GraphLane>* lane) override {
    if (device != communicator_->device()) return Collectives::open_graph_lane(device, lane);
    return CapturedLane::open(*communicator_, lane);
  }
  bool progress() override { return below_->progress(); }
  bool few_lanes() const override { return below_->few_lanes(); }
  bool settled() override { return below_->settled(); }
  bool outlives_sender() const override { return below_->outlives_sender(); }
  uint64_t sent_to(int rank) const override { return below_->sent_to(rank); }
  uint64_t received_from(int rank) const override { return below_->received_from(rank); }
  std::shared_ptr<Arena> arena() override { return below_->arena(); }
  CollectiveCounters counters() const override {
    CollectiveCounters counters = below_->counters();
    counters.bytes_direct += communicator_->bytes();
    return counters;
  }
  int local_size() const override { return below_->local_size(); }
  std::string transports() const override {
    const std::string below = below_->transports();
    return cat("NCCL ", version_text(communicator_->nccl().version), " on CUDA device ",
               communicator_->device(), ", over ", below_->name(), below.empty() ? "" : ": ", below);
  }
  const char* name() const override { return "nccl"; }

 private:
  Status open_pair(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) {
    if (key.id != 0 || !communicator_->messages()) return below_->open_lane(key, lane);
    const bool sends = key.kind == LaneKey::Kind::kSend;
    LaneKey notes = key;
    notes.kind = sends ? LaneKey::Kind::kReceive : LaneKey::Kind::kSend;
    notes.id = 1;
    std::unique_ptr<CollectiveLane> data, back;
    WEFT_TRY(below_->open_lane(key, &data));
    WEFT_TRY(below_->open_lane(notes, &back));
    *lane = std::make_unique<MessageLane>(communicator_, key, std::move(data), std::move(back));
    return {};
  }

  const std::unique_ptr<Collectives> below_;
  const std::shared_ptr<Communicator> communicator_;  // shared with lanes: either may end first
};

Status make_collectives(const BackendArgs& args, std::unique_ptr<Collectives>* collectives) {
  std::shared_ptr<const Library> library;
  WEFT_TRY(agree_on(args.exchange, load_library(args.libraries, &library), args.deadline));
  std::shared_ptr<Communicator> communicator;
  WEFT_TRY(Communicator::make(args, std::move(library), &communicator));
  *collectives =
      std::make_unique<NcclCollectives>(std::move(communicator), std::move(*args.host_collectives));
  return {};
}

const Backend& backend() noexcept {
  static constexpr Backend kBackend = {
      .name = "nccl",
      .summary = "collectives of NCCL between CUDA devices, over another backend for host memory",
      .preference = -1,
      .find = probe,
      .make_transport = nullptr,
      .make_collectives = make_collectives,
      .reachable = nullptr,
      .on_device = true,
  };
  return kBackend;
}

}  // namespace
}  // namespace weft::nccl

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {weft::kBackendModuleAbi, &weft::nccl::backend()};
