// All-gathers among some of the ranks over their control channel: to create a subgroup communicator (split)
// or the communicator of the survivors (shrink).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "transport/control.h"
#include "transport/exchange.h"

namespace weft {

// Holds messages of such exchanges until they are fetched. Threads: any thread.
class Postbox {
 public:
  // Handles a message from `rank`, after its type byte. Drops invalid messages, and messages beyond
  // kMostBytes.
  void on_message(int rank, ByteReader& message);
  size_t held_bytes();

  // Limit of the bytes held per rank, including the overhead of each message. A rank is at most one round
  // ahead.
  static constexpr size_t kMostBytes = 4 * Exchange::kMaxBytes;

 private:
  friend class ControlExchange;
  using Key = std::pair<uint32_t, uint32_t>;       // exchange, round
  using Received = std::map<int, Bytes>;           // by rank
  static constexpr uint32_t kFailed = UINT32_MAX;  // round of the message that reports a failure
  static constexpr size_t kEntryBytes = 128;

  // take() is called with mutex_ held; forget() acquires it. Both subtract the removed bytes from held_.
  Received take(const Key& key);
  void forget(const Key& first, const Key& last);

  std::mutex mutex_;
  std::map<Key, Received> inbox_;  // guarded by mutex_
  std::map<int, size_t> held_;     // bytes, by rank; guarded by mutex_
};

class ControlExchange final : public Exchange {
 public:
  struct Options {
    uint8_t kind = 0;          // first byte of its messages
    uint32_t id = 0;           // the same on all members
    int self = 0;              // this rank in the channel's numbering
    std::vector<int> members;  // in that numbering, by rank in the exchange
    std::vector<int> names;    // Exchange::name, by rank in the exchange; empty: members
    // Returns the reason why it cannot succeed any more, if any; its ranks are names.
    std::function<Status()> broken;
    std::shared_ptr<void> owner;  // keeps control, postbox and engine alive
  };
  ControlExchange(Control& control, Postbox& postbox, Engine& engine, Options options)
      : control_(control), postbox_(postbox), engine_(engine), options_(std::move(options)) {}
  ~ControlExchange() override;

  int rank() const override;
  int size() const override { return static_cast<int>(options_.members.size()); }
  int name(int rank) const override;
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;
  void fail(const Status& why) override;

 private:
  Status news() override;
  bool all_came(uint32_t round);
  Status reported_failure();
  Status fail_all(const Status& why);
  void send_all(uint32_t round, ByteView bytes);

  Control& control_;
  Postbox& postbox_;
  Engine& engine_;
  const Options options_;
  uint32_t round_ = 0;
  Status failure_;  // the first failure; sticky
};

}  // namespace weft
