// State that a SocketMesh shares with its control thread. mesh.h describes the protocol.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "rendezvous/heartbeat.h"
#include "rendezvous/mesh.h"
#include "rendezvous/mesh_connect.h"

namespace weft {

// State of one peer. Before start() the thread that creates the communicator owns it, afterwards the control
// thread. send_mutex always guards sending.
struct MeshPeer {
  int rank = -1;
  bool same_host = false;
  Connection connection;
  Fd process;  // pidfd of a rank of this host that is another process
  int pid = 0;

  std::deque<Bytes> early;  // frames received before start()
  std::deque<Fd> fds;       // received descriptors, one per kFd frame
  int fd_frames = 0;        // received kFd frames that were not fetched
  // Time of the last complete frame, corrected for pauses of this thread; valid from begin() on.
  uint64_t heard_ns = 0;
  bool left = false;   // the peer has sent its goodbye
  bool ended = false;  // nothing more can be read
  Status why_ended;

  std::mutex send_mutex;
  bool broken = false;   // guarded by send_mutex: a write has failed
  bool polled = false;   // guarded by send_mutex: the connection is registered with epoll
  bool writing = false;  // guarded by send_mutex: epoll waits until it is writable
};

struct SocketMesh::Core {
  Core(int own_rank, int64_t heartbeat_ms, Clock& its_clock, Log& its_log)
      : rank(own_rank), clock(its_clock), log(its_log), heartbeat(heartbeat_ms) {}

  // Returns a peer, or null for this rank and for invalid ranks.
  MeshPeer* peer(int other) const;
  void wake();

  // Functions for group setup.
  Status take_process(MeshPeer& peer);
  Status read_early(MeshPeer& peer);

  // Functions for sending. Any thread.
  void send(MeshPeer& peer, ByteView frame);
  bool flush(MeshPeer& peer);  // needs send_mutex; returns true if everything is written

  // Functions of the control thread.
  void run();
  void look(std::array<epoll_event, 64>& events);
  void begin();
  void on_event(MeshPeer& peer, bool process, uint32_t events);
  void read(MeshPeer& peer);
  void deliver(MeshPeer& peer, ByteView frame);
  void end(MeshPeer& peer, const Status& why);
  Deadline next_look() const;
  void forgive(uint64_t pause_ns, uint64_t now_ns);
  void send_plain(MeshPeer& peer, mesh::MeshFrame type);
  void give_signs_of_life();
  std::string missed_text(int missed) const;
  void judge(MeshPeer& peer, uint64_t now_ns);
  Status gone(const MeshPeer& peer) const;
  static Status broken(const MeshPeer& peer, const Status& why);
  bool stopped() const { return stopping.load(std::memory_order_acquire); }

  const int rank;
  Clock& clock;
  Log& log;
  std::vector<std::unique_ptr<MeshPeer>> peers;  // by rank; null for this rank
  Fd epoll, wake_up;
  std::atomic<ControlListener*> listener{nullptr};
  std::atomic<bool> stopping{false};
  std::atomic<bool> leaving{false};
  bool begun = false;   // used by the control thread only
  Heartbeat heartbeat;  // used by the control thread only

  std::mutex join_mutex;
  std::thread thread;  // joined with join_mutex held
  std::atomic<std::thread::id> thread_id{};
};

}  // namespace weft
