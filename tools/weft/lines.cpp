#include "lines.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

// The descriptor may block, and stays so, because other programs share it. Where poll() reports room, a write
// of PIPE_BUF bytes does not wait.
void Output::flush() {
  size_t written = 0;
  while (written < pending_.size()) {
    pollfd room{fd_, POLLOUT, 0};
    if (::poll(&room, 1, 0) <= 0) break;
    std::string_view part = std::string_view(pending_).substr(written, PIPE_BUF);
    if (const size_t end = part.rfind('\n'); end != part.npos) part = part.substr(0, end + 1);
    const ssize_t wrote = ::write(fd_, part.data(), part.size());
    if (wrote > 0) {
      written += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return drop();
    }
  }
  pending_.erase(0, written);
}

LineWriter::LineWriter(LineWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      out_(other.out_),
      prefix_(std::move(other.prefix_)),
      partial_(std::move(other.partial_)) {}

LineWriter::~LineWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void LineWriter::pump() {
  char buffer[65536];
  if (!wants_data()) return;
  // Reads once: a rank that floods its output must not keep the caller from signals and the other ranks.
  const ssize_t got = ::read(fd_, buffer, sizeof buffer);
  if (got > 0) {
    take({buffer, static_cast<size_t>(got)});
  } else if (got == 0) {
    ::close(std::exchange(fd_, -1));
  }
}

void LineWriter::take(std::string_view bytes) {
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    partial_.append(bytes.substr(0, end));
    emit(partial_);
    partial_.clear();
  }
  partial_.append(bytes);
  if (partial_.size() > kLongestLine) finish();
}

void LineWriter::finish() {
  if (partial_.empty()) return;
  emit(partial_);
  partial_.clear();
}

void LineWriter::emit(std::string_view line) {
  out_->add(prefix_);
  out_->add(line);
  out_->add("\n");
}
