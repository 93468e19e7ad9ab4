// Reduced views (lib/reducer/feature/reduced_views/reduced): every rank reads results in their owners'
// memory, which stays valid while a rank reads.
#include <chrono>
#include <cmath>
#include <thread>

#include "reducer/bucket/layout.h"
#include "reducer/manifest/manifest.h"
#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer_reduced {

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint64_t kViews = WEFT_REDUCER_SHARDED | WEFT_REDUCER_REDUCED_VIEWS;
constexpr uint64_t kWhole = kViews | WEFT_REDUCER_OWN_WHOLE;

std::vector<TestParam> params() {
  std::vector<TestParam> out = mixed_params();
  out.push_back({"large", {3'000, 7}});
  return out;
}

RanksOptions over_shm() {
  RanksOptions options;
  options.backend = &shm::backend();
  return options;
}

// A rank's reducer in view mode, whose gradients are written into the views.
class Trainer {
 public:
  Trainer(Rank& self, const Model& model, const RigOptions& rig) : self_(self), model_(model) {
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Manifest manifest;
    self.expect(make_manifest(model.c().data(), model.size(), sizeof(weft_param), &manifest), "manifest");
    for (const Param& p : manifest.params) layouts_.emplace_back(p);
  }

  void compute(uint64_t seed) {
    Gradients gradients(model_);
    gradients.fill(seed, self_.rank);
    for (size_t i = 0; i < model_.size(); i++) {
      void* view = nullptr;
      self_.expect(reducer->grad_view(i, &view), "view");
      layouts_[i].pack(gradients[i], static_cast<std::byte*>(view), 0, layouts_[i].count());
    }
  }
  Status ready() {
    for (size_t i = model_.size(); i-- > 0;) WEFT_TRY(reducer->ready(i, nullptr, nullptr));
    return {};
  }
  Status step(const weft_finish_options& finish = WEFT_FINISH_OPTIONS_INIT) {
    WEFT_TRY(reducer->begin(nullptr));
    WEFT_TRY(ready());
    return reducer->finish(finish);
  }
  std::vector<weft_reduced_piece> pieces(size_t param) {
    uint64_t count = 0;
    self_.expect(reducer->reduced_view(param, nullptr, &count), "how many pieces");
    std::vector<weft_reduced_piece> out(count);
    self_.expect(reducer->reduced_view(param, out.data(), &count), "pieces");
    return out;
  }
  // Checks that all pieces of all parameters are the mean over the ranks.
  void check_results(uint64_t seed, int owners) {
    Gradients expected = reference(model_, {seed}, self_.size, self_.size);
    for (size_t i = 0; i < model_.size(); i++) {
      const uint32_t size = dtype_size(model_[i].dtype);
      Bytes wanted(model_.count(i) * size);
      layouts_[i].pack(expected[i], wanted.data(), 0, layouts_[i].count());
      uint64_t next = 0;
      const std::vector<weft_reduced_piece> all = pieces(i);
      for (const weft_reduced_piece& piece : all) {
        self_.expect(piece.offset == next && piece.count > 0,
                     cat("seed ", seed, ": pieces of ", model_[i].name));
        if (next + piece.count > model_.count(i)) break;
        self_.expect(std::memcmp(piece.data, wanted.data() + next * size, piece.count * size) == 0,
                     cat("seed ", seed, ": ", model_[i].name, ", what rank ", piece.owner, " has"));
        next += piece.count;
      }
      self_.expect(next == model_.count(i), cat("seed ", seed, ": all of ", model_[i].name));
      if (model_.count(i) > 20'000) {
        self_.expect(all.size() == static_cast<size_t>(owners),
                     cat(all.size(), " owners of ", model_[i].name));
      }
    }
  }

  std::unique_ptr<Reducer> reducer;

 private:
  Rank& self_;
  const Model& model_;
  std::vector<Layout> layouts_;
};

}  // namespace

TEST_CASE("every rank reads all results in their owners' memory, in threads and processes") {
  const Model model(params());
  for (const uint64_t flags : {kViews, kWhole}) {
    for (const uint64_t limit : {uint64_t{0}, uint64_t{1} << 20}) {
      const auto body = [&](Rank& self) {
        Trainer trainer(self, model, {.mode = WEFT_GRADIENT_VIEW, .limits = {limit}, .flags = flags});
        if (!trainer.reducer) return;
        for (uint64_t seed = 1; seed < 6; seed++) {
          self.expect(trainer.reducer->begin(nullptr), "begin");
          trainer.compute(seed);
          self.expect(trainer.ready(), "ready");
          self.expect(trainer.reducer->finish({}), "finish");
          trainer.check_results(seed, flags == kViews ? self.size : 1);
        }
      };
      check(run_threads(3, body, over_shm()));
      check(run_processes(3, body, over_shm()));
    }
  }
}

TEST_CASE("sixteen ranks as processes read all results") {
  const Model model({{"a", {64}}, {"large", {30'000}}, {"b", {7}}});
  check(run_processes(
      16,
      [&](Rank& self) {
        Trainer trainer(self, model, {.mode = WEFT_GRADIENT_VIEW, .limits = {1 << 16}, .flags = kViews});
        if (!trainer.reducer) return;
        for (uint64_t seed = 1; seed < 4; seed++) {
          self.expect(trainer.reducer->begin(nullptr), "begin");
          trainer.compute(seed);
          self.expect(trainer.ready(), "ready");
          self.expect(trainer.reducer->finish({}), "finish");
          trainer.check_results(seed, 16);
        }
      },
      over_shm()));
}

// An owner reads its slice of every rank's view and writes it once. Only the peers' bytes that a rank reads
// cross memory, so all n ranks together read n S and write S. With full results, an owner reads and writes
// all ranks' slices.
TEST_CASE("a step with reduced views reads each view once, and writes one of them") {
  const Model model({{"large", {3 << 17}}});  // whole pages for each of 2 and 3 owners
  const uint64_t bytes = uint64_t{4} * 3 << 17;
  for (const int ranks : {2, 3}) {
    for (const bool views : {true, false}) {
      check(run_processes(
          ranks,
          [&](Rank& self) {
            Trainer trainer(self, model,
                            {.mode = WEFT_GRADIENT_VIEW, .limits = {0}, .flags = views ? kViews : 0});
            if (!trainer.reducer) return;
            trainer.compute(1);
            const uint64_t before = self.comm->collectives().counters().bytes_shared;
            self.expect(trainer.step(), "step");
            const uint64_t moved = self.comm->collectives().counters().bytes_shared - before;
            const uint64_t others = bytes / static_cast<uint64_t>(ranks) * static_cast<uint64_t>(ranks - 1);
            const uint64_t expected = views ? others : 2 * bytes;
            self.expect(moved >= expected && moved <= expected + 4096, cat(moved, " bytes, not ", expected));
            if (views) trainer.check_results(1, ranks);
          },
          over_shm()));
    }
  }
}

TEST_CASE("a rank that begins the next step waits until the others have read") {
  const Model model({{"large", {30'000}}});
  for (const bool local : {false, true}) {
    std::atomic<bool> begins{false};
    check(run_threads(
        2,
        [&](Rank& self) {
          Trainer trainer(self, model, {.mode = WEFT_GRADIENT_VIEW, .limits = {0}, .flags = kViews});
          if (!trainer.reducer) return;
          trainer.compute(1);
          self.expect(trainer.step(), "step");
          weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
          begin.flags = local ? WEFT_BEGIN_LOCAL : 0;
          if (self.rank == 0) {
            begins = true;
          } else {
            while (!begins) std::this_thread::yield();
            // Gives rank 0 time to write its view, if it may.
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            trainer.check_results(1, 2);
          }
          self.expect(trainer.reducer->begin(&begin), "begin");
          trainer.compute(2);
          self.expect(trainer.ready(), "ready");
          self.expect(trainer.reducer->finish({}), "finish");
        },
        over_shm()));
  }
}

TEST_CASE("a rank that does not begin ends the others' begin at the step's deadline, by name") {
  const Model model({{"a", {64}}});
  std::atomic<bool> refused{false};
  check(run_threads(
      2,
      [&](Rank& self) {
        Trainer trainer(self, model,
                        {.mode = WEFT_GRADIENT_VIEW,
                         .limits = {0},
                         .timeout_ms = self.rank == 0 ? 2000 : 0,
                         .flags = kViews});
        if (!trainer.reducer) return;
        trainer.compute(1);
        self.expect(trainer.step(), "step");
        if (self.rank == 1) {
          while (!refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          self.expect(!trainer.reducer->begin(nullptr).ok(), "the communicator has failed");
          return;
        }
        const Status late = trainer.reducer->begin(nullptr);
        refused = true;
        self.expect(late.code() == Code::kTimeout && has(late.text(), "step 0 may still be read"),
                    late.text());
        self.expect(late.info().ranks == std::vector<int>{1}, "who");
        uint64_t count = 0;
        self.expect(trainer.reducer->reduced_view(0, nullptr, &count).code() == Code::kState, "still there");
      },
      over_shm()));
}

TEST_CASE(
    "clipped results are clipped where they are read; a re-plan ends the views, the next step has new ones") {
  const Model model(params());
  check(run_threads(
      2,
      [&](Rank& self) {
        Trainer trainer(self, model,
                        {.mode = WEFT_GRADIENT_VIEW, .limits = {1000}, .flags = kWhole | WEFT_REDUCER_NORMS});
        if (!trainer.reducer) return;
        trainer.compute(1);
        self.expect(trainer.step(), "step");
        weft_norms norms{};
        self.expect(trainer.reducer->norms(&norms, nullptr), "norms");
        const auto size_of_large = [&] {
          double sum = 0;
          for (const weft_reduced_piece& piece : trainer.pieces(model.size() - 1)) {
            const auto* const data = static_cast<const float*>(piece.data);
            for (uint64_t k = 0; k < piece.count; k++) sum += std::abs(data[k]);
          }
          return sum;
        };
        const double first = size_of_large();
        self.expect(trainer.reducer->begin(nullptr), "begin");
        trainer.compute(1);
        self.expect(trainer.ready(), "ready");
        weft_finish_options clip = WEFT_FINISH_OPTIONS_INIT;
        clip.clip_norm = norms.total / 4;
        self.expect(trainer.reducer->finish(clip), "clipped");
        const double clipped = size_of_large();
        self.expect(first > 0 && std::abs(clipped - first / 4) < 1e-6 * first, cat(clipped, " of ", first));

        weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
        const uint64_t limit = 0;
        options.bucket_limits = &limit;
        options.bucket_limit_count = 1;
        self.expect(trainer.reducer->replan(options), "replan");
        uint64_t count = 0;
        const Status gone = trainer.reducer->reduced_view(0, nullptr, &count);
        self.expect(gone.code() == Code::kState, "a view of what has moved");
        for (uint64_t seed = 2; seed < 4; seed++) {
          self.expect(trainer.reducer->begin(nullptr), "begin");
          trainer.compute(seed);
          self.expect(trainer.ready(), "ready");
          self.expect(trainer.reducer->finish({}), "finish");
          trainer.check_results(seed, 1);
        }
      },
      over_shm()));
}

TEST_CASE("reduced views are refused with the reason where they are unavailable") {
  const Model model({{"a", {64}}, {"b", {4096}}});
  check(run_threads(
      2,
      [&](Rank& self) {
        Trainer trainer(self, model, {.mode = WEFT_GRADIENT_VIEW, .limits = {0}, .flags = kViews});
        if (!trainer.reducer) return;
        Reducer& reducer = *trainer.reducer;
        uint64_t count = 5;
        const auto refused = [&](const std::string& part) {
          const Status status = reducer.reduced_view(1, nullptr, &count);
          self.expect(status.code() == Code::kState && has(status.text(), part) && count == 0, status.text());
        };
        refused("'b'");  // before the first step
        self.expect(reducer.begin(nullptr), "begin");
        refused("inside step 0");
        trainer.compute(1);
        self.expect(trainer.ready(), "ready");
        self.expect(reducer.finish({}), "finish");
        self.expect(reducer.reduced_view(2, nullptr, &count).code() == Code::kArg, "unknown parameter");
        weft_reduced_piece piece[2] = {};
        count = 1;
        const Status small = reducer.reduced_view(1, piece, &count);
        self.expect(
            small.code() == Code::kArg && has(small.text(), "has 2 pieces, but *count gives room for 1"),
            small.text());
        self.expect(count == 2 && piece[1].data == nullptr, "nothing is written beyond the room");
        weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
        local.flags = WEFT_BEGIN_LOCAL;
        self.expect(reducer.begin(&local), "begin local");
        trainer.compute(2);
        self.expect(trainer.ready(), "ready");
        self.expect(reducer.finish({}), "finish local");
        refused("no synchronised step has finished");
        std::unique_ptr<Reducer> other;
        const auto never = [&](const RigOptions& rig, const std::string& part) {
          const Status status = make_reducer(self.comm, model, allreduce_hook(), &other, rig);
          self.expect(status.code() == Code::kArg && has(status.text(), part), status.text());
        };
        never({.mode = WEFT_GRADIENT_VIEW, .flags = WEFT_REDUCER_REDUCED_VIEWS}, "WEFT_REDUCER_SHARDED");
        never({.flags = kViews}, "WEFT_GRADIENT_VIEW");
        never({.mode = WEFT_GRADIENT_VIEW, .flags = kViews | WEFT_REDUCER_UNEVEN}, "WEFT_REDUCER_UNEVEN");
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &other,
                                 {.mode = WEFT_GRADIENT_VIEW, .flags = WEFT_REDUCER_SHARDED}),
                    "without views");
        if (!other) return;
        const Status none = other->reduced_view(0, nullptr, &count);
        self.expect(none.code() == Code::kState && has(none.text(), "WEFT_REDUCER_REDUCED_VIEWS"),
                    none.text());
      },
      over_shm()));
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const Status none = make_reducer(self.comm, model, allreduce_hook(), &reducer,
                                     {.mode = WEFT_GRADIENT_VIEW, .flags = kViews});
    self.expect(none.code() == Code::kUnsupported && has(none.text(), "'loopback'"), none.text());
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "the communicator works");
  }));
}

}  // namespace unit_reducer_reduced
