// How often a step touches a gradient's bytes: what it copies, and what it folds. Unlike times, these counts
// do not depend on the machine.
#include <barrier>
#include <functional>

#include "reducer_rig.h"
#include "registry.h"
#include "shm/backend.h"
#include "support/links.h"

namespace unit_step_copies {

using namespace weft;
using namespace weft::test;

namespace {

// Counts of one rank, whose steps run only on its own thread.
struct Touched {
  uint64_t copied = 0;       // bytes written by copies
  uint64_t accumulated = 0;  // bytes added to others
  uint64_t read = 0;         // by folds
  uint64_t written = 0;      // by folds
};
thread_local Touched touched;

uint64_t bytes_of(uint64_t count, Dtype dtype) {
  return count * dtype_size(dtype);
}

// The host's operations, with counters.
const DeviceOps& counted_ops() {
  static const DeviceOps ops = [] {
    DeviceOps counted = host_ops();
    counted.copy = [](const CopyArgs& args) {
      touched.copied += bytes_of(args.count, args.dst_dtype);
      host_ops().copy(args);
    };
    counted.accumulate = [](const CopyArgs& args) {
      touched.accumulated += bytes_of(args.count, args.dst_dtype);
      host_ops().accumulate(args);
    };
    counted.fold = [](const FoldArgs& args) {
      touched.read += bytes_of(args.count, args.dtype) * static_cast<uint64_t>(args.input_count);
      touched.written += bytes_of(args.count, args.dtype) * static_cast<uint64_t>(args.output_count);
      host_ops().fold(args);
    };
    return counted;
  }();
  return ops;
}

std::vector<TestParam> plain_params() {
  return {
      {"weight", {300, 200}}, {"bias", {200}}, {"conv", {32, 16, 3, 3}}, {"scale", {1}}, {"head", {77, 5}}};
}

struct Steps {
  int32_t mode = WEFT_GRADIENT_COPY;
  int local = 0;          // local steps before each step
  bool weighted = false;  // rank r has the weight r + 1, in every other step the same weights in reverse
  uint64_t early = 0;     // parameters that are ready before every rank has received the weights,
  uint64_t later = 0;     // the same in every other step, if it differs
  int32_t reduce_dtype = 0;
  uint64_t flags = 0;
  const char* hook = "allreduce";
  weft_accumulation accumulation = WEFT_ACCUMULATION_UNSET;
};

// Runs one step, with `local` local steps before it. meet: synchronises the ranks' threads without moving
// data.
Status step(Reducer& reducer, Gradients& gradients, const Steps& steps, int weight, uint64_t early,
            const std::function<void()>& meet) {
  for (int i = steps.local; i >= 0; i--) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = i > 0 ? WEFT_BEGIN_LOCAL : 0;
    begin.weight = steps.weighted ? weight : 0;
    WEFT_TRY(reducer.begin(&begin));
    for (uint64_t p = 0; p < gradients.memory().size(); p++) {
      if (steps.weighted && i == 0 && p == early) meet();
      WEFT_TRY(reducer.ready(p, steps.mode == WEFT_GRADIENT_COPY ? gradients[p] : nullptr, nullptr));
    }
    WEFT_TRY(reducer.finish({}));
  }
  return {};
}

// Returns what a rank touches in one step, which is the same in each of several. results: rank 0's of the
// first two.
Touched touched_by_step(int ranks, const Steps& steps, std::vector<Bytes>* results = nullptr) {
  const Model model(plain_params());
  SystemClock clock;
  clock.set_crowded(true);
  ThreadGroup group(ranks, clock);
  std::vector<Touched> first(static_cast<size_t>(ranks));
  std::vector<std::string> failures(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  std::barrier all(ranks);
  for (int r = 0; r < ranks; r++) {
    threads.emplace_back([&, r] {
      const auto at = static_cast<size_t>(r);
      try {
        ContextOptions options;
        options.mode = Engine::Mode::kCaller;
        options.host = &counted_ops();
        std::shared_ptr<Context> context;
        WEFT_EXPECT_OK(Context::create(options, &context));
        context->system_clock()->set_crowded(true);
        CommOptions comm_options;
        comm_options.init_timeout_ms = comm_options.op_timeout_ms = 60'000;
        std::shared_ptr<Comm> comm;
        WEFT_EXPECT_OK(form(group, r, context, collectives_of(shm::backend()), comm_options, &comm));
        std::unique_ptr<Reducer> reducer;
        RigOptions rig{.mode = steps.mode,
                       .limits = {1 << 20},
                       .flags = steps.flags,
                       .reduce_dtype = steps.reduce_dtype,
                       .accumulation = steps.accumulation};
        if (steps.weighted) {
          rig.flags |= WEFT_REDUCER_UNEVEN;
          rig.divide_by = WEFT_DIVIDE_WEIGHTS;
        }
        // Waits until all ranks have begun, then until all have sent their weights, then until all have
        // received them.
        const auto meet = [&] {
          for (int k = 0; k < 3; k++) {
            all.arrive_and_wait();
            bool had_lock = false;
            for (int polls = 0; polls < 100; polls++)
              static_cast<void>(context->engine().poll_tasks(&had_lock));
          }
        };
        std::shared_ptr<Hook> hook;
        WEFT_EXPECT_OK(
            Registry::make_hook(steps.hook, {{}, nullptr, counted_ops(), nullptr, nullptr}, &hook));
        WEFT_EXPECT_OK(make_reducer(comm, model, hook, &reducer, rig));
        Gradients gradients(model);
        std::vector<Bytes> seen;
        for (int i = 0; i < 4; i++) {
          gradients.fill(1, r);
          touched = {};
          const bool other = i % 2 != 0;
          WEFT_EXPECT_OK(step(*reducer, gradients, steps, other ? ranks - r : r + 1,
                              other ? steps.later : steps.early, meet));
          if (i < 2) seen.insert(seen.end(), gradients.memory().begin(), gradients.memory().end());
          if (other && steps.later != steps.early) continue;
          if (i == 0) first[at] = touched;
          WEFT_EXPECT(std::memcmp(&touched, &first[at], sizeof touched) == 0);
        }
        if (r == 0 && results != nullptr) *results = std::move(seen);
        reducer.reset();
        WEFT_EXPECT_OK(comm->close());
        comm.reset();
        WEFT_EXPECT_OK(context->close());
      } catch (const std::exception& error) {
        failures[at] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Touched sum;
  for (size_t at = 0; at < failures.size(); at++) {
    INFO("rank " << at);
    CHECK(failures[at] == "");
    sum.copied += first[at].copied;
    sum.accumulated += first[at].accumulated;
    sum.read += first[at].read;
    sum.written += first[at].written;
  }
  return sum;
}

uint64_t gradient_bytes() {
  const Model model(plain_params());
  uint64_t bytes = 0;
  for (size_t i = 0; i < model.size(); i++) bytes += bytes_of(model.count(i), model[i].dtype);
  return bytes;
}

}  // namespace

TEST_CASE("copy mode copies in what other ranks read and copies out all results, view mode copies nothing",
          "[of_in_place_slices]") {
  const uint64_t bytes = gradient_bytes();
  for (const uint64_t ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    const Touched copy = touched_by_step(static_cast<int>(ranks), {});
    // Copied in: what other ranks read, and slices that are too small to be read in place.
    const uint64_t most = ranks == 1 ? 2 * bytes * ranks : 2 * bytes * ranks - bytes + ranks * 16'384;
    CHECK(copy.copied <= most);
    CHECK(copy.copied >= 2 * bytes * ranks - bytes);
    CHECK(copy.accumulated == 0);
    const Touched view = touched_by_step(static_cast<int>(ranks), {.mode = WEFT_GRADIENT_VIEW});
    CHECK(view.copied == 0);
    CHECK(view.accumulated == 0);
  }
}

TEST_CASE("a step folds each byte once, in any mode") {
  const uint64_t bytes = gradient_bytes();
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const uint64_t ranks : {2, 3}) {
      INFO(ranks << " ranks, mode " << mode);
      const Touched all = touched_by_step(static_cast<int>(ranks), {.mode = mode});
      // An owner reads a byte of every rank and writes it to every rank; gaps between parameters are
      // communicated too.
      CHECK(all.read >= ranks * bytes);
      CHECK(all.read <= ranks * bytes + ranks * 4096);
      CHECK(all.written == all.read);
    }
  }
}

TEST_CASE("local steps add each gradient once, and the sum is communicated once") {
  const uint64_t bytes = gradient_bytes();
  const Touched copy = touched_by_step(2, {.local = 2});
  CHECK(copy.copied + copy.accumulated == 2 * bytes * (3 + 1));
  CHECK(copy.read <= 2 * bytes + 2 * 4096);
  const Touched view = touched_by_step(2, {.mode = WEFT_GRADIENT_VIEW, .local = 2});
  CHECK(view.copied + view.accumulated == 0);
}

TEST_CASE("local steps copy nothing if the program adds up, and leave fused casts and weights to the copy") {
  for (Steps steps :
       {Steps{}, Steps{.hook = "bf16"}, Steps{.weighted = true}, Steps{.flags = WEFT_REDUCER_RETAIN}}) {
    INFO("hook " << steps.hook << ", weighted " << steps.weighted << ", flags " << steps.flags);
    steps.accumulation = WEFT_ACCUMULATION_PROGRAM;
    const Touched alone = touched_by_step(2, steps);
    steps.local = 2;
    const Touched all = touched_by_step(2, steps);
    CHECK(all.copied == alone.copied);
    CHECK(all.accumulated == 0);
  }
}

TEST_CASE("weights are multiplied by the copy into a bucket once all ranks have begun, by a pass before that",
          "[of_weights]") {
  const Model model(plain_params());
  const uint64_t bytes = gradient_bytes();
  std::vector<Bytes> expected, results;
  static_cast<void>(touched_by_step(2, {.weighted = true}, &expected));
  uint64_t early_bytes = 0;
  for (uint64_t early = 0; early <= model.size(); early++) {
    INFO(early << " early gradients");
    const Steps steps{.weighted = true, .early = early, .later = model.size() - early};
    const Touched all = touched_by_step(2, steps, &results);
    CHECK((results == expected));
    // Copied in and out. Parameters that became ready before the weights were known are copied once more.
    CHECK(all.copied == 2 * (2 * bytes + early_bytes));
    if (early < model.size()) early_bytes += bytes_of(model.count(early), model[early].dtype);
  }
}

TEST_CASE("weighted gradients that a pass must visit anyway are multiplied by that pass alone") {
  const uint64_t bytes = gradient_bytes(), all = plain_params().size();
  for (const Steps& steps :
       {Steps{.weighted = true, .reduce_dtype = WEFT_DTYPE_BF16}, Steps{.local = 1, .weighted = true}}) {
    Steps before = steps;
    before.early = before.later = all;
    std::vector<Bytes> results, expected;
    const Touched late = touched_by_step(2, steps, &results);
    static_cast<void>(touched_by_step(2, before, &expected));
    CHECK((results == expected));
    // Copied in, then what the pass visits (16 bits, or once more the accumulated gradients), then out.
    const uint64_t in = steps.local > 0 ? 2 * bytes : bytes / 2, pass = steps.local > 0 ? bytes : bytes / 2;
    CHECK(late.copied + late.accumulated == 2 * (in + pass + bytes));
  }
}

TEST_CASE("fused casts round for a hook that only divides and rounds, and for f32 accumulation",
          "[of_fused_cast]") {
  const uint64_t bytes = gradient_bytes();
  const Steps wide{.reduce_dtype = WEFT_DTYPE_BF16, .flags = WEFT_REDUCER_ACCUMULATE_F32};
  for (Steps way : {Steps{.hook = "bf16"}, Steps{.hook = "fp16"}, wide}) {
    INFO("hook " << way.hook);
    // Copied in, in the communicated type, and out.
    CHECK(touched_by_step(2, way).copied == 2 * (bytes / 2 + bytes));
    // Accumulated gradients are rounded in place.
    way.local = 1;
    const Touched local = touched_by_step(2, way);
    CHECK(local.copied + local.accumulated == 2 * (2 * bytes + bytes / 2 + bytes));
  }
  // The divisor is known only when all ranks have begun, so a pass rounds. The pass also multiplies gradients
  // that arrived before the weights were known.
  Steps steps{.weighted = true, .hook = "bf16"};
  std::vector<Bytes> late, early;
  CHECK(touched_by_step(2, steps, &late).copied == 2 * (bytes + bytes / 2 + bytes));
  steps.early = steps.later = plain_params().size();
  CHECK(touched_by_step(2, steps, &early).copied == 2 * (bytes + bytes + bytes / 2 + bytes));
  CHECK((late == early));
  const Touched kept = touched_by_step(2, {.flags = WEFT_REDUCER_RETAIN, .hook = "bf16"});
  CHECK(kept.copied == 2 * (bytes + bytes / 2 + bytes));
  const Touched view = touched_by_step(2, {.mode = WEFT_GRADIENT_VIEW, .hook = "bf16"});
  CHECK(view.copied == 2 * (bytes / 2 + bytes));
}

}  // namespace unit_step_copies
