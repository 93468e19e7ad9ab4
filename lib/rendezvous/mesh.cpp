#include "rendezvous/mesh.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "base/guard.h"
#include "base/text.h"
#include "rendezvous/mesh_core.h"

namespace weft {
namespace {

constexpr int64_t kSendFdMs = 5000;  // wait for buffer space in a peer's socket
constexpr int64_t kGoodbyeMs = 1000;

Status not_connected(int rank) {
  return Status::error(
      Code::kArg, cat("internal: file descriptors are exchanged with other ranks of this host, and rank ",
                      rank, " is none: this is a bug of Weft, please report it"));
}

}  // namespace

Status SocketMesh::make(Exchange& exchange, const MeshOptions& options, Clock& clock, Log& log,
                        std::unique_ptr<SocketMesh>* mesh) {
  WEFT_TRY(init_crypto());
  std::vector<mesh::PeerConnection> connected;
  mesh::MeshConnector connector(exchange, options, clock, log);
  if (Status status = connector.connect(&connected); !status.ok()) {
    exchange.fail(status);
    return status;
  }
  auto core = std::make_shared<Core>(exchange.rank(), connector.heartbeat_timeout_ms(), clock, log);
  core->epoll = Fd(::epoll_create1(EPOLL_CLOEXEC));
  core->wake_up = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!core->epoll.valid() || !core->wake_up.valid()) return Status::system("epoll_create1, eventfd", errno);
  for (size_t rank = 0; rank < connected.size(); rank++) {
    core->peers.emplace_back();
    if (static_cast<int>(rank) == core->rank) continue;
    auto peer = std::make_unique<MeshPeer>();
    peer->rank = static_cast<int>(rank);
    peer->same_host = connected[rank].same_host;
    peer->connection = std::move(connected[rank].connection);
    if (peer->same_host) WEFT_TRY(core->take_process(*peer));
    core->peers.back() = std::move(peer);
  }
  // Created before the thread starts, so that its destructor ends the thread on every path.
  std::unique_ptr<SocketMesh> made(new SocketMesh(core));
  {
    // The thread keeps the core alive, because a listener call may destroy the mesh.
    const std::lock_guard lock(core->join_mutex);
    WEFT_TRY(start_thread("weft-control", [core] { core->run(); }, options.on_thread_start, &core->thread));
  }
  *mesh = std::move(made);
  return {};
}

SocketMesh::SocketMesh(std::shared_ptr<Core> core) : core_(std::move(core)) {}

SocketMesh::~SocketMesh() {
  stop();
  // One deadline for all peers together, even if a peer keeps sending.
  const Deadline deadline = Deadline::after(core_->clock, kGoodbyeMs, 0);
  const std::lock_guard lock(core_->join_mutex);
  if (core_->thread.joinable()) core_->thread.detach();  // the destructor runs on that thread
  for (const auto& peer : core_->peers) {
    if (!peer) continue;
    // Drains the connection first: closing it with unread bytes would reset it, and the peer would see an
    // error instead of the goodbye.
    const auto drain = [&] {
      std::vector<Bytes> unread;
      bool closed = peer->ended;
      while (!closed && !deadline.expired(core_->clock) &&
             wait_for(peer->connection.fd(), POLLIN, core_->clock, Deadline::at(0))) {
        if (!peer->connection.read(&unread, &closed).ok()) break;
        unread.clear();
      }
    };
    (void)guarded_run(drain).ok();
    peer->connection.close();
  }
}

void SocketMesh::start(ControlListener* listener) {
  core_->listener.store(listener, std::memory_order_release);
  core_->wake();
}

void SocketMesh::send(int rank, ByteView message) {
  MeshPeer* peer = core_->peer(rank);
  if (peer == nullptr || message.size() > kMaxMessage || core_->leaving.load()) return;
  core_->send(*peer, mesh::message_frame(message));
}

void SocketMesh::leave() {
  if (core_->leaving.exchange(true)) return;
  for (const auto& peer : core_->peers) {
    if (peer) core_->send(*peer, mesh::plain_frame(mesh::MeshFrame::kGoodbye));
  }
  // Data that does not fit into the sockets at once gets a bounded time, for all peers together.
  const Deadline deadline = Deadline::after(core_->clock, kGoodbyeMs, 0);
  for (const auto& peer : core_->peers) {
    for (bool written = !peer; !written && !deadline.expired(core_->clock);) {
      wait_for(peer->connection.fd(), POLLOUT, core_->clock, deadline);
      const std::lock_guard lock(peer->send_mutex);
      written = core_->flush(*peer);
    }
  }
}

void SocketMesh::stop() {
  core_->stopping.store(true, std::memory_order_release);
  core_->wake();
  if (core_->thread_id.load() == std::this_thread::get_id()) return;
  const std::lock_guard lock(core_->join_mutex);
  if (core_->thread.joinable()) core_->thread.join();
}

bool SocketMesh::same_host(int rank) const {
  const MeshPeer* peer = core_->peer(rank);
  return rank == core_->rank || (peer != nullptr && peer->same_host);
}

Status SocketMesh::send_fd(int rank, int fd) {
  MeshPeer* peer = core_->peer(rank);
  if (peer == nullptr || !peer->same_host) return not_connected(rank);
  const std::lock_guard lock(peer->send_mutex);
  return peer->connection
      .send_with_fd(mesh::plain_frame(mesh::MeshFrame::kFd), fd, core_->clock,
                    Deadline::after(core_->clock, kSendFdMs, 0))
      .with_ranks({rank})
      .with_prefix(cat("sending a file descriptor to rank ", rank, ": "));
}

Status SocketMesh::receive_fd(int rank, Fd* fd, Deadline deadline) {
  MeshPeer* peer = core_->peer(rank);
  if (peer == nullptr || !peer->same_host) return not_connected(rank);
  while (peer->fd_frames == 0) {
    if (peer->ended) return peer->why_ended;
    bool ready = false;
    WEFT_TRY(await_event(peer->connection.fd(), POLLIN, core_->clock, deadline, &ready));
    if (!ready) {
      return Status::error(
                 Code::kTimeout,
                 cat("rank ", rank, " sent no file descriptor of its shared memory before the deadline"),
                 Evidence::kDeadline)
          .with_ranks({rank});
    }
    WEFT_TRY(core_->read_early(*peer));
  }
  *fd = std::move(peer->fds.front());
  peer->fds.pop_front();
  peer->fd_frames--;
  return {};
}

}  // namespace weft
