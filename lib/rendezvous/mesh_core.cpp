// The control thread of a mesh, and the state that it shares with sending threads.
#include "rendezvous/mesh_core.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/guard.h"
#include "base/text.h"
#include "rendezvous/socket.h"

namespace weft {
namespace {

using mesh::MeshFrame;

// Most bytes queued for a peer that does not read; further messages are dropped.
constexpr size_t kQueueMost = 8u << 20;

// The source of an epoll event: a rank's connection or process, or the wake-up.
constexpr uint64_t kWakeUp = UINT64_MAX;
uint64_t event_of(int rank, bool process) {
  return static_cast<uint64_t>(rank) * 2 + (process ? 1 : 0);
}

Fd open_process(int socket, pid_t pid) {
#ifdef SO_PEERPIDFD
  constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
  constexpr int kPeerPidfd = 77;  // Linux 6.5; not affected by pid reuse
#endif
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) == 0) return Fd(fd);
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool readable(int fd, int timeout_ms) {
  pollfd ready{fd, POLLIN, 0};
  return fd >= 0 && ::poll(&ready, 1, timeout_ms) > 0;
}

}  // namespace

MeshPeer* SocketMesh::Core::peer(int other) const {
  if (other < 0 || static_cast<size_t>(other) >= peers.size()) return nullptr;
  return peers[static_cast<size_t>(other)].get();
}

void SocketMesh::Core::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_up.get(), &one, sizeof one);
}

// ---- group setup ---------------------------------------------------------------------------------------

Status SocketMesh::Core::take_process(MeshPeer& peer) {
  std::optional<PeerProcess> process;
  WEFT_TRY(peer_process(peer.connection.fd(), &process));
  if (!process || process->pid <= 0 || process->pid == ::getpid()) return {};
  peer.pid = process->pid;
  peer.process = open_process(peer.connection.fd(), process->pid);
  // Without a pidfd (an old kernel, a sandbox) the end of the connection is the only evidence.
  if (!peer.process.valid()) log.debug(cat("mesh: no pidfd for rank ", peer.rank, ", errno ", errno));
  return {};
}

Status SocketMesh::Core::read_early(MeshPeer& peer) {
  std::vector<Bytes> frames;
  std::vector<Fd> fds;
  bool closed = false;
  const Status status = peer.connection.read(&frames, &closed, &fds);
  for (Fd& fd : fds) peer.fds.push_back(std::move(fd));
  for (Bytes& frame : frames) {
    if (mesh::type_of(frame) == MeshFrame::kHeartbeat) continue;  // timeouts are not checked yet
    if (mesh::type_of(frame) != MeshFrame::kFd) {
      peer.early.push_back(std::move(frame));
    } else if (static_cast<size_t>(++peer.fd_frames) > peer.fds.size()) {
      return peer.connection.fds_lost()
                 ? Status::error(Code::kSystem,
                                 cat("a file descriptor from rank ", peer.rank,
                                     " was lost: this process has no descriptors left; raise `ulimit -n`"))
                 : Status::error(Code::kPeerFailed,
                                 cat("rank ", peer.rank, " sent a control frame without its file descriptor"),
                                 Evidence::kConnection)
                       .with_ranks({peer.rank});
    }
  }
  if (closed || !status.ok()) {
    peer.ended = true;
    peer.why_ended = status.ok() ? gone(peer) : broken(peer, status);
  }
  return {};
}

Status SocketMesh::Core::broken(const MeshPeer& peer, const Status& why) {
  return Status::error(Code::kPeerFailed,
                       cat("the control connection to rank ", peer.rank, " failed: ", why.text()),
                       Evidence::kConnection)
      .with_ranks({peer.rank});
}

// ---- sending -------------------------------------------------------------------------------------------

void SocketMesh::Core::send(MeshPeer& peer, ByteView frame) {
  const std::lock_guard lock(peer.send_mutex);
  if (peer.broken) return;
  if (peer.connection.queued() > kQueueMost) {
    log.warn(cat("control message to rank ", peer.rank, " dropped: ", peer.connection.queued(),
                 " bytes are queued already (at most ", kQueueMost, "), because it does not read"));
    return;
  }
  peer.connection.send(frame);
  flush(peer);
}

bool SocketMesh::Core::flush(MeshPeer& peer) {
  if (peer.broken) return true;
  if (!peer.connection.flush()) {
    peer.broken = true;  // the control thread reads the reason
    return true;
  }
  const bool queued = peer.connection.queued() > 0;
  if (peer.polled && queued != peer.writing) {
    peer.writing = queued;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | (queued ? EPOLLOUT : 0u);
    event.data.u64 = event_of(peer.rank, false);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, peer.connection.fd(), &event);
  }
  return !queued;
}

// ---- the control thread --------------------------------------------------------------------------------

void SocketMesh::Core::run() {
  thread_id.store(std::this_thread::get_id());
  epoll_event wake_event{};
  wake_event.events = EPOLLIN;
  wake_event.data.u64 = kWakeUp;
  ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake_up.get(), &wake_event);
  std::array<epoll_event, 64> events;
  while (!stopped()) {
    const Status thrown = guarded_run([&] { look(events); });
    // Received data may be lost.
    ControlListener* const told = listener.load(std::memory_order_acquire);
    if (!thrown.ok() && told != nullptr && !stopped()) told->on_broken(thrown);
  }
}

void SocketMesh::Core::look(std::array<epoll_event, 64>& events) {
  const Deadline look = next_look();
  const int count =
      ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), look.remaining_ms(clock));
  const uint64_t now = clock.now_ns();
  forgive(heartbeat.own_pause_ns(look, now), now);
  for (int i = 0; i < count && !stopped(); i++) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kWakeUp) {
      uint64_t drained;
      [[maybe_unused]] const ssize_t got = ::read(wake_up.get(), &drained, sizeof drained);
      if (!begun && listener.load(std::memory_order_acquire) != nullptr) begin();
    } else if (MeshPeer* about = peer(static_cast<int>(event.data.u64 / 2))) {
      on_event(*about, event.data.u64 % 2 == 1, event.events);
    }
  }
  if (heartbeat.beat(now)) give_signs_of_life();
  for (const auto& each : peers) {
    if (begun && each && !stopped()) judge(*each, now);
  }
}

// ---- heartbeats ----------------------------------------------------------------------------------------

// Returns when the control thread must act next, without any event.
Deadline SocketMesh::Core::next_look() const {
  Deadline look = heartbeat.next();
  for (const auto& each : peers) {
    if (begun && each && !each->ended && !each->left)
      look = look.earlier(heartbeat.missed_at(each->heard_ns));
  }
  return look;
}

void SocketMesh::Core::forgive(uint64_t pause_ns, uint64_t now_ns) {
  if (pause_ns == 0) return;
  for (const auto& each : peers) {
    if (each) each->heard_ns = Heartbeat::forgive(each->heard_ns, pause_ns, now_ns);
  }
}

// Sends a frame that consists of its type only. Skipped if another thread is sending or if it would have to
// wait.
void SocketMesh::Core::send_plain(MeshPeer& peer, MeshFrame type) {
  const std::unique_lock lock(peer.send_mutex, std::try_to_lock);
  if (!lock.owns_lock() || peer.broken || peer.connection.queued() > 0) return;
  peer.connection.send(mesh::plain_frame(type));
  flush(peer);
}

// Sends heartbeats from the start, also while this rank is still in group setup, because other ranks may have
// finished. Skips a peer to which other data is being sent, as that shows liveness too.
void SocketMesh::Core::give_signs_of_life() {
  if (leaving.load()) return;
  for (const auto& each : peers) {
    if (each) send_plain(*each, MeshFrame::kHeartbeat);
  }
}

// now_ns: a time before this thread last read, so that a later pause of this thread does not count against
// the peer.
void SocketMesh::Core::judge(MeshPeer& peer, uint64_t now_ns) {
  if (peer.ended || peer.left || !heartbeat.missed(peer.heard_ns, now_ns)) return;
  // Data that has arrived but is still unread counts.
  while (readable(peer.connection.fd(), 0)) {
    read(peer);
    if (stopped() || peer.ended || peer.left || !heartbeat.missed(peer.heard_ns, now_ns)) return;
  }
  send_plain(peer, MeshFrame::kMissed);
  end(peer,
      Status::error(Code::kPeerFailed, missed_text(peer.rank), Evidence::kHeartbeat).with_ranks({peer.rank}));
}

std::string SocketMesh::Core::missed_text(int missed) const {
  return cat("nothing was received from rank ", missed, " for the heartbeat timeout of ",
             static_cast<double>(heartbeat.budget_ns()) / 1e9,
             " s: its process is stopped, or the network between the ranks fails");
}

// ---- received frames -----------------------------------------------------------------------------------

void SocketMesh::Core::begin() {
  begun = true;
  const uint64_t now = clock.now_ns();
  for (const auto& each : peers) {
    if (!each) continue;
    each->heard_ns = now;
    const bool ended_early = std::exchange(each->ended, false);
    while (!each->early.empty() && !stopped()) {
      deliver(*each, each->early.front());
      each->early.pop_front();
    }
    if (ended_early) end(*each, each->why_ended);
    if (each->ended) continue;
    const std::lock_guard lock(each->send_mutex);
    each->polled = true;
    each->writing = each->connection.queued() > 0;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | (each->writing ? EPOLLOUT : 0u);
    event.data.u64 = event_of(each->rank, false);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, each->connection.fd(), &event);
    if (!each->process.valid()) continue;
    event.events = EPOLLIN;
    event.data.u64 = event_of(each->rank, true);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, each->process.get(), &event);
  }
}

void SocketMesh::Core::on_event(MeshPeer& peer, bool process, uint32_t events) {
  if (peer.ended) return;
  if (process) {
    // Messages sent before its death count, above all a goodbye. A forked child may hold the connection open.
    while (!peer.ended && !stopped() && readable(peer.connection.fd(), 0)) read(peer);
    if (!peer.ended) end(peer, gone(peer));
    return;
  }
  if ((events & EPOLLOUT) != 0) {
    const std::lock_guard lock(peer.send_mutex);
    flush(peer);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read(peer);
}

void SocketMesh::Core::read(MeshPeer& peer) {
  std::vector<Bytes> frames;
  bool closed = false;
  const Status status = peer.connection.read(&frames, &closed);
  if (!frames.empty()) peer.heard_ns = clock.now_ns();
  for (const Bytes& frame : frames) {
    if (stopped() || peer.ended) return;
    deliver(peer, frame);
  }
  if (stopped() || peer.ended) return;
  if (!status.ok()) {
    end(peer, broken(peer, status));
  } else if (closed) {
    end(peer, gone(peer));
  }
}

void SocketMesh::Core::deliver(MeshPeer& peer, ByteView frame) {
  ControlListener* told = listener.load(std::memory_order_acquire);
  switch (mesh::type_of(frame)) {
    case MeshFrame::kMessage:
      told->on_message(peer.rank, frame.subspan(1));
      return;
    case MeshFrame::kGoodbye:
      if (!std::exchange(peer.left, true)) told->on_peer_left(peer.rank);
      return;
    case MeshFrame::kMissed:
      end(peer, Status::error(Code::kPeerFailed, cat("rank ", peer.rank, " reports: ", missed_text(rank)),
                              Evidence::kReport)
                    .with_ranks({rank}));
      return;
    case MeshFrame::kHeartbeat:
    case MeshFrame::kFd:
    case MeshFrame::kHello:
      return;
  }
  end(peer, Status::error(Code::kPeerFailed,
                          cat("rank ", peer.rank, " sent a control frame of ", frame.size(),
                              " bytes with unknown type ", static_cast<int>(mesh::type_of(frame))),
                          Evidence::kConnection)
                .with_ranks({peer.rank}));
}

// Ends a peer's connection; the last event of a peer. The peer may be alive, stopped or behind a bad link.
// Cutting the connection, after the listener call, tells it at once or when it resumes.
void SocketMesh::Core::end(MeshPeer& peer, const Status& why) {
  if (std::exchange(peer.ended, true)) return;
  if (!peer.left && !stopped()) listener.load(std::memory_order_acquire)->on_peer_lost(peer.rank, why);
  const std::lock_guard lock(peer.send_mutex);
  peer.broken = true;
  peer.polled = false;
  if (!peer.connection.open()) return;  // the listener call has destroyed the mesh
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, peer.connection.fd(), nullptr);
  if (peer.process.valid()) ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, peer.process.get(), nullptr);
  peer.connection.shut_down();
}

// Returns why the connection ended, from the best evidence available.
Status SocketMesh::Core::gone(const MeshPeer& peer) const {
  // A dying process closes its connections shortly before its pidfd becomes readable.
  constexpr int kDyingMs = 5;
  const bool dead = readable(peer.process.get(), kDyingMs);
  return Status::error(Code::kPeerFailed,
                       dead ? cat("the process of rank ", peer.rank, " (pid ", peer.pid, ") is gone")
                            : cat("rank ", peer.rank, " closed its control connection without a goodbye"),
                       dead ? Evidence::kProcess : Evidence::kConnection)
      .with_ranks({peer.rank});
}

}  // namespace weft
