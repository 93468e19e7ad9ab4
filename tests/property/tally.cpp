#include "tally.h"

#include <algorithm>

#include "base/text.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"
#include "support/catch.h"

namespace weft::test {
namespace {

bool has_many_buckets(const ReducerCase& program) {
  const Model model(program.params);
  Manifest manifest;
  REQUIRE(make_manifest(model.c().data(), model.size(), sizeof(weft_param), &manifest).ok());
  return make_plan(manifest, {.limits = program.rig.limits, .order = {}}).buckets.size() >= 3;
}

template <class Test>
bool any_part(const ReducerCase& program, Test&& test) {
  return std::any_of(program.windows.begin(), program.windows.end(), [&](const Window& window) {
    return std::any_of(window.ranks.begin(), window.ranks.end(),
                       [&](const RankPart& part) { return test(window, part); });
  });
}

bool lacks_some(const RankPart& part) {
  return part.data && std::find(part.ready.begin(), part.ready.end(), false) != part.ready.end();
}

bool repeats(const ReducerCase& program) {
  return std::any_of(program.uses.begin(), program.uses.end(), [](const std::vector<uint32_t>& uses) {
    return std::any_of(uses.begin(), uses.end(), [](uint32_t count) { return count > 1; });
  });
}

}  // namespace

void Tally::count(const ReducerCase& program) {
  const auto flag = [&](uint64_t wanted) { return (program.rig.flags & wanted) != 0; };
  const auto part = [&](auto&& test) { return any_part(program, test); };
  cases_++;
  next_ = 0;
  add("three or more buckets", true, has_many_buckets(program));
  add("absences", true, part([](const Window&, const RankPart& p) { return lacks_some(p); }));
  add("weights", true, program.rig.divide_by == WEFT_DIVIDE_WEIGHTS);
  add("re-plans", true, part([](const Window& w, const RankPart&) { return w.replan; }));
  add("accumulation", true, part([](const Window&, const RankPart& p) { return !p.locals.empty(); }));
  add("accumulation by the program in copy mode", true, program.adds() && !program.view());
  add("sparse gradients", true, program.sparse());
  add("sparse gradients shown to a hook", false, program.asks);
  add("repeated uses", true, repeats(program));
  add("a static pattern", true, program.learns());
  add("gradients outside their views", true, program.strays());
  add("retained gradients", true, flag(WEFT_REDUCER_RETAIN));
  add("ranks without data", false,
      part([](const Window&, const RankPart& p) { return !p.data && !p.joined; }));
  add("joins", false, part([](const Window&, const RankPart& p) { return p.joined; }));
  add("norms", false, program.norms());
  add("skipped steps", false, part([](const Window& w, const RankPart&) { return w.skipped(); }));
  add("sharding", false, program.sharded());
  add("fixed sets", false, part([](const Window& w, const RankPart&) { return w.fixed; }));
  add("buffers", false, program.buffers());
  add("values compared", false, program.check_interval > 0);
}

void Tally::add(const char* what, bool wanted, bool has) {
  if (next_ == entries_.size()) entries_.push_back({what, wanted, 0});
  entries_[next_++].count += has ? 1 : 0;
}

std::string Tally::text() const {
  std::string text = cat(cases_, " cases");
  for (const Entry& entry : entries_) text += cat(", ", entry.count, " with ", entry.what);
  return text;
}

std::string Tally::fewer_than(uint64_t least) const {
  std::string text;
  for (const Entry& entry : entries_) {
    if (entry.wanted && entry.count < least) text += cat(" ", entry.count, " with ", entry.what);
  }
  return text;
}

}  // namespace weft::test
