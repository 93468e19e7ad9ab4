// Cuts a rank's output into lines, so that the output of several ranks never mixes inside a line.
#pragma once

#include <string>
#include <string_view>

// One stream of one rank. Threads: one thread at a time.
class LineWriter {
 public:
  // Writes lines to descriptor `out` with `prefix` in front, each by one write. fd: a non-blocking pipe,
  // which the writer owns.
  LineWriter(int fd, int out, std::string prefix) : fd_(fd), out_(out), prefix_(std::move(prefix)) {}
  LineWriter(LineWriter&& other) noexcept;
  LineWriter& operator=(LineWriter&&) = delete;
  ~LineWriter();

  int fd() const { return fd_; }  // -1 after the end
  // Forwards some of the available data without waiting; returns false when the pipe has ended.
  bool pump();
  // Writes out an unfinished last line, with a newline.
  void finish();

  static constexpr size_t kLongestLine = 1 << 20;  // longer lines are cut

 private:
  void take(std::string_view bytes);
  void emit(std::string_view line);

  int fd_;
  int out_;
  std::string prefix_;
  std::string partial_;
};
