// weft run: starts processes as the ranks of a job: local ones, those of this host, or those of several
// hosts.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "commands.h"
#include "environment/secret.h"
#include "hosts/host_options.h"
#include "launch.h"
#include "option_checks.h"
#include "suggest.h"

namespace {

struct RunOptions {
  LaunchOptions job;
  HostChoice hosts;
  std::vector<std::string> environment;  // NAME or NAME=VALUE
  bool controlled = false;               // by the `weft run` that started this one over ssh
};

[[noreturn]] void wrong(const std::string& text) {
  throw CLI::ValidationError("run", text);
}

// Checks combinations of options. words: those after weft run's own options and before "--".
void check(const CLI::App& run, const RunOptions& options, const std::vector<std::string>& words) {
  const LaunchOptions& job = options.job;
  // The parser takes the first unknown word for the command.
  if (!words.empty() && words[0].starts_with('-')) {
    const std::string name = words[0].substr(0, words[0].find('='));
    wrong("unknown option " + name + " of weft run" + suggestion(name, option_names(run), "options") +
          "\nWrite -- before the command if its name begins with -");
  }
  if (job.command.empty()) wrong("the command to start is missing, for example: weft run -n 2 -- ./program");
  if (options.hosts.given()) return;
  if (job.ranks == 0) wrong("--ranks is required, unless --hosts lists the ranks");
  if (!options.environment.empty()) wrong("--env is for --hosts: without it the ranks have this environment");
  const int end = job.first_rank + job.ranks, size = std::max(job.size, job.ranks);
  if (end > size) {
    wrong("--first-rank plus --ranks is " + std::to_string(end) + ", expected at most " +
          std::to_string(size) + ", the number of ranks on all hosts; set that with --size");
  }
  if (job.size <= job.ranks) return;
  if (job.store.empty()) {
    wrong(
        "--size is more than --ranks, so other hosts have ranks too: give the same "
        "--store=tcp://HOST_OF_RANK_0:PORT on every host");
  }
}

// Returns weft_settings, and the variables that --env names.
std::vector<std::pair<std::string, std::string>> environment_for(const std::vector<std::string>& named) {
  std::vector<std::pair<std::string, std::string>> variables = weft_settings();
  for (const std::string& each : named) {
    const size_t equals = each.find('=');
    const std::string name = each.substr(0, equals);
    if (name.empty()) wrong("--env " + each + " names no variable: give NAME or NAME=VALUE");
    const char* const value = equals == each.npos ? std::getenv(name.c_str()) : each.c_str() + equals + 1;
    if (value == nullptr) wrong("--env " + each + ": this variable is not set here; give NAME=VALUE");
    variables.emplace_back(name, value);
  }
  return variables;
}

int run_on_hosts(RunOptions& options) {
  options.hosts.read();
  HostsOptions& on = options.hosts.on;
  try {
    if (options.job.ranks > 0) on.hosts = first_ranks(on.hosts, options.job.ranks);
  } catch (const std::runtime_error& error) {
    wrong(error.what());
  }
  on.environment = environment_for(options.environment);
  return launch_on_hosts(on, options.job);
}

// Reads the secret, which is the first line of standard input; what follows is for SuperviseOptions::control.
std::string read_secret() {
  std::string line;
  for (char c = 0; line.size() <= weft::kMaxSecretBytes && ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n';)
    line += c;
  if (line.size() > weft::kMaxSecretBytes) throw std::runtime_error("the job's secret is too long");
  if (line.empty()) throw std::runtime_error("standard input ended before the job's secret");
  return line;
}

void add_options(CLI::App* run, RunOptions* options) {
  LaunchOptions& job = options->job;
  run->add_option("-n,--ranks", job.ranks,
                  "number of processes; with --hosts: of all hosts (default: all of the list)")
      ->check(CLI::Range(1, 65536));
  const HostFlags hosts = add_host_options(
      *run, "start the ranks on these hosts over ssh: HOST:RANKS,HOST:RANKS,...", &options->hosts);
  run->add_option("-x,--env", options->environment,
                  "with --hosts: a variable that the ranks get, NAME or NAME=VALUE, beside those of Weft")
      ->allow_extra_args(false);
  run->add_option("--first-rank", job.first_rank, "number of the first rank here (default 0)")
      ->check(CLI::Range(0, 65535))
      ->excludes(hosts.list)
      ->excludes(hosts.file);
  run->add_option("--size", job.size, "number of ranks on all hosts (default: those here)")
      ->check(CLI::Range(1, 65536))
      ->excludes(hosts.list)
      ->excludes(hosts.file);
  run->add_option("--store", job.store,
                  "address of the store through which the ranks find each other: unix:@NAME, "
                  "tcp://HOST:PORT or file:///FOLDER (default: a unix socket with a random name, or a port "
                  "of the first host)");
  run->add_option_function<std::string>(
         "--prefix",
         [&job](const std::string& which) {
           job.prefix = which == "all" ? Prefix::kAll : which == "others" ? Prefix::kOthers : Prefix::kNone;
         },
         "ranks whose output lines start with [rank]: all (default), others (all but rank 0) or none")
      ->check(CLI::IsMember({"all", "others", "none"}))
      ->option_text("WHICH");
  run->add_option("--timeout", job.timeout_s, "end the job after this number of seconds (default: no limit)")
      ->check(number_from(0, kYearS));
  run->add_option(
         "--grace", job.grace_s,
         "seconds that the other ranks have to end by themselves after the first failure (default 2)")
      ->check(number_from(0, kYearS));
  run->add_flag("--controlled", options->controlled, "the secret and signals come over standard input")
      ->group("");
}

}  // namespace

void add_run(CLI::App& app, const std::vector<std::string>& tail, int* exit_code) {
  auto options = std::make_shared<RunOptions>();
  options->job.ranks = 0;
  CLI::App* run =
      app.add_subcommand("run", "Start processes as the ranks of a job, here or on several hosts");
  run->footer(
      "weft run [OPTIONS] -- COMMAND [ARGUMENTS...]\n\n"
      "Each process gets WEFT_RANK, WEFT_SIZE, WEFT_LOCAL_RANK, WEFT_LOCAL_SIZE, WEFT_STORE and\n"
      "WEFT_SECRET_FILE, and finds the others with weft_comm_create(context, NULL, ...). Standard input is\n"
      "empty. Output is forwarded line by line. When a rank fails, the others have --grace seconds to end\n"
      "by themselves, then get SIGTERM, and SIGKILL 5 s later. The exit code is that of the first failure\n"
      "(128 + signal, 124 after --timeout, 255 if a host cannot be reached).\n\n"
      "On several hosts: --hosts, with ssh to each host without a password, and this program and the command "
      "at\n"
      "the same paths there. Without ssh: one `weft run` on each host, with --first-rank, --size and\n"
      "--store=tcp://HOST_OF_RANK_0:PORT, and the job's secret in WEFT_SECRET_FILE (or WEFT_SECRET) "
      "everywhere.");
  run->prefix_command();
  add_options(run, options.get());
  run->callback([run, options, &tail, exit_code] {
    const std::vector<std::string> words = run->remaining();
    LaunchOptions& job = options->job;
    job.command = words;
    // If the command comes before "--", that is one of its own words.
    const bool skip = words.empty() && !tail.empty();
    job.command.insert(job.command.end(), tail.begin() + (skip ? 1 : 0), tail.end());
    check(*run, *options, words);
    if (options->controlled) {
      job.secret = read_secret();
      job.control = STDIN_FILENO;
    }
    *exit_code = options->hosts.given() ? run_on_hosts(*options) : launch(job);
  });
}
