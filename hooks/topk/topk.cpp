// topk: sends the largest values of every slice and their positions; the other values are fed back (Lin et
// al. 2017, "Deep gradient compression", without its momentum corrections). The owner sends the largest sums
// to all ranks. Listed in the registry.
#include <cmath>
#include <memory>
#include <utility>

#include "common/bucket.h"
#include "common/compressed.h"
#include "common/options.h"
#include "hook/select_scratch.h"

namespace weft::hook_topk {
namespace {

// Encodes pairs of position and value, sorted by position; unused pairs have kNoPlace.
class TopK final : public Codec {
 public:
  TopK(double ratio, const DeviceOps& host) : ratio_(ratio), host_(host) {}

  uint64_t bytes(uint64_t slice) const override { return most(slice) * sizeof(Selected); }
  uint64_t scratch_bytes(uint64_t slice) const override {
    return select_host_scratch(slice, most(slice)) * sizeof(uint32_t);
  }
  void encode(float* values, const Piece& piece, const Encoding& how, std::byte* to,
              std::byte* scratch) const override {
    SelectArgs args;
    args.values = values;
    args.count = piece.count;
    args.take = std::min(most(piece.count), most(piece.slice));
    args.room = most(piece.slice);
    args.selected = reinterpret_cast<Selected*>(to);
    args.residual = how.residual;
    args.scratch = reinterpret_cast<uint32_t*>(scratch);
    host_.select(args);
  }
  void decode(const Encoded& from, const Piece& piece, double scale, float* values) const override {
    std::fill(values, values + piece.count, 0.0f);
    for (uint64_t r = 0; r < from.count; r++) {
      const auto* const pairs = reinterpret_cast<const Selected*>(from.first + r * from.stride_bytes);
      for (uint64_t i = 0; i < most(piece.slice); i++) {
        if (pairs[i].place < piece.count) values[pairs[i].place] += pairs[i].value;
      }
    }
    if (scale != 1) copy(host_, Dtype::kF32, values, Dtype::kF32, values, piece.count, scale);
  }

 private:
  uint64_t most(uint64_t count) const {
    const auto wanted = static_cast<uint64_t>(std::ceil(ratio_ * static_cast<double>(count)));
    return std::min(std::max<uint64_t>(wanted, 1), count);
  }

  const double ratio_;
  const DeviceOps& host_;
};

Status make(const HookArgs& args, std::shared_ptr<Hook>* hook) {
  CompressedSettings settings;
  double ratio = 0.01;
  WEFT_TRY(Options("topk", args.options)
               .real("ratio", &ratio, 1e-6, 1)
               .flag("feedback", &settings.feedback)
               .flag("rescue", &settings.rescue)
               .done(&settings.name));
  WEFT_TRY(check_rescue(settings.name, settings.rescue, settings.feedback));
  *hook = make_compressed(std::move(settings), std::make_unique<TopK>(ratio, args.host), args);
  return {};
}

}  // namespace

const HookFactory& factory();
const HookFactory& factory() {
  static constexpr HookFactory kFactory = {"topk", "the largest gradients and their places", false, make};
  return kFactory;
}

}  // namespace weft::hook_topk
