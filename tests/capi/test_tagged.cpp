// weft_send_tagged, weft_recv_tagged and weft_request_cancel over each backend and in each progress mode.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_tagged {

namespace {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::kModes;
using weft_test::Rank;

using Ints = std::vector<int32_t>;

Ints counted(size_t count, int32_t first) {
  Ints values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

weft_status send(weft_comm* comm, const Ints& values, int32_t peer, uint64_t tag,
                 weft_request** request = nullptr) {
  return weft_send_tagged(comm, values.data(), values.size(), WEFT_DTYPE_I32, peer, tag, nullptr, request);
}

weft_status receive(weft_comm* comm, Ints& values, int32_t peer, uint64_t tag,
                    weft_message* message = nullptr, weft_request** request = nullptr) {
  return weft_recv_tagged(comm, values.data(), values.size(), WEFT_DTYPE_I32, peer, tag, message, nullptr,
                          request);
}

weft_status finish(weft_request** request) {
  const weft_status status = weft_request_wait(*request, 0);
  weft_request_release(request);
  return status;
}

std::string last_text() {
  weft_error error = WEFT_ERROR_INIT;
  weft_last_error(&error);
  return error.text;
}

void each(int size, const std::function<void(Rank&, Findings&)>& body) {
  for (const char* backend : kBackends) {
    for (const int32_t mode : kModes) {
      Findings findings;
      CHECK(weft_test::run(backend, size, mode, [&](Rank& rank) { body(rank, findings); }) == "");
      INFO(backend << " in mode " << mode);
      CHECK(findings.wrong == 0);
    }
  }
}

// Blocks until all ranks have called it.
void meet(Rank& r, Findings& findings) {
  findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
}

}  // namespace

TEST_CASE("tagged messages of every size are received by tag, whatever the order") {
  each(3, [](Rank& r, Findings& findings) {
    const int32_t next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
    const std::array<size_t, 7> counts = {0, 1, 56, 57, 4096, 4097, 700'000};
    std::array<Ints, 7> out, in;
    std::array<weft_request*, 7> sends{}, receives{};
    std::array<weft_message, 7> messages;
    for (size_t i = 0; i < counts.size(); i++) {
      out[i] = counted(counts[i], r.rank * 1000);
      findings.expect(send(r.comm, out[i], next, i, &sends[i]) == WEFT_OK);
    }
    for (size_t i = counts.size(); i-- > 0;) {
      in[i].resize(counts[i] + 3, -1);
      messages[i] = WEFT_MESSAGE_INIT;
      findings.expect(receive(r.comm, in[i], i % 2 == 0 ? before : WEFT_ANY_SOURCE, i, &messages[i],
                              &receives[i]) == WEFT_OK);
    }
    for (size_t i = 0; i < counts.size(); i++) {
      findings.expect(finish(&sends[i]) == WEFT_OK);
      findings.expect(finish(&receives[i]) == WEFT_OK);
      Ints expected = counted(counts[i], before * 1000);
      expected.resize(counts[i] + 3, -1);
      findings.expect(in[i] == expected);
      findings.expect(messages[i].source == before && messages[i].tag == i && messages[i].count == counts[i]);
    }
  });
}

TEST_CASE("blocking tagged messages go round, and to the rank itself") {
  each(3, [](Rank& r, Findings& findings) {
    const int32_t next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
    for (int32_t round = 0; round < 200; round++) {
      const Ints mine = counted(5, r.rank + round);
      Ints theirs(5), own(5);
      weft_message message = WEFT_MESSAGE_INIT;
      findings.expect(send(r.comm, mine, next, UINT64_MAX - 1) == WEFT_OK);
      findings.expect(send(r.comm, mine, r.rank, 3) == WEFT_OK);
      findings.expect(receive(r.comm, theirs, WEFT_ANY_SOURCE, UINT64_MAX - 1, &message) == WEFT_OK);
      findings.expect(theirs == counted(5, before + round) && message.source == before);
      findings.expect(receive(r.comm, own, r.rank, WEFT_ANY_TAG, &message) == WEFT_OK);
      findings.expect(own == mine && message.source == r.rank && message.tag == 3 && message.count == 5);
    }
  });
}

TEST_CASE("tagged messages match no other messages, and are not held back by a group") {
  each(2, [](Rank& r, Findings& findings) {
    Ints tagged(3), plain(3);
    const Ints sevens(3, 7), eights(3, 8);
    const int32_t peer = 1 - r.rank;
    findings.expect(weft_group_begin(r.comm) == WEFT_OK);
    findings.expect(weft_send(r.comm, sevens.data(), 3, WEFT_DTYPE_I32, peer, nullptr, nullptr) == WEFT_OK);
    findings.expect(send(r.comm, eights, peer, 0) == WEFT_OK);
    findings.expect(receive(r.comm, tagged, peer, WEFT_ANY_TAG) == WEFT_OK);
    findings.expect(tagged == eights);
    findings.expect(weft_recv(r.comm, plain.data(), 3, WEFT_DTYPE_I32, peer, nullptr, nullptr) == WEFT_OK);
    findings.expect(weft_group_end(r.comm, nullptr) == WEFT_OK);
    findings.expect(plain == sevens);
  });
}

TEST_CASE("a failed tagged message leaves the communicator working") {
  each(2, [](Rank& r, Findings& findings) {
    const int32_t peer = 1 - r.rank;
    weft_error error = WEFT_ERROR_INIT;
    weft_coll_options soon = WEFT_COLL_OPTIONS_INIT;
    soon.timeout_ms = 20;
    Ints small(3), large(100'000);
    weft_request *sent = nullptr, *request = nullptr;
    // A deadline.
    findings.expect(weft_recv_tagged(r.comm, small.data(), 3, WEFT_DTYPE_I32, peer, 1, nullptr, &soon,
                                     nullptr) == WEFT_ERR_TIMEOUT);
    findings.expect(weft_send_tagged(r.comm, large.data(), large.size(), WEFT_DTYPE_I32, peer, 10, &soon,
                                     nullptr) == WEFT_ERR_TIMEOUT);
    weft_last_error(&error);
    findings.expect(error.evidence == WEFT_EVIDENCE_DEADLINE && error.failed_count == 1 &&
                    error.failed_ranks[0] == peer);
    // A message that is too long: both ends fail.
    findings.expect(send(r.comm, large, peer, 2, &sent) == WEFT_OK);
    weft_message message = WEFT_MESSAGE_INIT;
    findings.expect(receive(r.comm, small, peer, 2, &message) == WEFT_ERR_MISMATCH);
    findings.expect(message.count == large.size() && message.source == peer);
    findings.expect(weft_request_wait(sent, 0) == WEFT_ERR_MISMATCH);
    findings.expect(weft_request_error(sent, &error) == WEFT_ERR_MISMATCH);
    findings.expect(std::strstr(error.text, "receives at most i32 x 3") != nullptr);
    weft_request_release(&sent);
    // A receive that is cancelled, and one that is complete.
    std::atomic<int> completed{0};
    findings.expect(receive(r.comm, small, WEFT_ANY_SOURCE, 3, nullptr, &request) == WEFT_OK);
    weft_request_on_complete(
        request, [](void* data, weft_status status) { *static_cast<std::atomic<int>*>(data) += status; },
        &completed);
    findings.expect(weft_request_cancel(request) == WEFT_OK);
    findings.expect(weft_request_wait(request, 0) == WEFT_ERR_CANCELLED);
    findings.expect(last_text() ==
                    "the program cancelled recv_tagged i32 x 3 from any rank with tag 3 on rank " +
                        std::to_string(r.rank));
    weft_request_release(&request);
    findings.expect(send(r.comm, small, r.rank, 4) == WEFT_OK);
    findings.expect(receive(r.comm, small, r.rank, 4, nullptr, &request) == WEFT_OK);
    findings.expect(weft_request_cancel(request) == WEFT_OK);
    findings.expect(finish(&request) == WEFT_OK);
    // A send that is cancelled: the next one arrives.
    const Ints later(100'000, 9);
    findings.expect(send(r.comm, large, peer, 5, &sent) == WEFT_OK);
    findings.expect(weft_request_cancel(sent) == WEFT_OK);
    findings.expect(finish(&sent) == WEFT_ERR_CANCELLED);
    meet(r, findings);
    findings.expect(send(r.comm, later, peer, 5, &sent) == WEFT_OK);
    findings.expect(receive(r.comm, large, peer, 5) == WEFT_OK);
    findings.expect(finish(&sent) == WEFT_OK);
    findings.expect(large == later);
    meet(r, findings);
    findings.expect(weft_comm_error(r.comm, nullptr) == WEFT_OK);
    while (completed == 0) std::this_thread::yield();  // the callback runs on another thread
    findings.expect(completed == WEFT_ERR_CANCELLED);
  });
}

TEST_CASE("messages whose sends are complete arrive although their sender destroys its communicator") {
  each(2, [](Rank& r, Findings& findings) {
    for (int32_t i = 0; i < 40 && r.rank == 0; i++)
      findings.expect(send(r.comm, counted(100, i), 1, 1) == WEFT_OK);
    if (r.rank == 0) return findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // receives nothing meanwhile
    for (int32_t i = 0; i < 40; i++) {
      Ints received(100);
      findings.expect(receive(r.comm, received, 0, 1) == WEFT_OK && received == counted(100, i));
    }
  });
}

TEST_CASE("threads of one rank send and receive at the same time") {
  for (const char* backend : kBackends) {
    Findings findings;
    const auto body = [&](Rank& r) {
      std::vector<std::thread> threads;
      for (uint64_t tag = 0; tag < 4; tag++) {
        threads.emplace_back([&, tag] {
          for (int32_t i = 0; i < 100; i++) {
            const Ints mine = counted(i % 10 == 0 ? 20'000 : 4, i);
            Ints theirs(20'000);
            weft_request* sent = nullptr;
            weft_message message = WEFT_MESSAGE_INIT;
            findings.expect(send(r.comm, mine, 1 - r.rank, tag, &sent) == WEFT_OK);
            findings.expect(receive(r.comm, theirs, WEFT_ANY_SOURCE, tag, &message) == WEFT_OK);
            findings.expect(message.count == mine.size());
            theirs.resize(mine.size());
            findings.expect(theirs == mine);
            findings.expect(finish(&sent) == WEFT_OK);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    };
    CHECK(weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, body) == "");
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("arguments of tagged messages are checked") {
  CHECK(weft_test::run("loopback", 1, WEFT_PROGRESS_THREAD, [](Rank& r) {
          // One rank: the body runs alone, and may use Catch2's macros.
          Ints a(4);
          weft_request* request = nullptr;
          CHECK(weft_send_tagged(nullptr, a.data(), 4, WEFT_DTYPE_I32, 0, 1, nullptr, nullptr) ==
                WEFT_ERR_ARG);
          CHECK(weft_send_tagged(r.comm, nullptr, 4, WEFT_DTYPE_I32, 0, 1, nullptr, nullptr) == WEFT_ERR_ARG);
          CHECK(send(r.comm, a, 1, 1) == WEFT_ERR_ARG);
          CHECK(send(r.comm, a, -1, 1) == WEFT_ERR_ARG);
          CHECK(last_text() == "send_tagged: peer is WEFT_ANY_SOURCE, which only a receive may give");
          CHECK(send(r.comm, a, 0, WEFT_ANY_TAG) == WEFT_ERR_ARG);
          for (const int32_t peer : {-2, 1}) {
            CHECK(receive(r.comm, a, peer, 1) == WEFT_ERR_ARG);
            CHECK(last_text() ==
                  "peer is " + std::to_string(peer) + ": allowed are 0 to 0 and WEFT_ANY_SOURCE");
          }
          CHECK(weft_recv_tagged(r.comm, a.data(), 4, 99, 0, 1, nullptr, nullptr, nullptr) == WEFT_ERR_ARG);
          weft_message message{};
          CHECK(receive(r.comm, a, 0, 1, &message) == WEFT_ERR_ARG);  // struct_size is 0
          CHECK(weft_request_cancel(nullptr) == WEFT_ERR_ARG);
          CHECK(weft_barrier(r.comm, nullptr, &request) == WEFT_OK);
          CHECK(weft_request_cancel(request) == WEFT_ERR_UNSUPPORTED);
          CHECK(finish(&request) == WEFT_OK);
          // A struct of an older header is filled as far as it goes.
          struct {
            weft_message message = WEFT_MESSAGE_INIT;
          } older;
          older.message.struct_size = offsetof(weft_message, tag);
          older.message.tag = 77;
          CHECK(send(r.comm, a, 0, 5) == WEFT_OK);
          CHECK(receive(r.comm, a, 0, 5, &older.message) == WEFT_OK);
          CHECK(older.message.tag == 77);
          // Requests complete when the communicator is destroyed.
          CHECK(receive(r.comm, a, 0, 5, nullptr, &request) == WEFT_OK);
          CHECK(weft_comm_destroy(&r.comm) == WEFT_OK);
          CHECK(weft_request_cancel(request) == WEFT_OK);
          CHECK(finish(&request) == WEFT_ERR_CANCELLED);
        }) == "");
}

}  // namespace capi_tagged
