// Input: messages of another rank during shared-memory group setup: an introduction, addresses in its
// process, or the result of a step. A decoded message can be encoded again without change.
#include "fuzz.h"
#include "shm/group_setup_wire.h"

using namespace weft;
using fuzz::demand;

namespace {

template <class Message>
bool check(ByteView bytes, Message* message) {
  if (!decode(bytes, message)) return false;
  const Bytes again = encode(*message);
  demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t kind = input.byte();
  const ByteView bytes = input.rest();
  if (kind % 3 == 0) {
    shm::RankInfo theirs, mine;
    mine.available_bytes = uint64_t{1} << 30;
    if (!check(bytes, &theirs)) return 0;
    const Status room = shm::check_memory({mine, theirs});
    demand(room.ok() == (theirs.needed_bytes <= std::min(mine.available_bytes, theirs.available_bytes)));
    demand(room.code() == shm::check_memory({theirs, mine}).code());
  } else if (kind % 3 == 1) {
    shm::AddressInfo theirs;
    check(bytes, &theirs);
  } else {
    shm::SetupResult theirs;
    check(bytes, &theirs);
  }
  return 0;
}
