// The sequence of a communicator and the communicators that are shrunk from it: generations. The control
// channel of generation 0 stays open as long as one of the generations lives. Over it, the members of a
// failed generation agree on the members of the next (consensus.h), also with ranks whose shrink has returned
// already. Each later generation also has its own control channel; generation 0 uses this one.
//
// Threads: any thread. mutex_ guards their consensus; while it is held, nothing is sent and no callback runs.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "control/consensus.h"
#include "control/control_exchange.h"
#include "engine/engine.h"
#include "transport/control.h"

namespace weft {

class Generations;

// Identifies a communicator's generation. Null `generations` means that the communicator is generation 0 of a
// new one.
struct Generation {
  std::shared_ptr<Generations> generations;
  uint32_t number = 0;
  std::vector<int> members;  // ranks in generation 0, by rank in this one
};

class Generations final : public ControlListener, public std::enable_shared_from_this<Generations> {
 public:
  // engine outlives it.
  Generations(std::unique_ptr<Control> control, int rank, int size, Engine& engine);
  ~Generations() override { control_->stop(); }

  // Returns the channel as generation 0's Control.
  std::unique_ptr<Control> control_of_first();
  // opened: this rank has created the communicator of a generation. closed: it has closed one. Closing the
  // last one sends the channel's goodbye.
  void opened(uint32_t generation);
  void closed();

  // Agrees with the other members of generation `parent` on the members of the next generation. If later
  // generations could not be created, the agreement continues from the last of them.
  // accused: the ranks that the failure names, by rank in generation 0.
  // Errors: kMinority; kTimeout names the ranks that did not join; kPeerFailed: the others continue without
  // this rank; kState: this rank has a later generation already.
  Status agree(uint32_t parent, bool last_of_two, const std::set<int>& accused, Deadline deadline,
               Generation* next);
  // Creates an exchange among the members of a generation that agree(parent) returned. It fails when one of
  // them is lost. Errors name ranks as generation `parent` does.
  std::unique_ptr<Exchange> exchange(const Generation& generation, uint32_t parent);

  // ControlListener, of generation 0's channel
  void on_peer_lost(int rank, const Status& why) noexcept override;
  void on_peer_left(int rank) noexcept override;
  void on_message(int rank, ByteView message) noexcept override;
  void on_broken(const Status& why) noexcept override;

  // First byte of this class's messages; other messages belong to generation 0's communicator.
  static constexpr uint8_t kConsensusMessage = 4;
  static constexpr uint8_t kExchangeMessage = 5;

 private:
  class FirstControl;
  // A message of a generation whose members this rank does not know yet.
  struct Early {
    uint32_t generation;
    int from;
    Bytes message;
  };
  static constexpr size_t kMostEarly = 4096;

  void lose(int rank, const Status& why);
  // Needs mutex_. Returns null while the members of the previous generation are unknown.
  Consensus* consensus(uint32_t generation);
  void replay_early();
  Status broken(const std::vector<int>& members, uint32_t parent);
  // Converts ranks of generation 0 to ranks in the communicator of a generation. Needs mutex_.
  std::vector<int> ranks_in(uint32_t generation, const std::vector<int>& first_ranks) const;
  // Changes consensus_ with mutex_ held, then sends the resulting messages.
  template <class Work>
  auto with_consensus(Work&& work);
  template <class Call>
  void tell_first(Call&& call) noexcept;
  template <class Work>
  void or_break(Work&& work) noexcept;
  void detach();

  const std::unique_ptr<Control> control_;
  const int rank_;
  Engine& engine_;
  Postbox postbox_;

  std::mutex mutex_;
  // [g - 1] decides generation g; guarded by mutex_, as all below.
  std::vector<std::unique_ptr<Consensus>> consensus_;
  std::vector<Early> early_;
  std::map<int, Status> lost_;
  Status broken_;        // set when this rank could not process a message
  uint32_t newest_ = 0;  // newest generation that this rank has or had a communicator of
  int open_ = 0;         // communicators that are not closed

  std::mutex first_mutex_;
  ControlListener* first_ = nullptr;      // guarded by first_mutex_
  std::thread::id caller_;                // guarded by first_mutex_; valid while calling_
  std::atomic<bool> calling_{false};      // written under first_mutex_
  const std::vector<int> first_members_;  // members of generation 0
};

}  // namespace weft
