// What a SocketMesh and its thread share. See mesh.h for what happens when.
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
#include "rendezvous/mesh_form.h"

namespace weft {

// Everything about one other rank. Before start() it belongs to the thread that forms the comm, afterwards to
// the control thread; what is sent is guarded by send_mutex at all times.
struct MeshPeer {
  int rank = -1;
  bool same_host = false;
  Connection connection;
  Fd process;  // a pidfd, for ranks of this host that are other processes
  int pid = 0;

  std::deque<Bytes> early;  // frames that came before start()
  std::deque<Fd> fds;       // descriptors that came, one for each kFd frame
  int fd_frames = 0;        // kFd frames that came and were not fetched
  uint64_t heard_ns = 0;    // when a whole frame came last, our own pauses forgiven; from begin() on
  bool left = false;        // said farewell
  bool ended = false;       // nothing can be read any more
  Status why_ended;

  std::mutex send_mutex;
  bool broken = false;   // guarded by send_mutex: writing has failed
  bool polled = false;   // guarded by send_mutex: epoll knows the connection
  bool writing = false;  // guarded by send_mutex: epoll tells when it can be written
};

struct SocketMesh::Core {
  Core(int own_rank, int64_t heartbeat_ms, Clock& its_clock, Log& its_log)
      : rank(own_rank), clock(its_clock), log(its_log), heartbeat(heartbeat_ms) {}

  // A peer, or null for the own rank and for numbers that are no rank.
  MeshPeer* peer(int other) const;
  void wake();

  // Forming.
  Status take_process(MeshPeer& peer);
  Status read_early(MeshPeer& peer);

  // Sending: any thread.
  void send(MeshPeer& peer, ByteView frame);
  bool flush(MeshPeer& peer);  // with send_mutex held: whether everything is written

  // The control thread.
  void run();
  void look(std::array<epoll_event, 64>& events);
  void begin();
  void on_event(MeshPeer& peer, bool process, uint32_t events);
  void read(MeshPeer& peer);
  void deliver(MeshPeer& peer, ByteView frame);
  void end(MeshPeer& peer, const Status& why);
  Deadline next_look() const;
  void forgive(uint64_t pause_ns, uint64_t now_ns);
  void send_plain(MeshPeer& peer, mesh::Type type);
  void give_signs_of_life();
  std::string missed_text(int missed) const;
  void judge(MeshPeer& peer, uint64_t now_ns);
  Status gone(const MeshPeer& peer) const;
  bool stopped() const { return stopping.load(std::memory_order_acquire); }

  const int rank;
  Clock& clock;
  Log& log;
  std::vector<std::unique_ptr<MeshPeer>> peers;  // by rank; null for the own one
  Fd epoll, wake_up;
  std::atomic<ControlListener*> listener{nullptr};
  std::atomic<bool> stopping{false};
  std::atomic<bool> leaving{false};
  bool begun = false;   // the control thread's
  Heartbeat heartbeat;  // the control thread's

  std::mutex join_mutex;
  std::thread thread;  // joined with join_mutex held
  std::atomic<std::thread::id> thread_id{};
};

}  // namespace weft
