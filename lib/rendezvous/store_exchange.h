// The Exchange over a store: joins one meeting of a job, all-gathers there, and leaves. Rank 0 hosts the
// store too, unless it is a program of its own. Made by weft_comm_create, on the caller's thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "core/exchange.h"
#include "rendezvous/address.h"
#include "rendezvous/connection.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_protocol.h"
#include "rendezvous/store_server.h"

namespace weft {

struct StoreOptions {
  int rank = 0;
  int size = 1;
  std::string store;  // address
  AuthKey key;
  std::string job;        // tells apart the jobs of one store; equal on all ranks
  uint64_t sequence = 0;  // of the communicators that this job forms in this store; equal on all ranks
  bool external = false;  // the store is a program of its own; else rank 0 serves it
  ThreadStart on_thread_start;
  Resolver resolver;
};

// Threads: one thread at a time.
class StoreExchange final : public Exchange {
 public:
  // Host the store where that is this rank's part, connect, and join; waits until the store is there. kArg,
  // kAuth, kVersion, kMismatch (another size, a rank twice), kTimeout when the store never appears, kSystem.
  // clock and log outlive the exchange. deadline: of forming as a whole.
  static Status make(const StoreOptions& options, Clock& clock, Log& log, Deadline deadline,
                     std::unique_ptr<StoreExchange>* exchange);
  // Leaves. A host first lets the others finish, for at most kDrainMs, and kGoodbyeMs once the deadline of
  // make has passed.
  ~StoreExchange() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;
  void finish() override { finished_ = true; }
  void fail(const Status& why) override;
  int watch_fd() const override { return connection_.fd(); }

  // Ranks may be on other hosts.
  bool spans_hosts() const { return !address_.local(); }
  // The address of this host by which others reach it, as far as the store's connection shows.
  std::string reachable_host() const;

  static constexpr int64_t kDrainMs = 2000;
  static constexpr int64_t kGoodbyeMs = 200;

 private:
  StoreExchange(const StoreOptions& options, Clock& clock, Log& log, Deadline deadline)
      : options_(options), clock_(clock), log_(log), deadline_(deadline) {}

  Status news() override;
  Status host(Deadline deadline);
  bool name_is_taken() const;
  bool has_other_names() const;
  Status join(Deadline deadline);
  std::vector<std::string> other_places() const;
  Status try_join(Address there, Deadline deadline, bool* joined, bool* taken, std::string* why_not);
  Status wait_until_joined(Deadline deadline, bool* joined, std::string* why_not);
  void give(ByteView mine);
  bool complete() const { return parts_.size() == static_cast<size_t>(options_.size); }
  // Read and take what is there. closed: the connection has ended.
  Status take_frames(bool* closed);
  Status take_frame(ByteView frame);
  Status store_lost() const;
  Status absent() const;
  Status pause(Deadline deadline);

  const StoreOptions options_;
  Clock& clock_;
  Log& log_;
  const Deadline deadline_;
  Address address_;  // of the store, as all ranks were told
  // Where this rank connects first. A host connects to itself: over loopback, or at the name that it has
  // found free.
  Address target_;
  std::unique_ptr<StoreServer> server_;  // rank 0's
  Connection connection_;
  bool joined_ = false;
  bool closing_ = false;  // the store asked to try again
  bool finished_ = false;
  uint64_t round_ = 0;
  std::vector<Bytes> parts_;  // of the running round, by rank
  bool asked_ = false;        // who is missing
  bool answered_ = false;
  store::Missing missing_;
  Status failure_;  // sticky
};

}  // namespace weft
