// lib/reducer/values/chunks, digests and values: state without gradients, broadcasts of values, and their
// comparison.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "reducer/values/chunks.h"
#include "reducer/values/digests.h"
#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_values {

using namespace weft;
using namespace weft::test;

namespace {

// Values of every kind: parameters with gradients, integer state, buffers, and an ignored parameter.
struct Kinds {
  std::vector<TestParam> params = {{"conv.weight", {8, 3, 3, 3}},
                                   {"table", {6}, Dtype::kI32},
                                   {"ignored", {5}, Dtype::kF64},
                                   {"mean", {7}, Dtype::kF64},
                                   {"padded", {6, 5}, Dtype::kF32, {9, 1}},
                                   {"batches", {}, Dtype::kI64},
                                   {"every_second", {33}, Dtype::kF16, {2}},
                                   {"empty", {0, 3}, Dtype::kU8},
                                   {"fc.bias", {41}}};
  static uint64_t flags(const std::string& name) {
    if (name == "table" || name == "empty") return WEFT_PARAM_STATE_ONLY;
    if (name == "mean" || name == "batches") return WEFT_PARAM_BUFFER;
    return name == "ignored" ? WEFT_PARAM_IGNORED : 0;
  }
};

// One rank's values: bytes that identify the rank.
class Values {
 public:
  Values(const Model& model, int rank) : model_(model), memory_(model) { fill(rank); }
  void fill(int rank) {
    for (size_t i = 0; i < model_.size(); i++) {
      const uint32_t bytes = dtype_size(model_[i].dtype);
      for (uint64_t k = 0; k < model_.count(i); k++) {
        std::byte* const at = memory_[i] + memory_.at(i, k);
        for (uint32_t b = 0; b < bytes; b++)
          at[b] = static_cast<std::byte>(rank * 16 + static_cast<int>(i + k + b));
      }
    }
  }
  std::byte* operator[](size_t i) { return memory_[i]; }
  const std::vector<Bytes>& memory() const { return memory_.memory(); }
  // Returns the list with this rank's addresses.
  std::vector<weft_param> c() {
    std::vector<weft_param> out = model_.c();
    for (size_t i = 0; i < out.size(); i++) {
      out[i].flags = Kinds::flags(model_[i].name);
      out[i].parameter = memory_[i];
    }
    return out;
  }

 private:
  const Model& model_;
  Gradients memory_;
};

Status make(const std::shared_ptr<Comm>& comm, const std::vector<weft_param>& params,
            std::unique_ptr<Reducer>* reducer, uint64_t flags = 0) {
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  const uint64_t limit = 256;
  options.params = params.data();
  options.param_count = params.size();
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  options.flags = flags | WEFT_REDUCER_KEEP_VALUES;  // the ranks' values must differ at first
  return Reducer::create(comm, options, allreduce_hook(), reducer);
}

weft_broadcast_options how(int32_t root, uint64_t chunk_bytes = 0, uint32_t in_flight = 0,
                           uint64_t flags = 0) {
  weft_broadcast_options options = WEFT_BROADCAST_OPTIONS_INIT;
  options.root = root;
  options.chunk_bytes = chunk_bytes;
  options.in_flight = in_flight;
  options.flags = flags;
  return options;
}

// Returns a rank's expected values after a broadcast: the root's for parameters that the flags select,
// otherwise its own.
std::vector<Bytes> after(const Model& model, int rank, int root, uint64_t flags) {
  const Values mine(model, rank), theirs(model, root);
  std::vector<Bytes> out = mine.memory();
  for (size_t i = 0; i < model.size(); i++) {
    const uint64_t kind = Kinds::flags(model[i].name);
    const bool moves = kind == 0 ? (flags & WEFT_BROADCAST_PARAMS) != 0
                       : kind == WEFT_PARAM_STATE_ONLY
                           ? (flags & WEFT_BROADCAST_STATE) != 0
                           : kind == WEFT_PARAM_BUFFER && (flags & WEFT_BROADCAST_BUFFERS) != 0;
    if (moves) out[i] = theirs.memory()[i];
  }
  return out;
}

constexpr uint64_t kAll = WEFT_BROADCAST_PARAMS | WEFT_BROADCAST_STATE | WEFT_BROADCAST_BUFFERS;

}  // namespace

TEST_CASE("chunks hold every element once, in order, within the limit, whatever the dtypes") {
  const Model model(Kinds().params);
  Values values(model, 0);
  Manifest manifest;
  REQUIRE(make_manifest(values.c().data(), model.size(), sizeof(weft_param), &manifest).ok());
  const std::vector<uint32_t> params = params_with(manifest, WEFT_PARAM_STATE_ONLY | WEFT_PARAM_BUFFER, true);
  CHECK(params == std::vector<uint32_t>{0, 1, 3, 4, 5, 6, 7, 8});
  for (const uint64_t limit : {16u, 17u, 100u, 864u, 1u << 20}) {
    std::vector<uint64_t> next(model.size());
    for (const Chunk& chunk : make_chunks(manifest, params, limit)) {
      uint64_t bytes = 0;
      for (const Piece& piece : chunk.pieces) {
        CHECK(piece.count > 0);
        CHECK(piece.first == next[piece.param]);
        next[piece.param] += piece.count;
        bytes += piece.bytes;
      }
      CHECK(bytes == chunk.bytes);
      CHECK(bytes <= limit);
      if (chunk.direct) CHECK((chunk.pieces.size() == 1 && manifest.params[chunk.pieces[0].param].dense));
    }
    for (const uint32_t i : params) CHECK(next[i] == model.count(i));
  }
  CHECK(make_chunks(manifest, {0}, 864).front().direct);
  CHECK(!make_chunks(manifest, {4}, 864).front().direct);  // it has gaps
}

TEST_CASE("values reach every rank from any root, in chunks of any size, any number in flight") {
  const Model model(Kinds().params);
  const auto body = [&](Rank& self) {
    Values values(model, self.rank);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, values.c(), &reducer), "create");
    if (!reducer) return;
    for (const uint64_t flags :
         {uint64_t{0}, WEFT_BROADCAST_PARAMS, WEFT_BROADCAST_STATE | WEFT_BROADCAST_BUFFERS}) {
      for (const uint64_t chunk : {0, 16, 100, 865}) {
        for (const uint32_t in_flight : {0u, 1u, 5u}) {
          const int root = static_cast<int>((chunk + in_flight) % static_cast<uint64_t>(self.size));
          values.fill(self.rank);
          self.expect(reducer->broadcast(how(root, chunk, in_flight, flags)), "broadcast");
          const auto expected = after(model, self.rank, root, flags == 0 ? kAll : flags);
          self.expect(differs(model, values.memory(), expected).empty(),
                      differs(model, values.memory(), expected));
        }
      }
    }
  };
  for (const Backend* backend :
       {static_cast<const Backend*>(nullptr), static_cast<const Backend*>(&shm::backend())}) {
    RanksOptions options;
    options.backend = backend;
    for (const int ranks : {1, 3}) check(run_threads(ranks, body, options));
  }
}

TEST_CASE("state without gradients is in no bucket, and cannot become ready or absent") {
  const Model model(Kinds().params);
  check(run_threads(2, [&](Rank& self) {
    Values values(model, self.rank);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, values.c(), &reducer, WEFT_REDUCER_ABSENT | WEFT_REDUCER_STATIC), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      for (uint64_t i = 0; i < model.size(); i++) {
        const bool reduced = Kinds::flags(model[i].name) == 0;
        if (reduced) gradients.fill(i, step, self.rank);
        const Status ready = reducer->ready(i, gradients[i], nullptr);
        if (reduced) {
          self.expect(ready, "ready");
          continue;
        }
        self.expect(ready.code() == Code::kArg && has(ready.text(), "'" + model[i].name + "') is "),
                    ready.text());
        const Status absent = reducer->absent(&i, 1);
        self.expect(absent.code() == Code::kArg && has(absent.text(), "without a gradient") == (i != 2),
                    absent.text());
        self.expect(reducer->result(i, gradients[i]).code() == Code::kArg, "result");
        self.expect(reducer->wait_param(i, 0).code() == Code::kArg, "wait_param");
        weft_param_info info{};
        self.expect(reducer->param(i, &info), "param");
        self.expect(info.bucket == UINT32_MAX, "no bucket");
      }
      self.expect(reducer->finish({}), "finish");
      if (step == 1) self.expect(reducer->replan({}), "re-plan");  // the first step learns the pattern
    }
  }));
}

TEST_CASE("ignored parameters may differ between ranks in everything, others may not") {
  check(run_threads(2, [&](Rank& self) {
    std::vector<TestParam> list = {{"w", {3}}, {self.rank == 0 ? "x" : "y", {self.rank + 1}}};
    const Model model(list);
    std::vector<weft_param> params = model.c();
    params[1].flags = WEFT_PARAM_IGNORED;
    if (self.rank == 1) params[1].name = nullptr, params[1].dtype = 77;
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, params, &reducer), "create");
    params = model.c();
    if (self.rank == 1) params[1].flags = WEFT_PARAM_IGNORED;
    const Status status = make(self.comm, params, &reducer);
    self.expect(status.code() == Code::kMismatch && has(status.text(), "ignored on rank 1"), status.text());
  }));
}

TEST_CASE("gradients that overlap are refused by name, those between each other's gaps are not") {
  std::vector<float> memory(100);
  const Model model({{"a", {5, 3}, Dtype::kF32, {6, 1}}, {"b", {5, 3}, Dtype::kF32, {6, 1}}, {"c", {4}}});
  std::vector<weft_param> params = model.c();
  Manifest manifest;
  const auto status = [&](size_t b, size_t c) {
    params[0].gradient = memory.data();
    params[1].gradient = memory.data() + b;
    params[2].gradient = memory.data() + c;
    return make_manifest(params.data(), params.size(), sizeof(weft_param), &manifest);
  };
  CHECK(status(3, 40).ok());
  CHECK(has(status(2, 40).text(), "parameter 1 ('b'): its gradient overlaps that of parameter 0 ('a')"));
  CHECK(has(status(3, 29).text(), "parameter 2 ('c'): its gradient overlaps that of parameter 1 ('b')"));
}

TEST_CASE("an invalid broadcast is an error with the reason on all ranks before anything moves") {
  const Model model(Kinds().params);
  check(run_threads(3, [&](Rank& self) {
    Values values(model, self.rank);
    std::vector<weft_param> params = values.c();
    if (self.rank == 1) params[4].parameter = nullptr;
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, params, &reducer), "create");
    if (!reducer) return;
    const auto refused = [&](const weft_broadcast_options& options, int culprit, const std::string& why) {
      const Status status = reducer->broadcast(options);
      self.expect(!status.ok() && has(status.text(), why), status.text() + ", not " + why);
      if (self.rank != culprit) self.expect(status.code() == Code::kMismatch, status.text());
      self.expect(values.memory() == Values(model, self.rank).memory(), "values are as they were");
    };
    refused(how(0), 1, "parameter 4 ('padded') has no value");
    refused(how(self.rank == 2 ? 2 : 0, 0, 0, WEFT_BROADCAST_STATE), -1,
            "root is 0 on rank 0 and 2 on rank 2");
    refused(how(0, self.rank == 2 ? 64 : 32, 0, WEFT_BROADCAST_STATE), -1,
            "chunk_bytes is 32 on rank 0 and 64 on rank 2");
    refused(how(0, self.rank == 2 ? 64 : 0, 0, WEFT_BROADCAST_STATE), -1,
            cat("chunk_bytes is ", 250 << 20, " on rank 0 and 64 on rank 2"));
    refused(how(0, 0, self.rank == 2 ? 5 : 0, WEFT_BROADCAST_STATE), -1,
            "in_flight is 2 on rank 0 and 5 on rank 2");
    refused(how(self.rank == 2 ? 7 : 0, 0, 0, WEFT_BROADCAST_STATE), 2,
            self.rank == 2 ? "root is 7: allowed are 0 to 2"
                           : "rank 2 cannot broadcast: see the error on that rank");
    const Status never = reducer->broadcast(how(WEFT_ROOT_LAST_ACTIVE, 0, 0, WEFT_BROADCAST_STATE));
    self.expect(never.code() == Code::kState, never.text());
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->broadcast(how(0)).code() == Code::kState, "inside a step");
    Gradients gradients(model);
    for (uint64_t i = 0; i < model.size(); i++) {
      if (Kinds::flags(model[i].name) != 0) continue;
      gradients.fill(i, 0, self.rank);
      self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
    }
    self.expect(reducer->finish({}), "finish");
    self.expect(reducer->broadcast(how(WEFT_ROOT_LAST_ACTIVE, 0, 0, WEFT_BROADCAST_STATE)), "last active");
    self.expect(values.memory() == after(model, self.rank, 2, WEFT_BROADCAST_STATE),
                "the last active rank's");
  }));
}

TEST_CASE("a broadcast that a rank does not join ends by its deadline") {
  const Model model(Kinds().params);
  check(run_threads(2, [&](Rank& self) {
    Values values(model, self.rank);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, values.c(), &reducer), "create");
    if (!reducer || self.rank == 1) return;
    weft_broadcast_options options = how(0);
    options.timeout_ms = 50;
    const Status status = reducer->broadcast(options);
    self.expect(!status.ok() && self.comm->failed(), status.text());
  }));
}

TEST_CASE("a digest search finds the first that differs, and the minority") {
  const size_t count = GENERATE(1u, 2u, 15u, 16u, 17u, 255u, 4097u);
  for (const size_t at : {size_t{0}, count / 2, count - 1}) {
    std::vector<std::vector<uint64_t>> ranks(4, std::vector<uint64_t>(count));
    for (auto& digests : ranks) {
      for (size_t i = 0; i < count; i++) digests[i] = i * i;
    }
    ranks[2][at]++;
    ranks[1][count - 1] += 5;
    std::vector<DigestSearch> searches(ranks.begin(), ranks.end());
    int rounds = 0;
    for (; !searches[0].found(); rounds++) {
      std::vector<DigestSearch::Row> rows;
      for (const DigestSearch& search : searches) rows.push_back(search.row());
      for (DigestSearch& search : searches) REQUIRE(search.descend(rows));
    }
    CHECK(searches[3].at() == at);
    CHECK(rounds <= 4);
    CHECK(minority(searches[3].digests()) ==
          (at == count - 1 ? std::vector<int>{1, 2} : std::vector<int>{2}));
  }
  CHECK(minority(std::vector<uint64_t>{4, 9}) == std::vector<int>{1});
  CHECK(minority(std::vector<uint64_t>{4, 9, 9}) == std::vector<int>{0});
  const std::vector<uint64_t> same = {1, 2, 3};
  DigestSearch search(same);
  CHECK(!search.descend(std::vector<DigestSearch::Row>{search.row(), search.row()}));
}

TEST_CASE(
    "values that differ are found by the first parameter, the minority named, and the reducer stays usable") {
  const Model model(Kinds().params);
  check(run_threads(3, [&](Rank& self) {
    Values values(model, 0);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, values.c(), &reducer), "create");
    if (!reducer) return;
    self.expect(reducer->check(), "equal");
    for (const size_t wrong : {0u, 1u, 4u, 6u, 8u}) {
      std::byte& last = *(values[wrong] + values.memory()[wrong].size() - 1);
      if (self.rank == 1) last ^= std::byte{1}, *values[8] ^= std::byte{64};
      const Status status = reducer->check();
      self.expect(
          status.code() == Code::kMismatch && status.info().ranks == std::vector<int>{1} &&
              has(status.text(), "('" + model[wrong].name + "') is the first that differs: ranks [1]"),
          status.text());
      self.expect(reducer->broadcast(how(0, 100)), "repair");
      self.expect(reducer->check(), "repaired");
    }
    // Gaps do not count, and each rank has its own buffers.
    *values[3] = static_cast<std::byte>(self.rank);
    *values[2] = static_cast<std::byte>(self.rank);
    *(values[4] + 5 * 4) = static_cast<std::byte>(self.rank);
    self.expect(reducer->check(), "buffers and gaps");
  }));
}

}  // namespace unit_values
