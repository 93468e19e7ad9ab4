// Input: another rank's description of its reducer: a length, a list of parameters of that length, and what
// its hook declares. A list that can be decoded can also be encoded, and any difference has a text.
#include "fuzz.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"
#include "reducer/step/schedule.h"

using namespace weft;
using fuzz::demand;

namespace {

// This rank's manifest: two parameters, one bucket.
Manifest own() {
  static const int64_t shape[] = {2, 3};
  weft_param params[2] = {{}, {}};
  const char* const names[] = {"first", "second"};
  for (int i = 0; i < 2; i++) {
    params[i].struct_size = sizeof(weft_param);
    params[i].name = names[i];
    params[i].dtype = WEFT_DTYPE_F32;
    params[i].ndim = 2;
    params[i].shape = shape;
  }
  Manifest manifest;
  demand(make_manifest(params, 2, sizeof(weft_param), &manifest).ok());
  return manifest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  static const Manifest mine = own();
  static const Plan plan = make_plan(mine, {});
  const size_t length = input.byte();
  const ByteView list = input.take(length);
  Manifest theirs;
  if (const Status status = Manifest::read(list, &theirs); status.ok()) {
    ByteWriter again;
    theirs.write(&again);
    Manifest same;
    demand(Manifest::read(again.bytes(), &same).ok() && same.params == theirs.params);
    demand(manifest_difference(0, mine, 1, theirs).empty() == (mine.params == theirs.params));
  } else {
    demand(status.code() == Code::kMismatch && !status.text().empty());
  }
  ByteWriter declared;
  Schedule().write(&declared);
  const ByteView other = input.rest();
  const std::string text = schedule_difference(mine, plan, 0, declared.bytes(), 1, other);
  const bool equal = std::equal(other.begin(), other.end(), declared.bytes().begin(), declared.bytes().end());
  demand(text.empty() == equal);
  demand(schedule_difference(mine, plan, 0, other, 1, declared.bytes()).empty() == equal);
  return 0;
}
