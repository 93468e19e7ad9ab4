// How often a step touches a gradient's bytes: what it copies, and what it folds. Times depend on the
// machine, these do not.
#include "reducer_rig.h"
#include "shm/backend.h"
#include "support/links.h"

using namespace weft;
using namespace weft::test;

namespace {

// Of one rank, whose steps run on its own thread alone.
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

// The host's operations, counted.
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

// One step, with `local` ones before it.
Status step(Reducer& reducer, Gradients& gradients, bool copy, int local) {
  for (int i = local; i >= 0; i--) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = i > 0 ? WEFT_BEGIN_LOCAL : 0;
    WEFT_TRY(reducer.begin(&begin));
    for (uint64_t p = 0; p < gradients.memory().size(); p++)
      WEFT_TRY(reducer.ready(p, copy ? gradients[p] : nullptr, nullptr));
    WEFT_TRY(reducer.finish({}));
  }
  return {};
}

// What a rank touches in one step; the same in each of several.
Touched touched_by_step(int ranks, int32_t mode, int local) {
  const Model model(plain_params());
  SystemClock clock;
  clock.set_crowded(true);
  ThreadGroup group(ranks, clock);
  std::vector<Touched> first(static_cast<size_t>(ranks));
  std::vector<std::string> failures(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
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
        RigOptions rig{.mode = mode, .limits = {1 << 20}};
        WEFT_EXPECT_OK(make_reducer(comm, model, allreduce_hook(), &reducer, rig));
        Gradients gradients(model);
        for (int i = 0; i < 4; i++) {
          touched = {};
          WEFT_EXPECT_OK(step(*reducer, gradients, mode == WEFT_GRADIENT_COPY, local));
          if (i == 0) first[at] = touched;
          WEFT_EXPECT(std::memcmp(&touched, &first[at], sizeof touched) == 0);
        }
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

TEST_CASE(
    "a step copies what others read of each gradient in and all of it out in copy mode, and nothing in view "
    "mode") {
  const uint64_t bytes = gradient_bytes();
  for (const uint64_t ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    const Touched copy = touched_by_step(static_cast<int>(ranks), WEFT_GRADIENT_COPY, 0);
    // In goes what others read, and what is too little to be read where it lies.
    const uint64_t most = ranks == 1 ? 2 * bytes * ranks : 2 * bytes * ranks - bytes + ranks * 16'384;
    CHECK(copy.copied <= most);
    CHECK(copy.copied >= 2 * bytes * ranks - bytes);
    CHECK(copy.accumulated == 0);
    const Touched view = touched_by_step(static_cast<int>(ranks), WEFT_GRADIENT_VIEW, 0);
    CHECK(view.copied == 0);
    CHECK(view.accumulated == 0);
  }
}

TEST_CASE("a step folds each byte once, wherever its inputs lie") {
  const uint64_t bytes = gradient_bytes();
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const uint64_t ranks : {2, 3}) {
      INFO(ranks << " ranks, mode " << mode);
      const Touched all = touched_by_step(static_cast<int>(ranks), mode, 0);
      // An owner reads a byte of every rank and writes it to every rank; what is between parameters travels
      // too.
      CHECK(all.read >= ranks * bytes);
      CHECK(all.read <= ranks * bytes + ranks * 4096);
      CHECK(all.written == all.read);
    }
  }
}

TEST_CASE("steps that accumulate locally add each gradient once, and travel once") {
  const uint64_t bytes = gradient_bytes();
  const Touched copy = touched_by_step(2, WEFT_GRADIENT_COPY, 2);
  CHECK(copy.copied + copy.accumulated == 2 * bytes * (3 + 1));
  CHECK(copy.read <= 2 * bytes + 2 * 4096);
  const Touched view = touched_by_step(2, WEFT_GRADIENT_VIEW, 2);
  CHECK(view.copied + view.accumulated == 0);
}
