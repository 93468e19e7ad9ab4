#include "terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>

#include "weft/signals.h"

namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // the other screen, without the cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kEndOfLine = "\x1b[K\n";  // clears the rest of the line
constexpr std::string_view kClearBelow = "\x1b[J";

int quit_pipe[2] = {-1, -1};  // a byte: a signal has come

void on_signal(int) {
  const int before = errno;
  (void)!::write(quit_pipe[1], "", 1);
  errno = before;
}

void put_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(put, 0)));
  }
}

// Returns the part of a line that takes at most `columns`, each character of UTF-8 being one wide.
std::string_view cut_line(std::string_view line, size_t columns) {
  size_t shown = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool continues = (static_cast<unsigned char>(line[i]) & 0xC0) == 0x80;
    if (!continues && shown++ == columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

Terminal::Terminal() {
  has_keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
  if (has_keys_) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped program would leave the other screen behind
    keys.c_cc[VMIN] = 0;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  }
  put_all(kEnter);
}

Terminal::~Terminal() {
  put_all(kLeave);
  if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::draw(const std::string& text) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
  const size_t rows = known ? size.ws_row : 24, columns = known ? size.ws_col : 80;
  std::string frame(kHome);
  std::string_view rest = text;
  // The last row stays empty, because a newline there would scroll.
  for (size_t row = 0; row + 1 < rows && !rest.empty(); ++row) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    frame.append(cut_line(rest.substr(0, end), columns)).append(kEndOfLine);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  put_all(frame.append(kClearBelow));
}

QuitWatch::QuitWatch(bool keys) : keys_(keys), signals_(ending_signals()) {
  if (::pipe2(quit_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe2");
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : signals_) ::sigaction(number, &action, nullptr);
}

QuitWatch::~QuitWatch() {
  for (const int number : signals_) ::signal(number, SIG_DFL);
  for (int& end : quit_pipe) {
    ::close(end);
    end = -1;
  }
}

bool QuitWatch::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd polled[] = {{quit_pipe[0], POLLIN, 0}, {keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
    ::poll(polled, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (polled[0].revents != 0) return true;
    if (polled[1].revents != 0) {
      char key = 0;
      const ssize_t got = ::read(STDIN_FILENO, &key, 1);
      if (got <= 0 || key == 'q' || key == 'Q') return true;  // the terminal is gone, or q
      continue;
    }
    if (Clock::now() >= until) return false;
  }
}
