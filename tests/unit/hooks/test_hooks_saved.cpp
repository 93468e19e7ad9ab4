// Saving and loading hooks: uninterrupted continuation, the parts of another rank's state that are used, and
// invalid bytes.
#include <algorithm>
#include <mutex>
#include <utility>

#include "hook/hook_blob.h"
#include "hook_simulation.h"

namespace unit_hooks_saved {

using namespace weft;
using namespace weft::test;

namespace {

// Every hook with state, compressing from the start.
constexpr std::pair<const char*, const char*> kHooks[] = {{"int8", "rounding=stochastic"},
                                                          {"fp8", ""},
                                                          {"onebit", ""},
                                                          {"topk", "ratio=0.1"},
                                                          {"powersgd", "start=2 rank=2"},
                                                          {"powersgd", "start=13"},
                                                          {"powersgd", "start=2 rank=2 alternate=1"},
                                                          {"powersgd", "start=2 feedback=ddp batch=1"},
                                                          {"powersgd", "start=1 feedback=off warm_start=0"},
                                                          {"batched_powersgd", "start=2 rank=1 alternate=1"},
                                                          {"post_local_sgd", "start=10 local=none"},
                                                          {"batched_powersgd", "start=2 rank=1"}};

struct Blobs {
  std::vector<Bytes> of_rank;
};

// Trains steps [first, first + steps), with hooks loaded from `loaded` or new ones. Returns the results and
// each rank's saved state.
Results train_from(const Model& model, std::pair<const char*, const char*> name, uint64_t first,
                   uint64_t steps, const Blobs* loaded, Blobs* saved) {
  constexpr int kRanks = 3;
  saved->of_rank.resize(kRanks);
  Results results(steps, std::vector<std::vector<std::vector<double>>>(kRanks));
  const auto failures = run_ranks(kRanks, [&](Rank& self) {
    const auto rank = static_cast<size_t>(self.rank);
    std::shared_ptr<Hook> hook;
    if (loaded == nullptr) {
      self.expect(built_in(name.first, name.second, &hook), "hook");
    } else {
      HookBlob blob;
      self.expect(read_hook(loaded->of_rank[rank], &blob), "read");
      self.expect(Registry::make_hook_again(blob.name, {{}, nullptr, host_ops()}, &hook),
                  "made from its name");
      self.expect(load_hook(*hook, loaded->of_rank[rank]), "load");
    }
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {3000}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < steps; step++) {
      for (size_t i = 0; i < model.size(); i++) {
        for (uint64_t k = 0; k < model.count(i); k++) {
          store_as(Dtype::kF32, noise(first + step, self.rank, i, k), gradients[i] + gradients.at(i, k));
        }
      }
      self.expect(train_step(*reducer, gradients, step), "step");
      for (size_t i = 0; i < model.size(); i++) results[step][rank].push_back(as_f64(model, gradients, i));
    }
    self.expect(save_hook(*hook, &saved->of_rank[rank]), "save");
  });
  check(failures);
  return results;
}

}  // namespace

TEST_CASE("ten steps, saved, loaded and ten more are twenty, bit by bit") {
  const Model model(layers());
  for (const auto& name : kHooks) {
    INFO(name.first << " " << name.second);
    Blobs middle, end, end_at_once;
    const Results whole = train_from(model, name, 0, 20, nullptr, &end_at_once);
    train_from(model, name, 0, 10, nullptr, &middle);
    const Results second = train_from(model, name, 10, 10, &middle, &end);
    CHECK(same_results(Results(whole.begin() + 10, whole.end()), second));
    CHECK(end.of_rank == end_at_once.of_rank);
  }
}

TEST_CASE("loading another rank's state keeps counters and factors, and drops the errors") {
  const Model model(layers());
  Blobs saved, after;
  train_from(model, {"powersgd", "start=2 rank=2"}, 0, 5, nullptr, &saved);
  Blobs turned;
  for (size_t r = 0; r < 3; r++) turned.of_rank.push_back(saved.of_rank[(r + 1) % 3]);
  const Results results = train_from(model, {"powersgd", "start=2 rank=2"}, 5, 1, &turned, &after);
  // Compressed at once, because the counters were loaded, and without errors from before.
  CHECK(replicas_identical(results));
  Training training;
  training.ranks = 3;
  double largest = 0;
  for (uint64_t k = 0; k < results[0][0][4].size(); k++) {
    largest = std::max(largest, std::fabs(results[0][0][4][k] - mean_of(training, 5, 4, k)));
  }
  CHECK(largest > 0.05);
  CHECK(largest < 1.5);
}

TEST_CASE("a hook whose communicator changed drops its error memory, and nothing else") {
  const Model model(layers());
  for (const char* const name : {"int8", "topk", "powersgd"}) {
    INFO(name);
    const auto failures = run_ranks(2, [&](Rank& self) {
      const std::string options = std::string(name) == "powersgd" ? "start=2" : "";
      std::shared_ptr<Hook> hook, loaded;
      self.expect(built_in(name, options, &hook), "hook");
      self.expect(built_in(name, options, &loaded), "hook");
      Gradients gradients(model);
      const auto steps = [&](const std::shared_ptr<Hook>& with, uint64_t count) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, with, &reducer), "create");
        for (uint64_t step = 0; step < count && reducer; step++) {
          gradients.fill(step, self.rank);
          self.expect(train_step(*reducer, gradients, step), "step");
        }
      };
      steps(hook, 5);
      Bytes before, after, again;
      self.expect(hook->save(&before), "save");
      self.expect(hook->rebind(self.rank, 2), "rebind");
      self.expect(hook->save(&after), "save");
      self.expect(before != after && before.size() == after.size(), "errors are gone");
      // State that another rank saved is loaded, without its errors too.
      self.expect(loaded->load(before), "load");
      self.expect(loaded->rebind(1 - self.rank, 2), "rebind");
      self.expect(loaded->rebind(self.rank, 2), "rebind");
      self.expect(loaded->save(&again), "save");
      self.expect(again == after, "the same is left");
    });
    check(failures);
  }
}

namespace {

// Returns the arrays of a built-in hook's blob, which follow the counters; and of these the arrays of one
// kind.
Bytes arrays_of(const Bytes& blob) {
  HookBlob read;
  if (!read_hook(blob, &read).ok()) return {};
  const ByteView arrays = read.state.subspan(sizeof(uint32_t) + sizeof(uint64_t) + 2 * sizeof(int32_t));
  return {arrays.begin(), arrays.end()};
}
// Arrays of the kind "error" come first.
Bytes errors_of(const Bytes& blob) {
  const Bytes arrays = arrays_of(blob);
  ByteReader reader(arrays);
  reader.get<uint32_t>();
  if (reader.get_string(16) != "error") return {};
  uint64_t bytes = sizeof(uint32_t) + sizeof(uint32_t) + 5 + sizeof(uint64_t);
  for (auto left = reader.get<uint64_t>(); left > 0; left--) {
    bytes += sizeof(uint32_t) + reader.get_string(4096).size() + sizeof(uint64_t);
    const uint64_t values = reader.get<uint64_t>() * sizeof(float);
    bytes += reader.get_raw(values).size();
  }
  return {arrays.begin() + sizeof(uint32_t), arrays.begin() + static_cast<ptrdiff_t>(bytes)};
}

// Lines of a log that many ranks write to.
class Lines {
 public:
  const std::shared_ptr<Log> log = std::make_shared<Log>(
      [this](LogLevel, const char* line) {
        const std::lock_guard lock(mutex_);
        lines_.emplace_back(line);
      },
      LogLevel::kWarn);
  bool have(const std::string& part) const {
    return std::any_of(lines_.begin(), lines_.end(),
                       [&](const std::string& line) { return has(line, part); });
  }
  bool empty() const { return lines_.empty(); }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace

TEST_CASE(
    "with fewer ranks and other buckets state of parameters is kept, and the log reports what is lost") {
  const Model model(layers());
  for (const auto& name : kHooks) {
    INFO(name.first << " " << name.second);
    Blobs saved;
    train_from(model, name, 0, 6, nullptr, &saved);
    Lines lines;
    const auto failures = run_ranks(2, [&](Rank& self) {
      const Bytes& mine = saved.of_rank[static_cast<size_t>(self.rank)];
      std::shared_ptr<Hook> hook;
      self.expect(built_in(name.first, name.second, &hook, nullptr, nullptr, lines.log), "hook");
      self.expect(load_hook(*hook, mine), "load");
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {1 << 20}}), "create");
      Bytes after;
      self.expect(save_hook(*hook, &after), "save");
      // DDP's feedback keeps errors for all parameters that share a bucket with a matrix: here more than
      // before.
      const bool whole_buckets = has(name.second, "ddp");
      self.expect(whole_buckets || errors_of(after) == errors_of(mine), "what was not sent is kept");
      // A bucket's factors cannot be used for another bucket.
      const bool by_bucket = std::string(name.first) == "batched_powersgd";
      self.expect(by_bucket || whole_buckets || arrays_of(after) == arrays_of(mine), "factors are kept");
      Gradients gradients(model);
      gradients.fill(7, self.rank);
      self.expect(train_step(*reducer, gradients, 0), "step");
    });
    check(failures);
    CHECK(lines.have(
        "it was saved by 3 ranks, and 2 ranks use it: the error memory of the other ranks is lost"));
    const bool by_bucket = std::string(name.first) == "batched_powersgd";
    CHECK(lines.have("'q' of 'bucket ") == by_bucket);
    CHECK(lines.have(" belongs to no parameter or bucket of this reducer") == by_bucket);
  }
}

TEST_CASE("state that another rank saved loses its errors and nothing else, and the log reports it") {
  const Model model(layers());
  for (const auto& name : kHooks) {
    INFO(name.first << " " << name.second);
    Blobs saved;
    train_from(model, name, 0, 6, nullptr, &saved);
    Lines lines;
    std::shared_ptr<Hook> own, other;
    REQUIRE(built_in(name.first, name.second, &own, nullptr, nullptr, lines.log).ok());
    REQUIRE(built_in(name.first, name.second, &other, nullptr, nullptr, lines.log).ok());
    Bytes with, without;
    REQUIRE(load_hook(*own, saved.of_rank[1]).ok());
    REQUIRE(own->rebind(1, 3).ok());  // forgets errors as well
    REQUIRE(save_hook(*own, &without).ok());
    CHECK(lines.empty());
    REQUIRE(load_hook(*other, saved.of_rank[1]).ok());
    REQUIRE(other->rebind(2, 3).ok());
    REQUIRE(save_hook(*other, &with).ok());
    CHECK(arrays_of(with) == arrays_of(without));
    CHECK(lines.have("rank 2 has loaded the state that rank 1 saved: steps and factors are kept"));
    std::shared_ptr<Hook> of_more;
    REQUIRE(built_in(name.first, name.second, &of_more, nullptr, nullptr, lines.log).ok());
    REQUIRE(load_hook(*of_more, saved.of_rank[1]).ok());
    REQUIRE(of_more->rebind(1, 5).ok());
    CHECK(lines.have("it was saved by 3 ranks, and 5 ranks use it"));
  }
}

TEST_CASE("ranks that load states of different steps have equal results, or get an error with both numbers") {
  struct Drawing {
    const char* name;
    const char* options;
    bool draws;  // all ranks draw the same, from the number of the step
    const char* around = nullptr;
  };
  constexpr Drawing kDrawing[] = {{"powersgd", "start=2 alternate=1", true},
                                  {"powersgd", "start=2 alternate=1", true, "fp16"},
                                  {"batched_powersgd", "start=2 rank=1 alternate=1", true},
                                  {"powersgd", "start=2", false},
                                  {"powersgd", "start=2 warm_start=0", false},
                                  {"batched_powersgd", "start=2 rank=1", false},
                                  {"int8", "rounding=stochastic", false},
                                  {"topk", "ratio=0.1", false}};
  const Model model(layers());
  for (const Drawing& hook : kDrawing) {
    INFO(hook.name << " " << hook.options);
    Blobs early, late;
    train_from(model, {hook.name, hook.options}, 0, 4, nullptr, &early);
    train_from(model, {hook.name, hook.options}, 0, 6, nullptr, &late);
    std::vector<std::vector<Bytes>> results(3);
    RankBarrier created(3);
    check(run_ranks(3, [&](Rank& self) {
      const auto rank = static_cast<size_t>(self.rank);
      std::shared_ptr<Hook> own;
      self.expect(built_in(hook.name, hook.options, &own), "hook");
      self.expect(load_hook(*own, (self.rank == 1 ? late : early).of_rank[rank]), "load");
      if (hook.around != nullptr) self.expect(built_in(hook.around, "", &own, own), hook.around);
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, own, &reducer, {.limits = {3000}}), "create");
      if (!reducer) return;
      self.expect(created.arrive(self), "all created");
      Gradients gradients(model);
      gradients.fill(7, self.rank);
      const Status status = train_step(*reducer, gradients, 0);
      results[rank] = gradients.memory();
      if (!hook.draws) return self.expect(status, "step");
      self.expect(status.code() == Code::kMismatch, "code: " + status.text());
      self.expect(has(status.text(), "step 4 with") && has(status.text(), "step 6 with"), status.text());
    }));
    if (!hook.draws) CHECK((results[0] == results[1] && results[1] == results[2]));
  }
}

TEST_CASE("a parameter of another size starts anew, and the log names it") {
  const Model before({{"fc", {37, 41}}, {"out", {10, 131}}, {"gone", {30, 40}}});
  const Model after({{"fc", {37, 41}}, {"out", {11, 131}}, {"new", {30, 40}}});
  Blobs saved;
  train_from(before, {"powersgd", "start=2"}, 0, 6, nullptr, &saved);
  Lines lines;
  std::vector<Bytes> last(3);
  const auto failures = run_ranks(3, [&](Rank& self) {
    std::shared_ptr<Hook> hook;
    self.expect(built_in("powersgd", "start=2", &hook, nullptr, nullptr, lines.log), "hook");
    self.expect(load_hook(*hook, saved.of_rank[static_cast<size_t>(self.rank)]), "load");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, after, hook, &reducer, {.limits = {3000}}), "create");
    if (!reducer) return;
    Gradients gradients(after);
    Bytes blob;
    for (uint64_t step = 0; step < 3; step++) {
      gradients.fill(step, self.rank);
      self.expect(train_step(*reducer, gradients, step), "step");
      self.expect(save_hook(*hook, &blob), "save");
      self.expect(load_hook(*hook, blob), "load between steps");
    }
    HookBlob read;
    self.expect(read_hook(blob, &read), "read");
    last[static_cast<size_t>(self.rank)] = {read.state.begin(), read.state.end()};
  });
  check(failures);
  CHECK(lines.have("'error' of 'gone' belongs to no parameter or bucket of this reducer: it is not used"));
  CHECK(lines.have("'q' of 'gone' belongs to no parameter or bucket of this reducer: it is not used"));
  for (const Bytes& state : last) {
    CHECK(arrays_in(state, "q").count("gone") == 1);  // they are saved again
    CHECK(arrays_in(state, "error").count("gone") == 1);
  }
  CHECK(lines.have("'error' of parameter 'out' is reset to zero: it now has 1441 values, and had 1310"));
  CHECK_FALSE(lines.have("'fc'"));
  CHECK_FALSE(lines.have("'new'"));
}

TEST_CASE("a re-plan keeps each parameter's error memory, and drops factors of buckets") {
  const Model model(layers());
  for (const auto& name : kHooks) {
    INFO(name.first << " " << name.second);
    Blobs saved;
    train_from(model, name, 0, 6, nullptr, &saved);
    std::shared_ptr<Hook> hook;
    REQUIRE(built_in(name.first, name.second, &hook).ok());
    REQUIRE(load_hook(*hook, saved.of_rank[0]).ok());
    REQUIRE(hook->replan(3).ok());
    Bytes after;
    REQUIRE(save_hook(*hook, &after).ok());
    CHECK(errors_of(after) == errors_of(saved.of_rank[0]));
    const bool by_bucket = std::string(name.first) == "batched_powersgd";
    CHECK((after.size() < saved.of_rank[0].size()) == by_bucket);
  }
}

TEST_CASE(
    "bytes that are truncated, altered, foreign or of another hook change nothing and are refused by name") {
  const Model model(layers());
  Blobs saved;
  train_from(model, {"powersgd", "start=2"}, 0, 3, nullptr, &saved);
  const Bytes& good = saved.of_rank[0];
  std::shared_ptr<Hook> hook;
  REQUIRE(built_in("powersgd", "start=2", &hook).ok());
  REQUIRE(load_hook(*hook, good).ok());
  const auto unchanged = [&] {
    Bytes now;
    return save_hook(*hook, &now).ok() && now == good;
  };
  for (size_t size = 0; size < good.size(); size += 1 + size / 3) {
    const Status status = load_hook(*hook, ByteView(good).first(size));
    CHECK(status.code() == Code::kArg);
    CHECK((size < 8 || has(status.text(), "is truncated")));
  }
  for (size_t at = 0; at < good.size(); at += 1 + at / 5) {
    Bytes altered = good;
    altered[at] ^= std::byte{0x10};
    CHECK_FALSE(load_hook(*hook, altered).ok());
  }
  Bytes altered = good;
  altered[good.size() / 2] ^= std::byte{1};
  CHECK(has(load_hook(*hook, altered).text(), "is corrupt: its checksum is wrong"));
  CHECK(has(load_hook(*hook, Bytes(100)).text(), "the buffer is not a saved hook state"));
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK(has(load_hook(*hook, longer).text(), "continues after the saved hook state"));
  std::shared_ptr<Hook> other;
  REQUIRE(built_in("powersgd", "start=3", &other).ok());
  const Status status = load_hook(*other, good);
  CHECK(status.code() == Code::kMismatch);
  CHECK(has(status.text(), "belongs to hook 'powersgd(rank=1 start=2 "));
  CHECK(unchanged());
}

TEST_CASE("a hook inside another one can be saved and restored") {
  std::shared_ptr<Hook> inner, hook, again;
  REQUIRE(built_in("int8", "feedback=0 seed=7", &inner).ok());
  REQUIRE(built_in("bf16", "order=ddp", &hook, inner).ok());
  REQUIRE(Registry::make_hook_again(hook->name(), {{}, nullptr, host_ops()}, &again).ok());
  CHECK(again->name() == hook->name());
  for (const char* const name : {"", "mine", "fp16(", "fp16()x", "fp16[", "powersgd(rank=1)[allreduce]"}) {
    CHECK_FALSE(Registry::make_hook_again(name, {{}, nullptr, host_ops()}, &again).ok());
  }
}

}  // namespace unit_hooks_saved
