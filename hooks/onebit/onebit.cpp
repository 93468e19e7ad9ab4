// onebit: sends the sign of every value, and the mean magnitude of every 64 (Seide et al. 2014; Karimireddy
// et al. 2019, "Error feedback fixes SignSGD"). Error feedback is always on, because it does not converge
// without. Listed in the registry.
#include <memory>

#include "common/block_codec.h"
#include "common/options.h"

namespace weft::hook_onebit {
namespace {

constexpr uint32_t kBlock = 64;

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  CompressedSettings settings;
  WEFT_TRY(Options("onebit", args.options).flag("rescue", &settings.rescue).done(&settings.name));
  *hook = make_compressed(std::move(settings),
                          std::make_unique<BlockCodec>(BlockCode::kSign, kBlock, false, args.host), args);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"onebit", "a sign a gradient, a magnitude for every 64", false,
                                           make};
  return kFactory;
}

}  // namespace weft::hook_onebit
