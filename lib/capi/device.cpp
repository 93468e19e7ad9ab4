// Validation of streams and device memory in calls, before anything else runs. Any thread.
#include "base/arguments.h"
#include "capi/handles.h"

namespace weft::capi {

Status check_stream(Context& context, const weft_stream* stream, StreamArgs* out, bool captured) {
  *out = {};
  if (stream == nullptr) return {};
  weft_stream read;
  WEFT_TRY(read_struct(stream, "weft_stream", &read));
  if (read.kind == WEFT_DEVICE_HOST) return {};
  constexpr NamedValue kKinds[] = {WEFT_NAMED(WEFT_DEVICE_HOST), WEFT_NAMED(WEFT_DEVICE_CUDA)};
  WEFT_TRY(check_choice("weft_stream.kind", read.kind, kKinds));
  std::string detail;
  WEFT_TRY(context.probe_accelerator(&detail).with_prefix(
      "weft_stream.kind is WEFT_DEVICE_CUDA, which is not available: "));
  Accelerator& accelerator = *context.accelerator();
  if (read.device < 0 || read.device >= accelerator.device_count()) {
    return Status::error(
        Code::kArg,
        cat("weft_stream.device is ", read.device, "; this process sees ", accelerator.device_count(),
            accelerator.device_count() == 1 ? " CUDA device" : " CUDA devices", ", numbered from 0"));
  }
  WEFT_TRY(captured ? accelerator.check_captured(read.device, read.handle)
                    : accelerator.check_stream(read.device, read.handle));
  *out = {read.kind, read.device, read.handle};
  return {};
}

namespace {

constexpr uintptr_t kPage = 4096;  // no device's memory shares a page of this size with the host's

std::string place_text(const PointerInfo& info) {
  switch (info.place) {
    case MemoryPlace::kDevice:
      return cat("memory of CUDA device ", info.device);
    case MemoryPlace::kManaged:
      return "managed memory";
    case MemoryPlace::kPinned:
      return "pinned host memory";
    default:
      return "host memory, or freed";
  }
}

}  // namespace

bool MemoryWatch::beside_devices(Accelerator& accelerator, const void* start, uint64_t size) {
  constexpr uint64_t kLarge = uint64_t{32} << 10;
  if (accelerator.sees_memory()) return true;
  if (size >= kLarge) return accelerator.notice_use();
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uint64_t first = address / kPage;
  const uint64_t pages = (address + size - 1) / kPage - first + 1;
  std::atomic<uint64_t>& seen = seen_[first % kEntries];
  const uint64_t known = seen.load(std::memory_order_relaxed);
  if (known >> 8 == first && (known & 0xff) >= pages) return false;
  if (accelerator.notice_use()) return true;
  seen.store(first << 8 | pages, std::memory_order_relaxed);
  return false;
}

Status check_memory(Context& context, MemoryWatch* watch, const StreamArgs& stream, const void* start,
                    uint64_t size) {
  Accelerator* const accelerator = context.accelerator();
  const bool on_device = stream.kind != WEFT_DEVICE_HOST;
  if (size == 0 || accelerator == nullptr) return {};
  if (!on_device && !watch->beside_devices(*accelerator, start, size)) return {};
  const auto* const first = static_cast<const std::byte*>(start);
  const auto* const last = first + size - 1;
  const bool in_a_page =
      reinterpret_cast<uintptr_t>(first) / kPage == reinterpret_cast<uintptr_t>(last) / kPage;
  for (int look = 0; look < (!on_device && in_a_page ? 1 : 2); look++) {
    const std::byte* const at = look == 0 ? first : last;
    PointerInfo info;
    WEFT_TRY(accelerator->query_pointer(at, &info));
    const bool right = on_device ? info.place == MemoryPlace::kManaged ||
                                       (info.place == MemoryPlace::kDevice && info.device == stream.device)
                                 : info.place != MemoryPlace::kDevice;
    if (right) continue;
    const char* const where = look == 0 ? "is " : "ends in ";
    return Status::error(Code::kArg, on_device
                                         ? cat(where, place_text(info), ", but the stream is of CUDA device ",
                                               stream.device, ": buffer and stream must be on one device")
                                         : cat(where, place_text(info),
                                               ", but no stream is given: pass one of that device "
                                               "(weft_coll_options.stream), or host memory"));
  }
  return {};
}

}  // namespace weft::capi
