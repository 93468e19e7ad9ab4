// Gradients in arrays of the program (WEFT_GRADIENT_IN_PLACE), compared with a reducer that copies.
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_in_place {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;
using weft_test::run;

namespace {

constexpr int kParams = 6;
constexpr int64_t kSizes[kParams] = {7, 1500, 0, 333, 1, 2049};
constexpr size_t kGap = 5;  // elements between two parameters, if a test wants a gap

// A list of parameters whose gradients are adjacent in one array, except behind the parameters in `gaps`.
struct Flat {
  explicit Flat(int32_t mode, float* memory, const std::vector<int>& gaps = {}) {
    size_t at = 0;
    for (int i = 0; i < kParams; i++) {
      names[i] = "p" + std::to_string(i);
      params[i] = WEFT_PARAM_INIT;
      params[i].name = names[i].c_str();
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kSizes[i];
      params[i].gradient = memory + at;
      begins[i] = at;
      at += static_cast<size_t>(kSizes[i]);
      for (const int gap : gaps) at += gap == i ? kGap : 0;
    }
    options.params = params;
    options.param_count = kParams;
    options.mode = mode;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
  }
  static size_t room() { return 7 + 1500 + 333 + 1 + 2049 + kParams * kGap; }

  uint64_t limit = 4096;
  std::string names[kParams];
  weft_param params[kParams];
  size_t begins[kParams] = {};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

void fill(float* memory, const Flat& flat, int rank, int step) {
  for (int p = 0; p < kParams; p++) {
    for (int64_t i = 0; i < kSizes[p]; i++) {
      memory[flat.begins[p] + static_cast<size_t>(i)] =
          static_cast<float>((rank + 1) * (step + 2)) * 0.37f + static_cast<float>(i % 19 + p);
    }
  }
}

// Runs steps in which all gradients become ready, the last parameter first.
bool train(weft_reducer* reducer, float* memory, const Flat& flat, int rank, int steps) {
  bool ok = true;
  for (int step = 0; step < steps; step++) {
    ok &= weft_reducer_begin(reducer, nullptr) == WEFT_OK;
    fill(memory, flat, rank, step);
    for (uint64_t p = kParams; p-- > 0;) ok &= weft_reducer_ready(reducer, p, nullptr, nullptr) == WEFT_OK;
    ok &= weft_reducer_finish(reducer, nullptr) == WEFT_OK;
  }
  return ok;
}

uint32_t buckets_of(weft_reducer* reducer) {
  uint32_t buckets = 0;
  weft_reducer_bucket_count(reducer, &buckets);
  return buckets;
}

weft_reducer* create(Rank& r, const weft_reducer_options& options, std::string* error) {
  weft_reducer* reducer = nullptr;
  weft_error details = WEFT_ERROR_INIT;
  weft_reducer_create(r.comm, &options, &reducer, &details);
  *error = details.text;
  return reducer;
}

// Trains once in copy mode and once in place, and compares the arrays.
void compare(Rank& r, Findings& f, const char* hook_name, int32_t reduce_dtype,
             const std::vector<int>& gaps) {
  std::vector<float> copied(Flat::room(), -1), own(Flat::room(), -1);
  for (const bool in_place : {false, true}) {
    std::vector<float>& memory = in_place ? own : copied;
    Flat flat(in_place ? WEFT_GRADIENT_IN_PLACE : WEFT_GRADIENT_COPY, memory.data(), gaps);
    flat.options.reduce_dtype = reduce_dtype;
    flat.options.replan = WEFT_PLANNER_NONE;
    weft_hook* hook = nullptr;
    f.expect(weft_hook_create(r.context, hook_name, nullptr, &hook) == WEFT_OK);
    flat.options.hook = hook;
    std::string error;
    weft_reducer* reducer = create(r, flat.options, &error);
    f.expect(reducer != nullptr);
    if (reducer != nullptr) {
      f.expect(train(reducer, memory.data(), flat, r.rank, 3));
      std::vector<char> report(1 << 16);
      uint64_t room = report.size();
      f.expect(weft_reducer_report(reducer, report.data(), &room) == WEFT_OK);
      f.expect(std::strstr(report.data(), in_place ? "\"mode\": \"in_place\"" : "\"mode\": \"copy\"") !=
               nullptr);
      weft_reducer_destroy(&reducer);
    }
    weft_hook_destroy(&hook);
  }
  f.expect(std::memcmp(copied.data(), own.data(), own.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("gradients in one array are reduced in place, with the bits of copy mode") {
  for (const char* backend : kBackends) {
    for (const int32_t progress : kModes) {
      for (const int size : {1, 2, 3}) {
        Findings findings;
        const std::string error = run(backend, size, progress, [&](Rank& r) {
          compare(r, findings, "allreduce", 0, {});
          compare(r, findings, "allreduce", WEFT_DTYPE_BF16, {});
          compare(r, findings, "bf16", 0, {});
        });
        INFO(backend << " progress " << progress << " ranks " << size << " " << error);
        CHECK(error.empty());
        CHECK(findings.wrong == 0);
      }
    }
  }
}

TEST_CASE("the program's array is the view, a bucket ends at a gap, and nothing is written into the gap") {
  Findings findings;
  const std::string error = run("shm", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    std::vector<float> memory(Flat::room(), -1);
    std::string text;
    Flat adjacent(WEFT_GRADIENT_IN_PLACE, memory.data());
    weft_reducer* reducer = create(r, adjacent.options, &text);
    findings.expect(reducer != nullptr);
    const uint32_t few = buckets_of(reducer);
    for (uint64_t p = 0; p < kParams; p++) {
      void* view = nullptr;
      findings.expect(weft_reducer_grad_view(reducer, p, &view) == WEFT_OK);
      findings.expect(kSizes[p] == 0 || view == memory.data() + adjacent.begins[p]);
    }
    weft_reducer_destroy(&reducer);
    const std::vector<int> gaps = {3};
    Flat apart(WEFT_GRADIENT_IN_PLACE, memory.data(), gaps);
    reducer = create(r, apart.options, &text);
    findings.expect(buckets_of(reducer) == few + 1);
    weft_reducer_destroy(&reducer);
    compare(r, findings, "allreduce", 0, {0, 1, 3, 4});
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("memory of weft_comm_alloc is reduced in place") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      void* memory = nullptr;
      findings.expect(weft_comm_alloc(r.comm, Flat::room() * sizeof(float), &memory) == WEFT_OK);
      auto* const floats = static_cast<float*>(memory);
      Flat flat(WEFT_GRADIENT_IN_PLACE, floats);
      std::string text;
      weft_reducer* reducer = create(r, flat.options, &text);
      findings.expect(reducer != nullptr);
      findings.expect(train(reducer, floats, flat, r.rank, 2));
      std::vector<float> other(Flat::room());
      float expected = 0;
      for (int rank = 0; rank < 2; rank++) {
        fill(other.data(), flat, rank, 1);
        expected += other[5];
      }
      findings.expect(floats[5] == expected * 0.5f);
      weft_reducer_destroy(&reducer);
      findings.expect(weft_comm_free(r.comm, memory) == WEFT_OK);
    });
    INFO(backend);
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("the array accumulates micro-batches as the program adds them up") {
  Findings findings;
  const std::string error = run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    std::vector<float> memory(Flat::room());
    Flat flat(WEFT_GRADIENT_IN_PLACE, memory.data());
    std::string text;
    weft_reducer* reducer = create(r, flat.options, &text);
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.micro_batches = 2;
    for (const bool last : {false, true}) {
      begin.flags = last ? 0 : WEFT_BEGIN_LOCAL;
      findings.expect(weft_reducer_begin(reducer, &begin) == WEFT_OK);
      for (float& value : memory) value += static_cast<float>(r.rank + 1);
      for (uint64_t p = kParams; p-- > 0;)
        findings.expect(weft_reducer_ready(reducer, p, nullptr, nullptr) == WEFT_OK);
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    }
    findings.expect(memory[0] == 1.5f);  // (2 + 4) / 2 ranks / 2 micro-batches
    weft_reducer_destroy(&reducer);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

TEST_CASE("what cannot be reduced in place is refused on all ranks, naming the parameter or the flag") {
  struct Wrong {
    const char* text;
    void (*make)(Flat&);
  };
  const Wrong kWrong[] = {
      {"parameter 3 ('p3'): weft_param.gradient is NULL",
       [](Flat& flat) { flat.params[3].gradient = nullptr; }},
      {"parameter 1 ('p1'): its gradient is sparse",
       [](Flat& flat) {
         flat.params[1].flags = WEFT_PARAM_SPARSE;
         flat.params[1].gradient = nullptr;
       }},
      {"replan is WEFT_PLANNER_LIMITS, which mode WEFT_GRADIENT_IN_PLACE excludes",
       [](Flat& flat) { flat.options.replan = WEFT_PLANNER_LIMITS; }},
      {"reduce_dtype is f32, which needs more memory than a bf16 gradient",
       [](Flat& flat) {
         for (weft_param& param : flat.params) param.dtype = WEFT_DTYPE_BF16;
         flat.options.reduce_dtype = WEFT_DTYPE_F32;
       }},
      {"does not lie directly behind",
       [](Flat& flat) {
         static const uint64_t sizes[] = {kParams}, params[] = {0, 1, 2, 4, 3, 5};
         static const weft_plan plan = {sizeof(weft_plan), 1, sizes, params};
         flat.options.plan = &plan;
       }},
  };
  for (const Wrong& wrong : kWrong) {
    Findings findings;
    std::string texts[2];
    const std::string error = run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      std::vector<float> memory(Flat::room());
      Flat flat(WEFT_GRADIENT_IN_PLACE, memory.data());
      wrong.make(flat);
      findings.expect(create(r, flat.options, &texts[r.rank]) == nullptr);
    });
    INFO(wrong.text << ": " << texts[0]);
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
    CHECK(texts[0].find(wrong.text) != std::string::npos);
    CHECK(texts[1].find(wrong.text) != std::string::npos);
  }
}

TEST_CASE("ranks that do not all reduce in place are named, and a re-plan is refused") {
  Findings findings;
  std::string texts[2];
  const std::string error = run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    std::vector<float> memory(Flat::room());
    Flat mixed(r.rank == 0 ? WEFT_GRADIENT_IN_PLACE : WEFT_GRADIENT_COPY, memory.data());
    findings.expect(create(r, mixed.options, &texts[r.rank]) == nullptr);
    Flat flat(WEFT_GRADIENT_IN_PLACE, memory.data());
    std::string text;
    weft_reducer* reducer = create(r, flat.options, &text);
    findings.expect(reducer != nullptr);
    findings.expect(train(reducer, memory.data(), flat, r.rank, 2));
    findings.expect(weft_reducer_replan(reducer, nullptr, nullptr) == WEFT_ERR_UNSUPPORTED);
    findings.expect(train(reducer, memory.data(), flat, r.rank, 1));
    weft_reducer_destroy(&reducer);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(text.find("is WEFT_GRADIENT_IN_PLACE on rank 0 and not on rank 1") != std::string::npos);
  }
}

namespace {

constexpr int kLayers = 3;
constexpr int64_t kRows = 6, kColumns = 40;
constexpr size_t kMatrix = kRows * kColumns;
static const int64_t kMatrixShape[] = {kRows, kColumns}, kLastStrides[] = {kColumns * kLayers, kLayers};

// Two stacked tensors in one array, weight [layers][rows][columns] and bias [layers][columns], whose slices
// are parameters, layer by layer. A third one has its layers in the last dimension:
// last[rows][columns][layers].
struct Stacked {
  Stacked(int32_t mode, float* memory) {
    float* const bias = memory + kLayers * kMatrix;
    float* const last = bias + kLayers * kColumns;
    for (int l = 0; l < kLayers; l++) {
      add("weight", l, 2, kMatrixShape, memory + static_cast<size_t>(l) * kMatrix);
      add("bias", l, 1, kMatrixShape + 1, bias + l * kColumns);
      if (mode == WEFT_GRADIENT_IN_PLACE) continue;  // gradients have no gaps there
      add("last", l, 2, kMatrixShape, last + l);
      params.back().strides = kLastStrides;
    }
    for (size_t i = 0; i < params.size(); i++) params[i].name = names[i].c_str();
    options.params = params.data();
    options.param_count = params.size();
    options.mode = mode;
  }
  void add(const char* tensor, int layer, int32_t ndim, const int64_t* shape, float* gradient) {
    names.push_back(std::string(tensor) + "." + std::to_string(layer));
    params.push_back(WEFT_PARAM_INIT);
    params.back().dtype = WEFT_DTYPE_F32;
    params.back().ndim = ndim;
    params.back().shape = shape;
    params.back().gradient = gradient;
  }
  static size_t room() { return kLayers * (2 * kMatrix + kColumns); }

  std::vector<std::string> names;
  std::vector<weft_param> params;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

float stacked_value(int rank, size_t at) {
  return static_cast<float>((rank + 1) * static_cast<int>(at % 97));
}

// Trains a step in which the slices become ready from the last layer to the first.
void average_slices(Rank& r, Findings& f, int32_t mode) {
  std::vector<float> memory(Stacked::room());
  for (size_t at = 0; at < memory.size(); at++) memory[at] = stacked_value(r.rank, at);
  Stacked stacked(mode, memory.data());
  std::string error;
  weft_reducer* reducer = create(r, stacked.options, &error);
  f.expect(reducer != nullptr);
  if (reducer == nullptr) return;
  // In place a bucket ends with each slice, because the list alternates between two tensors.
  f.expect(buckets_of(reducer) == (mode == WEFT_GRADIENT_IN_PLACE ? stacked.params.size() : 1));
  f.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
  for (uint64_t p = stacked.params.size(); p-- > 0;)
    f.expect(weft_reducer_ready(reducer, p, nullptr, nullptr) == WEFT_OK);
  f.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
  const size_t end = mode == WEFT_GRADIENT_IN_PLACE ? kLayers * (kMatrix + kColumns) : memory.size();
  for (size_t at = 0; at < end; at++)
    f.expect(memory[at] == (stacked_value(0, at) + stacked_value(1, at)) * 0.5f);
  weft_reducer_destroy(&reducer);
}

}  // namespace

TEST_CASE("slices of stacked tensors are parameters, in place and by copy") {
  for (const char* backend : kBackends) {
    for (const int32_t mode : {WEFT_GRADIENT_IN_PLACE, WEFT_GRADIENT_COPY}) {
      Findings findings;
      const std::string error =
          run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) { average_slices(r, findings, mode); });
      INFO(backend << ", mode " << mode);
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

}  // namespace capi_in_place
