// weft top: the same as weft status, again and again, with the rates between two answers.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "base/text.h"
#include "query.h"
#include "rates.h"
#include "terminal.h"
#include "weft/commands.h"
#include "weft/option_checks.h"

namespace {

using weft::cat;

struct TopOptions {
  StatusQuery query;
  double interval_s = 1;
  uint64_t count = 0;  // tables; 0: until the user quits
};

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string title(const TopOptions& options, bool keys) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char clock[16] = "";
  std::strftime(clock, sizeof clock, "%H:%M:%S", ::localtime_r(&now, &local));
  return cat("weft top, ", clock, ", every ", options.interval_s, " s", keys ? "; q quits" : "", "\n\n");
}

std::string view(const TopOptions& options, const StatusAnswer& answer, RateMeter* meter) {
  const std::map<std::string, JobRates> rates = meter->take(answer.jobs, steady_s());
  std::string text;
  for (const JobRow& job : answer.jobs) {
    const auto found = rates.find(job.comm);
    text += text_of(job, found == rates.end() ? nullptr : &found->second);
  }
  if (answer.jobs.empty()) text += nothing_text(options.query, answer) + "\n\n";
  for (const std::string& problem : answer.problems) text += problem + "\n";
  return text;
}

// Returns 1 if the last answer had no communicator.
int watch(const TopOptions& options) {
  const bool screen = ::isatty(STDOUT_FILENO) == 1, keys = screen && ::isatty(STDIN_FILENO) == 1;
  QuitWatch quit(keys);
  std::optional<Terminal> terminal;
  if (screen) terminal.emplace();
  RateMeter meter;
  bool found = false;
  double next_s = steady_s();
  for (uint64_t shown = 1;; ++shown) {
    const StatusAnswer answer = ask(options.query);
    found = !answer.jobs.empty();
    const std::string text = title(options, keys) + view(options, answer, &meter);
    if (terminal) {
      terminal->draw(text);
    } else {
      std::fputs(text.c_str(), stdout);
      if (std::fflush(stdout) != 0) break;  // nobody reads it any more
    }
    if (shown == options.count) break;
    next_s = std::max(next_s + options.interval_s, steady_s());
    if (quit.wait(next_s - steady_s())) break;
  }
  return found ? 0 : 1;
}

}  // namespace

void add_top(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* top = app.add_subcommand("top", "Show what weft status shows, live, with rates");
  top->footer(
      "Each table has the rates since the one before: steps, operations and bytes per second, and in which "
      "part\n"
      "of the steps the others waited longest for a rank, and how long. So the first table has none. On a "
      "terminal\n"
      "the table replaces the one before, and q or Ctrl-C quits. Otherwise the tables follow each other. "
      "Exit "
      "code:\n"
      "0 if the last table has a communicator, else 1.");
  add_query_options(*top, &options->query);
  top->add_option("--interval", options->interval_s, "seconds from one table to the next (default 1)")
      ->check(number_from(0.1, 3600));
  top->add_option("--count", options->count, "end after this number of tables (default: never)")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  top->callback([options, exit_code] {
    check_query(&options->query);
    *exit_code = watch(*options);
  });
}
