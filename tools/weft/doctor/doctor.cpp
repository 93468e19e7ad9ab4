// weft doctor: examines this host, or the ranks of a job, before a long run, and says how to mend what it
// finds.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/text.h"
#include "weft/commands.h"
#include "weft/doctor/finding.h"
#include "weft/doctor/inspect.h"
#include "weft/hosts/ask_hosts.h"
#include "weft/hosts/host_options.h"
#include "weft/launch.h"
#include "weft/option_checks.h"

namespace {

struct DoctorOptions {
  bool as_json = false;
  bool list = false;
  int ranks = 0;  // to start on this host
  HostChoice hosts;
  std::vector<std::string> unreached;  // "HOST=REASON", for a rank that --hosts started
  bool joined = false;
  double wait_s = 20;
};

int list_checks(bool as_json) {
  nlohmann::json list = nlohmann::json::array();
  for (const doctor::Check& check : doctor::checks()) {
    if (!as_json) std::printf("%-17s %-8s %s\n", check.id, doctor::name(check.worst), check.looks_at);
    list.push_back({{"id", check.id},
                    {"worst", doctor::name(check.worst)},
                    {"looks_at", check.looks_at},
                    {"mend", check.mend}});
  }
  if (as_json) std::printf("%s\n", nlohmann::json{{"checks", list}}.dump(1).c_str());
  return 0;
}

int examine(const DoctorOptions& options) {
  bool together = true;
  doctor::Inspection inspection =
      options.joined ? doctor::inspect_job(static_cast<int64_t>(options.wait_s * 1000), &together)
                     : doctor::inspect_alone();
  for (const std::string& each : options.unreached) {
    const size_t equals = each.find('=');
    inspection.unreached.emplace_back(each.substr(0, equals), each.substr(std::min(equals + 1, each.size())));
  }
  const std::vector<doctor::Finding> findings = doctor::diagnose(inspection);
  const bool first = inspection.rank == 0;
  if (together && !first) return 0;  // rank 0 reports for all
  if (first && options.as_json) {
    std::printf("%s\n", doctor::describe(inspection, findings)
                            .dump(1, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    // A rank that did not meet the others reports by itself.
    std::fputs(doctor::text_of(inspection, findings).c_str(), first ? stdout : stderr);
  }
  return doctor::has_error(findings) ? 1 : 0;
}

// Asks each host whether it has this program, and runs the ranks on those that do.
int examine_hosts(DoctorOptions& options) {
  HostsOptions& on = options.hosts.on;
  options.hosts.read();
  const std::vector<HostProblem> problems = ask_hosts(on, {"--version"}, options.wait_s).problems;
  LaunchOptions job;
  job.prefix = Prefix::kOthers;
  job.grace_s = options.wait_s + 20;  // a rank that did not meet the others reports by itself
  job.command = {host_program(on), "doctor", "--joined", "--wait", weft::cat(options.wait_s)};
  if (options.as_json) job.command.emplace_back("--json");
  std::string list;
  for (const HostProblem& problem : problems) {
    std::erase_if(on.hosts, [&](const HostRanks& host) { return host.host == problem.host; });
    job.command.insert(job.command.end(), {"--unreached", problem.host + "=" + problem.reason});
    list += weft::cat("\n  ", problem.host, ": ", problem.reason);
  }
  if (on.hosts.empty()) throw std::runtime_error("no host gave a whole answer:" + list);
  on.called = "weft doctor";
  on.environment = weft_settings();
  return launch_on_hosts(on, job);
}

}  // namespace

void add_doctor(CLI::App& app, const std::vector<std::string>& words, int* exit_code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Find what keeps jobs from running here, or slows them down, and say how to mend it");
  command->footer(
      "Without options it examines this process and this host. With --joined each rank of a job that any\n"
      "launcher started examines its own, and the ranks compare: versions, backends, cores, clocks, which\n"
      "host reaches which, and the bandwidth of every pair, for example:\n"
      "  weft run -n 4 -- weft doctor --joined\n"
      "  mpirun -n 16 weft doctor --joined\n"
      "  weft doctor --hosts node1,node2\n\n"
      "An error means that a job fails, a warning that it is slower or at risk. The exit code is 1 if there\n"
      "is an error, 2 for wrong options, else 0.");
  command->add_flag("--json", options->as_json, "as one JSON object with the list `findings`");
  command->add_flag("--list", options->list, "list the checks, with the worst severity of their findings");
  CLI::Option* ranks = command
                           ->add_option("-n,--ranks", options->ranks,
                                        "start this number of ranks on this host, and examine them together")
                           ->check(CLI::Range(2, 64));
  const HostFlags hosts = add_host_options(
      *command, "start a rank on each of these hosts over ssh, or HOST:RANKS, and examine them together",
      &options->hosts);
  for (CLI::Option* option : {hosts.list, hosts.file}) option->excludes(ranks);
  command->add_option("--unreached", options->unreached)->group("");
  command->add_flag("--joined", options->joined, "this process is a rank that a launcher started");
  command
      ->add_option("--wait", options->wait_s,
                   "seconds that ranks wait for each other in each step (default 20)")
      ->check(number_from(0.1, 3600));
  command->callback([options, &words, exit_code] {
    if (options->list) {
      *exit_code = list_checks(options->as_json);
    } else if (options->hosts.given()) {
      *exit_code = examine_hosts(*options);
    } else if (options->joined || options->ranks == 0) {
      *exit_code = examine(*options);
    } else {
      LaunchOptions job;
      job.ranks = options->ranks;
      job.prefix = Prefix::kOthers;
      job.command = {"/proc/self/exe"};
      job.command.insert(job.command.end(), words.begin(), words.end());
      job.command.push_back("--joined");
      *exit_code = launch(job);
    }
  });
}
