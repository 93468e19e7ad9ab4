// Random programs of device reducers, compared with twins in host memory. They use local steps, absent
// parameters, ranks without data, weights, norms, re-plans and shards, in copy and in view mode.
#pragma once

#include "capi/reducer_pair.h"

namespace weft_test {

using Random = std::mt19937_64;

struct Program {
  ReducerPair::Options how;
  int ranks = 2;
  int windows = 4;
  bool local = false;
  bool caller = false;  // WEFT_PROGRESS_CALLER
  double clip = 0;
  // True if the program adds up the gradients of local steps.
  bool adds() const { return how.accumulation != WEFT_ACCUMULATION_REDUCER; }
  bool normed() const { return (how.flags & WEFT_REDUCER_NORMS) != 0; }
};

inline bool one_in(Random& random, unsigned n) {
  return random() % n == 0;
}

// Draws a program. All ranks draw the same one.
inline Program draw(Random& random) {
  Program program;
  ReducerPair::Options& how = program.how;
  program.ranks = 2 + static_cast<int>(random() % 2);
  how.mode = one_in(random, 3) ? WEFT_GRADIENT_VIEW : WEFT_GRADIENT_COPY;
  constexpr uint64_t kLimits[] = {0, 300, 4000, 1u << 20};
  how.limit = kLimits[random() % 4];
  if (one_in(random, 2)) how.flags |= WEFT_REDUCER_ABSENT;
  if (one_in(random, 2)) how.flags |= WEFT_REDUCER_UNEVEN;
  if (one_in(random, 4)) how.flags |= WEFT_REDUCER_DETERMINISTIC;
  if (one_in(random, 3)) how.flags |= WEFT_REDUCER_NORMS;
  if ((how.flags & WEFT_REDUCER_NORMS) != 0 && one_in(random, 2)) program.clip = 3.0;
  if ((how.flags & WEFT_REDUCER_UNEVEN) != 0) how.divide_by = static_cast<int32_t>(random() % 3);
  if (one_in(random, 3)) {
    how.reduce_dtype = one_in(random, 2) ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32;
  } else if (how.mode == WEFT_GRADIENT_COPY && one_in(random, 4)) {
    how.flags |= WEFT_REDUCER_SHARDED | WEFT_REDUCER_OWN_WHOLE;
  }
  if ((how.flags & WEFT_REDUCER_SHARDED) == 0 && one_in(random, 3))
    how.hook = one_in(random, 2) ? "fp16" : "bf16";
  if (how.mode == WEFT_GRADIENT_COPY)
    how.accumulation = one_in(random, 2) ? WEFT_ACCUMULATION_PROGRAM : WEFT_ACCUMULATION_REDUCER;
  // The reducer adds up gradients on devices in their own type.
  program.local = one_in(random, 2) && (how.reduce_dtype == 0 || program.adds());
  return program;
}

// Runs one window: local steps, then a synchronised step. common: gives all ranks the same numbers.
inline std::string window(ReducerPair& reducers, const Program& program, Random& common, Random& own,
                          uint64_t seed) {
  const size_t count = reducers.tensors().size();
  const bool absent = (program.how.flags & WEFT_REDUCER_ABSENT) != 0;
  const bool uneven = (program.how.flags & WEFT_REDUCER_UNEVEN) != 0;
  const uint64_t locals = program.local ? common() % 3 : 0;
  std::vector<bool> begun(count);  // has become ready in this window, so that the next gradient is added
  std::string wrong;
  const auto ready = [&](size_t i, uint64_t at) {
    if (wrong.empty()) wrong = reducers.ready(i, seed * 100 + at * 20 + i, begun[i] && program.adds());
    begun[i] = true;
  };
  for (uint64_t local = 0; local < locals && wrong.empty(); local++) {
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_LOCAL;
    wrong = reducers.begin(begin);
    for (size_t i = 0; i < count; i++) {
      const bool gaps = reducers.tensors()[i].name == "padded" && !program.adds();
      if (!gaps && !one_in(own, 3)) ready(i, local);
    }
    if (wrong.empty()) wrong = reducers.finish(WEFT_FINISH_OPTIONS_INIT, false);
  }
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.micro_batches = static_cast<uint32_t>(locals) + 1;
  const bool fixed = one_in(common, 3);
  const uint64_t fixed_seed = common();
  const bool without = uneven && !fixed && one_in(own, 3);
  if (fixed) begin.flags |= WEFT_BEGIN_FIXED;
  if (without) begin.flags |= WEFT_BEGIN_NO_DATA;
  if (program.how.divide_by == WEFT_DIVIDE_WEIGHTS) begin.weight = 1.0 + static_cast<double>(own() % 3);
  if (wrong.empty()) wrong = reducers.begin(begin);
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; i++) order[i] = i;
  std::shuffle(order.begin(), order.end(), own);
  Random together(fixed_seed);
  std::vector<bool> leaves(count);
  for (size_t i = 0; i < count; i++)
    leaves[i] = fixed ? locals == 0 && one_in(together, 3) : absent && one_in(own, 3);
  for (const size_t i : order) {
    if (without || !wrong.empty()) continue;
    if (leaves[i]) {
      wrong = reducers.absent(i);
    } else {
      ready(i, 9);
    }
  }
  weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
  finish.clip_norm = program.clip;
  constexpr ReducerPair::Waits kWaits[] = {ReducerPair::Waits::kHost, ReducerPair::Waits::kStreams,
                                           ReducerPair::Waits::kParams};
  // Where the host waits, a parameter's result comes only with finish if norms are computed.
  const bool host_waits = program.caller || stream_waits() == 0;
  const auto waits = kWaits[own() % (host_waits && program.normed() ? 2 : 3)];
  if (wrong.empty()) wrong = reducers.finish(finish, waits);
  if (wrong.empty()) wrong = reducers.compare();
  if (wrong.empty() && program.normed()) wrong = reducers.compare_norms();
  return wrong;
}

// Runs a rank's part: windows, perhaps with a re-plan between them. Returns the first failure.
inline std::string run_program(Rank& r, const std::vector<Tensor>& tensors, const Program& program,
                               uint64_t common_seed) {
  ReducerPair reducers(r, tensors, program.how);
  if (!reducers.created().empty()) return reducers.created();
  Random common(common_seed), own(common_seed + 1 + static_cast<uint64_t>(r.rank));
  std::string text;
  for (int w = 0; w < program.windows && text.empty(); w++) {
    if (w == 2 && one_in(common, 2)) text = reducers.replan(common() % 5000);
    if (text.empty()) text = window(reducers, program, common, own, static_cast<uint64_t>(w));
    if (!text.empty())
      text = "rank " + std::to_string(r.rank) + ", window " + std::to_string(w) + ": " + text;
  }
  return text;
}

inline std::string text_of(const Program& program, uint64_t seed) {
  const ReducerPair::Options& how = program.how;
  return "--rng-seed " + std::to_string(seed) + ", flags " + std::to_string(how.flags) + ", mode " +
         std::to_string(how.mode) + ", reduce_dtype " + std::to_string(how.reduce_dtype) + ", hook " +
         how.hook + ", local " + std::to_string(program.local) + ", accumulation " +
         std::to_string(how.accumulation);
}

}  // namespace weft_test
