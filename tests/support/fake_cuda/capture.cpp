// Implements stream captures (what they record, which calls they forbid) and graphs. A launched graph runs
// its operations one after the other; the next one is drawn from those whose predecessors have all run.
#include <random>
#include <utility>

#include "state.h"

using namespace fake;

namespace {

thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

cudaError_t spoil(Capture* capture, cudaError_t error) {
  if (capture != nullptr) capture->spoilt = true;
  return error;
}

// Returns true if every captured operation precedes the end of this stream.
bool joined(const Stream& stream) {
  const Graph& graph = *stream.capture->graph;
  std::set<size_t> seen;
  std::vector<size_t> open(stream.after.begin(), stream.after.end());
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    open.insert(open.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return seen.size() == graph.nodes.size();
}

cudaError_t is_capturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(state().mutex);
  *status = cudaStreamCaptureStatusNone;
  const auto stream = find_stream(handle, "cudaStreamIsCapturing");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = implicit(handle, false); error != cudaSuccess) return error;
  if (stream->capture) {
    *status = stream->capture->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}

// Runs a graph; called on a stream's thread.
void execute(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<bool> done(graph.nodes.size());
  for (size_t count = 0; count < graph.nodes.size(); count++) {
    std::vector<size_t> possible;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
      bool ready = !done[i];
      for (const size_t before : graph.nodes[i].after) ready &= done[before];
      if (ready) possible.push_back(i);
    }
    const size_t next = possible[random() % possible.size()];
    const Operation& operation = graph.nodes[next].operation;
    {
      std::unique_lock lock(state().mutex);
      while (operation.may_run && !operation.may_run())
        state().changed.wait_for(lock, std::chrono::microseconds(50));
    }
    if (operation.run) operation.run();
    done[next] = true;
  }
}

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

cudaError_t fake::implicit(cudaStream_t handle, bool work) {
  if (handle != nullptr && handle != cudaStreamLegacy) return cudaSuccess;
  bool found = false;
  for (const auto& [other_handle, other] : state().streams) {
    if (!other->capture || !other->blocking || other->device != current_device()) continue;
    found = true;
    other->capture->spoilt |= work;
  }
  return found ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

void fake::capture(Stream& stream, Operation operation) {
  std::vector<Node>& nodes = stream.capture->graph->nodes;
  nodes.push_back({std::move(operation), std::exchange(stream.after, {nodes.size()})});
}

cudaError_t fake::join(Stream& stream, const Event& event) {
  // The event was recorded outside of a capture, so a graph cannot wait for it.
  if (!event.capture) return spoil(stream.capture.get(), cudaErrorStreamCaptureIsolation);
  const bool over = event.capture->graph == nullptr;  // true if that capture has ended
  if (over) return spoil(stream.capture.get(), cudaErrorCapturedEvent);
  if (stream.capture && stream.capture != event.capture) {
    spoil(stream.capture.get(), cudaSuccess);
    return spoil(event.capture.get(), cudaErrorStreamCaptureMerge);
  }
  stream.capture = event.capture;
  stream.after.insert(event.after.begin(), event.after.end());
  return cudaSuccess;
}

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return cudaSuccess;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  auto given = static_cast<cudaStreamCaptureMode>(*mode);
  std::swap(given, t_mode);
  *mode = static_cast<CUstreamCaptureMode>(given);
  return CUDA_SUCCESS;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return note(is_capturing(handle, status));
}
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
  const cudaError_t error = is_capturing(handle, &found);
  *status = static_cast<CUstreamCaptureStatus>(found);
  return driver(error);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(state().mutex);
  const auto stream = find_stream(handle, "cudaStreamBeginCapture");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (handle == nullptr || handle == cudaStreamLegacy) return note(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return note(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->graph->device = stream->device;
  stream->began = true;
  stream->after.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *graph = nullptr;
  const auto stream = find_stream(handle, "cudaStreamEndCapture");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (!stream->capture) return note(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return note(cudaErrorStreamCaptureWrongThread);
  if (!stream->began) return note(spoil(capture.get(), cudaErrorStreamCaptureUnmatched));
  const bool whole = joined(*stream);
  for (const auto& [other_handle, other] : s.streams) {
    if (other->capture != capture) continue;
    other->capture.reset();
    other->after.clear();
    other->began = false;
  }
  const std::shared_ptr<Graph> made = std::exchange(capture->graph, nullptr);
  if (capture->spoilt) return note(cudaErrorStreamCaptureInvalidated);
  if (!whole) return note(cudaErrorStreamCaptureUnjoined);
  *graph = new_handle<cudaGraph_t>();
  s.graphs[*graph] = made;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *executable = nullptr;
  const auto it = s.graphs.find(graph);
  if (it == s.graphs.end() || flags != 0) return note(cudaErrorInvalidValue);
  *executable = new_handle<cudaGraphExec_t>();
  s.executables[*executable] = it->second;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto stream = find_stream(handle, "cudaGraphLaunch");
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  const auto it = s.executables.find(executable);
  if (it == s.executables.end()) return note(cudaErrorInvalidValue);
  if (it->second->device != stream->device) problem("cudaGraphLaunch on a stream of another device");
  if (stream->capture) problem("a graph in a graph, which the fake does not have");
  // The operation owns the graph until it has run, also if the program destroys the graph meanwhile, as in
  // CUDA.
  enqueue(stream, {{}, [graph = it->second, seed = s.seed + stream->enqueued] { execute(*graph, seed); }});
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.dead.insert(executable);
  return s.executables.erase(executable) == 1 ? cudaSuccess : note(cudaErrorInvalidValue);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.dead.insert(graph);
  return s.graphs.erase(graph) == 1 ? cudaSuccess : note(cudaErrorInvalidValue);
}

}  // extern "C"
