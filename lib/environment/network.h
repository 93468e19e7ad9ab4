// WEFT_PORTS and WEFT_INTERFACES: the ports and the interfaces at which this process meets other ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "environment/variables.h"

namespace weft {

struct NetworkSettings {
  uint16_t first_port = 0;  // 0: any port that the kernel gives
  uint16_t last_port = 0;
  std::vector<std::string> interfaces;  // in order of preference; empty: all but loopback
  std::vector<std::string> left_out;
  bool ipv4 = true, ipv6 = true;  // the families of addresses; at least one

  int ports() const { return last_port - first_port + 1; }
  bool chooses_interfaces() const { return !interfaces.empty() || !left_out.empty() || !ipv4 || !ipv6; }
};

// Parses the two variables. kArg states the allowed values. interface_hosts (rendezvous/socket.h) checks that
// the interfaces exist.
Status read_network(const Variables& variables, NetworkSettings* network);

// Reads this process's environment.
Status process_network(NetworkSettings* network);

}  // namespace weft
