#include "reducer/program.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/guard.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/features.h"
#include "reducer/recover/step_failures.h"
#include "reducer/report.h"
#include "reducer/step/hook_plan.h"
#include "reducer/values/chunks.h"

namespace weft {
namespace {

// Asks the hook for its plan of each bucket, and starts the thread for its stages.
Status schedule_hook(ReducerState* s, Deadline deadline) {
  Context& context = s->comm->context();
  const auto is_sparse = [](const Param& param) { return param.sparse(); };
  if (!s->sparse && std::any_of(s->manifest.params.begin(), s->manifest.params.end(), is_sparse)) {
    s->sparse = std::make_shared<SparseGradients>(s->manifest, context.options().host_allocator);
  }
  s->views = make_views(*s);
  s->worker =
      context.engine().mode() == Engine::Mode::kThread && s->hook->stage_kind() != StageKind::kNothing;
  if (s->worker) WEFT_TRY(context.stages().start());
  return with_turn(context, *s->hook, deadline, [&] {
    Status made = make_schedule(*s->hook, s->manifest, s->plan, s->views.get(), &s->schedule);
    s->hook_bytes = s->hook->memory_bytes();
    return made;
  });
}

// Lets a sharded reducer's collectives give owners the results of their slices alone, unless the hook does,
// and allocates memory in which values are packed.
Status share_out(ReducerState* s) {
  if (!s->hook->takes_shares()) part(*s->ownership, s->comm->rank(), &s->schedule);
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
    WEFT_TRY(Buckets::make(s->manifest, s->plan, s->hold, s->comm->collectives().arena(),
                           s->has(WEFT_REDUCER_RETAIN), context.options().host_allocator, s->reach,
                           &s->buckets));
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
  if (!s->uses && (s->has(WEFT_REDUCER_STATIC) || !s->manifest.uses.empty())) {
    std::vector<uint32_t> uses = s->manifest.uses;
    uses.resize(params, 1);
    s->uses = std::make_shared<Uses>(std::move(uses), s->has(WEFT_REDUCER_STATIC));
  }
  if (s->copy && !s->given) s->given = std::make_shared<GivenLayouts>(params);
  if (!s->presence) s->presence = std::make_shared<Presence>(params, s->has(WEFT_REDUCER_ABSENT));
  if (!s->ready_ns) s->ready_ns = std::make_shared<std::vector<std::atomic<uint64_t>>>(params);
}

// Binds collectives and stages to the memory of the buckets and their scratch.
Status bind_memory(ReducerState* s) {
  WEFT_TRY(s->comm->reach(FailPlace::kMemory, 2));
  mark_narrow_copies(s);
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
Status build_local(ReducerState* s, Deadline deadline) {
  if (s->reach.accelerator == nullptr) WEFT_TRY(find_devices(s->comm->context(), s->manifest, &s->reach));
  if (s->has(WEFT_REDUCER_SHARDED)) {
    s->ownership =
        std::make_unique<Ownership>(s->manifest, s->plan, s->comm->size(), s->has(WEFT_REDUCER_OWN_WHOLE));
  }
  WEFT_TRY(schedule_hook(s, deadline));
  s->touches_contributions = touches_contributions(*s);
  if (s->has(WEFT_REDUCER_SHARDED)) WEFT_TRY(share_out(s));
  WEFT_TRY(make_buckets(s, deadline));
  make_notes(s);
  add_exchanges(s);
  if (s->has(WEFT_REDUCER_DETERMINISTIC)) s->schedule.order();
  WEFT_TRY(bind_memory(s));
  s->readiness = std::make_unique<Readiness>(s->plan);
  if (s->copy || s->devices) s->gradients.resize(s->manifest.params.size());
  add_copies(s);
  add_works(s);
  add_stages(s);
  return {};
}

Parts make_parts(std::shared_ptr<ReducerState> state) {
  Parts made{state, std::make_shared<Step>(state), nullptr};
  if (state->has(WEFT_REDUCER_SHARDED)) made.gather = std::make_shared<Gather>(state);
  return made;
}

}  // namespace

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

Status build_program(ReducerState* state, const Status& given, const Agreement& agreement) {
  const Status built = given.ok() ? build_local(state, agreement.deadline) : given;
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
  if (state->has(WEFT_REDUCER_GRAPH)) return Captures::make(agreement, state, &state->captures);
  return {};
}

void install_program(ReducerData& r, std::shared_ptr<ReducerState> state) {
  Parts made = make_parts(std::move(state));
  r.state = std::move(made.state);
  r.step = std::move(made.step);
  r.gather = std::move(made.gather);
  const ReducerState& s = *r.state;
  uint64_t param_bytes = 0;
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(s, i)) continue;
    if (!s.buckets->place(i).sparse) param_bytes += s.manifest.params[i].bytes();
    r.gathering.has_values |= s.manifest.parameter(i) != nullptr;
  }
  r.statistics.locked([&](Statistics::Values& v) {
    v.stats.param_bytes = param_bytes;
    v.history.forget_waits(s.comm->size());
  });
  note_heap_bytes(r);
}

void start_polling(ReducerData& r) {
  Engine& engine = r.state->comm->context().engine();
  engine.add(r.step);
  // The engine keeps what it polls, and with that all that the reducer uses.
  const Status gathers = guarded_run([&] {
    if (r.gather) engine.add(r.gather);
  });
  if (!gathers.ok()) {
    engine.remove(r.step.get());
    throw std::bad_alloc();
  }
  engine.locked([&] { r.state->lane->set_flight_source(r.step); });
}

void replace_program(ReducerData& r, std::shared_ptr<ReducerState>* next,
                     const std::function<void(Step&)>& prepare) {
  stop_polling(r);
  Parts made = make_parts(*next);
  prepare(*made.step);
  {
    const std::lock_guard lock(r.mutex);
    r.state.swap(*next);
    r.step.swap(made.step);
    r.gather.swap(made.gather);
  }
  start_polling(r);
}

void stop_polling(ReducerData& r) {
  Engine& engine = r.state->comm->context().engine();
  engine.remove(r.step.get());
  if (r.gather) engine.remove(r.gather.get());
}

}  // namespace weft
