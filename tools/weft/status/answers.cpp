#include "answers.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/process.h"
#include "base/text.h"
#include "environment/launch.h"
#include "rendezvous/socket.h"
#include "status/server.h"
#include "weft/flight_groups.h"

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostBytes = size_t{16} << 20;  // of one answer

// A process that is being asked.
struct Asked {
  int64_t pid = 0;   // in its own pid namespace
  char state = '?';  // of /proc
  weft::Fd fd;
  std::string text;
  bool ended = false;  // the answer is complete
};

char state_of(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(')');
  return close != text.npos && close + 2 < text.size() ? text[close + 2] : '?';
}

// Reads what has arrived. Returns false at the end of the stream.
bool take(Asked& asked) {
  char bytes[65536];
  for (;;) {
    const ssize_t got = ::recv(asked.fd.get(), bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
      asked.ended = true;
      return false;
    }
    asked.text.append(bytes, static_cast<size_t>(got));
    if (asked.text.size() > kMostBytes) return false;
  }
}

// Asks the process that listens at an address. Returns false if there is none of this user.
bool connect(const weft::Address& address, Asked* asked) {
  int error = 0;
  if (!weft::connect_to(address, &asked->fd, &error).ok()) {
    // A stopped process leaves questions in its queue. Its number is then known from the name alone.
    struct stat process{};
    const std::string folder = "/proc/" + std::to_string(asked->pid);
    if (!weft::queue_is_full(address, error) || ::stat(folder.c_str(), &process) != 0 ||
        process.st_uid != ::getuid())
      return false;
    asked->state = state_of(asked->pid);
    return true;
  }
  std::optional<weft::PeerProcess> peer;
  if (!weft::check_peer_user(asked->fd.get()).ok() || !weft::peer_process(asked->fd.get(), &peer).ok() ||
      !peer)
    return false;
  asked->state = peer->pid == 0 ? '?' : state_of(peer->pid);
  // A child that the process has forked may hold its socket after its end.
  return peer->pid == 0 || (asked->state != '?' && asked->state != 'Z' && asked->state != 'X');
}

std::vector<Asked> connect_all() {
  std::vector<Asked> all;
  const std::string prefix = weft::StatusServer::name_prefix(::getuid());
  for (const std::string& name : weft::listening_names(prefix)) {
    Asked asked;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), asked.pid);
    weft::Address address;
    address.kind = weft::Address::Kind::kUnix;
    address.name = name;
    if (connect(address, &asked)) all.push_back(std::move(asked));
  }
  return all;
}

LiveComm comm_of(const json& line) {
  LiveComm comm;
  for (const json& place : line.value("places", json::array())) {
    if (comm.places.size() == weft::kMaxRanks || !place.is_array() || place.size() != 2) break;
    comm.places.push_back({printable(place[0].is_string() ? place[0].get<std::string>() : ""),
                           place[1].is_number_integer() ? place[1].get<int64_t>() : 0});
  }
  return comm;
}

}  // namespace

std::string ask_processes(int timeout_ms) {
  std::vector<Asked> all = connect_all();
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    std::vector<pollfd> polled;
    std::vector<Asked*> of;
    for (Asked& asked : all) {
      if (!asked.fd.valid()) continue;
      polled.push_back({asked.fd.get(), POLLIN, 0});
      of.push_back(&asked);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (polled.empty() || left <= 0) break;
    ::poll(polled.data(), polled.size(), static_cast<int>(left));
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !take(*of[i])) of[i]->fd = weft::Fd();
    }
  }
  std::string lines;
  for (const Asked& asked : all) {
    const json about = {{"pid", asked.pid},
                        {"host", weft::host_name()},
                        {"state", std::string(1, asked.state)},
                        {"answered", asked.ended && !asked.text.empty()}};
    lines += about.dump() + "\n";
    // Its own first line repeats the number of the process.
    const size_t first = asked.text.find('\n');
    if (asked.ended && first != asked.text.npos) lines += asked.text.substr(first + 1);
  }
  return lines;
}

std::vector<LiveProcess> parse_status(const std::string& lines, int* unread) {
  std::vector<LiveProcess> processes;
  CountersByRank counters;  // of the process whose lines are read
  std::istringstream stream(lines);
  for (std::string text; std::getline(stream, text);) {
    const json line = too_deep(text) ? json() : json::parse(text, nullptr, false);
    if (!line.is_object()) {
      ++*unread;
    } else if (line.contains("flight") && !processes.empty()) {
      LiveComm comm = comm_of(line);
      if (parse_flight(line["flight"].dump(), &comm.flight).ok()) {
        const weft::FlightRecord& record = comm.flight.record;
        comm.counters = counters[{comm_text(record), record.rank}];
        processes.back().comms.push_back(std::move(comm));
      } else {
        ++*unread;
      }
    } else if (line.contains("metrics") && line["metrics"].is_string()) {
      counters = parse_counters(line["metrics"].get<std::string>());
    } else if (line.contains("pid") && line["pid"].is_number_integer()) {
      counters.clear();
      LiveProcess process;
      process.pid = line["pid"].get<int64_t>();
      if (line.contains("host") && line["host"].is_string())
        process.host = printable(line["host"].get<std::string>().substr(0, 256));
      if (line.contains("answered") && line["answered"].is_boolean())
        process.answered = line["answered"].get<bool>();
      if (line.contains("state") && line["state"].is_string() && line["state"].get<std::string>().size() == 1)
        process.state = line["state"].get<std::string>()[0];
      processes.push_back(std::move(process));
    } else {
      ++*unread;
    }
  }
  return processes;
}
