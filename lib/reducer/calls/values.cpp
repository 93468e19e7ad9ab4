#include "reducer/calls/values.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/pre_step/pre_step_values.h"
#include "reducer/gather_records.h"
#include "reducer/values/chunks.h"
#include "reducer/values/digests.h"

namespace weft {
namespace {

constexpr uint32_t kInFlight = 2;
constexpr uint64_t kAllFlags = WEFT_BROADCAST_PARAMS | WEFT_BROADCAST_STATE | WEFT_BROADCAST_BUFFERS;
constexpr NamedValue kBroadcastFlags[] = {WEFT_NAMED(WEFT_BROADCAST_PARAMS), WEFT_NAMED(WEFT_BROADCAST_STATE),
                                          WEFT_NAMED(WEFT_BROADCAST_BUFFERS)};

// A rank's vote before a broadcast or a comparison moves any values. Sent as raw bytes.
struct ValuesVote {
  uint32_t call = 0;     // kBroadcast or kCheck
  uint32_t refuses = 0;  // 1: the rank's own call is wrong; the rank has the error
  uint64_t missing = 0;  // 1 + the index of a parameter whose value the rank lacks
  // Used by broadcasts.
  uint64_t flags = 0;
  uint64_t chunk_bytes = 0;
  uint32_t in_flight = 0;
  int32_t root = 0;
  // Used by comparisons.
  uint64_t digest = 0;

  static constexpr uint32_t kBroadcast = 1;
  static constexpr uint32_t kCheck = 2;
  const char* name() const { return call == kCheck ? "compare values" : "broadcast"; }
  const char* function() const { return call == kCheck ? "weft_reducer_check" : "weft_reducer_broadcast"; }
};
static_assert(sizeof(ValuesVote) == 48);

Status differs(int rank, const char* what, uint64_t theirs, uint64_t mine) {
  return Status::error(
             Code::kMismatch,
             cat("weft_broadcast_options.", what, " is ", static_cast<int64_t>(mine), " on rank 0 and ",
                 static_cast<int64_t>(theirs), " on rank ", rank, ": pass the same on all ranks"),
             Evidence::kDescriptor)
      .with_ranks({rank});
}

// Returns the first error in the ranks' votes.
Status judge(const std::vector<ValuesVote>& votes, const Manifest& manifest) {
  const ValuesVote& first = votes.front();
  for (size_t r = 0; r < votes.size(); r++) {
    const int rank = static_cast<int>(r);
    const ValuesVote& vote = votes[r];
    const auto refusal = [&](const std::string& why) {
      return Status::error(Code::kMismatch, cat("rank ", rank, " cannot ", vote.name(), ": ", why),
                           Evidence::kReport)
          .with_ranks({rank});
    };
    if (vote.missing > 0 && vote.missing <= manifest.params.size()) {
      return refusal(without_value(manifest, vote.missing - 1).text());
    }
    if (vote.refuses != 0) return refusal("see the error on that rank");
  }
  for (size_t r = 1; r < votes.size(); r++) {
    const int rank = static_cast<int>(r);
    const ValuesVote& vote = votes[r];
    if (vote.call != first.call) {
      return Status::error(Code::kMismatch,
                           cat("rank 0 called ", first.function(), ", rank ", rank, " called ",
                               vote.function(), ": all ranks must make the same call"),
                           Evidence::kDescriptor)
          .with_ranks({rank});
    }
    if (vote.root != first.root) {
      return differs(rank, "root", static_cast<uint64_t>(vote.root), static_cast<uint64_t>(first.root));
    }
    if (vote.flags != first.flags) return differs(rank, "flags", vote.flags, first.flags);
    if (vote.chunk_bytes != first.chunk_bytes) {
      return differs(rank, "chunk_bytes", vote.chunk_bytes, first.chunk_bytes);
    }
    if (vote.in_flight != first.in_flight) return differs(rank, "in_flight", vote.in_flight, first.in_flight);
  }
  return {};
}

// A bit for each parameter.
using ParamBits = std::vector<uint64_t>;

// Describes the first parameter that has a value on one rank and none on the other.
std::string value_difference(const Manifest& manifest, int rank, ByteView mine, int other_rank,
                             ByteView theirs) {
  ByteReader a(mine), b(theirs);
  for (size_t word = 0; word < Presence::words(manifest.params.size()); word++) {
    const auto here = a.get<uint64_t>(), there = b.get<uint64_t>();
    if (!a.ok() || !b.ok()) break;
    if (here == there) continue;
    const size_t bit = static_cast<size_t>(std::countr_zero(here ^ there));
    const bool has = (here >> bit & 1) != 0;
    const size_t i = std::min(word * 64 + bit, manifest.params.size() - 1);
    return cat(
        manifest.named(i), " has a value on rank ", has ? rank : other_rank, " and none on rank ",
        has ? other_rank : rank,
        ", so rank 0's values cannot be copied to all: set weft_param.parameter on every rank, or create "
        "the reducer with WEFT_REDUCER_KEEP_VALUES");
  }
  return cat("the list of parameters with values that rank ", a.ok() ? other_rank : rank,
             " sent is malformed");
}

// Returns the parameters with a value on this rank, except for values on devices, which a reducer does not
// copy.
std::vector<uint32_t> params_with_values(const ReducerState& s) {
  std::vector<uint32_t> params;
  bool on_device = false;
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    const Param& param = s.manifest.params[i];
    if (s.manifest.parameter(i) == nullptr || param.count == 0 || param.ignored()) continue;
    on_device |= param.on_device();
    if (!param.on_device()) params.push_back(i);
  }
  if (on_device) {
    s.comm->context().log().warn(
        "values of parameters on devices are not copied from rank 0 when a reducer is created: broadcast "
        "them with weft_broadcast, and create the reducer with WEFT_REDUCER_KEEP_VALUES");
  }
  return params;
}

// Sends the messages of one broadcast: up to in_flight at a time, packed and unpacked while others are in
// flight.
class Messages {
 public:
  Messages(ReducerState& state, std::vector<Chunk> chunks, const ValuesVote& how)
      : s_(state),
        chunks_(std::move(chunks)),
        root_(how.root),
        staging_(s_.comm->context().options().host_allocator),
        flights_(std::min<size_t>(how.in_flight, chunks_.size())) {}

  // Allocates memory for packing. kNoMemory.
  Status prepare() {
    uint64_t most = 0;
    for (const Chunk& chunk : chunks_) {
      if (!chunk.direct) most = std::max(most, chunk.bytes);
    }
    for (Flight& flight : flights_) {
      if (most > 0) WEFT_TRY(staging_.allocate(most, &flight.staging).with_prefix("broadcast: "));
    }
    return {};
  }

  // Returns when nothing is in flight any more, also after a failure.
  Status run(Deadline deadline) {
    Status status;
    for (size_t done = 0, next = 0; done < chunks_.size() && (status.ok() || done < next); done++) {
      while (status.ok() && next < chunks_.size() && next - done < flights_.size()) {
        status = or_fail([&] { submit(next, deadline); });
        if (status.ok()) next++;
      }
      if (done == next) break;
      Flight& flight = flights_[done % flights_.size()];
      s_.comm->complete([&] { return flight.request.done(); }, [] { return "the broadcast of values"; });
      if (status.ok()) status = flight.request.result;
      const Chunk& chunk = chunks_[done];
      if (status.ok() && !is_root() && !chunk.direct) {
        status = or_fail([&] { unpack(chunk, s_.manifest, *s_.buckets, flight.staging); });
      }
    }
    return status;
  }

 private:
  struct Flight {
    Request request;
    std::byte* staging = nullptr;
  };
  // Turns an exception into a failure of the communicator, so that no requests stay in flight and no rank
  // waits for this one.
  template <class Work>
  Status or_fail(Work&& work) {
    Status thrown = guarded_run(work);
    if (!thrown.ok()) s_.comm->fail(thrown);
    return thrown;
  }
  bool is_root() const { return root_ == s_.comm->rank(); }

  void submit(size_t position, Deadline deadline) {
    const Chunk& chunk = chunks_[position];
    Flight& flight = flights_[position % flights_.size()];
    if (is_root() && !chunk.direct) pack(chunk, s_.manifest, *s_.buckets, flight.staging);
    flight.request.reset();
    CollectiveArgs& args = flight.request.args;
    args.coll = Coll::kBroadcast;
    args.dtype = Dtype::kU8;
    args.count = chunk.bytes;
    args.peer = root_;
    args.src = args.dst = chunk.direct ? home(chunk, s_.manifest) : flight.staging;
    args.tag = (position + 1) * kTagSlot;
    flight.request.deadline = deadline;
    s_.lane->submit(&flight.request);
  }

  ReducerState& s_;
  const std::vector<Chunk> chunks_;
  const int root_;
  HeapArena staging_;
  std::vector<Flight> flights_;
};

}  // namespace

Status start_together(const Agreement& agreement, ReducerState* state, bool given_plan) {
  ReducerState& s = *state;
  if (s.options.replan == WEFT_PLANNER_DEFAULT && !s.has(WEFT_REDUCER_GRAPH | WEFT_REDUCER_SHARDED) &&
      !given_plan) {
    // A re-plan frees pinned memory, which waits for the device. A stream there may be waiting for the
    // program.
    const bool may = s.copy && s.hook->can_replan() && !s.manifest.has_devices();
    const auto mine = static_cast<std::byte>(may ? 1 : 0);
    std::vector<Bytes> all;
    WEFT_TRY(s.comm->agree({&mine, 1}, &all, agreement.deadline));
    const bool all_may = std::all_of(all.begin(), all.end(), [](const Bytes& theirs) {
      return theirs.size() == 1 && theirs.front() == std::byte{1};
    });
    if (all_may) s.options.replan = WEFT_PLANNER_LIMITS;
  }
  if (s.options.replan == WEFT_PLANNER_DEFAULT) s.options.replan = WEFT_PLANNER_NONE;
  if (s.has(WEFT_REDUCER_KEEP_VALUES)) return {};
  const std::vector<uint32_t> params = params_with_values(s);
  ParamBits values(Presence::words(s.manifest.params.size()));
  for (const uint32_t param : params) values[param / 64] |= uint64_t{1} << (param % 64);
  ValuesVote how;
  how.in_flight = kInFlight;
  Messages messages(s, make_chunks(s.manifest, params, kChunkBytes), how);
  const auto difference = [&](int rank, ByteView mine, int other_rank, ByteView theirs) {
    return value_difference(s.manifest, rank, mine, other_rank, theirs);
  };
  WEFT_TRY(agree_on(agreement, messages.prepare(), std::as_bytes(std::span(values)), difference));
  return messages.run(s.comm->op_deadline(0)).with_prefix("copy of rank 0's values to all ranks: ");
}
namespace {

Status broadcast_root(const ReducerData& r, int32_t wanted, int32_t* root) {
  const int size = r.state->comm->size();
  if (wanted != WEFT_ROOT_LAST_ACTIVE) {
    if (wanted < 0 || wanted >= size) {
      return Status::error(Code::kArg, cat("weft_broadcast_options.root is ", wanted, ": allowed are 0 to ",
                                           size - 1, " and WEFT_ROOT_LAST_ACTIVE (-1)"));
    }
    *root = wanted;
    return {};
  }
  *root = r.program.last_active;
  if (r.program.last_active >= 0) return {};
  return Status::error(Code::kState,
                       "weft_broadcast_options.root is WEFT_ROOT_LAST_ACTIVE, but no step with data has been "
                       "reduced over this communicator: name a rank");
}

}  // namespace

Status broadcast_values(ReducerData& r, const weft_broadcast_options& options, const Status& given) {
  WEFT_TRY(note(r, check_between_steps(r, "broadcast")));
  ReducerState& s = *r.state;
  ValuesVote mine;
  mine.call = ValuesVote::kBroadcast;
  mine.flags = options.flags == 0 ? kAllFlags : options.flags;
  mine.chunk_bytes = options.chunk_bytes == 0 ? kChunkBytes : options.chunk_bytes;
  mine.in_flight = options.in_flight == 0 ? kInFlight : options.in_flight;
  std::unique_ptr<Messages> messages;
  const Status wish = [&]() -> Status {
    WEFT_TRY(given);
    WEFT_TRY(check_flags("weft_broadcast_options.flags", options.flags, kBroadcastFlags));
    if (mine.chunk_bytes < kLeastChunkBytes) {
      return Status::error(Code::kArg,
                           cat("weft_broadcast_options.chunk_bytes is ", mine.chunk_bytes, ": allowed are ",
                               kLeastChunkBytes, " and more, and 0 for the default"));
    }
    WEFT_TRY(check_timeout("weft_broadcast_options.timeout_ms", options.timeout_ms));
    WEFT_TRY(broadcast_root(r, options.root, &mine.root));
    uint64_t flags = 0;
    if (mine.flags & WEFT_BROADCAST_STATE) flags |= WEFT_PARAM_STATE_ONLY;
    if (mine.flags & WEFT_BROADCAST_BUFFERS) flags |= WEFT_PARAM_BUFFER;
    const auto params = params_with(s.manifest, flags, (mine.flags & WEFT_BROADCAST_PARAMS) != 0);
    WEFT_TRY(check_values(s.manifest, params, &mine.missing));
    messages = std::make_unique<Messages>(s, make_chunks(s.manifest, params, mine.chunk_bytes), mine);
    return messages->prepare();
  }();
  mine.refuses = wish.ok() ? 0 : 1;
  const Deadline deadline = s.comm->op_deadline(wish.ok() ? options.timeout_ms : 0);
  std::vector<ValuesVote> votes;
  WEFT_TRY(note(r, gather_records(s, mine, &votes, deadline)));
  const Status judged = judge(votes, s.manifest);
  if (!judged.ok()) s.comm->agreed_error(judged);
  WEFT_TRY(note(r, wish));
  WEFT_TRY(note(r, judged));
  return note(r, messages->run(deadline).with_prefix("broadcast: "));
}

Status compare_values(ReducerData& r) {
  WEFT_TRY(note(r, check_between_steps(r, "check")));
  const ReducerState& s = *r.state;
  const std::vector<uint32_t> params = compared_params(s.manifest);
  std::vector<uint64_t> digests(params.size());
  ValuesVote mine;
  mine.call = ValuesVote::kCheck;
  const Status wish = check_values(s.manifest, params, &mine.missing);
  if (wish.ok()) digest_values(s.manifest, *s.buckets, params, &digests);
  mine.refuses = wish.ok() ? 0 : 1;
  mine.digest = digest_range(digests);
  const Deadline deadline = s.comm->op_deadline(0);
  std::vector<ValuesVote> votes;
  WEFT_TRY(note(r, gather_records(s, mine, &votes, deadline)));
  const Status judged = judge(votes, s.manifest);
  if (!judged.ok()) s.comm->agreed_error(judged);
  WEFT_TRY(note(r, wish));
  WEFT_TRY(note(r, judged));
  const bool equal = std::all_of(votes.begin(), votes.end(),
                                 [&](const ValuesVote& vote) { return vote.digest == votes.front().digest; });
  return equal ? Status() : note(r, name_difference(s, params, digests, {}, deadline));
}

Status name_difference(const ReducerState& s, const std::vector<uint32_t>& params,
                       const std::vector<uint64_t>& digests, const std::vector<int>& stale,
                       Deadline deadline) {
  DigestSearch search(digests);
  std::vector<DigestSearch::Row> rows;
  const auto is_stale = [&](int r) { return std::find(stale.begin(), stale.end(), r) != stale.end(); };
  size_t fresh = 0;
  while (is_stale(static_cast<int>(fresh))) fresh++;  // some rank is not stale
  while (!search.found()) {
    const DigestSearch::Row row = search.row();
    WEFT_TRY(gather_records(s, row, &rows, deadline));
    for (const int r : stale) rows[static_cast<size_t>(r)] = rows[fresh];
    if (search.descend(rows)) continue;
    const Status unnamed =
        Status::error(Code::kMismatch,
                      "values differ between ranks as a whole, but those of no single parameter do: values "
                      "changed during the comparison, or this is a bug of Weft to report",
                      Evidence::kDescriptor);
    s.comm->agreed_error(unnamed);
    return unnamed;
  }
  const uint32_t param = params[search.at()];
  const std::vector<int> wrong = minority(search.digests());
  std::vector<int> right;
  for (int r = 0; r < s.comm->size(); r++) {
    if (!is_stale(r) && std::find(wrong.begin(), wrong.end(), r) == wrong.end()) right.push_back(r);
  }
  const Status mismatch =
      Status::error(Code::kMismatch,
                    cat(s.manifest.named(param), " is the first that differs: ranks [", list_text(wrong),
                        "] do not hold the value of ranks [", list_text(right),
                        "]. Broadcast the values, or load the same checkpoint on all ranks"),
                    Evidence::kDescriptor)
          .with_ranks(wrong);
  s.comm->agreed_error(mismatch);
  return mismatch;
}

}  // namespace weft
