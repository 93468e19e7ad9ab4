// Holds a rank's request for a reducer that is being created. It must be equal on all ranks. For
// create_state. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "reducer/manifest/manifest.h"

namespace weft {

struct Proposal {
  static constexpr uint32_t kMaxHookName = 4096;

  std::string hook;
  std::vector<int64_t> options;  // reducer/options.h: compared_options
  std::vector<uint64_t> limits;
  uint64_t plan = 0;  // digest of the program's own plan; 0 if it has none
  uint64_t uses = 0;  // digest of weft_param.uses; 0 if each is 1
  Manifest manifest;

  Bytes write() const;
  // Reads another rank's request: sizes are bounded. kMismatch.
  static Status read(ByteView bytes, Proposal* out);
};

// Describes the difference between two ranks' serialised proposals; empty if there is none.
std::string proposal_difference(int rank, ByteView mine, int other_rank, ByteView theirs);

}  // namespace weft
