// The fake's captures: which calls they forbid. What is put on a stream that is captured is dropped
// (enqueue): there are graphs, but nobody launches one.
#include <utility>

#include "state.h"

using namespace fake;

namespace {

thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

}  // namespace

bool fake::forbidden() {
  bool found = false;
  for (const auto& [handle, stream] : state().streams) {
    Capture* const capture = stream->capture.get();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool all = capture->mode == cudaStreamCaptureModeGlobal && t_mode == cudaStreamCaptureModeGlobal;
    const bool own = capture->thread == std::this_thread::get_id() && t_mode != cudaStreamCaptureModeRelaxed;
    if (!all && !own) continue;
    found = capture->spoilt = true;
  }
  return found;
}

bool fake::spoils(Stream& stream) {
  if (stream.capture) stream.capture->spoilt = true;
  return stream.capture != nullptr || forbidden();
}

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(state().mutex);
  *status = cudaStreamCaptureStatusNone;
  const auto stream = find_stream(handle, "cudaStreamIsCapturing");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    *status = stream->capture->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamBeginCapture");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (handle == nullptr || handle == cudaStreamLegacy) return note(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return note(cudaErrorIllegalState);
  stream->capture = std::make_unique<Capture>(Capture{mode, std::this_thread::get_id()});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const std::lock_guard lock(state().mutex);
  *graph = nullptr;
  const auto stream = find_stream(handle, "cudaStreamEndCapture");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (!stream->capture) return note(cudaErrorIllegalState);
  const Capture& capture = *stream->capture;
  if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != std::this_thread::get_id())
    return note(cudaErrorStreamCaptureWrongThread);
  const bool spoilt = capture.spoilt;
  stream->capture.reset();
  if (spoilt) return note(cudaErrorStreamCaptureInvalidated);
  *graph = new_handle<cudaGraph_t>();
  state().graphs.insert(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(state().mutex);
  return state().graphs.erase(graph) == 1 ? cudaSuccess : note(cudaErrorInvalidValue);
}

}  // extern "C"
