#include "bench_options.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "coll/select.h"
#include "compare.h"
#include "names.h"
#include "plot.h"
#include "weft/option_checks.h"

namespace {

constexpr char kFooter[] =
    "Several benchmarks may be given: weft bench all_reduce barrier --sizes 8,64K\n"
    "Before every timed call each rank writes its buffers anew and enters a barrier; the time is that of\n"
    "the slowest rank. Results are checked in the first and the last call; a wrong result gives exit code "
    "1.";

struct Benchmark {
  enum class Kind { kReduces, kMoves, kNoData, kStep };
  const char* name;
  const char* about;
  Kind kind;
};

constexpr Benchmark kBenchmarks[] = {
    {"all_reduce", "Reduce the ranks' buffers, for all ranks", Benchmark::Kind::kReduces},
    {"reduce", "Reduce the ranks' buffers, for rank 0", Benchmark::Kind::kReduces},
    {"reduce_scatter", "Reduce the ranks' buffers, a block for each rank", Benchmark::Kind::kReduces},
    {"broadcast", "Copy rank 0's buffer to all ranks", Benchmark::Kind::kMoves},
    {"all_gather", "Collect a block of each rank, on all ranks", Benchmark::Kind::kMoves},
    {"gather", "Collect a block of each rank, on rank 0", Benchmark::Kind::kMoves},
    {"scatter", "Send a block to each rank, from rank 0", Benchmark::Kind::kMoves},
    {"all_to_all", "Send a block to each rank, from all ranks", Benchmark::Kind::kMoves},
    {"send_recv", "Send a buffer from rank 0 to rank 1 and back", Benchmark::Kind::kMoves},
    {"barrier", "Wait for all ranks", Benchmark::Kind::kNoData},
    {"step", "Synchronise the gradients of a list of parameters", Benchmark::Kind::kStep},
    {"ready", "Report gradients ready without their copy, and many tiny parameters",
     Benchmark::Kind::kNoData},
};

void add_ranks(CLI::App& bench, BenchOptions& options) {
  bench.add_option("-n,--ranks", options.ranks, "number of local processes, default 2")
      ->check(CLI::Range(1, 4096));
  bench.add_option("--backend", options.backend, "name of the backend, default: the best available");
}

// Adds the options of the buffers of a collective.
void add_buffers(CLI::App& bench, BenchOptions& options) {
  bench
      .add_option("--memory", options.memory,
                  "memory of the buffers: arena (default), private, or cuda: of a device for each rank")
      ->check(CLI::IsMember({"arena", "private", "cuda"}));
  bench.add_option("--dtype", options.dtype, "element type, default f32");
  bench
      .add_option("--sizes", options.sizes,
                  "bytes of the call's larger buffer, separated by commas: 8,64K,4M")
      ->delimiter(',');
}

void add_reduction(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--op", options.op, "reduction, default sum");
}

void add_algorithm(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--algorithm", options.algorithm,
                   "algorithm over messages, as in WEFT_TUNE; all: Weft's choice and each algorithm, on "
                   "communicators of their own");
}

// Adds the options for repetitions and processes.
void add_processes(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--iterations", options.iterations, "timed calls per size; default: 20 to 5000, by size")
      ->check(CLI::Range(uint64_t{1}, uint64_t{10'000'000}));
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
  bench.add_flag("--progress", options.progress)->group("");
  bench.add_flag("--joined", options.joined, "this process is a rank already (started by mpirun, srun, ...)");
  bench.add_flag(
      "--count-system-calls", options.count_system_calls,
      "write to --json the number of system calls per call, without those of waiting. The ranks are "
      "traced meanwhile, so times are meaningless");
}

// Adds the options of reports and comparisons.
void add_reports(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--json", options.json, "also write the results to this file");
  bench.add_option("--plot", options.plot,
                   "also draw the times over the sizes of at most five collectives as SVG, into this file");
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
      ->check(number_from(0, 10));
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

// Every benchmark must have the named algorithm.
void check_algorithm(const BenchOptions& options) {
  if (options.algorithm.empty()) return;
  for (const std::string& op : options.ops) {
    if (op == "step" || op == "ready" || op == "send_recv")
      throw std::invalid_argument("--algorithm does not apply to " + op);
    if (options.algorithm == "all") continue;
    weft::coll::Forced forced;
    const weft::Status status = weft::coll::parse_forced(op + ":" + options.algorithm, &forced);
    if (!status.ok()) throw std::invalid_argument("--algorithm: " + status.text());
  }
}

// A picture of nothing, or of too many lines, is refused before minutes of measuring.
void check_plot(const BenchOptions& options) {
  if (options.plot.empty()) return;
  const auto has_sizes = [](const std::string& op) {
    const auto found = std::find_if(std::begin(kBenchmarks), std::end(kBenchmarks),
                                    [&](const Benchmark& each) { return op == each.name; });
    return found->kind == Benchmark::Kind::kReduces || found->kind == Benchmark::Kind::kMoves;
  };
  const auto lines = static_cast<size_t>(std::count_if(options.ops.begin(), options.ops.end(), has_sizes));
  if (lines == 0 || options.sizes.size() < 2)
    throw std::invalid_argument("--plot needs a collective with at least two --sizes");
  if (lines > kMostLines) {
    throw std::invalid_argument("--plot shows at most " + std::to_string(kMostLines) +
                                " collectives, given " + std::to_string(lines));
  }
}

}  // namespace

void add_benchmarks(CLI::App& bench, BenchOptions& options) {
  options.sizes = {"8", "4K", "64K", "1M", "4M", "16M", "64M"};
  bench.footer(kFooter);
  bench.require_subcommand(0, 0);  // any number: the parser's own error would not name a benchmark
  add_ranks(bench, options);
  add_buffers(bench, options);
  add_reduction(bench, options);
  add_algorithm(bench, options);
  options.step.add_to(bench);
  add_processes(bench, options);
  add_reports(bench, options);
  for (CLI::Option* option : bench.get_options()) {
    if (option != bench.get_help_ptr()) option->group("");
  }
  for (const Benchmark& each : kBenchmarks) {
    using Kind = Benchmark::Kind;
    CLI::App* command = bench.add_subcommand(each.name, each.about);
    command->fallthrough();
    add_ranks(*command, options);
    if (each.kind == Kind::kReduces || each.kind == Kind::kMoves) add_buffers(*command, options);
    if (each.kind == Kind::kReduces) add_reduction(*command, options);
    if (each.kind != Kind::kStep && each.name != std::string_view("ready")) add_algorithm(*command, options);
    if (each.kind == Kind::kStep) options.step.add_to(*command);
    add_processes(*command, options);
    add_reports(*command, options);
  }
}

std::vector<std::string> chosen_benchmarks(const CLI::App& bench) {
  std::vector<std::string> names;
  for (const CLI::App* command : bench.get_subcommands()) names.push_back(command->get_name());
  return names;
}

// Reports bad options before processes are started.
void check_options(const BenchOptions& options) {
  parse_dtype(options.dtype);
  parse_op(options.op);
  for (const std::string& size : options.sizes) parse_bytes(size);
  options.step.check();
  check_repeat(options);
  if (!options.baseline.empty()) Baseline(options.baseline);  // throws
  const auto step = std::find(options.ops.begin(), options.ops.end(), "step");
  if (step != options.ops.end() && options.step.manifests.empty()) {
    throw std::invalid_argument("weft bench step needs --manifest FILE; examples are in bench/manifests");
  }
  check_algorithm(options);
  check_plot(options);
}
