#include "settings_check.h"

#include <algorithm>
#include <memory>

#include "coll/select.h"
#include "environment/config.h"
#include "environment/network.h"
#include "rendezvous/address.h"
#include "rendezvous/socket.h"
#include "transport/failpoints.h"

namespace {

using weft::Environment;
using weft::Status;

// Returns the size that WEFT_HOSTS must have. Outside a job it may be set for a job that is not started yet.
int size_for(const std::string& hosts, const weft::Launch& launch) {
  if (launch.launcher != weft::Launcher::kNone) return launch.size;
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), ',')) + 1;
}

Status check_interfaces() {
  weft::NetworkSettings network;
  WEFT_TRY(weft::process_network(&network));
  std::vector<std::string> hosts;
  return network.chooses_interfaces() ? weft::interface_hosts(network, &hosts) : Status();
}

}  // namespace

std::vector<std::string> environment_errors() {
  std::vector<std::string> errors;
  const auto add = [&](const Status& status) {
    if (!status.ok()) errors.push_back(status.text());
  };
  Environment environment;
  const Status understood = weft::process_environment(&environment);
  add(understood);
  if (understood.ok()) {
    weft::Bytes secret;
    add(weft::load_secret(environment.secret, &secret));
    weft::Address address;
    if (!environment.store.empty()) add(weft::parse_address(environment.store, &address));
    add(check_interfaces());
  }
  const weft::Settings settings = weft::process_settings();
  const weft::Launch& launch = environment.launch;
  int64_t heartbeat_ms = 0;
  add(weft::parse_heartbeat(settings.heartbeat, &heartbeat_ms));
  weft::coll::Forced forced;
  add(weft::coll::parse_forced(settings.algorithms, &forced));
  int label = 0;
  add(weft::parse_hosts(settings.hosts, launch.rank, size_for(settings.hosts, launch), &label));
  std::shared_ptr<const weft::FailPoints> points;
  add(weft::FailPoints::parse(settings.failpoints, &points));
  weft::LogSettings log;
  add(weft::parse_log(settings, launch.rank, &log));
  weft::ObserverSettings observers;
  add(weft::parse_observers(settings, launch, &observers));
  return errors;
}
