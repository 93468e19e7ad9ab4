// Other users of the host see the names of a job's sockets in the kernel's lists. They take the names first,
// fill the queues of its listeners, and reach for the memory and files of its processes.
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <weft/weft.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>

#include "adversary_rig.h"
#include "support/sanitized.h"
#include "trace/file.h"

namespace unit_squatters {

using namespace weft;
using namespace weft::test;

namespace {

sockaddr_un unix_name(const std::string& name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

enum class Squat { kListens, kBindsOnly, kFull };

// Fills the queue of a listener.
bool fill(const std::string& name) {
  socklen_t size = 0;
  const sockaddr_un address = unix_name(name, &size);
  for (int i = 0; i < 100'000; i++) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const bool full = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0;
    const int error = errno;
    ::close(fd);  // what waits in a queue stays there
    if (full) return error == EAGAIN;
  }
  return false;
}

int hold(const std::string& name, Squat how, const Pipe& ready) {
  socklen_t size = 0;
  const sockaddr_un address = unix_name(name, &size);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0) return 1;
  if (how != Squat::kBindsOnly && ::listen(listener, how == Squat::kFull ? 0 : 1024) != 0) return 2;
  if (how == Squat::kFull && !fill(name)) return 3;
  if (!ready.put('r')) return 4;
  for (;;) ::pause();
}

// Creates a mesh of two ranks that may be on different hosts. The hook of each rank sees the addresses that
// both have published, before it connects.
std::string form_two(const std::array<Interposed::Hook, 2>& hooks,
                     std::array<std::unique_ptr<SocketMesh>, 2>* meshes) {
  const std::string store = unique_store();
  std::array<Status, 2> results;
  std::array<std::thread, 2> threads;
  for (size_t rank = 0; rank < 2; rank++) {
    threads[rank] = std::thread([&, rank] {
      results[rank] = [&]() -> Status {
        std::unique_ptr<StoreExchange> exchange;
        const StoreOptions options = store_options(store, static_cast<int>(rank), 2);
        WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange));
        Interposed interposed(*exchange, [&](int round, std::vector<Bytes>* all) {
          if (round > 0) return;
          for (Bytes& each : *all) {
            mesh::Advertisement advertisement;
            if (!mesh::decode(each, &advertisement)) continue;
            advertisement.hosts = {"127.0.0.1"};
            each = mesh::encode(advertisement);
          }
          if (hooks[rank]) hooks[rank](round, all);
        });
        MeshOptions mesh_options;
        mesh_options.tcp = true;
        mesh_options.deadline = in_ms(kPlenty);
        WEFT_TRY(SocketMesh::make(interposed, mesh_options, system_clock, silent, &(*meshes)[rank]));
        exchange->finish();
        return {};
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return cat(results[0].ok() ? "" : results[0].text(), results[1].ok() ? "" : results[1].text());
}

mesh::Advertisement of_rank_0(const std::vector<Bytes>& all) {
  mesh::Advertisement advertisement;
  (void)mesh::decode(all[0], &advertisement);
  return advertisement;
}

}  // namespace

TEST_CASE("ranks of one host share memory although another user fills the queue of their listener") {
  need_other_users();
  REQUIRE(init_crypto().ok());
  std::atomic<bool> filled{false};
  const auto slow = [&](int, std::vector<Bytes>*) {
    while (!filled) ::poll(nullptr, 0, 5);
    ::poll(nullptr, 0, 100);  // rank 1 tries to connect meanwhile
  };
  int exit_code = -1;
  const auto fills = [&](int, std::vector<Bytes>* all) {
    const std::string name = of_rank_0(*all).unix_name;
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(::setuid(kNobody) == 0 && fill(name) ? 0 : 1);
    ::waitpid(pid, &exit_code, 0);
    filled = true;
  };
  std::array<std::unique_ptr<SocketMesh>, 2> meshes;
  const uint64_t begin = system_clock.now_ns();
  CHECK(form_two({slow, fills}, &meshes) == "");
  CHECK(exit_code == 0);
  REQUIRE(meshes[0] != nullptr);
  REQUIRE(meshes[1] != nullptr);
  CHECK(meshes[0]->same_host(1));
  CHECK(meshes[1]->same_host(0));
  CHECK(since_ms(begin) < 4000);
}

TEST_CASE("a rank of another host is reached over TCP although another user holds its socket's name here") {
  need_other_users();
  REQUIRE(init_crypto().ok());
  for (const Squat how : {Squat::kListens, Squat::kBindsOnly, Squat::kFull}) {
    INFO(static_cast<int>(how));
    const std::string name = unique_store().substr(6);
    const Pipe ready;
    const ChildProcess squatter([&] { return hold(name, how, ready); }, kNobody);
    char byte = 0;
    REQUIRE(ready.get(&byte));
    const auto elsewhere = [&](int, std::vector<Bytes>* all) {
      mesh::Advertisement advertisement = of_rank_0(*all);
      advertisement.unix_name = name;
      (*all)[0] = mesh::encode(advertisement);
    };
    std::array<std::unique_ptr<SocketMesh>, 2> meshes;
    const uint64_t begin = system_clock.now_ns();
    CHECK(form_two({nullptr, elsewhere}, &meshes) == "");
    REQUIRE(meshes[1] != nullptr);
    CHECK(!meshes[1]->same_host(0));
    CHECK(since_ms(begin) < (how == Squat::kFull ? 5000 : 3000));
  }
}

namespace {

// Returns the descriptors of a process that lead to memory that Weft has made.
std::vector<std::string> memory_of(pid_t pid) {
  std::vector<std::string> found;
  for (const auto& each : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"))) {
    std::error_code none;
    if (std::filesystem::read_symlink(each.path(), none).string().find("memfd:weft") != std::string::npos)
      found.push_back(each.path().string());
  }
  return found;
}

// Tries what another user's process may try with a rank. Returns 0 if all of it is refused.
int attack(pid_t victim, const std::vector<std::string>& files, const void* address) {
  const std::string proc = cat("/proc/", victim);
  for (const char* file : {"/environ", "/mem", "/maps", "/stack", "/auxv"}) {
    if (::open((proc + file).c_str(), O_RDONLY) >= 0) return 10;
  }
  for (const std::string& file : files) {
    if (::open(file.c_str(), O_RDWR) >= 0 || ::open(file.c_str(), O_RDONLY) >= 0) return 11;
  }
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{const_cast<void*>(address), 1};
  if (::process_vm_readv(victim, &local, 1, &remote, 1, 0) >= 0) return 12;
  if (::process_vm_writev(victim, &local, 1, &remote, 1, 0) >= 0) return 13;
  if (::ptrace(PTRACE_ATTACH, victim, nullptr, nullptr) == 0) return 14;
  if (::kill(victim, SIGSTOP) == 0) return 15;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, victim, 0));
  for (int fd = 0; fd < 64 && pidfd >= 0; fd++) {
    if (::syscall(SYS_pidfd_getfd, pidfd, fd, 0) >= 0) return 16;
  }
  // The kernel lists the names of its sockets to all users.
  for (const std::string& name : listening_names("weft-")) {
    socklen_t size = 0;
    const sockaddr_un there = unix_name(name, &size);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&there), size) != 0) continue;
    Hello hello;
    hello.nonce = random_key();
    const Bytes bytes = encode_hello(hello);
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    pollfd ready{fd, POLLIN, 0};
    // A listener whose rank is busy answers later; none answers with a hello.
    if (::poll(&ready, 1, 200) > 0 && ::recv(fd, &byte, 1, 0) > 0) return 17;
    ::close(fd);
  }
  return 0;
}

}  // namespace

TEST_CASE("another user reaches neither the memory of a rank nor its environment, nor its sockets") {
  if (kThreadSanitizer) WEFT_SKIP("the ranks are forked and start threads");
  need_other_users();
  REQUIRE(init_crypto().ok());
  const Pipe told, go;
  static char secret_byte = 's';
  // Real ranks of one host: they share memory, and reduce before and after the attack.
  const std::string store = unique_store();
  ::setenv("WEFT_SECRET", "a secret that is long enough", 1);
  std::array<std::unique_ptr<ChildProcess>, 2> ranks;
  for (int rank = 0; rank < 2; rank++) {
    ranks[static_cast<size_t>(rank)] = std::make_unique<ChildProcess>([&, rank] {
      weft_context* context = nullptr;
      weft_comm* comm = nullptr;
      if (weft_context_create(nullptr, &context, nullptr) != WEFT_OK) return 1;
      weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
      options.bootstrap = WEFT_BOOTSTRAP_STORE;
      options.rank = rank;
      options.size = 2;
      options.store = store.c_str();
      options.backend = "shm";
      if (weft_comm_create(context, &options, &comm, nullptr) != WEFT_OK) return 2;
      for (int round = 0; round < 2; round++) {
        std::vector<float> data(100'000, static_cast<float>(rank + 1));
        if (weft_all_reduce(comm, data.data(), data.data(), data.size(), WEFT_DTYPE_F32, WEFT_OP_SUM, nullptr,
                            nullptr) != WEFT_OK)
          return 3;
        if (data.front() != 3.0f || data.back() != 3.0f) return 4;
        char byte = 0;
        if (round == 0 && (!told.put(rank) || !go.get(&byte))) return 5;
      }
      weft_comm_destroy(&comm);
      weft_context_destroy(&context);
      return 0;
    });
  }
  ::unsetenv("WEFT_SECRET");
  int rank = 0;
  REQUIRE(told.get(&rank));
  REQUIRE(told.get(&rank));
  for (const auto& each : ranks) {
    const std::vector<std::string> files = memory_of(each->pid());
    ChildProcess other([&] { return attack(each->pid(), files, &secret_byte); }, kNobody);
    CHECK(other.wait() == 0);
  }
  REQUIRE(go.put('g'));
  REQUIRE(go.put('g'));
  for (const auto& each : ranks) CHECK(each->wait() == 0);
}

namespace {

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("what lies in the place of a flight record or trace is neither followed nor changed") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / unique_store().substr(6);
  std::filesystem::create_directory(folder);
  const std::filesystem::path path = folder / "record.json", other = folder / "other";
  std::ofstream(other) << "of somebody else";
  const std::filesystem::path temporary = cat(path.string(), ".", ::getpid(), ".tmp");
  for (const std::filesystem::path& place : {path, temporary}) {
    const auto write = [&] { return write_whole("new", path.string(), "the record"); };
    const bool own = place == path;
    const auto refused = [&](const Status& status) {
      INFO(status.text());
      CHECK(status.code() == Code::kSystem);
      CHECK(status.text().find(path.string()) != std::string::npos);
    };
    std::filesystem::create_symlink(other, place);
    const Status over_link = write();
    if (own) CHECK(over_link.ok());  // the link is replaced, what it points to stays
    if (!own) refused(over_link);
    CHECK(text_of_file(other) == "of somebody else");
    std::filesystem::remove(place);
    std::filesystem::create_symlink(folder / "nothing", place);
    CHECK(write().ok() == own);
    CHECK(!std::filesystem::exists(folder / "nothing"));
    std::filesystem::remove(place);
    REQUIRE(::mkfifo(place.c_str(), 0666) == 0);
    CHECK(write().ok() == own);
    std::filesystem::remove(place);
    std::filesystem::create_directory(place);
    refused(write());
    CHECK(std::filesystem::is_directory(place));
    std::filesystem::remove(place);
    CHECK(std::distance(begin(std::filesystem::directory_iterator(folder)), {}) == 1);  // no temporary file
  }
  std::filesystem::remove_all(folder);
}

}  // namespace unit_squatters
