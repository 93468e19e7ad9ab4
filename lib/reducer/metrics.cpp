#include "reducer/metrics.h"

#include <string>

#include "comm/comm_metrics.h"
#include "reducer/report.h"

namespace weft {
namespace {

constexpr Metric kSteps = {"weft_reducer_steps_total", "counter",
                           "Steps by result: synchronised, local (not synchronised), failed and retried."};
constexpr Metric kParams = {"weft_reducer_parameter_bytes", "gauge", "Bytes of all dense gradients."};
constexpr Metric kMemory = {"weft_reducer_memory_bytes", "gauge", "Memory that the reducer holds, by part."};
constexpr Metric kBytes = {
    "weft_reducer_bytes_total", "counter",
    "Bytes of all steps by form: plain (an all-reduce without the hook), sent (with the "
    "hook's compression, at least) and reduced (in finished buckets)."};
constexpr Metric kWaited = {"weft_reducer_waited_seconds_total", "counter",
                            "Time that this rank has waited for each other rank."};
constexpr Metric kLast = {"weft_reducer_straggler_steps_total", "counter",
                          "Steps in which this rank waited longest for that rank."};
constexpr Metric kLastSeconds = {"weft_reducer_straggler_seconds_total", "counter",
                                 "Time that the straggler cost this rank in these steps."};
constexpr Metric kCopied = {"weft_reducer_copied_gradients_total", "counter",
                            "Gradients with other strides than their parameter's."};

// The times of a step, as summaries: quantiles of the last 128 synchronised steps, sum and number of all.
struct TimeMetric {
  Metric metric;
  uint64_t StepTimes::* time;
};
constexpr TimeMetric kTimes[] = {
    {{"weft_reducer_step_seconds", "summary", "Begin to the end of finish."}, &StepTimes::step_ns},
    {{"weft_reducer_compute_seconds", "summary", "Begin to the call of finish."}, &StepTimes::compute_ns},
    {{"weft_reducer_communication_seconds", "summary", "First launch to last completion."},
     &StepTimes::communication_ns},
    {{"weft_reducer_overlap_seconds", "summary", "Communication before finish was called."},
     &StepTimes::overlap_ns},
    {{"weft_reducer_exposed_seconds", "summary", "Inside finish: communication that computing did not hide."},
     &StepTimes::exposed_ns}};

void describe_history(const History& history, uint64_t steps, MetricsText* text) {
  for (const TimeMetric& each : kTimes) {
    text->add_seconds(each.metric, history.percentile(each.time, 50), {{"quantile", "0.5"}});
    text->add_seconds(each.metric, history.percentile(each.time, 90), {{"quantile", "0.9"}});
    text->add_seconds(each.metric, history.percentile(each.time, 99), {{"quantile", "0.99"}});
    text->add_seconds(each.metric, history.sum(each.time), {}, "_sum");
    text->add(each.metric, steps, {}, "_count");
  }
  for (size_t r = 0; r < history.waited().size(); r++) {
    const Waited& waited = history.waited()[r];
    const MetricLabel whom = {"for_rank", std::to_string(r)};
    text->add_seconds(kWaited, waited.ns, {whom});
    text->add(kLast, waited.last, {whom});
    text->add_seconds(kLastSeconds, waited.last_ns, {whom});
  }
}

}  // namespace

void describe_reducer(const ReducerData& r, uint64_t number, MetricsText* text) {
  const Parts at = parts_of(r);
  weft_reducer_stats stats{};
  query_stats(r, &stats);
  std::vector<MetricLabel> labels = comm_labels(*at.state->comm);
  labels.push_back({"reducer", std::to_string(number)});
  labels.push_back({"hook", at.state->hook->name()});
  text->set_labels(std::move(labels));
  text->add(kParams, stats.param_bytes);
  text->add(kMemory, stats.bucket_bytes, {{"part", "buckets"}});
  text->add(kMemory, stats.scratch_bytes, {{"part", "scratch"}});
  text->add(kMemory, stats.retained_bytes, {{"part", "retained"}});
  text->add(kMemory, stats.hook_bytes, {{"part", "hook"}});
  text->add(kMemory, stats.other_bytes, {{"part", "other"}});
  text->add(kBytes, stats.plain_bytes, {{"form", "plain"}});
  text->add(kBytes, stats.sent_bytes, {{"form", "sent"}});
  text->add(kBytes, stats.bytes_reduced, {{"form", "reduced"}});
  text->add(kCopied, stats.copied_gradients);
  r.statistics.locked([&](const Statistics::Values& v) {
    text->add(kSteps, v.stats.steps, {{"result", "synchronised"}});
    text->add(kSteps, v.stats.local_steps, {{"result", "local"}});
    text->add(kSteps, v.stats.failed_steps, {{"result", "failed"}});
    text->add(kSteps, v.retries, {{"result", "retried"}});
    describe_history(v.history, v.stats.steps, text);
  });
}

}  // namespace weft
