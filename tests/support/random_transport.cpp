#include "support/random_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "support/seed.h"

namespace weft::test {
namespace {

using Packet = std::vector<unsigned char>;

// Holds the frames that other ranks have sent to a rank. Threads: any.
struct Inbox {
  std::mutex mutex;
  std::vector<std::deque<Packet>> packets;  // by sender
  bool closed = false;                      // its rank's link is closed
};

// A frame in flight, whose memory is not read yet.
struct Frame {
  const void* head;
  uint64_t head_bytes;
  const void* data;
  uint64_t data_bytes;
  uint64_t token;
};

struct Peer {
  std::shared_ptr<Inbox> inbox;  // null: not connected, or closed
  std::deque<Frame> kept;        // in the order in which they must arrive
  bool reports_loss = false;     // once the other rank has closed its link
  bool lost = false;             // nothing is sent to it or received from it any more
};

// A frame whose memory is to be given back.
struct Read {
  uint64_t token;
  weft_status status;
};

class RandomLink;

// The links of this process by number, which is their address.
struct Network {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Inbox>> inboxes;
  std::map<int, uint64_t> made;       // number of links of each rank
  std::map<int, RandomLink*> newest;  // link of each rank, until it is closed
  uint64_t next = 1;
};

Network& network() {
  static Network one;
  return one;
}

// Threads: one at a time, as for every link.
class RandomLink {
 public:
  // plain: each frame leaves at once.
  RandomLink(int rank, int size, const weft_transport_events& events, bool plain)
      : rank_(rank),
        plain_(plain),
        events_(events),
        peers_(static_cast<size_t>(size)),
        inbox_(std::make_shared<Inbox>()) {
    inbox_->packets.resize(static_cast<size_t>(size));
    Network& all = network();
    const std::lock_guard lock(all.mutex);
    number_ = all.next++;
    all.inboxes[number_] = inbox_;
    all.newest[rank] = this;
    std::seed_seq seed{base_seed(), static_cast<uint64_t>(rank), all.made[rank]++};
    random_.seed(seed);
    laziness_ = draw(3);
  }
  ~RandomLink() {
    {
      const std::lock_guard lock(inbox_->mutex);
      inbox_->closed = true;
    }
    const std::lock_guard lock(network().mutex);
    network().inboxes.erase(number_);
    if (network().newest[rank_] == this) network().newest.erase(rank_);
  }
  RandomLink(const RandomLink&) = delete;
  RandomLink& operator=(const RandomLink&) = delete;

  uint64_t number() const { return number_; }

  // Lets the connection to a rank die. Any thread, while the link exists.
  void end_connection(int rank) { dying_ = rank; }

  weft_status connect(int rank, uint64_t number, weft_transport_limits* limits) {
    constexpr uint64_t kPieces[] = {1024, 4096, 17'000, 65'536, 1'000'000};
    constexpr uint64_t kEager[] = {0, 1, 1000, 40'000, 524'288};
    if (draw(4) != 0) limits->piece_bytes = kPieces[draw(std::size(kPieces))];
    if (draw(4) != 0) limits->eager_bytes = kEager[draw(std::size(kEager))];
    Peer& to = peer(rank);
    to.reports_loss = draw(2) == 0;
    const std::lock_guard lock(network().mutex);
    const auto found = network().inboxes.find(number);
    if (found == network().inboxes.end()) return WEFT_ERR_PEER_FAILED;
    to.inbox = found->second;
    return WEFT_OK;
  }

  weft_transport_result send(int rank, const Frame& frame) {
    Peer& to = peer(rank);
    if (to.inbox == nullptr || to.lost) return WEFT_TRANSPORT_LOST;
    // Before this frame is sent, because Weft does not know its token yet.
    if (draw(3) == 0) give_back(draw(4));
    if (has_ended(rank) && draw(2) == 0) return lose_amid_send(rank, frame);
    if (!plain_ && (!to.kept.empty() || draw(2) == 0)) {
      to.kept.push_back(frame);
      if (draw(4) == 0) send_kept(rank, 1 + draw(4));
      return WEFT_TRANSPORT_LENT;
    }
    deliver(to, frame);
    if (draw(2) == 0) return WEFT_TRANSPORT_SENT;
    read_.push_back({frame.token, WEFT_OK});
    return WEFT_TRANSPORT_LENT;
  }

  bool progress() {
    if (draw(laziness_ + 1) != 0) return false;
    bool any = false;
    for (uint64_t steps = 1 + draw(4 * peers_.size()); steps > 0; steps--) {
      switch (draw(4)) {
        case 0:
          any |= send_kept(static_cast<int>(draw(peers_.size())), 1 + draw(8));
          break;
        case 1:
          any |= give_back(1 + draw(8));
          break;
        default:
          any |= receive(static_cast<int>(draw(peers_.size())));
      }
    }
    return any;
  }

  // Frames that are not read yet are sent after all, or dropped. Their memory is given back now or later.
  void close_peer(int rank) {
    Peer& to = peer(rank);
    const bool drops = draw(2) == 0;
    for (const Frame& frame : std::exchange(to.kept, {})) {
      if (!drops) deliver(to, frame);
      read_.push_back({frame.token, drops ? WEFT_ERR_PEER_FAILED : WEFT_OK});
    }
    to.inbox = nullptr;
    if (draw(2) == 0) give_back(draw(8));
  }

  bool settled() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& one) { return one.kept.empty(); });
  }

 private:
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  // Draws a number below `end`.
  uint64_t draw(uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(random_); }

  void deliver(const Peer& to, const Frame& frame) {
    Packet packet(frame.head_bytes + frame.data_bytes);
    std::memcpy(packet.data(), frame.head, frame.head_bytes);
    if (frame.data_bytes > 0) std::memcpy(packet.data() + frame.head_bytes, frame.data, frame.data_bytes);
    const std::lock_guard lock(to.inbox->mutex);
    if (!to.inbox->closed) to.inbox->packets[static_cast<size_t>(rank_)].push_back(std::move(packet));
  }

  // Returns true if the connection has died, or the other rank has closed its link and that is reported.
  bool has_ended(int rank) {
    const Peer& to = peer(rank);
    return dying_ == rank || (to.reports_loss && to.inbox != nullptr && is_closed(*to.inbox));
  }

  const char* reason() { return draw(2) == 0 ? "its link is closed" : nullptr; }

  // Loses a peer. The memory of its frames is given back later.
  void lose(int rank) {
    Peer& to = peer(rank);
    to.lost = true;
    for (const Frame& frame : std::exchange(to.kept, {}))
      read_.push_back({frame.token, WEFT_ERR_PEER_FAILED});
  }

  // Loses a peer in one of the ways in which send may say so.
  weft_transport_result lose_amid_send(int rank, const Frame& frame) {
    lose(rank);
    const uint64_t way = draw(5);
    if (way > 1) events_.lost(events_.owner, rank, reason());
    if (way > 2) return way == 3 ? WEFT_TRANSPORT_LOST : WEFT_TRANSPORT_SENT;
    if (way == 1) return WEFT_TRANSPORT_LOST;
    read_.push_back({frame.token, WEFT_ERR_PEER_FAILED});  // in way 0 this alone says that the peer is lost
    return WEFT_TRANSPORT_LENT;
  }

  // Sends the oldest frames of a peer, or loses it. Their memory is given back later.
  bool send_kept(int rank, uint64_t count) {
    Peer& to = peer(rank);
    if (!to.kept.empty() && has_ended(rank) && draw(2) == 0) {
      lose(rank);
      return true;
    }
    bool any = false;
    for (; count > 0 && !to.kept.empty(); count--, any = true) {
      deliver(to, to.kept.front());
      read_.push_back({to.kept.front().token, WEFT_OK});
      to.kept.pop_front();
    }
    return any;
  }

  // Gives back the memory of some frames in any order.
  bool give_back(uint64_t count) {
    bool any = false;
    for (; count > 0 && !read_.empty(); count--) {
      std::swap(read_[draw(read_.size())], read_.back());
      const Read one = read_.back();
      read_.pop_back();
      events_.sent(events_.owner, one.token, one.status);
      any = true;
    }
    return any;
  }

  // Reports a frame of a peer, at any alignment, or that its connection has ended.
  bool receive(int rank) {
    Peer& from = peer(rank);
    if (from.lost) return false;
    const bool dies = dying_ == rank, ended = has_ended(rank);
    Packet packet;
    bool any = false;
    if (!dies) {
      const std::lock_guard lock(inbox_->mutex);
      std::deque<Packet>& waiting = inbox_->packets[static_cast<size_t>(rank)];
      any = !waiting.empty();
      if (any) {
        packet = std::move(waiting.front());
        waiting.pop_front();
      }
    }
    if (!any) {
      if (!ended) return false;
      lose(rank);
      events_.lost(events_.owner, rank, reason());
      return true;
    }
    const size_t shift = draw(16), size = packet.size();
    packet.insert(packet.begin(), shift, 0);
    events_.heard(events_.owner, packet.data() + shift, size);
    std::fill(packet.begin(), packet.end(), static_cast<unsigned char>(0xEE));
    return true;
  }

  static bool is_closed(Inbox& inbox) {
    const std::lock_guard lock(inbox.mutex);
    return inbox.closed;
  }

  const int rank_;
  const bool plain_;
  const weft_transport_events events_;
  std::vector<Peer> peers_;
  const std::shared_ptr<Inbox> inbox_;
  uint64_t number_ = 0;
  std::mt19937_64 random_;
  uint64_t laziness_ = 0;       // how many calls of progress do nothing, between those that may do something
  std::vector<Read> read_;      // frames in flight that were read or will not be
  std::atomic<int> dying_{-1};  // the rank to which the connection dies
};

RandomLink& link_of(void* link) {
  return *static_cast<RandomLink*>(link);
}

constexpr bool kPlain = true;

weft_status open_link(void* user_data, int32_t rank, int32_t size, const weft_transport_events* events,
                      void** link, void* address, uint64_t* address_bytes) {
  auto made = std::make_unique<RandomLink>(rank, size, *events, user_data == &kPlain);
  const uint64_t number = made->number();
  std::memcpy(address, &number, sizeof number);
  *address_bytes = sizeof number;
  *link = made.release();
  return WEFT_OK;
}

weft_status connect_peer(void* link, int32_t peer, const void* address, uint64_t address_bytes,
                         weft_transport_limits* limits) {
  uint64_t number = 0;
  if (address_bytes != sizeof number) return WEFT_ERR_ARG;
  std::memcpy(&number, address, sizeof number);
  return link_of(link).connect(peer, number, limits);
}

weft_transport_result send_frame(void* link, int32_t peer, const void* head, uint64_t head_bytes,
                                 const void* data, uint64_t data_bytes, uint64_t token) {
  return link_of(link).send(peer, {head, head_bytes, data, data_bytes, token});
}

int32_t progress(void* link) {
  return link_of(link).progress() ? 1 : 0;
}

void close_peer(void* link, int32_t peer) {
  link_of(link).close_peer(peer);
}

int32_t settled(void* link) {
  return link_of(link).settled() ? 1 : 0;
}

const char* path_of(void*, int32_t peer) {
  return peer % 2 == 0 ? nullptr : "memory";
}

void close_link(void* link) {
  delete &link_of(link);
}

weft_transport table_without_settled(const char* name) {
  weft_transport made = WEFT_TRANSPORT_INIT;
  made.name = name;
  made.open = open_link;
  made.connect = connect_peer;
  made.send = send_frame;
  made.progress = progress;
  made.close_peer = close_peer;
  made.close = close_link;
  return made;
}

}  // namespace

const weft_transport* random_transport() {
  static const weft_transport table = [] {
    weft_transport made = table_without_settled("random");
    made.settled = settled;
    made.path = path_of;
    return made;
  }();
  return &table;
}

const weft_transport* plain_random_transport() {
  static const weft_transport table = [] {
    weft_transport made = table_without_settled("random-plain");
    made.user_data = const_cast<bool*>(&kPlain);
    return made;
  }();
  return &table;
}

void end_random_connection(int from, int to) {
  const std::lock_guard lock(network().mutex);
  const auto found = network().newest.find(from);
  if (found != network().newest.end()) found->second->end_connection(to);
}

}  // namespace weft::test
