// The Exchange over a store: joins the rendezvous of one communicator of a job, all-gathers there, and
// leaves. Rank 0 also hosts the store, unless it is a separate program. Created by weft_comm_create, on the
// caller's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "rendezvous/address.h"
#include "rendezvous/connection.h"
#include "rendezvous/invitation/invitation_file.h"
#include "rendezvous/invitation/open_stores.h"
#include "rendezvous/resolve.h"
#include "rendezvous/store_protocol.h"
#include "rendezvous/store_server.h"
#include "transport/exchange.h"

namespace weft {

struct StoreOptions {
  int rank = 0;
  int size = 1;
  std::string store;  // address; ignored with an invitation
  std::optional<Invitation> invitation;
  bool munge = false;  // encrypt the file of a folder where munge runs
  AuthKey key;
  std::string job;  // distinguishes the jobs of a store; equal on all ranks
  // Number of the communicator among those of this job in this store; equal on all ranks.
  uint64_t sequence = 0;
  NetworkSettings network;  // for a store whose port rank 0 chooses
  bool external = false;    // the store is a separate program; otherwise rank 0 hosts it
  ThreadStart on_thread_start;
  Resolver resolver;
};

// Threads: one thread at a time.
class StoreExchange final : public Exchange {
 public:
  // Hosts the store if that is this rank's task, connects and joins; waits until the store is available.
  // Errors: kArg, kAuth, kVersion, kMismatch (different sizes, or a rank twice), kTimeout if the store never
  // appears, kSystem. clock and log outlive the exchange. deadline: of the whole group setup. invited: the
  // store of options.invitation, on rank 0.
  static Status make(const StoreOptions& options, Clock& clock, Log& log, Deadline deadline,
                     std::unique_ptr<StoreExchange>* exchange,
                     std::unique_ptr<StoreServer> invited = nullptr);
  // Leaves. A host first lets the other ranks finish: for at most kDrainMs, or kGoodbyeMs once the deadline
  // of make has passed.
  ~StoreExchange() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override;
  void finish() override { finished_ = true; }
  void fail(const Status& why) override;
  int watch_fd() const override { return connection_.fd(); }

  // Returns true if only processes with a secret can join: the job's, or that of rank 0's invitation.
  bool authenticated() const { return key_.secret; }
  // Returns true if ranks may be on other hosts.
  bool spans_hosts() const { return !address_.local(); }
  // Returns this host's address for other hosts, as far as the store's connection shows it.
  std::string reachable_host() const;

  static constexpr int64_t kDrainMs = 2000;
  static constexpr int64_t kGoodbyeMs = 200;

 private:
  StoreExchange(const StoreOptions& options, Clock& clock, Log& log, Deadline deadline)
      : options_(options), clock_(clock), log_(log), deadline_(deadline), key_(options.key) {}

  Status news() override;
  Status check_address() const;
  Status host(Deadline deadline);
  Status invite();
  void host_here(const AuthKey& key);
  bool name_is_taken() const;
  bool has_other_names() const;
  Status join(Deadline deadline);
  // True if this rank takes the store's address from rank 0's invitation.
  bool invited() const { return !server_ && (file_ || options_.invitation); }
  Status join_invited(Deadline deadline, bool* joined, std::string* why_not);
  std::vector<std::string> other_places() const;
  Status try_join(Address there, Deadline deadline, bool* joined, bool* taken, std::string* why_not);
  Status connect(Address there, Deadline deadline, Fd* fd, std::string* why_not);
  Status wait_until_joined(Deadline deadline, bool* joined, std::string* why_not);
  void give(ByteView mine);
  bool complete() const { return parts_.size() == static_cast<size_t>(options_.size); }
  // Reads and handles the available frames. closed: the connection has ended.
  Status take_frames(bool* closed);
  Status hear(bool* closed);
  Status take_frame(ByteView frame);
  Status store_lost() const;
  Status absent() const;
  Status pause(Deadline deadline);

  const StoreOptions options_;
  Clock& clock_;
  Log& log_;
  const Deadline deadline_;
  Address address_;  // of the store, as configured on all ranks
  // The address to which this rank connects first. A host connects to itself: over loopback, or at the free
  // name that it has found.
  Address target_;
  AuthKey key_;                           // of the store
  std::unique_ptr<InvitationFile> file_;  // if the ranks meet in a folder
  std::string refusal_;                   // why an address in that file has refused this rank
  std::unique_ptr<StoreServer> server_;   // on rank 0 only
  Connection connection_;
  bool joined_ = false;
  bool closing_ = false;  // the store asked this rank to try again
  bool finished_ = false;
  uint64_t round_ = 0;
  std::vector<Bytes> parts_;  // of the current round, by rank
  bool asked_ = false;        // a WhoIsMissing request was sent
  bool answered_ = false;
  store::Missing missing_;
  Status failure_;  // sticky
};

}  // namespace weft
