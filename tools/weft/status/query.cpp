#include "query.h"

#include "base/text.h"
#include "weft/hosts/ask_hosts.h"
#include "weft/option_checks.h"

using weft::cat;

void add_query_options(CLI::App& command, StatusQuery* query) {
  command.add_option("JOB", query->job,
                     "a job's name (WEFT_JOB), or the first digits of a communicator (default: all)");
  add_host_options(command, "ask there, over ssh: HOST,HOST,...; this host only if it is in the list",
                   &query->hosts);
  command
      .add_option("--wait", query->wait_s, "with --hosts: seconds to wait for a host's answer (default 15)")
      ->check(number_from(0.1, 3600));
}

void check_query(StatusQuery* query) {
  if (query->hosts.given()) query->hosts.read();
}

std::string ask_here() {
  return ask_processes(kAnswerMs);
}

StatusAnswer ask(const StatusQuery& query) {
  StatusAnswer answer;
  std::string lines;
  if (query.hosts.given()) {
    HostAnswers hosts = ask_hosts(query.hosts.on, {"status", "--lines"}, query.wait_s);
    lines = std::move(hosts.text);
    for (const HostProblem& problem : hosts.problems)
      answer.problems.push_back(cat("host ", problem.host, " gave no whole answer: ", problem.reason));
  } else {
    lines = ask_here();
  }
  const std::vector<LiveProcess> processes = parse_status(lines, &answer.unread);
  answer.jobs = jobs_of(processes, query.job);
  answer.processes = processes.size();
  if (answer.unread > 0)
    answer.problems.push_back(cat(answer.unread, " lines of answers could not be read and were left out"));
  return answer;
}

std::string nothing_text(const StatusQuery& query, const StatusAnswer& answer) {
  return cat("No process of this user has a communicator",
             query.job.empty() ? "" : cat(" of the job ", query.job), " (", answer.processes, " use Weft).");
}
