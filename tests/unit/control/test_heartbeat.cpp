// lib/rendezvous/heartbeat, and its use by the control thread. A silent rank is reported as lost within the
// budget; a rank that computes, was paused or has left is not.
#include "rendezvous/heartbeat.h"

#include <sys/wait.h>

#include <csignal>

#include "mesh_rig.h"

namespace unit_heartbeat {

using namespace weft;
using namespace weft::test;

namespace {

constexpr int64_t kShort = 300;      // a budget for ranks that are to be reported as lost
constexpr int64_t kGenerous = 1000;  // a budget for ranks that are not, on a busy machine
constexpr uint64_t kMs = 1'000'000;

Wiring near(int64_t heartbeat_ms) {
  return {heartbeat_ms, false, nullptr};
}
Wiring far(int64_t heartbeat_ms, Relay* relay = nullptr) {
  return {heartbeat_ms, true, relay};
}

void check_condemned(const Status& why, int rank) {
  INFO(why.text());
  CHECK(why.code() == Code::kPeerFailed);
  CHECK(why.info().ranks == std::vector<int>{rank});
  CHECK(why.info().evidence == Evidence::kHeartbeat);
  CHECK(why.text().find(cat("nothing was received from rank ", rank)) != std::string::npos);
}

// A rank in a process of its own. It writes 'b' when it has begun. When it loses rank `watched`, it writes
// 'h' if a heartbeat is the evidence, 'r' if it got a report that it was missed itself, 'c' for any other
// reason.
class Child {
 public:
  Child(const std::string& store, int rank, const Wiring& wiring, int watched = 0, bool with_child = false) {
    REQUIRE(::pipe(told_) == 0);
    REQUIRE(::pipe(held_) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    ::close(held_[1]);
    std::unique_ptr<SocketMesh> mesh;
    Witness witness;
    if (!form(store, rank, 2, wiring, &mesh).ok()) ::_exit(1);
    if (with_child && ::fork() == 0) {  // holds copies of all descriptors until the test ends
      char byte;
      (void)!::read(held_[0], &byte, 1);
      ::_exit(0);
    }
    mesh->start(&witness);
    say('b');
    const Status why = witness.lost(watched);
    const bool by_report =
        why.info().evidence == Evidence::kReport && why.info().ranks == std::vector<int>{rank};
    say(by_report ? 'r' : why.info().evidence == Evidence::kHeartbeat ? 'h' : 'c');
    ::_exit(0);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const int fd : {told_[0], told_[1], held_[0], held_[1]}) ::close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns its next character; 0 if none comes in time.
  char next(int ms = static_cast<int>(kPlenty)) {
    pollfd ready{told_[0], POLLIN, 0};
    char byte = 0;
    if (::poll(&ready, 1, ms) > 0) (void)!::read(told_[0], &byte, 1);
    return byte;
  }
  void signal(int number) { ::kill(pid_, number); }
  void wait_until_stopped() {
    int state = 0;
    REQUIRE(::waitpid(pid_, &state, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(state));
  }

 private:
  void say(char byte) { (void)!::write(told_[1], &byte, 1); }
  pid_t pid_ = -1;
  int told_[2], held_[2];
};

}  // namespace

TEST_CASE("heartbeats are due five times a budget, and silence counts from the last received message") {
  Heartbeat heartbeat(1000);
  CHECK(heartbeat.beat(50 * kMs));
  CHECK(!heartbeat.beat(249 * kMs));
  CHECK(heartbeat.next().ns() == 250 * kMs);
  CHECK(heartbeat.beat(260 * kMs));
  CHECK(heartbeat.next().ns() == 460 * kMs);
  CHECK(!heartbeat.missed(100 * kMs, 1099 * kMs));
  CHECK(heartbeat.missed(100 * kMs, 1100 * kMs));
  CHECK(heartbeat.missed_at(100 * kMs).ns() == 1100 * kMs);
}

TEST_CASE("time in which the checking rank did not run does not count as silence") {
  const Heartbeat heartbeat(1000);
  const Deadline planned = Deadline::at(500 * kMs);
  CHECK(heartbeat.own_pause_ns(planned, 400 * kMs) == 0);
  CHECK(heartbeat.own_pause_ns(planned, 700 * kMs) == 0);          // only a moment late
  CHECK(heartbeat.own_pause_ns(planned, 701 * kMs) == 201 * kMs);  // more than a heartbeat
  CHECK(heartbeat.own_pause_ns(planned, 9500 * kMs) == 9000 * kMs);
  CHECK(Heartbeat::forgive(100 * kMs, 9000 * kMs, 9500 * kMs) == 9100 * kMs);
  CHECK(Heartbeat::forgive(900 * kMs, 9000 * kMs, 9500 * kMs) == 9500 * kMs);  // never in the future
}

TEST_CASE("without a budget no heartbeat is due and no rank is reported as lost") {
  for (const int64_t budget : {int64_t{-1}, INT64_MAX}) {
    Heartbeat heartbeat(budget);
    CHECK(!heartbeat.on());
    CHECK(!heartbeat.beat(UINT64_MAX));
    CHECK(!heartbeat.missed(0, UINT64_MAX));
    CHECK(heartbeat.next().ns() == Deadline::never().ns());
    CHECK(heartbeat.missed_at(1).ns() == Deadline::never().ns());
    CHECK(heartbeat.own_pause_ns(Deadline::never(), UINT64_MAX) == 0);
  }
}

TEST_CASE("on a link that is silent or drips, both ranks report each other as lost") {
  for (const Relay::Mode mode : {Relay::Mode::kSilent, Relay::Mode::kDrip}) {
    Relay relay;
    Meshes meshes = form_all({far(kGenerous), far(kGenerous, &relay), far(kGenerous)});
    std::vector<Witness> witnesses(3);
    for (size_t r = 0; r < 3; r++) meshes[r]->start(&witnesses[r]);
    meshes[0]->send(1, view("while all is well"));
    CHECK(witnesses[1].messages(0, 1).size() == 1);
    relay.set(mode);
    check_condemned(witnesses[0].lost(1), 1);
    check_condemned(witnesses[1].lost(0), 0);
    CHECK(witnesses[2].lost_count() == 0);  // rank 2 has connections to both
    for (auto& mesh : meshes) mesh->stop();
  }
}

TEST_CASE("both sides of a link detect a reset or half-close at once") {
  for (const Relay::Mode mode : {Relay::Mode::kReset, Relay::Mode::kHalfClosed}) {
    Relay relay;
    // A budget that does not expire during the test.
    Meshes meshes = form_all({far(10 * kPlenty), far(10 * kPlenty, &relay)});
    std::vector<Witness> witnesses(2);
    for (size_t r = 0; r < 2; r++) meshes[r]->start(&witnesses[r]);
    meshes[1]->send(0, view("while all is well"));
    CHECK(witnesses[0].messages(1, 1).size() == 1);
    relay.set(mode);
    CHECK(witnesses[0].lost(1).info().evidence == Evidence::kConnection);
    CHECK(witnesses[1].lost(0).info().evidence == Evidence::kConnection);
    for (auto& mesh : meshes) mesh->stop();
  }
}

TEST_CASE("the smallest budget of all ranks applies to all") {
  Relay relay;
  Meshes meshes = form_all({far(-1), far(kShort, &relay), far(10 * kPlenty)});
  Witness witness;
  meshes[0]->start(&witness);
  relay.set(Relay::Mode::kSilent);
  check_condemned(witness.lost(1), 1);
  meshes[0]->stop();
}

TEST_CASE("ranks that send nothing else keep each other alive by heartbeats for many budgets") {
  Meshes meshes = form_all({near(kGenerous), near(kGenerous), near(kGenerous)});
  Witness witness, other;
  meshes[0]->start(&witness);
  meshes[1]->start(&other);  // rank 2 is still in its setup
  CHECK(witness.all_is_well(3 * kGenerous));
  CHECK(other.lost_count() == 0);
  for (auto& mesh : meshes) mesh->stop();
}

TEST_CASE("a rank that has said goodbye is not reported as lost") {
  Meshes meshes = form_all({near(kGenerous), near(kGenerous)});
  Witness witness;
  meshes[0]->start(&witness);
  meshes[1]->leave();  // it sends nothing any more
  CHECK(witness.left(1));
  CHECK(witness.all_is_well(4 * kGenerous));
  meshes[0]->stop();
}

TEST_CASE("a stopped process is reported as lost, and gets that error itself when it continues") {
  const std::string store = unique_store();
  Child child(store, 1, near(kShort));
  std::unique_ptr<SocketMesh> mesh;
  REQUIRE(form(store, 0, 2, near(kShort), &mesh).ok());
  Witness witness;
  mesh->start(&witness);
  REQUIRE(child.next() == 'b');
  child.signal(SIGSTOP);
  child.wait_until_stopped();
  check_condemned(witness.lost(1), 1);
  child.signal(SIGCONT);
  CHECK(child.next() == 'r');
  mesh->stop();
}

TEST_CASE("ranks that are paused together for longer than the budget report no rank as lost") {
  const std::string store = unique_store();
  Child first(store, 0, near(kGenerous), 1), second(store, 1, near(kGenerous));
  for (Child* child : {&first, &second}) REQUIRE(child->next() == 'b');
  for (Child* child : {&first, &second}) child->signal(SIGSTOP);
  for (Child* child : {&first, &second}) child->wait_until_stopped();
  ::poll(nullptr, 0, 3 * kGenerous);  // the pause
  for (Child* child : {&first, &second}) child->signal(SIGCONT);
  CHECK(first.next(2 * kGenerous) == 0);
  CHECK(second.next(0) == 0);
}

TEST_CASE("a killed process on another host is detected although its forked child holds the connection") {
  const std::string store = unique_store();
  Child child(store, 1, far(kShort), 0, true);
  std::unique_ptr<SocketMesh> mesh;
  REQUIRE(form(store, 0, 2, far(kShort), &mesh).ok());
  Witness witness;
  mesh->start(&witness);
  REQUIRE(child.next() == 'b');
  child.signal(SIGKILL);
  check_condemned(witness.lost(1), 1);
  mesh->stop();
}

}  // namespace unit_heartbeat
