// weft run: local processes as the ranks of a job.
#include <map>
#include <memory>

#include "commands.h"
#include "launch.h"

void add_run(CLI::App& app, const std::vector<std::string>& tail, int* exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* run = app.add_subcommand("run", "Start N local processes as the ranks of a job");
  run->footer(
      "weft run [OPTIONS] -- COMMAND [ARGUMENTS...]\n\n"
      "Each process gets WEFT_RANK, WEFT_SIZE, WEFT_STORE and WEFT_SECRET, and finds the others with\n"
      "weft_comm_create(context, NULL, ...). Standard input is empty. Output is passed on line by line.\n"
      "When a rank fails, the others have --grace seconds to end by themselves, then get SIGTERM, and\n"
      "SIGKILL 5 s later. The exit code is that of the first failure (128 + signal, 124 after --timeout).");
  run->prefix_command();
  run->add_option("-n,--ranks", options->ranks, "number of processes")
      ->check(CLI::Range(1, 4096))
      ->required();
  run->add_option("--store", options->store,
                  "where the ranks meet: unix:@NAME or tcp://127.0.0.1:PORT (default: "
                  "a unix socket with a random name)");
  run->add_option("--prefix", options->prefix,
                  "lines that start with [rank]: all, others (not rank 0's) or none")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Prefix>{
          {"all", Prefix::kAll}, {"others", Prefix::kOthers}, {"none", Prefix::kNone}}));
  run->add_option("--timeout", options->timeout_s, "end the job after so many seconds")
      ->check(CLI::NonNegativeNumber);
  run->add_option("--grace", options->grace_s, "seconds the others have after the first failure, default 2")
      ->check(CLI::NonNegativeNumber);
  run->callback([run, options, &tail, exit_code] {
    options->command = run->remaining();
    options->command.insert(options->command.end(), tail.begin(), tail.end());
    if (options->command.empty()) throw CLI::ValidationError("run", "no command: weft run -n 2 -- ./program");
    *exit_code = launch(*options);
  });
}
