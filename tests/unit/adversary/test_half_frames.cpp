// Messages that end in the middle: every type of message of the store and of the mesh, in every state of its
// receiver, cut around its header and its end, and followed by silence, a close, a reset or garbage. Members
// get an error that names the sender, within their deadline; others are not affected.
#include <condition_variable>
#include <map>

#include "adversary_rig.h"
#include "rendezvous/store_server.h"
#include "support/fast_clock.h"

namespace unit_half_frames {

using namespace weft;
using namespace weft::test;

namespace {

constexpr int64_t kSilenceMs = 600;  // deadline of the ranks that wait for a silent one
constexpr size_t kLengthBytes = 4;

std::string describe(const Status& status) {
  return status.ok() ? std::string("no error")
                     : cat("\"", status.text(), "\", ranks ", list_text(status.info().ranks));
}

// Keeps every case with --all-cases, otherwise one of `sampled`, which is odd: every fourth case ends alike.
template <class Case>
void sample(std::vector<Case>* cases, uint64_t sampled) {
  const uint64_t one_of = sampling(1, sampled, 4 * sampled + 1);
  std::vector<Case> kept;
  for (size_t i = base_seed() % one_of; i < cases->size(); i += one_of) kept.push_back((*cases)[i]);
  *cases = std::move(kept);
}

// ---- the store -----------------------------------------------------------------------------------------

// Returns a valid frame of each type; empty for a type that this table lacks.
Bytes store_frame(store::Type type, const std::string& job) {
  using store::Type;
  switch (type) {
    case Type::kJoin:
      return store::encode(store::Join{job, 0, 1, 2});
    case Type::kGive:
      return store::encode(store::Give{0, Bytes(100)});
    case Type::kResult: {
      size_t next = 0;
      return store::encode_result(0, {Bytes(100), Bytes(100)}, 0, &next);
    }
    case Type::kMissing:
      return store::encode(store::Missing{{0}, "a note"});
    case Type::kFailed:
      return store::encode_failed(
          Status::error(Code::kPeerFailed, "rank 1 gives up", Evidence::kConnection).with_ranks({1}));
    case Type::kWhoIsMissing:
    case Type::kLeave:
    case Type::kJoined:
    case Type::kClosing:
      return store::encode_plain(type);
  }
  return {};
}

struct StoreCase {
  store::Type type = store::Type::kJoin;
  int state = 0;
  size_t cut = 0;
  End end = End::kSilence;
};

std::string text_of(const StoreCase& each) {
  return cat("type ", static_cast<int>(each.type), " in state ", each.state, ", cut to ", each.cut, ", then ",
             name(each.end));
}

// Adds the cases of each type in one state. stream: the bytes of the stream's header before the first frame.
void add_cases(int state, size_t stream, const std::string& job, std::vector<StoreCase>* cases) {
  for (const store::Type type : enumerators<store::Type>()) {
    const size_t size =
        stream + kLengthBytes + store_frame(type, job).size() + crypto_secretstream_xchacha20poly1305_ABYTES;
    for (const size_t cut : cuts(stream + kLengthBytes, size)) {
      for (const End end : kEnds) cases->push_back({type, state, cut, end});
    }
  }
}

std::unique_ptr<StoreServer> start_store(Clock& clock) {
  REQUIRE(init_crypto().ok());
  Address address;
  REQUIRE(parse_address("tcp://127.0.0.1:0", &address).ok());
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  REQUIRE(StoreServer::start({address, job_secret(), {}}, clock, silent, &server, &in_use).ok());
  return server;
}

StoreOptions member(const StoreServer& server, int rank, const std::string& job) {
  StoreOptions options = store_options(server.address().text(), rank, 2);
  options.key = job_secret();
  options.job = job;
  options.external = true;
  return options;
}

Status two_rounds(StoreExchange& exchange, int64_t ms) {
  std::vector<Bytes> all;
  for (int round = 0; round < 2; round++) WEFT_TRY(exchange.all_gather(Bytes(10), &all, in_ms(ms)));
  exchange.finish();
  return {};
}

// Meets as a rank of two, for two rounds.
Status two_rounds(const StoreOptions& options, int64_t ms) {
  std::unique_ptr<StoreExchange> exchange;
  WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(ms), &exchange));
  return two_rounds(*exchange, ms);
}

Status a_job_forms(const StoreServer& server, const std::string& job) {
  Status other;
  std::thread thread([&] { other = two_rounds(member(server, 1, job), kPlenty); });
  const Status status = two_rounds(member(server, 0, job), kPlenty);
  thread.join();
  return status.ok() ? other : status;
}

enum StoreState { kConnected, kGreeted, kProved, kJoined, kGave };

// Takes a connection to a state of the store's.
bool reach(RawConnection& connection, int state, const std::string& job) {
  Bytes answer;
  if (!connection.open()) return false;
  if (state == kGreeted) return connection.greet();
  if (state >= kProved && !connection.prove()) return false;
  if (state >= kJoined &&
      !(connection.send(store_frame(store::Type::kJoin, job)) && connection.hear_frame(&answer)))
    return false;
  return state < kGave || connection.send(store_frame(store::Type::kGive, job));
}

}  // namespace

TEST_CASE("every type of message of the store has a row in the table") {
  CHECK(enumerators<store::Type>().size() == 9);
  for (const store::Type type : enumerators<store::Type>()) {
    INFO(static_cast<int>(type));
    CHECK(store::type_of(store_frame(type, "job")) == type);
  }
  for (const mesh::MeshFrame type : enumerators<mesh::MeshFrame>()) CHECK(static_cast<int>(type) > 0);
}

TEST_CASE("the store ends every connection that stops in the middle before it has joined") {
  // Its time is ten times as fast: it allows half a second instead of five.
  FastClock fast(10);
  const auto server = start_store(fast);
  std::vector<StoreCase> cases;
  for (const int state : {kConnected, kGreeted}) {
    const size_t size = state == kConnected ? Hello::kBytes : sizeof(Key);
    for (const size_t cut : cuts(8, size)) {
      for (const End end : kEnds) cases.push_back({store::Type::kJoin, state, cut, end});
    }
  }
  add_cases(kProved, crypto_secretstream_xchacha20poly1305_HEADERBYTES, "half", &cases);
  sample(&cases, 3);
  REQUIRE(a_job_forms(*server, "before").ok());
  const size_t before = open_descriptors();
  std::atomic<int> forming{0};
  std::atomic<bool> over{false};
  Status formed;
  std::thread jobs([&] {
    while (!over && formed.ok()) formed = a_job_forms(*server, cat("beside ", forming++));
  });
  const auto failures = run_cases(cases.size(), [&](size_t i) -> std::string {
    const StoreCase& each = cases[i];
    RawConnection connection(server->address(), job_secret());
    if (!reach(connection, each.state, "half")) return cat(text_of(each), ": no connection");
    const Bytes bytes = each.state == kProved ? connection.sealed(store_frame(each.type, "half"))
                                              : std::exchange(connection.stream().out(), {});
    const bool member = each.state == kProved && each.type == store::Type::kJoin && each.cut == bytes.size();
    connection.say(ByteView(bytes).first(each.cut));
    connection.end(each.end);
    if (member || each.end == End::kClose || each.end == End::kReset) return "";
    const bool ended = connection.ended_by_other(5000);
    return ended ? "" : cat(text_of(each), ": the store keeps the connection");
  });
  over = true;
  jobs.join();
  INFO(formed.text());
  CHECK(formed.ok());
  CHECK(failures == std::vector<std::string>());
  CHECK(forming > 1);
  CHECK(open_descriptors() <= before + 2);
}

TEST_CASE("a member that stops in the middle of a message to the store is named by the others") {
  const auto server = start_store(system_clock);
  std::vector<StoreCase> cases;
  for (const int state : {kJoined, kGave}) add_cases(state, 0, "job 100", &cases);
  sample(&cases, 5);
  const size_t before = open_descriptors();
  const auto failures = run_cases(cases.size(), [&](size_t i) -> std::string {
    const StoreCase& each = cases[i];
    const std::string job = cat("job ", 100 + i);
    RawConnection connection(server->address(), job_secret());
    std::unique_ptr<StoreExchange> exchange;
    Status found =
        StoreExchange::make(member(*server, 0, job), system_clock, silent, in_ms(kPlenty), &exchange);
    if (!found.ok()) return cat(text_of(each), ": ", describe(found));
    if (!reach(connection, each.state, job)) return cat(text_of(each), ": no connection");
    const uint64_t begin = system_clock.now_ns();
    std::thread honest(
        [&] { found = two_rounds(*exchange, each.end == End::kSilence ? kSilenceMs : kPlenty); });
    const Bytes bytes = connection.sealed(store_frame(each.type, job));
    connection.say(ByteView(bytes).first(std::min(each.cut, bytes.size())));
    connection.end(each.end);
    honest.join();
    if (found.ok() || found.info().ranks != std::vector<int>{1})
      return cat(text_of(each), ": ", describe(found));
    return since_ms(begin) < 5000 ? "" : cat(text_of(each), ": took ", since_ms(begin), " ms");
  });
  CHECK(failures == std::vector<std::string>());
  CHECK(a_job_forms(*server, "afterwards").ok());
  CHECK(open_descriptors() <= before + 4);
}

namespace {

// A store that stops in the middle of one message to each client.
class HalfStore {
 public:
  HalfStore(int state, const Bytes& frame, size_t cut, End end)
      : state_(state), frame_(frame), cut_(cut), end_(end) {
    bool in_use = false;
    if (!listen_at(tcp_address(0), false, &listener_, &address_, &in_use).ok()) std::abort();
    thread_ = std::thread([this] { run(); });
  }
  ~HalfStore() {
    over_ = true;
    thread_.join();
  }
  std::string address() const { return address_.text(); }

 private:
  void run() {
    std::vector<Fd> held;
    while (!over_) {
      if (!wait_for(listener_.get(), POLLIN, system_clock, in_ms(5))) continue;
      Fd fd;
      bool exhausted = false;
      if (accept_from(listener_.get(), &fd, &exhausted).ok() && fd.valid()) {
        serve(fd);
        held.push_back(std::move(fd));
      }
    }
  }
  void serve(Fd& fd) {
    SecureStream stream(Role::kServer, job_secret());
    size_t heard = 0;  // frames
    Bytes out;
    while (!over_) {
      // Sends the hello, the proof, then Joined.
      std::swap(out, stream.out());
      const int at = heard > 1              ? kGave
                     : heard > 0            ? kJoined
                     : stream.established() ? kProved
                     : stream.greeted()     ? kGreeted
                                            : kConnected;
      if (at > state_ || (at == state_ && state_ >= kJoined)) {
        if (at >= kJoined) {
          stream.send(frame_);
          out = std::exchange(stream.out(), {});
        }
        (void)!::send(fd.get(), out.data(), std::min(cut_, out.size()), MSG_NOSIGNAL);
        const Bytes garbage(8192, std::byte{0xEE});
        if (end_ == End::kGarbage) (void)!::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
        const linger at_once{1, 0};
        if (end_ == End::kReset) ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        if (end_ == End::kReset || end_ == End::kClose) fd.reset();
        return;
      }
      (void)!::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
      out.clear();
      if (heard == 1 && !joined_sent_) {
        joined_sent_ = true;
        stream.send(store::encode_plain(store::Type::kJoined));
        continue;
      }
      if (!wait_for(fd.get(), POLLIN, system_clock, in_ms(5))) continue;
      Bytes bytes(1 << 16);
      std::vector<Bytes> frames;
      const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0 || !stream.receive(ByteView(bytes).first(static_cast<size_t>(got)), &frames).ok()) return;
      heard += frames.size();
    }
  }

  const int state_;
  const Bytes frame_;
  const size_t cut_;
  const End end_;
  Fd listener_;
  Address address_;
  bool joined_sent_ = false;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a store that stops in the middle of a message is an error that names it, within the deadline") {
  REQUIRE(init_crypto().ok());
  std::vector<StoreCase> cases;
  for (const int state : {kConnected, kGreeted}) {
    const size_t size = state == kConnected ? Hello::kBytes : sizeof(Key);
    for (const size_t cut : cuts(8, size)) {
      for (const End end : kEnds) cases.push_back({store::Type::kJoin, state, cut, end});
    }
  }
  for (const int state : {kJoined, kGave}) {
    add_cases(state, state == kJoined ? crypto_secretstream_xchacha20poly1305_HEADERBYTES : 0, "job", &cases);
  }
  sample(&cases, 9);
  const size_t before = open_descriptors();
  const auto failures = run_cases(cases.size(), [&](size_t i) -> std::string {
    const StoreCase& each = cases[i];
    Status found;
    std::string place;
    const uint64_t begin = system_clock.now_ns();
    {
      const HalfStore store(each.state, store_frame(each.type, "job"), each.cut, each.end);
      place = store.address();
      StoreOptions options = store_options(place, 1, 2);
      options.key = job_secret();
      options.job = "job";
      found = two_rounds(options, kSilenceMs);
    }
    if (since_ms(begin) > 5000) return cat(text_of(each), ": took ", since_ms(begin), " ms");
    if (found.ok()) return cat(text_of(each), ": no error");
    const bool named = found.text().find(place) != std::string::npos ||
                       found.text().find("rank 0") != std::string::npos ||
                       found.text().find("rank 1 gives up") == 0;
    return named ? "" : cat(text_of(each), ": ", describe(found));
  });
  CHECK(failures == std::vector<std::string>());
  CHECK(open_descriptors() <= before);
}

// ---- the mesh ------------------------------------------------------------------------------------------

namespace {

// Returns a valid frame of each type; empty for a type that this table lacks.
Bytes mesh_frame(mesh::MeshFrame type) {
  using mesh::MeshFrame;
  switch (type) {
    case MeshFrame::kHello:
      return mesh::hello_frame(1);
    case MeshFrame::kMessage:
      return mesh::message_frame(view("a message"));
    case MeshFrame::kFd:
    case MeshFrame::kGoodbye:
    case MeshFrame::kHeartbeat:
    case MeshFrame::kMissed:
      return mesh::plain_frame(type);
  }
  return {};
}

enum MeshState { kShook, kFormed, kStarted, kLeft, kLeaving };

struct MeshCase {
  mesh::MeshFrame type = mesh::MeshFrame::kHello;
  int state = 0;
  size_t cut = 0;
  size_t size = 0;
  End end = End::kSilence;
  bool whole() const { return cut == size; }
};

std::string text_of(const MeshCase& each) {
  return cat("mesh frame ", static_cast<int>(each.type), " in state ", each.state, ", cut to ", each.cut,
             " of ", each.size, ", then ", name(each.end));
}

// Records events on any thread, without assertions.
class Events final : public ControlListener {
 public:
  void on_peer_lost(int, const Status& why) override {
    const std::lock_guard lock(mutex_);
    why_ = why;
    changed_.notify_all();
  }
  void on_peer_left(int) override {
    const std::lock_guard lock(mutex_);
    left_ = true;
    changed_.notify_all();
  }
  void on_message(int, ByteView) override {}
  // Waits until the peer is lost or has left. Returns false if neither happens in time.
  bool wait(int64_t ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return left_ || !why_.ok(); });
  }
  Status lost() {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  bool left() {
    const std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Status why_;
  bool left_ = false;
};

// Rank 1 of two, which makes its part of the group setup by hand.
struct RogueRank {
  explicit RogueRank(const std::string& store) {
    if (!StoreExchange::make(store_options(store, 1, 2), system_clock, silent, in_ms(kPlenty), &exchange)
             .ok())
      return;
    mesh::Advertisement mine, theirs;
    mine.unix_name = "weft-test-nobody-listens-here";
    mine.heartbeat_timeout_ms = 300;
    std::vector<Bytes> all;
    if (!exchange->all_gather(mesh::encode(mine), &all, in_ms(kPlenty)).ok() ||
        !mesh::decode(all[0], &theirs))
      return;
    Address address;
    address.kind = Address::Kind::kUnix;
    address.name = theirs.unix_name;
    connection = std::make_unique<RawConnection>(address, AuthKey{theirs.key, true});
    shook = connection->open() && connection->prove();
  }
  bool form() {
    Bytes hello;
    std::vector<Bytes> all;
    return shook && connection->send(mesh::hello_frame(1)) && connection->hear_frame(&hello) &&
           exchange->all_gather({}, &all, in_ms(kPlenty)).ok();
  }
  std::unique_ptr<StoreExchange> exchange;
  std::unique_ptr<RawConnection> connection;
  bool shook = false;
};

Status honest_rank(const std::string& store, int64_t ms, std::unique_ptr<StoreExchange>* exchange,
                   std::unique_ptr<SocketMesh>* mesh) {
  WEFT_TRY(StoreExchange::make(store_options(store, 0, 2), system_clock, silent, in_ms(kPlenty), exchange));
  MeshOptions options;
  options.heartbeat_timeout_ms = 300;
  options.deadline = in_ms(ms);
  return SocketMesh::make(**exchange, options, system_clock, silent, mesh);
}

std::string run_mesh_case(const MeshCase& each) {
  const std::string store = unique_store();
  std::unique_ptr<StoreExchange> exchange;
  std::unique_ptr<SocketMesh> mesh;
  Status formed;
  std::thread honest(
      [&] { formed = honest_rank(store, each.state == kShook ? kSilenceMs : kPlenty, &exchange, &mesh); });
  RogueRank rogue(store);
  const bool ready = each.state == kShook ? rogue.shook : rogue.form();
  const auto misbehave = [&] {
    const Bytes bytes = rogue.connection->sealed(mesh_frame(each.type));
    rogue.connection->say(ByteView(bytes).first(std::min(each.cut, bytes.size())));
    rogue.connection->end(each.end);
  };
  if (ready && each.state == kShook) misbehave();
  honest.join();
  if (!ready) return cat(text_of(each), ": the ranks have not met: ", describe(formed));
  if (each.state == kShook) {
    return !formed.ok() && formed.info().ranks == std::vector<int>{1}
               ? ""
               : cat(text_of(each), ": ", describe(formed));
  }
  if (!formed.ok()) return cat(text_of(each), ": ", describe(formed));

  Events events;
  const uint64_t begin = system_clock.now_ns();
  if (each.state == kFormed) {
    misbehave();
    Fd none;
    const Status received = mesh->receive_fd(1, &none, in_ms(50));
    if (received.ok() || received.info().ranks != std::vector<int>{1})
      return cat(text_of(each), ": receive_fd: ", describe(received));
  }
  mesh->start(&events);
  if (each.state == kLeft) {
    rogue.connection->send(mesh::plain_frame(mesh::MeshFrame::kGoodbye));
    if (!events.wait(kPlenty) || !events.left()) return cat(text_of(each), ": no goodbye arrived");
  }
  if (each.state == kLeaving) mesh->leave();
  if (each.state != kFormed) misbehave();
  if (each.state == kLeaving) {
    mesh.reset();
    return since_ms(begin) < 5000 ? "" : cat(text_of(each), ": the end took ", since_ms(begin), " ms");
  }
  if (each.state == kLeft) ::poll(nullptr, 0, 50);
  if (!events.wait(5000)) return cat(text_of(each), ": nothing was noticed");
  const Status why = events.lost();
  mesh->stop();
  if (each.state == kLeft || (each.whole() && each.type == mesh::MeshFrame::kGoodbye))
    return why.ok() ? "" : cat(text_of(each), ": lost after its goodbye: ", describe(why));
  const int accused = each.whole() && each.type == mesh::MeshFrame::kMissed ? 0 : 1;
  return why.code() == Code::kPeerFailed && why.info().ranks == std::vector<int>{accused}
             ? ""
             : cat(text_of(each), ": ", describe(why));
}

}  // namespace

TEST_CASE("a rank that stops in the middle of a control frame is named, in every state of the channel") {
  REQUIRE(init_crypto().ok());
  std::vector<MeshCase> cases;
  for (const int state : {kShook, kFormed, kStarted, kLeft, kLeaving}) {
    const size_t stream = state == kShook ? crypto_secretstream_xchacha20poly1305_HEADERBYTES : 0;
    for (const mesh::MeshFrame type : enumerators<mesh::MeshFrame>()) {
      const Bytes frame = mesh_frame(type);
      REQUIRE(mesh::type_of(frame) == type);  // the table has a row for each type
      const size_t size = stream + kLengthBytes + frame.size() + crypto_secretstream_xchacha20poly1305_ABYTES;
      if (state == kShook && type == mesh::MeshFrame::kHello) continue;  // whole, it is the next step
      for (const size_t cut : cuts(stream + kLengthBytes, size)) {
        for (const End end : kEnds) cases.push_back({type, state, cut, size, end});
      }
    }
  }
  sample(&cases, 11);
  const size_t before = open_descriptors();
  const auto failures = run_cases(cases.size(), [&](size_t i) { return run_mesh_case(cases[i]); });
  CHECK(failures == std::vector<std::string>());
  CHECK(open_descriptors() <= before);
}

}  // namespace unit_half_frames
