// lib/rendezvous/invitation and the store's use of it: ranks meet through a file of a shared folder. Bytes
// that others have left there never mislead them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "rendezvous/invitation/invitation_file.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"
#include "support/users.h"

namespace unit_invitation {

using namespace weft;
namespace fs = std::filesystem;

namespace {

SystemClock system_clock;
Log silent;
constexpr int64_t kPlenty = 30'000;

Deadline in_ms(int64_t ms) {
  return Deadline::after(system_clock, ms, 0);
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
AuthKey secret_of(std::string_view text) {
  return AuthKey::from_secret(std::as_bytes(std::span(text.data(), text.size())));
}

// A folder that exists as long as this object.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  StoreOptions member(int rank, int size) const {
    StoreOptions options;
    options.rank = rank;
    options.size = size;
    options.store = "file://" + path.string();
    options.job = "job";
    options.key = AuthKey::open();
    return options;
  }
  fs::path path;
};

Status meet(const StoreOptions& options, int64_t ms = kPlenty) {
  std::unique_ptr<StoreExchange> exchange;
  WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(ms), &exchange));
  if (!exchange->authenticated() || !exchange->spans_hosts())
    return Status::error(Code::kInternal, "the ranks could not connect between hosts");
  std::vector<Bytes> all;
  WEFT_TRY(exchange->all_gather({}, &all, in_ms(ms)));
  exchange->finish();
  return {};
}

void check_met(const std::vector<StoreOptions>& ranks) {
  std::vector<Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); i++) threads.emplace_back([&, i] { results[i] = meet(ranks[i]); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) {
    INFO(status.text());
    CHECK(status.ok());
  }
}

// Returns the path of the file of the job's first communicator, by publishing one.
fs::path file_of(const Folder& folder) {
  InvitationFile file(folder.path.string(), "job", 0);
  REQUIRE(file.publish({{"127.0.0.1"}, 1, random_key()}).ok());
  return fs::directory_iterator(folder.path)->path();
}

void put(const fs::path& path, ByteView bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
}

}  // namespace

TEST_CASE("an invitation is decoded as it was encoded, and a damaged one is refused") {
  REQUIRE(init_crypto().ok());
  const Invitation sent{{"10.0.0.7", "fd00::17"}, 4711, random_key()};
  const Bytes bytes = encode(sent);
  REQUIRE(bytes.size() == Invitation::kBytes);
  Invitation got;
  REQUIRE(decode(bytes, &got).ok());
  CHECK(got.hosts == sent.hosts);
  CHECK(got.port == sent.port);
  CHECK(got.key == sent.key);
  for (size_t i = 0; i < bytes.size(); i++) {
    Bytes changed = bytes;
    changed[i] ^= std::byte{1};
    INFO("byte " << i);
    const Code code = decode(changed, &got).code();
    CHECK((code == Code::kArg || code == Code::kVersion));
  }
  for (const size_t size : {size_t{0}, size_t{7}, bytes.size() - 1})
    CHECK(decode(ByteView(bytes).first(size), &got).code() == Code::kArg);
  Bytes longer = bytes;
  longer.push_back({});
  CHECK(decode(longer, &got).code() == Code::kArg);

  const Invitation many{std::vector<std::string>(50, "fd00:1234:1234:1234:1234:1234:1234:1234"), 1, {}};
  REQUIRE(decode(encode(many), &got).ok());
  CHECK(got.hosts.size() >= 4);
  const Invitation name{{"host.example"}, 1, {}};
  CHECK(decode(encode(name), &got).code() == Code::kArg);
  CHECK(decode(encode(Invitation{{}, 1, {}}), &got).code() == Code::kArg);
}

TEST_CASE("ranks meet through a folder without a secret, several times, and leave nothing there") {
  const Folder folder;
  for (uint64_t sequence = 0; sequence < 3; sequence++) {
    std::vector<StoreOptions> ranks;
    for (int rank = 0; rank < 3; rank++) {
      ranks.push_back(folder.member(rank, 3));
      ranks.back().sequence = sequence;
    }
    check_met(ranks);
    CHECK(folder.files() == 0);
  }
}

TEST_CASE("in a folder, a rank without the job's secret does not take part, and learns why") {
  const Folder folder;
  StoreOptions first = folder.member(0, 2), second = folder.member(1, 2), stranger = second;
  first.key = second.key = secret_of("a secret of the job");
  Status hosted;
  std::thread host([&] { hosted = meet(first); });
  const Status status = meet(stranger, 1000);
  CHECK(status.code() == Code::kTimeout);
  INFO(status.text());
  CHECK(contains(status.text(), "secret"));
  CHECK(contains(status.text(), folder.path.string()));
  CHECK(meet(second).ok());
  host.join();
  CHECK(hosted.ok());
}

TEST_CASE("the file of a job that has crashed does not mislead the next one") {
  const Folder folder;
  // Another process listens at the port of the crashed job.
  StoreServerOptions other;
  REQUIRE(parse_address("tcp://127.0.0.1:0", &other.listen).ok());
  other.key = secret_of("a secret of another job");
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  REQUIRE(StoreServer::start(other, system_clock, silent, &server, &in_use).ok());
  const fs::path path = file_of(folder);
  put(path, encode({{"127.0.0.1"}, server->address().port, random_key()}));
  Status late;
  std::thread rank([&] { late = meet(folder.member(1, 2)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it finds the old file first
  CHECK(meet(folder.member(0, 2)).ok());
  rank.join();
  INFO(late.text());
  CHECK(late.ok());
  CHECK(folder.files() == 0);
}

TEST_CASE("a file that is not rank 0's is not trusted, and the error says what was found") {
  const Folder folder;
  const fs::path path = file_of(folder);
  const auto error = [&] {
    const Status status = meet(folder.member(1, 2), 200);
    CHECK(status.code() == Code::kTimeout);
    CHECK(status.info().ranks == std::vector<int>{0});
    return status.text();
  };
  CHECK(contains(error(), "rank 0 has not written the file " + path.string()));
  const Bytes good = encode({{"127.0.0.1"}, 1, random_key()});
  put(path, good);
  CHECK(contains(error(), "tcp://127.0.0.1:1"));
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  CHECK(contains(error(), "is open to other users"));
  put(path, ByteView(good).first(100));
  CHECK(contains(error(), "100 bytes are no invitation"));
  put(path, std::as_bytes(std::span("MUNGE:nonsense:", 15)));
  CHECK(contains(error(), path.string() + ": "));
  put(path, Bytes(1 << 20));
  CHECK(contains(error(), "are no invitation"));
  fs::rename(path, path.string() + ".real");
  fs::create_symlink(path.string() + ".real", path);
  CHECK(contains(error(), "is a symbolic link"));
  fs::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(contains(error(), "is not a regular file"));
  fs::remove(path);
  if (::geteuid() != 0) return;
  put(path, good);
  if (::chown(path.c_str(), test::kNobody, test::kNobody) == 0)
    CHECK(contains(error(), cat("belongs to user ", test::kNobody)));
}

TEST_CASE("a folder that does not serve is an error at once") {
  const Folder folder;
  const auto error = [&](const std::string& path, int rank) {
    StoreOptions options = folder.member(rank, 2);
    options.store = "file://" + path;
    const Status status = meet(options);
    CHECK((status.code() == Code::kArg || status.code() == Code::kSystem));
    CHECK(contains(status.text(), path));
    return status.text();
  };
  std::ofstream(folder.path / "file") << "text";
  for (const int rank : {0, 1}) {
    CHECK(contains(error((folder.path / "none").string(), rank), "does not exist on this host"));
    CHECK(contains(error((folder.path / "file").string(), rank), "is not a folder"));
  }
  CHECK(contains(error("/proc", 0), "rank 0 cannot write the file"));
  StoreOptions options = folder.member(1, 2);
  options.external = true;
  CHECK(contains(meet(options).text(), "WEFT_STORE_EXTERNAL"));
  StoreServerOptions listen;
  REQUIRE(parse_address(options.store, &listen.listen).ok());
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  CHECK(contains(StoreServer::start(listen, system_clock, silent, &server, &in_use).text(), "cannot listen"));
}

TEST_CASE("a rank 0 that cannot write into the folder says so") {
  test::need_other_users();
  const Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 0755) == 0);
  test::ChildProcess other(
      [&] {
        const Status status = meet(folder.member(0, 2));
        return status.code() == Code::kSystem && contains(status.text(), "Permission denied") ? 0 : 1;
      },
      test::kNobody);
  CHECK(other.wait() == 0);
}

}  // namespace unit_invitation
