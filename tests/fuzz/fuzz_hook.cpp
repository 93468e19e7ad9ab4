// Input: an alleged saved state of a hook. The first byte selects its kind: a whole blob; the state inside,
// of a hook that the next byte selects; or a hook's name with options. Input that cannot be decoded changes
// nothing, and decodable input has one encoding.
#include "fuzz.h"
#include "hook/hook_blob.h"
#include "kernels/host_ops.h"
#include "registry.h"

using namespace weft;
using fuzz::demand;

namespace {

constexpr const char* kHooks[][2] = {{"int8", ""},
                                     {"powersgd", "start=2 rank=2 min_rate=1"},
                                     {"powersgd", "start=2 alternate=1 min_rate=1"},
                                     {"batched_powersgd", "start=2"},
                                     {"post_local_sgd", "local=none"}};

std::shared_ptr<Hook> hook_of(uint8_t kind) {
  const auto& [name, options] = kHooks[kind % std::size(kHooks)];
  std::shared_ptr<Hook> hook;
  demand(Registry::make_hook(name, {options, nullptr, host_ops()}, &hook).ok());
  return hook;
}

// Plans a bucket of a matrix and a vector, for rank 1 of 3.
void plan(Hook& hook) {
  static const int64_t kShapes[2][2] = {{10, 12}, {5, 0}};
  static const int64_t kStrides[2] = {12, 1};
  weft_bucket_param params[2] = {};
  for (int i = 0; i < 2; i++) {
    params[i].name = i == 0 ? "a" : "b";
    params[i].dtype = WEFT_DTYPE_F32;
    params[i].ndim = 2 - i;
    params[i].shape = kShapes[i];
    params[i].strides = kStrides + i;
    params[i].offset = i == 0 ? 0 : 120;
    params[i].count = i == 0 ? 120 : 5;
  }
  weft_bucket bucket{};
  bucket.dtype = WEFT_DTYPE_F32;
  bucket.count = 125;
  bucket.rank = 1;
  bucket.size = 3;
  bucket.divisor = 3;
  bucket.params = params;
  bucket.param_count = 2;
  weft_hook_plan plan{};
  demand(hook.plan(bucket, &plan).ok());
}

Bytes saved(Hook& hook) {
  Bytes state;
  demand(hook.save(&state).ok());
  return state;
}

void read_state(uint8_t kind, ByteView state) {
  const auto hook = hook_of(kind), again = hook_of(kind);
  plan(*hook);
  const Bytes before = saved(*hook);
  const Status status = hook->load(state);
  demand(status.ok() || (status.code() == Code::kArg && !status.text().empty()));
  const Bytes after = saved(*hook);
  demand(status.ok() || after == before);
  plan(*again);
  demand(again->load(after).ok() && saved(*again) == after);
  plan(*hook);  // with any state that it has of these parameters
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.byte() % 3) {
    case 0: {
      HookBlob blob;
      const Status status = read_hook(input.rest(), &blob);
      demand(status.ok() || (status.code() == Code::kArg && !status.text().empty()));
      break;
    }
    case 1: {
      const uint8_t kind = input.byte();
      read_state(kind, input.rest());
      break;
    }
    default: {
      const ByteView text = input.rest();
      const std::string_view name(reinterpret_cast<const char*>(text.data()), text.size());
      std::shared_ptr<Hook> hook, again;
      const Status status = Registry::make_hook_again(name, {{}, nullptr, host_ops()}, &hook);
      if (!status.ok()) {
        demand(status.code() == Code::kArg && !status.text().empty());
        break;
      }
      demand(Registry::make_hook_again(hook->name(), {{}, nullptr, host_ops()}, &again).ok());
      demand(again->name() == hook->name());
    }
  }
  return 0;
}
