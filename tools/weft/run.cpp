// weft run: starts local processes as the ranks of a job, or as those of this host.
#include <algorithm>
#include <map>
#include <memory>

#include "commands.h"
#include "launch.h"

namespace {

// Checks combinations of options. words: those after weft run's own options and before "--".
void check(const LaunchOptions& options, const std::vector<std::string>& words) {
  const auto wrong = [](const std::string& text) { throw CLI::ValidationError("run", text); };
  // The parser takes the first unknown word for the command.
  if (!words.empty() && words[0].starts_with('-')) {
    wrong("unknown option " + words[0] +
          " of weft run; write -- before the command if its name begins with -");
  }
  if (options.command.empty())
    wrong("the command to start is missing, for example: weft run -n 2 -- ./program");
  const int end = options.first_rank + options.ranks, size = std::max(options.size, options.ranks);
  if (end > size) {
    wrong("--first-rank plus --ranks is " + std::to_string(end) + ", expected at most " +
          std::to_string(size) + ", the number of ranks on all hosts; set that with --size");
  }
  if (options.size <= options.ranks) return;
  if (options.store.empty()) {
    wrong(
        "--size is more than --ranks, so other hosts have ranks too: give the same "
        "--store=tcp://HOST_OF_RANK_0:PORT on every host");
  }
}

}  // namespace

void add_run(CLI::App& app, const std::vector<std::string>& tail, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* run = app.add_subcommand("run", "Start N local processes as the ranks of a job");
  run->footer(
      "weft run [OPTIONS] -- COMMAND [ARGUMENTS...]\n\n"
      "Each process gets WEFT_RANK, WEFT_SIZE, WEFT_STORE and WEFT_SECRET, and finds the others with\n"
      "weft_comm_create(context, NULL, ...). Standard input is empty. Output is forwarded line by line.\n"
      "When a rank fails, the others have --grace seconds to end by themselves, then get SIGTERM, and\n"
      "SIGKILL 5 s later. The exit code is that of the first failure (128 + signal, 124 after --timeout).\n\n"
      "On several hosts: one `weft run` on each, with --first-rank, --size and "
      "--store=tcp://HOST_OF_RANK_0:PORT,\n"
      "and the job's secret in WEFT_SECRET_FILE (or WEFT_SECRET) everywhere.");
  run->prefix_command();
  run->add_option("-n,--ranks", options->ranks, "number of processes")
      ->check(CLI::Range(1, 4096))
      ->required();
  run->add_option("--first-rank", options->first_rank, "number of the first rank here (default 0)")
      ->check(CLI::Range(0, 65535));
  run->add_option("--size", options->size, "number of ranks on all hosts (default: those here)")
      ->check(CLI::Range(1, 65536));
  run->add_option("--store", options->store,
                  "address of the store through which the ranks find each other: unix:@NAME or "
                  "tcp://HOST:PORT (default: a unix socket with a random name)");
  run->add_option(
         "--prefix", options->prefix,
         "ranks whose output lines start with [rank]: all (default), others (all but rank 0) or none")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Prefix>{
          {"all", Prefix::kAll}, {"others", Prefix::kOthers}, {"none", Prefix::kNone}}))
      ->option_text("WHICH");
  run->add_option("--timeout", options->timeout_s,
                  "end the job after this number of seconds (default: no limit)")
      ->check(CLI::NonNegativeNumber);
  run->add_option(
         "--grace", options->grace_s,
         "seconds that the other ranks have to end by themselves after the first failure (default 2)")
      ->check(CLI::NonNegativeNumber);
  run->callback([run, options, &tail, exit_code] {
    const std::vector<std::string> words = run->remaining();
    options->command = words;
    // If the command comes before "--", that is one of its own words.
    const bool skip = words.empty() && !tail.empty();
    options->command.insert(options->command.end(), tail.begin() + (skip ? 1 : 0), tail.end());
    check(*options, words);
    *exit_code = launch(*options);
  });
}
