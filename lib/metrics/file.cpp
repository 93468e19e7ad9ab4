#include "metrics/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "base/guard.h"
#include "base/text.h"

namespace weft {

struct MetricsFile::Writer {
  Options options;
  std::shared_ptr<Metrics> metrics;
  Log* log = nullptr;  // only with the mutex held, and not after `ends`
  std::mutex mutex;
  std::condition_variable changed;
  bool ends = false;   // guarded by mutex
  bool ended = false;  // guarded by mutex

  Status write() {
    return guarded([&] { return replace_file(options.path, metrics->text()); });
  }

  void warn(const Status& why) {
    const std::lock_guard lock(mutex);
    if (!ends) (void)guarded_run([&] { log->warn(cat("metrics: ", why.text())); }).ok();
  }

  void run() {
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
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

Status MetricsFile::start(Options options, std::shared_ptr<Metrics> metrics, Log& log,
                          const ThreadStart& on_thread_start, std::unique_ptr<MetricsFile>* file) {
  auto writer = std::make_shared<Writer>();
  writer->options = std::move(options);
  writer->metrics = std::move(metrics);
  writer->log = &log;
  WEFT_TRY(writer->write());
  std::unique_ptr<MetricsFile> made(new MetricsFile(writer));
  WEFT_TRY(start_thread("weft-metrics", [writer] { writer->run(); }, on_thread_start, &made->thread_));
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
