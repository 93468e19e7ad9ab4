// `weft store` under attack during a long run. A job that bootstrapped there before continues and gets every
// sum right, other jobs bootstrap meanwhile, and the store ends as cleanly as it began. WEFT_TOOL names the
// command.
#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "fault/processes.h"
#include "rendezvous/store_server.h"
#include "support/catch.h"
#include "support/flood.h"

using weft::test::Flood;
using weft_test::Processes;
using weft_test::Reporter;
using weft_test::Word;

namespace {

constexpr int kBoundMs = 10'000;  // for a job to bootstrap during the attack
constexpr int kSetupMs = 30'000;
constexpr uint64_t kConnections = 10'000;
constexpr char kSecret[] = "a secret of the job";
constexpr int kWorks = 1;  // mark

// Runs the command while this object lives.
class Store {
 public:
  Store() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDOUT_FILENO);
      const char* const tool = std::getenv("WEFT_TOOL");
      ::setenv("WEFT_SECRET", kSecret, 1);
      if (tool != nullptr) ::execl(tool, tool, "store", "--listen", "tcp://127.0.0.1:0", nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    std::string line;
    for (char next = 0; ::read(ends[0], &next, 1) == 1 && next != '\n';) line += next;
    ::close(ends[0]);
    INFO(line);
    const size_t at = line.find("tcp://");
    REQUIRE(at != std::string::npos);
    address_ = line.substr(at);
  }
  ~Store() {
    if (pid_ <= 0) return;  // kill(-1) would signal every process
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& address() const { return address_; }
  uint16_t port() const { return static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))); }
  size_t descriptors() const {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid_) + "/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  // Returns the exit code after SIGTERM; -1 if the process was gone before, or does not end.
  int stop() {
    if (pid_ <= 0) return -1;
    ::kill(pid_, SIGTERM);
    const uint64_t until = weft_test::now_ms() + kBoundMs;
    int state = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(pid_, &state, WNOHANG)) == 0 && weft_test::now_ms() < until)
      ::poll(nullptr, 0, 5);
    if (ended == 0) return -1;
    pid_ = -1;
    return ended > 0 && WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

// Creates a rank's context and communicator over the store, from environment variables as a launcher sets
// them.
weft_status join(const std::string& store, const std::string& job, int rank, int size, weft_context** context,
                 weft_comm** comm, weft_error* error) {
  ::setenv("WEFT_STORE", store.c_str(), 1);
  ::setenv("WEFT_STORE_EXTERNAL", "1", 1);
  ::setenv("WEFT_SECRET", kSecret, 1);
  ::setenv("WEFT_JOB", job.c_str(), 1);
  ::setenv("WEFT_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WEFT_SIZE", std::to_string(size).c_str(), 1);
  const weft_status status = weft_context_create(nullptr, context, error);
  if (status != WEFT_OK) return status;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.backend = "shm";
  options.init_timeout_ms = kBoundMs;
  options.op_timeout_ms = kBoundMs;
  return weft_comm_create(*context, &options, comm, error);
}

// Runs sums until a byte is in `told`; rank 0 passes this on to the others. Then runs one more sum in a split
// that is created at that time.
weft_status work(weft_comm* comm, int rank, int size, int told, Reporter& reporter, weft_error* error) {
  weft_status status = WEFT_OK;
  bool ends = false;
  for (int i = 0; status == WEFT_OK && !ends; i++) {
    std::vector<int64_t> data(20'000, rank + i);
    pollfd waiting{told, POLLIN, 0};
    data[0] = rank == 0 && ::poll(&waiting, 1, 0) == 1 ? 1 : 0;
    status = weft_all_reduce(comm, data.data(), data.data(), data.size(), WEFT_DTYPE_I64, WEFT_OP_SUM,
                             nullptr, nullptr);
    if (status == WEFT_OK && data[1] != size * (size - 1) / 2 + size * i) status = WEFT_ERR_INTERNAL;
    ends = data[0] != 0;
    if (i == 20) reporter.mark(kWorks);
  }
  weft_comm* part = nullptr;
  if (status == WEFT_OK) status = weft_comm_split(comm, 0, rank, &part, error);
  if (status == WEFT_OK) status = weft_barrier(part, nullptr, nullptr);
  weft_comm_destroy(&part);
  if (status != WEFT_OK && error->code == 0) weft_comm_error(comm, error);
  return status;
}

void expect_done(Processes& ranks, int size) {
  for (int r = 0; r < size; r++) {
    Word word;
    INFO("rank " << r);
    REQUIRE(ranks.last_word(r, 2 * kBoundMs, &word));
    INFO(word.text);
    CHECK(word.status == WEFT_OK);
    CHECK(ranks.exited_cleanly(r, kBoundMs));
  }
}

}  // namespace

TEST_CASE("a job continues and others bootstrap while 10,000 hostile connections reach `weft store`") {
  Store store;
  const size_t before = store.descriptors();
  int told[2];
  REQUIRE(::pipe2(told, O_CLOEXEC) == 0);
  constexpr int kRanks = 3;
  Processes long_run(kRanks, [&](int rank, Reporter& reporter) {
    weft_context* context = nullptr;
    weft_comm* comm = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    weft_status status = join(store.address(), "long", rank, kRanks, &context, &comm, &error);
    if (status == WEFT_OK) status = work(comm, rank, kRanks, told[0], reporter, &error);
    weft_comm_destroy(&comm);
    weft_context_destroy(&context);
    reporter.end(status, error);
  });
  for (int r = 0; r < kRanks; r++) REQUIRE(long_run.wait_for_mark(r, kWorks, kSetupMs));
  {
    const auto* const secret = reinterpret_cast<const std::byte*>(kSecret);
    const weft::AuthKey key = weft::AuthKey::from_secret({secret, sizeof kSecret - 1});
    const Flood flood({store.port()}, weft::test::good_traffic(key));
    const uint64_t until = weft_test::now_ms() + 10 * kBoundMs;
    for (int job = 0; job < 5 || flood.connections() < kConnections; job++) {
      INFO("job " << job << ", " << flood.connections() << " connections");
      REQUIRE(weft_test::now_ms() < until);
      Processes ranks(2, [&](int rank, Reporter& reporter) {
        weft_context* context = nullptr;
        weft_comm* comm = nullptr;
        weft_error error = WEFT_ERROR_INIT;
        const weft_status status =
            join(store.address(), "job " + std::to_string(job), rank, 2, &context, &comm, &error);
        weft_comm_destroy(&comm);
        weft_context_destroy(&context);
        reporter.end(status, error);
      });
      expect_done(ranks, 2);
      CHECK(store.descriptors() < before + 2 * weft::StoreServer::kMaxUnauthenticated);
    }
  }
  REQUIRE(::write(told[1], "e", 1) == 1);
  expect_done(long_run, kRanks);
  CHECK(store.stop() == 0);
  ::close(told[0]);
  ::close(told[1]);
}
