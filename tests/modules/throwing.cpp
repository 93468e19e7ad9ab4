// A module whose functions throw C++ exceptions, in place of two modules: libweft-nccl.so throws when it is
// asked whether it can be used, libweft-ucx.so when a communicator is created over it. The wheel's test
// compiles this file by itself, so it needs only headers.
#include <stdexcept>

#include "transport/backend.h"

namespace {

weft::Status find(const weft::Libraries& /*libraries*/, [[maybe_unused]] std::string* detail) {
#ifdef THROWS_IN_FIND
  throw std::runtime_error("thrown by find");
#else
  *detail = "throws when a communicator is created";
  return {};
#endif
}

weft::Status make_transport(const weft::BackendArgs& /*args*/,
                            std::unique_ptr<weft::Transport>* /*transport*/) {
  throw std::runtime_error("thrown by make_transport");
}

#ifdef THROWS_IN_FIND
constexpr const char* kName = "nccl";
#else
constexpr const char* kName = "ucx";
#endif
constexpr weft::Backend kBackend{kName, "throws", 1, find, make_transport, nullptr, nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {weft::kBackendModuleAbi, &kBackend};
