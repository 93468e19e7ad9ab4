#include "lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

LineWriter::LineWriter(LineWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      out_(other.out_),
      prefix_(std::move(other.prefix_)),
      partial_(std::move(other.partial_)) {}

LineWriter::~LineWriter() {
  if (fd_ >= 0) ::close(fd_);
}

bool LineWriter::pump() {
  char buffer[65536];
  if (fd_ < 0) return false;
  // Reads once: a rank that floods its output must not keep the caller from signals and the other ranks.
  const ssize_t got = ::read(fd_, buffer, sizeof buffer);
  if (got > 0) {
    take({buffer, static_cast<size_t>(got)});
  } else if (got == 0) {
    ::close(std::exchange(fd_, -1));
  }
  return fd_ >= 0;
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
  std::string text = prefix_;
  text.append(line).push_back('\n');
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t wrote = ::write(out_, rest.data(), rest.size());
    if (wrote > 0) {
      rest.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno == EAGAIN) {  // another program made our output non-blocking
      pollfd wait{out_, POLLOUT, 0};
      ::poll(&wait, 1, 100);
    } else if (errno != EINTR) {
      return;  // the receiver of our output is gone
    }
  }
}
