#include "comm/shrink.h"

#include <set>

#include "base/text.h"
#include "comm/context.h"

namespace weft {

Status shrink(const std::shared_ptr<Comm>& failed, const ShrinkOptions& options, const CreateGeneration& form,
              std::shared_ptr<Comm>* survivors) {
  if (!failed->failed()) {
    return Status::error(Code::kState,
                         "shrink: this communicator has not failed; only failed ones can be shrunk, so call "
                         "weft_comm_abort first");
  }
  Context& context = failed->context();
  const Generation& generation = failed->generation();
  const Deadline deadline =
      Deadline::after(context.clock(), options.timeout_ms, failed->options().init_timeout_ms);
  // Outstanding operations complete first, so that nothing writes into their buffers any more.
  if (!context.engine().wait([&] { return failed->quiet(); }, deadline)) {
    return Status::error(Code::kTimeout,
                         cat("shrink: operations of the failed communicator on rank ", failed->rank(),
                             " did not complete in time; a longer weft_shrink_options.timeout_ms may help"),
                         Evidence::kDeadline);
  }
  std::set<int> accused;
  const Status failure = failed->failure();
  for (const int rank : failure.info().ranks) {
    if (rank >= 0 && rank < failed->size()) accused.insert(generation.members[static_cast<size_t>(rank)]);
  }
  for (;;) {
    Generation next;
    WEFT_TRY(generation.generations->agree(generation.number, options.last_of_two, accused, deadline, &next));
    const std::unique_ptr<Exchange> exchange = generation.generations->exchange(next, generation.number);
    const Status formed = form(*exchange, next, deadline, survivors);
    if (formed.ok()) return {};
    // The next agreement leaves out a survivor that is lost now. All survivors decide by the failure that was
    // exchanged, so either all of them start again or none does.
    exchange->fail(formed);
    const bool again = formed.code() == Code::kPeerFailed || exchange->check().code() == Code::kPeerFailed;
    if (deadline.expired(context.clock()) || !again) {
      return formed.with_prefix("shrink (ranks are those of the communicator that is shrunk): ");
    }
    context.log().info(
        cat("rank ", failed->rank(), ": shrink starts again without the lost ranks: ", formed.text()));
  }
}

}  // namespace weft
