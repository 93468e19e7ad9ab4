// A hand-written CUDA training loop whose gradients Weft averages over the ranks. It uses the demo's model
// and data (a perceptron for Fashion-MNIST), its own kernels, and one stream. Lines that Weft adds are
// marked.
//   weft run -n 2 -- train_cuda [folder of Fashion-MNIST]
// The ranks of a machine use its GPUs round-robin. At the end all ranks have bitwise equal weights.
#include <cuda_runtime.h>
#include <weft/weft.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "data.h"

namespace {

constexpr uint32_t kBatch = 64;  // images for each rank and step
constexpr uint32_t kEpochs = 3;
constexpr float kRate = 0.05f;
constexpr uint32_t kWidths[] = {kPixels, 256, 192, 128, 96, kClasses};
constexpr uint32_t kLayers = 5;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
void check(weft_status status, const weft_error& error, const char* what) {
  if (status == WEFT_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, weft_status_string(status), error.text);
  std::exit(1);
}
void check(weft_status status, weft_reducer* reducer, const char* what) {
  weft_error error = WEFT_ERROR_INIT;
  if (status != WEFT_OK) weft_reducer_error(reducer, &error);
  check(status, error, what);
}

// One thread for each element; x varies fastest.
__global__ void forward(const float* input, const float* weight, const float* bias, float* output,
                        uint32_t in, uint32_t out, bool last) {
  const uint32_t o = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (o >= out) return;
  float sum = bias[o];
  for (uint32_t i = 0; i < in; i++) sum += input[row * in + i] * weight[o * in + i];
  output[row * out + o] = last ? sum : fmaxf(sum, 0.0f);
}
// Computes softmax and cross-entropy: the loss's derivative by the logits, and the number of recognised
// images.
__global__ void judge(const float* logits, const uint8_t* labels, float* delta, uint32_t batch, float* loss,
                      uint32_t* correct) {
  const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= batch) return;
  const float* z = logits + row * kClasses;
  uint32_t top = 0;
  for (uint32_t k = 1; k < kClasses; k++) top = z[k] > z[top] ? k : top;
  float total = 0;
  for (uint32_t k = 0; k < kClasses; k++) total += expf(z[k] - z[top]);
  for (uint32_t k = 0; k < kClasses; k++)
    delta[row * kClasses + k] =
        (expf(z[k] - z[top]) / total - (k == labels[row] ? 1.0f : 0.0f)) / static_cast<float>(batch);
  atomicAdd(loss, (logf(total) + z[top] - z[labels[row]]) / static_cast<float>(batch));
  atomicAdd(correct, top == labels[row] ? 1u : 0u);
}
__global__ void weight_gradient(const float* input, const float* delta, float* weight, float* bias,
                                uint32_t in, uint32_t out, uint32_t batch) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, o = blockIdx.y;
  if (i > in) return;
  float sum = 0;
  for (uint32_t row = 0; row < batch; row++)
    sum += delta[row * out + o] * (i < in ? input[row * in + i] : 1.0f);
  (i < in ? weight[o * in + i] : bias[o]) = sum;
}
__global__ void input_gradient(const float* delta, const float* weight, const float* input, float* below,
                               uint32_t in, uint32_t out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (i >= in) return;
  float sum = 0;
  for (uint32_t o = 0; o < out; o++) sum += delta[row * out + o] * weight[o * in + i];
  below[row * in + i] = input[row * in + i] > 0 ? sum : 0.0f;
}
__global__ void descend(float* value, float* momentum, const float* gradient, uint32_t count, float rate) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  momentum[i] = 0.9f * momentum[i] + gradient[i] + 1e-4f * value[i];
  value[i] -= rate * momentum[i];
}

dim3 grid(uint32_t x, uint32_t y = 1) {
  return dim3((x + 127) / 128, y);
}

float* floats(uint64_t count) {
  float* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(float)), "cudaMalloc");
  check(cudaMemset(memory, 0, count * sizeof(float)), "cudaMemset");
  return memory;
}

struct Param {
  std::string name;
  std::vector<int64_t> shape;
  uint32_t count = 0;
  float *value = nullptr, *gradient = nullptr, *momentum = nullptr;
};

struct Model {
  std::vector<Param> params;  // layer by layer, weight then bias
  float* activations[kLayers + 1] = {};
  float* deltas[kLayers] = {};
  float* loss = floats(1);
  uint32_t* correct = reinterpret_cast<uint32_t*>(floats(1));
  uint8_t* labels = reinterpret_cast<uint8_t*>(floats(kBatch));

  // Initialises the same weights on all ranks.
  Model() {
    SplitMix64 random(1);
    activations[0] = floats(kBatch * kWidths[0]);
    for (uint32_t l = 0; l < kLayers; l++) {
      const uint32_t in = kWidths[l], out = kWidths[l + 1];
      activations[l + 1] = floats(kBatch * out);
      deltas[l] = floats(kBatch * out);
      const std::string name = "layer" + std::to_string(l + 1);
      params.push_back({name + ".weight", {out, in}, out * in});
      params.push_back({name + ".bias", {out}, out});
      std::vector<float> start(out * in);
      for (float& v : start) v = static_cast<float>(std::sqrt(6.0 / in) * (2 * random.uniform() - 1));
      for (Param* p = &params[2 * l]; p <= &params.back(); p++) {
        p->value = floats(p->count);
        p->gradient = floats(p->count);
        p->momentum = floats(p->count);
      }
      check(
          cudaMemcpy(params[2 * l].value, start.data(), start.size() * sizeof(float), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    }
  }
  void run_forward(uint32_t batch, cudaStream_t stream) {
    for (uint32_t l = 0; l < kLayers; l++) {
      forward<<<grid(kWidths[l + 1], batch), 128, 0, stream>>>(activations[l], params[2 * l].value,
                                                               params[2 * l + 1].value, activations[l + 1],
                                                               kWidths[l], kWidths[l + 1], l + 1 == kLayers);
    }
    judge<<<grid(batch), 128, 0, stream>>>(activations[kLayers], labels, deltas[kLayers - 1], batch, loss,
                                           correct);
  }
  template <class Ready>
  void run_backward(uint32_t batch, cudaStream_t stream, Ready&& ready) {
    for (uint32_t l = kLayers; l-- > 0;) {
      const uint32_t in = kWidths[l], out = kWidths[l + 1];
      weight_gradient<<<grid(in + 1, out), 128, 0, stream>>>(
          activations[l], deltas[l], params[2 * l].gradient, params[2 * l + 1].gradient, in, out, batch);
      ready(2 * l + 1);
      ready(2 * l);
      if (l == 0) break;
      input_gradient<<<grid(in, batch), 128, 0, stream>>>(deltas[l], params[2 * l].value, activations[l],
                                                          deltas[l - 1], in, out);
    }
  }
};

int train(const std::string& folder) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  weft_error error = WEFT_ERROR_INIT;
  weft_launch_info launch = WEFT_LAUNCH_INFO_INIT;  // Weft: this rank among those of its host
  check(weft_launch_query(&launch, &error), error, "weft_launch_query");
  if (launch.local_rank < 0) {
    std::fprintf(stderr, "train_cuda: the launcher does not say the local rank: set WEFT_LOCAL_RANK\n");
    std::exit(1);
  }
  const int device = launch.local_rank % devices;
  check(cudaSetDevice(device), "cudaSetDevice");

  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  int32_t rank = 0, size = 1;
  weft_comm_options where = WEFT_COMM_OPTIONS_INIT;  // Weft: this rank's device
  where.flags = WEFT_COMM_DEVICE;
  where.device = device;
  check(weft_context_create(nullptr, &context, &error), error, "weft_context_create");  // Weft
  check(weft_comm_create(context, &where, &comm, &error), error, "weft_comm_create");   // Weft
  weft_comm_rank(comm, &rank);                                                          // Weft
  weft_comm_size(comm, &size);                                                          // Weft

  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const weft_stream on = {sizeof on, WEFT_DEVICE_CUDA, device, stream};  // Weft
  Model model;
  check(cudaDeviceSynchronize(), "the model");  // made on another stream, for which our stream does not wait

  std::vector<weft_param> list;  // Weft: the parameters, and where their gradients are
  for (const Param& p : model.params) {
    weft_param param = WEFT_PARAM_INIT;
    param.name = p.name.c_str();
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = static_cast<int32_t>(p.shape.size());
    param.shape = p.shape.data();
    param.device_kind = WEFT_DEVICE_CUDA;
    param.device = device;
    param.gradient = p.gradient;
    list.push_back(param);
  }
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = list.data();
  options.param_count = list.size();
  const uint64_t limit = 128 << 10;  // the model is small: several buckets, to overlap
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  weft_reducer* reducer = nullptr;
  check(weft_reducer_create(comm, &options, &reducer, &error), error, "weft_reducer_create");
  weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
  finish.stream = &on;  // Weft: the stream waits for the averages, the host does not

  const Dataset data = load_fashion(folder, "train", 0);
  Shard shard(data, rank, size, 1);
  // Two alternating batches, so that the host may be one batch ahead of the copies.
  float* pixels[2] = {};
  uint8_t* labels[2] = {};
  cudaEvent_t copied[2] = {};
  for (int i = 0; i < 2; i++) {
    check(cudaHostAlloc(&pixels[i], kBatch * kPixels * sizeof(float), 0), "cudaHostAlloc");
    check(cudaHostAlloc(&labels[i], kBatch, 0), "cudaHostAlloc");
    check(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming), "cudaEventCreate");
  }
  const uint32_t steps = shard.size() / kBatch;
  for (uint32_t epoch = 0; epoch < kEpochs; epoch++) {
    const auto began = std::chrono::steady_clock::now();
    shard.start_epoch(epoch);
    cudaMemsetAsync(model.loss, 0, sizeof(float), stream);
    cudaMemsetAsync(model.correct, 0, sizeof(uint32_t), stream);
    for (uint32_t step = 0; step < steps; step++) {
      const uint32_t turn = step % 2;
      check(cudaEventSynchronize(copied[turn]), "cudaEventSynchronize");
      shard.batch(step, kBatch, pixels[turn], labels[turn]);
      cudaMemcpyAsync(model.activations[0], pixels[turn], kBatch * kPixels * sizeof(float),
                      cudaMemcpyHostToDevice, stream);
      cudaMemcpyAsync(model.labels, labels[turn], kBatch, cudaMemcpyHostToDevice, stream);
      check(cudaEventRecord(copied[turn], stream), "cudaEventRecord");
      model.run_forward(kBatch, stream);
      check(weft_reducer_begin(reducer, nullptr), reducer, "weft_reducer_begin");  // Weft
      model.run_backward(kBatch, stream, [&](uint64_t p) {
        check(weft_reducer_ready(reducer, p, nullptr, &on), reducer, "weft_reducer_ready");  // Weft
      });
      check(weft_reducer_finish(reducer, &finish), reducer, "weft_reducer_finish");  // Weft
      for (const Param& p : model.params)
        descend<<<grid(p.count), 128, 0, stream>>>(p.value, p.momentum, p.gradient, p.count, kRate);
    }
    float loss = 0;
    uint32_t correct = 0;
    cudaMemcpyAsync(&loss, model.loss, sizeof loss, cudaMemcpyDeviceToHost, stream);
    cudaMemcpyAsync(&correct, model.correct, sizeof correct, cudaMemcpyDeviceToHost, stream);
    check(cudaStreamSynchronize(stream), "an epoch");
    if (rank == 0) {
      const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - began;
      std::printf("epoch %u: loss %.4f, %.1f %% of rank 0's images, %.0f us a step\n", epoch + 1,
                  loss / static_cast<float>(steps), 100.0 * correct / (steps * kBatch),
                  spent.count() / steps);
      std::fflush(stdout);
    }
  }
  check(weft_reducer_finish(reducer, nullptr), reducer, "the last step");  // Weft: its result

  // Checks that the ranks' weights are bitwise equal.
  uint64_t bounds[2] = {0xcbf29ce484222325u, 0};
  for (const Param& p : model.params) {
    std::vector<uint32_t> bits(p.count);
    check(cudaMemcpy(bits.data(), p.value, p.count * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (const uint32_t word : bits) bounds[0] = (bounds[0] ^ word) * 0x100000001b3u;
  }
  bounds[1] = ~bounds[0];  // its maximum is the complement of the smallest hash
  const uint64_t mine = bounds[0];
  weft_status status =
      weft_all_reduce(comm, bounds, bounds, 2, WEFT_DTYPE_U64, WEFT_OP_MAX, nullptr, nullptr);
  const bool equal = status == WEFT_OK && bounds[0] == mine && bounds[1] == ~mine;
  std::printf("rank %d: weights %016llx, %s\n", rank, static_cast<unsigned long long>(mine),
              equal ? "equal on all ranks" : "NOT equal on all ranks");
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_cuda: %s\n", error.what());
    return 1;
  }
}
