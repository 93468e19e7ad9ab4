#include "reducer_cases.h"

#include <cmath>
#include <map>

namespace weft::test {
namespace {

std::vector<TestParam> draw_params(Random& random) {
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF64};
  std::vector<TestParam> params(3 + random.below(8));
  for (size_t i = 0; i < params.size(); i++) {
    TestParam& p = params[i];
    p.name = cat("p", i);
    p.dtype = kDtypes[random.below(std::size(kDtypes))];
    const uint64_t dims = random.below(3);
    for (uint64_t d = 0; d < dims; d++) p.shape.push_back(static_cast<int64_t>(random.below(7)));
    if (dims == 1 && random.chance(3)) p.shape[0] = static_cast<int64_t>(20 + random.below(100));
    p.strides = row_major(p.shape);
    if (dims > 0 && random.chance(5)) {
      p.sparse_ndim = static_cast<uint32_t>(1 + random.below(dims));
      continue;
    }
    if (dims == 2 && p.shape[0] > 1 && p.shape[1] > 1) {
      if (random.chance(4)) p.strides = {1, p.shape[0]};
      if (random.chance(4)) p.strides = {p.shape[1] + 2, 1};  // with gaps
    }
  }
  return params;
}

// Draws a rank's part with a static usage pattern. The rank's first step, local or not, uses all parameters
// of the pattern. Later local steps may use fewer.
void draw_static_part(const ReducerCase& program, const std::vector<uint32_t>& uses, bool first,
                      Random& random, RankPart* part) {
  for (auto& local : part->locals) {
    for (size_t i = 0; i < uses.size(); i++) local[i] = uses[i] > 0 && (first || local[i]);
    first = false;
  }
  for (size_t i = 0; part->data && i < uses.size(); i++) part->ready[i] = uses[i] > 0;
  // Unused parameters of the pattern are absent automatically.
  part->rest = part->data && program.mapped() && random.chance(2);
}

// uses: this rank's. begun: the rank has made a step before.
void draw_part(const ReducerCase& program, const Window& window, const std::vector<uint32_t>& uses,
               bool begun, Random& random, RankPart* part) {
  const size_t params = program.params.size();
  part->ready.assign(params, true);
  part->order = random.next();
  part->places = program.rig.mode == WEFT_GRADIENT_COPY && random.chance(2);
  part->skip = program.norms() && !part->joined && random.chance(8);
  if (program.rig.divide_by == WEFT_DIVIDE_WEIGHTS) part->weight = static_cast<double>(1 + random.below(4));
  if (part->joined) {
    part->data = part->places = false;
    part->ready.assign(params, false);
    return;
  }
  part->locals.resize(!program.uneven() ? window.locals : random.chance(2) ? random.below(3) : 0);
  for (auto& local : part->locals) {
    for (size_t i = 0; i < params; i++) local.push_back(!random.chance(4));
  }
  if (program.uneven() && (!window.fixed || program.mapped()) && random.chance(4)) {
    part->data = false;
    part->ready.assign(params, false);
    if (program.adds() && program.sparse()) part->locals.clear();  // their sums would be lost
  }
  if (program.learns()) {
    draw_static_part(program, uses, !begun, random, part);
  } else if (part->data && program.mapped() && !window.fixed) {
    part->rest = random.chance(2);
    const uint64_t one_in = 2 + random.below(4);
    for (size_t i = 0; i < params; i++) part->ready[i] = !random.chance(one_in);
  }
}

// Makes the same parameters absent on all ranks that have data. No rank accumulates them in local steps
// either.
void fix(Random& random, Window* window) {
  std::vector<bool> ready(window->ranks[0].ready.size());
  for (size_t i = 0; i < ready.size(); i++) ready[i] = !random.chance(2);
  for (RankPart& part : window->ranks) {
    if (part.data) part.ready = ready;
    for (auto& local : part.locals) {
      for (size_t i = 0; i < ready.size(); i++) local[i] = local[i] && ready[i];
    }
  }
}

// Makes the sparse gradients of local steps ready in the synchronised step too, because their sum would be
// lost if the program did not hand it over.
void keep_sparse_sums(const std::vector<TestParam>& params, Window* window) {
  for (RankPart& part : window->ranks) {
    for (auto& local : part.locals) {
      for (size_t i = 0; i < params.size(); i++) {
        if (params[i].sparse_ndim > 0) local[i] = local[i] && part.ready[i];
      }
    }
  }
}

// Draws a plan as a program could set it: parameters of one dtype, shuffled and cut into buckets.
std::vector<std::vector<uint32_t>> draw_plan(const std::vector<TestParam>& params, Random& random) {
  std::map<Dtype, std::vector<uint32_t>> by_dtype;
  std::vector<std::vector<uint32_t>> plan;
  for (uint32_t i = 0; i < params.size(); i++) {
    if (params[i].sparse_ndim > 0) {
      plan.push_back({i});
    } else {
      by_dtype[params[i].dtype].push_back(i);
    }
  }
  for (auto& [dtype, members] : by_dtype) {
    for (size_t i = members.size(); i > 1; i--) std::swap(members[i - 1], members[random.below(i)]);
    plan.emplace_back();
    for (const uint32_t member : members) {
      if (!plan.back().empty() && random.chance(3)) plan.emplace_back();
      plan.back().push_back(member);
    }
  }
  for (size_t i = plan.size(); i > 1; i--) std::swap(plan[i - 1], plan[random.below(i)]);
  return plan;
}

// Draws how often parameters are used; this is declared, or learned from each rank's first step.
void draw_uses(Random& random, ReducerCase* program) {
  const size_t params = program->params.size();
  program->uses.assign(static_cast<size_t>(program->ranks), std::vector<uint32_t>(params, 1));
  if (random.chance(3)) {
    program->rig.flags |= WEFT_REDUCER_STATIC;
    for (auto& uses : program->uses) {
      for (uint32_t& count : uses) {
        const bool unused = program->mapped() && random.chance(4);
        count = unused ? 0 : 1 + static_cast<uint32_t>(random.chance(3) ? 1 + random.below(2) : 0);
      }
    }
  } else if (random.chance(2)) {
    for (size_t i = 0; i < params; i++) {
      const auto count = static_cast<uint32_t>(1 + random.below(3));
      for (auto& uses : program->uses) uses[i] = count;
    }
  }
}

// Draws the type in which gradients are communicated, who accumulates them, and whether the reducer re-plans
// automatically.
void draw_types(Random& random, RigOptions* rig) {
  const bool program_adds = rig->mode == WEFT_GRADIENT_VIEW || random.chance(2);
  rig->accumulation = program_adds ? WEFT_ACCUMULATION_PROGRAM : WEFT_ACCUMULATION_REDUCER;
  constexpr int32_t kDtypes[] = {WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_F32};
  if (random.chance(3)) rig->reduce_dtype = kDtypes[random.below(std::size(kDtypes))];
  if (!program_adds && random.chance(4)) rig->flags |= WEFT_REDUCER_ACCUMULATE_F32;
  if (random.chance(4)) rig->flags |= WEFT_REDUCER_DETERMINISTIC;
  const bool slices = (rig->flags & (WEFT_REDUCER_SHARDED | WEFT_REDUCER_OWN_WHOLE)) == WEFT_REDUCER_SHARDED;
  if (!slices && random.chance(4)) rig->replan = WEFT_PLANNER_LIMITS;
  if (rig->mode == WEFT_GRADIENT_VIEW && random.chance(2)) rig->flags |= WEFT_REDUCER_COPY_STRAYS;
  if (random.chance(4)) rig->flags |= WEFT_REDUCER_RETAIN;
}

}  // namespace

ReducerCase ReducerCase::draw(uint64_t seed, int ranks, Random& random) {
  ReducerCase program;
  program.seed = seed;
  program.ranks = ranks;
  program.params = draw_params(random);
  program.rig.mode = random.chance(2) ? WEFT_GRADIENT_VIEW : WEFT_GRADIENT_COPY;
  program.rig.limits = {random.below(3) == 0 ? 0 : 16 + random.below(300)};
  if (!random.chance(3)) program.rig.flags |= WEFT_REDUCER_ABSENT;
  if (!random.chance(3)) {
    program.rig.flags |= WEFT_REDUCER_UNEVEN;
    program.rig.divide_by = static_cast<int32_t>(random.below(3));
    if (random.chance(3)) program.rig.divide_by = WEFT_DIVIDE_WEIGHTS;
  }
  if (random.chance(2)) program.rig.flags |= WEFT_REDUCER_NORMS;
  if (random.chance(2)) {
    program.rig.flags |= WEFT_REDUCER_SHARDED;
    for (TestParam& p : program.params) p.sparse_ndim = 0;
    if (random.chance(2)) program.rig.flags |= WEFT_REDUCER_OWN_WHOLE;
  }
  draw_types(random, &program.rig);
  draw_uses(random, &program);
  program.asks = program.sparse() && seed % 3 == 0;
  // Absent gradients that the program has accumulated need a place.
  program.homes = !program.view() && (program.adds() || random.chance(2));
  if (random.chance(2)) {
    program.rig.flags |= WEFT_REDUCER_BUFFERS;
    program.buffers_root = static_cast<int32_t>(random.below(static_cast<uint64_t>(ranks) + 1)) - 1;
  }
  if (random.chance(3)) program.check_interval = 1 + static_cast<uint32_t>(random.below(2));
  program.windows.resize(1 + random.below(3));
  std::vector<bool> joined(static_cast<size_t>(ranks)), begun(joined);
  for (Window& window : program.windows) {
    window.micro_batches = 1 + static_cast<uint32_t>(random.below(3));
    window.locals = random.chance(2) ? 1 + random.below(2) : 0;
    if (program.uneven() && &window != program.windows.data()) {
      for (size_t r = 0; r < joined.size(); r++) joined[r] = joined[r] || random.chance(5);
    }
    const bool any = std::find(joined.begin(), joined.end(), true) != joined.end();
    // With ranks without data a window is fixed only if the usage map reports which parameters are absent
    // everywhere.
    window.fixed = (!any || program.mapped()) && !program.learns() && random.chance(5);
    window.record = random.chance(2);
    window.replan = random.chance(4);
    window.limit = random.below(300);
    if (window.replan && random.chance(3)) window.plan = draw_plan(program.params, random);
    window.ranks.resize(static_cast<size_t>(ranks));
    for (size_t r = 0; r < joined.size(); r++) {
      window.ranks[r].joined = joined[r];
      draw_part(program, window, program.uses[r], begun[r], random, &window.ranks[r]);
      begun[r] = begun[r] || window.ranks[r].data || !window.ranks[r].locals.empty();
    }
    if (window.fixed) fix(random, &window);
    if (program.adds()) keep_sparse_sums(program.params, &window);
    // After all ranks have joined there are no further steps.
    if (std::find(joined.begin(), joined.end(), false) == joined.end()) {
      program.windows.resize(static_cast<size_t>(&window - program.windows.data()));
      break;
    }
  }
  return program;
}

int ReducerCase::buffers_source(size_t window, int last_active, size_t* changed) const {
  const int root = buffers_root == WEFT_ROOT_LAST_ACTIVE ? last_active : buffers_root;
  *changed = window;
  while (root >= 0 && windows[*changed].ranks[static_cast<size_t>(root)].joined) (*changed)--;
  return root;
}

Dtype ReducerCase::travels_as(Dtype gradient) const {
  return rig.reduce_dtype != 0 && gradient != Dtype::kF64 ? static_cast<Dtype>(rig.reduce_dtype) : gradient;
}

Dtype ReducerCase::held_as(Dtype gradient) const {
  if (rig.mode == WEFT_GRADIENT_VIEW) return gradient;
  const Dtype travels = travels_as(gradient);
  const bool wide = (rig.flags & WEFT_REDUCER_ACCUMULATE_F32) != 0 && dtype_size(travels) == 2;
  return wide ? Dtype::kF32 : travels;
}

std::string ReducerCase::text() const {
  return cat(ranks, " ranks, ", params.size(), " parameters, ", view() ? "view" : "copy", ", accumulation ",
             rig.accumulation, ", limit ", rig.limits[0], ", flags ", rig.flags, ", divide_by ",
             rig.divide_by, ", buffers_root ", buffers_root, ", check_interval ", check_interval,
             ", reduce_dtype ", rig.reduce_dtype, ", ", windows.size(), " windows");
}

Expected::Expected(const Model& model, const ReducerCase& program, size_t window)
    : model_(model), program_(program), window_(program.windows[window]), number_(window) {
  double weights = 0;
  for (int r = 0; r < program.ranks; r++) {
    const RankPart& part = window_.ranks[static_cast<size_t>(r)];
    if (!part.active()) continue;
    active_++;
    last_active_ = r;
    weights += part.weight;
  }
  const double ranks = program.ranks;
  divisor_ = ranks;
  if (active_ > 0) {
    if (program.rig.divide_by == WEFT_DIVIDE_ACTIVE) divisor_ = active_;
    divisor_ *= window_.micro_batches;
  }
  for (size_t i = 0; i < model.size(); i++) {
    const Dtype dtype = model[i].dtype;
    const bool sparse = program.params[i].sparse_ndim > 0;  // sparse entries keep their type
    const Dtype travels = sparse ? dtype : program.travels_as(dtype);
    const Dtype held = sparse ? dtype : program.held_as(dtype);
    const uint64_t count = model.count(i);
    std::vector<Bytes> inputs;
    for (int r = 0; r < program.ranks; r++) {
      Bytes input(count * dtype_size(held) + 8);  // never null
      const std::vector<double> sum = contribution(r, i);
      for (uint64_t k = 0; k < sum.size(); k++) store_as(held, sum[k], input.data() + k * dtype_size(held));
      CopyArgs travel;
      travel.src = input.data();
      travel.dst = inputs.emplace_back(count * dtype_size(travels) + 8).data();
      travel.count = count;
      travel.src_dtype = held;
      travel.dst_dtype = travels;
      if (program.rig.divide_by == WEFT_DIVIDE_WEIGHTS && active_ > 0) {
        travel.scale = window_.ranks[static_cast<size_t>(r)].weight * ranks / weights;
      }
      host_ops().copy(travel);
    }
    Bytes& result = results_.emplace_back(count * dtype_size(dtype));
    if (count == 0) continue;
    std::vector<const std::byte*> pointers;
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes sum(count * dtype_size(travels));
    std::byte* output = sum.data();
    FoldArgs fold;
    fold.dtype = travels;
    fold.inputs = pointers.data();
    fold.input_count = program.ranks;
    fold.outputs = &output;
    fold.output_count = 1;
    fold.count = count;
    fold.postscale = 1.0 / divisor_;
    host_ops().fold(fold);
    CopyArgs back;
    back.src = sum.data();
    back.dst = result.data();
    back.count = count;
    back.src_dtype = travels;
    back.dst_dtype = dtype;
    host_ops().copy(back);
  }
}

std::vector<double> Expected::contribution(int rank, size_t param) const {
  const RankPart& part = window_.ranks[static_cast<size_t>(rank)];
  std::vector<double> sum;
  const auto add = [&](size_t step) {
    sum.resize(model_.count(param));
    for (uint64_t k = 0; k < sum.size(); k++) {
      sum[k] += element(program_, step_seed(program_, number_, step), rank, param, k);
    }
  };
  for (size_t l = 0; l < part.locals.size(); l++) {
    if (part.locals[l][param]) add(l);
  }
  if (part.ready[param]) add(part.locals.size());
  return sum;
}

bool Expected::absent(int rank, size_t param) const {
  const RankPart& part = window_.ranks[static_cast<size_t>(rank)];
  if (part.ready[param]) return false;
  return std::none_of(part.locals.begin(), part.locals.end(),
                      [&](const auto& local) { return local[param]; });
}

bool Expected::absent_everywhere(size_t param) const {
  if (!program_.mapped() && !window_.fixed) return false;
  for (int r = 0; r < program_.ranks; r++) {
    if (!absent(r, param)) return false;
  }
  return true;
}

}  // namespace weft::test
