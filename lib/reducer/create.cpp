// Reducer::create and the destructor: the ranks' agreement, and the order in which objects are made and
// destroyed.
#include <algorithm>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "core/context.h"
#include "reducer/agreement.h"
#include "reducer/feature/fused_cast/fused_cast.h"
#include "reducer/feature/in_place/in_place.h"
#include "reducer/features.h"
#include "reducer/options.h"
#include "reducer/proposal.h"
#include "reducer/reducer.h"
#include "reducer/values/values.h"

namespace weft {
namespace {

constexpr int64_t kDestroyTimeoutMs = WEFT_DEFAULT_DESTROY_TIMEOUT_MS;

// Makes the error of a flag that excludes gradients on devices, and names the first of those.
Status needs_host(const char* flag, const std::vector<Param>& params) {
  const auto device =
      std::find_if(params.begin(), params.end(), [](const Param& param) { return param.on_device(); });
  return Status::error(
      Code::kUnsupported,
      cat(flag, " needs all gradients in host memory, but that of parameter ", device - params.begin(), " ('",
          device->name,
          "') is on a CUDA device: remove the flag, or put the parameter into another reducer"));
}

// Fills this rank's proposal and plan, or returns why it cannot.
Status propose(const weft_reducer_options& options, int size, const Hook* hook, Proposal* proposal,
               Plan* plan) {
  WEFT_TRY(check_options(options, size));
  if (hook == nullptr)
    return Status::error(
        Code::kArg,
        "internal: the reducer was created without a hook; this is a bug of Weft, please report it");
  proposal->hook = cat(hook->name(), hook->comm() != nullptr ? " over a communicator of its own" : "");
  if ((options.flags & WEFT_REDUCER_SHARDED) != 0 && (!hook->plain() || hook->comm() != nullptr)) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook,
                             "' cannot be used with WEFT_REDUCER_SHARDED: use the default hook, without a "
                             "communicator of its own, or remove the flag"));
  }
  if ((options.flags & WEFT_REDUCER_NORMS) != 0 && (!hook->equal_results() || hook->comm() != nullptr)) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook,
                             "' cannot be used with WEFT_REDUCER_NORMS: its results can differ between "
                             "ranks, and so would the norms. Use another hook or remove the flag"));
  }
  if (hook->comm() != nullptr && (options.flags & WEFT_REDUCER_UNEVEN) != 0) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook,
                             "' cannot be used with WEFT_REDUCER_UNEVEN: it averages over all ranks of that "
                             "communicator, also those without data. Use another hook or remove the flag"));
  }
  if (proposal->hook.size() > Proposal::kMaxHookName)
    return Status::error(Code::kArg, cat("the name of the hook, with its options, is ", proposal->hook.size(),
                                         " bytes long; at most ", Proposal::kMaxHookName, " are allowed"));
  proposal->flags = options.flags;
  proposal->divide_by = options.divide_by;
  proposal->buffers_root = options.buffers_root;
  proposal->check_interval = options.check_interval;
  proposal->reduce_dtype = options.reduce_dtype;
  proposal->replan = options.replan;
  proposal->accumulation = options.accumulation;
  proposal->in_place = options.mode == WEFT_GRADIENT_IN_PLACE;
  proposal->limits = bucket_limits({options.bucket_limits, options.bucket_limit_count});
  WEFT_TRY(make_manifest(options.params, options.param_count, options.param_size, &proposal->manifest));
  if (options.reduce_dtype != 0) {
    proposal->manifest.reduce_dtype = static_cast<Dtype>(options.reduce_dtype);
  }
  if (proposal->manifest.has_devices() && (options.flags & WEFT_REDUCER_COPY_STRAYS) != 0) {
    return needs_host("WEFT_REDUCER_COPY_STRAYS", proposal->manifest.params);
  }
  if (options.check_interval != 0)
    WEFT_TRY(check_values(proposal->manifest, compared_params(proposal->manifest)));
  const std::vector<Param>& params = proposal->manifest.params;
  const auto sparse =
      std::find_if(params.begin(), params.end(), [](const Param& param) { return param.sparse(); });
  if ((options.flags & WEFT_REDUCER_SHARDED) != 0 && sparse != params.end()) {
    return Status::error(Code::kUnsupported,
                         cat("parameter ", sparse - params.begin(), " ('", sparse->name,
                             "') is sparse (WEFT_PARAM_SPARSE), which WEFT_REDUCER_SHARDED does not support: "
                             "put it into another reducer, without that flag"));
  }
  if (!proposal->manifest.uses.empty()) {
    proposal->uses = digest64(std::as_bytes(std::span(proposal->manifest.uses)));
  }
  if (proposal->in_place) WEFT_TRY(check_in_place(proposal->manifest));
  if (options.plan == nullptr) {
    *plan = make_plan(proposal->manifest, {.limits = proposal->limits, .order = {}});
    if (proposal->in_place) cut_in_place(proposal->manifest, plan);
    return {};
  }
  std::vector<std::vector<uint32_t>> buckets;
  WEFT_TRY(read_plan(*options.plan, proposal->manifest, &buckets));
  WEFT_TRY(make_plan(proposal->manifest, buckets, plan));
  if (proposal->in_place) WEFT_TRY(check_adjacent(proposal->manifest, *plan));
  ByteWriter written;
  plan->write(&written);
  proposal->plan = digest64(written.bytes());
  return {};
}

// Asks the hook for its plan of each bucket, and starts the thread for its stages.
Status schedule_hook(ReducerState* s, Deadline deadline) {
  Context& context = s->comm->context();
  const Comm& seen = s->hook->comm() != nullptr ? *s->hook->comm() : *s->comm;
  const auto is_sparse = [](const Param& param) { return param.sparse(); };
  if (!s->sparse && std::any_of(s->manifest.params.begin(), s->manifest.params.end(), is_sparse)) {
    s->sparse = std::make_shared<SparseGradients>(s->manifest, context.options().host_allocator);
  }
  s->views = std::make_unique<HookViews>(s->manifest, s->plan, seen.rank(), seen.size(),
                                         s->hook->takes_sparse() ? s->sparse.get() : nullptr);
  s->worker =
      context.engine().mode() == Engine::Mode::kThread && s->hook->stage_kind() != StageKind::kNothing;
  if (s->worker) WEFT_TRY(context.stages().start());
  return with_turn(context, *s->hook, deadline, [&] {
    Status made = make_schedule(*s->hook, s->manifest, s->plan, s->views.get(), &s->schedule);
    s->hook_bytes = s->hook->memory_bytes();
    return made;
  });
}

// Assigns a sharded reducer's buckets to owners, and allocates memory in which values are packed.
Status share_out(ReducerState* s) {
  for (const PlannedBucket& bucket : s->plan.buckets) {
    for (const uint32_t param : bucket.params) {
      if (dtype_size(s->manifest.params[param].dtype) == dtype_size(bucket.dtype)) continue;
      return Status::error(Code::kUnsupported, cat("parameter ", param, " ('", s->manifest.params[param].name,
                                                   "') is ", name(s->manifest.params[param].dtype),
                                                   ", but is communicated as ", name(bucket.dtype),
                                                   ": WEFT_REDUCER_SHARDED needs types of equal size. Set "
                                                   "weft_reducer_options.reduce_dtype to 0"));
    }
  }
  s->ownership = std::make_unique<Ownership>(s->manifest, s->plan, s->comm->size(), s->own_whole);
  s->schedule.part(*s->ownership, s->comm->rank());
  if (!check_values(s->manifest, params_with(s->manifest, 0, true)).ok()) return {};
  std::unique_ptr<GatherStaging> staging;
  WEFT_TRY(GatherStaging::make(s->plan, s->comm->collectives().arena(), &staging));
  s->staging = std::move(staging);
  return {};
}

// Allocates the buckets, and the objects for gradients on devices.
Status make_buckets(ReducerState* s, Deadline deadline) {
  Context& context = s->comm->context();
  if (!s->buckets) {
    WEFT_TRY(s->comm->reach(FailPlace::kMemory, 1));
    WEFT_TRY(Buckets::make(s->manifest, s->plan, s->hold, s->comm->collectives().arena(), s->retain,
                           context.options().host_allocator, s->reach, &s->buckets));
  } else {
    WEFT_TRY(s->buckets->pin(s->reach).with_prefix("pinning the memory of the buckets: "));
  }
  if (s->reach.accelerator == nullptr) return {};
  WEFT_TRY(DeviceGradients::make(s->reach, s->manifest, s->plan, &s->devices));
  if (s->copy || s->views_on_devices != nullptr) return {};
  WEFT_TRY(DeviceViews::make(s->reach, s->manifest, &s->views_on_devices));
  return s->views_on_devices->clear(context, *s->buckets, s->devices.get(), deadline);
}

// Makes the objects that keep data about parameters across steps. A state that replaces another one already
// has them.
void make_notes(ReducerState* s) {
  const size_t params = s->manifest.params.size();
  if (!s->uses && (s->learns || !s->manifest.uses.empty())) {
    std::vector<uint32_t> uses = s->manifest.uses;
    uses.resize(params, 1);
    s->uses = std::make_shared<Uses>(std::move(uses), s->learns);
  }
  if (s->copy && !s->given) s->given = std::make_shared<GivenLayouts>(params);
  if (!s->presence) s->presence = std::make_shared<Presence>(params, s->mapped);
  if (!s->ready_ns) s->ready_ns = std::make_shared<std::vector<std::atomic<uint64_t>>>(params);
}

// Binds collectives and stages to the memory of the buckets and their scratch.
Status bind_memory(ReducerState* s) {
  WEFT_TRY(s->comm->reach(FailPlace::kMemory, 2));
  mark_fused_casts(s);
  const std::shared_ptr<DeviceBuckets> old = s->device_buckets;
  WEFT_TRY(DeviceBuckets::make(s, old.get(), &s->device_buckets));
  WEFT_TRY(HookScratch::make(s->schedule, s->comm->collectives().arena(), s->reach,
                             s->hook->stage_kind() == StageKind::kForeign, &s->scratch));
  std::vector<std::byte*> buffers = s->buckets->buffers();
  std::vector<std::byte*> scratch = s->scratch->parts();
  for (uint32_t b = 0; b < buffers.size(); b++) {
    if (s->device_bucket(b)) buffers[b] = scratch[b] = s->device_buckets->memory(b);
  }
  s->schedule.bind(buffers, scratch);
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    weft_bucket& view = s->views->bucket(b);
    view.buffer = s->plan.buckets[b].sparse ? nullptr : s->buckets->buffers()[b];
    view.scratch = s->scratch->parts()[b];
    view.scratch_bytes = s->schedule.buckets[b].scratch_bytes;
  }
  return {};
}

// Makes the hook's plans and allocates all memory; local.
Status build_collectives_local(ReducerState* s, Deadline deadline) {
  if (s->reach.accelerator == nullptr) WEFT_TRY(find_devices(s->comm->context(), s->manifest, &s->reach));
  WEFT_TRY(schedule_hook(s, deadline));
  if (s->sharded) WEFT_TRY(share_out(s));
  WEFT_TRY(make_buckets(s, deadline));
  make_notes(s);
  add_exchanges(s);
  if (s->ordered) s->schedule.order();
  WEFT_TRY(bind_memory(s));
  s->in_place_slices = InPlaceSlices::make(*s);
  s->weighting = Weighting::make(*s);
  s->readiness = std::make_unique<Readiness>(s->plan);
  if (s->copy || s->devices) s->gradients.resize(s->manifest.params.size());
  add_copies(s);
  add_works(s);
  return {};
}

// Opens both lanes even if the first fails, so that the ranks of the hook's communicator keep the same lane
// numbers there too.
Status open_lanes(ReducerState* s) {
  Status opened = s->comm->open_lane(&s->lane, true);
  if (opened.ok()) listen_for_failures(s);
  if (s->hook->comm() == nullptr) return opened;
  const Status own = s->hook->comm()->open_lane(&s->hook_lane, true);
  WEFT_TRY(opened);
  return own.with_prefix(cat("the communicator of hook '", s->hook->name(), "': "));
}

void close_lanes(const ReducerState& s) {
  if (s.lane) {
    s.comm->lane_messages().ignore(s.lane->key().id);
    s.comm->close_lane(s.lane);
  }
  if (s.hook_lane) s.hook->comm()->close_lane(s.hook_lane);
}

}  // namespace

Status Reducer::create(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                       std::shared_ptr<Hook> hook, std::unique_ptr<Reducer>* reducer) {
  const CommOptions& defaults = comm->options();
  const Deadline deadline =
      Deadline::after(comm->context().clock(), defaults.init_timeout_ms, WEFT_DEFAULT_INIT_TIMEOUT_MS);
  Proposal proposal;
  Plan plan;
  const Status wish = given.ok() ? propose(options, comm->size(), hook.get(), &proposal, &plan) : given;
  const Bytes wanted = wish.ok() ? proposal.write() : Bytes();
  Agreement agreement{*comm, "create the reducer", deadline};
  agreement.opens = true;
  if (wish.ok()) agreement.beside = hook->comm().get();
  WEFT_TRY(agree_on(agreement, wish, wanted, proposal_difference));

  auto state = std::make_shared<ReducerState>();
  state->comm = comm;
  state->hook = std::move(hook);
  // Opened here, where all ranks arrive or none, so that lanes have the same numbers on all ranks.
  const Status opened = open_lanes(state.get());
  state->copy = options.mode != WEFT_GRADIENT_VIEW && !proposal.in_place;
  state->on_bucket = options.on_bucket;
  state->on_bucket_user_data = options.on_bucket_user_data;
  state->manifest = std::move(proposal.manifest);
  state->limits = proposal.limits;
  state->order = std::make_shared<ReadyOrder>(state->manifest.params.size());
  state->plan = std::move(plan);
  state->flags = proposal.flags;
  if (!state->copy) {
    state->hold = proposal.in_place ? Buckets::Hold::kInPlace : Buckets::Hold::kGradients;
  } else if ((proposal.flags & WEFT_REDUCER_ACCUMULATE_F32) != 0) {
    state->hold = Buckets::Hold::kWide;
  }
  state->retain = (proposal.flags & WEFT_REDUCER_RETAIN) != 0;
  state->learns = (proposal.flags & WEFT_REDUCER_STATIC) != 0;
  state->mapped = (proposal.flags & WEFT_REDUCER_ABSENT) != 0;
  state->uneven = (proposal.flags & WEFT_REDUCER_UNEVEN) != 0;
  state->ordered = (proposal.flags & WEFT_REDUCER_DETERMINISTIC) != 0;
  state->strays = (proposal.flags & WEFT_REDUCER_COPY_STRAYS) != 0;
  state->replan = proposal.replan;
  state->accumulation = proposal.accumulation;
  state->rules = {proposal.divide_by, (proposal.flags & WEFT_REDUCER_STOP_WHEN_EXHAUSTED) != 0};
  state->wanted = wanted;
  state->sharded = (proposal.flags & WEFT_REDUCER_SHARDED) != 0;
  state->own_whole = (proposal.flags & WEFT_REDUCER_OWN_WHOLE) != 0;
  if (state->own_whole && options.plan == nullptr) {
    state->plan = grouped_by_owner(state->manifest, state->plan, comm->size());
  }
  if ((proposal.flags & WEFT_REDUCER_NORMS) != 0)
    state->norms = std::make_shared<Norms>(state->manifest.params.size());
  if ((proposal.flags & WEFT_REDUCER_BUFFERS) != 0 || proposal.check_interval != 0) {
    state->pre_step = std::make_shared<PreStep>(state->manifest, (proposal.flags & WEFT_REDUCER_BUFFERS) != 0,
                                                proposal.buffers_root, proposal.check_interval);
  }
  agreement.opens = false;
  Status built = build_collectives(state.get(), opened, agreement);
  if (built.ok()) built = start_together(agreement, state.get(), options.plan != nullptr);
  if (!built.ok()) {
    close_lanes(*state);
    return built;
  }
  reducer->reset(new Reducer(std::move(state), options.timeout_ms));
  return {};
}

Status Reducer::build_collectives(ReducerState* state, const Status& given, const Agreement& agreement) {
  const Status built = given.ok() ? build_collectives_local(state, agreement.deadline) : given;
  ByteWriter planned;
  if (built.ok()) state->schedule.write(&planned);
  const auto difference = [&](int rank, ByteView mine, int other_rank, ByteView theirs) {
    return schedule_difference(state->manifest, state->plan, rank, mine, other_rank, theirs);
  };
  WEFT_TRY(agree_on(agreement, built, planned.bytes(), difference));
  ByteWriter whole;
  state->plan.write(&whole);
  whole.put_bytes(state->wanted).put_bytes(planned.bytes());
  state->schedule.tag(digest64(whole.bytes()));
  if ((state->flags & WEFT_REDUCER_GRAPH) != 0) return Captures::make(agreement, state, &state->captures);
  return {};
}

Reducer::Reducer(std::shared_ptr<ReducerState> state, int64_t timeout_ms)
    : state_(std::move(state)), timeout_ms_(timeout_ms) {
  Parts made = parts_for(state_);
  step_ = std::move(made.step);
  gather_ = std::move(made.gather);
  poll_step();
  for (uint64_t i = 0; i < state_->manifest.params.size(); i++) {
    if (has_bucket(i) && !state_->buckets->place(i).sparse)
      stats_.param_bytes += state_->manifest.params[i].bytes();
    has_values_ |= has_bucket(i) && state_->manifest.parameter(i) != nullptr;
  }
  history_.forget_waits(state_->comm->size());
  other_bytes_ = heap_bytes();
}

Reducer::Parts Reducer::parts_for(std::shared_ptr<ReducerState> state) {
  Parts made{state, std::make_shared<Step>(state), nullptr};
  if (state->sharded) made.gather = std::make_shared<Gather>(state);
  return made;
}

void Reducer::poll_step() {
  Engine& engine = state_->comm->context().engine();
  engine.locked([&] { state_->lane->set_flight_source(step_); });
  engine.add(step_);
  if (gather_) engine.add(gather_);
}

void Reducer::replace(std::shared_ptr<ReducerState>* next, const std::function<void(Step&)>& prepare) {
  unmake_step();
  Parts made = parts_for(*next);
  prepare(*made.step);
  {
    const std::lock_guard lock(mutex_);
    state_.swap(*next);
    step_.swap(made.step);
    gather_.swap(made.gather);
  }
  poll_step();
}

void Reducer::unmake_step() {
  Engine& engine = state_->comm->context().engine();
  engine.remove(step_.get());
  if (gather_) engine.remove(gather_.get());
}

Reducer::~Reducer() {
  (void)guarded([this] { return settle_finish(); }).ok();
  Comm& comm = *state_->comm;
  Context& context = comm.context();
  const StepWord word = state_->readiness->step();
  const bool begun = stamp_ != 0 && !word.local();
  if (begun && word.open()) {
    comm.fail(guarded([&] {
      return Status::error(Code::kCancelled,
                           cat("rank ", comm.rank(), " destroyed its reducer in ", step_text(),
                               ", which is still open: call weft_reducer_finish or weft_reducer_fail first"))
          .with_ranks({comm.rank()});
    }));
  }
  const Deadline deadline = Deadline::after(context.clock(), kDestroyTimeoutMs, 0);
  // A step that finish gave up on ends too, once its stage returns.
  const bool quiet = !begun || context.engine().wait([&] { return step_->finished(word.stamp()); }, deadline);
  // A stage that does not return keeps the memory that it uses, and the hook.
  context.engine().wait([&] { return !step_->stage_out(); }, deadline);
  bool gathered = false;
  (void)guarded_run([&] { gathered = end_gather(); }).ok();
  unmake_step();
  state_->captures.reset();
  if (!quiet || step_->stage_given_up()) {
    state_->buckets->abandon();
    state_->scratch->abandon();
  }
  if (quiet && gathered) {
    (void)guarded_run([this] { close_lanes(*state_); }).ok();  // a lane that is not reused is opened anew
  } else if (!quiet) {
    // A stage that never completes still has the step's requests. They outlive the reducer until the process
    // ends, and with them its communicator and context.
    (void)guarded_run([&] { context.keep(step_); }).ok();
  }
  if (state_->on_bucket != nullptr)
    (void)guarded([&] { return context.callbacks().drain(context.clock()); }).ok();
}

}  // namespace weft
