// Which processes `weft status` and `weft top` ask, and their answers.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "jobs.h"
#include "weft/hosts/host_options.h"

struct StatusQuery {
  std::string job;  // name, or digits of a communicator; empty: all
  HostChoice hosts;
  double wait_s = 15;  // for the answers of other hosts
};

struct StatusAnswer {
  std::vector<JobRow> jobs;
  size_t processes = 0;
  int unread = 0;                     // lines that could not be read
  std::vector<std::string> problems;  // of hosts: sentences
};

// Adds JOB and the options that choose hosts. query must outlive the parse.
void add_query_options(CLI::App& command, StatusQuery* query);
// Reads the list of hosts. Throws CLI::ValidationError.
void check_query(StatusQuery* query);
// Returns the answers of this host's processes as lines, for another weft.
std::string ask_here();
StatusAnswer ask(const StatusQuery& query);
// Returns "No process of this user has a communicator (2 use Weft)." or the like.
std::string nothing_text(const StatusQuery& query, const StatusAnswer& answer);
