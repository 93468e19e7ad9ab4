// Measures the CUDA kernels and staging on this GPU, compared with the hardware limit
// (docs/dev/gpu-results.md).
// Not a test. Without a GPU it reports that.
//
// - copy: device to device, the limit of what follows; GB/s count bytes read and written
// - flatten, unflatten: a manifest's tensors into buckets of at most 25 MiB and back, one launch a bucket
// - launch: host time for the launch of a bucket whose table exists
// - staging: all_reduce of CUDA memory in a group of one, which copies down and up; compared with copies of
//   as much pinned memory in both directions at once
// - squares: GB/s of f32 read
//
// Usage: gpu_bench [--quick] [--runtime LIBCUDART] MANIFEST.json ...
//        gpu_bench --devices: only reports whether there is a GPU
#include <cuda_runtime_api.h>
#include <weft/weft.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime.h"
#include "weft/bench/manifest.h"

using namespace weft;

namespace {

bool quick = false;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "gpu_bench: %s\n", what.c_str());
  std::exit(1);
}
void need(cudaError_t error) {
  if (error != cudaSuccess) fail(cudaGetErrorString(error));
}
void need(const Status& status) {
  if (!status.ok()) fail(status.text());
}
void need(weft_status status) {
  if (status != WEFT_OK) fail(weft_status_string(status));
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Gpu {
  explicit Gpu(const std::string& file) : runtime(file) {
    std::string detail;
    need(runtime.probe(&detail));
    std::printf("%s\n", detail.c_str());
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  void wait() const { need(cudaStreamSynchronize(stream)); }
  template <class T>
  T* device(uint64_t count) const {
    void* memory = nullptr;
    need(cudaMalloc(&memory, count * sizeof(T)));
    return static_cast<T*>(memory);
  }
  // Returns the seconds of the warm work as the stream sees it: the best of several rounds, each averaged
  // over several repeats.
  double time(const std::function<void()>& work) const {
    const int repeats = quick ? 1 : 20, rounds = quick ? 1 : 10;
    double best = 1e9;
    for (int round = 0; round <= rounds; round++) {
      wait();
      const double begin = seconds();
      for (int i = 0; i < repeats; i++) work();
      wait();
      if (round > 0 || quick) best = std::min(best, (seconds() - begin) / repeats);
    }
    return best;
  }

  cuda::Runtime runtime;
  cudaStream_t stream = nullptr;
};

void line(const char* name, double value, const char* unit, const char* more = "") {
  std::printf("%-36s %10.2f %s%s\n", name, value, unit, more);
  std::fflush(stdout);
}
std::string of_limit(double ratio, double target) {
  char text[64];
  std::snprintf(text, sizeof text, "   %.2f of the limit (target %.2f)", ratio, target);
  return text;
}

// A manifest's tensors, each at its own address, and the buckets into which they are copied.
class Model {
 public:
  Model(const Gpu& gpu, const Manifest& manifest) {
    constexpr uint64_t kBucket = (uint64_t{25} << 20) / sizeof(float);
    uint64_t at = 0, in_bucket = kBucket;
    for (const ManifestParam& param : manifest.params) {
      if (in_bucket + param.count > kBucket) {
        buckets_.emplace_back();
        in_bucket = 0;
      }
      for (uint64_t done = 0; done < param.count; done += kCopyPieceElements) {
        const uint64_t count = std::min(kCopyPieceElements, param.count - done);
        buckets_.back().push_back({at + done, count});
      }
      at += (param.count + 127) / 128 * 128;
      in_bucket += param.count;
    }
    count = manifest.count;
    tensors_ = gpu.device<float>(at);
    memory_ = gpu.device<float>(at);
    need(cudaMemsetAsync(tensors_, 0, at * sizeof(float), gpu.stream));
    uint64_t pieces = 0;
    for (const auto& bucket : buckets_) pieces += bucket.size();
    std::byte* pinned = nullptr;
    need(const_cast<Gpu&>(gpu).runtime.allocate_pinned(0, 2 * pieces * sizeof(CopyPiece), &pinned));
    auto* table = reinterpret_cast<CopyPiece*>(pinned);
    for (const bool back : {false, true}) {
      for (const auto& bucket : buckets_) {
        const CopyPiecesArgs args{table, static_cast<uint32_t>(bucket.size()),
                                  static_cast<uint8_t>(Dtype::kF32), static_cast<uint8_t>(Dtype::kF32),
                                  back ? 1.0 : 0.5};
        (back ? unflatten_ : flatten_).push_back(args);
        for (const auto& [begin, some] : bucket) {
          auto* const tensor = reinterpret_cast<std::byte*>(tensors_ + begin);
          auto* const place = reinterpret_cast<std::byte*>(memory_ + begin);
          *table++ = back ? CopyPiece{place, tensor, some} : CopyPiece{tensor, place, some};
        }
      }
    }
  }
  void flatten(Gpu& gpu) const { launch(gpu, flatten_); }
  void unflatten(Gpu& gpu) const { launch(gpu, unflatten_); }
  void copy(const Gpu& gpu) const {
    need(cudaMemcpyAsync(memory_, tensors_, count * sizeof(float), cudaMemcpyDeviceToDevice, gpu.stream));
  }
  // Returns the host seconds of a bucket's launch.
  double launch_seconds(Gpu& gpu) const {
    double best = 1e9;
    for (int round = 0; round < (quick ? 1 : 50); round++) {
      gpu.wait();
      const double begin = seconds();
      flatten(gpu);
      best = std::min(best, (seconds() - begin) / static_cast<double>(flatten_.size()));
    }
    return best;
  }
  uint64_t count = 0;

 private:
  struct Stretch {
    uint64_t begin, count;
  };
  static void launch(Gpu& gpu, const std::vector<CopyPiecesArgs>& all) {
    for (const CopyPiecesArgs& args : all) need(gpu.runtime.copy_pieces(0, gpu.stream, args));
  }
  float* tensors_ = nullptr;
  float* memory_ = nullptr;
  std::vector<std::vector<Stretch>> buckets_;
  std::vector<CopyPiecesArgs> flatten_, unflatten_;
};

void measure_model(Gpu& gpu, const std::string& path) {
  const Manifest manifest = read_manifest(path);
  const Model model(gpu, manifest);
  const double bytes = 2.0 * sizeof(float) * static_cast<double>(model.count);
  const auto name = [&](const char* what) { return manifest.name + " " + what; };
  const double copy = gpu.time([&] { model.copy(gpu); });
  line(name("copy").c_str(), bytes / copy / 1e9, "GB/s");
  const double flatten = gpu.time([&] { model.flatten(gpu); });
  line(name("flatten").c_str(), bytes / flatten / 1e9, "GB/s", of_limit(copy / flatten, 0.85).c_str());
  const double unflatten = gpu.time([&] { model.unflatten(gpu); });
  line(name("unflatten").c_str(), bytes / unflatten / 1e9, "GB/s", of_limit(copy / unflatten, 0.85).c_str());
  line(name("launch").c_str(), model.launch_seconds(gpu) * 1e6, "us a bucket", "   (target 10)");
}

void measure_staging(Gpu& gpu) {
  const uint64_t bytes = (quick ? uint64_t{8} : uint64_t{256}) << 20;
  std::byte *device = gpu.device<std::byte>(bytes), *down = nullptr, *up = nullptr;
  need(gpu.runtime.allocate_pinned(0, bytes, &down));
  need(gpu.runtime.allocate_pinned(0, bytes, &up));
  std::memset(up, 0, bytes);
  cudaStream_t other = nullptr;
  need(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const double limit = gpu.time([&] {
    need(cudaMemcpyAsync(down, device, bytes / 2, cudaMemcpyDeviceToHost, gpu.stream));
    need(cudaMemcpyAsync(device + bytes / 2, up, bytes / 2, cudaMemcpyHostToDevice, other));
    need(cudaStreamSynchronize(other));
  });
  line("pinned copies, both directions", static_cast<double>(bytes) / 2 / limit / 1e9, "GB/s each");

  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  need(weft_context_create(nullptr, &context, nullptr));
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  options.backend = "loopback";
  options.size = 1;
  options.all_gather = [](void*, const void* mine, uint64_t size, void* all) {
    std::memcpy(all, mine, size);
    return 0;
  };
  if (weft_comm_create(context, &options, &comm, &error) != WEFT_OK) fail(error.text);
  const weft_stream stream = {sizeof stream, WEFT_DEVICE_CUDA, 0, gpu.stream};
  weft_coll_options call = WEFT_COLL_OPTIONS_INIT;
  call.stream = &stream;
  const double staged = gpu.time([&] {
    need(weft_all_reduce(comm, device, device, bytes / 2 / sizeof(float), WEFT_DTYPE_F32, WEFT_OP_SUM, &call,
                         nullptr));
  });
  line("staged all_reduce, one rank", static_cast<double>(bytes) / 2 / staged / 1e9, "GB/s each",
       of_limit(limit / staged, 0.8).c_str());
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
}

void measure_squares(Gpu& gpu) {
  const uint64_t count = quick ? 1 << 16 : 1 << 24;
  auto* const values = gpu.device<float>(count);
  need(cudaMemsetAsync(values, 0x3d, count * sizeof(float), gpu.stream));
  const SquaresKernelArgs args{reinterpret_cast<const std::byte*>(values), count,
                               static_cast<uint8_t>(Dtype::kF32),
                               gpu.device<SquaresPart>(count / kSquaresRange), gpu.device<Squares>(1)};
  const double time = gpu.time([&] { need(gpu.runtime.squares(0, gpu.stream, args)); });
  line("squares", sizeof(float) * static_cast<double>(count) / time / 1e9, "GB/s of f32");
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  std::vector<std::string> manifests;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--runtime") == 0 && i + 1 < argc) {
      file = argv[++i];
    } else if (std::strcmp(argv[i], "--devices") == 0) {
      return 0;  // no_gpu.cpp has checked for a GPU
    } else {
      manifests.emplace_back(argv[i]);
    }
  }
  try {
    Gpu gpu(file);
    for (const std::string& path : manifests) measure_model(gpu, path);
    measure_staging(gpu);
    measure_squares(gpu);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  return 0;
}
