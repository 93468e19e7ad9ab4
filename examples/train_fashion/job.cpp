#include "job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>

namespace {

[[noreturn]] void raise(weft_status status, const char* call, const weft_error& error) {
  throw WeftError(std::string(call) + ": " + weft_status_string(status) +
                  (error.text[0] != '\0' ? ": " + std::string(error.text) : ""));
}

// Prints Weft's log lines to standard error; the library itself prints nothing.
void print_log(void*, int32_t, const char* line) {
  std::fprintf(stderr, "weft: %s\n", line);
}

uint64_t host_name_hash() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return std::hash<std::string_view>{}(name);
}

// Returns the simulated hosts of WEFT_HOSTS, by rank ("0,1,0,1").
std::vector<uint64_t> given_hosts() {
  std::vector<uint64_t> hosts;
  const char* const given = std::getenv("WEFT_HOSTS");
  std::istringstream text(given != nullptr ? given : "");
  for (std::string host; std::getline(text, host, ',');)
    hosts.push_back(std::strtoull(host.c_str(), nullptr, 10));
  return hosts;
}

// Converts labels of hosts to numbers in the order of their lowest ranks; empty if they do not fit the sizes.
std::vector<int> number_hosts(const std::vector<uint64_t>& labels, const std::vector<uint64_t>& local_sizes) {
  if (labels.size() != local_sizes.size()) return {};
  std::vector<int> hosts;
  std::map<uint64_t, int> numbers;
  for (size_t rank = 0; rank < labels.size(); ++rank) {
    const auto ranks = std::count(labels.begin(), labels.end(), labels[rank]);
    if (static_cast<uint64_t>(ranks) != local_sizes[rank]) return {};
    hosts.push_back(numbers.emplace(labels[rank], static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

}  // namespace

Job::Job(const Options& options) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  context_options.log = print_log;
  context_options.log_level = WEFT_LOG_WARN;
  if (const weft_status status = weft_context_create(&context_options, &context_, &error)) {
    raise(status, "weft_context_create", error);
  }
  weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
  if (!options.backend.empty()) comm_options.backend = options.backend.c_str();
  if (const weft_status status = weft_comm_create(context_, &comm_options, &comm_, &error)) {
    weft_context_destroy(&context_);
    raise(status, "weft_comm_create", error);
  }
  weft_comm_rank(comm_, &rank_);
  weft_comm_size(comm_, &size_);
}

Job::~Job() {
  weft_comm_destroy(&comm_);
  weft_context_destroy(&context_);
}

void Job::check(weft_status status, const char* call) const {
  if (status == WEFT_OK) return;
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm_, &error);
  raise(status, call, error);
}

std::vector<uint64_t> Job::all_gather(uint64_t mine) {
  std::vector<uint64_t> all(static_cast<size_t>(size_));
  check(weft_all_gather(comm_, &mine, all.data(), 1, WEFT_DTYPE_U64, nullptr, nullptr), "weft_all_gather");
  return all;
}

std::vector<float> Job::all_gather(const std::vector<float>& mine) {
  std::vector<float> all(mine.size() * static_cast<size_t>(size_));
  check(weft_all_gather(comm_, mine.data(), all.data(), mine.size(), WEFT_DTYPE_F32, nullptr, nullptr),
        "weft_all_gather");
  return all;
}

uint64_t Job::sum(uint64_t mine) {
  check(weft_all_reduce(comm_, &mine, &mine, 1, WEFT_DTYPE_U64, WEFT_OP_SUM, nullptr, nullptr),
        "weft_all_reduce");
  return mine;
}

uint64_t Job::from_rank_0(uint64_t value) {
  check(weft_broadcast(comm_, &value, 1, WEFT_DTYPE_U64, 0, nullptr, nullptr), "weft_broadcast");
  return value;
}

void Job::barrier() {
  check(weft_barrier(comm_, nullptr, nullptr), "weft_barrier");
}

std::string Job::backend() const {
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  check(weft_comm_query(comm_, &info), "weft_comm_query");
  const bool memory = info.bytes_shared + info.bytes_direct > 0;
  const bool transport = info.bytes_sent + info.bytes_received > 0;
  return transport ? info.backend : memory ? "shm" : "none";
}

// Weft detects hosts by mapping memory, and reports only the number of ranks on this host. WEFT_HOSTS, the
// hosts' names and the order of ranks are guesses. Uses a guess that fits the reported numbers.
std::vector<int> Job::hosts() {
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  check(weft_comm_query(comm_, &info), "weft_comm_query");
  const bool by_host = std::string(info.backend).find('+') != std::string::npos;
  const std::vector<uint64_t> local_sizes = all_gather(static_cast<uint64_t>(by_host ? info.local_size : 0));
  const std::vector<uint64_t> names = all_gather(host_name_hash());
  if (!by_host) return std::vector<int>(static_cast<size_t>(size_), 0);
  std::vector<uint64_t> blocks;
  while (blocks.size() < local_sizes.size())
    blocks.insert(blocks.end(), local_sizes[blocks.size()], blocks.size());
  std::vector<uint64_t> given = given_hosts();
  if (!given.empty()) return number_hosts(given, local_sizes);
  const std::vector<int> by_name = number_hosts(names, local_sizes);
  return by_name.empty() ? number_hosts(blocks, local_sizes) : by_name;
}

GradientSync::GradientSync(Job& job, Model& model, const Options& options, const Schedule& schedule)
    : job_(job), model_(model), view_mode_(options.view_mode) {
  std::vector<weft_param> params;
  for (const Param& param : model.params()) {
    weft_param entry = WEFT_PARAM_INIT;
    entry.name = param.name.c_str();
    entry.dtype = WEFT_DTYPE_F32;
    entry.ndim = static_cast<int32_t>(param.shape.size());
    entry.shape = param.shape.data();
    entry.parameter = param.value;
    params.push_back(entry);
  }
  // Small buckets for a small model: the first ones are sent while backward computes the rest.
  const uint64_t limits[] = {32 << 10, 128 << 10};
  weft_reducer_options reducer_options = WEFT_REDUCER_OPTIONS_INIT;
  reducer_options.params = params.data();
  reducer_options.param_count = params.size();
  reducer_options.bucket_limits = limits;
  reducer_options.bucket_limit_count = 2;
  reducer_options.mode = view_mode_ ? WEFT_GRADIENT_VIEW : WEFT_GRADIENT_COPY;
  weft_error error = WEFT_ERROR_INIT;
  if (!options.hook.empty()) {
    weft_hook_params hook_params = WEFT_HOOK_PARAMS_INIT;
    const std::string hook_options = options.hook_options(schedule.total_steps());
    hook_params.options = hook_options.c_str();
    hook_params.error = &error;
    const weft_status made = weft_hook_create(job.context(), options.hook.c_str(), &hook_params, &hook_);
    if (made != WEFT_OK) raise(made, "weft_hook_create", error);
    reducer_options.hook = hook_;
  }
  const weft_status status = weft_reducer_create(job.comm(), &reducer_options, &reducer_, &error);
  weft_hook_destroy(&hook_);  // the reducer keeps what it uses
  if (status != WEFT_OK) raise(status, "weft_reducer_create", error);
  weft_reducer_bucket_count(reducer_, &bucket_count_);
  if (options.hook_is_local()) make_averager(params, schedule, options.hook_start(schedule.total_steps()));
  if (!view_mode_) return;
  for (size_t i = 0; i < params.size(); ++i) {
    void* memory = nullptr;
    check(weft_reducer_grad_view(reducer_, i, &memory), "weft_reducer_grad_view");
    model.params()[i].gradient = static_cast<float*>(memory);
  }
}

// Makes an averager that averages every few steps, including the last step.
void GradientSync::make_averager(const std::vector<weft_param>& params, const Schedule& schedule,
                                 uint32_t start) {
  weft_average_level level = WEFT_AVERAGE_LEVEL_INIT;
  level.period = 8;
  weft_averager_options options = WEFT_AVERAGER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  options.levels = &level;
  options.level_count = 1;
  options.warmup = start + (schedule.total_steps() - 1 - start) % level.period;
  local_from_ = start;
  weft_error error = WEFT_ERROR_INIT;
  const weft_status status = weft_averager_create(job_.comm(), &options, &averager_, &error);
  if (status != WEFT_OK) raise(status, "weft_averager_create", error);
}

GradientSync::~GradientSync() {
  weft_averager_destroy(&averager_);
  weft_reducer_destroy(&reducer_);
}

void GradientSync::check(weft_status status, const char* call) const {
  if (status == WEFT_OK) return;
  weft_error error = WEFT_ERROR_INIT;
  weft_reducer_error(reducer_, &error);
  if (error.text[0] == '\0') weft_comm_error(job_.comm(), &error);
  raise(status, call, error);
}

void GradientSync::begin() {
  check(weft_reducer_begin(reducer_, nullptr), "weft_reducer_begin");
}

void GradientSync::ready(uint64_t param) {
  void* gradient = view_mode_ ? nullptr : model_.params()[param].gradient;
  check(weft_reducer_ready(reducer_, param, gradient, nullptr), "weft_reducer_ready");
}

StepTimes GradientSync::finish() {
  check(weft_reducer_finish(reducer_, nullptr), "weft_reducer_finish");
  weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
  check(weft_reducer_query(reducer_, &stats), "weft_reducer_query");
  StepTimes times;
  times.exposed_ms = static_cast<double>(stats.exposed_ns) * 1e-6;
  weft_reducer_bucket_count(reducer_, &bucket_count_);  // the second step re-plans
  times.overlapped = bucket(0).launch_ns < bucket(bucket_count_ - 1).ready_ns;
  return times;
}

bool GradientSync::average() {
  finished_++;
  if (averager_ == nullptr) return true;
  uint64_t period = 0;
  weft_error error = WEFT_ERROR_INIT;
  const weft_status status = weft_averager_step(averager_, &period, &error);
  if (status != WEFT_OK) raise(status, "weft_averager_step", error);
  const auto ranks = static_cast<uint64_t>(job_.size());
  for (const Param& param : model_.params()) {
    if (period != 0) averaged_ += 2 * param.count * sizeof(float) * (ranks - 1) / ranks;
  }
  return period != 0 || finished_ <= local_from_;
}

uint64_t GradientSync::sent_bytes() const {
  weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
  check(weft_reducer_query(reducer_, &stats), "weft_reducer_query");
  return stats.sent_bytes + averaged_;
}

double GradientSync::ratio() const {
  weft_reducer_stats stats = WEFT_REDUCER_STATS_INIT;
  check(weft_reducer_query(reducer_, &stats), "weft_reducer_query");
  return static_cast<double>(stats.plain_bytes) / static_cast<double>(stats.sent_bytes + averaged_);
}

weft_bucket_info GradientSync::bucket(uint32_t index) const {
  weft_bucket_info info = WEFT_BUCKET_INFO_INIT;
  check(weft_reducer_bucket(reducer_, index, &info, nullptr, 0), "weft_reducer_bucket");
  return info;
}
