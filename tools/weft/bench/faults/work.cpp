#include "work.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace faults {
namespace {

// Returns a small whole number, so that any order of summing is exact.
float value(uint64_t element, uint64_t round, int first_rank) {
  return static_cast<float>(element % 7 + round % 5 + static_cast<uint64_t>(first_rank) + 1);
}

void fill(float* data, uint64_t count, uint64_t round, int first_rank) {
  for (uint64_t i = 0; i < count; i++) data[i] = value(i, round, first_rank);
}

// True if data contains the sum over the members, divided by divisor.
bool holds(const float* data, uint64_t count, uint64_t round, const std::vector<int>& members,
           double divisor) {
  float sums[7];
  for (uint64_t i = 0; i < 7; i++) {
    double sum = 0;
    for (const int member : members) sum += static_cast<double>(value(i, round, member));
    sums[i] = static_cast<float>(sum / divisor);
  }
  for (uint64_t i = 0; i < count; i++) {
    if (!(std::fabs(data[i] - sums[i % 7]) <= 1e-6f * sums[i % 7])) return false;
  }
  return true;
}

uint64_t hash(const float* data, uint64_t count) {  // FNV-1a, one word at a time
  uint64_t h = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < count; i++) {
    uint32_t word = 0;
    std::memcpy(&word, data + i, sizeof word);
    h = (h ^ word) * 0x100000001b3u;
  }
  return h;
}

// Returns the communicator's details of a failed call.
Outcome failed(weft_comm* comm, weft_status status) {
  Outcome outcome;
  outcome.status = status;
  const weft_status kept = weft_comm_error(comm, &outcome.error);
  if (kept != status) {
    outcome.wrong = std::string("a call returned ") + weft_status_string(status) +
                    ", but weft_comm_error reports " + weft_status_string(kept) + ": " + outcome.error.text;
  }
  return outcome;
}

}  // namespace

// One kind of work; each call of round() executes one round of it.
class Worker {
 public:
  Worker(const Draw& draw, const Team& team, int first_rank)
      : draw_(draw), team_(team), first_rank_(first_rank) {}
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  virtual Outcome begin() { return {}; }
  // Continues in the next communicator, with what begin made.
  virtual Outcome go_on(const WorkHooks& /*hooks*/) { return {}; }
  virtual Outcome round(uint64_t number) = 0;
  virtual void fail_next() {}  // makes the program's hook fail

 protected:
  Outcome fail(weft_status status) const { return failed(team_.comm, status); }
  static Outcome wrong(const std::string& what, uint64_t number) {
    Outcome outcome;
    outcome.wrong = what + " in round " + std::to_string(number);
    return outcome;
  }
  const Draw& draw_;
  const Team& team_;
  const int first_rank_;
};

namespace {

class Idle final : public Worker {
 public:
  using Worker::Worker;
  Outcome round(uint64_t /*number*/) override {
    ::poll(nullptr, 0, 1);
    const weft_status status = weft_comm_error(team_.comm, nullptr);
    return status == WEFT_OK ? Outcome() : fail(status);
  }
};

class AllReduce final : public Worker {
 public:
  using Worker::Worker;
  ~AllReduce() override {
    if (draw_.work == Phase::kArena && data_ != nullptr) weft_comm_free(team_.comm, data_);
  }
  Outcome begin() override {
    if (draw_.work != Phase::kArena) {
      memory_.resize(draw_.count);
      data_ = memory_.data();
      return {};
    }
    void* memory = nullptr;
    const weft_status status = weft_comm_alloc(team_.comm, draw_.count * sizeof(float), &memory);
    data_ = static_cast<float*>(memory);
    if (status == WEFT_OK || weft_comm_error(team_.comm, nullptr) != WEFT_OK) {
      return status == WEFT_OK ? Outcome() : fail(status);
    }
    Outcome outcome;
    outcome.wrong = std::string("weft_comm_alloc: ") + weft_status_string(status);
    return outcome;
  }
  Outcome round(uint64_t number) override {
    fill(data_, draw_.count, number, first_rank_);
    const weft_status status =
        weft_all_reduce(team_.comm, data_, data_, draw_.count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr, nullptr);
    if (status != WEFT_OK) return fail(status);
    return holds(data_, draw_.count, number, team_.members, 1) ? Outcome()
                                                               : wrong("all_reduce: a wrong result", number);
  }

 private:
  std::vector<float> memory_;
  float* data_ = nullptr;
};

// A custom hook that does what `allreduce` does, until it fails.
struct OwnHook {
  bool fails =
      false;  // read on the thread that runs stages, written before the step's first gradient is ready

  static weft_status plan(void* /*self*/, const weft_bucket* bucket, weft_hook_plan* plan,
                          char* /*message*/) {
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    return WEFT_OK;
  }
  static weft_status stage(void* self, const weft_bucket* /*bucket*/, weft_stage* /*stage*/, char* message) {
    if (!static_cast<OwnHook*>(self)->fails) return WEFT_OK;
    std::snprintf(message, 256, "the fault of this run");
    return WEFT_ERR_HOOK;
  }
};

// Gradient steps, with one bucket for each parameter. Values depend on the step's number, which continues
// after a rebind as the verdict states.
class Steps final : public Worker {
 public:
  using Worker::Worker;
  ~Steps() override {
    weft_reducer_destroy(&reducer_);
    weft_hook_destroy(&hook_);
  }
  Outcome begin() override;
  Outcome go_on(const WorkHooks& hooks) override;
  Outcome round(uint64_t number) override;
  void fail_next() override { own_.fails = true; }

 private:
  weft_status make_hook(weft_reducer_options* options);
  weft_status step();
  // Checks that a completed step contains the mean over its members, and counts it.
  Outcome done();
  Outcome fail_step(weft_status status) const {
    Outcome outcome;
    outcome.status = status;
    weft_reducer_error(reducer_, &outcome.error);
    return outcome;
  }
  weft_finish_options finish_options() const {
    weft_finish_options options = WEFT_FINISH_OPTIONS_INIT;
    if (draw_.commit) options.flags = WEFT_FINISH_COMMIT;
    return options;
  }

  OwnHook own_;
  weft_hook* hook_ = nullptr;
  weft_reducer* reducer_ = nullptr;
  std::vector<std::vector<float>> memory_;
  std::vector<float*> gradients_;
  uint64_t step_ = 0;
  std::vector<int> members_;  // of the step
};

weft_status Steps::make_hook(weft_reducer_options* options) {
  const auto own = [](const Fault& fault) { return fault.action == Action::kHook; };
  if (std::none_of(draw_.faults.begin(), draw_.faults.end(), own)) return WEFT_OK;
  weft_hook_table table = WEFT_HOOK_TABLE_INIT;
  table.name = "own";
  table.plan = OwnHook::plan;
  table.stage = OwnHook::stage;
  const weft_status status = weft_hook_create_custom(team_.context, &table, &own_, &hook_);
  options->hook = hook_;
  return status;
}

Outcome Steps::begin() {
  const auto size = static_cast<size_t>(draw_.params);
  const auto shape = static_cast<int64_t>(draw_.count);
  std::vector<std::string> names;
  std::vector<weft_param> params(size);
  for (size_t i = 0; i < size; i++) names.push_back("p" + std::to_string(i));
  for (size_t i = 0; i < size; i++) {
    params[i].struct_size = sizeof(weft_param);
    params[i].name = names[i].c_str();
    params[i].dtype = WEFT_DTYPE_F32;
    params[i].ndim = 1;
    params[i].shape = &shape;
  }
  const uint64_t limit = 0;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  options.mode = draw_.view_mode ? WEFT_GRADIENT_VIEW : WEFT_GRADIENT_COPY;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  if (draw_.retain) options.flags = WEFT_REDUCER_RETAIN;
  Outcome outcome;
  if (const weft_status status = make_hook(&options); status != WEFT_OK) {
    outcome.wrong = std::string("weft_hook_create_custom: ") + weft_status_string(status);
    return outcome;
  }
  outcome.status = weft_reducer_create(team_.comm, &options, &reducer_, &outcome.error);
  if (outcome.status != WEFT_OK) return outcome;
  for (size_t i = 0; i < size; i++) {
    void* view = nullptr;
    if (draw_.view_mode) {
      weft_reducer_grad_view(reducer_, i, &view);
    } else {
      view = memory_.emplace_back(draw_.count).data();
    }
    gradients_.push_back(static_cast<float*>(view));
  }
  return {};
}

weft_status Steps::step() {
  const weft_status status = weft_reducer_begin(reducer_, nullptr);
  if (status != WEFT_OK) return status;
  for (size_t i = gradients_.size(); i-- > 0;) {
    fill(gradients_[i], draw_.count, step_ + i, first_rank_);
    weft_reducer_ready(reducer_, i, gradients_[i], nullptr);  // finish reports a failure
  }
  const weft_finish_options options = finish_options();
  return weft_reducer_finish(reducer_, &options);
}

Outcome Steps::done() {
  for (size_t i = 0; i < gradients_.size(); i++) {
    const auto size = static_cast<double>(members_.size());
    if (!holds(gradients_[i], draw_.count, step_ + i, members_, size)) {
      return wrong("step " + std::to_string(step_) + ": a wrong gradient " + std::to_string(i), step_);
    }
  }
  step_++;
  return {};
}

Outcome Steps::round(uint64_t /*number*/) {
  members_ = team_.members;
  const weft_status status = step();
  return status == WEFT_OK ? done() : fail_step(status);
}

Outcome Steps::go_on(const WorkHooks& hooks) {
  Outcome outcome;
  own_.fails = false;
  outcome.status = weft_reducer_rebind(reducer_, team_.comm, &outcome.error);
  if (outcome.status != WEFT_OK) return outcome;
  weft_verdict verdict = WEFT_VERDICT_INIT;
  weft_reducer_verdict(reducer_, &verdict);
  hooks.bound(verdict.next_step);
  const auto told = [&](const char* what) {
    return wrong(std::string(what) + ": next_step " + std::to_string(verdict.next_step) + " after a rebind",
                 step_);
  };
  if (verdict.last_committed_step + 1 != verdict.next_step)
    return told("last_committed_step + 1 is not next_step");
  // Steps that finish has committed stay committed; otherwise the last one may be undone.
  const uint64_t least = step_ - (draw_.commit || draw_.retain || step_ == 0 ? 0 : 1);
  if (verdict.next_step < least) return told("a committed step was lost");
  if (verdict.next_step > step_ + 1) return told("next_step is beyond the steps of this rank");
  if (verdict.next_step == step_ + 1) {  // committed, although finish could no longer report it
    outcome = done();
    if (!outcome.wrong.empty()) return outcome;
  }
  step_ = verdict.next_step;
  if (!draw_.retain)
    return verdict.can_retry == 0 ? Outcome() : told("can_retry is set without WEFT_REDUCER_RETAIN");
  // A rank that kept its part of the step retries it at once; the others compute theirs again.
  members_ = team_.members;
  const weft_finish_options options = finish_options();
  const weft_status status = verdict.can_retry != 0 ? weft_reducer_retry(reducer_, &options) : step();
  return status == WEFT_OK ? done() : fail_step(status);
}

// Sets *all if every rank was asked to end. A rank that was must still take part until all know it.
Outcome all_told(const Team& team, bool mine, bool* all) {
  int64_t told = mine ? 1 : 0;
  const weft_status status =
      weft_all_reduce(team.comm, &told, &told, 1, WEFT_DTYPE_I64, WEFT_OP_SUM, nullptr, nullptr);
  if (status != WEFT_OK) return failed(team.comm, status);
  *all = told == static_cast<int64_t>(team.members.size());
  return {};
}

}  // namespace

Outcome meet(Team* team, int first_rank, uint64_t count, uint64_t* bits) {
  int32_t size = 0;
  weft_comm_size(team->comm, &size);
  weft_comm_rank(team->comm, &team->rank);
  team->members.assign(static_cast<size_t>(size), -1);
  std::vector<int> members(team->members);
  const int32_t mine = first_rank;
  weft_status status =
      weft_all_gather(team->comm, &mine, members.data(), 1, WEFT_DTYPE_I32, nullptr, nullptr);
  if (status != WEFT_OK) return failed(team->comm, status);
  team->members = members;
  std::vector<float> data(count);
  for (uint64_t i = 0; i < count; i++) {
    data[i] = 1.0f / static_cast<float>(i + static_cast<uint64_t>(first_rank) * 31 + 3);
  }
  status = weft_all_reduce(team->comm, data.data(), data.data(), count, WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                           nullptr);
  if (status != WEFT_OK) return failed(team->comm, status);
  *bits = hash(data.data(), count);
  return {};
}

Work::Work(const Draw& draw, const Team& team, int first_rank)
    : draw_(draw), team_(team), first_rank_(first_rank) {}

Work::~Work() = default;

std::unique_ptr<Worker> Work::make() const {
  if (draw_.work == Phase::kIdle) return std::make_unique<Idle>(draw_, team_, first_rank_);
  if (draw_.work == Phase::kReducer) return std::make_unique<Steps>(draw_, team_, first_rank_);
  return std::make_unique<AllReduce>(draw_, team_, first_rank_);
}

Outcome Work::run(const WorkHooks& hooks) {
  const bool goes_on = worker_ != nullptr;
  if (!goes_on) worker_ = make();
  Outcome outcome = goes_on ? worker_->go_on(hooks) : worker_->begin();
  const bool begun = goes_on || (outcome.status == WEFT_OK && outcome.wrong.empty());
  if (outcome.status == WEFT_OK && outcome.wrong.empty()) outcome = rounds(hooks);
  if (!begun || draw_.work != Phase::kReducer || !draw_.rebind) worker_.reset();
  return outcome;
}

Outcome Work::rounds(const WorkHooks& hooks) {
  Outcome outcome;
  const Fault* fault = team_.generation == 0 ? draw_.of(first_rank_) : nullptr;
  if (fault != nullptr && fault->trigger != Trigger::kIteration) fault = nullptr;
  for (uint64_t number = 0; outcome.status == WEFT_OK && outcome.wrong.empty(); number++) {
    if (fault != nullptr && fault->iteration == number) {
      hooks.fault_comes();
      if (fault->action == Action::kExit) std::exit(0);
      if (fault->action == Action::kLeave) {
        outcome.left = true;
        return outcome;
      }
      if (fault->action == Action::kAbort) weft_comm_abort(team_.comm, "the fault of this run");
      if (fault->action == Action::kHook) worker_->fail_next();
    }
    // An idle rank takes part in nothing until it is asked to end.
    const bool told = hooks.asked_to_end();
    if (told || draw_.work != Phase::kIdle) {
      bool all = false;
      outcome = all_told(team_, told, &all);
      if (outcome.status != WEFT_OK || all) break;
    }
    outcome = worker_->round(number);
  }
  return outcome;
}

}  // namespace faults
