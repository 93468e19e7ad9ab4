// The options by which commands choose hosts: --hosts, --hostfile, --ssh and --weft.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "hosts.h"

struct HostChoice {
  std::optional<std::string> list;
  std::optional<std::string> file;
  HostsOptions on;

  bool given() const { return list || file; }
  // Fills on.hosts. Throws CLI::ValidationError, with the entry that is wrong.
  void read();
};

struct HostFlags {
  CLI::Option* list;
  CLI::Option* file;
};

// Adds the options, of which one at most of --hosts and --hostfile may be given. purpose: the help of
// --hosts. choice must outlive the parse.
HostFlags add_host_options(CLI::App& command, const std::string& purpose, HostChoice* choice);
