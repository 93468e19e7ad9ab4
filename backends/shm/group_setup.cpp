#include "group_setup.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>

#include "base/process.h"
#include "base/text.h"
#include "calibration.h"
#include "group_setup_wire.h"
#include "group_tuner.h"

namespace weft::shm {
namespace {

// Duration of Group::pause. Operations of 8 bytes to 4 KiB took 10 % longer with half of it, and a quarter
// longer with a tenth of it. Operations of 8 bytes took 10 % longer with twice as much
// (docs/dev/performance.md).
constexpr uint64_t kPauseNs = 50;
constexpr int64_t kCheckMs = 20;  // between checks whether an awaited rank is lost

Status random_nonce(uint64_t* nonce) {
  if (::getrandom(nonce, sizeof *nonce, 0) != sizeof *nonce) return Status::system("getrandom", errno);
  return {};
}

}  // namespace

class GroupSetup {
 public:
  explicit GroupSetup(const BackendArgs& args)
      : args_(args), rank_(args.exchange.rank()), size_(args.exchange.size()) {}

  Status run(std::shared_ptr<Group>* result) {
    group_.reset(new Group);
    inherited_ = std::dynamic_pointer_cast<SegmentArena>(args_.arena);
    if (inherited_) arena_memory_ = inherited_->memory();
    group_->rank_ = rank_;
    group_->names_ = args_.names;
    group_->host_ = &args_.host;
    group_->crowded_ = args_.crowded;
    group_->clock_ = &args_.clock;
    if (!args_.crowded) group_->pauses_ = pauses_in(kPauseNs, args_.clock);
    group_->peers_.resize(static_cast<size_t>(size_));
    group_->populated_.resize(static_cast<size_t>(size_));
    WEFT_TRY(exchange_rank_infos());
    WEFT_TRY(agree(create_file_of_all()));
    WEFT_TRY(agree(map_segments()));
    WEFT_TRY(exchange_addresses());
    WEFT_TRY(choose_thresholds());
    group_->failpoints_ = args_.failpoints;  // only now: measurements write, too
    group_->arena_ = inherited_ ? inherited_ : std::make_shared<SegmentArena>(arena_memory_);
    args_.log.info(cat("shm: ", size_, " ranks, arenas of up to ", bytes_text(group_->layout_.arena_bytes),
                       ", private buffers: ", text(group_->thresholds())));
    *result = std::move(group_);
    return {};
  }

 private:
  PeerSegment& peer(int rank) { return group_->peer(rank); }
  int name(int rank) const { return args_.exchange.name(rank); }

  // Exchanges the ranks' introductions and determines the largest arena that all ranks can map.
  Status exchange_rank_infos() {
    RankInfo me;
    WEFT_TRY(random_nonce(&nonce_));
    me.process = this_process();
    me.nonce = nonce_;
    me.arena_bytes = arena_memory_ ? arena_memory_->size() : feasible_arena(size_, args_.arena_limit_bytes);
    me.needed_bytes = inherited_ ? inherited_->populated_bytes() : 0;
    me.available_bytes = available_memory();
    std::vector<Bytes> all;
    WEFT_TRY(args_.exchange.all_gather(encode(me), &all, args_.deadline));
    uint64_t arena = UINT64_MAX;
    std::vector<RankInfo> ranks(all.size());
    for (int r = 0; r < size_; r++) {
      RankInfo& theirs = ranks[static_cast<size_t>(r)];
      if (!decode(all[static_cast<size_t>(r)], &theirs)) {
        return Status::error(Code::kVersion,
                             cat("rank ", name(r), " sent ", all[static_cast<size_t>(r)].size(),
                                 " bytes of shared-memory setup data that this rank cannot read: run the "
                                 "same version of Weft on all ranks"))
            .with_ranks({name(r)});
      }
      arena = std::min(arena, theirs.arena_bytes);
      peer(r).pid = static_cast<int64_t>(theirs.process.pid);
      peer(r).same_process = r == rank_ || theirs.process == me.process;
      nonces_.push_back(theirs.nonce);
      processes_ += cat(' ', theirs.process.pid);
      for (int other = 0; other < r; other++) {
        if (ranks[static_cast<size_t>(other)].process == theirs.process) threads_ = true;
      }
    }
    group_->layout_ = Layout(size_, arena);
    return check_memory(ranks);
  }

  // Rank 0 creates the file of all segments.
  Status create_file_of_all() {
    WEFT_TRY(reach(args_, FailPlace::kSystem, 0));
    return rank_ == 0 ? create_segments(group_->layout_, nonce_, &fd_) : Status();
  }

  // Receives the file from rank 0 and maps it. Backs the own arena.
  Status map_segments() {
    for (int r = 1; rank_ == 0 && r < size_; r++) WEFT_TRY(args_.fds->send_fd(r, fd_.get()));
    if (rank_ != 0) WEFT_TRY(receive_file());
    const Layout& layout = group_->layout_;
    // The own arena stays where it was before a shrink. The peers' arenas have the same distances from it in
    // every process.
    const uint64_t place = arena_memory_ ? reinterpret_cast<uintptr_t>(arena_memory_->base()) - layout.arena
                                         : layout.segment(rank_);
    WEFT_TRY(Segments::open(fd_, layout, nonces_[0], rank_, place, &group_->segments_)
                 .with_prefix(cat("shared-memory segments of rank ", name(0), ": "))
                 .with_ranks({name(0)}));
    Segments& segments = *group_->segments_;
    WEFT_TRY(segments.populate_control(rank_));
    if (inherited_) {
      WEFT_TRY(inherited_->change_pages(
          [&] { return arena_memory_->back_anew(fd_, layout, rank_, inherited_->populated_bytes()); }));
      inherited_->untaint();
    } else {
      const uint64_t at = reinterpret_cast<uintptr_t>(segments.base(rank_)) + layout.arena;
      WEFT_TRY(ArenaMemory::map(fd_, layout, rank_, at, &arena_memory_));
    }
    segments.set_arena(rank_, *arena_memory_);
    fd_.reset();
    return {};
  }

  // Every rank has mapped the segments.
  Status exchange_addresses() {
    AddressInfo mine;
    mine.nonce = reinterpret_cast<uint64_t>(&group_->nonce_);
    mine.segment = reinterpret_cast<uint64_t>(group_->segments_->base(rank_));
    group_->nonce_ = nonce_;
    std::vector<Bytes> all;
    WEFT_TRY(args_.exchange.all_gather(encode(mine), &all, args_.deadline));
    for (int r = 0; r < size_; r++) {
      AddressInfo theirs;
      if (!decode(all[static_cast<size_t>(r)], &theirs))
        return Status::error(Code::kPeerFailed,
                             cat("rank ", name(r), " sent malformed data about its shared-memory segment (",
                                 all[static_cast<size_t>(r)].size(),
                                 " bytes): run the same version of Weft on all ranks"))
            .with_ranks({name(r)});
      nonce_addresses_.push_back(theirs.nonce);
      peer(r).remote_base = theirs.segment;
      peer(r).base = group_->segments_->base(r);
      peer(r).arena_base = group_->segments_->arena_base(r);
    }
    return {};
  }

  // A stopped rank sends nothing and closes nothing; the exchange reports that it is lost.
  Status receive_file() {
    for (;;) {
      const Deadline look = Deadline::after(args_.clock, kCheckMs, 0).earlier(args_.deadline);
      Status status = args_.fds->receive_fd(0, &fd_, look);
      if (status.ok()) return status;
      if (status.code() == Code::kTimeout && !args_.deadline.expired(args_.clock)) {
        WEFT_TRY(args_.exchange.check());
        continue;
      }
      return Status::error(status.code(),
                           cat("rank ", name(0),
                               " did not send the descriptor of the shared-memory segments: ", status.text()),
                           status.info().evidence)
          .with_ranks({name(0)});
    }
  }

  // True if this rank may read every peer's private memory. Tests it by reading their nonces.
  bool can_pull_all() {
    for (int r = 0; r < size_; r++) {
      uint64_t value = 0;
      const auto at = static_cast<size_t>(r);
      if (peer(r).same_process) continue;
      if (!group_->read_private(r, nonce_addresses_[at], reinterpret_cast<std::byte*>(&value), sizeof value)
               .ok() ||
          value != nonces_[at]) {
        return false;
      }
    }
    return true;
  }

  // Chooses the given thresholds, else those measured before or now, else the table's. All ranks go through
  // the same steps, because every decision is agreed or depends on equal values.
  Status choose_thresholds() {
    WantedThresholds wanted;
    const bool may_measure = args_.measurements != nullptr && size_ > 1;
    if (args_.measurements != nullptr) {
      WEFT_TRY(parse_thresholds(args_.measurements->shm_thresholds(), &wanted));
    }
    SetupResult mine;
    mine.thresholds = table_thresholds(size_);
    const bool one_shot = may_measure && wanted.measure && !wanted.one_shot;
    const bool pull = may_measure && wanted.measure && !wanted.pull;
    if (one_shot || pull) WEFT_TRY(measure(one_shot, pull, &mine));
    begin_counters();
    if (wanted.one_shot) mine.thresholds.one_shot = *wanted.one_shot;
    if (wanted.pull) mine.thresholds.pull = *wanted.pull;
    const bool given = wanted.one_shot || wanted.pull;
    if (given && mine.thresholds.origin == Thresholds::Origin::kTable)
      mine.thresholds.origin = Thresholds::Origin::kGiven;
    mine.answers = 0;
    // Nothing is pulled where pulling is forbidden or a rank cannot read its peers, whatever is wanted.
    if (mine.thresholds.pull != kNever && can_pull_all()) mine.answers |= kCanPull;
    WEFT_TRY(agree(&mine));
    if ((mine.answers & kCanPull) == 0) mine.thresholds.pull = kNever;
    group_->set_thresholds(mine.thresholds);
    return {};
  }

  // Builds the key of a measurement: these processes, in this order.
  std::string measurement_key(bool one_shot, bool pull) const {
    return cat("shm", args_.crowded ? " crowded" : "", one_shot ? " one-shot" : "", pull ? " pull" : "",
               processes_);
  }

  // Measures, unless all ranks have done so before. Measures whole operations where each rank has a core. It
  // only compares pulling with staging in two other cases. Where ranks share cores, whole operations would
  // measure the scheduler. Where ranks are threads, a rank that fails would free what another rank reads.
  Status measure(bool one_shot, bool pull, SetupResult* mine) {
    const std::string key = measurement_key(one_shot, pull);
    const std::string kept = args_.measurements->find(key);
    SetupResult known = *mine;
    if (!kept.empty() && decode(std::as_bytes(std::span(kept)), &known)) known.answers = kMeasured;
    if (can_pull_all()) known.answers |= kCanPull;
    // The samples must have been written by their owner and not yet read by others.
    const bool whole = !args_.crowded;
    if (!whole || threads_) known.status = write_samples();
    WEFT_TRY(agree(&known));
    if (known.answers & kMeasured) {
      mine->thresholds = known.thresholds;
      return {};
    }
    const bool can = (known.answers & kCanPull) != 0;
    if (pull && can && (!whole || threads_)) {
      SetupResult look;
      if (pulling_pays()) look.answers = kPullPays;
      WEFT_TRY(agree(&look));
      if (look.answers & kPullPays) mine->thresholds.pull = kPullMin;
      mine->thresholds.origin = Thresholds::Origin::kMeasured;
    }
    if (whole) {
      WEFT_TRY(run_tuner(one_shot, pull && can && !threads_, mine));
      // Resets this rank's lane block, before any lane opens it.
      new (&group_->at<LaneBlock>(rank_, group_->layout().lane(0))) LaneBlock();
      group_->forget_moved();
    }
    const Bytes found = encode(*mine);
    args_.measurements->keep(key, std::string(reinterpret_cast<const char*>(found.data()), found.size()));
    return {};
  }

  // Runs the tuner. If a rank cannot measure, all ranks keep the values that they have.
  Status run_tuner(bool one_shot, bool pull, SetupResult* mine) {
    if (!one_shot && !pull) return {};
    GroupTuner tuner(group_, args_, largest_tuned(pull));
    SetupResult tuned = *mine;
    Status status =
        calibrate(tuner, one_shot, pull, &tuned.thresholds).with_prefix("autotuning of shared memory: ");
    if (status.code() == Code::kTimeout || status.code() == Code::kPeerFailed) return status;
    if (!status.ok() && status.code() != Code::kCancelled) args_.log.warn(status.text());
    tuned.answers = status.ok() ? kMeasured : 0;
    WEFT_TRY(agree(&tuned));
    if (tuned.answers & kMeasured) mine->thresholds = tuned.thresholds;
    return {};
  }

  // Sets this rank's shared counters to where a test wants them to begin (FailCounter), as if the lanes had
  // executed all slots before. The setup's last agreement follows, so no peer has read them yet.
  void begin_counters() {
    const Layout& layout = group_->layout();
    const uint64_t slot = first_of(args_.failpoints, FailCounter::kSlots);
    for (uint32_t id = 0; slot > 0 && id < kLanes; id++) {
      LaneBlock& block = group_->at<LaneBlock>(rank_, layout.lane(id));
      for (uint64_t before = slot - std::min<uint64_t>(slot, 2); before != slot; before++) {
        block.posts[before & 1].arrival.sequence.store(before + 1);
      }
      // The counters stand where they were last moved without need.
      for (Counter* const counter : {&block.produced, &block.reduced, &block.consumed}) {
        counter->value.store((slot / kCatchUpSlots * kCatchUpSlots) << kRoundBits);
      }
    }
    group_->first_packet_ = first_of(args_.failpoints, FailCounter::kPackets);
    for (int r = 0; group_->first_packet_ > 0 && r < size_; r++) {
      for (uint32_t channel = 0; channel < kPairChannels; channel++) {
        PairBlock& block = group_->at<PairBlock>(rank_, layout.pair(r, channel));
        block.produced.value.store(group_->first_packet_);
        block.consumed.value.store(group_->first_packet_);
      }
    }
  }

  Status write_samples() {
    WEFT_TRY(group_->ensure(rank_, group_->layout_.staging, kStagingBytes));
    std::memset(group_->memory(rank_, group_->layout_.staging), 1, kStagingBytes);
    return {};
  }

  // True if pulling beats staging between this rank and the next. A staged byte crosses between two cores'
  // caches three times (written, folded, copied out). A pulled byte is copied twice by the kernel. The
  // machine decides which is cheaper. Each half of the neighbour's staging is touched once, cold.
  bool pulling_pays() {
    const int next = (rank_ + 1) % size_;
    if (peer(next).same_process) return true;  // pulling is plain reading there
    const uint64_t staging = group_->layout_.staging;
    if (!group_->ensure(next, staging, kStagingBytes).ok()) return false;
    std::vector<std::byte> sink(kChunkBytes, std::byte{1});
    uint64_t staged = UINT64_MAX;
    uint64_t pulled = UINT64_MAX;
    for (uint64_t at = 0; at < kHalfBytes; at += kChunkBytes) {
      uint64_t start = args_.clock.now_ns();
      std::memcpy(sink.data(), group_->memory(next, staging + at), kChunkBytes);
      staged = std::min(staged, args_.clock.now_ns() - start);
      start = args_.clock.now_ns();
      const uint64_t from = peer(next).remote_base + staging + kHalfBytes + at;
      if (!group_->read_private(next, from, sink.data(), kChunkBytes).ok()) return false;
      pulled = std::min(pulled, args_.clock.now_ns() - start);
    }
    return 2 * pulled < 3 * staged;
  }

  Status agree(const Status& mine) {
    SetupResult setup_result;
    setup_result.status = mine;
    return agree(&setup_result);
  }

  // Returns ok if all ranks are ok; otherwise the first failed rank's error, on all ranks. Reduces
  // *setup_result to the answers that all ranks gave with yes, and rank 0's thresholds.
  Status agree(SetupResult* setup_result) {
    std::vector<Bytes> all;
    WEFT_TRY(args_.exchange.all_gather(encode(*setup_result), &all, args_.deadline));
    Status mine = setup_result->status;
    for (int r = 0; r < size_; r++) {
      SetupResult theirs;
      const bool whole = decode(all[static_cast<size_t>(r)], &theirs);
      if (whole && theirs.status.ok()) {
        setup_result->answers &= theirs.answers;
        if (r == 0) setup_result->thresholds = theirs.thresholds;
        continue;
      }
      if (r == rank_) return mine;
      // A rank that lost a peer may retry without it (shrink); then all ranks do.
      const Code code = theirs.status.code() == Code::kPeerFailed ? Code::kPeerFailed : Code::kUnavailable;
      const std::string& text =
          whole ? theirs.status.text() : "its result of the shared-memory setup is malformed";
      return Status::error(code, cat("rank ", name(r), ": ", text), Evidence::kReport).with_ranks({name(r)});
    }
    return {};
  }

  const BackendArgs& args_;
  const int rank_;
  const int size_;
  uint64_t nonce_ = 0;
  std::string processes_;  // of all ranks
  bool threads_ = false;   // two ranks are threads of one process
  std::shared_ptr<Group> group_;
  std::shared_ptr<SegmentArena> inherited_;  // of the communicator that was shrunk
  std::shared_ptr<ArenaMemory> arena_memory_;
  Fd fd_;  // of the file of all segments
  std::vector<uint64_t> nonces_;
  std::vector<uint64_t> nonce_addresses_;
};

Status make_group(const BackendArgs& args, std::shared_ptr<Group>* group) {
  bool all = false;
  WEFT_TRY(all_local(args, &all));
  if (!all)
    return Status::error(Code::kUnavailable,
                         "not all ranks share this host's memory; between hosts use shm+ucx or shm+mpi");
  return GroupSetup(args).run(group);
}

Status all_local(const BackendArgs& args, bool* all) {
  uint8_t mine = 1;
  for (int r = 0; r < args.exchange.size(); r++) {
    const bool here = r == args.exchange.rank() || (args.fds != nullptr && args.fds->same_host(r));
    if (!here) mine = 0;
  }
  ByteWriter writer;
  writer.put(mine);
  std::vector<Bytes> answers;
  WEFT_TRY(args.exchange.all_gather(writer.bytes(), &answers, args.deadline));
  *all = true;
  for (const Bytes& answer : answers) {
    ByteReader reader(answer);
    if (reader.get<uint8_t>() != 1 || !reader.done()) *all = false;
  }
  return {};
}

}  // namespace weft::shm
