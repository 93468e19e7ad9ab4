// The memory of a reducer in addition to the gradients, for a model of some size, over every backend. The
// report lists every byte, and the total is small.
#include <nlohmann/json.hpp>

#include "loopback/loopback.h"
#include "reducer_rig.h"
#include "shm/backend.h"
#ifdef WEFT_TEST_UCX
#include "ucx/backend.h"
#endif

using namespace weft;
using namespace weft::test;
using Json = nlohmann::json;

namespace {

struct BackendRow {
  const char* name;
  const Backend& (*backend)();
};
constexpr BackendRow kBackends[] = {
    {"loopback", loopback::backend},
    {"shm", shm::backend},  // keeps no memory for messages
#ifdef WEFT_TEST_UCX
    {"ucx", ucx::backend},
#endif
};

// About a transformer of 26 million parameters: 103 MiB of gradients, most of them in matrices.
Model transformer() {
  std::vector<TestParam> params{{"embedding", {8192, 512}}};
  for (int i = 0; i < 7; i++) {
    for (const char* const part : {"query", "key", "value", "out"}) {
      params.push_back({cat("layer", i, ".", part, ".weight"), {512, 512}});
      params.push_back({cat("layer", i, ".", part, ".bias"), {512}});
    }
    params.push_back({cat("layer", i, ".up.weight"), {2048, 512}});
    params.push_back({cat("layer", i, ".up.bias"), {2048}});
    params.push_back({cat("layer", i, ".down.weight"), {512, 2048}});
    params.push_back({cat("layer", i, ".down.bias"), {512}});
    params.push_back({cat("layer", i, ".norm.weight"), {512}});
    params.push_back({cat("layer", i, ".norm.bias"), {512}});
  }
  return Model(params);
}

// Sets every element of a rank's gradients to the same value, so that the mean over ranks is known.
void fill(const Model& model, const std::vector<std::byte*>& views, float value) {
  for (size_t i = 0; i < model.size(); i++) {
    std::fill_n(reinterpret_cast<float*>(views[i]), model.count(i), value);
  }
}

bool filled(const Model& model, const std::vector<std::byte*>& views, float value) {
  for (size_t i = 0; i < model.size(); i++) {
    const float* const view = reinterpret_cast<const float*>(views[i]);
    if (!std::all_of(view, view + model.count(i), [&](float x) { return x == value; })) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("in view mode a reducer takes 2 % of the gradients' memory, and over messages of four ranks 5 %") {
  const Model model = transformer();
  for (const BackendRow& row : kBackends) {
    for (const int ranks : {2, 4}) {
      INFO(row.name << ", " << ranks << " ranks");
      RanksOptions options;
      options.backend = &row.backend();
      check(run_threads(
          ranks,
          [&](Rank& self) {
            std::unique_ptr<Reducer> reducer;
            const RigOptions rig{
                .mode = WEFT_GRADIENT_VIEW, .limits = {}, .flags = WEFT_REDUCER_ABSENT | WEFT_REDUCER_UNEVEN};
            self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
            if (!reducer) return;
            std::vector<std::byte*> views(model.size());
            for (size_t i = 0; i < model.size(); i++) {
              void* view = nullptr;
              self.expect(reducer->grad_view(i, &view), "grad_view");
              views[i] = static_cast<std::byte*>(view);
            }
            fill(model, views, static_cast<float>(self.rank));
            self.expect(reducer->begin(nullptr), "begin");
            self.expect(ready_all(*reducer, views, 0), "ready");
            self.expect(reducer->finish({}), "finish");
            self.expect(filled(model, views, static_cast<float>(self.size - 1) / 2), "the mean");
            weft_reducer_stats stats{};
            reducer->query(&stats);
            const Json memory = Json::parse(reducer->report())["memory"];
            uint64_t named = 0;
            for (const auto& [what, bytes] : memory.items()) named += bytes.get<uint64_t>();
            self.expect(named == stats.bucket_bytes + stats.scratch_bytes + stats.hook_bytes +
                                     stats.retained_bytes + stats.other_bytes,
                        "the parts are the whole");
            self.expect(stats.param_bytes >= uint64_t{100} << 20, "a model of some size");
            const bool messages = row.backend != shm::backend;
            self.expect(named >= stats.param_bytes && (memory["messages"] > 0) == messages,
                        "everything is named");
            self.expect(
                (named - stats.param_bytes) * (messages && ranks > 2 ? 20 : 50) <= stats.param_bytes,
                cat(named - stats.param_bytes, " bytes beside ", stats.param_bytes, ": ", memory.dump()));
          },
          options));
    }
  }
}
