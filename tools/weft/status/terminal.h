// A full-screen view on a terminal that the program redraws. The destructor restores the terminal.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

class Terminal {
 public:
  // Takes over the terminal of standard output, and standard input if that is one as well: keys are no longer
  // shown, and need no newline.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Replaces the view by the text. Lines that are too long are cut, and so are those that do not fit.
  void draw(const std::string& text);

 private:
  bool has_keys_ = false;
  termios before_{};
};

// Waits for one of the ending_signals(), or for the key q. Programs that are started meanwhile have these
// signals' default effects. Threads: one object at a time.
class QuitWatch {
 public:
  // keys: standard input is read.
  explicit QuitWatch(bool keys);
  ~QuitWatch();
  QuitWatch(const QuitWatch&) = delete;
  QuitWatch& operator=(const QuitWatch&) = delete;

  // Returns true if the user wants to quit, or false after this time.
  bool wait(double seconds);

 private:
  const bool keys_;
  const std::vector<int> signals_;
};
