// Messages between CUDA buffers over the nccl backend, on the fake NCCL and the fake CUDA.
#include <memory>
#include <string>

#include "capi/fake_nccl.h"

namespace capi_nccl_messages {

using namespace weft_test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Buffer = DeviceBuffer<int32_t>;

// Returns element i of message `number` from rank `from`.
int32_t word(int from, int number, size_t i) {
  return from * 1'000'000 + number * 1000 + static_cast<int32_t>(i % 1000);
}

void finish(RankFailures& failures, const Rank& r, std::vector<weft_request*>* requests) {
  for (weft_request*& request : *requests) {
    const weft_status status = request == nullptr ? WEFT_ERR_ARG : weft_request_wait(request, 20'000);
    failures.expect(status == WEFT_OK, std::to_string(status) + ": " + error_of(r.comm));
    weft_request_release(&request);
  }
  requests->clear();
}

// Rank r makes these calls on a communicator of `size` ranks. Expects the failure and its text.
void expect_failure(int size, weft_status expected, const std::string& text,
                    const std::function<weft_status(Rank&, Buffer&, const weft_coll_options&)>& call) {
  RankFailures failures;
  const std::string error = run_nccl(size, [&](Rank& r) {
    Stream stream(r.rank);
    Buffer buffer(100, r.rank);
    weft_coll_options options = on(stream);
    options.timeout_ms = 3000;
    const weft_status status = call(r, buffer, options);
    weft_error failure = WEFT_ERROR_INIT;
    while (weft_comm_error(r.comm, &failure) == WEFT_OK && failure.code == WEFT_OK) std::this_thread::yield();
    if (status == WEFT_OK) return;
    failures.expect(status == expected, std::to_string(status) + ": " + error_of(r.comm));
    failures.expect(contains(error_of(r.comm), text), error_of(r.comm));
  });
  CHECK(error == "");
  failures.check();
}

}  // namespace

TEST_CASE("NCCL sends messages of every size from device to device, in stream order") {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{3'000'000}}) {
    INFO(count);
    const FakeNccl fake(count + 1);
    RankFailures failures;
    const std::string error = run_nccl(2, [&](Rank& r) {
      Stream stream(r.rank);
      Buffer mine(count, r.rank), theirs(count, r.rank);
      const weft_coll_options options = on(stream);
      const int peer = 1 - r.rank;
      for (int round = 0; round < 4; round++) {
        mine.write(stream, [&](size_t i) { return word(r.rank, round, i); });
        failures.expect(weft_group_begin(r.comm) == WEFT_OK, "group");
        weft_send(r.comm, mine.get(), count, WEFT_DTYPE_I32, peer, &options, nullptr);
        weft_recv(r.comm, theirs.get(), count, WEFT_DTYPE_I32, peer, &options, nullptr);
        failures.expect(weft_group_end(r.comm, nullptr) == WEFT_OK, error_of(r.comm));
        // Also sends one message at a time, in this direction and then in the other.
        weft_status status = WEFT_OK;
        if (r.rank == round % 2) {
          status = weft_send(r.comm, mine.get(), count, WEFT_DTYPE_I32, peer, &options, nullptr);
        } else {
          theirs.write(stream, [](size_t) { return -1; });
          status = weft_recv(r.comm, theirs.get(), count, WEFT_DTYPE_I32, peer, &options, nullptr);
        }
        failures.expect(status == WEFT_OK, error_of(r.comm));
        const std::vector<int32_t> got = theirs.read(stream);
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) wrong += got[i] != word(peer, round, i);
        failures.expect(wrong == 0, std::to_string(wrong) + " wrong");
      }
    });
    CHECK(error == "");
    failures.check();
    CHECK(fake_nccl_calls("ncclSend") == (count == 0 ? 0 : 12));
    CHECK(fake_nccl_calls("ncclRecv") == (count == 0 ? 0 : 12));
  }
}

TEST_CASE("ranks of nccl may start messages and collectives in any order", "[stream_waits]") {
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    INFO(seed);
    const FakeNccl fake(seed, 100);
    RankFailures failures;
    constexpr int kSize = 4, kRounds = 8;
    const std::string error = run_nccl(kSize, [&](Rank& r) {
      constexpr size_t kCount = 2000;
      std::vector<std::unique_ptr<Stream>> streams;
      std::vector<std::unique_ptr<Buffer>> sent, received;
      for (int peer = 0; peer < kSize; peer++) {
        streams.push_back(std::make_unique<Stream>(r.rank));
        sent.push_back(std::make_unique<Buffer>(kCount, r.rank));
        received.push_back(std::make_unique<Buffer>(kCount, r.rank));
      }
      Stream stream(r.rank);
      Buffer sum(kCount, r.rank);
      const weft_coll_options options = on(stream);
      for (int round = 0; round < kRounds; round++) {
        std::vector<weft_request*> requests;
        const auto add = [&] {
          requests.push_back(nullptr);
          return &requests.back();
        };
        sum.write(stream, [&](size_t) { return r.rank; });
        const auto reduce = [&] {
          weft_all_reduce(r.comm, sum.get(), sum.get(), kCount, WEFT_DTYPE_I32, WEFT_OP_SUM, &options, add());
        };
        // Each rank places the collective differently among its messages, and orders the messages
        // differently.
        const int place = (r.rank * 3 + round) % kSize;
        for (int turn = 0; turn < kSize; turn++) {
          const int peer = (turn * (round % 2 == 0 ? 1 : 3) + r.rank * round) % kSize;
          if (turn == place) reduce();
          if (peer == r.rank) continue;
          const auto p = static_cast<size_t>(peer);
          const weft_coll_options its = on(*streams[p]);
          sent[p]->write(*streams[p], [&](size_t i) { return word(r.rank, round, i) + peer; });
          weft_send(r.comm, sent[p]->get(), kCount, WEFT_DTYPE_I32, peer, &its, add());
          weft_recv(r.comm, received[p]->get(), kCount, WEFT_DTYPE_I32, peer, &options, add());
        }
        finish(failures, r, &requests);
        failures.expect(sum.read(stream)[kCount - 1] == kSize * (kSize - 1) / 2, "sum");
        for (int peer = 0; peer < kSize; peer++) {
          if (peer == r.rank) continue;
          const std::vector<int32_t> got = received[static_cast<size_t>(peer)]->read(stream);
          size_t wrong = 0;
          for (size_t i = 0; i < kCount; i++) wrong += got[i] != word(peer, round, i) + r.rank;
          failures.expect(wrong == 0,
                          "from " + std::to_string(peer) + ": " + std::to_string(wrong) + " wrong");
        }
      }
    });
    CHECK(error == "");
    failures.check();
    CHECK(fake_nccl_calls("ncclSend") == uint64_t{kRounds * kSize * (kSize - 1)});
  }
}

TEST_CASE("a send and a receive over nccl that differ get an error, and nothing is launched") {
  for (const int sender : {0, 1}) {
    const FakeNccl fake;
    expect_failure(2, WEFT_ERR_MISMATCH, "send i32 x 50 of CUDA memory",
                   [&](Rank& r, Buffer& buffer, const weft_coll_options& options) {
                     if (r.rank != sender)
                       return weft_recv(r.comm, buffer.get(), 50, WEFT_DTYPE_I32, sender, &options, nullptr);
                     weft_send(r.comm, buffer.get(), 100, WEFT_DTYPE_I32, 1 - sender, &options, nullptr);
                     return WEFT_OK;
                   });
    CHECK(fake_nccl_calls("ncclSend") == 0);
    CHECK(fake_nccl_calls("ncclRecv") == 0);
    // Host memory at the sender, or at the receiver.
    for (const bool host : {false, true}) {
      expect_failure(2, WEFT_ERR_MISMATCH, "send i32 x 100 of CUDA memory",
                     [&](Rank& r, Buffer& buffer, const weft_coll_options& options) {
                       std::vector<int32_t> plain(100);
                       const bool mine = (r.rank == sender) == host;
                       void* const memory = mine ? static_cast<void*>(plain.data()) : buffer.get();
                       const weft_coll_options* const how = mine ? nullptr : &options;
                       if (r.rank != sender)
                         return weft_recv(r.comm, memory, 100, WEFT_DTYPE_I32, sender, how, nullptr);
                       weft_send(r.comm, memory, 100, WEFT_DTYPE_I32, 1 - sender, how, nullptr);
                       return WEFT_OK;
                     });
      CHECK(fake_nccl_calls("ncclSend") == 0);
    }
  }
}

TEST_CASE("a rank that does not join a message over nccl is named") {
  for (const int absent : {0, 1}) {
    for (const bool sends : {false, true}) {
      const FakeNccl fake;
      expect_failure(
          2, WEFT_ERR_TIMEOUT, "waiting for rank " + std::to_string(absent),
          [&](Rank& r, Buffer& buffer, const weft_coll_options& options) {
            if (r.rank == absent) return WEFT_OK;
            return sends ? weft_send(r.comm, buffer.get(), 100, WEFT_DTYPE_I32, absent, &options, nullptr)
                         : weft_recv(r.comm, buffer.get(), 100, WEFT_DTYPE_I32, absent, &options, nullptr);
          });
      CHECK(fake_nccl_calls("ncclSend") + fake_nccl_calls("ncclRecv") == 0);
    }
  }
}

TEST_CASE("a message that NCCL refuses on one rank fails on both, with the operations queued behind it") {
  for (const char* call : {"ncclSend", "ncclRecv"}) {
    const FakeNccl fake;
    fake_nccl_fail(call, ncclInternalError);
    RankFailures failures;
    const std::string error = run_nccl(2, [&](Rank& r) {
      Stream stream(r.rank);
      Buffer buffer(5000, r.rank), other(5000, r.rank);
      const weft_coll_options options = on(stream);
      std::vector<weft_request*> requests(2);
      if (r.rank == 0) {
        weft_send(r.comm, buffer.get(), 5000, WEFT_DTYPE_I32, 1, &options, &requests[0]);
      } else {
        weft_recv(r.comm, buffer.get(), 5000, WEFT_DTYPE_I32, 0, &options, &requests[0]);
      }
      weft_all_reduce(r.comm, other.get(), other.get(), 5000, WEFT_DTYPE_I32, WEFT_OP_SUM, &options,
                      &requests[1]);
      failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
      for (weft_request*& request : requests) {
        if (request == nullptr) continue;
        const weft_status status = weft_request_wait(request, 10'000);
        failures.expect(status == WEFT_ERR_SYSTEM || status == WEFT_ERR_PEER_FAILED, std::to_string(status));
        weft_request_release(&request);
      }
      failures.expect(contains(error_of(r.comm), "internal error"), error_of(r.comm));
    });
    CHECK(error == "");
    failures.check();
    CHECK(fake_nccl_calls("ncclCommAbort") >= 1);
  }
}

TEST_CASE("an abort during NCCL messages releases the program's streams") {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const FakeNccl fake(seed, 3000);
    RankFailures failures;
    const std::string error = run_nccl(3, [&](Rank& r) {
      Stream stream(r.rank);
      Buffer mine(50'000, r.rank), theirs(50'000, r.rank);
      const weft_coll_options options = on(stream);
      std::vector<weft_request*> requests(2);
      weft_group_begin(r.comm);
      weft_send(r.comm, mine.get(), 50'000, WEFT_DTYPE_I32, (r.rank + 1) % 3, &options, &requests[0]);
      weft_recv(r.comm, theirs.get(), 50'000, WEFT_DTYPE_I32, (r.rank + 2) % 3, &options, &requests[1]);
      weft_request* all = nullptr;
      weft_group_end(r.comm, &all);
      weft_request_release(&all);
      while (r.rank == 1 && fake_nccl_calls("ncclSend") == 0) std::this_thread::yield();
      if (r.rank == 1) weft_comm_abort(r.comm, "enough");
      failures.expect(cudaStreamSynchronize(stream.get()) == cudaSuccess, "the stream hangs");
      for (weft_request*& request : requests) {
        const weft_status status = weft_request_wait(request, 10'000);
        failures.expect(status == WEFT_OK || status == WEFT_ERR_ABORTED, std::to_string(status));
        weft_request_release(&request);
      }
    });
    CHECK(error == "");
    failures.check();
  }
}

TEST_CASE("in caller mode device memory is sent through host memory") {
  const FakeNccl fake;
  RankFailures failures;
  const std::string error = run(
      "nccl", 2, WEFT_PROGRESS_CALLER, nullptr,
      [&](Rank& r) {
        Stream stream(r.rank);
        Buffer buffer(1000, r.rank);
        const weft_coll_options options = on(stream);
        buffer.write(stream, [&](size_t i) { return word(r.rank, 0, i); });
        const weft_status status =
            r.rank == 0 ? weft_send(r.comm, buffer.get(), 1000, WEFT_DTYPE_I32, 1, &options, nullptr)
                        : weft_recv(r.comm, buffer.get(), 1000, WEFT_DTYPE_I32, 0, &options, nullptr);
        failures.expect(status == WEFT_OK, error_of(r.comm));
        failures.expect(buffer.read(stream)[999] == word(0, 0, 999), "data");
        weft_barrier(r.comm, nullptr, nullptr);
      },
      [](Rank& r) { cudaSetDevice(r.rank); });
  CHECK(error == "");
  failures.check();
  CHECK(fake_nccl_calls("ncclSend") == 0);
}

}  // namespace capi_nccl_messages
