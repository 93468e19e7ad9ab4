// Tests weft_reducer_options.accumulation: the program or the reducer adds up the micro-batches of local
// steps.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_accumulation {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::Rank;
using weft_test::run;

namespace {

constexpr int kRanks = 2;
constexpr int kParams = 4;
constexpr int64_t kSizes[kParams] = {3, 4100, 1, 77};
constexpr int kBatches = 3;

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// A reducer over four parameters whose gradients are in one array of the program.
struct Trainer {
  explicit Trainer(weft_accumulation accumulation, int32_t mode = WEFT_GRADIENT_COPY, uint64_t flags = 0) {
    for (int i = 0; i < kParams; i++) {
      begins[i] = memory.size();
      memory.resize(memory.size() + static_cast<size_t>(kSizes[i]));
    }
    for (int i = 0; i < kParams; i++) {
      names[i] = "p" + std::to_string(i);
      params[i] = WEFT_PARAM_INIT;
      params[i].name = names[i].c_str();
      params[i].dtype = WEFT_DTYPE_F32;
      params[i].ndim = 1;
      params[i].shape = &kSizes[i];
      if (mode != WEFT_GRADIENT_VIEW) params[i].gradient = own(i);
    }
    options.params = params;
    options.param_count = kParams;
    options.mode = mode;
    options.flags = flags;
    options.accumulation = accumulation;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
  }
  ~Trainer() { weft_reducer_destroy(&reducer); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  weft_status create(Rank& r) {
    weft_error error = WEFT_ERROR_INIT;
    const weft_status status = weft_reducer_create(r.comm, &options, &reducer, &error);
    text = error.text;
    return status;
  }
  float* own(int i) { return memory.data() + begins[i]; }
  // Returns where a gradient is computed.
  float* at(int i) {
    void* view = own(i);
    if (options.mode == WEFT_GRADIENT_VIEW) weft_reducer_grad_view(reducer, static_cast<uint64_t>(i), &view);
    return static_cast<float*>(view);
  }
  weft_status begin(uint64_t begin_flags, uint32_t micro_batches = 1) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = begin_flags;
    begin.micro_batches = micro_batches;
    return noted(weft_reducer_begin(reducer, &begin));
  }
  weft_status ready(int i) {
    return noted(weft_reducer_ready(reducer, static_cast<uint64_t>(i), at(i), nullptr));
  }
  weft_status absent(int i) {
    const auto param = static_cast<uint64_t>(i);
    return noted(weft_reducer_absent(reducer, &param, 1));
  }
  weft_status finish(uint64_t finish_flags = 0) {
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.flags = finish_flags;
    return noted(weft_reducer_finish(reducer, &finish));
  }
  weft_status noted(weft_status status) {
    weft_error error = WEFT_ERROR_INIT;
    weft_reducer_error(reducer, &error);
    text = error.text;
    return status;
  }
  // Adds the same number to all elements of the gradients.
  void add(float value) {
    for (int i = 0; i < kParams; i++) {
      for (int64_t k = 0; k < kSizes[i]; k++) at(i)[k] += value;
    }
  }
  // Makes a step in which all gradients become ready.
  bool step(uint64_t begin_flags, uint32_t micro_batches = 1) {
    bool ok = begin(begin_flags, micro_batches) == WEFT_OK;
    for (int i = kParams; i-- > 0;) ok &= ready(i) == WEFT_OK;
    return finish() == WEFT_OK && ok;
  }
  bool all(float value) {
    bool ok = true;
    for (int i = 0; i < kParams; i++) {
      for (int64_t k = 0; k < kSizes[i]; k++) ok &= at(i)[k] == value;
    }
    return ok;
  }

  uint64_t limit = 4096;
  std::string names[kParams], text;
  weft_param params[kParams];
  size_t begins[kParams] = {};
  std::vector<float> memory;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  weft_reducer* reducer = nullptr;
};

template <class Body>
void on_ranks(Body&& body, int size = kRanks) {
  Findings findings;
  const std::string error = run("loopback", size, WEFT_PROGRESS_THREAD, [&](Rank& r) { body(r, findings); });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
}

// Values whose sum depends on the order of addition.
float value(int rank, int batch, size_t element) {
  return 0.37f * static_cast<float>((rank + 1) * (batch + 2)) + 1e-4f * static_cast<float>(element % 211);
}

// Trains two windows of micro-batches and returns the results. clears: the program clears the gradients
// before each micro-batch.
std::vector<float> train(Rank& r, Findings& f, weft_accumulation accumulation, int32_t mode, bool clears) {
  Trainer t(accumulation, mode);
  f.expect(t.create(r) == WEFT_OK);
  for (int window = 0; t.reducer != nullptr && window < 2; window++) {
    for (int batch = 0; batch < kBatches; batch++) {
      for (int i = 0; i < kParams; i++) {
        for (int64_t k = 0; k < kSizes[i]; k++) {
          float* const to = t.at(i) + k;
          if (clears || batch == 0) *to = 0;
          *to += value(r.rank, batch + window, static_cast<size_t>(k));
        }
      }
      const bool last = batch + 1 == kBatches;
      f.expect(t.step(last ? 0 : WEFT_BEGIN_LOCAL, last ? kBatches : 1));
    }
  }
  std::vector<float> out;
  for (int i = 0; i < kParams && t.reducer != nullptr; i++)
    out.insert(out.end(), t.at(i), t.at(i) + kSizes[i]);
  return out;
}

}  // namespace

TEST_CASE("a local step in copy mode is refused until the program says who adds up") {
  on_ranks([](Rank& r, Findings& f) {
    Trainer t(WEFT_ACCUMULATION_UNSET);
    f.expect(t.create(r) == WEFT_OK);
    f.expect(t.begin(WEFT_BEGIN_LOCAL) == WEFT_ERR_STATE);
    f.expect(has(t.text, "WEFT_BEGIN_LOCAL needs a choice in weft_reducer_options.accumulation"));
    f.expect(has(t.text, "WEFT_ACCUMULATION_PROGRAM if the program adds up"));
    f.expect(has(t.text, "WEFT_ACCUMULATION_REDUCER if each ready hands over"));
    t.add(1);  // no step is open
    f.expect(t.step(0) && t.all(1));
  });
}

TEST_CASE("a view mode needs no choice, except for sparse gradients and those outside their views") {
  on_ranks([](Rank& r, Findings& f) {
    for (const int32_t mode : {WEFT_GRADIENT_VIEW, WEFT_GRADIENT_IN_PLACE}) {
      Trainer t(WEFT_ACCUMULATION_UNSET, mode);
      f.expect(t.create(r) == WEFT_OK);
      f.expect(t.step(WEFT_BEGIN_LOCAL) && t.step(0));
    }
    for (const bool sparse : {false, true}) {
      Trainer t(WEFT_ACCUMULATION_UNSET, WEFT_GRADIENT_VIEW, sparse ? 0 : WEFT_REDUCER_COPY_STRAYS);
      if (sparse) t.params[1].flags = WEFT_PARAM_SPARSE;
      f.expect(t.create(r) == WEFT_OK);
      f.expect(t.begin(WEFT_BEGIN_LOCAL) == WEFT_ERR_STATE);
      f.expect(has(t.text, "WEFT_ACCUMULATION_PROGRAM") && !has(t.text, "WEFT_ACCUMULATION_REDUCER"));
    }
  });
}

TEST_CASE("two micro-batches of ones average to one: added up by the program or by the reducer") {
  for (const weft_accumulation accumulation : {WEFT_ACCUMULATION_PROGRAM, WEFT_ACCUMULATION_REDUCER}) {
    on_ranks([&](Rank& r, Findings& f) {
      Trainer t(accumulation);
      f.expect(t.create(r) == WEFT_OK);
      for (int window = 0; window < 3; window++) {
        std::fill(t.memory.begin(), t.memory.end(), 1.0f);
        f.expect(t.step(WEFT_BEGIN_LOCAL));
        f.expect(t.all(1));
        if (accumulation == WEFT_ACCUMULATION_PROGRAM) t.add(1);
        f.expect(t.step(0, 2));
        f.expect(t.all(1));
      }
    });
  }
}

TEST_CASE("both choices give the bits of the view modes") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = run(backend, 3, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      const std::vector<float> view = train(r, findings, WEFT_ACCUMULATION_UNSET, WEFT_GRADIENT_VIEW, false);
      const auto same = [&](weft_accumulation accumulation, int32_t mode, bool clears) {
        const std::vector<float> got = train(r, findings, accumulation, mode, clears);
        findings.expect(got.size() == view.size() &&
                        std::memcmp(got.data(), view.data(), view.size() * sizeof(float)) == 0);
      };
      same(WEFT_ACCUMULATION_PROGRAM, WEFT_GRADIENT_COPY, false);
      same(WEFT_ACCUMULATION_REDUCER, WEFT_GRADIENT_COPY, true);
      same(WEFT_ACCUMULATION_PROGRAM, WEFT_GRADIENT_IN_PLACE, false);
    });
    INFO(backend);
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("a parameter that only local steps made ready contributes the sum at the place of its result") {
  for (const weft_accumulation accumulation : {WEFT_ACCUMULATION_PROGRAM, WEFT_ACCUMULATION_REDUCER}) {
    on_ranks([&](Rank& r, Findings& f) {
      Trainer t(accumulation, WEFT_GRADIENT_COPY, WEFT_REDUCER_ABSENT);
      f.expect(t.create(r) == WEFT_OK);
      t.add(3);
      f.expect(t.step(WEFT_BEGIN_LOCAL));
      f.expect(t.begin(0) == WEFT_OK);
      if (accumulation == WEFT_ACCUMULATION_REDUCER) std::fill(t.memory.begin(), t.memory.end(), 0.0f);
      f.expect(t.ready(0) == WEFT_OK);
      f.expect(t.absent(1) == WEFT_OK);
      f.expect(t.finish(WEFT_FINISH_REST_ABSENT) == WEFT_OK);
      f.expect(t.all(3));
    });
  }
}

TEST_CASE(
    "a parameter whose sum would be lost cannot be absent: the error names it, and the step continues") {
  on_ranks([](Rank& r, Findings& f) {
    Trainer t(WEFT_ACCUMULATION_PROGRAM, WEFT_GRADIENT_COPY, WEFT_REDUCER_ABSENT);
    t.params[1].gradient = nullptr;
    t.params[2].gradient = nullptr;
    f.expect(t.create(r) == WEFT_OK);
    t.add(3);
    f.expect(t.begin(WEFT_BEGIN_LOCAL) == WEFT_OK);
    f.expect(t.ready(1) == WEFT_OK && t.finish() == WEFT_OK);
    f.expect(t.begin(0) == WEFT_OK);
    for (const bool rest : {false, true}) {
      f.expect((rest ? t.finish(WEFT_FINISH_REST_ABSENT) : t.absent(1)) == WEFT_ERR_STATE);
      f.expect(has(t.text, "parameter 1 ('p1') was ready in a local step"));
      f.expect(has(t.text, "hand its sum over with weft_reducer_ready, or set weft_param.gradient"));
    }
    f.expect(t.ready(1) == WEFT_OK && t.finish(WEFT_FINISH_REST_ABSENT) == WEFT_OK);
    f.expect(t.own(1)[0] == 3.0f);
    // The next window is not affected.
    f.expect(t.begin(0) == WEFT_OK && t.finish(WEFT_FINISH_REST_ABSENT) == WEFT_OK);
  });
}

TEST_CASE("a rank without data contributes the sum of its local steps, or is told to hand it over") {
  for (const bool known : {false, true}) {
    for (const bool joins : {false, true}) {
      on_ranks([&](Rank& r, Findings& f) {
        Trainer t(WEFT_ACCUMULATION_PROGRAM, WEFT_GRADIENT_COPY, WEFT_REDUCER_UNEVEN);
        for (weft_param& param : t.params) param.gradient = known ? param.gradient : nullptr;
        f.expect(t.create(r) == WEFT_OK);
        t.add(static_cast<float>(r.rank + 1));
        const auto leave = [&] {
          return joins ? t.noted(weft_reducer_join(t.reducer, nullptr, nullptr))
                       : t.begin(WEFT_BEGIN_NO_DATA);
        };
        if (r.rank == 1) {
          f.expect(t.step(WEFT_BEGIN_LOCAL));
          if (!known) {
            f.expect(leave() == WEFT_ERR_STATE);
            f.expect(has(t.text, "parameter 0 ('p0') was ready in a local step"));
            f.expect(t.step(0));
          } else {
            f.expect(leave() == WEFT_OK && (joins || t.finish() == WEFT_OK));
          }
        } else {
          f.expect(t.step(0));
        }
        f.expect(t.all(1.5f));
        if (joins && (r.rank == 0 || !known)) f.expect(leave() == WEFT_OK);
      });
    }
  }
}

TEST_CASE("sparse gradients follow the choice in every mode") {
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const weft_accumulation accumulation : {WEFT_ACCUMULATION_PROGRAM, WEFT_ACCUMULATION_REDUCER}) {
      if (mode == WEFT_GRADIENT_VIEW && accumulation == WEFT_ACCUMULATION_REDUCER) continue;
      on_ranks([&](Rank& r, Findings& f) {
        Trainer t(accumulation, mode, WEFT_REDUCER_ABSENT);
        t.params[1].flags = WEFT_PARAM_SPARSE;
        t.params[1].gradient = nullptr;
        f.expect(t.create(r) == WEFT_OK);
        const int64_t index = 7;
        float entry = 1;
        const auto ready = [&](float amount) {
          entry = amount;
          weft_sparse sparse = WEFT_SPARSE_INIT;
          sparse.count = 1;
          sparse.indices = &index;
          sparse.values = &entry;
          return t.noted(weft_reducer_ready_sparse(t.reducer, 1, &sparse, nullptr));
        };
        const bool program_adds = accumulation == WEFT_ACCUMULATION_PROGRAM;
        f.expect(t.begin(WEFT_BEGIN_LOCAL) == WEFT_OK && ready(1) == WEFT_OK && t.finish() == WEFT_OK);
        f.expect(t.begin(0, 2) == WEFT_OK);
        if (program_adds) {
          f.expect(t.absent(1) == WEFT_ERR_STATE);
          f.expect(has(t.text, "parameter 1 ('p1')") && has(t.text, "weft_reducer_ready_sparse"));
        }
        f.expect(ready(program_adds ? 2 : 1) == WEFT_OK);
        f.expect(t.finish(WEFT_FINISH_REST_ABSENT) == WEFT_OK);
        weft_sparse result = WEFT_SPARSE_INIT;
        f.expect(weft_reducer_sparse_result(t.reducer, 1, &result) == WEFT_OK);
        f.expect(result.count == 1 && static_cast<const float*>(result.values)[0] == 1.0f);
      });
    }
  }
}

TEST_CASE("after a step that failed the program still has its sum") {
  on_ranks([](Rank& r, Findings& f) {
    Trainer t(WEFT_ACCUMULATION_PROGRAM);
    f.expect(t.create(r) == WEFT_OK);
    t.add(1);
    f.expect(t.step(WEFT_BEGIN_LOCAL));
    f.expect(t.begin(0) == WEFT_OK);
    if (r.rank == 0) {
      f.expect(weft_reducer_fail(t.reducer, "no batch") == WEFT_OK);
    } else {
      for (int i = 0; i < kParams; i++) f.expect(t.ready(i) == WEFT_OK);
      f.expect(t.finish() == WEFT_ERR_STEP_FAILED);
    }
    std::fill(t.memory.begin(), t.memory.end(), 2.0f);  // as a sum of two micro-batches
    f.expect(t.step(0, 2));
    f.expect(t.all(1));
  });
}

TEST_CASE("ranks that choose differently get an error with both choices") {
  std::string texts[kRanks];
  on_ranks([&](Rank& r, Findings& f) {
    Trainer t(r.rank == 0 ? WEFT_ACCUMULATION_PROGRAM : WEFT_ACCUMULATION_REDUCER);
    f.expect(t.create(r) == WEFT_ERR_MISMATCH);
    texts[r.rank] = t.text;
  });
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(has(text, "weft_reducer_options.accumulation is WEFT_ACCUMULATION_"));
    CHECK(has(text, "WEFT_ACCUMULATION_PROGRAM on rank 0"));
    CHECK(has(text, "WEFT_ACCUMULATION_REDUCER on rank 1"));
  }
}

}  // namespace capi_accumulation
