#include "metrics/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/guard.h"
#include "base/process.h"
#include "base/text.h"

namespace weft {
namespace {

// The first line of a file: a comment that names its process.
constexpr std::string_view kProcessLine = "# weft process ";
constexpr int64_t kScrapedSeconds = 300;         // by then the last numbers of a process have been read
constexpr int64_t kForgottenSeconds = 2 * 3600;  // twice the longest time between two writes

std::string process_line() {
  const ProcessIdentity me = this_process();
  return cat(kProcessLine, me.pid, " ", me.start_ticks, " ", me.pid_namespace, " ", me.boot_id, "\n");
}

// Returns the start time of a process of this pid namespace; 0 if there is none.
uint64_t start_of(uint64_t pid) {
  std::string line;
  std::getline(std::ifstream(cat("/proc/", pid, "/task/", pid, "/stat")), line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i < 22; i++) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

// Returns how long nobody must have replaced a file of metrics until it is stale; -1: its process runs, or it
// is not a file of Weft.
int64_t stale_after(const std::string& path, const ProcessIdentity& me) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::array<char, 256> begin{};
  const ssize_t got = file.valid() ? ::read(file.get(), begin.data(), begin.size()) : -1;
  const std::string_view text(begin.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (!text.starts_with(kProcessLine)) return -1;
  ProcessIdentity writer;
  std::istringstream fields{std::string(text.substr(kProcessLine.size()))};
  if (!(fields >> writer.pid >> writer.start_ticks >> writer.pid_namespace >> writer.boot_id)) return -1;
  // Only the age of a file of another boot or pid namespace is known.
  if (writer.boot_id != me.boot_id || writer.pid_namespace != me.pid_namespace) return kForgottenSeconds;
  return start_of(writer.pid) == writer.start_ticks ? -1 : kScrapedSeconds;
}

// Removes files of this user that processes of the past have left in the folder.
void remove_stale(const std::string& folder) {
  const ProcessIdentity me = this_process();
  const auto close = [](DIR* open) { ::closedir(open); };
  // Not std::filesystem, whose iterator ends the process where there is no memory.
  const std::unique_ptr<DIR, decltype(close)> entries(::opendir(folder.c_str()), close);
  if (!entries) return;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name, path = cat(folder, '/', name);
    const bool begun =
        name.starts_with("weft-") && name.ends_with(".tmp") && name.find(".prom.") != name.npos;
    if (!begun && !(name.starts_with("weft-") && name.ends_with(".prom"))) continue;
    struct stat found{};
    if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != ::geteuid())
      continue;
    // A writer is done with a .tmp file in a moment, and begins another one if it is gone.
    const int64_t after = begun ? kScrapedSeconds : stale_after(path, me);
    if (after >= 0 && ::time(nullptr) - found.st_mtime >= after) ::unlink(path.c_str());
  }
}

}  // namespace

struct MetricsFile::Writer {
  static constexpr int64_t kFirstMs = 1000;

  Options options;
  std::shared_ptr<Metrics> metrics;
  std::string process;  // the first line of the file
  Log* log = nullptr;   // only with the mutex held, and not after `ends`
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex:
  bool awaited = true;  // start() waits for the first write
  bool tried = false;   // the first write is over, while start() waited
  Status first;         // its result
  bool ends = false;
  bool ended = false;

  Status write() {
    return guarded([&] { return replace_file(options.path, process + metrics->text()); });
  }

  // Waits for the first write, at most kFirstMs. Returns its error.
  Status await_first() {
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, std::chrono::milliseconds(kFirstMs), [&] { return tried; })) return first;
    awaited = false;
    log->warn(cat("metrics: ", options.path, " could not be written within ", kFirstMs,
                  " ms (WEFT_METRICS): its file system hangs or is slow"));
    return {};
  }
  // Returns false if start() has got an error, after which it ends the thread.
  bool write_first() {
    const Status written = write();
    std::unique_lock lock(mutex);
    if (awaited) {
      first = written;
      tried = true;
      changed.notify_all();
      return written.ok();
    }
    lock.unlock();
    if (!written.ok()) warn(written);
    return true;
  }

  void warn(const Status& why) {
    const std::lock_guard lock(mutex);
    if (!ends) (void)guarded_run([&] { log->warn(cat("metrics: ", why.text())); }).ok();
  }

  void run() {
    const bool works = write_first();
    if (works) write_until_end();
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  void write_until_end() {
    (void)guarded_run([&] { remove_stale(std::filesystem::path(options.path).parent_path().string()); }).ok();
    bool failed = false;
    for (bool last = false; !last;) {
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::seconds(options.seconds), [&] { return ends; });
        last = ends;
      }
      const Status written = write();
      if (!written.ok() && !failed) warn(written);  // once for each time that writing begins to fail
      failed = !written.ok();
    }
  }
};

Status MetricsFile::start(Options options, std::shared_ptr<Metrics> metrics, Log& log,
                          const ThreadStart& on_thread_start, std::unique_ptr<MetricsFile>* file) {
  auto writer = std::make_shared<Writer>();
  writer->options = std::move(options);
  writer->metrics = std::move(metrics);
  writer->log = &log;
  writer->process = process_line();
  std::unique_ptr<MetricsFile> made(new MetricsFile(writer));
  WEFT_TRY(start_thread("weft-metrics", [writer] { writer->run(); }, on_thread_start, &made->thread_));
  WEFT_TRY(writer->await_first().with_prefix("WEFT_METRICS: "));
  *file = std::move(made);
  return {};
}

MetricsFile::~MetricsFile() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(writer_->mutex);
  writer_->ends = true;
  writer_->changed.notify_all();
  const bool ended =
      writer_->changed.wait_for(lock, std::chrono::milliseconds(kEndMs), [&] { return writer_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

Status replace_file(const std::string& path, const std::string& text) {
  const std::string beside =
      cat(path, ".", ::getpid(), ".tmp");  // node_exporter reads names that end in .prom
  const auto failed = [&](const char* what) {
    Status status = Status::system(cat("cannot ", what, " ", path), errno);
    ::unlink(beside.c_str());
    return status;
  };
  Fd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.valid()) return failed("create");
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(file.get(), text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed("write");
    at += static_cast<size_t>(written);
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) return failed("replace");
  return {};
}

}  // namespace weft
