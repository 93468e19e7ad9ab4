// weft bench form: the time from the start of the first process of a job to the last rank's result of its
// first all_reduce. It alternates with the time of as many processes that only load libweft and end, which no
// library can save. Starts this program again as the ranks.
#include "bench_form.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "repeats.h"
#include "weft/job.h"
#include "weft/launch.h"

namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostFormRepeats = 100;
constexpr double kTimeoutS = 300;

struct FormOptions {
  std::vector<int> ranks = {2, 8, 64};
  int repeat = 3;
  std::string backend;
  std::string json;
  // FormOptions of a rank process.
  bool joined = false;
  bool bare = false;
  std::string into;
};

uint64_t now_ns() {
  static weft::SystemClock clock;
  return clock.now_ns();
}

// Times of one job, in seconds since the start of its first process. The last rank's are taken.
struct Formed {
  double started = 0;  // main was entered
  double created = 0;  // the communicator exists
  double reduced = 0;  // the first all_reduce has ended
};

// A rank of a job that forms. Rank 0 writes the last rank's times into the file, in nanoseconds.
int form_rank(const FormOptions& options) {
  const uint64_t started = now_ns();
  Job job(options.backend);
  const uint64_t created = now_ns();
  float value = 1;
  job.check(weft_all_reduce(job.comm(), &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr),
            "weft_all_reduce");
  const uint64_t reduced = now_ns();
  if (value != static_cast<float>(job.size())) throw std::runtime_error("the first all_reduce is wrong");
  const std::vector<uint64_t> all = job.all_gather({started, created, reduced});
  if (job.rank() == 0) {
    std::vector<uint64_t> last(3);
    for (size_t i = 0; i < all.size(); i++) last[i % 3] = std::max(last[i % 3], all[i]);
    std::ofstream file(options.into);
    file << nlohmann::json(last) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write the times to " + options.into);
  }
  job.barrier();
  return 0;
}

// Starts the processes of one job and waits until they have ended. Throws if one fails.
void start_job(const FormOptions& options, int ranks, const std::vector<std::string>& words) {
  LaunchOptions job;
  job.ranks = ranks;
  job.timeout_s = kTimeoutS;
  job.command = {"/proc/self/exe", "bench", "form"};
  job.command.insert(job.command.end(), words.begin(), words.end());
  if (!options.backend.empty()) job.command.insert(job.command.end(), {"--backend", options.backend});
  const int code = launch(job);
  if (code == 0) return;
  throw std::runtime_error("a job of " + std::to_string(ranks) + " ranks ended with exit code " +
                           std::to_string(code));
}

double seconds(uint64_t from_ns, uint64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) * 1e-9;
}

double run_bare(const FormOptions& options, int ranks) {
  const uint64_t begin = now_ns();
  start_job(options, ranks, {"--bare"});
  return seconds(begin, now_ns());
}

Formed run_formed(const FormOptions& options, int ranks) {
  const PassedFile file;
  const uint64_t begin = now_ns();
  start_job(options, ranks, {"--joined", "--into", file.path()});
  std::ifstream written(file.path());
  const auto last = nlohmann::json::parse(written).get<std::vector<uint64_t>>();
  return {seconds(begin, last.at(0)), seconds(begin, last.at(1)), seconds(begin, last.at(2))};
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Times of one number of ranks: the medians of all repeats.
struct FormRow {
  int ranks = 0;
  double bare = 0;
  Formed formed;
  double above() const { return formed.reduced - bare; }
};

FormRow measure_row(const FormOptions& options, int ranks) {
  std::vector<double> bare, started, created, reduced;
  for (int repeat = 0; repeat < options.repeat; repeat++) {
    bare.push_back(run_bare(options, ranks));
    const Formed formed = run_formed(options, ranks);
    started.push_back(formed.started);
    created.push_back(formed.created);
    reduced.push_back(formed.reduced);
  }
  return {ranks, median_of(bare), {median_of(started), median_of(created), median_of(reduced)}};
}

// Returns what a job of these ranks would take if its time grew by n log n from that of the smaller job.
double n_log_n(const FormRow& smaller, int ranks) {
  const auto cost = [](int n) { return n * std::log2(std::max(n, 2)); };
  return smaller.formed.reduced * cost(ranks) / cost(smaller.ranks);
}

nlohmann::json json_of(const std::vector<FormRow>& rows, const FormOptions& options) {
  nlohmann::json list = nlohmann::json::array();
  for (const FormRow& row : rows) {
    list.push_back({{"ranks", row.ranks},
                    {"bare_s", row.bare},
                    {"started_s", row.formed.started},
                    {"created_s", row.formed.created},
                    {"reduced_s", row.formed.reduced}});
  }
  return {{"backend", options.backend}, {"repeat", options.repeat}, {"form", list}};
}

int form_all(const FormOptions& options) {
  std::printf("%8s %9s %9s %9s %9s %9s  %s\n", "ranks", "bare s", "started", "created", "reduced", "above",
              "of n log n");
  std::vector<FormRow> rows;
  for (const int ranks : options.ranks) {
    const FormRow row = measure_row(options, ranks);
    std::printf("%8d %9.3f %9.3f %9.3f %9.3f %9.3f", ranks, row.bare, row.formed.started, row.formed.created,
                row.formed.reduced, row.above());
    if (!rows.empty()) std::printf("  %.2f", row.formed.reduced / n_log_n(rows.back(), ranks));
    std::printf("\n");
    std::fflush(stdout);
    rows.push_back(row);
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << json_of(rows, options).dump(1) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write the results to " + options.json);
  }
  return 0;
}

constexpr char kFormFooter[] =
    "Times are medians in seconds since the start of the first process; of all ranks the last one counts.\n"
    "bare: as many processes that load libweft and end. started: main is entered. created: weft_comm_create\n"
    "has returned. reduced: the first all_reduce has. above: reduced - bare. of n log n: the growth since\n"
    "the row above, as a part of growth by n log n.";

}  // namespace

void add_bench_form(CLI::App& bench, int* exit_code) {
  auto options = std::make_shared<FormOptions>();
  CLI::App* form = bench.add_subcommand("form", "Start jobs, up to the result of their first all_reduce");
  form->footer(kFormFooter);
  form->add_option("-n,--ranks", options->ranks, "numbers of local processes, default 2,8,64")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostRanks));
  form->add_option("--repeat", options->repeat, "number of jobs of each size, default 3")
      ->check(CLI::Range(1, kMostFormRepeats));
  form->add_option("--backend", options->backend, "name of the backend, default: the best available");
  form->add_option("--json", options->json, "also write the times to this file");
  form->add_flag("--joined", options->joined)->group("");
  form->add_flag("--bare", options->bare)->group("");
  form->add_option("--into", options->into)->group("");
  form->callback([options, exit_code] {
    if (options->bare) return;
    *exit_code = options->joined ? form_rank(*options) : form_all(*options);
  });
}
