#include "inspect.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "base/log.h"
#include "base/text.h"
#include "environment/config.h"
#include "environment/network.h"
#include "finding.h"
#include "gather.h"
#include "measure.h"
#include "reach.h"
#include "rendezvous/store_exchange.h"
#include "settings_check.h"
#include "slow_pairs.h"
#include "weft/job.h"

namespace doctor {
namespace {

using weft::cat;
using weft::Deadline;
using weft::Exchange;
using weft::Status;

constexpr int64_t kTransferMs = 30'000;  // for one message
constexpr size_t kMostAgain = 32;        // slow pairs that are measured again

double time_of_day() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The all-gather of weft_comm_options, over the exchange.
struct Gather {
  Exchange& exchange;
  Deadline deadline;

  static int32_t call(void* self, const void* mine, uint64_t size, void* all) {
    auto& gather = *static_cast<Gather*>(self);
    std::vector<weft::Bytes> parts;
    const weft::ByteView view(static_cast<const std::byte*>(mine), size);
    if (!gather.exchange.all_gather(view, &parts, gather.deadline).ok()) return 1;
    auto* to = static_cast<std::byte*>(all);
    for (const weft::Bytes& part : parts) {
      if (part.size() != size) return 1;
      if (size > 0) std::memcpy(to, part.data(), size);
      to += size;
    }
    return 0;
  }
};

// A rank's part in the inspection of its job. Each step is collective.
class JobInspection {
 public:
  JobInspection(const weft::Environment& environment, int64_t wait_ms, Inspection* result)
      : environment_(environment), wait_ms_(wait_ms), result_(*result) {}

  Status run() {
    WEFT_TRY(meet());
    // Before the facts, which are longer than small packets.
    WEFT_TRY(try_network());
    WEFT_TRY(share_facts());
    WEFT_TRY(compare_clocks());
    // All ranks have the same facts here, so they decide alike.
    if (!has_error(diagnose(result_))) WEFT_TRY(communicate());
    exchange_->finish();
    return {};
  }

 private:
  // The other ranks may take this long to come to the same step: one that tries addresses takes longest.
  Deadline patience() { return Deadline::after(clock_, wait_ms_ + 10 * kTryMs, 0); }

  Status meet() {
    weft::StoreOptions options;
    options.rank = environment_.launch.rank;
    options.size = environment_.launch.size;
    options.store = environment_.store;
    options.external = environment_.store_external;
    options.job = environment_.settings.job;
    options.munge = environment_.launch.launcher == weft::Launcher::kSlurm;
    WEFT_TRY(weft::process_network(&options.network));
    weft::Bytes secret;
    WEFT_TRY(weft::load_secret(environment_.secret, &secret));
    options.key = secret.empty() ? weft::AuthKey::open() : weft::AuthKey::from_secret(secret);
    const Deadline deadline = Deadline::after(clock_, wait_ms_, 0);
    WEFT_TRY(weft::StoreExchange::make(options, clock_, log_, deadline, &exchange_));
    std::vector<weft::Bytes> all;
    return exchange_->all_gather({}, &all, deadline);
  }

  // Tries the addresses if there are several hosts.
  Status try_network() {
    const Facts& mine = result_.ranks.at(0);
    std::vector<std::string> machines;
    WEFT_TRY(all_gather(*exchange_, mine.machine, patience(), &machines));
    const bool one = std::all_of(machines.begin(), machines.end(),
                                 [&](const std::string& machine) { return machine == mine.machine; });
    return one ? Status() : try_addresses(*exchange_, mine, patience(), &result_.reach);
  }

  Status share_facts() {
    std::vector<Facts> all;
    WEFT_TRY(all_gather(*exchange_, result_.ranks.at(0), patience(), &all));
    result_.ranks = std::move(all);
    return {};
  }

  Status compare_clocks() {
    std::vector<weft::Bytes> all;
    WEFT_TRY(exchange_->all_gather({}, &all, patience()));
    const double mine = time_of_day();
    std::vector<double> times;
    WEFT_TRY(all_gather(*exchange_, mine, patience(), &times));
    // The ranks read their clocks at times that differ by less than the two rounds take.
    const double took = time_of_day() - mine;
    std::vector<double> durations;
    WEFT_TRY(all_gather(*exchange_, took, patience(), &durations));
    result_.clock_precision_s = *std::max_element(durations.begin(), durations.end());
    for (const double time : times) result_.clock_offsets_s.push_back(time - times[0]);
    return {};
  }

  Status communicate() {
    std::optional<Job> job;
    std::string failure;
    Gather gather{*exchange_, patience()};
    weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
    options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
    options.rank = environment_.launch.rank;
    options.size = environment_.launch.size;
    options.all_gather = Gather::call;
    options.all_gather_user_data = &gather;
    options.init_timeout_ms = wait_ms_;
    options.op_timeout_ms = kTransferMs;
    try {
      job.emplace(options);
    } catch (const std::runtime_error& error) {
      failure = error.what();
    }
    WEFT_TRY(agree(failure));
    if (result_.communicator.empty()) WEFT_TRY(measure_pairs(*job));
    return {};
  }

  // Keeps the first failure of all ranks.
  Status agree(const std::string& failure) {
    std::vector<std::string> failures;
    WEFT_TRY(all_gather(*exchange_, failure, patience(), &failures));
    for (size_t rank = 0; rank < failures.size() && result_.communicator.empty(); ++rank) {
      if (!failures[rank].empty()) result_.communicator = cat("rank ", rank, ": ", failures[rank]);
    }
    return {};
  }

  Status measure_pairs(Job& job) {
    WEFT_TRY(share_transfers([&] { return measure_all(job); }));
    // Pairs that were measured at the same time may have disturbed each other. Better results raise the
    // median, so other pairs may become slow.
    std::set<std::pair<int, int>> seen;
    while (result_.communicator.empty() && seen.size() < kMostAgain) {
      std::vector<std::pair<int, int>> again;
      for (const SlowPair& pair : slow_pairs(result_)) {
        const std::pair<int, int> ranks(pair.transfer->low, pair.transfer->high);
        if (seen.size() < kMostAgain && seen.insert(ranks).second) again.push_back(ranks);
      }
      if (again.empty()) break;
      WEFT_TRY(share_transfers([&] { return measure_alone(job, again); }));
    }
    return {};
  }

  template <class Measure>
  Status share_transfers(Measure&& measure) {
    std::vector<Transfer> mine;
    std::string failure;
    try {
      mine = measure();
    } catch (const std::runtime_error& error) {
      failure = error.what();
    }
    WEFT_TRY(agree(failure));
    std::vector<std::vector<Transfer>> all;
    WEFT_TRY(all_gather(*exchange_, mine, patience(), &all));
    for (const std::vector<Transfer>& of_rank : all) {
      for (const Transfer& transfer : of_rank) take_better(transfer);
    }
    return {};
  }

  void take_better(const Transfer& transfer) {
    for (Transfer& known : result_.transfers) {
      if (known.low != transfer.low || known.high != transfer.high) continue;
      known.latency_us = std::min(known.latency_us, transfer.latency_us);
      known.bytes_per_s = std::max(known.bytes_per_s, transfer.bytes_per_s);
      return;
    }
    result_.transfers.push_back(transfer);
  }

  const weft::Environment& environment_;
  const int64_t wait_ms_;
  Inspection& result_;
  weft::SystemClock clock_;
  weft::Log log_;
  std::unique_ptr<weft::StoreExchange> exchange_;
};

}  // namespace

Inspection inspect_alone() {
  Inspection inspection;
  inspection.ranks.push_back(read_facts(0, 1));
  inspection.environment = environment_errors();
  return inspection;
}

Inspection inspect_job(int64_t wait_ms, bool* together) {
  weft::Environment environment;
  const Status understood = weft::process_environment(&environment);
  *together = understood.ok() && environment.launch.size == 1;
  Inspection inspection;
  inspection.rank = environment.launch.rank;
  inspection.ranks.push_back(read_facts(environment.launch.rank, environment.launch.size));
  if (!understood.ok()) inspection.environment.push_back(understood.text());
  if (understood.ok() && environment.launch.launcher == weft::Launcher::kNone) {
    inspection.environment.emplace_back(
        "no launcher has set its variables, so this process is a job of one rank: start weft doctor --joined "
        "with weft run, mpirun, srun or torchrun");
  }
  if (!understood.ok() || environment.launch.size == 1) return inspection;

  Inspection alone = inspection;
  JobInspection job(environment, wait_ms, &inspection);
  const Status met = job.run();
  *together = met.ok();
  if (met.ok()) return inspection;
  alone.rendezvous = met.text();
  alone.reach = inspection.reach;
  return alone;
}

}  // namespace doctor
