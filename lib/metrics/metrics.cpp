#include "metrics/metrics.h"

#include <utility>

#include "base/guard.h"

namespace weft {

Metrics::Source::Source(std::shared_ptr<Metrics> metrics, Describe describe) : metrics_(std::move(metrics)) {
  const std::lock_guard lock(metrics_->mutex_);
  entry_ = metrics_->sources_.insert(metrics_->sources_.end(), std::move(describe));
}

Metrics::Source::~Source() {
  const std::lock_guard lock(metrics_->mutex_);
  // Without memory the last samples are lost.
  (void)guarded_run([&] {
    MetricsText last;
    (*entry_)(&last);
    metrics_->ended_.push_back(std::move(last));
    if (metrics_->ended_.size() > kEnded) metrics_->ended_.pop_front();
  }).ok();
  metrics_->sources_.erase(entry_);
}

std::string Metrics::text() {
  MetricsText all;
  const std::lock_guard lock(mutex_);
  for (const MetricsText& ended : ended_) all.append(ended);
  for (const Describe& describe : sources_) describe(&all);
  return all.text();
}

}  // namespace weft
