// Steps of reducers over nccl whose gradients stay on their device, compared with averages that are computed
// one rank after the other. Runs on the fake NCCL, and in tests/gpu on a real one.
#include <memory>
#include <string>

#include "capi/nccl_memory.h"

namespace capi_nccl_steps {

using namespace weft_test;

namespace {

constexpr double kRounded = 1.0 / 4096;  // a fraction that f16 and bf16 lose next to whole numbers

// A rank's gradients of several types, all on its device, and a reducer of them.
class Trained {
 public:
  Trained(const Rank& rank, int32_t mode, const char* hook)
      : rank_(rank), mode_(mode), rounds_(std::string(hook) != "allreduce") {
    std::vector<weft_param> params;
    for (const Part& part : kParts) {
      memory_.push_back(std::make_unique<Memory>(rank, part.count * kSizes[part.dtype]));
      weft_param param = WEFT_PARAM_INIT;
      param.name = part.name;
      param.dtype = part.dtype;
      param.ndim = 1;
      param.shape = &part.count;
      param.device_kind = WEFT_DEVICE_CUDA;
      param.device = NcclRun::device(rank.rank);
      params.push_back(param);
    }
    const uint64_t limit = 3000;
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = params.size();
    options.mode = mode;
    if (mode == WEFT_GRADIENT_COPY) options.accumulation = WEFT_ACCUMULATION_REDUCER;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    if (weft_hook_create(rank.context, hook, nullptr, &hook_) != WEFT_OK) created_ = "hook";
    options.hook = hook_;
    if (weft_reducer_create(rank.comm, &options, &reducer_, &error) != WEFT_OK) created_ = error.text;
  }
  ~Trained() {
    weft_reducer_destroy(&reducer_);
    weft_hook_destroy(&hook_);
  }
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;
  const std::string& created() const { return created_; }
  weft_reducer_stats stats() const {
    weft_reducer_stats stats{};
    stats.struct_size = sizeof stats;
    weft_reducer_query(reducer_, &stats);
    return stats;
  }

  // Runs a step after `locals` local steps. `waits`: a stream waits for the result instead of the host.
  // Returns the failure.
  std::string window(uint64_t seed, uint32_t locals, bool waits) {
    for (uint32_t i = 0; i <= locals; i++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      if (i < locals) begin.flags = WEFT_BEGIN_LOCAL;
      if (i == locals) begin.micro_batches = locals + 1;
      if (weft_reducer_begin(reducer_, &begin) != WEFT_OK) return "begin: " + error();
      for (size_t k = 0; k < memory_.size(); k++) {
        const size_t p = (k * 2 + static_cast<size_t>(rank_.rank)) % memory_.size();  // coprime
        if (const std::string wrong = give(p, seed, i); !wrong.empty()) return wrong;
      }
      weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
      std::vector<weft_stream> all;
      all.reserve(memory_.size());
      for (const auto& memory : memory_) all.push_back(*memory->stream().view());
      if (waits && i == locals) {
        finish.stream = all.data();
        finish.stream_count = all.size();
      }
      if (weft_reducer_finish(reducer_, &finish) != WEFT_OK) return "finish: " + error();
    }
    return compare(seed, locals);
  }

 private:
  struct Part {
    const char* name;
    int32_t dtype;
    int64_t count;
  };
  static constexpr Part kParts[] = {{"single", WEFT_DTYPE_F32, 20'001},
                                    {"brain", WEFT_DTYPE_BF16, 129},
                                    {"one", WEFT_DTYPE_F32, 1},
                                    {"half", WEFT_DTYPE_F16, 57},
                                    {"double", WEFT_DTYPE_F64, 33}};
  static double beside(size_t p) { return kParts[p].dtype == WEFT_DTYPE_F32 ? kRounded : 0; }
  static double sum(size_t p, int rank, size_t i, uint64_t seed, uint32_t first, uint32_t last) {
    double sum = 0;
    for (uint32_t batch = first; batch <= last; batch++) sum += value(rank, i, seed * 100 + batch * 10 + p);
    return sum;
  }
  std::string error() const {
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_error(reducer_, &error);
    return error.text;
  }
  void* gradient(size_t p) const {
    void* where = memory_[p]->get();
    if (mode_ == WEFT_GRADIENT_VIEW) weft_reducer_grad_view(reducer_, p, &where);
    return where;
  }
  // Writes the gradient of a batch. In view mode it includes those of the earlier local steps.
  std::string give(size_t p, uint64_t seed, uint32_t batch) const {
    const uint32_t first = mode_ == WEFT_GRADIENT_VIEW ? 0 : batch;
    std::vector<char> bytes(static_cast<size_t>(kParts[p].count) * kSizes[kParts[p].dtype]);
    for (size_t i = 0; i < static_cast<size_t>(kParts[p].count); i++) {
      const double all = sum(p, rank_.rank, i, seed, first, batch) + beside(p) * (batch - first + 1);
      put(&bytes[i * kSizes[kParts[p].dtype]], kParts[p].dtype, all);
    }
    memory_[p]->write(bytes, gradient(p));
    const weft_status status = weft_reducer_ready(reducer_, p, gradient(p), memory_[p]->stream().view());
    return status == WEFT_OK ? "" : "ready: " + error();
  }
  std::string compare(uint64_t seed, uint32_t locals) const {
    for (size_t p = 0; p < memory_.size(); p++) {
      const size_t element = kSizes[kParts[p].dtype], count = static_cast<size_t>(kParts[p].count);
      std::vector<char> expected(count * element);
      for (size_t i = 0; i < count; i++) {
        double all = 0;
        for (int r = 0; r < rank_.size; r++) all += sum(p, r, i, seed, 0, locals);
        const double mean = all / (rank_.size * (locals + 1.0)) + (rounds_ ? 0 : beside(p));
        put(&expected[i * element], kParts[p].dtype, mean);
      }
      if (memory_[p]->read(expected.size(), gradient(p)) != expected)
        return std::string("'") + kParts[p].name + "' differs, seed " + std::to_string(seed);
    }
    return "";
  }

  const Rank& rank_;
  const int32_t mode_;
  const bool rounds_;
  std::vector<std::unique_ptr<Memory>> memory_;
  weft_hook* hook_ = nullptr;
  weft_reducer* reducer_ = nullptr;
  std::string created_;
};

}  // namespace

TEST_CASE("nccl: reducers average gradients of devices, after local steps too, and round where a hook does") {
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const char* const hook : {"allreduce", "bf16", "fp16"}) {
      for (const int wanted : {1, 4}) {
        const NcclRun nccl(11, 60);
        const int size = nccl.ranks_sharing(wanted);
        INFO("gradients " << mode << ", " << hook << ", " << size << " ranks");
        RankFailures failures;
        failures.expect(nccl.run(size, [&](Rank& r) {
          Trained trained(r, mode, hook);
          failures.expect(trained.created());
          if (!trained.created().empty()) return;
          for (uint64_t seed = 1; seed <= 6; seed++)
            failures.expect(trained.window(seed, seed % 3 == 0 ? 1 : 0, seed % 2 == 1));
          failures.expect(trained.stats().steps == 6 && trained.stats().local_steps == 2, "not counted");
        }));
#ifndef WEFT_TEST_REAL_NCCL
        failures.expect(fake_nccl_calls("ncclAllReduce") > 0, "nothing went by NCCL");
#endif
        failures.check();
      }
    }
  }
}

}  // namespace capi_nccl_steps
