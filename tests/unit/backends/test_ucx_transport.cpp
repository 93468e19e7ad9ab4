// The ucx transport alone: two or three ranks in one thread, each progressed in turn.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "framed/transport.h"
#include "support/catch.h"
#include "support/flood.h"
#include "support/seed.h"
#include "support/simulation.h"
#include "ucx/library.h"
#include "ucx/link.h"

using namespace weft;
using namespace weft::framed;
using namespace weft::ucx;

namespace {

constexpr std::byte kUntouched{0xA5};

// Connected ranks without rendezvous. The token of a message from a to b is 1000 a + b + 1.
class Ranks {
 public:
  // kCalled: the lower ranks have called the higher ones, and no more.
  enum Stage { kCalled, kMet };
  explicit Ranks(int size, Stage stage = kMet) {
    std::vector<Bytes> addresses(static_cast<size_t>(size));
    for (int r = 0; r < size; r++) {
      ranks_.push_back(std::make_unique<FramedTransport>(
          r, size, std::make_unique<UcxLink>(size, clock_, log_), clock_, log_));
      const Status opened = at(r).open(&addresses[static_cast<size_t>(r)]);
      // UCX finds network devices in /sys, which some containers lack.
      if (!opened.ok() && std::getenv("WEFT_UCX_TLS") != nullptr) WEFT_SKIP(opened.text());
      INFO(opened.text());
      REQUIRE(opened.ok());
    }
    addresses_ = std::move(addresses);
    for (int a = 0; a < size; a++) {
      for (int b = 0; b < size; b++) {
        if (a == b) continue;
        at(a).peer(b).token_out = token(a, b);
        at(a).peer(b).token_in = token(b, a);
        if (a < b) call(a, b);
      }
    }
    if (stage == kMet) meet();
  }

  // Connects as connect.cpp does: of two ranks the lower one calls, and the other one answers.
  void call(int from, int to) {
    REQUIRE(at(from).connect(to, address(to)).ok());
    at(from).send_note(at(from).peer(to), NoteKind::kHello);
  }
  void answer() {
    for (int a = 0; a < size(); a++) {
      for (int b = a + 1; b < size() && ranks_[static_cast<size_t>(b)]; b++) {
        if (at(b).peer(a).hello && !at(b).peer(a).connected) call(b, a);
      }
    }
  }
  void meet() {
    until([&] {
      answer();
      for (int a = 0; a < size(); a++) {
        for (int b = 0; b < size(); b++) {
          if (a != b && !at(a).peer(b).hello) return false;
        }
      }
      return true;
    });
  }

  static uint64_t token(int from, int to) { return static_cast<uint64_t>(1000 * from + to + 1); }
  int size() const { return static_cast<int>(ranks_.size()); }
  FramedTransport& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  const Bytes& address(int rank) { return addresses_[static_cast<size_t>(rank)]; }
  void end(int rank) { ranks_[static_cast<size_t>(rank)].reset(); }
  Clock& clock() { return clock_; }
  Log& log() { return log_; }

  void progress() {
    for (auto& rank : ranks_) {
      if (rank) rank->progress();
    }
  }
  template <class Done>
  void until(Done&& done) {
    const Deadline deadline = Deadline::after(clock_, 20'000, 0);
    while (!done()) {
      progress();
      if (deadline.expired(clock_)) FAIL("not in time");
    }
  }
  // Progresses for a while, to show that something does not happen.
  void idle() {
    for (int i = 0; i < 2000; i++) progress();
  }

 private:
  SystemClock clock_;
  Log log_;
  std::vector<std::unique_ptr<FramedTransport>> ranks_;
  std::vector<Bytes> addresses_;
};

MessageTag tag(uint64_t slot) {
  return {slot, 0, 0};
}

Descriptor descriptor(uint64_t mark) {
  Descriptor d;
  d.count = mark;
  return d;
}

Bytes pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  test::Random random(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next() >> 56);
  return bytes;
}

// A raw endpoint to a rank, which sends any frame.
class UnauthenticatedClient {
 public:
  UnauthenticatedClient(Ranks& ranks, int victim) : ranks_(ranks), log_scope_(ranks.log()) {
    REQUIRE(open_context(2, &context_).ok());
    REQUIRE(open_worker(context_.get(), &worker_).ok());
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(ranks.address(victim).data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    REQUIRE(ucp_ep_create(worker_.get(), &params, &endpoint_) == UCS_OK);
  }
  void send(const void* header, size_t header_size, const Bytes& data, bool rendezvous = false) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    void* const request =
        ucp_am_send_nbx(endpoint_, 0, header, header_size, data.data(), data.size(), &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    ranks_.until([&] {
      ucp_worker_progress(worker_.get());
      return ucp_request_check_status(request) != UCS_INPROGRESS;
    });
    ucp_request_free(request);
  }

 private:
  Ranks& ranks_;
  const LogScope log_scope_;
  ContextPtr context_;
  WorkerPtr worker_;
  ucp_ep_h endpoint_ = nullptr;
};

// While one exists, UCX's workers use only TCP on 127.0.0.1.
struct OnlyTcp {
  OnlyTcp() {
    setenv("WEFT_UCX_TLS", "tcp", 1);
    setenv("WEFT_UCX_NET_DEVICES", "lo", 1);
  }
  ~OnlyTcp() {
    unsetenv("WEFT_UCX_TLS");
    unsetenv("WEFT_UCX_NET_DEVICES");
  }
};

// Returns the ports on which this process listens: in this test, UCX's.
std::vector<uint16_t> listening_ports() {
  std::vector<uint16_t> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_in address{};
    socklen_t address_size = sizeof address;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) != 0) continue;
    if (address.sin_family == AF_INET) ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

// While one exists, the process's output goes to a file.
class Printed {
 public:
  Printed() : file_(std::tmpfile()), output_(::dup(1)), errors_(::dup(2)) {
    std::fflush(nullptr);
    ::dup2(::fileno(file_), 1);
    ::dup2(::fileno(file_), 2);
  }
  ~Printed() {
    std::fflush(nullptr);
    ::dup2(output_, 1);
    ::dup2(errors_, 2);
    ::close(output_);
    ::close(errors_);
    std::fclose(file_);
  }
  Printed(const Printed&) = delete;
  Printed& operator=(const Printed&) = delete;
  int64_t bytes() const {
    std::fflush(nullptr);
    return ::lseek(::fileno(file_), 0, SEEK_END);
  }

 private:
  std::FILE* const file_;
  const int output_, errors_;
};

size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

}  // namespace

// UCX 1.13 aborted the process if both ranks of a pair called, and one closed its endpoint before it had read
// the other's call.
TEST_CASE("ranks that cancel sends and end during connection setup do no harm to the others") {
  const Bytes data(100'000);
  for (int rounds = 0; rounds < 8; rounds++) {
    for (int first = 0; first < 3; first++) {
      Ranks ranks(3, Ranks::kCalled);
      for (int i = 0; i < rounds; i++) {
        ranks.answer();
        for (int r = 2; r >= 0; r--) ranks.at(r).progress();
      }
      for (int i = 0; i < 3; i++) {
        const int going = (first + i) % 3;
        for (int other = 0; other < 3; other++) {
          if (!ranks.at(going).peer(other).connected) continue;
          Message out;
          ranks.at(going).send(other, tag(0), descriptor(0), data.data(), data.size(), &out);
          ranks.at(going).cancel(&out);
        }
        for (int idle = 0; idle < 50; idle++) ranks.progress();
        ranks.end(going);
      }
    }
  }
}

TEST_CASE("messages of all sizes arrive complete, whichever side comes first") {
  Ranks ranks(2);
  uint64_t slot = 0;
  for (const size_t size : {0u, 1u, 100u, 7935u, 7936u, 7937u, 20'000u, 64'511u, 64'512u, 64'513u, 200'000u,
                            524'288u, 524'289u, 3'000'001u}) {
    for (const bool receive_first : {true, false}) {
      const Bytes sent = pattern(size, size + slot);
      Bytes got(size + 8, kUntouched);
      Message out, in;
      const auto receive = [&] { ranks.at(1).receive(0, tag(slot), got.data(), size, &in); };
      if (receive_first) receive();
      ranks.at(0).send(1, tag(slot), descriptor(size), sent.data(), size, &out);
      if (!receive_first) {
        Descriptor seen;
        ranks.until([&] { return ranks.at(1).peek(0, 0, slot, &seen); });
        CHECK(seen == descriptor(size));
        receive();
      }
      ranks.until([&] { return out.done && in.done; });
      INFO(size);
      CHECK(out.status.ok());
      CHECK(in.status.ok());
      CHECK(in.received_bytes == size);
      CHECK(in.peer_descriptor == descriptor(size));
      CHECK(std::memcmp(got.data(), sent.data(), size) == 0);
      CHECK(got[size] == kUntouched);
      slot++;
    }
  }
}

TEST_CASE("a message that is too long is a mismatch and writes nothing") {
  Ranks ranks(2);
  for (const size_t size : {100u, 3'000'000u}) {
    const Bytes sent = pattern(size, 1);
    Bytes got(size, kUntouched);
    Message out, in;
    ranks.at(1).receive(0, tag(size), got.data(), size - 1, &in);
    ranks.at(0).send(1, tag(size), descriptor(5), sent.data(), size, &out);
    ranks.until([&] { return in.done; });
    CHECK(in.status.code() == Code::kMismatch);
    CHECK(in.peer_descriptor == descriptor(5));
    CHECK(got == Bytes(size, kUntouched));
    ranks.at(0).cancel(&out);
    CHECK(out.done);
  }
}

TEST_CASE("unreceived messages are held back by the sender beyond a bound") {
  Ranks ranks(2);
  constexpr size_t kMessages = 4000;
  constexpr size_t kSize = 1000;
  std::vector<Message> out(kMessages), in(kMessages);
  const Bytes sent = pattern(kSize, 3);
  for (size_t i = 0; i < kMessages; i++) {
    ranks.at(0).send(1, tag(i), descriptor(i), sent.data(), kSize, &out[i]);
    ranks.progress();
  }
  ranks.idle();
  CHECK(ranks.at(1).peer(0).arrived_bytes <= kWindowBytes);
  CHECK(out.front().done);
  CHECK_FALSE(out.back().done);
  std::vector<Bytes> got(kMessages, Bytes(kSize));
  for (size_t i = kMessages; i-- > 0;) ranks.at(1).receive(0, tag(i), got[i].data(), kSize, &in[i]);
  ranks.until([&] {
    for (size_t i = 0; i < kMessages; i++) {
      if (!out[i].done || !in[i].done) return false;
    }
    return true;
  });
  CHECK(got == std::vector<Bytes>(kMessages, sent));
  CHECK(ranks.at(1).peer(0).arrived_bytes == 0);
  CHECK(ranks.at(0).peer(1).may_send > kWindowBytes / 4);
}

TEST_CASE("a receive that is cancelled in the middle is not written to any more") {
  Ranks ranks(2);
  constexpr size_t kSize = 16u << 20;
  const Bytes sent = pattern(kSize, 4);
  Bytes got(kSize);
  Message out, in;
  ranks.at(1).receive(0, tag(0), got.data(), kSize, &in);
  ranks.at(0).send(1, tag(0), descriptor(0), sent.data(), kSize, &out);
  ranks.until([&] { return ranks.at(1).counters().bytes_received > 0 && got[0] == sent[0]; });
  REQUIRE_FALSE(in.done);
  ranks.at(1).cancel(&in);
  CHECK(in.status.code() == Code::kCancelled);
  std::fill(got.begin(), got.end(), kUntouched);
  ranks.idle();
  CHECK(got == Bytes(kSize, kUntouched));
}

TEST_CASE("a send that is cancelled in the middle releases its buffer") {
  Ranks ranks(2);
  constexpr size_t kSize = 16u << 20;
  Bytes sent = pattern(kSize, 4);
  const Bytes original = sent;
  Bytes got(kSize, kUntouched);
  Message out, in;
  ranks.at(1).receive(0, tag(0), got.data(), kSize, &in);
  ranks.at(0).send(1, tag(0), descriptor(0), sent.data(), kSize, &out);
  ranks.until([&] { return got[0] == original[0]; });
  ranks.at(0).cancel(&out);
  CHECK(out.done);
  std::fill(sent.begin(), sent.end(), std::byte{0x5A});
  ranks.idle();
  CHECK_FALSE((in.done && in.status.ok()));
  for (size_t i = 0; i < kSize; i++) {
    if (got[i] == original[i] || got[i] == kUntouched) continue;
    FAIL("byte " << i << " is from after the send was taken back");
  }
}

TEST_CASE("a rank that leaves is named by operations that wait for it, after a while") {
  // Over shared memory UCX does not detect this; the control channel does.
  auto only_tcp = std::make_unique<OnlyTcp>();
  Ranks ranks(3);
  only_tcp.reset();
  Bytes room(100);
  Message in, other;
  ranks.at(0).receive(1, tag(0), room.data(), room.size(), &in);
  ranks.at(0).receive(2, tag(0), room.data(), room.size(), &other);
  const uint64_t before = ranks.clock().now_ns();
  ranks.end(1);
  ranks.until([&] { return in.done; });
  CHECK(ranks.clock().now_ns() >= before + kGraceNs);
  CHECK(in.status.code() == Code::kPeerFailed);
  CHECK(in.status.info().ranks == std::vector<int>{1});
  CHECK_FALSE(other.done);
  Message late;
  ranks.at(0).send(1, tag(1), descriptor(0), room.data(), room.size(), &late);
  ranks.until([&] { return late.done; });
  CHECK(late.status.code() == Code::kPeerFailed);
  ranks.at(0).cancel(&other);
}

TEST_CASE("messages of a client without the token are ignored") {
  Ranks ranks(2);
  UnauthenticatedClient unauthenticated(ranks, 1);
  Bytes room(100, kUntouched);
  Message in;
  ranks.at(1).receive(0, tag(0), room.data(), room.size(), &in);
  Header header{.size = 100, .descriptor = descriptor(0)};
  for (const uint64_t token : {uint64_t{0}, uint64_t{1}, Ranks::token(1, 0), UINT64_MAX}) {
    for (const uint32_t from : {0u, 1u, 2u, UINT32_MAX}) {
      header.token = token;
      header.from = from;
      if (from == 0 && token == Ranks::token(0, 1)) continue;
      unauthenticated.send(&header, sizeof header, Bytes(100));
      Note note{.from = from, .token = token, .what = NoteKind::kCredit, .first = kWindowBytes};
      unauthenticated.send(&note, sizeof note, {});
    }
  }
  unauthenticated.send(&header, 3, Bytes(100));
  unauthenticated.send(nullptr, 0, {});
  header.token = Ranks::token(0, 1);
  header.from = 0;
  unauthenticated.send(&header, sizeof header, Bytes(100), true);  // a rendezvous of UCX's
  ranks.idle();
  CHECK_FALSE(in.done);
  CHECK(room == Bytes(100, kUntouched));
  const Bytes sent = pattern(100, 9);
  Message out;
  ranks.at(0).send(1, tag(0), descriptor(0), sent.data(), sent.size(), &out);
  ranks.until([&] { return in.done; });
  CHECK(in.status.ok());
  CHECK(room == sent);
}

TEST_CASE("messages arrive while 10,000 hostile connections reach UCX's own ports") {
  auto only_tcp = std::make_unique<OnlyTcp>();
  Ranks ranks(2);
  only_tcp.reset();
  const std::vector<uint16_t> ports = listening_ports();
  REQUIRE(ports.size() == 2);
  const size_t files = open_files();
  const Bytes small = pattern(100, 1), large = pattern(700'000, 2);
  uint64_t slot = 0;
  const auto exchange = [&] {
    for (const Bytes* sent : {&small, &large}) {
      Bytes got(sent->size());
      Message out, in;
      ranks.at(0).send(1, tag(slot), descriptor(slot), sent->data(), sent->size(), &out);
      ranks.at(1).receive(0, tag(slot), got.data(), got.size(), &in);
      ranks.until([&] { return out.done && in.done; });
      REQUIRE(out.status.ok());
      REQUIRE(in.status.ok());
      REQUIRE(got == *sent);
      slot++;
    }
  };
  {
    const Bytes recorded = test::good_traffic(AuthKey::from_secret(small));
    auto printed = std::make_unique<Printed>();
    const test::Flood flood(ports, recorded);
    while (flood.connections() < 10'000) exchange();
    const int64_t bytes = printed->bytes();
    printed.reset();
    CHECK(bytes == 0);  // nor can they fill the program's output
  }
  exchange();
  ranks.until([&] { return open_files() <= files; });  // UCX keeps nothing of theirs
}

TEST_CASE("a member that violates the protocol counts as lost, and writes only into its receives") {
  test::Random random(test::base_seed());
  for (int round = 0; round < 20; round++) {
    Ranks ranks(2);
    UnauthenticatedClient rank0(ranks, 1);  // plays rank 0: knows its token
    constexpr size_t kSize = 50'000;
    Bytes room(3 * kSize, kUntouched);
    Message in;
    ranks.at(1).receive(0, tag(0), room.data() + kSize, kSize, &in);
    // An accepted offer, so that fragments have a target.
    Header offer{
        .token = Ranks::token(0, 1), .size = kSize, .name = 1, .offered = 1, .descriptor = descriptor(0)};
    rank0.send(&offer, sizeof offer, {});
    for (int i = 0; i < 200; i++) {
      const auto any = [&](uint64_t usual) { return random.chance(3) ? random.next() : random.below(usual); };
      Bytes data(random.below(3000));
      const auto kind = static_cast<FrameKind>(1 + random.below(3));
      if (kind == FrameKind::kMessage) {
        Header header{.token = Ranks::token(0, 1),
                      .slot = any(3),
                      .size = any(3000),
                      .name = any(3),
                      .offered = random.chance(2),
                      .descriptor = descriptor(any(3))};
        if (random.chance(2)) header.size = data.size() + random.below(3000);
        rank0.send(&header, sizeof header, data);
      } else if (kind == FrameKind::kFragment) {
        const Fragment fragment{.token = Ranks::token(0, 1),
                                .name = random.below(4),
                                .offset = any(kSize),
                                .offered = random.chance(2)};
        rank0.send(&fragment, sizeof fragment, data);
      } else {
        const Note note{.token = Ranks::token(0, 1),
                        .what = static_cast<NoteKind>(any(7)),
                        .first = any(5),
                        .second = any(5)};
        rank0.send(&note, sizeof note, {});
      }
      ranks.progress();
    }
    ranks.idle();
    CHECK(std::all_of(room.begin(), room.begin() + kSize, [](std::byte b) { return b == kUntouched; }));
    CHECK(std::all_of(room.end() - kSize, room.end(), [](std::byte b) { return b == kUntouched; }));
    CHECK(ranks.at(1).peer(0).arrived_bytes <= kWindowBytes);
    ranks.at(1).cancel(&in);
  }
}
