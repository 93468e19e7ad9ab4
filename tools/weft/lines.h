// Cuts a rank's output into lines, so that the output of several ranks never mixes inside a line, and writes
// it out without waiting for a reader.
#pragma once

#include <string>
#include <string_view>

// Standard output or standard error. Its reader may be slow, or may not read at all. Threads: one thread at a
// time.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  void add(std::string_view text) { pending_.append(text); }
  bool empty() const { return pending_.empty(); }
  bool full() const { return pending_.size() >= kMostPending; }  // nothing more should be added now
  // Writes what can be written without waiting, in whole lines where possible. Drops everything if the reader
  // is gone.
  void flush();
  void drop() { pending_.clear(); }

 private:
  static constexpr size_t kMostPending = size_t{64} << 10;

  int fd_;
  std::string pending_;
};

// One stream of one rank. Threads: one thread at a time.
class LineWriter {
 public:
  // Adds lines to `out`, which must live longer, with `prefix` in front. fd: a non-blocking pipe, which the
  // writer owns.
  LineWriter(int fd, Output* out, std::string prefix) : fd_(fd), out_(out), prefix_(std::move(prefix)) {}
  LineWriter(LineWriter&& other) noexcept;
  LineWriter& operator=(LineWriter&&) = delete;
  ~LineWriter();

  int fd() const { return fd_; }  // -1 after the end
  // Returns false while its output is full: the rank then waits in its own writes.
  bool wants_data() const { return fd_ >= 0 && !out_->full(); }
  // Takes some of the available data without waiting, if it wants data.
  void pump();
  // Adds an unfinished last line, with a newline.
  void finish();

  static constexpr size_t kLongestLine = 1 << 20;  // longer lines are cut

 private:
  void take(std::string_view bytes);
  void emit(std::string_view line);

  int fd_;
  Output* out_;
  std::string prefix_;
  std::string partial_;
};
