#include "reducer/create.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/agreement.h"
#include "reducer/bucket/in_place.h"
#include "reducer/calls/values.h"
#include "reducer/options.h"
#include "reducer/program.h"
#include "reducer/proposal.h"

namespace weft {
namespace {

// Makes the error of a flag that excludes gradients on devices, and names the first of those.
Status needs_host(const char* flag, const Manifest& manifest) {
  uint64_t device = 0;
  while (!manifest.params[device].on_device()) device++;
  return Status::error(
      Code::kUnsupported,
      cat(flag, " needs all gradients in host memory, but that of ", manifest.named(device),
          " is on a CUDA device: remove the flag, or put the parameter into another reducer"));
}

// Fills this rank's proposal and plan, or returns why it cannot.
Status propose(const weft_reducer_options& options, int size, const Hook* hook, Proposal* proposal,
               Plan* plan) {
  WEFT_TRY(check_options(options, size));
  if (hook == nullptr)
    return Status::error(
        Code::kArg,
        "internal: the reducer was created without a hook; this is a bug of Weft, please report it");
  proposal->hook = cat(hook->name(), hook->comm() != nullptr ? " over a communicator of its own" : "");
  const bool whole = (options.flags & WEFT_REDUCER_OWN_WHOLE) != 0;
  const bool shares = hook->copies_suffice() || (hook->takes_shares() && !whole);
  if ((options.flags & WEFT_REDUCER_SHARDED) != 0 && (!shares || hook->comm() != nullptr)) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook, "' cannot be used with WEFT_REDUCER_",
                             whole && hook->comm() == nullptr ? "OWN_WHOLE" : "SHARDED",
                             ": use one that docs/how-to/shard.md names, without a communicator of its own, "
                             "or remove the flag"));
  }
  if ((options.flags & WEFT_REDUCER_NORMS) != 0 && (!hook->equal_results() || hook->comm() != nullptr)) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook,
                             "' cannot be used with WEFT_REDUCER_NORMS: its results can differ between "
                             "ranks, and so would the norms. Use another hook or remove the flag"));
  }
  if (hook->comm() != nullptr && (options.flags & WEFT_REDUCER_UNEVEN) != 0) {
    return Status::error(Code::kUnsupported,
                         cat("hook '", proposal->hook,
                             "' cannot be used with WEFT_REDUCER_UNEVEN: it averages over all ranks of that "
                             "communicator, also those without data. Use another hook or remove the flag"));
  }
  if (proposal->hook.size() > Proposal::kMaxHookName)
    return Status::error(Code::kArg, cat("the name of the hook, with its options, is ", proposal->hook.size(),
                                         " bytes long; at most ", Proposal::kMaxHookName, " are allowed"));
  proposal->options = compared_options(options);
  proposal->limits = bucket_limits({options.bucket_limits, options.bucket_limit_count});
  WEFT_TRY(make_manifest(options.params, options.param_count, options.param_size, &proposal->manifest));
  if (options.reduce_dtype != 0) {
    proposal->manifest.reduce_dtype = static_cast<Dtype>(options.reduce_dtype);
  }
  if (proposal->manifest.has_devices() && (options.flags & WEFT_REDUCER_COPY_STRAYS) != 0) {
    return needs_host("WEFT_REDUCER_COPY_STRAYS", proposal->manifest);
  }
  if (options.check_interval != 0)
    WEFT_TRY(check_values(proposal->manifest, compared_params(proposal->manifest)));
  const std::vector<Param>& params = proposal->manifest.params;
  const auto sparse =
      std::find_if(params.begin(), params.end(), [](const Param& param) { return param.sparse(); });
  if ((options.flags & WEFT_REDUCER_SHARDED) != 0 && sparse != params.end()) {
    return Status::error(Code::kUnsupported,
                         cat(proposal->manifest.named(static_cast<uint64_t>(sparse - params.begin())),
                             " is sparse (WEFT_PARAM_SPARSE), which WEFT_REDUCER_SHARDED does not support: "
                             "put it into another reducer, without that flag"));
  }
  if (!proposal->manifest.uses.empty()) {
    proposal->uses = digest64(std::as_bytes(std::span(proposal->manifest.uses)));
  }
  const bool in_place = options.mode == WEFT_GRADIENT_IN_PLACE;
  if (in_place) WEFT_TRY(check_in_place(proposal->manifest));
  if (options.plan == nullptr) {
    const bool ddp = (options.flags & WEFT_REDUCER_DDP_BUCKETS) != 0;
    *plan = make_plan(proposal->manifest, {.limits = proposal->limits, .order = {}, .ddp = ddp});
    if (in_place) cut_in_place(proposal->manifest, plan);
    return {};
  }
  std::vector<std::vector<uint32_t>> buckets;
  WEFT_TRY(read_plan(*options.plan, proposal->manifest, &buckets));
  WEFT_TRY(make_plan(proposal->manifest, buckets, plan));
  if (in_place) WEFT_TRY(check_adjacent(proposal->manifest, *plan));
  ByteWriter written;
  plan->write(&written);
  proposal->plan = digest64(written.bytes());
  return {};
}

// Sets the program's choices, and what follows from them. The state has the manifest.
void keep_options(const weft_reducer_options& options, ReducerState* state) {
  state->options = kept_options(options);
  state->copy = state->options.mode == WEFT_GRADIENT_COPY;
  if (state->options.mode == WEFT_GRADIENT_IN_PLACE) {
    state->hold = Buckets::Hold::kInPlace;
  } else if (!state->copy) {
    state->hold = Buckets::Hold::kGradients;
  } else if (state->has(WEFT_REDUCER_ACCUMULATE_F32)) {
    state->hold = Buckets::Hold::kWide;
  }
  // The program must choose if the reducer itself reads the gradients of local steps. In a view the program
  // adds them up in any case.
  const std::vector<Param>& params = state->manifest.params;
  const bool reads = state->copy || state->has(WEFT_REDUCER_COPY_STRAYS) ||
                     std::any_of(params.begin(), params.end(), [](const Param& p) { return p.sparse(); });
  if (state->options.accumulation == WEFT_ACCUMULATION_UNSET && !reads)
    state->options.accumulation = WEFT_ACCUMULATION_PROGRAM;
  state->rules = {options.divide_by, state->has(WEFT_REDUCER_STOP_WHEN_EXHAUSTED)};
}

}  // namespace

Status create_state(std::shared_ptr<Comm> comm, const Status& given, const weft_reducer_options& options,
                    std::shared_ptr<Hook> hook, std::shared_ptr<ReducerState>* made) {
  const CommOptions& defaults = comm->options();
  const Deadline deadline =
      Deadline::after(comm->context().clock(), defaults.init_timeout_ms, WEFT_DEFAULT_INIT_TIMEOUT_MS);
  Proposal proposal;
  Plan plan;
  const Status wish = given.ok() ? propose(options, comm->size(), hook.get(), &proposal, &plan) : given;
  const Bytes wanted = wish.ok() ? proposal.write() : Bytes();
  Agreement agreement{*comm, "create the reducer", deadline};
  agreement.opens = true;
  if (wish.ok()) agreement.beside = hook->comm().get();
  WEFT_TRY(agree_on(agreement, wish, wanted, proposal_difference));

  auto state = std::make_shared<ReducerState>();
  state->comm = comm;
  state->hook = std::move(hook);
  // Opened here, where all ranks arrive or none, so that lanes have the same numbers on all ranks.
  const Status opened = open_lanes(state.get());
  state->manifest = std::move(proposal.manifest);
  keep_options(options, state.get());
  state->wanted = wanted;
  state->limits = proposal.limits;
  state->order = std::make_shared<ReadyOrder>(state->manifest.params.size());
  state->plan = std::move(plan);
  if (state->has(WEFT_REDUCER_OWN_WHOLE) && options.plan == nullptr) {
    state->plan = grouped_by_owner(state->manifest, state->plan, comm->size());
  }
  if (state->has(WEFT_REDUCER_NORMS)) state->norms = std::make_shared<Norms>(state->manifest.params.size());
  if (state->has(WEFT_REDUCER_BUFFERS) || options.check_interval != 0) {
    state->pre_step = std::make_shared<PreStep>(state->manifest, state->has(WEFT_REDUCER_BUFFERS),
                                                options.buffers_root, options.check_interval);
  }
  agreement.opens = false;
  Status built = build_program(state.get(), opened, agreement);
  if (built.ok()) built = start_together(agreement, state.get(), options.plan != nullptr);
  if (!built.ok()) {
    close_lanes(*state);
    return built;
  }
  *made = std::move(state);
  return {};
}

}  // namespace weft
