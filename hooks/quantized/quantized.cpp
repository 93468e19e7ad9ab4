// int8 and fp8: send a byte per value, and a scale for every 256 values. Listed in the registry.
#include <memory>
#include <string>
#include <utility>

#include "common/block_codec.h"
#include "common/options.h"

namespace weft::hook_quantized {
namespace {

constexpr uint32_t kBlock = 256;

// Reads the options that both have, and makes the hook for these codes.
Status make(Options options, BlockCode code, const HookArgs& args, std::shared_ptr<Hook>* hook) {
  CompressedSettings settings;
  int rounding = 0;
  int64_t seed = 0;
  WEFT_TRY(options.choice("rounding", &rounding, {"nearest", "stochastic"})
               .flag("feedback", &settings.feedback)
               .flag("rescue", &settings.rescue)
               .integer("seed", &seed, 0, INT64_MAX)
               .done(&settings.name));
  WEFT_TRY(check_rescue(settings.name, settings.rescue, settings.feedback));
  settings.seed = static_cast<uint64_t>(seed);
  *hook = make_compressed(std::move(settings),
                          std::make_unique<BlockCodec>(code, kBlock, rounding == 1, args.host), args);
  return {};
}

}  // namespace

static Status make_int8(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  return make(Options("int8", args.options), BlockCode::kInt8, args, hook);
}

static Status make_fp8(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  Options options("fp8", args.options);
  int format = 0;
  options.choice("format", &format, {"e4m3", "e5m2"});
  return make(std::move(options), format == 0 ? BlockCode::kE4m3 : BlockCode::kE5m2, args, hook);
}

}  // namespace weft::hook_quantized

namespace weft::hook_int8 {
const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"int8", "a byte a gradient, a scale for every 256", false,
                                           hook_quantized::make_int8};
  return kFactory;
}
}  // namespace weft::hook_int8

namespace weft::hook_fp8 {
const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"fp8", "an fp8 a gradient, a scale for every 256", false,
                                           hook_quantized::make_fp8};
  return kFactory;
}
}  // namespace weft::hook_fp8
