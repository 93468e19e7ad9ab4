// weft bench faults: draws random faults over backends and phases for each run, and checks the ranks'
// reactions. The main thread handles signals and shows progress. Each of --jobs threads executes one run at a
// time.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "bench_faults.h"
#include "faults/judge.h"
#include "faults/leftovers.h"
#include "faults/rank.h"
#include "weft/job.h"
#include "weft/signals.h"

namespace {

using faults::Draw;
using faults::Verdict;

struct Options {
  uint64_t runs = 100;
  uint64_t seed = 1;
  int64_t only = -1;
  faults::Range range;
  std::vector<std::string> phases;  // empty: all
  std::string ranks = "2-8";
  int jobs = 1;
  std::string json;
  bool verbose = false;
  // Options of a rank process.
  int rank = -1;
  std::string store;
  int parent = 0;
};

std::vector<std::string> available_backends() {
  std::vector<std::string> found;
  weft_context* context = nullptr;
  uint64_t count = 0;
  if (weft_context_create(nullptr, &context, nullptr) != WEFT_OK) return found;
  weft_backend_count(context, &count);
  for (uint64_t i = 0; i < count; i++) {
    weft_backend_info info = WEFT_BACKEND_INFO_INIT;
    if (weft_backend_query(context, i, &info) == WEFT_OK && info.available != 0)
      found.emplace_back(info.name);
  }
  weft_context_destroy(&context);
  return found;
}

void set_ranks(Options* options) {
  const std::string& text = options->ranks;
  const size_t dash = text.find('-');
  try {
    size_t end = 0;
    options->range.least_ranks = options->range.most_ranks = std::stoi(text, &end);
    if (dash != std::string::npos) options->range.most_ranks = std::stoi(text.substr(dash + 1));
  } catch (const std::exception&) {
    options->range.least_ranks = 0;
  }
  if (options->range.least_ranks < 2 || options->range.most_ranks > 32 ||
      options->range.least_ranks > options->range.most_ranks) {
    throw std::invalid_argument("--ranks is '" + text +
                                "', expected a number or a range from 2 to 32, for example 2-8");
  }
}

void set_phases(Options* options) {
  for (const std::string& phase : options->phases)
    options->range.phases.push_back(faults::parse_phase(phase));
  if (options->phases.empty()) {
    options->range.phases.assign(std::begin(faults::kPhases), std::end(faults::kPhases));
  }
}

// Refuses backends that are not available: every run with one would fail. The default is those that guarantee
// survival of failures.
void set_backends(Options* options) {
  const std::vector<std::string> available = available_backends();
  std::vector<std::string>& wanted = options->range.backends;
  if (wanted.empty()) {
    for (const std::string& name : available) {
      if (name == "shm" || name == "ucx" || name == "shm+ucx") wanted.push_back(name);
    }
    return;
  }
  for (const std::string& name : wanted) {
    if (std::find(available.begin(), available.end(), name) != available.end()) continue;
    throw std::invalid_argument("--backends has '" + name +
                                "', available: " + CLI::detail::join(available, ", "));
  }
}

// Returns the options that determine the draw, as words of a command line.
std::vector<std::string> drawing(const Options& options) {
  std::vector<std::string> words = {"--seed=" + std::to_string(options.seed), "--ranks=" + options.ranks,
                                    "--backends=" + CLI::detail::join(options.range.backends, ",")};
  if (!options.phases.empty()) words.push_back("--phases=" + CLI::detail::join(options.phases, ","));
  return words;
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

// Collects the findings of all threads.
class Findings {
 public:
  explicit Findings(const Options& options) : options_(options), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void add(const Draw& draw, const faults::RunTrace& trace, const Verdict& verdict);
  void show_progress(uint64_t of);
  void print_distribution();
  // Prints the last line and returns the exit code.
  int conclude();
  void write(const std::string& path);

 private:
  struct Times {
    std::vector<double> detect, recover;
    uint64_t runs = 0;
  };
  void complain(const Draw& draw, const char* what, const std::vector<std::string>& texts);
  void say(const std::string& line);
  void print_words(const faults::RunTrace& trace);
  std::string counts() const;

  const Options& options_;
  const bool terminal_;
  std::mutex mutex_;  // guards all members below
  uint64_t shown_ = 0;
  uint64_t runs_ = 0, hangs_ = 0, disagreements_ = 0, leftovers_ = 0, minorities_ = 0, unreached_ = 0;
  Times all_;
  std::map<std::string, Times> by_backend_, by_phase_, by_fault_;  // of two faults, the first
  nlohmann::json list_ = nlohmann::json::array();
};

// Needs mutex_.
void Findings::say(const std::string& line) {
  if (terminal_) std::fprintf(stderr, "\r\033[K");
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Prints the ranks' messages, with times in milliseconds since the first one.
void Findings::print_words(const faults::RunTrace& trace) {
  std::vector<std::pair<faults::Word, size_t>> all;
  for (size_t rank = 0; rank < trace.ranks.size(); rank++) {
    for (const faults::Word& word : trace.ranks[rank].words) all.emplace_back(word, rank);
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.at_ns < b.first.at_ns; });
  for (const auto& [word, rank] : all) {
    char line[800];
    std::snprintf(line, sizeof line,
                  "  %9.3f rank %zu, generation %d: %s, status %d, ranks %llx, bits %llx: %s",
                  static_cast<double>(word.at_ns - all.front().first.at_ns) / 1e6, rank, word.generation,
                  name(word.kind), word.status, static_cast<unsigned long long>(word.ranks),
                  static_cast<unsigned long long>(word.bits), word.text);
    say(line);
  }
}

void Findings::complain(const Draw& draw, const char* what, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    say("  " + std::string(what) + " in run " + std::to_string(draw.number) + ": " + text);
  }
}

void Findings::add(const Draw& draw, const faults::RunTrace& trace, const Verdict& verdict) {
  const std::scoped_lock lock(mutex_);
  runs_++;
  hangs_ += verdict.hangs.empty() ? 0 : 1;
  disagreements_ += verdict.disagreements.empty() ? 0 : 1;
  leftovers_ += verdict.leftovers.empty() ? 0 : 1;
  minorities_ += verdict.minority ? 1 : 0;
  unreached_ += verdict.reached ? 0 : 1;
  const std::string fault = std::string("by ") + name(draw.faults.at(0).action);
  for (Times* times : {&all_, &by_backend_[draw.backend], &by_phase_[name(draw.phase)], &by_fault_[fault]}) {
    times->runs++;
    if (verdict.detect_ms) times->detect.push_back(*verdict.detect_ms);
    if (verdict.recover_ms) times->recover.push_back(*verdict.recover_ms);
  }
  nlohmann::json entry = {{"run", draw.number},
                          {"backend", draw.backend},
                          {"ranks", draw.ranks},
                          {"phase", name(draw.phase)},
                          {"text", draw.text()},
                          {"hangs", verdict.hangs},
                          {"disagreements", verdict.disagreements},
                          {"leftovers", verdict.leftovers},
                          {"minority", verdict.minority},
                          {"reached", verdict.reached}};
  if (verdict.detect_ms) entry["detect_ms"] = *verdict.detect_ms;
  if (verdict.recover_ms) entry["recover_ms"] = *verdict.recover_ms;
  list_.push_back(std::move(entry));
  if (!verdict.good() || options_.verbose) {
    std::string line = draw.text();
    char times[80] = "";
    if (verdict.detect_ms) std::snprintf(times, sizeof times, "; detected in %.1f ms", *verdict.detect_ms);
    line += times;
    if (verdict.recover_ms) std::snprintf(times, sizeof times, ", recovered in %.1f ms", *verdict.recover_ms);
    if (verdict.recover_ms) line += times;
    if (verdict.minority) line += "; too few ranks are left to continue";
    if (!verdict.reached) line += "; the fault did not strike";
    say(line);
  }
  complain(draw, "hang", verdict.hangs);
  complain(draw, "disagreement", verdict.disagreements);
  complain(draw, "leftover", verdict.leftovers);
  if (verdict.good()) return;
  if (options_.verbose) print_words(trace);
  if (!trace.errors.empty()) say("  standard error:\n" + trace.errors);
  say("  again: weft bench faults " + CLI::detail::join(drawing(options_), " ") +
      " --only=" + std::to_string(draw.number));
}

// On a terminal, rewrites one line; otherwise prints a line now and then.
void Findings::show_progress(uint64_t of) {
  constexpr uint64_t kRunsALine = 100;
  const std::scoped_lock lock(mutex_);
  if (!terminal_ && runs_ < shown_ + kRunsALine) return;
  shown_ = runs_;
  const std::string line = std::to_string(runs_) + " of " + std::to_string(of) + " runs, " + counts();
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
}

// Needs mutex_.
std::string Findings::counts() const {
  return std::to_string(hangs_) + " hangs, " + std::to_string(disagreements_) + " disagreements, " +
         std::to_string(leftovers_) + " leftovers";
}

void Findings::print_distribution() {
  const std::scoped_lock lock(mutex_);
  if (terminal_) std::fprintf(stderr, "\r\033[K");
  std::printf("%-10s %6s  %-38s  %s\n", "", "runs", "detect ms: p50, p90, p99, most",
              "recover ms: p50, p90, p99, most");
  const auto row = [](const std::string& title, const Times& times) {
    std::printf("%-10s %6llu", title.c_str(), static_cast<unsigned long long>(times.runs));
    for (const std::vector<double>* values : {&times.detect, &times.recover}) {
      std::printf("  %8.1f %8.1f %8.1f %8.1f   ", percentile(*values, 0.5), percentile(*values, 0.9),
                  percentile(*values, 0.99), percentile(*values, 1));
    }
    std::printf("\n");
  };
  for (const auto& [backend, times] : by_backend_) row(backend, times);
  for (const auto& [phase, times] : by_phase_) row(phase, times);
  for (const auto& [fault, times] : by_fault_) row(fault, times);
  row("all", all_);
  std::printf("%llu runs ended with too few ranks to continue; in %llu runs the fault did not strike\n",
              static_cast<unsigned long long>(minorities_), static_cast<unsigned long long>(unreached_));
}

int Findings::conclude() {
  const std::scoped_lock lock(mutex_);
  std::printf("faults: %llu runs, %s, detect p99=%.0f ms, recover p99=%.0f ms\n",
              static_cast<unsigned long long>(runs_), counts().c_str(), percentile(all_.detect, 0.99),
              percentile(all_.recover, 0.99));
  return hangs_ + disagreements_ + leftovers_ == 0 ? 0 : 1;
}

void Findings::write(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  std::sort(list_.begin(), list_.end(), [](const auto& a, const auto& b) { return a["run"] < b["run"]; });
  std::ofstream file(path);
  file << nlohmann::json{{"seed", options_.seed},
                         {"backends", options_.range.backends},
                         {"ranks", options_.ranks},
                         {"runs", list_}}
              .dump(1)
       << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write the results to " + path);
}

int run_all(const Options& options) {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : ending_signals()) sigaddset(&watched, number);
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);  // also for the threads below

  const uint64_t first = options.only >= 0 ? static_cast<uint64_t>(options.only) : 0;
  const uint64_t end = options.only >= 0 ? first + 1 : options.runs;
  Findings findings(options);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> next{first};
  std::atomic<int> busy{options.jobs};
  std::mutex mutex;
  std::string broken;  // guarded by mutex
  faults::RunOptions run_options;
  run_options.words = {"weft", "bench", "faults"};
  for (std::string& word : drawing(options)) run_options.words.push_back(std::move(word));
  run_options.stop = &stop;
  run_options.private_shm = faults::make_private_shared_memory();  // before the threads, which inherit it
  if (!run_options.private_shm) {
    std::fprintf(
        stderr,
        "weft bench faults: files that ranks leave in /dev/shm are not checked, because other programs "
        "use it too, and no private /dev/shm could be mounted, which needs root: %s\n",
        std::strerror(errno));
  }
  const auto work = [&] {
    try {
      for (uint64_t number = next++; number < end && !stop; number = next++) {
        const Draw draw = faults::draw(options.range, options.seed, number);
        const faults::RunTrace trace = faults::run(draw, run_options);
        if (!trace.interrupted) findings.add(draw, trace, faults::judge(draw, trace));
      }
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex);
      broken = error.what();
      stop = true;
    }
    busy--;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.jobs; i++) threads.emplace_back(work);
  int signal = 0;
  while (busy > 0) {
    const timespec tick{0, 100'000'000};
    const int taken = ::sigtimedwait(&watched, nullptr, &tick);
    if (taken > 0) signal = taken;
    if (taken > 0) stop = true;
    findings.show_progress(end - first);
  }
  for (std::thread& thread : threads) thread.join();
  if (!broken.empty()) throw std::runtime_error(broken);
  findings.print_distribution();
  if (!options.json.empty()) findings.write(options.json);
  const int code = findings.conclude();
  return signal != 0 ? 128 + signal : code;
}

}  // namespace

void add_bench_faults(CLI::App& bench, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* faults =
      bench.add_subcommand("faults", "Inject random faults into ranks, and check how the other ranks react");
  faults->footer(
      "Each run starts 2 to 8 processes, lets one or two of them die, leave, fail or be late in a phase "
      "drawn at\n"
      "random (group setup, idle, small and large all-reduces, gradient steps, leaving, shrinking), and "
      "checks: "
      "every\n"
      "call returns by its deadline (else a hang); errors name the ranks at fault and no others, the "
      "survivors agree\n"
      "on the surviving ranks and on every bit of a sum, or that they are too few (else a disagreement); no "
      "process, "
      "file,\n"
      "socket, descriptor or thread is left (else a leftover). As root the runs have a /dev/shm of their "
      "own;\n"
      "otherwise files there are not checked. Exit code 1 if anything was found.");
  faults->add_option("--runs", options->runs, "number of runs, default 100")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000'000}));
  faults->add_option("--seed", options->seed, "seed of the random draws, default 1")
      ->check(CLI::Range(uint64_t{0}, uint64_t{INT64_MAX}));  // a negative number is parsed as a larger one
  faults
      ->add_option("--only", options->only,
                   "execute only the run of this number, with the same draw as among the others")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}));
  faults->add_option("--backends", options->range.backends, "default: shm, ucx and shm+ucx, if available")
      ->delimiter(',');
  faults
      ->add_option("--phases", options->phases,
                   "phases to draw from: forming, idle, small, private, arena, reducer, leaving, shrink, "
                   "twice; default: all")
      ->delimiter(',');
  faults->add_option("--ranks", options->ranks, "processes of a run: a number or a range, default 2-8");
  faults->add_option("--jobs", options->jobs, "runs at a time, default 1")->check(CLI::Range(1, 64));
  faults->add_option("--json", options->json, "also write every run's result to this file");
  faults->add_flag("--verbose", options->verbose,
                   "print a line for every run, and all messages of the ranks of a failed run");
  faults->add_option("--rank", options->rank)->group("");
  faults->add_option("--store", options->store)->group("");
  faults->add_option("--parent", options->parent)->group("");
  faults->callback([options, &bench, exit_code] {
    if (bench.get_subcommands().size() > 1)
      throw CLI::ValidationError("weft bench faults", "it runs alone, without other benchmarks");
    set_ranks(options.get());
    set_phases(options.get());
    if (options->rank >= 0) {
      const Draw draw = faults::draw(options->range, options->seed, static_cast<uint64_t>(options->only));
      *exit_code = faults::be_rank(draw, options->rank, options->store, options->parent);
      return;
    }
    set_backends(options.get());
    if (options->range.backends.empty())
      throw std::runtime_error(
          "none of the backends shm, ucx and shm+ucx is available; `weft info` prints the reasons");
    *exit_code = run_all(*options);
  });
}
