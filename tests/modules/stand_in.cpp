// A module in place of libweft-ucx.so: the loopback transport under another name, for tests of module
// loading. Compiled twice: correctly, and for another version of Weft.
#include "transport/backend.h"

#ifndef STAND_IN_ABI
#define STAND_IN_ABI weft::kBackendModuleAbi
#endif

namespace weft::loopback {
const Backend& backend();
}

namespace {

const weft::Backend& stand_in() {
  static const weft::Backend* const kBackend = [] {
    auto* copy = new weft::Backend(weft::loopback::backend());
    copy->name = "ucx";
    copy->summary = "stand-in for tests";
    return copy;
  }();
  return *kBackend;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {STAND_IN_ABI, &stand_in()};
