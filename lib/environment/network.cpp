#include "environment/network.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace weft {
namespace {

constexpr size_t kMaxInterfaceName = 15;  // the kernel's limit

// Reads a port from the beginning of *text, and removes it.
bool take_port(std::string_view* text, uint16_t* port) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *port);
  if (error != std::errc() || *port == 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

Status read_ports(const Variables& variables, NetworkSettings* network) {
  const std::string text = variables.text_or_empty(Variable::kPorts);
  if (text.empty()) return {};
  std::string_view rest = text;
  const bool first = take_port(&rest, &network->first_port);
  const bool dash = first && rest.starts_with('-');
  if (dash) rest.remove_prefix(1);
  if (dash && take_port(&rest, &network->last_port) && rest.empty() &&
      network->first_port <= network->last_port) {
    return {};
  }
  return variables.bad(name(Variable::kPorts),
                       "FIRST-LAST, two ports from 1 to 65535, for example 20000-20063");
}

bool is_interface(std::string_view name) {
  const auto allowed = [](char c) { return c > ' ' && c <= '~' && c != '/' && c != '^'; };
  return !name.empty() && name.size() <= kMaxInterfaceName && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

Status read_network(const Variables& variables, NetworkSettings* network) {
  *network = {};
  WEFT_TRY(read_ports(variables, network));
  const std::string text = variables.text_or_empty(Variable::kInterfaces);
  bool only_ipv4 = false, only_ipv6 = false;
  std::string_view rest = text;
  for (bool more = !text.empty(); more;) {
    const size_t comma = rest.find(',');
    std::string_view interface = rest.substr(0, comma);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
    const bool left_out = interface.starts_with('^');
    if (left_out) interface.remove_prefix(1);
    if (!is_interface(interface)) {
      return variables.bad(
          name(Variable::kInterfaces),
          "names of interfaces, or ipv4 or ipv6 for addresses of that family alone, separated by "
          "commas, with ^ before those to leave out, for example eth0 or ^docker0,^virbr0");
    }
    if (interface == "ipv4" || interface == "ipv6") {
      ((interface == "ipv4") != left_out ? only_ipv4 : only_ipv6) = true;
    } else {
      (left_out ? network->left_out : network->interfaces).emplace_back(interface);
    }
  }
  network->ipv4 = only_ipv4 || !only_ipv6;
  network->ipv6 = only_ipv6 || !only_ipv4;
  return {};
}

Status process_network(NetworkSettings* network) {
  return with_process_variables([&](const Variables& variables) { return read_network(variables, network); });
}

}  // namespace weft
