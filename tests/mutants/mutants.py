"""What run.py does wrong on purpose: one substitution in lib/sync each, which some test must notice.

A mutant is a slip that somebody could make. `old` stands exactly once in the file; where the code has moved on, move
the mutant along. `test` is the program that is expected to notice, which is asked first.
"""
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # in lib/sync
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant("wrong divisor: micro-batches are forgotten", "opening.cpp",
           "opening.divisor = static_cast<double>(size) * micro_batches;",
           "opening.divisor = static_cast<double>(size) + 0 * micro_batches;", "property_reducer"),
    Mutant("wrong divisor: of all ranks where it is to be of the active ones", "opening.cpp",
           "rules.divide_by == WEFT_DIVIDE_ACTIVE && any ?", "rules.divide_by == WEFT_DIVIDE_ACTIVE && !any ?",
           "unit_reducer_uneven"),
    Mutant("weights are ignored", "opening.cpp",
           "records[static_cast<size_t>(rank)].weight * ranks / weights;", "weights / weights;", "unit_reducer_uneven"),
    Mutant("the lowest rank with data passes for the highest", "opening.cpp",
           "    opening->last_active = static_cast<int>(r);",
           "    if (opening->last_active < 0) opening->last_active = static_cast<int>(r);", "unit_reducer_uneven"),
    Mutant("missing zero-fill of an absent parameter", "absent.cpp",
           "if (leave_out(param, step.stamp())) clear_place(s.buckets->place(param));",
           "leave_out(param, step.stamp());", "property_reducer"),
    Mutant("missing zero-fill on a rank without data", "step.cpp",
           "if (s_.presence->absent(params[i], stamp_)) clear_place(", "if (i > params.size()) clear_place(",
           "property_reducer"),
    Mutant("a rank that has joined counts as active", "absent.cpp",
           "accumulated ? OpeningRecord::kData : 0;", "OpeningRecord::kData;", "property_reducer"),
    Mutant("launch order: the list of buckets is not reversed", "plan.cpp",
           "if (as_listed) std::reverse(", "if (!as_listed) std::reverse(", "unit_plan"),
    Mutant("launch order: a bucket is launched before it is full", "step.cpp",
           "|| !s_.readiness->full(launched_)) return false;", "|| s_.readiness->missing().size() > 1) return false;",
           "unit_reducer"),
    Mutant("collectives run bucket after bucket, not in the wavefront", "schedule.cpp",
           "    for (size_t k = 0; k < most && k <= wave; k++) {",
           "    for (size_t k = std::min<size_t>(wave + 1, most); k-- > 0;) {", "unit_schedule"),
    Mutant("stale absent flags: what was absent once stays absent", "presence.h",
           "return absent_[param].load(std::memory_order_relaxed) == stamp;",
           "return absent_[param].load(std::memory_order_relaxed) + 0 * stamp != 0;", "property_reducer"),
    Mutant("stale map: what the last step found absent everywhere holds", "step.cpp",
           "  mapped_ = heard_ = ruled_ = false;\n", "  heard_ = ruled_ = false;\n", "property_reducer"),
    Mutant("every parameter is said to be present here", "presence.h",
           "uint64_t{!absent(i, stamp)}", "uint64_t{stamp != 0}", "property_reducer"),
    Mutant("a gradient that is absent everywhere is overwritten", "step_results.cpp",
           "if (!nowhere && count > 0 && s_.gradients", "if (count > 0 && s_.gradients",
           "property_reducer"),
    Mutant("a bucket with one absent parameter is left out whole", "step.cpp",
           "begun_.fixed && running.absent == params.size();", "begun_.fixed && running.absent > 0;",
           "property_reducer"),
    Mutant("accumulation is not added, the last gradient replaces it", "reducer.cpp",
           "s.presence->accumulated(param));\n", "false);\n", "unit_reducer"),
    Mutant("accumulation goes on into the next window", "reducer.cpp",
           "    s.presence->next_window();\n", "", "unit_reducer"),
    Mutant("a re-plan loses what local steps have accumulated", "replan.cpp",
           "if (old.copy && !old.presence->accumulated(i)) continue;", "if (old.copy) continue;", "property_reducer"),
    Mutant("uses are miscounted: the last but one hands the gradient over", "uses.h",
           "if (learning_ || count < needed_[param]) return Count::kEarlier;",
           "if (learning_ || count + 1 < needed_[param]) return Count::kEarlier;", "unit_reducer_uses"),
    Mutant("wait_param returns early", "step.h",
           "return running_[bucket].done.load(std::memory_order_acquire) == stamp;",
           "return running_[bucket].done.load(std::memory_order_acquire) <= stamp;", "unit_reducer_uses"),
    Mutant("a gradient can be ready twice", "readiness.h",
           "if (static_cast<int32_t>(last - stamp) >= 0 && last != 0) return false;",
           "if (static_cast<int32_t>(last - stamp) > 0 && last != 0) return false;", "unit_reducer_errors"),
    Mutant("a step is committed before the others have finished it", "step.cpp",
           "s_.comm->rank())) commit(begun_.number);", "s_.comm->rank())) commit(begun_.number + 1);",
           "unit_reducer_commit"),
    Mutant("of what is retained the first piece alone is kept", "step.cpp",
           "std::copy_n(at, bytes, copy + made_up_);", "std::copy_n(at, bytes, copy);", "unit_reducer_commit"),
    Mutant("buffers stay what they were", "prelude.cpp",
           "if (root >= 0 && root != s.comm->rank()) s.prelude->arrive(", "if (root > 99) s.prelude->arrive(", "unit_prelude"),
    Mutant("buffers come from the lowest rank with data", "prelude.cpp",
           "if (root_ == WEFT_ROOT_LAST_ACTIVE) return opening.last_active;",
           "if (root_ == WEFT_ROOT_LAST_ACTIVE) return opening.first_active;", "unit_prelude"),
    Mutant("what a rank that has joined holds counts when values are compared", "step.cpp",
           "if (std::binary_search(opening_.joined.begin(), opening_.joined.end(), r)) continue;", "", "unit_prelude"),
    Mutant("a parameter without a bucket is awaited", "readiness.h",
           "if (plan_.bucket_of[i] == kNoBucket) continue;", "", "unit_values"),
    Mutant("averages over a hook's own communicator divide by the reducer's ranks", "step.cpp",
           "return opening_.divisor / s_.comm->size() * s_.hook->comm()->size();", "return opening_.divisor;",
           "capi_local_sgd"),
    Mutant("a hook is not told of a step without data", "step.cpp",
           "empty ? s_.hook->join(view) : Status();", "empty ? Status() : Status();", "unit_reducer_hooks"),
    Mutant("the first average comes before the warm-up's rhythm", "averager.cpp",
           "(step - warmup_) % level->period", "step % level->period", "capi_local_sgd"),
]
