// A program's own transport. Collectives and a reducer run over it. A transport that violates the interface's
// rules fails operations, by its name, and never the process.
#include <weft/weft_transport.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "support/catch.h"

namespace capi_transport {

using weft_test::Rank;

namespace {

using Packet = std::vector<unsigned char>;

enum class Misuse {
  kNone,
  kLend,           // keeps every frame until the next progress call
  kInside,         // the same, or completes it inside the next send
  kTwice,          // completes each kept frame twice
  kUnknownToken,   // completes a token that it never had
  kBoth,           // completes a frame and returns that it was sent
  kStrangeAnswer,  // returns an undefined answer
  kSwallow,        // delivers nothing, once the ranks have connected
  kCut,            // delivers half of each frame
  kRepeat,         // delivers each frame twice
  kNoise,          // delivers frames of its own in between
  kLoses,          // loses a peer
  kLosesNobody,    // loses a rank that does not exist
  kEarly,          // calls back while it connects
  kOtherThread,    // calls back on a thread of its own
  kKeeps,          // never completes the frames that it keeps
  kLate,           // delivers after the operation has failed
};

// Passes frames between threads.
struct Hub {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<Packet>> packets;  // from, to
};

// One test's network; the user_data of its table.
struct Network {
  Hub hub;
  Misuse misuse = Misuse::kNone;
  std::atomic<bool> wicked{false};  // fault injection is on, once the ranks have connected
  std::atomic<bool> was_elsewhere{false};
  std::atomic<int> failed{0};  // ranks whose operation has ended
  uint64_t piece_bytes = 4096;
  uint64_t address_bytes = sizeof(int);
  weft_status opens = WEFT_OK;
  weft_status connects = WEFT_OK;
};

struct Link {
  Network* network;
  weft_transport_events events;
  int rank;
  int size;
  std::vector<uint64_t> lent;
};

weft_status open_link(void* user_data, int32_t rank, int32_t size, const weft_transport_events* events,
                      void** link, void* address, uint64_t* address_bytes) {
  auto& network = *static_cast<Network*>(user_data);
  if (network.opens != WEFT_OK) return network.opens;
  *link = new Link{&network, *events, rank, size, {}};
  std::memcpy(address, &rank, sizeof rank);
  *address_bytes = network.address_bytes;
  return WEFT_OK;
}

weft_status connect_peer(void* self, int32_t peer, const void* address, uint64_t address_bytes,
                         weft_transport_limits* limits) {
  const auto& link = *static_cast<Link*>(self);
  int said = -1;
  if (address_bytes == sizeof said) std::memcpy(&said, address, sizeof said);
  if (said != peer) return WEFT_ERR_ARG;
  limits->piece_bytes = link.network->piece_bytes;
  if (link.network->misuse == Misuse::kEarly) link.events.heard(link.events.owner, "early", 5);
  return link.network->connects;
}

int32_t send_frame(void* self, int32_t peer, const void* head, uint64_t head_bytes, const void* data,
                   uint64_t data_bytes, uint64_t token) {
  auto& link = *static_cast<Link*>(self);
  Network& network = *link.network;
  const Misuse misuse = network.wicked ? network.misuse : Misuse::kNone;
  Packet packet(head_bytes + data_bytes);
  std::memcpy(packet.data(), head, head_bytes);
  if (data_bytes > 0) std::memcpy(packet.data() + head_bytes, data, data_bytes);
  if (misuse == Misuse::kCut) packet.resize(packet.size() / 2);
  const int times = misuse == Misuse::kSwallow ? 0 : misuse == Misuse::kRepeat ? 2 : 1;
  {
    const std::lock_guard lock(network.hub.mutex);
    auto& queue = network.hub.packets[{link.rank, peer}];
    for (int i = 0; i < times; i++) queue.push_back(packet);
    if (misuse == Misuse::kNoise) queue.push_back(Packet(100, 0xAB));
  }
  if (misuse == Misuse::kBoth) link.events.sent(link.events.owner, token, WEFT_OK);
  if (misuse == Misuse::kStrangeAnswer) return 77;
  if (misuse == Misuse::kKeeps) return WEFT_TRANSPORT_LENT;
  if (misuse == Misuse::kInside) {
    for (const uint64_t kept : std::exchange(link.lent, {})) {
      link.events.sent(link.events.owner, kept, WEFT_OK);
    }
  }
  if (misuse != Misuse::kLend && misuse != Misuse::kInside && misuse != Misuse::kTwice)
    return WEFT_TRANSPORT_SENT;
  link.lent.push_back(token);
  return WEFT_TRANSPORT_LENT;
}

int32_t progress(void* self) {
  auto& link = *static_cast<Link*>(self);
  Network& network = *link.network;
  void* const owner = link.events.owner;
  const Misuse misuse = network.wicked ? network.misuse : Misuse::kNone;
  for (const uint64_t token : std::exchange(link.lent, {})) {
    link.events.sent(owner, token, WEFT_OK);
    if (misuse == Misuse::kTwice) link.events.sent(owner, token, WEFT_OK);
  }
  if (misuse == Misuse::kUnknownToken) link.events.sent(owner, UINT64_MAX, WEFT_OK);
  if (misuse == Misuse::kLoses)
    link.events.lost(owner, (link.rank + 1) % link.size, "somebody pulled the plug");
  if (misuse == Misuse::kLosesNobody) link.events.lost(owner, link.size, nullptr);
  if (misuse == Misuse::kOtherThread && !network.was_elsewhere.exchange(true)) {
    std::thread([&] { link.events.heard(owner, "else", 4); }).join();
  }
  int32_t any = 0;
  if (misuse == Misuse::kLate && network.failed < link.size) return any;
  for (int from = 0; from < link.size; from++) {
    Packet packet;
    {
      const std::lock_guard lock(network.hub.mutex);
      auto& queue = network.hub.packets[{from, link.rank}];
      if (queue.empty()) continue;
      packet = std::move(queue.front());
      queue.pop_front();
    }
    link.events.heard(owner, packet.data(), packet.size());
    any = 1;
  }
  return any;
}

void close_peer(void*, int32_t) {}
void close_link(void* link) {
  delete static_cast<Link*>(link);
}

weft_transport table(Network& network) {
  weft_transport made = WEFT_TRANSPORT_INIT;
  made.name = "threads";
  made.user_data = &network;
  made.open = open_link;
  made.connect = connect_peer;
  made.send = send_frame;
  made.progress = progress;
  made.close_peer = close_peer;
  made.close = close_link;
  return made;
}

// Runs the body over the network. Returns the errors of the communicator's creation.
std::string run_over(Network& network, int size, const std::function<void(Rank&)>& body) {
  return weft_test::run("threads", size, WEFT_PROGRESS_THREAD, nullptr, body, [&](Rank& rank) {
    const weft_transport made = table(network);
    weft_context_add_transport(rank.context, &made, nullptr);
  });
}

// Large enough for several pieces, and for an offer before the data.
constexpr size_t kCount = 300'000;

weft_status sum_up(weft_comm* comm, size_t count, int64_t timeout_ms, bool* right) {
  std::vector<int32_t> values(count, 1);
  int32_t size = 0;
  weft_comm_size(comm, &size);
  weft_coll_options options = WEFT_COLL_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  const weft_status status = weft_all_reduce(comm, values.data(), values.data(), values.size(),
                                             WEFT_DTYPE_I32, WEFT_OP_SUM, &options, nullptr);
  *right = std::count(values.begin(), values.end(), size) == static_cast<std::ptrdiff_t>(count);
  return status;
}

}  // namespace

TEST_CASE("collectives run over a program's own transport, whether it keeps frames or not") {
  for (const Misuse misuse :
       {Misuse::kNone, Misuse::kLend, Misuse::kInside, Misuse::kOtherThread, Misuse::kNoise}) {
    Network network;
    network.misuse = misuse;
    std::atomic<int> wrong{0};
    const std::string error = run_over(network, 3, [&](Rank& rank) {
      network.wicked = true;
      for (const size_t count : {size_t{1}, size_t{5000}, kCount}) {
        bool right = false;
        if (sum_up(rank.comm, count, 20'000, &right) != WEFT_OK || !right) wrong++;
      }
      weft_comm_info info{};
      info.struct_size = sizeof info;
      if (weft_comm_query(rank.comm, &info) != WEFT_OK || std::string(info.backend) != "threads") wrong++;
    });
    INFO("vice " << static_cast<int>(misuse));
    CHECK(error == "");
    CHECK(wrong == 0);
  }
}

TEST_CASE("a transport that breaks the rules fails the operation, by name, and nothing else") {
  struct Case {
    Misuse misuse;
    const char* said;
  };
  for (const Case& c :
       {Case{Misuse::kTwice, "twice"}, Case{Misuse::kUnknownToken, "was not given"},
        Case{Misuse::kBoth, "did not return WEFT_TRANSPORT_LENT"},
        Case{Misuse::kStrangeAnswer, "returned 77 from send"}, Case{Misuse::kLoses, "pulled the plug"},
        Case{Misuse::kLosesNobody, "called lost with peer"}, Case{Misuse::kSwallow, ""},
        Case{Misuse::kCut, ""}, Case{Misuse::kRepeat, ""}, Case{Misuse::kKeeps, ""},
        Case{Misuse::kLate, ""}}) {
    Network network;
    network.misuse = c.misuse;
    std::atomic<int> wrong{0}, good{0};
    std::mutex mutex;
    std::string texts;
    const std::string error = run_over(network, 2, [&](Rank& rank) {
      bool right = false;
      if (sum_up(rank.comm, 10, 20'000, &right) != WEFT_OK || !right) wrong++;
      for (good++; good != rank.size;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      network.wicked = true;
      // A frame that arrives twice must do no harm; then the sum is right.
      const weft_status status = sum_up(rank.comm, kCount, 1500, &right);
      if (status == WEFT_OK ? !right || c.misuse != Misuse::kRepeat : false) wrong++;
      if (c.misuse == Misuse::kLate) {
        for (network.failed++; network.failed != rank.size;) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        // Frames that arrive now belong to no operation.
        if (sum_up(rank.comm, 10, 1500, &right) != status) wrong++;
      }
      weft_error details = WEFT_ERROR_INIT;
      weft_comm_error(rank.comm, &details);
      const std::lock_guard lock(mutex);
      texts += details.text;
    });
    INFO("vice " << static_cast<int>(c.misuse) << ": " << texts);
    CHECK(error == "");
    CHECK(wrong == 0);
    CHECK(texts.find(c.said) != std::string::npos);
  }
}

TEST_CASE("a transport that fails to open, reach its peers or report its address creates no communicator") {
  struct Case {
    std::function<void(Network&)> spoil;
    const char* said;
  };
  const std::vector<Case> cases = {
      {[](Network& n) { n.opens = WEFT_ERR_SYSTEM; }, "open failed with"},
      {[](Network& n) { n.connects = WEFT_ERR_PEER_FAILED; }, "does not reach rank"},
      {[](Network& n) { n.address_bytes = 0; }, "address of 0 bytes"},
      {[](Network& n) { n.address_bytes = WEFT_TRANSPORT_ADDRESS + 1; }, "address of 65537 bytes"},
      {[](Network& n) { n.piece_bytes = 0; }, "limits out of range"},
      {[](Network& n) { n.piece_bytes = UINT64_MAX; }, "limits out of range"},
      {[](Network& n) { n.misuse = Misuse::kEarly; }, "outside of the functions that may call it"},
  };
  for (const Case& c : cases) {
    Network network;
    c.spoil(network);
    const std::string error = run_over(network, 2, [](Rank&) {});
    INFO(error);
    CHECK(error.find(c.said) != std::string::npos);
    CHECK(error.find("\"threads\"") != std::string::npos);
  }
}

TEST_CASE("a transport's table is checked when it is added") {
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(nullptr, &context, nullptr) == WEFT_OK);
  Network network;
  const auto refused = [&](const std::function<void(weft_transport&)>& spoil) {
    weft_transport made = table(network);
    spoil(made);
    weft_error error = WEFT_ERROR_INIT;
    CHECK(weft_context_add_transport(context, &made, &error) == WEFT_ERR_ARG);
    return std::string(error.text);
  };
  CHECK(refused([](weft_transport& t) { t.open = nullptr; }).find("open is NULL") != std::string::npos);
  CHECK(refused([](weft_transport& t) { t.close_peer = nullptr; }).find("close_peer") != std::string::npos);
  CHECK(refused([](weft_transport& t) { t.name = "Capital"; }).find("Capital") != std::string::npos);
  CHECK(refused([](weft_transport& t) { t.name = ""; }).find("1 to 27") != std::string::npos);
  CHECK(refused([](weft_transport& t) { t.name = "shm"; }).find("the name of an existing backend") !=
        std::string::npos);
  CHECK(refused([](weft_transport& t) { t.flags = 1; }).find("unknown flags") != std::string::npos);
  CHECK(refused([](weft_transport& t) { t.struct_size = 3; }) != "");
  CHECK(weft_context_add_transport(context, nullptr, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_context_add_transport(nullptr, nullptr, nullptr) == WEFT_ERR_ARG);

  uint64_t before = 0, after = 0;
  CHECK(weft_backend_count(context, &before) == WEFT_OK);
  const weft_transport made = table(network);
  CHECK(weft_context_add_transport(context, &made, nullptr) == WEFT_OK);
  CHECK(weft_context_add_transport(context, &made, nullptr) == WEFT_ERR_ARG);
  CHECK(weft_backend_count(context, &after) == WEFT_OK);
  CHECK(after == before + 2);  // by itself, and with shm inside hosts
  weft_context_destroy(&context);
}

}  // namespace capi_transport
