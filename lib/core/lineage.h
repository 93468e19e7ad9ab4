// A communicator and those that are shrunk from it, one after the other: generations. The first one's control
// channel stays open as long as one of them lives; over it the members of a failed generation agree on those
// of the next (ballot.h), also with ranks whose shrink has returned already. Each generation has a control
// channel of its own beside it, the first one this.
//
// Threads: any thread. The mutex guards the ballots; nothing is sent, and nobody called, while it is held.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/ballot.h"
#include "core/control.h"
#include "core/control_exchange.h"
#include "core/engine.h"

namespace weft {

class Lineage;

// Which generation a communicator is. Without a lineage: the first of its own.
struct Descent {
  std::shared_ptr<Lineage> lineage;
  uint32_t generation = 0;
  std::vector<int> members;  // ranks in the first generation, by rank in this one
};

class Lineage final : public ControlListener, public std::enable_shared_from_this<Lineage> {
 public:
  // engine outlives it.
  Lineage(std::unique_ptr<Control> control, int rank, int size, Engine& engine);
  ~Lineage() override { control_->stop(); }

  // The channel as the first generation's.
  std::unique_ptr<Control> control_of_first();
  // A generation's communicator was made on this rank, and was closed. With the last one the channel says
  // farewell.
  void opened(uint32_t generation);
  void closed();

  // Agree with the other members of generation `parent` (or of a later one that could not be formed) on who
  // goes on. kMinority, kTimeout naming who did not come, kPeerFailed if the others go on without this rank,
  // kState if this rank has a later generation already. accused: whom the failure names, by rank in the first
  // generation.
  Status agree(uint32_t parent, bool last_of_two, const std::set<int>& accused, Deadline deadline,
               Descent* next);
  // Among the members of a generation that agree(parent) made. Fails when one of them is lost. Errors name
  // ranks as generation `parent` does.
  std::unique_ptr<Exchange> exchange(const Descent& descent, uint32_t parent);

  // ControlListener, of the first generation's channel
  void on_peer_lost(int rank, const Status& why) noexcept override;
  void on_peer_left(int rank) noexcept override;
  void on_message(int rank, ByteView message) noexcept override;
  void on_broken(const Status& why) noexcept override;

  // The first byte of its messages; others are the first generation's.
  static constexpr uint8_t kBallotMessage = 4;
  static constexpr uint8_t kExchangeMessage = 5;

 private:
  class FirstControl;
  // Early messages of a generation that this rank has not come to.
  struct Early {
    uint32_t generation;
    int from;
    Bytes message;
  };
  static constexpr size_t kMostEarly = 4096;

  void lose(int rank, const Status& why);
  // With mutex_ held. Null while the members of the generation before are unknown.
  Ballot* ballot(uint32_t generation);
  void replay_early();
  Status broken(const std::vector<int>& members, uint32_t parent);
  // What the communicator of a generation calls those of its members. With mutex_ held.
  std::vector<int> ranks_in(uint32_t generation, const std::vector<int>& founders) const;
  // Change ballots with the mutex held, then send what came of it.
  template <class Work>
  auto with_ballots(Work&& work);
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
  std::vector<std::unique_ptr<Ballot>> ballots_;  // [g - 1] decides generation g; guarded, as all below
  std::vector<Early> early_;
  std::map<int, Status> lost_;
  Status broken_;        // a message was lost on this rank
  uint32_t newest_ = 0;  // generation that this rank has a communicator of, or had
  int open_ = 0;         // communicators that are not closed

  std::mutex first_mutex_;
  ControlListener* first_ = nullptr;  // guarded by first_mutex_
  std::thread::id caller_;            // guarded by first_mutex_; valid while calling_
  std::atomic<bool> calling_{false};  // written under first_mutex_
  const std::vector<int> founders_;   // members of generation 0
};

}  // namespace weft
