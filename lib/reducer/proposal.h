// Holds a rank's request for a reducer that is being created. It must be equal on all ranks. For
// create_state. Threads: any thread.
#pragma once

#include <weft/weft.h>

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
  uint64_t flags = 0;
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  int32_t buffers_root = 0;
  uint32_t check_interval = 0;
  int32_t reduce_dtype = 0;
  weft_planner replan = WEFT_PLANNER_DEFAULT;
  weft_accumulation accumulation = WEFT_ACCUMULATION_UNSET;  // as the program chose
  bool in_place = false;  // WEFT_GRADIENT_IN_PLACE; ranks may differ in the other modes
  std::vector<uint64_t> limits;
  uint64_t plan = 0;  // digest of the program's own plan; 0 if it has none
  uint64_t uses = 0;  // digest of weft_param.uses; 0 if each is 1
  Manifest manifest;

  Bytes write() const;
  static Status read(ByteView bytes, Proposal* out);
};

// Describes the difference between two ranks' serialised proposals; empty if there is none.
std::string proposal_difference(int rank, ByteView mine, int other_rank, ByteView theirs);

}  // namespace weft
