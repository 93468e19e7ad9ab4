// weft bench OP: one collective at several sizes.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "cuda.h"
#include "measure.h"
#include "names.h"
#include "pattern.h"

namespace {

constexpr double kPremulFactor = 0.5;

// The common arguments of one measurement's calls. count: elements of the call, as in weft.h.
struct Case {
  Job& job;
  int32_t dtype;
  int32_t op;
  uint64_t count;
  uint64_t size;  // bytes of an element
  Tile mine, reduced;
  std::byte* src;
  std::byte* dst;
  const weft_coll_options* options;

  uint64_t rank() const { return static_cast<uint64_t>(job.rank()); }
  uint64_t ranks() const { return static_cast<uint64_t>(job.size()); }
  Tile of(uint64_t rank) const { return Tile::of_rank(dtype, op, static_cast<int>(rank)); }
};

// Blocks for different receivers start at different positions of the tile.
uint64_t block_offset(uint64_t receiver, uint64_t round) {
  return receiver * 31 + round;
}

void fill_blocks(const Case& c, uint64_t round) {
  for (uint64_t b = 0; b < c.ranks(); ++b) {
    c.mine.fill(c.src + b * c.count * c.size, c.count, block_offset(b, round));
  }
}

bool holds_all(const Case& c, uint64_t round) {
  for (uint64_t r = 0; r < c.ranks(); ++r) {
    if (!c.of(r).matches(c.dst + r * c.count * c.size, c.count, round)) return false;
  }
  return true;
}

// Describes how a collective is called and checked. blocks_in, blocks_out: the buffer has count
// elements for each rank; otherwise count.
struct Collective {
  bool in_place, blocks_in, blocks_out;
  double (*bus_factor)(double ranks);
  weft_status (*call)(const Case&);
  void (*rewrite)(const Case&, uint64_t round);
  bool (*check)(const Case&, uint64_t round);
};

double whole(double) {
  return 1;
}
double twice_others(double n) {
  return 2 * (n - 1) / n;
}
double others(double n) {
  return (n - 1) / n;
}
void fill_mine(const Case& c, uint64_t round) {
  c.mine.fill(c.src, c.count, round);
}
bool holds_reduced(const Case& c, uint64_t round) {
  return c.reduced.matches(c.dst, c.count, round);
}

// Ranks 0 and 1 send to each other and back; one call is a round trip.
weft_status ping_pong(const Case& c) {
  if (c.rank() > 1 || c.ranks() < 2) return WEFT_OK;
  const int32_t peer = c.rank() == 0 ? 1 : 0;
  const auto send = [&] {
    return weft_send(c.job.comm(), c.src, c.count, c.dtype, peer, c.options, nullptr);
  };
  const auto receive = [&] {
    return weft_recv(c.job.comm(), c.dst, c.count, c.dtype, peer, c.options, nullptr);
  };
  weft_status status = c.rank() == 0 ? send() : receive();
  if (status == WEFT_OK) status = c.rank() == 0 ? receive() : send();
  return status;
}

const std::map<std::string, Collective>& collectives() {
  static const std::map<std::string, Collective> table = {
      {"all_reduce",
       {true, false, false, twice_others,
        [](const Case& c) {
          return weft_all_reduce(c.job.comm(), c.src, c.dst, c.count, c.dtype, c.op, c.options, nullptr);
        },
        fill_mine, holds_reduced}},
      {"reduce",
       {true, false, false, whole,
        [](const Case& c) {
          return weft_reduce(c.job.comm(), c.src, c.dst, c.count, c.dtype, c.op, 0, c.options, nullptr);
        },
        fill_mine, [](const Case& c, uint64_t round) { return c.rank() != 0 || holds_reduced(c, round); }}},
      {"broadcast",
       {true, false, false, whole,
        [](const Case& c) {
          return weft_broadcast(c.job.comm(), c.dst, c.count, c.dtype, 0, c.options, nullptr);
        },
        fill_mine, [](const Case& c, uint64_t round) { return c.of(0).matches(c.dst, c.count, round); }}},
      {"all_gather",
       {false, false, true, others,
        [](const Case& c) {
          return weft_all_gather(c.job.comm(), c.src, c.dst, c.count, c.dtype, c.options, nullptr);
        },
        fill_mine, holds_all}},
      {"reduce_scatter",
       {false, true, false, others,
        [](const Case& c) {
          return weft_reduce_scatter(c.job.comm(), c.src, c.dst, c.count, c.dtype, c.op, c.options, nullptr);
        },
        fill_blocks,
        [](const Case& c, uint64_t round) {
          return c.reduced.matches(c.dst, c.count, block_offset(c.rank(), round));
        }}},
      {"gather",
       {false, false, true, others,
        [](const Case& c) {
          return weft_gather(c.job.comm(), c.src, c.dst, c.count, c.dtype, 0, c.options, nullptr);
        },
        fill_mine, [](const Case& c, uint64_t round) { return c.rank() != 0 || holds_all(c, round); }}},
      {"scatter",
       {false, true, false, others,
        [](const Case& c) {
          return weft_scatter(c.job.comm(), c.src, c.dst, c.count, c.dtype, 0, c.options, nullptr);
        },
        fill_blocks,
        [](const Case& c, uint64_t round) {
          return c.of(0).matches(c.dst, c.count, block_offset(c.rank(), round));
        }}},
      {"all_to_all",
       {false, true, true, others,
        [](const Case& c) {
          return weft_all_to_all(c.job.comm(), c.src, c.dst, c.count, c.dtype, c.options, nullptr);
        },
        fill_blocks,
        [](const Case& c, uint64_t round) {
          for (uint64_t r = 0; r < c.ranks(); ++r) {
            const std::byte* block = c.dst + r * c.count * c.size;
            if (!c.of(r).matches(block, c.count, block_offset(c.rank(), round))) return false;
          }
          return true;
        }}},
      {"send_recv",
       {false, false, false, whole, ping_pong, fill_mine,
        [](const Case& c, uint64_t round) {
          return c.rank() > 1 || c.ranks() < 2 || c.of(1 - c.rank()).matches(c.dst, c.count, round);
        }}},
  };
  return table;
}

// Returns a number of iterations that moves about a quarter of a gigabyte in total, within limits.
uint64_t iterations_for(uint64_t bytes) {
  return std::clamp<uint64_t>((uint64_t{256} << 20) / std::max<uint64_t>(bytes, 1), 20, 5000);
}

// The buffers of a case on a CUDA device. The case itself has copies in host memory, which are written and
// checked.
class OnDevice {
 public:
  // out: 0: the operation is in place.
  OnDevice(const Case& host, uint64_t in, uint64_t out)
      : cuda_(host.job), src_(cuda_, in), in_(in), options_(*host.options), call_(host) {
    if (out > 0) dst_.emplace(cuda_, out);
    out_ = out;
    options_.stream = cuda_.stream();
    call_.options = &options_;
    call_.src = src_.data();
    call_.dst = dst_ ? dst_->data() : src_.data();
  }
  const Case& call() const { return call_; }
  void upload(const Case& host) const { cuda_.upload(src_.data(), host.src, in_); }
  void download(const Case& host) const { cuda_.download(host.dst, call_.dst, dst_ ? out_ : in_); }

 private:
  const Cuda cuda_;
  const CudaBuffer src_;
  std::optional<CudaBuffer> dst_;
  uint64_t in_, out_ = 0;
  weft_coll_options options_;
  Case call_;
};

Result bench_one(Job& job, const BenchOptions& options, const std::string& name, uint64_t bytes) {
  const Collective& collective = collectives().at(name);
  const int32_t dtype = parse_dtype(options.dtype), op = parse_op(options.op);
  const uint64_t size = dtype_size(dtype), ranks = static_cast<uint64_t>(job.size());
  const bool blocks = collective.blocks_in || collective.blocks_out;
  const uint64_t count = std::max<uint64_t>(bytes / size / (blocks ? ranks : 1), 1);
  const uint64_t in = count * size * (collective.blocks_in ? ranks : 1);
  const uint64_t out = count * size * (collective.blocks_out ? ranks : 1);
  const bool arena = options.memory == "arena";
  const Buffer src(job, in, arena);
  const Buffer dst = collective.in_place ? Buffer() : Buffer(job, out, arena);
  weft_coll_options call_options = WEFT_COLL_OPTIONS_INIT;
  call_options.factor = op == WEFT_OP_PREMUL_SUM ? kPremulFactor : 0;
  const Case c{job,
               dtype,
               op,
               count,
               size,
               Tile::of_rank(dtype, op, job.rank()),
               Tile::reduced(dtype, op, job.size(), kPremulFactor),
               src.data(),
               collective.in_place ? src.data() : dst.data(),
               &call_options};
  Result result;
  result.work = name;
  const bool reduces = name.find("reduce") != std::string::npos;
  result.details = (reduces ? options.op + " " : "") + options.dtype + " " + options.memory +
                   (options.algorithm.empty() ? "" : " " + options.algorithm);
  result.bytes = std::max(in, out);
  result.count = count;
  result.bus_factor = collective.bus_factor(static_cast<double>(ranks));
  std::optional<OnDevice> device;
  if (options.memory == "cuda") device.emplace(c, in, collective.in_place ? 0 : out);
  const Subject subject{[&](uint64_t round) {
                          collective.rewrite(c, round);
                          if (device) device->upload(c);
                        },
                        [&] { job.check(collective.call(device ? device->call() : c), name.c_str()); },
                        [&](uint64_t round) {
                          if (round == 0) result.algorithm = job.info().algorithm;
                          if (device) device->download(c);
                          return collective.check(c, round);
                        },
                        shown_name(job, options, name + " of " + bytes_text(result.bytes))};
  const uint64_t iterations = options.iterations != 0 ? options.iterations : iterations_for(result.bytes);
  result.times = measure(job, subject, iterations, options.warmup);
  return result;
}

Result bench_barrier(Job& job, const BenchOptions& options) {
  Result result;
  result.work = "barrier";
  result.details = options.algorithm;
  const Subject subject{[](uint64_t) {}, [&] { job.barrier(); },
                        [&](uint64_t) {
                          result.algorithm = job.info().algorithm;
                          return true;
                        },
                        shown_name(job, options, "barrier")};
  result.times = measure(job, subject, options.iterations != 0 ? options.iterations : 5000, options.warmup);
  return result;
}

}  // namespace

std::vector<Result> bench_collective(Job& job, const BenchOptions& options, const std::string& op) {
  if (op == "barrier") return {bench_barrier(job, options)};
  std::vector<Result> results;
  for (const std::string& size : options.sizes)
    results.push_back(bench_one(job, options, op, parse_bytes(size)));
  return results;
}
