#include "comm/context.h"

#include <algorithm>
#include <utility>

#include "comm/comm.h"

namespace weft {

Status Context::create(ContextOptions options, std::shared_ptr<Context>* context) {
  auto made = std::make_shared<Context>(std::move(options));
  WEFT_TRY(made->log_.add(made->options_.environment_log));
  WEFT_TRY(made->engine_.start(made->options_.thread_start));
  const ContextOptions& used = made->options_;
  if (!used.metrics_file.path.empty()) {
    WEFT_TRY(MetricsFile::start(used.metrics_file, made->metrics_, made->log_, used.thread_start,
                                &made->metrics_file_));
  }
  *context = std::move(made);
  return {};
}

Context::Context(ContextOptions options)
    : options_(std::move(options)),
      clock_(options_.clock),
      log_(options_.log_sink, options_.log_level),
      gate_(options_.accelerator, options_.stream_waits),
      callbacks_(options_.mode, options_.thread_start),
      engine_((clock_ ? *clock_ : *(clock_ = std::make_shared<SystemClock>())), options_.mode),
      stages_(clock_, options_.thread_start) {
  if (!options_.clock) system_clock_ = static_cast<SystemClock*>(clock_.get());
  interrupt_ = options_.interrupt;
  interrupt_.clock = clock_.get();
}

Context::~Context() {
  (void)guarded([this] { return close(); }).ok();
}

Status Context::close() {
  std::vector<std::weak_ptr<Comm>> comms;
  {
    const std::lock_guard lock(mutex_);
    comms.swap(comms_);
  }
  Status status;
  for (const auto& weak : comms) {
    const auto comm = weak.lock();
    if (!comm) continue;
    if (Status closed = comm->close(true); status.ok()) status = std::move(closed);
  }
  // Reducer steps that were left to streams have failed. They end once no device copies for them any more,
  // and after the engine stops no thread would poll them.
  engine_.wait([&] { return !gate_.holding(); },
               Deadline::after(*clock_, WEFT_DEFAULT_DESTROY_TIMEOUT_MS, 0));
  engine_.stop();
  if (Status stopped = stages_.stop(WEFT_DEFAULT_DESTROY_TIMEOUT_MS); status.ok())
    status = std::move(stopped);
  if (Status drained = callbacks_.drain(*clock_); status.ok()) status = std::move(drained);
  metrics_file_.reset();  // writes the last numbers
  return status;
}

void Context::add_comm(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard lock(mutex_);
  comms_.erase(std::remove_if(comms_.begin(), comms_.end(), [](const auto& weak) { return weak.expired(); }),
               comms_.end());
  comms_.push_back(comm);
}

std::vector<std::shared_ptr<Comm>> Context::comms() {
  std::vector<std::shared_ptr<Comm>> living;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : comms_) {
    if (auto comm = weak.lock(); comm != nullptr) living.push_back(std::move(comm));
  }
  return living;
}

void Context::measure_clocks(bool wait) {
  constexpr int64_t kPatienceMs = 500;
  std::vector<std::shared_ptr<Comm>> living = comms();
  std::erase_if(living, [](const auto& comm) { return comm->closed(); });
  for (const auto& comm : living) comm->clock_probe().ask();
  const Deadline deadline = Deadline::after(*clock_, kPatienceMs, 0);
  for (const auto& comm : living) {
    if (wait) comm->clock_probe().wait(deadline);
  }
}

Status Context::probe_accelerator(std::string* detail) {
  if (options_.accelerator == nullptr) {
    if (!options_.accelerator_status.ok()) return options_.accelerator_status;
    return Status::error(Code::kUnavailable, "the context was created without an accelerator");
  }
  return options_.accelerator->probe(detail);
}

void Context::keep(std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(object));
}

}  // namespace weft
