// Data-parallel training of a small network on Fashion-MNIST. Every rank computes the gradients of its own
// images, Weft averages them while backward still runs, and every rank makes the same update.
//
//   weft run -n 2 -- train_fashion          (make demo)
//
// The demo checks its claims: the ranks' local gradients differ, and parameters are bitwise equal after every
// epoch. The loss curve equals that of one process that folds the same micro-batches in rank order.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "data.h"
#include "job.h"
#include "model.h"
#include "options.h"
#include "reference.h"
#include "schedule.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Number>
void write_lines(const std::string& path, const std::vector<Number>& values) {
  std::ofstream file(path);
  for (const Number value : values) file << std::hexfloat << value << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write the file " + path);
}

constexpr uint32_t kEvaluationBatch = 500;

// One rank's training.
class Trainer {
 public:
  Trainer(Job& job, const Options& options, const Dataset& data)
      : job_(job),
        options_(options),
        schedule_(options, data.count, job.size()),
        model_(options.seed, std::max(schedule_.batch, kEvaluationBatch)),
        shard_(data, job.rank(), job.size(), options.seed),
        sync_(job, model_, options, schedule_) {}

  // Trains until the end or until replicas differ; returns false if they do.
  bool train();
  double accuracy(const Dataset& test);

  const std::vector<float>& losses() const { return losses_; }
  const std::vector<uint64_t>& sent() const { return sent_; }
  uint64_t parameter_hash() const { return model_.hash(); }
  uint32_t bucket_count() const { return sync_.bucket_count(); }
  double ratio() const { return sync_.ratio(); }
  size_t overlapped_steps() const { return overlapped_; }
  double step_ms() const { return median(step_ms_); }
  double exposed_ms() const { return median(exposed_ms_); }
  double images_per_step() const { return static_cast<double>(schedule_.batch) * job_.size(); }

 private:
  void step(uint32_t step);
  void print_progress(uint32_t step);
  void expect_local_gradients_differ(uint64_t hash);
  bool replicas_identical(uint32_t epoch);

  Job& job_;
  const Options& options_;
  const Schedule schedule_;
  Model model_;
  Shard shard_;
  GradientSync sync_;
  std::vector<float> losses_;
  std::vector<double> step_ms_, exposed_ms_;
  std::vector<uint64_t> sent_;  // after each step
  bool averaged_ = true;        // replicas must be equal
  size_t overlapped_ = 0;
};

void Trainer::step(uint32_t step) {
  const auto start = Clock::now();
  shard_.batch(step % schedule_.steps, schedule_.batch, model_.pixels(), model_.labels());
  losses_.push_back(model_.forward(schedule_.batch).loss);
  uint64_t local_hash = 0;
  sync_.begin();
  model_.backward(schedule_.batch, [&](uint64_t index) {
    const Param& param = model_.params()[index];
    if (step == 0) local_hash ^= hash_bytes(param.gradient, param.count * sizeof(float)) + index;
    sync_.ready(index);
  });
  const StepTimes times = sync_.finish();
  model_.step(schedule_.rate(step));
  averaged_ = sync_.average();
  sent_.push_back(sync_.sent_bytes());
  step_ms_.push_back(seconds_since(start) * 1e3);
  exposed_ms_.push_back(times.exposed_ms);
  overlapped_ += times.overlapped;
  if (step == 0) expect_local_gradients_differ(local_hash);
}

// Checks that local gradients differ. Otherwise equal replicas would prove nothing.
void Trainer::expect_local_gradients_differ(uint64_t hash) {
  std::vector<uint64_t> hashes = job_.all_gather(hash);
  std::sort(hashes.begin(), hashes.end());
  if (std::adjacent_find(hashes.begin(), hashes.end()) != hashes.end()) {
    throw std::runtime_error(
        "two ranks computed equal gradients in the first step, although their images should be disjoint");
  }
}

bool Trainer::replicas_identical(uint32_t epoch) {
  if (!options_.hook_sends() || !averaged_) return true;  // equality is not expected
  const std::vector<uint64_t> hashes = job_.all_gather(model_.hash());
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    if (job_.rank() == 0) {
      std::printf("epoch %u: the parameters of rank %zu differ from those of rank 0\n", epoch + 1, rank);
    }
    return false;
  }
  return true;
}

void Trainer::print_progress(uint32_t step) {
  const auto recent = std::min<size_t>(losses_.size(), options_.log_every);
  double loss = 0, ms = 0, exposed = 0;
  for (size_t i = losses_.size() - recent; i < losses_.size(); ++i) {
    loss += static_cast<double>(losses_[i]);
    ms += step_ms_[i];
    exposed += exposed_ms_[i];
  }
  const double count = static_cast<double>(recent);
  std::printf("epoch %u/%u  step %u/%u  loss %.4f  images/s %.0f  exposed communication %.3f ms\n",
              step / schedule_.steps + 1, schedule_.epochs, step % schedule_.steps + 1, schedule_.steps,
              loss / count, images_per_step() * count / ms * 1e3, exposed / count);
}

bool Trainer::train() {
  for (uint32_t epoch = 0; epoch < schedule_.epochs; ++epoch) {
    shard_.start_epoch(epoch);
    for (uint32_t i = 0; i < schedule_.steps; ++i) {
      const uint32_t number = epoch * schedule_.steps + i;
      step(number);
      const bool report = (i + 1) % options_.log_every == 0 || i + 1 == schedule_.steps;
      if (report && job_.rank() == 0) print_progress(number);
    }
    if (epoch == 0 && options_.flip_bit_rank == job_.rank()) {
      uint32_t bits = 0;
      std::memcpy(&bits, model_.params()[0].value, sizeof bits);
      bits ^= 1;
      std::memcpy(model_.params()[0].value, &bits, sizeof bits);
    }
    if (!replicas_identical(epoch)) return false;
  }
  return true;
}

// Returns the accuracy; every rank evaluates its share of the test images.
double Trainer::accuracy(const Dataset& test) {
  const Shard all(test, 0, 1, 0);
  uint64_t correct = 0;
  const uint32_t batches = test.count / kEvaluationBatch;
  for (uint32_t i = static_cast<uint32_t>(job_.rank()); i < batches;
       i += static_cast<uint32_t>(job_.size())) {
    all.batch(i, kEvaluationBatch, model_.pixels(), model_.labels());
    correct += model_.forward(kEvaluationBatch).correct;
  }
  return static_cast<double>(job_.sum(correct)) / (uint64_t{batches} * kEvaluationBatch);
}

// Returns true if all ranks' losses of all steps, and the parameters, are bitwise equal to the reference,
// which rank 0 computes. After every step it tells the others the result so far, so that no rank waits for
// longer than a step.
bool curve_matches(Job& job, const Options& options, const Dataset& data, const std::vector<int>& hosts,
                   const Trainer& trainer) {
  const std::vector<float> all = job.all_gather(trainer.losses());
  const size_t steps = trainer.losses().size();
  bool equal = true;
  if (job.rank() == 0) {
    std::printf("checking: one process trains on the same %d micro-batches per step\n", job.size());
    const uint64_t hash = train_reference(options, data, hosts, [&](uint32_t step, const float* losses) {
      for (int rank = 0; rank < job.size() && equal; ++rank) {
        const float& mine = all[static_cast<size_t>(rank) * steps + step];
        equal = std::memcmp(&mine, &losses[rank], sizeof mine) == 0;
        if (!equal) {
          std::printf("step %u: rank %d had loss %.9g, the reference has %.9g\n", step, rank,
                      static_cast<double>(mine), static_cast<double>(losses[rank]));
        }
      }
      job.from_rank_0(equal);
    });
    equal = equal && hash == trainer.parameter_hash();
  } else {
    for (size_t step = 0; step < steps; ++step) job.from_rank_0(0);
  }
  return job.from_rank_0(equal) != 0;
}

int reference_main(const Options& options) {
  const Dataset data = load_fashion(options.data, "train", options.limit);
  std::vector<float> curve;
  const int ranks = options.reference_ranks;
  const std::vector<int> one_host(static_cast<size_t>(ranks), 0);
  const uint64_t hash = train_reference(options, data, one_host, [&](uint32_t, const float* losses) {
    curve.insert(curve.end(), losses, losses + ranks);
  });
  if (!options.losses.empty()) write_lines(options.losses, curve);
  std::printf("weft demo: reference=%d epochs=%u last_loss=%a parameters=%016llx\n", ranks, options.epochs,
              static_cast<double>(curve.back()), static_cast<unsigned long long>(hash));
  return 0;
}

int demo_main(const Options& options) {
  Job job(options);
  const Dataset data = load_fashion(options.data, "train", options.limit);
  const Dataset test = load_fashion(options.data, "t10k", 0);
  if (!options.trace.empty()) job.check(weft_trace_start(job.context(), 0), "weft_trace_start");
  Trainer trainer(job, options, data);

  const auto start = Clock::now();
  const bool identical = trainer.train();
  const double seconds = seconds_since(start);
  if (!options.trace.empty() && job.rank() == 0) {
    job.check(weft_trace_write(job.context(), options.trace.c_str()), "weft_trace_write");
  }
  if (!options.losses.empty() && job.rank() == 0) write_lines(options.losses, trainer.losses());
  if (!options.sent.empty() && job.rank() == 0) write_lines(options.sent, trainer.sent());
  const double accuracy = trainer.accuracy(test);
  const std::string backend = job.backend();

  // Hooks that round gradients have a different curve.
  const bool checked = options.check && identical && options.hook_is_exact();
  // The order of the additions depends on which ranks share a host.
  const std::vector<int> hosts = checked ? job.hosts() : std::vector<int>();
  const bool exact = options.hook_is_exact() && (!checked || !hosts.empty());
  if (checked && !exact && job.rank() == 0) {
    std::printf(
        "not checking the loss curve: the order of additions depends on the ranks' hosts, which are "
        "unknown\n");
  }
  const bool matches = !checked || !exact || curve_matches(job, options, data, hosts, trainer);
  if (job.rank() == 0) {
    std::printf(
        "trained %.1f s: %.0f images/s, %u buckets a step, step %.3f ms, exposed communication %.3f ms; "
        "a bucket was launched before the last gradient was ready in %zu of %zu steps\n",
        seconds, trainer.images_per_step() * static_cast<double>(trainer.losses().size()) / seconds,
        trainer.bucket_count(), trainer.step_ms(), trainer.exposed_ms(), trainer.overlapped_steps(),
        trainer.losses().size());
    if (!options.hook_sends()) {
      std::printf("hook %s sent nothing\n", options.hook.c_str());
    } else if (!options.hook.empty() && job.size() > 1) {
      std::printf("hook %s sent %.2f times less than gradients as they are\n", options.hook.c_str(),
                  trainer.ratio());
    }
    std::printf(
        "weft demo: ranks=%d backend=%s epochs=%u accuracy=%.3f replicas=%s curve=%s step_ms=%.0f "
        "exposed_ms=%.0f seconds=%.0f\n",
        job.size(), backend.c_str(), options.epochs, accuracy,
        !options.hook_sends() ? "separate"
        : identical           ? "identical"
                              : "differ",
        !exact     ? "not-exact"
        : !checked ? "unchecked"
        : matches  ? "matches"
                   : "differs",
        trainer.step_ms(), trainer.exposed_ms(), seconds);
    std::fflush(stdout);
  }
  job.barrier();  // no rank ends, and thereby ends the others, before the last line is printed
  return identical && matches ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  Options options;
  try {
    if (!parse_options(argc, argv, &options)) return 0;
    return options.reference_ranks > 0 ? reference_main(options) : demo_main(options);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "train_fashion: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_fashion: %s\n", error.what());
    return 1;
  }
}
