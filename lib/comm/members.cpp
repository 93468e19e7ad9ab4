#include "comm/members.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/cores.h"
#include "base/process.h"
#include "base/text.h"

namespace weft {
namespace {

std::string place_text(const Members::Place& place) {
  return cat("process ", place.pid, " on ", place.host);
}

constexpr size_t kMostPlaces = 4;  // in an error; its text has a limit

// Replaces what is no printable ASCII character: the name comes from another process and is printed.
std::string visible(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

ProcessInfo own_process(int leader) {
  return {leader, ::getpid(), host_name(), allowed_cores()};
}

Bytes encode(const ProcessInfo& process) {
  ByteWriter writer;
  return writer.put(process.leader).put(process.pid).put_string(process.host).put_bytes(process.cores).take();
}

bool decode(ByteView bytes, ProcessInfo* process) {
  ByteReader reader(bytes);
  process->leader = reader.get<int32_t>();
  process->pid = reader.get<int64_t>();
  process->host = reader.get_string(kMaxHostName);
  const ByteView cores = reader.get_bytes(kMostCores / 8);
  process->cores.assign(cores.begin(), cores.end());
  return reader.done();
}

Members::Members(int rank, const std::vector<ProcessInfo>& ranks) : rank_(rank), local_size_(0), hosts_(0) {
  const int32_t leader = ranks[static_cast<size_t>(rank)].leader;
  places_.reserve(ranks.size());
  for (size_t r = 0; r < ranks.size(); r++) {
    const ProcessInfo& each = ranks[r];
    places_.push_back({visible(each.host), each.pid});
    const bool before = static_cast<int>(r) < rank;
    if (each.leader == leader) {
      local_size_++;
      if (before) local_rank_++;
    }
    if (each.leader != static_cast<int32_t>(r)) continue;
    hosts_++;
    if (each.leader < leader) host_++;
  }
}

std::string Members::text() const {
  const std::string place = places_.empty() ? "" : ", " + place_text(places_[static_cast<size_t>(rank_)]);
  return cat("local rank ", local_rank_, " of ", local_size_, ", host ", host_, " of ", hosts_, place);
}

Status Members::with_places(const Status& status) const {
  if (status.ok()) return status;
  std::string added;
  size_t count = 0;
  for (const int rank : status.info().ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= places_.size() || ++count > kMostPlaces) break;
    const std::string place = cat("rank ", rank, " is ", place_text(places_[static_cast<size_t>(rank)]));
    if (status.text().find(place) == std::string::npos) added += cat(added.empty() ? "" : ", ", place);
  }
  return added.empty() ? status : status.with_suffix(cat(" [", added, "]"));
}

}  // namespace weft
