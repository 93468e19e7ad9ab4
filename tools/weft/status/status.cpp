// weft status: asks the live processes of this user what their ranks do, and which rank the others wait for.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "query.h"
#include "weft/commands.h"

namespace {

using nlohmann::json;

struct StatusOptions {
  StatusQuery query;
  bool as_json = false;
  bool lines = false;  // what another `weft status` asks for
};

json json_of(const JobRow& job) {
  json ranks = json::array();
  for (const RankRow& row : job.ranks) {
    ranks.push_back({{"rank", row.rank},
                     {"host", row.host},
                     {"pid", row.pid},
                     {"answered", row.answered},
                     {"does", row.doing},
                     {"waits_for", row.waits_for},
                     {"waiting_ms", row.waiting_ms < 0 ? json(nullptr) : json(row.waiting_ms)}});
  }
  return {{"comm", job.comm},
          {"job", job.job},
          {"backend", job.backend},
          {"size", job.size},
          {"cause", name(job.diagnosis.cause)},
          {"ranks_at_fault", job.diagnosis.ranks},
          {"text", job.diagnosis.text},
          {"ranks", ranks}};
}

int show(const StatusOptions& options) {
  const StatusAnswer answer = ask(options.query);
  if (options.as_json) {
    json list = json::array();
    for (const JobRow& job : answer.jobs) list.push_back(json_of(job));
    const json all = {{"communicators", list},
                      {"processes", answer.processes},
                      {"unread", answer.unread},
                      {"problems", answer.problems}};
    std::printf("%s\n", all.dump(1, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    for (const JobRow& job : answer.jobs) std::fputs(text_of(job, nullptr).c_str(), stdout);
    if (answer.jobs.empty()) std::printf("%s\n", nothing_text(options.query, answer).c_str());
  }
  for (const std::string& problem : answer.problems) std::fprintf(stderr, "weft: %s\n", problem.c_str());
  return answer.jobs.empty() ? 1 : 0;
}

}  // namespace

void add_status(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* status =
      app.add_subcommand("status", "Ask running jobs what each rank does and whom it waits for");
  status->footer(
      "Asks the processes of this user on this host, or on those of --hosts. It works while ranks hang. Exit "
      "code: 0\n"
      "if a communicator is found, else 1. WEFT_STATUS=off keeps a process from answering.");
  add_query_options(*status, &options->query);
  status->add_flag("--json", options->as_json, "as JSON");
  status->add_flag("--lines", options->lines, "as another weft status reads it")->group("");
  status->callback([options, exit_code] {
    check_query(&options->query);
    if (options->lines) {
      std::fputs(ask_here().c_str(), stdout);
      *exit_code = 0;
    } else {
      *exit_code = show(*options);
    }
  });
}
