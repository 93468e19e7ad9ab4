#include "hook/hook_blob.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/text.h"

namespace weft {
namespace {

constexpr std::string_view kMagic = "WEFTHOOK";
constexpr uint32_t kVersion = 2;
constexpr uint32_t kOwnComm = 1;  // flags
constexpr uint32_t kMaxName = 4096;
using Sum = std::array<std::byte, 32>;  // BLAKE2b

Sum checksum(ByteView bytes) {
  Sum sum;
  crypto_generichash(reinterpret_cast<unsigned char*>(sum.data()), sum.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr, 0);
  return sum;
}

}  // namespace

Status save_hook(Hook& hook, Bytes* blob) {
  Bytes state;
  WEFT_TRY(hook.save(&state));
  ByteWriter writer;
  writer.put_raw(std::as_bytes(std::span(kMagic))).put(kVersion);
  writer.put(hook.comm() != nullptr ? kOwnComm : 0u).put_string(hook.name());
  writer.put(static_cast<uint64_t>(state.size())).put_raw(state);
  const Sum sum = checksum(writer.bytes());
  writer.put_raw(sum);
  *blob = writer.take();
  return {};
}

Status read_hook(ByteView blob, HookBlob* out) {
  const auto bad = [](const std::string& what) { return Status::error(Code::kArg, what); };
  ByteReader reader(blob);
  const ByteView magic = reader.get_raw(kMagic.size());
  const ByteView expected = std::as_bytes(std::span(kMagic));
  if (!reader.ok() || !std::equal(magic.begin(), magic.end(), expected.begin())) {
    return bad("the buffer is not a saved hook state: pass the bytes that weft_hook_save wrote");
  }
  const auto version = reader.get<uint32_t>();
  if (reader.ok() && version != kVersion) {
    return bad(cat("the saved hook state has format version ", version, ", but this version of Weft reads ",
                   kVersion));
  }
  const auto flags = reader.get<uint32_t>();
  out->own_comm = (flags & kOwnComm) != 0;
  out->name = reader.get_string(kMaxName);
  const auto size = reader.get<uint64_t>();
  out->state = reader.get_raw(size);
  const size_t summed = kMagic.size() + 3 * sizeof(uint32_t) + out->name.size() + sizeof size + size;
  const ByteView sum = reader.get_raw(sizeof(Sum));
  if (!reader.ok())
    return bad(cat("the saved hook state of ", blob.size(),
                   " bytes is truncated or malformed: pass all the bytes that weft_hook_save wrote"));
  if (!reader.done())
    return bad(
        cat("the buffer of ", blob.size(),
            " bytes continues after the saved hook state: pass exactly the bytes that weft_hook_save wrote"));
  const Sum wanted = checksum(blob.first(summed));
  if (!std::equal(sum.begin(), sum.end(), wanted.begin())) {
    return bad("the saved hook state is corrupt: its checksum is wrong");
  }
  if ((flags & ~kOwnComm) != 0)
    return bad(cat("the saved hook state has unknown flags ", flags & ~kOwnComm,
                   ": load it with the version of Weft that saved it"));
  return {};
}

Status load_hook(Hook& hook, ByteView blob) {
  HookBlob read;
  WEFT_TRY(read_hook(blob, &read));
  if (read.name != hook.name()) {
    return Status::error(Code::kMismatch, cat("the saved hook state belongs to hook '", read.name,
                                              "', but this hook is '", hook.name(), "'"));
  }
  return hook.load(read.state);
}

}  // namespace weft
