#include "job.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/cores.h"

namespace {

[[noreturn]] void raise(weft_status status, const char* call, const weft_error& error) {
  throw std::runtime_error(std::string(call) + ": " + weft_status_string(status) + ": " + error.text);
}

weft_comm_options options_for(const std::string& backend, int64_t heartbeat_timeout_ms) {
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  if (!backend.empty()) options.backend = backend.c_str();
  options.heartbeat_timeout_ms = heartbeat_timeout_ms;
  return options;
}

}  // namespace

Job::Job(const std::string& backend, int64_t heartbeat_timeout_ms)
    : Job(options_for(backend, heartbeat_timeout_ms)) {}

Job::Job(const weft_comm_options& options) {
  weft_error error = WEFT_ERROR_INIT;
  if (const weft_status status = weft_context_create(nullptr, &context_, &error)) {
    raise(status, "weft_context_create", error);
  }
  if (const weft_status status = weft_comm_create(context_, &options, &comm_, &error)) {
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

weft_comm_info Job::info() const {
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  check(weft_comm_query(comm_, &info), "weft_comm_query");
  return info;
}

void Job::check(weft_status status, const char* call) const {
  if (status == WEFT_OK) return;
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm_, &error);
  raise(status, call, error);
}

std::vector<uint64_t> Job::all_gather(const std::vector<uint64_t>& mine) {
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(size_));
  check(weft_all_gather(comm_, mine.data(), all.data(), mine.size(), WEFT_DTYPE_U64, nullptr, nullptr),
        "weft_all_gather");
  return all;
}

bool Job::all(bool mine) {
  uint64_t value = mine;
  check(weft_all_reduce(comm_, &value, &value, 1, WEFT_DTYPE_U64, WEFT_OP_MIN, nullptr, nullptr),
        "weft_all_reduce");
  return value == 1;
}

Buffer::Buffer(Job& job, uint64_t bytes, bool arena) {
  if (arena) {
    void* memory = nullptr;
    job.check(weft_comm_alloc(job.comm(), bytes, &memory), "weft_comm_alloc");
    data_ = static_cast<std::byte*>(memory);
    arena_of_ = &job;
    return;
  }
  constexpr uint64_t kPage = 4096;
  const uint64_t rounded = (bytes + kPage - 1) / kPage * kPage;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, rounded);  // touches its pages
}

Buffer::~Buffer() {
  if (arena_of_ != nullptr) {
    weft_comm_free(arena_of_->comm(), data_);
  } else {
    std::free(data_);
  }
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(arena_of_, other.arena_of_);
  return *this;
}

int pin_to_core(int rank) {
  const weft::Bytes allowed = weft::allowed_cores();
  if (allowed.empty()) return -1;
  uint64_t wanted = static_cast<uint64_t>(rank) % weft::count_cores(allowed);
  for (uint64_t core = 0; core < 8 * allowed.size(); ++core) {
    if (!weft::has_core(allowed, core) || wanted-- > 0) continue;
    return weft::run_on_core(core) ? static_cast<int>(core) : -1;
  }
  return -1;
}
