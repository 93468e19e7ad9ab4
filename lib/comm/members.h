// The processes of a communicator: where each rank runs. Made during group setup, constant afterwards.
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

// A rank's description of its process, for the others.
struct ProcessInfo {
  int32_t leader = 0;  // lowest rank that shares this rank's host
  int64_t pid = 0;
  std::string host;  // its name, at most kMaxHostName bytes
  Bytes cores;       // that it may use (allowed_cores)
};
inline constexpr uint32_t kMaxHostName = 256;

// Returns this process's name and number, and its cores.
ProcessInfo own_process(int leader);
Bytes encode(const ProcessInfo& process);
// Returns false for anything that encode does not write, with at most `most_cores` bytes of cores.
bool decode(ByteView bytes, ProcessInfo* process);

class Members {
 public:
  Members() = default;  // of a communicator whose ranks are not known
  Members(int rank, const std::vector<ProcessInfo>& ranks);

  struct Place {
    std::string host;
    int64_t pid = 0;
  };
  const std::vector<Place>& places() const { return places_; }  // by rank
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  int host() const {
    return host_;
  }  // number of this rank's host; hosts are in the order of their lowest ranks
  int hosts() const { return hosts_; }

  // Returns "local rank 0 of 2, host 1 of 2, process 4711 on node07".
  std::string text() const;
  // Adds the host and process of the ranks that an error names, of at most 4 of them. Leaves out those that
  // its text has already, because another rank has added them.
  Status with_places(const Status& status) const;

 private:
  std::vector<Place> places_;  // by rank
  int rank_ = 0;
  int local_rank_ = 0;
  int local_size_ = 1;
  int host_ = 0;
  int hosts_ = 1;
};

}  // namespace weft
