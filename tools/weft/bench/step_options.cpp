#include "step_options.h"

#include <CLI/CLI.hpp>

#include "names.h"
#include "weft/option_checks.h"

void StepOptions::add_to(CLI::App& bench) {
  bench.add_option("--manifest", manifests, "for step: JSON file of the parameters, see bench/manifests")
      ->check(CLI::ExistingFile);
  bench
      .add_option_function<std::string>(
          "--mode", [this](const std::string& mode) { view_mode = mode == "view"; },
          "for step, memory of the gradients: copy (default) or view")
      ->check(CLI::IsMember({"copy", "view"}));
  bench.add_option("--hook", hook,
                   "for step: a hook and its options, such as 'powersgd rank=4 start=2'; default allreduce");
  bench
      .add_option("--reduce-dtype", reduce_dtype,
                  "for step: the type in which f32 gradients are sent and summed, default f32")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  bench
      .add_option(
          "--replay", replay,
          "for step: gradients become ready as in the backward recorded beside the manifest, whose times are "
          "multiplied by this factor; exposed communication time is reported")
      ->check(number_from(1e-6, 1e6));
  bench
      .add_flag(
          "--compute", compute,
          "for step with --replay: the rank's core computes until a gradient is ready, instead of sleeping "
          "as if an accelerator computed; time that communication takes from the core is exposed too")
      ->needs("--replay");
  bench
      .add_option("--replan", replan,
                  "for step: re-plan the buckets in the order of readiness of the first step: by limits, or "
                  "by the cost model")
      ->check(CLI::IsMember({"limits", "model"}));
  bench
      .add_option(
          "--bucket-limits", bucket_limits,
          "for step: bytes at which buckets close, separated by commas; the last one repeats, 0 means "
          "one parameter per bucket")
      ->delimiter(',');
  bench
      .add_option(
          "--accumulate", accumulate,
          "for step: number of steps per measurement, of which only the last one synchronises; default 1")
      ->check(CLI::Range(1, 1024));
}

void StepOptions::check() const {
  for (const std::string& limit : bucket_limits) parse_bytes(limit);
}

std::string StepOptions::details(bool has_another_plan) const {
  std::string text = view_mode ? "view" : "copy";
  text += " mode";
  if (accumulate != 1) text += ", " + std::to_string(accumulate) + " steps";
  if (!replan.empty()) text += (has_another_plan ? ", re-planned by " : ", as before by ") + replan;
  if (replay > 0) text += compute ? ", computed" : ", replayed";
  if (!reduce_dtype.empty()) text += ", travelling as " + reduce_dtype;
  if (!hook.empty()) text += ", hook " + hook;
  return text;
}
