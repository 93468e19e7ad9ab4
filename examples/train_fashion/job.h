// The demo's part in a job: owns Weft's objects, and throws its errors as exceptions.
#pragma once

#include <weft/weft.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "options.h"
#include "schedule.h"

// Weft's error text, with the failed call.
class WeftError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A context and a communicator of all ranks, which the environment describes.
class Job {
 public:
  explicit Job(const Options& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  weft_comm* comm() { return comm_; }
  weft_context* context() { return context_; }

  // Throws WeftError unless status is WEFT_OK.
  void check(weft_status status, const char* call) const;
  // Returns every rank's values, in rank order; count is equal on all ranks.
  std::vector<uint64_t> all_gather(uint64_t mine);
  std::vector<float> all_gather(const std::vector<float>& mine);
  uint64_t sum(uint64_t mine);
  uint64_t from_rank_0(uint64_t value);
  void barrier();
  // Returns what moved this rank's bytes, by the counters: "shm", the backend's name, or "none".
  std::string backend() const;
  // Returns each rank's host if Weft adds a host's gradients before it sends sums between hosts, else 0 for
  // all ranks. Hosts count from 0 by their lowest ranks. Empty if the hosts are unknown. Collective.
  std::vector<int> hosts();

 private:
  weft_context* context_ = nullptr;
  weft_comm* comm_ = nullptr;
  int32_t rank_ = 0;
  int32_t size_ = 1;
};

struct StepTimes {
  double exposed_ms = 0;    // communication that is not hidden by computation
  bool overlapped = false;  // a bucket was launched before the last gradient was ready
};

// Sums the gradients of one model over the job.
class GradientSync {
 public:
  // In view mode the model's gradients become pointers into Weft's memory.
  GradientSync(Job& job, Model& model, const Options& options, const Schedule& schedule);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  void begin();
  void ready(uint64_t param);
  // On return the gradients are the mean over all ranks.
  StepTimes finish();
  // Called after the update. Returns false if replicas differ until local SGD averages the next time.
  bool average();
  uint32_t bucket_count() const { return bucket_count_; }
  // Returns the compression ratio: bytes of plain all-reduces over sent bytes.
  double ratio() const;
  uint64_t sent_bytes() const;  // so far

 private:
  void make_averager(const std::vector<weft_param>& params, const Schedule& schedule, uint32_t start);
  void check(weft_status status, const char* call) const;
  weft_bucket_info bucket(uint32_t index) const;

  Job& job_;
  Model& model_;
  const bool view_mode_;
  weft_hook* hook_ = nullptr;
  weft_reducer* reducer_ = nullptr;
  weft_averager* averager_ = nullptr;
  uint64_t finished_ = 0;    // steps
  uint64_t local_from_ = 0;  // the first step after which replicas differ
  uint64_t averaged_ = 0;    // bytes sent for averages
  uint32_t bucket_count_ = 0;
};
