#include "reducer/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "reducer/calls/read.h"
#include "reducer/options.h"
#include "reducer/program_report.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kPercents[] = {50, 90, 99};

struct NamedTime {
  const char* name;
  uint64_t StepTimes::* time;
};
constexpr NamedTime kNamedTimes[] = {{"step", &StepTimes::step_ns},
                                     {"compute", &StepTimes::compute_ns},
                                     {"communication", &StepTimes::communication_ns},
                                     {"overlap", &StepTimes::overlap_ns},
                                     {"exposed", &StepTimes::exposed_ns}};

Json option_json(const ShownOption& option) {
  return std::visit(
      [](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          return Json();
        } else {
          return Json(value);
        }
      },
      option);
}

// Returns the options of the reducer, and what it is made of.
Json setting_json(const ReducerState& s, const weft_reducer_stats& stats) {
  Json dtypes = Json::array();
  for (const PlannedBucket& bucket : s.plan.buckets) {
    const std::string text = name(bucket.dtype);
    if (std::find(dtypes.begin(), dtypes.end(), text) == dtypes.end()) dtypes.push_back(text);
  }
  Json json = {{"rank", s.comm->rank()},
               {"ranks", s.comm->size()},
               {"backend", s.comm->collectives().name()},
               {"transports", s.comm->collectives().transports()},
               {"hook", s.hook->name()}};
  for (const auto& [name, value] : shown_options(s.options)) json[name] = option_json(value);
  json["bucket_limits"] = s.limits;
  json["parameters"] = s.manifest.params.size();
  json["parameter_bytes"] = stats.param_bytes;
  json["dtypes"] = dtypes;
  json["devices"] = s.manifest.devices;
  json["plan_generation"] = stats.plan_generation;
  return json;
}

Json last_step_json(const weft_reducer_stats& stats, const std::vector<uint64_t>& waited_ns,
                    const ReadyOrder& order) {
  Json json{{"step_ns", stats.step_ns},
            {"compute_ns", stats.compute_ns},
            {"communication_ns", stats.communication_ns},
            {"overlap_ns", stats.overlap_ns},
            {"exposed_ns", stats.exposed_ns},
            {"divisor", stats.divisor},
            {"active_ranks", stats.active_ranks},
            {"first_active", stats.first_active},
            {"last_active", stats.last_active},
            {"absent_parameters", stats.absent_params},
            {"absent_everywhere", stats.absent_everywhere},
            {"absent_bytes", stats.absent_bytes},
            {"skipped_buckets", stats.skipped_buckets},
            {"hook_error", stats.hook_error},
            {"hook_error_bucket", stats.hook_error_bucket},
            {"straggler", stats.straggler},
            {"straggler_ns", stats.straggler_ns},
            {"waited_ns", waited_ns}};
  if (order.noted()) {
    json["ready_order"] = order.params();
    Json& times = json["ready_times_ns"] = Json::array();
    for (const uint64_t ns : order.times()) times.push_back(ns == kNeverReady ? Json() : Json(ns));
  }
  return json;
}

Json means_json(const History& history) {
  Json json;
  for (const NamedTime& named : kNamedTimes) json[named.name] = history.mean(named.time);
  return json;
}

Json percentiles_json(const History& history) {
  Json json{{"steps", history.recent()}};
  for (const NamedTime& named : kNamedTimes) {
    for (const uint64_t percent : kPercents) {
      json[named.name][std::to_string(percent)] = history.percentile(named.time, percent);
    }
  }
  return json;
}

Json waits_json(const History& history) {
  Json json = Json::array();
  for (size_t r = 0; r < history.waited().size(); r++) {
    const Waited& waited = history.waited()[r];
    json.push_back({{"rank", r},
                    {"waited_ns", waited.ns},
                    {"steps_last", waited.last},
                    {"steps_last_ns", waited.last_ns}});
  }
  return json;
}

// Returns "rank 3 was last in 94 % of 500 steps, by 41.0 ms on average", and the numbers in it.
Json straggler_json(const History& history) {
  const int rank = history.steady_straggler();
  if (rank < 0) return nullptr;
  const Waited& waited = history.waited()[static_cast<size_t>(rank)];
  const uint64_t mean_ns = waited.last_ns / waited.last;
  const uint64_t percent = (200 * waited.last / history.waited_steps() + 1) / 2;
  char time[40];
  std::snprintf(time, sizeof time, "%.*f ms", mean_ns < 1'000'000 ? 3 : 1,
                static_cast<double>(mean_ns) / 1e6);
  return {{"rank", rank},
          {"steps", waited.last},
          {"of_steps", history.waited_steps()},
          {"mean_ns", mean_ns},
          {"text", cat("rank ", rank, " was last in ", percent, " % of ", history.waited_steps(),
                       " steps, by ", time, " on average")}};
}

Json bytes_json(const weft_reducer_stats& stats, const CollectiveCounters& moved) {
  return {{"reduced", stats.bytes_reduced},
          {"sent", stats.sent_bytes},
          {"plain", stats.plain_bytes},
          {"communicator",
           {{"shared", moved.bytes_shared},
            {"direct", moved.bytes_direct},
            {"sent", moved.bytes_sent},
            {"received", moved.bytes_received}}}};
}

Json bucket_json(const PlannedBucket& planned, uint64_t bytes, const Step::Times& times, uint64_t begin_ns) {
  const auto between = [](uint64_t from_ns, uint64_t to_ns) {
    return from_ns != 0 && to_ns > from_ns ? to_ns - from_ns : 0;
  };
  return {{"dtype", name(planned.dtype)},
          {"parameters", planned.params},
          {"sparse", planned.sparse},
          {"bytes", bytes},
          {"limit_bytes", planned.limit_bytes},
          {"ready_ns", between(begin_ns, times.ready_ns)},
          {"launch_ns", between(begin_ns, times.launch_ns)},
          {"done_ns", between(begin_ns, times.done_ns)},
          {"wait_ns", between(times.ready_ns, times.launch_ns)},
          {"transfer_ns", times.transfer_ns},
          {"sent_bytes", times.sent_bytes},
          {"absent_parameters", times.absent},
          {"skipped", times.skipped},
          {"hook_error", times.error_memory ? Json(times.error_memory->ratio) : Json()}};
}

uint64_t device_bytes(const ReducerState& s) {
  return (s.devices ? s.devices->memory_bytes() : 0) +
         (s.views_on_devices ? s.views_on_devices->bytes() : 0) +
         (s.device_buckets ? s.device_buckets->bytes() : 0) + (s.captures ? s.captures->memory_bytes() : 0);
}

std::vector<std::pair<const char*, uint64_t>> heap_parts(const ReducerData& r) {
  const ReducerState& s = *r.state;
  uint64_t plan = s.plan.bucket_of.capacity() * sizeof(uint32_t) +
                  s.plan.offset_of.capacity() * sizeof(uint64_t) +
                  s.plan.buckets.capacity() * sizeof(PlannedBucket) + s.limits.capacity() * sizeof(uint64_t);
  for (const PlannedBucket& b : s.plan.buckets) {
    plan += b.params.capacity() * sizeof(uint32_t) + b.offsets.capacity() * sizeof(uint64_t);
  }
  uint64_t manifest = s.manifest.uses.capacity() * sizeof(uint32_t) + s.wanted.capacity() +
                      s.manifest.homes.capacity() * sizeof s.manifest.homes[0];
  for (const Param& p : s.manifest.params) {
    manifest += sizeof p + p.name.capacity() + (p.shape.capacity() + p.strides.capacity()) * sizeof(int64_t);
  }
  const uint64_t waits =
      r.statistics.locked([](const Statistics::Values& v) { return v.history.memory_bytes(); });
  return {{"reducer", sizeof r + sizeof s + waits},
          {"manifest", manifest},
          {"plan", plan},
          {"places", s.buckets->memory_bytes()},
          {"hook_views", s.views->memory_bytes()},
          {"schedule",
           s.schedule.slots.capacity() * sizeof(Slot) + s.schedule.buckets.capacity() * sizeof(HookedBucket)},
          {"readiness", s.readiness->memory_bytes() + s.ready_ns->size() * sizeof(uint64_t)},
          {"presence", s.presence->memory_bytes()},
          {"copies", s.copy_ins.memory_bytes() + (s.copy_factor ? s.copy_factor->memory_bytes() : 0) +
                         (s.input_parts ? s.input_parts->memory_bytes() : 0)},
          {"uses", s.uses ? s.uses->memory_bytes() : 0},
          {"given_layouts", s.given ? s.given->memory_bytes() : 0},
          {"ready_order", s.order->memory_bytes()},
          {"gradients", s.gradients.capacity() * sizeof(std::byte*)},
          {"ownership", s.ownership ? s.ownership->memory_bytes() : 0},
          {"norms", s.norms ? s.norms->memory_bytes() : 0},
          {"prelude", s.pre_step ? s.pre_step->memory_bytes() : 0},
          {"step", r.step->memory_bytes() + (r.gather ? r.gather->memory_bytes() : 0)},
          {"flight", FlightRing::kCapacity * sizeof(FlightOperation)}};
}

std::vector<std::pair<const char*, uint64_t>> memory_parts(const ReducerData& r) {
  std::vector<std::pair<const char*, uint64_t>> parts = heap_parts(r);
  parts.insert(parts.begin(), {{"buckets", r.state->buckets->bucket_bytes()},
                               {"hook_scratch", r.state->scratch->bytes()},
                               {"gather", r.state->staging ? r.state->staging->bytes() : 0},
                               {"hook_state", r.state->hook_bytes},
                               {"retained", r.state->buckets->retained_bytes()},
                               {"devices", device_bytes(*r.state)},
                               {"sparse", r.state->sparse ? r.state->sparse->memory_bytes() : 0},
                               {"messages", r.state->lane_bytes()}});
  return parts;
}

}  // namespace

void query_stats(const ReducerData& r, weft_reducer_stats* stats) {
  const Parts at = parts_of(r);
  const ReducerState& s = *at.state;
  r.statistics.locked([&](const Statistics::Values& v) {
    *stats = v.stats;
    stats->other_bytes = v.other_bytes;
    stats->mean_step_ns = v.history.mean(&StepTimes::step_ns);
    stats->mean_compute_ns = v.history.mean(&StepTimes::compute_ns);
    stats->mean_communication_ns = v.history.mean(&StepTimes::communication_ns);
    stats->mean_overlap_ns = v.history.mean(&StepTimes::overlap_ns);
    stats->mean_exposed_ns = v.history.mean(&StepTimes::exposed_ns);
    stats->step_p50_ns = v.history.percentile(&StepTimes::step_ns, 50);
    stats->step_p99_ns = v.history.percentile(&StepTimes::step_ns, 99);
    stats->exposed_p50_ns = v.history.percentile(&StepTimes::exposed_ns, 50);
    stats->exposed_p99_ns = v.history.percentile(&StepTimes::exposed_ns, 99);
    stats->straggler = v.history.straggler().rank;
    stats->straggler_ns = v.history.straggler().ns;
  });
  stats->struct_size = sizeof *stats;
  stats->bucket_bytes = s.buckets->bucket_bytes();
  stats->scratch_bytes = s.scratch->bytes() + (s.staging ? s.staging->bytes() : 0);
  stats->retained_bytes = s.buckets->retained_bytes();
  stats->other_bytes += device_bytes(s) + (s.sparse ? s.sparse->memory_bytes() : 0) + s.lane_bytes();
  stats->hook_bytes = s.hook_bytes;
  stats->copied_gradients = r.statistics.copied_gradients();
  if (const Captures* const captures = s.captures.get(); captures != nullptr) {
    stats->captures = captures->captures();
    stats->launches = captures->launches();
    stats->replays = captures->replays();
  }
}

std::string report_json(const ReducerData& r) {
  const ReducerState& s = *r.state;
  weft_reducer_stats stats{};
  query_stats(r, &stats);
  Json json;
  json["reducer"] = setting_json(s, stats);
  json["steps"] = {
      {"synchronised", stats.steps}, {"local", stats.local_steps}, {"failed", stats.failed_steps}};
  // A step that was given up may still run.
  json["last_step"] = last_step_json(
      stats, r.step->finished(r.program.synchronised) ? r.step->waits().waited_ns() : std::vector<uint64_t>(),
      *s.order);
  json["bytes"] = bytes_json(stats, s.comm->collectives().counters());
  Json& buckets = json["buckets"] = Json::array();
  for (uint32_t b = 0; b < bucket_count(s); b++) {
    buckets.push_back(
        bucket_json(s.plan.buckets[b], reduced_bytes(s, b), times_of(r, b), r.program.start.begin_ns));
  }
  json["program"] = program_json(s);
  Json& memory = json["memory"] = Json::object();
  for (const auto& [what, bytes] : memory_parts(r)) memory[what] = bytes;
  // Allocated only during a re-plan.
  json["replan"] = {{"scratch_bytes", s.buckets->longest_bytes()}};
  r.statistics.locked([&](const Statistics::Values& v) {
    json["reducer"]["plan_kept"] = v.plan_kept.empty() ? Json() : Json(v.plan_kept);
    json["steps"]["same_pattern"] = v.history.same_pattern();
    json["mean_ns"] = means_json(v.history);
    json["percentiles_ns"] = percentiles_json(v.history);
    json["ranks"] = waits_json(v.history);
    json["straggler"] = straggler_json(v.history);
    if (!v.last_error.ok())
      json["error"] = {{"code", code_name(v.last_error.code())}, {"text", v.last_error.text()}};
  });
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

void note_heap_bytes(ReducerData& r) {
  uint64_t bytes = 0;
  for (const auto& [what, held] : heap_parts(r)) bytes += held;
  r.statistics.locked([&](Statistics::Values& v) { v.other_bytes = bytes; });
}

}  // namespace weft
