// Runs weft on several hosts, over ssh: `weft run --hosts` starts one `weft run` on each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/launch.h"

struct HostRanks {
  std::string host;  // "node1", "user@node1", "fd00::1"
  int ranks = 1;
};

// Parses "node1:8,node2:8" or "[fd00::1]:8"; without a number a host has one rank. Throws std::runtime_error,
// with the entry, for anything else and for a host that comes twice.
std::vector<HostRanks> parse_host_list(const std::string& text);
// Parses a file with a host in each line: "node1:8", "node1 slots=8" (Open MPI) or "node1"; # begins a
// comment.
std::vector<HostRanks> read_host_file(const std::string& path);
// Leaves the first `ranks` ranks of the list. Throws if the list has fewer.
std::vector<HostRanks> first_ranks(const std::vector<HostRanks>& hosts, int ranks);

struct HostsOptions {
  std::vector<HostRanks> hosts;
  std::string ssh =
      "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=3";
  std::string called = "weft run";  // the command that the user called, for messages
  std::string program;              // the path of weft on the hosts; empty: that of this program
  std::vector<std::pair<std::string, std::string>> environment;  // to set on all hosts
};

// Returns this process's variables of Weft that are settings. The ranks on other hosts get them.
std::vector<std::pair<std::string, std::string>> weft_settings();
// Returns the path of weft on the hosts.
std::string host_program(const HostsOptions& options);
// Returns the command that runs weft with these words on a host, in place of a shell. This host needs no ssh.
std::vector<std::string> host_command(const HostsOptions& options, const HostRanks& host,
                                      const std::vector<std::string>& words);

// Starts the ranks of `job` on the hosts and returns when all have ended, with the exit code of the first
// host that failed. The secret, which is new for each job, goes over the standard input of ssh, and so do
// signals.
int launch_on_hosts(const HostsOptions& options, const LaunchOptions& job);
