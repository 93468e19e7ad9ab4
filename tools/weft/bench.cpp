// weft bench: measures collectives and gradient steps. Starts itself again as the ranks.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench_faults.h"
#include "commands.h"
#include "compare.h"
#include "launch.h"
#include "machine.h"
#include "measure.h"
#include "names.h"
#include "syscalls.h"

namespace {

constexpr int64_t kRareHeartbeatMs = 3'600'000;

void write(const nlohmann::json& run, const std::string& path) {
  std::ofstream file(path);
  file << run.dump(1) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// One rank. Returns 1 if a result was wrong, or something is slower than it was.
int bench_rank(const BenchOptions& options, int rank_for_core) {
  const nlohmann::json machine = describe_machine();
  if (options.count_system_calls) count_system_calls();
  if (options.pin) pin_to_core(rank_for_core);  // before Weft starts threads
  // Signs of life are system calls as well, as many as time passes.
  Job job(options.backend, options.count_system_calls ? kRareHeartbeatMs : 0);
  if (!options.trace.empty()) job.check(weft_trace_start(job.context(), 0), "weft_trace_start");
  bool slower = false;
  std::vector<Result> results;
  for (const std::string& op : options.ops) {
    if (op == "step") {
      for (const std::string& manifest : options.manifests)
        results.push_back(bench_step(job, options, manifest));
    } else if (op == "launches") {
      for (Result& result : bench_launches(job, options)) results.push_back(std::move(result));
    } else if (op == "ready") {
      for (Result& result : bench_ready(job, options)) results.push_back(std::move(result));
    } else {
      for (Result& result : bench_collective(job, options, op)) results.push_back(std::move(result));
    }
  }
  if (job.rank() == 0) {
    print_results(results);
    const weft_comm_info info = job.info();
    if (info.transports[0] != '\0') std::printf("%s: %s.\n", info.backend, info.transports);
    std::fflush(stdout);
    const nlohmann::json run = json_of(results, machine, job, options);
    if (!options.json.empty()) write(run, options.json);
    if (!options.baseline.empty()) {
      slower = !Baseline(options.baseline).compare(run, options.tolerance);
    }
  }
  if (!options.trace.empty()) {
    const std::string path = options.trace + ".rank" + std::to_string(job.rank()) + ".json";
    job.check(weft_trace_write(job.context(), path.c_str()), "weft_trace_write");
  }
  job.barrier();
  if (slower) return 1;
  for (const Result& result : results) {
    if (!result.times.correct) return 1;
  }
  return 0;
}

// Complain before processes are started.
void check_options(const BenchOptions& options) {
  parse_dtype(options.dtype);
  parse_op(options.op);
  for (const std::string& size : options.sizes) parse_bytes(size);
  for (const std::string& limit : options.bucket_limits) parse_bytes(limit);
  if (options.op == "premul_sum" && std::count(options.ops.begin(), options.ops.end(), "launches") > 0) {
    throw std::invalid_argument("bench launches has no factor for premul_sum");
  }
  parse_bytes(options.total);
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

// The same command line, on this program, for every rank.
int bench_launch(const BenchOptions& options, const std::vector<std::string>& words) {
  LaunchOptions job;
  job.ranks = options.ranks;
  job.prefix = Prefix::kOthers;
  job.command = {"/proc/self/exe"};
  job.command.insert(job.command.end(), words.begin(), words.end());
  job.command.push_back("--joined");
  return launch(job);
}

// Which core is whose, before the communicator says the rank: what the launchers tell their processes.
int local_rank_from_environment() {
  for (const char* name :
       {"WEFT_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"}) {
    if (const char* value = std::getenv(name)) return std::max(0, std::atoi(value));
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, const std::vector<std::string>& words, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->sizes = {"8", "4K", "64K", "1M", "4M", "16M", "64M"};
  CLI::App* bench = app.add_subcommand("bench", "Measure collectives and gradient steps on this machine");
  bench->footer(
      "OP: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all, "
      "send_recv\n"
      "(a round trip), barrier, step (a gradient step of a manifest's parameters), ready (what handing "
      "over\n"
      "a gradient costs without its copy, and what many tiny parameters do), or launches (--total bytes as\n"
      "tensors of --sizes, all launched, waited for once).\n"
      "Before every timed call each rank writes its buffers anew and all meet in a barrier; the time is that "
      "of\n"
      "the slowest rank. Results are checked in the first and the last call; a wrong one is exit code 1.");
  bench->add_option("OP", options->ops, "what to measure");
  bench->add_option("-n,--ranks", options->ranks, "number of local processes, default 2")
      ->check(CLI::Range(1, 4096));
  bench->add_option("--backend", options->backend, "default: the best available");
  bench
      ->add_option_function<std::string>(
          "--memory", [options](const std::string& memory) { options->arena = memory == "arena"; },
          "where buffers lie: arena (default) or private")
      ->check(CLI::IsMember({"arena", "private"}));
  bench->add_option("--dtype", options->dtype, "default f32");
  bench->add_option("--op", options->op, "reduction, default sum");
  bench
      ->add_option("--sizes", options->sizes,
                   "bytes, divided by commas: 8,64K,4M. The larger buffer of the call")
      ->delimiter(',');
  bench->add_option("--manifest", options->manifests, "JSON file of parameters, for step")
      ->check(CLI::ExistingFile);
  bench
      ->add_option_function<std::string>(
          "--mode",
          [options](const std::string& mode) {
            options->view_mode = mode != "copy";
            options->reduced_views = mode == "reduced";
          },
          "gradients of step: copy (default), view, or reduced: views whose results stay with their owners, "
          "where the others read them")
      ->check(CLI::IsMember({"copy", "view", "reduced"}));
  bench->add_option("--hook", options->hook,
                    "of step: a hook and its options, such as 'powersgd rank=4 start=2'; default allreduce");
  bench
      ->add_option("--reduce-dtype", options->reduce_dtype,
                   "of step: the type in which its f32 gradients travel and are added up; default their own")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  bench
      ->add_option(
          "--replay", options->replay,
          "of step: gradients become ready as in the backward recorded beside the manifest, in so many "
          "times its time; what is exposed is said")
      ->check(CLI::PositiveNumber);
  bench
      ->add_flag(
          "--compute", options->compute,
          "of step with --replay: the rank's core computes until a gradient is ready, instead of sleeping "
          "as if an accelerator computed; what communication takes of the core is exposed too")
      ->needs("--replay");
  bench
      ->add_option("--replan", options->replan,
                   "of step: buckets in the order of readiness of the first step, by their limits, by the "
                   "model, or by "
                   "the model and what is needed first before the others")
      ->check(CLI::IsMember({"limits", "model", "first-needed"}));
  bench
      ->add_option("--bucket-limits", options->bucket_limits,
                   "of step: bytes at which buckets close, divided by commas; the last repeats, 0 is one "
                   "parameter a bucket")
      ->delimiter(',');
  bench
      ->add_option("--accumulate", options->accumulate,
                   "of step: a measurement is so many steps, of which the last one synchronises; default 1")
      ->check(CLI::Range(1, 1024));
  bench->add_option("--total", options->total, "of launches: bytes in all, default 240000000");
  bench->add_option("--iterations", options->iterations, "timed calls a size; default: 20 to 5000, by size");
  bench->add_option("--warmup", options->warmup, "calls before them, default 3")
      ->check(CLI::Range(1, 1000000));
  bench->add_flag("!--no-pin", options->pin, "do not bind ranks to cores");
  bench->add_flag("--joined", options->joined,
                  "this process is a rank already (started by mpirun, srun, ...)");
  bench->add_option("--json", options->json, "also write the results to this file");
  bench->add_option("--trace", options->trace,
                    "each rank writes what it did last to TEXT.rank0.json and so on, a Chrome trace, which "
                    "Perfetto opens; costs some time");
  bench
      ->add_option(
          "--check", options->baseline,
          "what --json wrote in an earlier run: say what has become slower, or counts more page faults, "
          "allocations, system calls or moved bytes; then the exit code is 1")
      ->check(CLI::ExistingFile);
  bench
      ->add_option("--tolerance", options->tolerance,
                   "of --check: a median may grow by this part, default 0.1")
      ->check(CLI::Range(0.0, 10.0));
  bench->add_flag("--count-system-calls", options->count_system_calls,
                  "write to --json how many system calls a call makes, but those of waiting. The ranks are "
                  "traced meanwhile: times mean nothing");
  add_bench_faults(*bench, exit_code);
  bench->callback([options, bench, &words, exit_code] {
    if (bench->got_subcommand("faults")) return;
    if (options->ops.empty()) throw CLI::RequiredError("OP");
    check_options(*options);
    *exit_code =
        options->joined ? bench_rank(*options, local_rank_from_environment()) : bench_launch(*options, words);
  });
}
