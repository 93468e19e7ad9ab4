// The network: addresses, which rank reaches which, MTUs, and the devices that UCX uses.
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "base/fd.h"
#include "base/text.h"
#include "environment/network.h"
#include "finding.h"
#include "rendezvous/socket.h"

namespace doctor {
namespace {

using weft::cat;

std::vector<Interface> read_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  const weft::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::vector<Interface> interfaces;
  std::set<std::string> seen;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!seen.insert(each->ifa_name).second) continue;
    ifreq request{};
    std::string(each->ifa_name).copy(request.ifr_name, IFNAMSIZ - 1);
    const bool known = ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0;
    interfaces.push_back({each->ifa_name, known ? request.ifr_mtu : kUnknown});
  }
  return interfaces;
}

// Returns the attempts between two ranks, by the pair.
std::map<std::pair<int, int>, std::vector<const Reach*>> by_pair(const Inspection& inspection) {
  std::map<std::pair<int, int>, std::vector<const Reach*>> pairs;
  for (const Reach& reach : inspection.reach) pairs[{reach.from, reach.to}].push_back(&reach);
  return pairs;
}

std::string from_text(const Reach& reach) {
  return rank_on_host(reach.from, reach.from_host);
}

std::string to_text(const Reach& reach) {
  return rank_on_host(reach.to, reach.to_host);
}

// Returns the devices behind "over" of UCX's description that lead to other hosts.
std::vector<std::string> networks(const std::string& detail) {
  static const std::set<std::string> inside = {"posix", "sysv",  "self",      "cma",
                                               "knem",  "xpmem", "cuda_copy", "cuda_ipc"};
  std::vector<std::string> found;
  const size_t over = detail.find(" over ");
  std::istringstream words(over == detail.npos ? "" : detail.substr(over + 6));
  for (std::string word; words >> word;) {
    if (word.ends_with(',')) word.pop_back();
    const std::string transport = word.substr(0, word.find('/'));
    if (word.ends_with("/lo") || inside.contains(transport)) continue;
    found.push_back(word);
  }
  return found;
}

bool uses_rdma(const std::string& network) {
  return network.starts_with("rc") || network.starts_with("dc") || network.starts_with("ud") ||
         network.starts_with("ib");
}

}  // namespace

void read(Network* network) {
  network->interfaces = read_interfaces();
  weft::NetworkSettings settings;  // wrong ones are found with the environment
  (void)weft::process_network(&settings).ok();
  (void)weft::interface_hosts(settings, &network->addresses).ok();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error))
    network->rdma.push_back(entry.path().filename());
}

void addresses(const Inspection& inspection, std::vector<Finding>* found) {
  std::map<std::string, std::map<std::string, int>> owners;  // by address and machine: a rank there
  for (const Facts& rank : inspection.ranks) {
    if (rank.network.addresses.empty()) {
      found->push_back({inspection.spans_hosts() ? Severity::kError : Severity::kNote,
                        {rank.rank},
                        "this host has no address besides loopback, so it can run jobs on one host alone"});
    }
    for (const std::string& address : rank.network.addresses)
      owners[address].try_emplace(rank.machine, rank.rank);
  }
  for (const auto& [address, machines] : owners) {
    if (machines.size() < 2) continue;
    std::vector<int> ranks;
    for (const auto& [machine, rank] : machines) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    found->push_back({Severity::kWarning, ranks,
                      cat("several hosts have the address ", address,
                          ", as bridges of containers do: it leads to the wrong host"),
                      "leave its interface out: WEFT_UCX_NET_DEVICES=eth0 names those to use"});
  }
}

void reachability(const Inspection& inspection, std::vector<Finding>* found) {
  for (const auto& [pair, attempts] : by_pair(inspection)) {
    std::string failed;
    bool reached = false, delayed = false;
    for (const Reach* reach : attempts) {
      reached = reached || reach->connected;
      if (reach->connected) continue;
      delayed = delayed || reach->delayed;
      failed += cat(failed.empty() ? "" : "; ", reach->address, ": ", reach->result);
    }
    const std::string from = from_text(*attempts[0]), to = to_text(*attempts[0]);
    if (!reached) {
      found->push_back(
          {Severity::kError, {pair.first, pair.second}, cat(from, " cannot connect to ", to, ": ", failed)});
    } else if (delayed) {
      found->push_back({Severity::kWarning,
                        {pair.first, pair.second},
                        cat(from, " cannot connect to some addresses of ", to, " (", failed,
                            "): trying them delays the start, and UCX may choose one of them"),
                        "leave their interfaces out: WEFT_UCX_NET_DEVICES=eth0 names those to use"});
    }
  }
}

void path_mtu(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Reach& reach : inspection.reach) {
    if (!reach.connected || reach.result == kWorks) continue;
    found->push_back({Severity::kError,
                      {reach.from, reach.to},
                      cat(from_text(reach), " can connect to ", to_text(reach), " at ", reach.address,
                          ", but data does not pass: ", reach.result)});
  }
}

void mtu(const Inspection& inspection, std::vector<Finding>* found) {
  constexpr int64_t kLeastIpv6 = 1280;
  std::map<std::string, std::map<int64_t, std::vector<const Facts*>>> by_name;
  for (const Facts& rank : inspection.ranks) {
    for (const Interface& interface : rank.network.interfaces) {
      if (interface.mtu == kUnknown) continue;
      by_name[interface.name][interface.mtu].push_back(&rank);
      if (interface.mtu < kLeastIpv6) {
        found->push_back({Severity::kWarning,
                          {rank.rank},
                          cat("interface ", interface.name, " sends packets of at most ", interface.mtu,
                              " bytes: that costs bandwidth, and IPv6 does not work")});
      }
    }
  }
  for (const auto& [name, mtus] : by_name) {
    if (mtus.size() < 2) continue;
    std::vector<int> ranks;
    std::string text;
    for (const auto& [mtu, there] : mtus) {
      for (const Facts* rank : there) ranks.push_back(rank->rank);
      text += cat(text.empty() ? "" : " and ", mtu, " on ", rank_on_host(*there[0]));
    }
    std::sort(ranks.begin(), ranks.end());
    found->push_back({Severity::kWarning, ranks,
                      cat("the MTU of ", name, " is ", text, ": large packets may get lost on the way")});
  }
}

void ucx_devices(const Inspection& inspection, std::vector<Finding>* found) {
  for (const Facts& rank : inspection.ranks) {
    for (const BackendFact& backend : rank.software.backends) {
      if (backend.name != "ucx" || !backend.available) continue;
      const std::vector<std::string> used = networks(backend.detail);
      if (used.empty() && inspection.spans_hosts()) {
        found->push_back({Severity::kError,
                          {rank.rank},
                          cat("UCX uses no device that leads to other hosts: ", backend.detail)});
      }
      if (!rank.network.rdma.empty() && std::none_of(used.begin(), used.end(), uses_rdma)) {
        found->push_back(
            {Severity::kWarning,
             {rank.rank},
             cat("UCX does not use the RDMA device ", rank.network.rdma[0], ": ", backend.detail)});
      }
    }
  }
}

}  // namespace doctor
