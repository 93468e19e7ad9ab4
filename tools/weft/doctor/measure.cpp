#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace doctor {
namespace {

constexpr int kWarm = 3, kRoundTrips = 30;
constexpr int kRepeats = 3;  // of each size: another process may interrupt one
constexpr uint64_t kFirstBytes = uint64_t{64} << 10, kLastBytes = uint64_t{8} << 20;
constexpr double kLongEnoughS = 0.02;  // sizes double until a transfer takes so long

class Pair {
 public:
  Pair(Job& job, int other) : job_(job), other_(other) {}

  void send(const void* data, uint64_t bytes) {
    job_.check(weft_send(job_.comm(), data, bytes, WEFT_DTYPE_U8, other_, nullptr, nullptr), "weft_send");
  }
  void recv(void* data, uint64_t bytes) {
    job_.check(weft_recv(job_.comm(), data, bytes, WEFT_DTYPE_U8, other_, nullptr, nullptr), "weft_recv");
  }
  void send_number(uint64_t number) { send(&number, sizeof number); }
  uint64_t recv_number() {
    uint64_t number = 0;
    recv(&number, sizeof number);
    return number;
  }

 private:
  Job& job_;
  const int other_;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The lower rank of a pair measures. The other one answers.
Transfer lead_latency(Job& job, int other) {
  Pair pair(job, other);
  Transfer transfer{job.rank(), other, 1e12, 0};
  for (int i = 0; i < kWarm + kRoundTrips; ++i) {
    const double begin = now_s();
    pair.send_number(0);
    pair.recv_number();
    if (i >= kWarm) transfer.latency_us = std::min(transfer.latency_us, (now_s() - begin) * 1e6 / 2);
  }
  return transfer;
}

void follow_latency(Job& job, int other) {
  Pair pair(job, other);
  for (int i = 0; i < kWarm + kRoundTrips; ++i) pair.send_number(pair.recv_number());
}

// Sends the other one each size, then as many bytes; at last the size 0.
void lead_bandwidth(Job& job, Transfer* transfer) {
  Pair pair(job, transfer->high);
  std::vector<std::byte> data(kLastBytes);
  double shortest = 0;
  for (uint64_t bytes = kFirstBytes; bytes <= kLastBytes && shortest < kLongEnoughS; bytes *= 2) {
    shortest = 1e9;
    for (int i = 0; i < kRepeats; ++i) {
      pair.send_number(bytes);
      pair.recv_number();  // the other one is ready
      const double begin = now_s();
      pair.send(data.data(), bytes);
      pair.recv_number();
      shortest = std::min(shortest, now_s() - begin);
    }
    transfer->bytes_per_s = std::max(transfer->bytes_per_s, static_cast<double>(bytes) / shortest);
  }
  pair.send_number(0);
}

void follow_bandwidth(Job& job, int other) {
  Pair pair(job, other);
  std::vector<std::byte> data(kLastBytes);
  for (uint64_t bytes = pair.recv_number(); bytes != 0; bytes = pair.recv_number()) {
    pair.send_number(bytes);
    pair.recv(data.data(), bytes);
    pair.send_number(bytes);
  }
}

}  // namespace

int partner(int rank, int round, int size) {
  // The circle method: the last seat stays, and the others turn by one place a round.
  const int turning = rounds(size);
  int other = ((round - rank) % turning + turning) % turning;
  if (rank == turning) {  // the last seat, of an even number
    other = 0;
    while (2 * other % turning != round % turning) other++;
  } else if (other == rank) {
    other = turning;
  }
  return other < size ? other : -1;
}

std::vector<Transfer> measure_all(Job& job) {
  std::vector<Transfer> transfers;
  const auto each_pair = [&job](auto&& lead, auto&& follow) {
    for (int round = 0; round < rounds(job.size()); ++round) {
      const int other = partner(job.rank(), round, job.size());
      if (other > job.rank()) lead(other);
      if (other >= 0 && other < job.rank()) follow(other);
    }
    job.barrier();
  };
  each_pair([&](int other) { transfers.push_back(lead_latency(job, other)); },
            [&](int other) { follow_latency(job, other); });
  // Later, because a long message fills the queues of a link for a while.
  size_t next = 0;
  each_pair([&](int) { lead_bandwidth(job, &transfers[next++]); },
            [&](int other) { follow_bandwidth(job, other); });
  return transfers;
}

std::vector<Transfer> measure_alone(Job& job, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<Transfer> transfers;
  for (const auto& [low, high] : pairs) {
    if (job.rank() == low) {
      transfers.push_back(lead_latency(job, high));
      lead_bandwidth(job, &transfers.back());
    } else if (job.rank() == high) {
      follow_latency(job, low);
      follow_bandwidth(job, low);
    }
    job.barrier();
  }
  return transfers;
}

}  // namespace doctor
