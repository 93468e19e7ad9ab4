#include "reducer/calls/replan.h"

#include <algorithm>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/calls/finish.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/features.h"
#include "reducer/gather_records.h"
#include "reducer/options.h"
#include "reducer/plan/relocation.h"
#include "reducer/plan/timing_exchange.h"
#include "reducer/program.h"
#include "reducer/report.h"
#include "reducer/step/hook_plan.h"

namespace weft {
namespace {

// A rank's vote in a re-plan. Sent as raw bytes.
struct PlanVote {
  static constexpr uint32_t kRefuses = 1;  // its own call is wrong; the rank has the error
  static constexpr uint32_t kWants = 2;    // it requests a re-plan; ranks that have joined do not
  static constexpr uint32_t kBrings = 4;   // ... with its own plan
  static constexpr uint32_t kKnows = 8;    // it has recorded an order of readiness
  static constexpr uint32_t kModels = 16;  // ... with WEFT_PLANNER_MODEL
  static constexpr uint32_t kItself =
      32;  // the re-plan is automatic, from begin (weft_reducer_options.replan)
  uint32_t flags = 0;
  uint32_t limits = 0;  // number of limits it requests
  uint64_t wish = 0;    // digest of its request

  bool has(uint32_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(PlanVote) == 16);

}  // namespace

// A program's request for a re-plan.
struct PlanRequest {
  std::vector<uint64_t> limits;                // empty: those in use
  std::vector<std::vector<uint32_t>> buckets;  // empty: by the order of readiness
  bool by_model = false;                       // ... and the model of a step
  bool by_itself = false;                      // weft_reducer_options.replan: an impossible plan is no error

  static Status read(const weft_replan_options& options, const Manifest& manifest, PlanRequest* request);
  uint64_t digest() const;
};

Status PlanRequest::read(const weft_replan_options& options, const Manifest& manifest, PlanRequest* request) {
  constexpr NamedValue kPlanners[] = {WEFT_NAMED(WEFT_PLANNER_DEFAULT), WEFT_NAMED(WEFT_PLANNER_LIMITS),
                                      WEFT_NAMED(WEFT_PLANNER_MODEL)};
  WEFT_TRY(check_choice("weft_replan_options.planner", options.planner, kPlanners));
  request->by_model = options.planner == WEFT_PLANNER_MODEL;
  if (request->by_model && options.plan != nullptr) {
    return Status::error(
        Code::kArg, cat("weft_replan_options.plan is set and its planner is ", planner_name(options.planner),
                        ": pass a plan or a planner, not both"));
  }
  WEFT_TRY(check_limits(options.bucket_limits, options.bucket_limit_count));
  request->limits.assign(options.bucket_limits, options.bucket_limits + options.bucket_limit_count);
  return options.plan == nullptr ? Status() : read_plan(*options.plan, manifest, &request->buckets);
}

uint64_t PlanRequest::digest() const {
  ByteWriter writer;
  writer.put(by_model).put(static_cast<uint32_t>(limits.size()));
  for (const uint64_t limit : limits) writer.put(limit);
  for (const std::vector<uint32_t>& params : buckets) {
    writer.put(static_cast<uint32_t>(params.size()));
    for (const uint32_t param : params) writer.put(param);
  }
  return digest64(writer.bytes());
}

namespace {

// Finds the rank whose plan is taken, and the lowest rank that requests a re-plan.
Status judge_votes(const std::vector<PlanVote>& votes, int* root, int* asks) {
  *root = -1;
  *asks = -1;
  for (size_t r = 0; r < votes.size(); r++) {
    const int rank = static_cast<int>(r);
    if (votes[r].has(PlanVote::kRefuses)) {
      return Status::error(
                 Code::kMismatch,
                 cat("rank ", rank, " rejected its own weft_replan_options: see the error of that rank"),
                 Evidence::kReport)
          .with_ranks({rank});
    }
    if (votes[r].limits > kMaxLimits) {
      return Status::error(Code::kMismatch, cat("re-plan: rank ", rank, " sent ", votes[r].limits,
                                                " bucket limits; allowed are at most ", kMaxLimits))
          .with_ranks({rank});
    }
    if (*root < 0 && votes[r].has(PlanVote::kKnows)) *root = rank;
    if (!votes[r].has(PlanVote::kWants)) continue;
    if (*asks < 0) *asks = rank;
    if (votes[r].wish != votes[static_cast<size_t>(*asks)].wish) {
      return Status::error(Code::kMismatch,
                           cat("weft_replan_options of ranks ", *asks, " and ", rank,
                               " differ: all ranks must pass the same limits, planner and plan"),
                           Evidence::kDescriptor)
          .with_ranks({rank});
    }
  }
  if (*asks >= 0 && votes[static_cast<size_t>(*asks)].has(PlanVote::kBrings)) *root = *asks;
  if (*root >= 0) return {};
  return Status::error(
      Code::kState,
      "re-plan: no rank has recorded the order in which gradients become ready: finish a synchronised step "
      "first");
}

template <class Word>
CollectiveArgs send(std::vector<Word>* words, int root) {
  CollectiveArgs args;
  args.coll = Coll::kBroadcast;
  args.dtype = sizeof(Word) == 8 ? Dtype::kU64 : Dtype::kU32;
  args.count = words->size();
  args.peer = root;
  args.src = args.dst = reinterpret_cast<std::byte*>(words->data());
  return args;
}

// request: null on a rank that has joined. knows: this rank has recorded an order of readiness.
PlanVote vote_on(const PlanRequest* request, const Status& given, bool knows) {
  PlanVote mine;
  if (knows) mine.flags |= PlanVote::kKnows;
  if (request == nullptr) return mine;
  mine.flags |= given.ok() ? PlanVote::kWants : PlanVote::kRefuses;
  if (!request->buckets.empty()) mine.flags |= PlanVote::kBrings;
  if (request->by_model) mine.flags |= PlanVote::kModels;
  if (request->by_itself) mine.flags |= PlanVote::kItself;
  mine.wish = request->digest();
  mine.limits = static_cast<uint32_t>(request->limits.size());
  return mine;
}

bool anyone(const std::vector<PlanVote>& votes, uint32_t flag) {
  return std::any_of(votes.begin(), votes.end(), [&](const PlanVote& vote) { return vote.has(flag); });
}

// Collective: receives the limits that rank `asks` requests, if any. request: this rank's.
Status hear_limits(const ReducerState& s, const std::vector<PlanVote>& votes, int asks,
                   const PlanRequest* request, Deadline deadline, std::vector<uint64_t>* limits) {
  const uint32_t named = asks >= 0 ? votes[static_cast<size_t>(asks)].limits : 0;
  if (named == 0) return {};
  limits->assign(named, 0);
  if (asks == s.comm->rank()) *limits = request->limits;
  return s.comm->run(s.lane, send(limits, asks), deadline);
}

// Collective: measures the data for the step's model. Null if a rank has no memory for it, which all ranks
// then know.
Status exchange_step_timings(const ReducerState& s, Deadline deadline, std::unique_ptr<Timings>* timings) {
  Status measured =
      exchange_timings(*s.comm, s.lane, s.order->times(), s.plan.largest_bytes(), deadline, timings,
                       s.device_buckets ? s.device_buckets->timing_memory() : TimingMemory());
  if (measured.ok()) return {};
  if (measured.code() != Code::kNoMemory || s.comm->failed()) return measured;
  s.comm->context().log().warn(cat("rank ", s.comm->rank(), ", re-plan: ", measured.text(),
                                   ". The buckets are cut at the bucket limits instead"));
  return {};
}

// Makes the plan, on the rank whose plan is taken. timings: null to end buckets at the limits.
Status draw_plan(const ReducerState& s, const PlanRequest* request, const std::vector<uint64_t>& limits,
                 const Timings* timings, Plan* plan) {
  if (request != nullptr && !request->buckets.empty()) return make_plan(s.manifest, request->buckets, plan);
  if (timings != nullptr) {
    *plan = plan_by_model(s.manifest, limits, timings->ready, timings->cost);
  } else {
    const bool ddp = s.has(WEFT_REDUCER_DDP_BUCKETS);
    *plan = make_plan(s.manifest, {.limits = limits, .order = s.order->params(), .ddp = ddp});
  }
  if (s.has(WEFT_REDUCER_OWN_WHOLE)) *plan = grouped_by_owner(s.manifest, *plan, s.comm->size());
  return {};
}

// Collective: receives root's plan. drawn: the plan, on root; null on other ranks.
Status hear_plan(const ReducerState& s, const Plan* drawn, int root, Deadline deadline, Plan* plan) {
  std::vector<uint32_t> words(Plan::words(s.manifest.params.size()));
  if (drawn != nullptr) drawn->pack(&words);
  WEFT_TRY(s.comm->run(s.lane, send(&words, root), deadline));
  const Status usable = Plan::unpack(s.manifest, words, plan);
  if (usable.ok()) return {};
  s.comm->fail(
      usable.with_prefix(cat("the bucket plan that rank ", root, " sent is invalid: ")).with_ranks({root}));
  return s.comm->failure();
}

// Takes part in the handshake for which ranks that have joined wait. It begins no step: the statistics and
// results of the last step stay.
Status open_replan(ReducerData& r) {
  const ReducerState& s = *r.state;
  if (!s.has(WEFT_REDUCER_UNEVEN)) return {};
  HandshakeRecord mine;
  mine.step = r.statistics.steps();
  mine.flags = HandshakeRecord::kReplan;
  std::vector<HandshakeRecord> all(static_cast<size_t>(s.comm->size()));
  CollectiveArgs args = s.schedule.slots.front().args;  // the same as in a step
  args.src = reinterpret_cast<const std::byte*>(&mine);
  args.dst = reinterpret_cast<std::byte*>(all.data());
  const auto failed = [&](const Status& why) {
    return note(r, why.with_prefix("re-plan: ").with_step(r.statistics.steps()));
  };
  if (Status done = s.comm->run(s.lane, args, s.comm->op_deadline(r.timeout_ms)); !done.ok())
    return failed(done);
  r.step->commit(
      r.statistics.steps());  // a rank that reaches the next handshake has finished the step before
  StepHandshake handshake;
  const Status judged = decide_handshake(all, s.comm->rank(), s.rules, &handshake);
  if (judged.ok()) return {};
  s.comm->fail(judged.with_step(r.statistics.steps()));
  return failed(s.comm->failure());
}

// Replaces everything that depends on the plan; gradients keep their values.
Status move_to(ReducerData& r, Plan plan, Deadline deadline) {
  ReducerState& old = *r.state;
  Context& context = old.comm->context();
  std::shared_ptr<ReducerState> next = old.carry_over();
  next->comm = old.comm;
  next->lane = old.lane;
  next->failures = old.failures;
  next->plan = std::move(plan);
  const uint64_t buckets = next->plan.buckets.size();
  const Status notified =
      with_turn(context, *next->hook, deadline, [&] { return next->hook->replan(buckets); });
  // The hook's state may be of either plan.
  if (!notified.ok()) old.comm->fail(notified.with_ranks({old.comm->rank()}));
  WEFT_TRY(notified);
  Relocation relocation(old, next.get());
  // Uses the reducer's own lane, because the program may be in other collectives, or in another reducer's
  // begin.
  const Agreement agreement{*old.comm, "re-plan", deadline, old.lane};
  if (const Status built = build_program(next.get(), {}, agreement); !built.ok()) {
    const Status back = plan_again(old, deadline);
    if (!back.ok()) old.comm->fail(back.with_ranks({old.comm->rank()}));
    return built;
  }
  if (const Status quiet = await_devices(*r.state, deadline); !quiet.ok()) {
    old.comm->fail(quiet.with_ranks({old.comm->rank()}));  // the other ranks have the new plan
    return quiet;
  }
  if (old.devices && !old.copy) next->devices->inherit(*old.devices);
  relocation.run();
  replace_program(r, &next, [&](Step& step) {
    step.commit(r.step->committed());
    step.adopt(r.program.synchronised, r.program.results);
  });
  r.program.retained_step = kNoStep;
  r.program.reduced = false;
  note_heap_bytes(r);
  r.statistics.locked([](Statistics::Values& v) { v.stats.plan_generation++; });
  return {};
}

// limits: in use from now on if the call succeeds.
Status put_in_place(ReducerData& r, Plan plan, std::vector<uint64_t>* limits, Deadline deadline) {
  r.state->limits.swap(*limits);
  if (plan == r.state->plan) {
    r.state->plan.take_limits(plan);
    note_heap_bytes(r);
    return {};
  }
  Status moved = move_to(r, std::move(plan), deadline);
  if (!moved.ok()) r.state->limits.swap(*limits);
  return moved;
}

// Keeps the plan after a failed automatic re-plan, on all ranks alike. A failure now would recur at the next
// begin.
void keep_plan(ReducerData& r, const Status& why) {
  const ReducerState& s = *r.state;
  s.comm->context().log().warn(
      cat("rank ", s.comm->rank(),
          ": the automatic re-plan failed and the reducer keeps its plan: ", why.text()));
  r.statistics.locked([&](Statistics::Values& v) { v.plan_kept = why.text(); });
}

}  // namespace

Status replan_reducer(ReducerData& r, const weft_replan_options& options, const Status& given) {
  WEFT_TRY(settle_finish(r));
  const ReducerState& s = *r.state;
  if (s.comm->failed()) return note(r, s.comm->failure());
  WEFT_TRY(note(r, outside_step(r, "re-plan")));
  if (s.captures) {
    return note(
        r, Status::error(
               Code::kUnsupported,
               "re-plan: the plan of a reducer with WEFT_REDUCER_GRAPH is fixed, because captured graphs "
               "refer to its buckets: create a new reducer"));
  }
  if (s.hold == Buckets::Hold::kInPlace) {
    return note(
        r, Status::error(Code::kUnsupported,
                         "re-plan: with WEFT_GRADIENT_IN_PLACE buckets are pieces of the program's memory: "
                         "create another reducer, with a weft_plan of your own"));
  }
  WEFT_TRY(note(r, end_between_steps(r)));  // slices change owners
  WEFT_TRY(open_replan(r));
  PlanRequest request;
  const Status wish = given.ok() ? PlanRequest::read(options, s.manifest, &request) : given;
  return note(r, take_plan(r, &request, wish));
}

Status take_plan(ReducerData& r, const PlanRequest* request, const Status& given) {
  const ReducerState& s = *r.state;
  const Deadline deadline = Deadline::after(s.comm->context().clock(), s.comm->options().init_timeout_ms,
                                            WEFT_DEFAULT_INIT_TIMEOUT_MS);
  const PlanVote mine = vote_on(request, given, s.order->noted());
  std::vector<PlanVote> votes;
  WEFT_TRY(gather_records(s, mine, &votes, deadline));
  int root = -1, asks = -1;
  const Status judged = judge_votes(votes, &root, &asks);
  const bool by_itself = anyone(votes, PlanVote::kItself);
  if (by_itself && !judged.ok() && judged.code() == Code::kState) return {};  // retried at the next step
  if (!judged.ok()) s.comm->agreed_error(judged);
  WEFT_TRY(given);
  WEFT_TRY(judged);

  std::vector<uint64_t> limits = s.limits;
  WEFT_TRY(hear_limits(s, votes, asks, request, deadline, &limits));
  std::unique_ptr<Timings> timings;
  if (anyone(votes, PlanVote::kModels)) WEFT_TRY(exchange_step_timings(s, deadline, &timings));
  Plan drawn, plan;
  const bool draws = root == s.comm->rank();
  if (draws) {
    const Status status = draw_plan(s, request, limits, timings.get(), &drawn);
    if (!status.ok()) {  // the other ranks wait for the plan
      s.comm->fail(status);
      return s.comm->failure();
    }
  }
  WEFT_TRY(hear_plan(s, draws ? &drawn : nullptr, root, deadline, &plan));
  Status moved = put_in_place(r, std::move(plan), &limits, deadline);
  if (!moved.ok() && (!by_itself || r.state->comm->failed())) return moved;
  r.program.replanned = true;
  if (moved.ok()) return {};
  keep_plan(r, moved);
  return request == nullptr || request->by_itself ? Status() : moved;
}

Status replan_automatically(ReducerData& r) {
  if (!replans(r.state->options.replan) || r.program.replanned || r.statistics.steps() == 0 ||
      r.program.may_retry)
    return {};
  WEFT_TRY(open_replan(r));
  PlanRequest request;
  request.by_model = r.state->options.replan != WEFT_PLANNER_LIMITS;
  request.by_itself = true;
  return take_plan(r, &request, {});
}

}  // namespace weft
