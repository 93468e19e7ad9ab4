#include "hosts.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "base/process.h"
#include "environment/network.h"
#include "weft/supervise.h"

extern char** environ;

namespace {

constexpr int kMostRanks = 65536;

[[noreturn]] void bad_entry(std::string_view entry, const char* problem) {
  throw std::runtime_error("\"" + std::string(entry) + "\" in the list of hosts " + problem +
                           ": write HOST, HOST:RANKS or [IPV6_ADDRESS]:RANKS");
}

int parse_ranks(std::string_view entry, std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > kMostRanks)
    bad_entry(entry, "has no number of ranks from 1 to 65536");
  return ranks;
}

HostRanks parse_entry(std::string_view entry) {
  HostRanks found;
  std::string_view rest = entry;
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == rest.npos) bad_entry(entry, "has no ] after its address");
    found.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest[0] != ':') bad_entry(entry, "is no host");
  } else {
    const size_t colon = rest.find(':');
    found.host = rest.substr(0, colon);
    rest.remove_prefix(std::min(colon, rest.size()));
  }
  // A host is an argument of ssh, which would take "-oProxyCommand=..." for an option.
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("._-@:%").find(c) != std::string_view::npos;
  };
  if (found.host.empty() || found.host[0] == '-' ||
      !std::all_of(found.host.begin(), found.host.end(), allowed))
    bad_entry(entry, "is no host");
  if (!rest.empty()) found.ranks = parse_ranks(entry, rest.substr(1));
  return found;
}

void add(HostRanks host, std::vector<HostRanks>* hosts) {
  const auto is_it = [&](const HostRanks& other) { return other.host == host.host; };
  if (std::any_of(hosts->begin(), hosts->end(), is_it)) bad_entry(host.host, "comes twice");
  hosts->push_back(std::move(host));
}

// Quotes a word for the shell of the host.
std::string shell_quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string own_path() {
  char path[PATH_MAX] = "";
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "weft";
}

// True for this machine's own name, which needs no ssh.
bool is_here(const std::string& host) {
  const std::string own = weft::host_name();
  return host == "localhost" || host == own || host == own.substr(0, own.find('.'));
}

// The ranks meet at the first host, at a port of WEFT_PORTS, else below those that the kernel gives to
// connections.
std::string default_store(const HostRanks& first) {
  weft::NetworkSettings network;
  if (const weft::Status read = weft::process_network(&network); !read.ok())
    throw std::runtime_error(read.text());
  if (network.first_port == 0) network = {.first_port = 10000, .last_port = 29999};
  if (first.host == "localhost") {
    throw std::runtime_error(
        "the first host is localhost, at which other hosts cannot meet it: write its name, or give "
        "--store=tcp://HOST:PORT");
  }
  std::string name = first.host.substr(first.host.find('@') + 1);
  if (name.find(':') != name.npos) name = "[" + name + "]";
  const unsigned long drawn = std::stoul(random_hex(8), nullptr, 16);
  return "tcp://" + name + ":" +
         std::to_string(network.first_port + drawn % static_cast<unsigned long>(network.ports()));
}

// Splits at spaces.
std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns the command that gives a text to a shell of the host.
std::vector<std::string> on_host(const HostsOptions& options, const HostRanks& host,
                                 const std::string& text) {
  if (is_here(host.host)) return {"/bin/sh", "-c", text};
  std::vector<std::string> command = words_of(options.ssh);
  command.insert(command.end(), {host.host, text});
  return command;
}

// Returns the command that starts the ranks of a host, for a shell there.
std::string start_text(const HostsOptions& options, const LaunchOptions& job, const HostRanks& host,
                       int first_rank, int size, const std::string& store) {
  char folder[PATH_MAX] = "";
  std::string text;
  if (::getcwd(folder, sizeof folder) != nullptr) text = "cd " + shell_quoted(folder) + " 2>/dev/null; ";
  text += "exec env";
  for (const auto& [name, value] : options.environment) text += " " + shell_quoted(name + "=" + value);
  constexpr const char* kPrefixes[] = {"all", "others", "none"};
  std::vector<std::string> words = {host_program(options),
                                    "run",
                                    "--controlled",
                                    "-n",
                                    std::to_string(host.ranks),
                                    "--prefix",
                                    kPrefixes[static_cast<int>(job.prefix)],
                                    "--grace",
                                    std::to_string(job.grace_s)};
  if (size > host.ranks) {
    words.insert(words.end(), {"--first-rank", std::to_string(first_rank), "--size", std::to_string(size),
                               "--store", store});
  }
  words.emplace_back("--");
  words.insert(words.end(), job.command.begin(), job.command.end());
  for (const std::string& word : words) text += " " + shell_quoted(word);
  return text;
}

}  // namespace

std::vector<HostRanks> parse_host_list(const std::string& text) {
  std::vector<HostRanks> hosts;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, ',');) add(parse_entry(entry), &hosts);
  if (hosts.empty()) bad_entry(text, "is no host");
  return hosts;
}

std::vector<HostRanks> read_host_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the host file " + path);
  std::vector<HostRanks> hosts;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    HostRanks host = parse_entry(words[0]);
    constexpr std::string_view kSlots = "slots=";
    for (size_t i = 1; i < words.size(); ++i) {
      if (!words[i].starts_with(kSlots)) bad_entry(line, "has a word other than slots=RANKS after the host");
      host.ranks = parse_ranks(line, std::string_view(words[i]).substr(kSlots.size()));
    }
    add(std::move(host), &hosts);
  }
  if (hosts.empty()) throw std::runtime_error("the host file " + path + " names no host");
  return hosts;
}

std::vector<HostRanks> first_ranks(const std::vector<HostRanks>& hosts, int ranks) {
  std::vector<HostRanks> first;
  int left = ranks;
  for (const HostRanks& host : hosts) {
    if (left == 0) break;
    first.push_back({host.host, std::min(host.ranks, left)});
    left -= first.back().ranks;
  }
  if (left > 0) {
    throw std::runtime_error("the hosts have " + std::to_string(ranks - left) + " ranks, but --ranks is " +
                             std::to_string(ranks) + ": give more ranks to a host, HOST:RANKS");
  }
  return first;
}

std::vector<std::pair<std::string, std::string>> weft_settings() {
  constexpr std::string_view kOwn[] = {"WEFT_RANK",       "WEFT_SIZE",       "WEFT_LOCAL_RANK",
                                       "WEFT_LOCAL_SIZE", "WEFT_STORE",      "WEFT_STORE_EXTERNAL",
                                       "WEFT_SECRET",     "WEFT_SECRET_FILE"};
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("WEFT_") || std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn))
      continue;
    variables.emplace_back(name, text.substr(std::min(name.size() + 1, text.size())));
  }
  return variables;
}

std::string host_program(const HostsOptions& options) {
  return options.program.empty() ? own_path() : options.program;
}

std::vector<std::string> host_command(const HostsOptions& options, const HostRanks& host,
                                      const std::vector<std::string>& words) {
  std::string text = "exec " + shell_quoted(host_program(options));
  for (const std::string& word : words) text += " " + shell_quoted(word);
  return on_host(options, host, text);
}

int launch_on_hosts(const HostsOptions& options, const LaunchOptions& job) {
  int size = 0;
  for (const HostRanks& host : options.hosts) size += host.ranks;
  if (size > kMostRanks) throw std::runtime_error("the hosts have more than 65536 ranks");
  const bool alone = options.hosts.size() == 1;
  const std::string store = alone || !job.store.empty() ? job.store : default_store(options.hosts[0]);
  const std::string secret = random_hex(32) + "\n";
  std::vector<Child> children;
  int first_rank = 0;
  for (const HostRanks& host : options.hosts) {
    Child child;
    child.number = host.host;
    child.name = "host " + host.host;
    child.command = on_host(options, host, start_text(options, job, host, first_rank, size, store));
    child.input = secret;
    children.push_back(std::move(child));
    first_rank += host.ranks;
  }
  SuperviseOptions how;
  how.program = options.called;
  how.timeout_s = job.timeout_s;
  how.grace_s = job.grace_s;
  return supervise(children, how);
}
