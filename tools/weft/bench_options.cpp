#include "bench_options.h"

#include <algorithm>
#include <stdexcept>

#include "compare.h"
#include "names.h"

namespace {

constexpr char kFooter[] =
    "OP: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all, "
    "send_recv\n"
    "(a round trip), barrier, step (a gradient step of a manifest's parameters), ready (what handing "
    "over\n"
    "a gradient costs without its copy, and what many tiny parameters do), or launches (--total bytes as\n"
    "tensors of --sizes, all launched, waited for once).\n"
    "Before every timed call each rank writes its buffers anew and all meet in a barrier; the time is that "
    "of\n"
    "the slowest rank. Results are checked in the first and the last call; a wrong one is exit code 1.";

// Adds the options that select the measurement and its data.
void add_subject(CLI::App& bench, BenchOptions& options) {
  bench.add_option("OP", options.ops, "what to measure");
  bench.add_option("-n,--ranks", options.ranks, "number of local processes, default 2")
      ->check(CLI::Range(1, 4096));
  bench.add_option("--backend", options.backend, "default: the best available");
  bench
      .add_option_function<std::string>(
          "--memory", [&options](const std::string& memory) { options.arena = memory == "arena"; },
          "where buffers lie: arena (default) or private")
      ->check(CLI::IsMember({"arena", "private"}));
  bench.add_option("--dtype", options.dtype, "default f32");
  bench.add_option("--op", options.op, "reduction, default sum");
  bench
      .add_option("--sizes", options.sizes,
                  "bytes, divided by commas: 8,64K,4M. The larger buffer of the call")
      ->delimiter(',');
  bench.add_option("--total", options.total, "of launches: bytes in all, default 240000000");
}

// Adds the options of gradient steps.
void add_step(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--manifest", options.manifests, "JSON file of parameters, for step")
      ->check(CLI::ExistingFile);
  bench
      .add_option_function<std::string>(
          "--mode",
          [&options](const std::string& mode) {
            options.view_mode = mode != "copy";
            options.reduced_views = mode == "reduced";
          },
          "gradients of step: copy (default), view, or reduced: views whose results stay with their owners, "
          "where the others read them")
      ->check(CLI::IsMember({"copy", "view", "reduced"}));
  bench.add_option("--hook", options.hook,
                   "of step: a hook and its options, such as 'powersgd rank=4 start=2'; default allreduce");
  bench
      .add_option("--reduce-dtype", options.reduce_dtype,
                  "of step: the type in which its f32 gradients travel and are added up; default their own")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  bench
      .add_option(
          "--replay", options.replay,
          "of step: gradients become ready as in the backward recorded beside the manifest, in so many "
          "times its time; what is exposed is said")
      ->check(CLI::PositiveNumber);
  bench
      .add_flag(
          "--compute", options.compute,
          "of step with --replay: the rank's core computes until a gradient is ready, instead of sleeping "
          "as if an accelerator computed; what communication takes of the core is exposed too")
      ->needs("--replay");
  bench
      .add_option("--replan", options.replan,
                  "of step: buckets in the order of readiness of the first step, by their limits, by the "
                  "model, or by "
                  "the model and what is needed first before the others")
      ->check(CLI::IsMember({"limits", "model", "first-needed"}));
  bench
      .add_option("--bucket-limits", options.bucket_limits,
                  "of step: bytes at which buckets close, divided by commas; the last repeats, 0 is one "
                  "parameter a bucket")
      ->delimiter(',');
  bench
      .add_option("--accumulate", options.accumulate,
                  "of step: a measurement is so many steps, of which the last one synchronises; default 1")
      ->check(CLI::Range(1, 1024));
}

// Adds the options for repetitions and processes.
void add_processes(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--iterations", options.iterations, "timed calls a size; default: 20 to 5000, by size");
  bench.add_option("--warmup", options.warmup, "calls before them, default 3")->check(CLI::Range(1, 1000000));
  bench.add_flag("!--no-pin", options.pin, "do not bind ranks to cores");
  bench
      .add_option("--repeat", options.repeat,
                  "start the ranks so many times, one set of processes after the other, default 1: whole "
                  "processes differ by more than the calls in one. Medians are those of the processes' "
                  "medians")
      ->check(CLI::Range(1, static_cast<int>(kMostRepeats)));
  bench.add_option("--into", options.into)->group("");
  bench.add_flag("--joined", options.joined, "this process is a rank already (started by mpirun, srun, ...)");
  bench.add_flag("--count-system-calls", options.count_system_calls,
                 "write to --json how many system calls a call makes, but those of waiting. The ranks are "
                 "traced meanwhile: times mean nothing");
}

// Adds the options of reports and comparisons.
void add_reports(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--json", options.json, "also write the results to this file");
  bench.add_option("--trace", options.trace,
                   "each rank writes what it did last to TEXT.rank0.json and so on, a Chrome trace, which "
                   "Perfetto opens; costs some time");
  bench
      .add_option(
          "--check", options.baseline,
          "what --json wrote in an earlier run: say what has become slower, or counts more page faults, "
          "allocations, system calls or moved bytes; then the exit code is 1")
      ->check(CLI::ExistingFile);
  bench
      .add_option(
          "--against", options.against,
          "another weft command, such as one built before a change: its ranks and these are started by "
          "turns, --repeat times each, and compared as --check does")
      ->check(CLI::ExistingFile)
      ->excludes("--check");
  bench
      .add_option("--tolerance", options.tolerance,
                  "of --check and --against: a median may grow by this part, default 0.1")
      ->check(CLI::Range(0.0, 10.0));
}

void check_repeat(const BenchOptions& options) {
  if ((options.repeat == 1 && options.against.empty()) || !options.into.empty()) return;
  if (options.joined) {
    throw std::invalid_argument(
        "--joined: whoever started these ranks must start them anew, so there is no --repeat and no "
        "--against; "
        "start the job several times, or let weft bench start the ranks");
  }
  if (!options.trace.empty()) {
    throw std::invalid_argument("--trace keeps what one set of ranks did: no --repeat and no --against");
  }
}

}  // namespace

void add_bench_options(CLI::App& bench, BenchOptions& options) {
  options.sizes = {"8", "4K", "64K", "1M", "4M", "16M", "64M"};
  bench.footer(kFooter);
  add_subject(bench, options);
  add_step(bench, options);
  add_processes(bench, options);
  add_reports(bench, options);
}

// Reports bad options before processes are started.
void check_options(const BenchOptions& options) {
  parse_dtype(options.dtype);
  parse_op(options.op);
  for (const std::string& size : options.sizes) parse_bytes(size);
  for (const std::string& limit : options.bucket_limits) parse_bytes(limit);
  if (options.op == "premul_sum" && std::count(options.ops.begin(), options.ops.end(), "launches") > 0) {
    throw std::invalid_argument("bench launches has no factor for premul_sum");
  }
  parse_bytes(options.total);
  check_repeat(options);
  if (options.reduced_views && options.accumulate > 1) {
    throw std::invalid_argument("--mode reduced measures single steps: no --accumulate");
  }
  if (!options.baseline.empty()) Baseline(options.baseline);  // throws
  for (const std::string& op : options.ops) {
    if (op != "step" && op != "ready" && op != "launches") check_collective(op);
    if (op == "step" && options.manifests.empty()) {
      throw std::invalid_argument("bench step needs --manifest FILE; see bench/manifests");
    }
  }
}
