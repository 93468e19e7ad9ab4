// weft doctor: examines this host, or the ranks of a job, before a long run, and says how to mend what it
// finds.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "finding.h"
#include "inspect.h"
#include "weft/commands.h"
#include "weft/launch.h"

namespace {

struct DoctorOptions {
  bool as_json = false;
  bool list = false;
  int ranks = 0;  // to start on this host
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
  const doctor::Inspection inspection =
      options.joined ? doctor::inspect_job(static_cast<int64_t>(options.wait_s * 1000), &together)
                     : doctor::inspect_alone();
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
      "  mpirun -n 16 weft doctor --joined\n\n"
      "An error means that a job fails, a warning that it is slower or at risk. The exit code is 1 if there\n"
      "is an error, 2 for wrong options, else 0.");
  command->add_flag("--json", options->as_json, "as one JSON object with the list `findings`");
  command->add_flag("--list", options->list, "list the checks, with the worst severity of their findings");
  command
      ->add_option("-n,--ranks", options->ranks,
                   "start this number of ranks on this host, and examine them together")
      ->check(CLI::Range(2, 64));
  command->add_flag("--joined", options->joined, "this process is a rank that a launcher started");
  command
      ->add_option("--wait", options->wait_s,
                   "seconds that ranks wait for each other in each step (default 20)")
      ->check(CLI::Range(0.1, 3600.0));
  command->callback([options, &words, exit_code] {
    if (options->list) {
      *exit_code = list_checks(options->as_json);
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
