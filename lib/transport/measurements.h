// Cache of measurements of this machine that backends make, for later communicators of a context, and the
// program's tuning settings. Owned by the registry. Threads: any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace weft {

class Measurements {
 public:
  // shm_thresholds: in the syntax of WEFT_SHM_THRESHOLDS.
  explicit Measurements(std::string shm_thresholds = {}) : shm_thresholds_(std::move(shm_thresholds)) {}

  const std::string& shm_thresholds() const { return shm_thresholds_; }

  // Returns an empty string if nothing is stored under this key.
  std::string find(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(key);
    return found == kept_.end() ? std::string() : found->second;
  }
  // Stores a value. The cache is bounded, because a context may create any number of communicators with ever
  // new processes.
  void keep(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    if (kept_.size() >= kMost) kept_.clear();
    kept_[key] = value;
  }

 private:
  static constexpr size_t kMost = 256;
  const std::string shm_thresholds_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> kept_;  // guarded by mutex_
};

}  // namespace weft
