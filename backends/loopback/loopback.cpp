#include "loopback.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "base/text.h"
#include "fabric.h"
#include "transport.h"

namespace weft::loopback {
namespace {

// What tells one process from all others, on any host: a process id means something within a namespace and a
// run of the kernel only, and is used again after its process has ended.
struct Identity {
  uint64_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t start_ticks = 0;
  std::string boot_id;

  bool operator==(const Identity&) const = default;
};

Identity my_identity() {
  Identity me;
  me.pid = static_cast<uint64_t>(getpid());
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) == 0) me.pid_namespace = space.st_ino;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), me.boot_id);
  std::string line;
  std::getline(std::ifstream("/proc/self/stat"), line);
  // Field 22, counted after the command's name, which ends with the last ')' and may contain anything.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; i++) {
    if (i == 22) me.start_ticks = std::stoull(field);
  }
  return me;
}

Bytes encode(const Identity& me, const void* fabric) {
  ByteWriter writer;
  writer.put(me.pid).put(me.pid_namespace).put(me.start_ticks).put_string(me.boot_id);
  writer.put(reinterpret_cast<uintptr_t>(fabric));
  return writer.take();
}

bool decode(ByteView bytes, Identity* identity, uintptr_t* fabric) {
  ByteReader reader(bytes);
  identity->pid = reader.get<uint64_t>();
  identity->pid_namespace = reader.get<uint64_t>();
  identity->start_ticks = reader.get<uint64_t>();
  identity->boot_id = reader.get_string(64);
  *fabric = reader.get<uintptr_t>();
  return reader.done();
}

using Handle = std::shared_ptr<Fabric>;

// Rank 0 lends everyone the address of a handle, until all have said that they took theirs. All look at the
// same identities and come to the same verdict.
Status exchange_handles(const BackendArgs& args, const Handle* lent, Handle* fabric) {
  Exchange& exchange = args.exchange;
  const Identity me = my_identity();
  std::vector<Bytes> all;
  WEFT_TRY(exchange.all_gather(encode(me, lent), &all, args.deadline));
  uintptr_t address = 0;
  Status verdict;
  for (size_t r = 0; r < all.size(); r++) {
    Identity theirs;
    uintptr_t given = 0;
    if (!decode(all[r], &theirs, &given) || theirs != me) {
      verdict = Status::error(Code::kUnavailable, cat("loopback is for ranks of one process; rank ", r,
                                                      " is in another one than rank ", exchange.rank()));
      break;
    }
    if (r == 0) address = given;
  }
  if (verdict.ok()) *fabric = *std::bit_cast<const Handle*>(address);
  WEFT_TRY(exchange.all_gather({}, &all, args.deadline));
  return verdict;
}

Status share_fabric(const BackendArgs& args, Handle* fabric) {
  if (args.exchange.rank() != 0) return exchange_handles(args, nullptr, fabric);
  auto* const lent = new Handle(std::make_shared<Fabric>(args.exchange.size()));
  const Status status = exchange_handles(args, lent, fabric);
  // After a failed exchange some rank may have heard and be about to take it: better lost than freed under
  // its hands.
  if (status.ok() || status.code() == Code::kUnavailable) delete lent;
  return status;
}

Status probe(std::string* detail) {
  *detail = "mailboxes between threads of this process";
  return {};
}

Status make_transport(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  Handle fabric;
  WEFT_TRY(share_fabric(args, &fabric));
  *transport = std::make_unique<LoopbackTransport>(std::move(fabric), args.exchange.rank());
  return {};
}

constexpr Backend kBackend = {
    .name = "loopback",
    .summary = "ranks as threads of one process, for tests",
    .preference = -1,
    .probe = probe,
    .make_transport = make_transport,
    .make_collectives = nullptr,
    .reachable = nullptr,
};

}  // namespace

const Backend& backend() {
  return kBackend;
}

}  // namespace weft::loopback
