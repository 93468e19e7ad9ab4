#include "bench_options.h"

#include <algorithm>
#include <stdexcept>

#include "compare.h"
#include "names.h"

namespace {

constexpr char kFooter[] =
    "OP: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all, "
    "send_recv\n"
    "(a round trip), barrier, step (a gradient step of a manifest's parameters), or ready (the cost of\n"
    "reporting a gradient ready without its copy, and the cost of many tiny parameters).\n"
    "Before every timed call each rank writes its buffers anew and enters a barrier; the time is that of\n"
    "the slowest rank. Results are checked in the first and the last call; a wrong result gives exit code "
    "1.";

// Adds the options that select the measurement and its data.
void add_subject(CLI::App& bench, BenchOptions& options) {
  bench.add_option("OP", options.ops, "operations to measure, see below");
  bench.add_option("-n,--ranks", options.ranks, "number of local processes, default 2")
      ->check(CLI::Range(1, 4096));
  bench.add_option("--backend", options.backend, "name of the backend, default: the best available");
  bench
      .add_option_function<std::string>(
          "--memory", [&options](const std::string& memory) { options.arena = memory == "arena"; },
          "memory of the buffers: arena (default) or private")
      ->check(CLI::IsMember({"arena", "private"}));
  bench.add_option("--dtype", options.dtype, "element type, default f32");
  bench.add_option("--op", options.op, "reduction, default sum");
  bench
      .add_option("--sizes", options.sizes,
                  "bytes of the call's larger buffer, separated by commas: 8,64K,4M")
      ->delimiter(',');
}

// Adds the options for repetitions and processes.
void add_processes(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--iterations", options.iterations, "timed calls per size; default: 20 to 5000, by size");
  bench.add_option("--warmup", options.warmup, "calls before the timed ones, default 3")
      ->check(CLI::Range(1, 1000000));
  bench.add_flag("!--no-pin", options.pin, "do not bind ranks to cores");
  bench
      .add_option("--repeat", options.repeat,
                  "number of times to start the ranks, one set after the other, default 1: times differ more "
                  "between processes than between calls of one process. Reported medians are medians of the "
                  "processes' medians")
      ->check(CLI::Range(1, static_cast<int>(kMostRepeats)));
  bench.add_option("--into", options.into)->group("");
  bench.add_flag("--joined", options.joined, "this process is a rank already (started by mpirun, srun, ...)");
  bench.add_flag(
      "--count-system-calls", options.count_system_calls,
      "write to --json the number of system calls per call, without those of waiting. The ranks are "
      "traced meanwhile, so times are meaningless");
}

// Adds the options of reports and comparisons.
void add_reports(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--json", options.json, "also write the results to this file");
  bench.add_option(
      "--trace", options.trace,
      "each rank writes its latest operations to TEXT.rank0.json and so on, as a Chrome trace for "
      "Perfetto; costs some time");
  bench
      .add_option(
          "--check", options.baseline,
          "a file that --json wrote in an earlier run: report what is slower now, or has more page faults, "
          "allocations, system calls or moved bytes; then the exit code is 1")
      ->check(CLI::ExistingFile);
  bench
      .add_option(
          "--against", options.against,
          "another weft command, such as one built before a change: its ranks and these run interleaved, "
          "--repeat times each, and are compared as by --check")
      ->check(CLI::ExistingFile)
      ->excludes("--check");
  bench
      .add_option("--tolerance", options.tolerance,
                  "for --check and --against: relative increase of a median that is allowed, default 0.1")
      ->check(CLI::Range(0.0, 10.0));
}

void check_repeat(const BenchOptions& options) {
  if ((options.repeat == 1 && options.against.empty()) || !options.into.empty()) return;
  if (options.joined) {
    throw std::invalid_argument(
        "--joined excludes --repeat and --against, because another program started these ranks: start the "
        "job several times, or let weft bench start the ranks");
  }
  if (!options.trace.empty()) {
    throw std::invalid_argument("--trace excludes --repeat and --against: it records one set of ranks");
  }
}

}  // namespace

void add_bench_options(CLI::App& bench, BenchOptions& options) {
  options.sizes = {"8", "4K", "64K", "1M", "4M", "16M", "64M"};
  bench.footer(kFooter);
  add_subject(bench, options);
  options.step.add_to(bench);
  add_processes(bench, options);
  add_reports(bench, options);
}

// Reports bad options before processes are started.
void check_options(const BenchOptions& options) {
  parse_dtype(options.dtype);
  parse_op(options.op);
  for (const std::string& size : options.sizes) parse_bytes(size);
  options.step.check();
  check_repeat(options);
  if (!options.baseline.empty()) Baseline(options.baseline);  // throws
  for (const std::string& op : options.ops) {
    if (op != "step" && op != "ready") check_collective(op);
    if (op == "step" && options.step.manifests.empty()) {
      throw std::invalid_argument("weft bench step needs --manifest FILE; examples are in bench/manifests");
    }
  }
}
