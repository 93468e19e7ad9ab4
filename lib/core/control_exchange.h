// All-gathers among some of the ranks over their control channel: to form a part of a communicator (split)
// or the communicator of the survivors (shrink).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/control.h"
#include "core/engine.h"
#include "core/exchange.h"

namespace weft {

// What has come for such exchanges and was not fetched. Threads: any thread.
class Postbox {
 public:
  // A message of `rank`, after its kind; what makes no sense, or too much, is dropped.
  void on_message(int rank, ByteReader& message);

 private:
  friend class ControlExchange;
  using Key = std::pair<uint32_t, uint32_t>;  // exchange, round
  static constexpr size_t kMost = 4096;

  std::mutex mutex_;
  std::map<Key, std::map<int, Bytes>> inbox_;  // by rank; guarded by mutex_
};

class ControlExchange final : public Exchange {
 public:
  struct Options {
    uint8_t kind = 0;                // first byte of its messages
    uint32_t id = 0;                 // the same on all members
    int self = 0;                    // this rank in the channel's numbering
    std::vector<int> members;        // in that numbering, by rank in the exchange
    std::function<Status()> broken;  // why it cannot succeed any more
    std::shared_ptr<void> owner;     // keeps control, postbox and engine
  };
  ControlExchange(Control& control, Postbox& postbox, Engine& engine, Options options)
      : control_(control), postbox_(postbox), engine_(engine), options_(std::move(options)) {}

  int rank() const override;
  int size() const override { return static_cast<int>(options_.members.size()); }
  Status check() override;
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;

 private:
  Control& control_;
  Postbox& postbox_;
  Engine& engine_;
  const Options options_;
  uint32_t round_ = 0;
};

}  // namespace weft
