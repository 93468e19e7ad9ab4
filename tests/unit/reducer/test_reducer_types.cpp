// lib/reducer: gradients that are communicated or accumulated in another type, and gradients outside their
// views.
#include <cmath>
#include <map>

#include "reducer_rig.h"

namespace unit_reducer_types {

using namespace weft;
using namespace weft::test;

namespace {

std::vector<TestParam> all_types() {
  return {{"w", {300, 1100}},
          {"small", {7}},
          {"padded", {6, 5}, Dtype::kF32, {9, 1}},
          {"half", {17, 3}, Dtype::kF16},
          {"brain", {1031}, Dtype::kBf16},
          {"spread", {40}, Dtype::kBf16, {3}},
          {"double", {11, 2}, Dtype::kF64}};
}

double rough(int rank, size_t param, uint64_t element, uint64_t step) {
  return std::sin(static_cast<double>(element + 1) * (rank + 1.7) + static_cast<double>(param + step)) * 3;
}

void convert(const Bytes& from, Dtype from_dtype, Bytes* to, Dtype to_dtype, uint64_t count) {
  CopyArgs args;
  args.src = from.data();
  args.dst = to->data();
  args.count = count;
  args.src_dtype = from_dtype;
  args.dst_dtype = to_dtype;
  host_ops().copy(args);
}

// Returns one parameter's mean over ranks if it is communicated as this type, in row-major order.
Bytes mean(const Model& model, size_t i, Dtype comm_dtype, int ranks, uint64_t step) {
  const Dtype own = model[i].dtype;
  const uint64_t count = model.count(i);
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> pointers;
  for (int r = 0; r < ranks; r++) {
    Bytes gradient(count * dtype_size(own));
    for (uint64_t k = 0; k < count; k++) {
      store_as(own, rough(r, i, k, step), gradient.data() + k * dtype_size(own));
    }
    convert(gradient, own, &inputs.emplace_back(count * dtype_size(comm_dtype)), comm_dtype, count);
  }
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes sum(count * dtype_size(comm_dtype)), result(count * dtype_size(own));
  std::byte* output = sum.data();
  FoldArgs fold;
  fold.dtype = comm_dtype;
  fold.inputs = pointers.data();
  fold.input_count = ranks;
  fold.outputs = &output;
  fold.output_count = 1;
  fold.count = count;
  fold.postscale = 1.0 / ranks;
  host_ops().fold(fold);
  convert(sum, comm_dtype, &result, own, count);
  return result;
}

Dtype comm_dtype_of(Dtype own, int32_t reduce_dtype) {
  return own == Dtype::kF64 || reduce_dtype == 0 ? own : static_cast<Dtype>(reduce_dtype);
}

struct Place {
  std::byte* memory;
  bool packed;  // row-major, although the gradient is not
};

void step(Rank& self, const Model& model, Reducer& reducer, const std::vector<Place>& places,
          const RigOptions& rig, uint64_t number) {
  const auto at = [&](size_t i, uint64_t k) {
    return places[i].memory + (places[i].packed ? k : model.offset(i, k)) * dtype_size(model[i].dtype);
  };
  std::vector<std::byte*> pointers;
  for (size_t i = 0; i < model.size(); i++) {
    pointers.push_back(places[i].memory);
    for (uint64_t k = 0; k < model.count(i); k++) {
      store_as(model[i].dtype, rough(self.rank, i, k, number), at(i, k));
    }
  }
  self.expect(reducer.begin(nullptr), "begin");
  self.expect(ready_all(reducer, pointers, number), "ready");
  self.expect(reducer.finish({}), "finish");
  for (size_t i = 0; i < model.size(); i++) {
    const Dtype own = model[i].dtype;
    const uint32_t size = dtype_size(own);
    const Bytes expected = mean(model, i, comm_dtype_of(own, rig.reduce_dtype), self.size, number);
    Gradients copied(model);
    self.expect(reducer.result(i, copied[i]), "result");
    bool same = true, fetched = true;
    for (uint64_t k = 0; k < model.count(i); k++) {
      same &= std::memcmp(at(i, k), expected.data() + k * size, size) == 0;
      fetched &= std::memcmp(copied[i] + copied.at(i, k), expected.data() + k * size, size) == 0;
    }
    self.expect(same, cat("step ", number, ": wrong mean of ", model[i].name));
    self.expect(fetched, cat("step ", number, ": wrong result() of ", model[i].name));
  }
}

void check_types(int ranks, const RigOptions& rig, const std::vector<TestParam>& params = all_types()) {
  const Model model(params);
  check(run_threads(ranks, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    std::vector<Place> places;
    for (size_t i = 0; i < model.size(); i++) {
      void* view = gradients[i];
      const bool viewed = rig.mode == WEFT_GRADIENT_VIEW;
      if (viewed) self.expect(reducer->grad_view(i, &view), "grad_view");
      const bool gaps = model[i].strides != row_major(model[i].shape);
      places.push_back({static_cast<std::byte*>(view), viewed && gaps});
    }
    for (uint64_t number = 0; number < 2; number++) step(self, model, *reducer, places, rig, number);
  }));
}

}  // namespace

TEST_CASE("gradients are communicated and summed in the type of reduce_dtype, in both modes") {
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const int32_t dtype : {0, WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_F32}) {
      INFO("mode " << mode << ", dtype " << dtype);
      check_types(3, {.mode = mode, .limits = {4096}, .reduce_dtype = dtype});
      check_types(2, {.mode = mode, .limits = {}, .flags = WEFT_REDUCER_RETAIN, .reduce_dtype = dtype});
    }
  }
}

TEST_CASE("a bucket that is converted in place in several pieces is widened from its end") {
  const std::vector<TestParam> halves = {{"long", {600'001}, Dtype::kBf16}}, floats = {{"long", {300'001}}};
  check_types(2, {.mode = WEFT_GRADIENT_VIEW, .limits = {}, .reduce_dtype = WEFT_DTYPE_F32}, halves);
  check_types(2, {.mode = WEFT_GRADIENT_VIEW, .limits = {}, .reduce_dtype = WEFT_DTYPE_BF16}, floats);
}

TEST_CASE("a bucket takes the memory of the wider of its two types, and no other") {
  const Model model({{"w", {1 << 20}}, {"h", {1 << 20}, Dtype::kF16}});
  constexpr uint64_t kMiB = 1 << 20;
  const auto bytes = [&](const RigOptions& rig) {
    uint64_t found = 0;
    check(run_threads(1, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      weft_reducer_stats stats{};
      reducer->query(&stats);
      found = stats.bucket_bytes + stats.scratch_bytes;
    }));
    return found;
  };
  CHECK(bytes({}) == 6 * kMiB);
  CHECK(bytes({.reduce_dtype = WEFT_DTYPE_BF16}) == 4 * kMiB);
  CHECK(bytes({.reduce_dtype = WEFT_DTYPE_F32}) == 8 * kMiB);
  CHECK(bytes({.mode = WEFT_GRADIENT_VIEW, .reduce_dtype = WEFT_DTYPE_BF16}) == 6 * kMiB);
  CHECK(bytes({.mode = WEFT_GRADIENT_VIEW, .reduce_dtype = WEFT_DTYPE_F32}) == 8 * kMiB);
  CHECK(bytes({.flags = WEFT_REDUCER_ACCUMULATE_F32}) == 8 * kMiB);
}

TEST_CASE("limits count bytes of the communicated type, and hooks see that type") {
  const Model model({{"a", {64}}, {"b", {64}}, {"c", {64}}, {"d", {64}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.limits = {256}, .reduce_dtype = WEFT_DTYPE_BF16};
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    self.expect(reducer->bucket_count() == 2, "two parameters a bucket");
    weft_bucket_info info{};
    self.expect(reducer->bucket(0, &info, nullptr, 0), "bucket");
    self.expect(info.dtype == WEFT_DTYPE_BF16 && info.bytes == 256 && info.count == 128, "bf16");
  }));
}

TEST_CASE("local steps accumulate 16-bit gradients in f32 on request") {
  constexpr int kLocal = 64;
  const Model model({{"brain", {70}, Dtype::kBf16}, {"half", {33}, Dtype::kF16}, {"full", {9}}});
  // 1, and many numbers that are too small to change it one by one.
  const auto total = [&](uint64_t flags, int32_t reduce_dtype) {
    std::vector<double> sums(model.size());
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.limits = {64}, .flags = flags, .reduce_dtype = reduce_dtype};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients gradients(model);
      for (int l = 0; l <= kLocal; l++) {
        for (size_t i = 0; i < model.size(); i++) {
          for (uint64_t k = 0; k < model.count(i); k++) {
            store_as(model[i].dtype, l == 0 ? 1.0 : 0x1p-12, gradients[i] + gradients.at(i, k));
          }
        }
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = l < kLocal ? WEFT_BEGIN_LOCAL : 0;
        self.expect(reducer->begin(&begin), "begin");
        self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
        self.expect(reducer->finish({}), "finish");
      }
      if (self.rank != 0) return;
      for (size_t i = 0; i < model.size(); i++) {
        CopyArgs args;
        args.src = gradients[i];
        args.dst = reinterpret_cast<std::byte*>(&sums[i]);
        args.count = 1;
        args.src_dtype = model[i].dtype;
        args.dst_dtype = Dtype::kF64;
        host_ops().copy(args);
      }
    }));
    return sums;
  };
  const double exact = 1 + kLocal * 0x1p-12;
  CHECK(total(0, 0) == std::vector<double>{1, 1, exact});
  CHECK(total(WEFT_REDUCER_ACCUMULATE_F32, 0) == std::vector<double>{1.015625, exact, exact});
  CHECK(total(0, WEFT_DTYPE_F32) == std::vector<double>{1.015625, exact, exact});
  CHECK(total(0, WEFT_DTYPE_F16) == std::vector<double>{1, 1, 1});
  CHECK(total(WEFT_REDUCER_ACCUMULATE_F32, WEFT_DTYPE_F16) == std::vector<double>{1.015625, exact, exact});
}

TEST_CASE("invalid types, and types that differ between ranks, are refused by name") {
  const Model model(all_types());
  const auto text = [&](const RigOptions& rig) {
    std::string seen;
    check(run_threads(1, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      seen = make_reducer(self.comm, model, allreduce_hook(), &reducer, rig).text();
    }));
    return seen;
  };
  CHECK(has(text({.reduce_dtype = WEFT_DTYPE_F64}), "reduce_dtype is 12"));
  CHECK(has(text({.reduce_dtype = -1}), "reduce_dtype is -1"));
  CHECK(has(text({.mode = WEFT_GRADIENT_VIEW, .flags = WEFT_REDUCER_ACCUMULATE_F32}), "copy mode"));
  CHECK(has(text({.flags = WEFT_REDUCER_COPY_STRAYS}), "view mode"));
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.reduce_dtype = self.rank == 0 ? WEFT_DTYPE_BF16 : 0};
    const Status made = make_reducer(self.comm, model, allreduce_hook(), &reducer, rig);
    self.expect(made.code() == Code::kMismatch, "a mismatch");
    self.expect(
        has(made.text(), "WEFT_DTYPE_BF16 on rank 0") && has(made.text(), "the gradients' own on rank 1"),
        made.text());
  }));
}

TEST_CASE("a gradient outside its view is an error with the expected address, or is copied there") {
  const Model model({{"w", {6, 5}, Dtype::kF32, {9, 1}}, {"b", {9}}});
  for (const uint64_t flags : {uint64_t{0}, uint64_t{WEFT_REDUCER_COPY_STRAYS}}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.mode = WEFT_GRADIENT_VIEW, .flags = flags};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients strays(model);
      strays.fill(5, self.rank);
      const Bytes before = strays.memory()[0];
      void* view = nullptr;
      self.expect(reducer->grad_view(0, &view), "grad_view");
      self.expect(reducer->begin(nullptr), "begin");
      const Status first = reducer->ready(0, strays[0], nullptr);
      if (flags == 0) {
        self.expect(first.code() == Code::kArg && has(first.text(), "'w'"), first.text());
        self.expect(has(first.text(), cat(view)) && has(first.text(), cat(static_cast<void*>(strays[0]))),
                    first.text());
        self.expect(reducer->ready(0, nullptr, nullptr), "the view itself");
      } else {
        self.expect(first, "a stray");
        const Status odd = reducer->ready(1, strays[1] + 1, nullptr);
        self.expect(has(odd.text(), "not aligned"), odd.text());
      }
      self.expect(reducer->ready(1, nullptr, nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      if (flags == 0) return;
      self.expect(strays.memory()[0] == before, "the stray is only read");
      for (uint64_t k = 0; k < model.count(0); k++) {
        float result = 0;
        std::memcpy(&result, static_cast<std::byte*>(view) + k * sizeof result, sizeof result);
        self.expect(result == static_cast<float>((value(5, 0, 0, k) + value(5, 1, 0, k)) / 2), "the mean");
      }
    }));
  }
}

TEST_CASE("gradients outside their views accumulate over local steps, and count in a step that learns uses") {
  const Model model({{"w", {6, 5}}, {"b", {9}}});
  for (const bool learns : {false, true}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const uint64_t flags = WEFT_REDUCER_COPY_STRAYS | (learns ? WEFT_REDUCER_STATIC : 0);
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                               {.mode = WEFT_GRADIENT_VIEW, .flags = flags}),
                  "create");
      if (!reducer) return;
      Gradients strays(model);
      std::vector<std::vector<double>> sums;
      for (size_t i = 0; i < 2; i++) sums.emplace_back(model.count(i));
      const int steps = learns ? 1 : 3;  // two local ones first
      for (int step = 0; step < steps; step++) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        if (step + 1 < steps) begin.flags = WEFT_BEGIN_LOCAL;
        // The program adds up. In the last step parameter 1 has no new gradient: its view has the sum.
        self.expect(reducer->begin(&begin), "begin");
        for (size_t i = 0; i < 2; i++) {
          const bool none = i == 1 && !learns && step + 1 == steps;
          for (uint64_t k = 0; k < model.count(i) && !none; k++) {
            sums[i][k] += value(static_cast<uint64_t>(step), self.rank, i, k);
            store_as(model[i].dtype, sums[i][k], strays[i] + model.offset(i, k) * dtype_size(model[i].dtype));
          }
          self.expect(reducer->ready(i, none ? nullptr : strays[i], nullptr), "ready");
        }
        self.expect(reducer->finish({}), "finish");
      }
      for (size_t i = 0; i < 2; i++) {
        void* view = nullptr;
        self.expect(reducer->grad_view(i, &view), "grad_view");
        for (uint64_t k = 0; k < model.count(i); k++) {
          double sum = 0;
          for (int step = 0; step < (i == 1 && !learns ? steps - 1 : steps); step++) {
            for (int rank = 0; rank < 2; rank++) sum += value(static_cast<uint64_t>(step), rank, i, k);
          }
          float result = 0;
          std::memcpy(&result, static_cast<std::byte*>(view) + k * sizeof result, sizeof result);
          self.expect(result == static_cast<float>(sum / 2),
                      cat("parameter ", i, " element ", k, ": ", result));
        }
      }
    }));
  }
}

}  // namespace unit_reducer_types
