// weft bench: measures collectives and gradient steps. Starts this program again as the ranks.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "base/dtype.h"
#include "bench_faults.h"
#include "bench_form.h"
#include "bench_options.h"
#include "coll/select.h"
#include "compare.h"
#include "measure.h"
#include "plot.h"
#include "repeats.h"
#include "syscalls.h"
#include "weft/commands.h"
#include "weft/launch.h"
#include "weft/machine.h"

namespace {

constexpr int64_t kRareHeartbeatMs = 3'600'000;

[[noreturn]] void refuse(const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), "cannot write " + path);
}

// Throws if a file cannot be written, before minutes of measuring. Does not open it: it may be a pipe.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  std::error_code unknown;
  const std::filesystem::path file = path;
  if (std::filesystem::is_directory(file, unknown)) refuse(path, EISDIR);
  const bool exists = std::filesystem::exists(file, unknown);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (::access(exists ? file.c_str() : folder.c_str(), exists ? W_OK : W_OK | X_OK) != 0) refuse(path, errno);
}

std::string trace_path(const BenchOptions& options, int rank) {
  return options.trace.empty() ? "" : options.trace + ".rank" + std::to_string(rank) + ".json";
}

void check_outputs(const BenchOptions& options, int rank) {
  check_writable(trace_path(options, rank));
  if (rank != 0) return;
  check_writable(options.json);
  check_writable(options.plot);
}

void write_text(const std::string& text, const std::string& path) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) refuse(path, errno);
}

void write(const nlohmann::json& run, const std::string& path) {
  write_text(run.dump(1) + "\n", path);
}

// Returns false if any result is wrong. Null means that the results are not checked.
bool is_correct(const nlohmann::json& run) {
  const nlohmann::json& rows = run.at("results");
  return std::all_of(rows.begin(), rows.end(),
                     [](const nlohmann::json& row) { return row.at("correct") != false; });
}

// Prints the results, writes them as JSON, and compares them with another run if there is one. Returns true
// if all results are right and nothing is slower than in the other run.
bool report(const nlohmann::json& run, const BenchOptions& options, const std::optional<Baseline>& baseline) {
  print_results(run);
  if (!options.json.empty()) write(run, options.json);
  if (!options.plot.empty()) write_text(plot_svg(run), options.plot);
  if (!options.against.empty())
    std::printf("Compared with %s, whose ranks ran interleaved with these:\n", options.against.c_str());
  const bool good = !baseline || baseline->compare(run, options.tolerance);
  return good && is_correct(run);
}

std::optional<Baseline> earlier(const BenchOptions& options) {
  if (options.baseline.empty()) return {};
  return Baseline(options.baseline);
}

// The weft_all_gather_fn of a communicator whose ranks meet over another one's.
int32_t gather_over(void* job, const void* mine, uint64_t size, void* all) {
  return weft_all_gather(static_cast<Job*>(job)->comm(), mine, all, size, WEFT_DTYPE_U8, nullptr, nullptr);
}

// Measures a collective by the algorithms that the options name, each on a communicator of its own with the
// ranks of `ranks`. Appends to the results.
void measure_algorithms(Job& ranks, const BenchOptions& options, const std::string& op,
                        std::vector<Result>* results) {
  weft_comm_options how = WEFT_COMM_OPTIONS_INIT;
  how.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  how.rank = ranks.rank();
  how.size = ranks.size();
  how.all_gather = gather_over;
  how.all_gather_user_data = &ranks;
  if (!options.backend.empty()) how.backend = options.backend.c_str();
  std::vector<std::string> names = {options.algorithm};
  if (options.algorithm == "all") {
    names = {""};
    for (const weft::coll::AlgorithmRow row_of : weft::coll::algorithms()) {
      if (op == weft::name(row_of().coll)) names.emplace_back(row_of().name);
    }
  }
  const char* const given = std::getenv("WEFT_TUNE");
  const std::optional<std::string> before = given ? std::optional<std::string>(given) : std::nullopt;
  for (const std::string& name : names) {
    if (!name.empty()) ::setenv("WEFT_TUNE", (op + ":" + name).c_str(), 1);
    BenchOptions one = options;
    one.algorithm = name;
    Job job(how);
    for (Result& result : bench_collective(job, one, op)) results->push_back(std::move(result));
    before ? ::setenv("WEFT_TUNE", before->c_str(), 1) : ::unsetenv("WEFT_TUNE");
  }
}

std::vector<Result> measure_all(Job& job, const BenchOptions& options) {
  std::vector<Result> results;
  for (const std::string& op : options.ops) {
    if (!options.algorithm.empty()) {
      measure_algorithms(job, options, op, &results);
      continue;
    }
    if (op == "step") {
      for (const std::string& manifest : options.step.manifests)
        results.push_back(bench_step(job, options, manifest));
    } else if (op == "ready") {
      for (Result& result : bench_ready(job, options)) results.push_back(std::move(result));
    } else {
      for (Result& result : bench_collective(job, options, op)) results.push_back(std::move(result));
    }
  }
  return results;
}

// Runs one rank. Returns 1 if a result was wrong or something became slower; always 0 for a rank of one of
// several repeats.
int bench_rank(const BenchOptions& options, int rank_for_core) {
  const nlohmann::json machine = describe_machine();
  if (options.count_system_calls) count_system_calls();
  if (options.pin) pin_to_core(rank_for_core);  // before Weft starts threads
  // Heartbeats are system calls as well, and their number depends on the elapsed time.
  Job job(options.backend, options.count_system_calls ? kRareHeartbeatMs : 0);
  check_outputs(options, job.rank());
  if (!options.trace.empty()) job.check(weft_trace_start(job.context(), 0), "weft_trace_start");
  const std::vector<Result> results = measure_all(job, options);
  const bool one_of_several = !options.into.empty();
  bool good = true;
  if (job.rank() == 0) {
    const nlohmann::json run = json_of(results, machine, job, options);
    if (one_of_several) {
      write(run, options.into);
    } else {
      good = report(run, options, earlier(options));
    }
  }
  if (!options.trace.empty()) {
    const std::string path = trace_path(options, job.rank());
    if (const weft_status status = weft_trace_write(job.context(), path.c_str()))
      throw std::runtime_error("cannot write " + path + ": " + weft_status_string(status));
  }
  job.barrier();
  if (one_of_several) return 0;
  const auto correct = [](const Result& result) { return result.times.correct; };
  return good && std::all_of(results.begin(), results.end(), correct) ? 0 : 1;
}

constexpr char kThis[] = "/proc/self/exe";

// Starts every rank with the same command line and `more`, on this program or another.
int launch_ranks(const std::string& program, const BenchOptions& options,
                 const std::vector<std::string>& words, const std::vector<std::string>& more) {
  LaunchOptions job;
  job.ranks = options.ranks;
  job.prefix = Prefix::kOthers;
  job.command = {program};
  job.command.insert(job.command.end(), words.begin(), words.end());
  job.command.push_back("--joined");
  // The ranks' standard error is a pipe. Another weft command may not know the option.
  if (program == kThis && ::isatty(STDERR_FILENO) == 1) job.command.emplace_back("--progress");
  job.command.insert(job.command.end(), more.begin(), more.end());
  return launch(job);
}

// Runs one set of ranks. Returns its exit code, and appends its results if that is 0.
int measure_once(const std::string& program, const std::string& name, const BenchOptions& options,
                 const std::vector<std::string>& words, std::vector<nlohmann::json>* runs) {
  std::fprintf(stderr, "weft bench: %s\n", name.c_str());
  const PassedFile file;
  if (const int code = launch_ranks(program, options, words, {"--into", file.path()}); code != 0) {
    std::fprintf(stderr, "weft bench: %s failed with exit code %d; earlier repeats are not reported\n",
                 name.c_str(), code);
    return code;
  }
  std::ifstream written(file.path());
  runs->push_back(nlohmann::json::parse(written));
  return 0;
}

// Runs several sets of ranks, one after the other, and reports them together. Sets of another program
// alternate with those of this one, and either program goes first in turn, so that changes on the machine
// affect both equally. A set that fails ends the run with its exit code and without a report.
int bench_repeats(const BenchOptions& options, const std::vector<std::string>& words) {
  std::vector<nlohmann::json> runs, others;
  const bool two = !options.against.empty();
  const std::string other = two ? std::filesystem::absolute(options.against).string() : "";
  for (int repeat = 1; repeat <= options.repeat; ++repeat) {
    const std::string name = "repeat " + std::to_string(repeat) + " of " + std::to_string(options.repeat);
    for (int turn = 0; turn < (two ? 2 : 1); ++turn) {
      const bool of_other = two && (turn + repeat) % 2 == 1;
      const int code = of_other ? measure_once(other, name + ", " + options.against, options, words, &others)
                                : measure_once(kThis, name, options, words, &runs);
      if (code != 0) return code;
    }
  }
  if (!two) return report(merge(runs), options, earlier(options)) ? 0 : 1;
  const nlohmann::json others_merged = merge(others);
  const bool good = report(merge(runs), options, Baseline(others_merged, options.against));
  if (!is_correct(others_merged)) {
    std::fprintf(stderr, "weft bench: %s, the command of --against, computed wrong results\n",
                 options.against.c_str());
    return 1;
  }
  return good ? 0 : 1;
}

// Returns the local rank from the launchers' environment variables, since pinning happens before the
// communicator exists.
int local_rank_from_environment() {
  for (const char* name : {"WEFT_RANK", "LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                           "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "JSM_NAMESPACE_LOCAL_RANK",
                           "FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"}) {
    if (const char* value = std::getenv(name))
      return std::max(0, static_cast<int>(std::strtol(value, nullptr, 10)));
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, const std::vector<std::string>& words, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = app.add_subcommand("bench", "Measure collectives and gradient steps on this machine");
  add_benchmarks(*bench, *options);
  add_bench_faults(*bench, exit_code);
  add_bench_form(*bench, exit_code);
  bench->callback([options, bench, &words, exit_code] {
    if (bench->got_subcommand("faults") || bench->got_subcommand("form")) return;
    options->ops = chosen_benchmarks(*bench);
    if (options->ops.empty())
      throw CLI::ValidationError("weft bench", "name a benchmark, such as all_reduce; --help lists them");
    check_options(*options);
    if (!options->joined) check_outputs(*options, 0);
    if (options->joined) {
      *exit_code = bench_rank(*options, local_rank_from_environment());
    } else if (options->repeat == 1 && options->against.empty()) {
      *exit_code = launch_ranks(kThis, *options, words, {});
    } else {
      *exit_code = bench_repeats(*options, words);
    }
  });
}
