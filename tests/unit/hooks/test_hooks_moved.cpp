// Hooks with state, in a reducer that moves to another communicator or to other buckets. State that
// docs/reference/hooks.md lists as carried over is carried over to the bit: results equal those of a run that
// begins with that state.
#include <algorithm>
#include <numeric>
#include <utility>

#include "bootstrap.h"
#include "hooks_rig.h"

namespace unit_hooks_moved {

using namespace weft;
using namespace weft::test;

namespace {

struct Remembers {
  const char* name;
  const char* options;
  bool feeds_back = true;
  bool any_buckets = false;  // results do not depend on the buckets either
};

constexpr Remembers kHooks[] = {
    {"int8", ""},
    {"int8", "rounding=stochastic"},
    {"fp8", ""},
    {"onebit", ""},
    {"topk", "ratio=0.1"},
    {"powersgd", "start=2 rank=2", true, true},
    {"powersgd", "start=7", false, true},  // it begins to compress after the move
    {"powersgd", "start=2 rank=2 alternate=1", true, true},
    {"powersgd", "start=2 feedback=off rank=2", false, true},
    {"powersgd", "start=2 feedback=ddp batch=1"},
    {"batched_powersgd", "start=2 rank=1"},
    {"batched_powersgd", "start=2 rank=1 alternate=1"},
    {"post_local_sgd", "start=7 local=none", false, true},
};

constexpr int kRanks = 3;
constexpr uint64_t kBefore = 5, kAfter = 4;  // steps

// Every rank's hook, as bytes.
using States = std::vector<Bytes>;

// Returns the state without the error memory, by the format in docs/dev/hooks.md.
Bytes without_errors(const Bytes& state) {
  ByteReader reader(state);
  ByteWriter writer;
  writer.put(reader.get<uint32_t>()).put(reader.get<uint64_t>());
  writer.put(reader.get<int32_t>()).put(reader.get<int32_t>());
  const auto kinds = reader.get<uint32_t>();
  writer.put(kinds);
  for (uint32_t k = 0; k < kinds; k++) {
    const std::string kind = reader.get_string(16);
    const auto arrays = reader.get<uint64_t>();
    writer.put_string(kind).put(arrays);
    for (uint64_t a = 0; a < arrays && reader.ok(); a++) {
      writer.put_string(reader.get_string(4096));
      const auto count = reader.get<uint64_t>();
      const ByteView values = reader.get_raw(count * sizeof(float));
      writer.put(count).put_raw(kind == "error" ? Bytes(values.size()) : Bytes(values.begin(), values.end()));
    }
  }
  REQUIRE(reader.done());
  return writer.take();
}

// A rank that trains. Its gradient values are those of `number`, whatever its rank is.
class Trainee {
 public:
  Trainee(Rank& self, const Model& model, int number)
      : self_(self), model_(model), number_(number), gradients_(model) {}

  void create(const Remembers& hook, const Bytes* state, const weft_plan* plan = nullptr) {
    self_.expect(built_in(hook.name, hook.options, &hook_), "hook");
    if (state != nullptr) self_.expect(hook_->load(*state), "load");
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = model_.c().data();
    options.param_count = model_.size();
    const uint64_t limit = 3000;
    options.bucket_limits = plan == nullptr ? &limit : nullptr;
    options.bucket_limit_count = plan == nullptr ? 1 : 0;
    options.plan = plan;
    options.replan = WEFT_PLANNER_NONE;  // the test decides when buckets change
    self_.expect(Reducer::create(self_.comm, options, hook_, &reducer_), "create");
  }
  // Stores results at [step - first] of `results`.
  void train(uint64_t first, uint64_t steps, size_t rank, Results* results) {
    for (uint64_t step = first; step < first + steps && reducer_; step++) {
      for (size_t i = 0; i < model_.size(); i++) {
        for (uint64_t k = 0; k < model_.count(i); k++) {
          store_as(Dtype::kF32, noise(step, number_, i, k), gradients_[i] + gradients_.at(i, k));
        }
      }
      self_.expect(train_step(*reducer_, gradients_, step + rank), "step");
      if (results == nullptr) continue;
      auto& mine = (*results)[step - first][rank];
      for (size_t i = 0; i < model_.size(); i++) mine.push_back(as_f64(model_, gradients_, i));
    }
  }
  void save(Bytes* state) { self_.expect(hook_->save(state), "save"); }
  Reducer* reducer() { return reducer_.get(); }

 private:
  Rank& self_;
  const Model& model_;
  const int number_;
  Gradients gradients_;
  std::shared_ptr<Hook> hook_;
  std::unique_ptr<Reducer> reducer_;
};

struct Run {
  explicit Run(size_t ranks) : results(kAfter, std::vector<std::vector<std::vector<double>>>(ranks)) {
    at_move.resize(kRanks);
    at_end.resize(ranks);
  }
  Results results;  // of the steps after the move
  States at_move, at_end;
};

// Trains on three ranks, then on a communicator of `members`, in this order.
Run moves_to(const Model& model, const Remembers& hook, const std::vector<int>& members) {
  Run run(members.size());
  const Registry registry("");
  test::RankBarrier rank_barrier(kRanks);
  const auto failures = run_ranks(kRanks, [&](Rank& self) {
    const auto place = std::find(members.begin(), members.end(), self.rank);
    const auto rank = static_cast<size_t>(place - members.begin());
    std::shared_ptr<Comm> next;
    self.expect(split(self.comm, registry, place == members.end(), 0, static_cast<int>(rank), &next),
                "split");
    Trainee trainee(self, model, self.rank);
    trainee.create(hook, nullptr);
    if (!trainee.reducer()) return;
    trainee.train(0, kBefore, 0, nullptr);
    trainee.save(&run.at_move[static_cast<size_t>(self.rank)]);
    self.expect(rank_barrier.arrive(self), "meeting");
    self.comm->fail(Status::error(Code::kCancelled, "enough"));
    if (!next) return;
    self.expect(trainee.reducer()->rebind(next), "rebind");
    trainee.train(kBefore, kAfter, rank, &run.results);
    trainee.save(&run.at_end[rank]);
  });
  check(failures);
  return run;
}

// Runs the same steps on one communicator from the start.
Run begins_with(const Model& model, const Remembers& hook, const std::vector<int>& members,
                const States& states, const weft_plan* plan = nullptr) {
  Run run(members.size());
  const auto failures = run_ranks(static_cast<int>(members.size()), [&](Rank& self) {
    const auto rank = static_cast<size_t>(self.rank);
    Trainee trainee(self, model, members[rank]);
    trainee.create(hook, &states[static_cast<size_t>(members[rank])], plan);
    trainee.train(kBefore, kAfter, rank, &run.results);
    trainee.save(&run.at_end[rank]);
  });
  check(failures);
  return run;
}

}  // namespace

TEST_CASE("over another communicator a hook continues with its counters and factors, without its errors") {
  const Model model(layers());
  for (const Remembers& hook : kHooks) {
    for (const std::vector<int>& members : {std::vector{2, 1, 0}, std::vector{2, 0}}) {
      INFO(hook.name << " " << hook.options << ", over " << members.size() << " ranks from " << members[0]);
      const Run moved = moves_to(model, hook, members);
      States kept;
      for (const Bytes& state : moved.at_move) kept.push_back(without_errors(state));
      CHECK((kept != moved.at_move) == hook.feeds_back);  // there was something to forget
      const Run stayed = begins_with(model, hook, members, kept);
      CHECK(same_results(moved.results, stayed.results));
      CHECK((moved.at_end == stayed.at_end));
    }
  }
}

TEST_CASE("in other buckets a hook continues with all its state") {
  const Model model(layers());
  const std::vector<int> members = {0, 1, 2};
  // Matrices and vectors get other neighbours, in another order.
  const uint64_t sizes[] = {3, 1, 2, 2}, params[] = {4, 1, 7, 0, 6, 2, 3, 5};
  const weft_plan plan = {sizeof plan, 4, sizes, params};
  for (const Remembers& hook : kHooks) {
    INFO(hook.name << " " << hook.options);
    Run moved(kRanks), stayed(kRanks);
    const auto train = [&](Run* run, bool replans) {
      check(run_ranks(kRanks, [&](Rank& self) {
        const auto rank = static_cast<size_t>(self.rank);
        Trainee trainee(self, model, self.rank);
        trainee.create(hook, nullptr);
        if (!trainee.reducer()) return;
        trainee.train(0, kBefore, 0, nullptr);
        trainee.save(&run->at_move[rank]);
        weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
        options.plan = &plan;
        if (replans) self.expect(trainee.reducer()->replan(options), "re-plan");
        if (replans) self.expect(trainee.reducer()->bucket_count() == 4, "other buckets");
        trainee.train(kBefore, kAfter, rank, &run->results);
        trainee.save(&run->at_end[rank]);
      }));
    };
    train(&moved, true);
    const Run planned = begins_with(model, hook, members, moved.at_move, &plan);
    CHECK(same_results(moved.results, planned.results));
    // A re-plan drops factors of buckets that no longer exist; loading keeps them.
    CHECK((moved.at_end == planned.at_end || std::string(hook.name) == "batched_powersgd"));
    if (!hook.any_buckets) continue;
    train(&stayed, false);
    CHECK(same_results(moved.results, stayed.results));
    CHECK((moved.at_end == stayed.at_end));
  }
}

}  // namespace unit_hooks_moved
