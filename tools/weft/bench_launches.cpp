// weft bench launches: communicates the same bytes as ever smaller tensors, which are all launched before one
// wait. It measures the cost of splitting: Li et al., PyTorch Distributed (VLDB 2020), section 2.3 and figure
// 2.
#include <algorithm>
#include <vector>

#include "measure.h"
#include "names.h"
#include "pattern.h"

namespace {

// Launches one operation after the other over the whole buffer; the last one takes the rest.
class Launches {
 public:
  Launches(Job& job, const BenchOptions& options, std::byte* data, uint64_t count, uint64_t each)
      : job_(job),
        data_(data),
        dtype_(parse_dtype(options.dtype)),
        op_(parse_op(options.op)),
        count_(count),
        each_(each),
        requests_((count + each - 1) / each) {}
  uint64_t tensors() const { return requests_.size(); }

  void run() {
    const uint64_t element = dtype_size(dtype_);
    for (uint64_t i = 0; i < requests_.size(); i++) {
      std::byte* const at = data_ + i * each_ * element;
      const uint64_t n = std::min(each_, count_ - i * each_);
      job_.check(weft_all_reduce(job_.comm(), at, at, n, dtype_, op_, nullptr, &requests_[i]),
                 "weft_all_reduce");
    }
    // Operations complete in order, so only this wait blocks.
    job_.check(weft_request_wait(requests_.back(), WEFT_TIMEOUT_INFINITE), "weft_request_wait");
    for (weft_request*& request : requests_) {
      job_.check(weft_request_wait(request, WEFT_TIMEOUT_INFINITE), "weft_request_wait");
      job_.check(weft_request_release(&request), "weft_request_release");
    }
  }

 private:
  Job& job_;
  std::byte* const data_;
  const int32_t dtype_;
  const int32_t op_;
  const uint64_t count_;
  const uint64_t each_;
  std::vector<weft_request*> requests_;
};

}  // namespace

std::vector<Result> bench_launches(Job& job, const BenchOptions& options) {
  const int32_t dtype = parse_dtype(options.dtype), op = parse_op(options.op);
  const uint64_t element = dtype_size(dtype);
  const uint64_t count = std::max<uint64_t>(parse_bytes(options.total) / element, 1);
  const Buffer buffer(job, count * element, options.arena);
  const Tile mine = Tile::of_rank(dtype, op, job.rank()), reduced = Tile::reduced(dtype, op, job.size(), 1);
  std::vector<Result> results;
  for (const std::string& size : options.sizes) {
    const uint64_t each = std::clamp<uint64_t>(parse_bytes(size) / element, 1, count);
    Launches launches(job, options, buffer.data(), count, each);
    Result& result = results.emplace_back();
    const Subject subject{[&](uint64_t round) { mine.fill(buffer.data(), count, round); },
                          [&] { launches.run(); },
                          [&](uint64_t round) {
                            if (round == 0) result.algorithm = job.info().algorithm;
                            return reduced.matches(buffer.data(), count, round);
                          }};
    result.work = "launches of " + bytes_text(each * element);
    result.details = std::to_string(launches.tensors()) + " tensors, " + options.op + " " + options.dtype +
                     (options.arena ? " arena" : " private");
    result.bytes = count * element;
    result.count = each;
    const double ranks = job.size();
    result.bus_factor = 2 * (ranks - 1) / ranks;
    result.times = measure(job, subject, options.iterations != 0 ? options.iterations : 10, options.warmup);
  }
  return results;
}
