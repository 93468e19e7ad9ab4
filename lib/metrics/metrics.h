// The metrics of a context: its objects register a function that adds their samples. Threads: any thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "metrics/text.h"

namespace weft {

class Metrics : public std::enable_shared_from_this<Metrics> {
 public:
  // Adds samples. Called on any thread, with the mutex of the metrics held: it must neither wait nor create
  // or destroy a source.
  using Describe = std::function<void(MetricsText*)>;

  // Registers a function until it is destroyed, which waits for a call of the function. The last samples are
  // kept for later texts.
  class Source {
   public:
    Source(std::shared_ptr<Metrics> metrics, Describe describe);
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

   private:
    const std::shared_ptr<Metrics> metrics_;
    std::list<Describe>::iterator entry_;
  };

  std::unique_ptr<Source> add(Describe describe) {
    return std::make_unique<Source>(shared_from_this(), std::move(describe));
  }
  // Returns the samples of all sources, and the last ones of kEnded sources that were destroyed.
  std::string text();

  static constexpr size_t kEnded = 16;

 private:
  std::mutex mutex_;
  std::list<Describe> sources_;    // guarded by mutex_
  std::deque<MetricsText> ended_;  // guarded by mutex_
};

}  // namespace weft
