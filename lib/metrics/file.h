// Writes the metrics of a context into a file of a folder, for node_exporter's textfile collector: every few
// seconds, and once more at the end. The file is replaced as a whole. Its first line, a comment, names the
// process, by which a later context recognises the files of ended ones and removes them. A thread of its own
// writes it, so that a file system that hangs stops nothing else. Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "metrics/metrics.h"

namespace weft {

class MetricsFile {
 public:
  struct Options {
    std::string path;  // "/var/lib/node_exporter/weft-rank0.prom"
    int64_t seconds = 15;
  };
  // Starts the thread, and waits at most a second for its first write. log: lives at least as long as this
  // object. kSystem: the first file cannot be written.
  static Status start(Options options, std::shared_ptr<Metrics> metrics, Log& log,
                      const ThreadStart& on_thread_start, std::unique_ptr<MetricsFile>* file);
  // Waits at most kEndMs for the last write. If the file system takes longer, the thread is detached.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  static constexpr int64_t kEndMs = 2000;

 private:
  struct Writer;  // outlives this object if the file system hangs
  explicit MetricsFile(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}

  const std::shared_ptr<Writer> writer_;
  std::thread thread_;
};

// Writes text into path by way of a file beside it, which it renames. kSystem names the path.
Status replace_file(const std::string& path, const std::string& text);

}  // namespace weft
