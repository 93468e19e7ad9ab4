// Runs a set of processes as one job: forwards their output, ends all when one fails, and returns when all
// have ended. Threads: one thread at a time; blocks the signals that it waits for in the calling thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

struct Child {
  std::string name;                                              // "rank 3", "host b": for messages
  std::string number;                                            // "3": for lists of names
  std::vector<std::string> command;                              // looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // to set
  std::vector<std::string> unset;                                // variables to remove
  std::string prefix;                                            // of its output lines
  // A controller of processes elsewhere reads its standard input: this text, and then a line with the number
  // of each signal. It ends its processes when that stream ends. Empty: standard input is empty, and signals
  // go to the child's process group.
  std::string input;
};

struct SuperviseOptions {
  std::string program;   // "weft run": begins messages
  double timeout_s = 0;  // 0: no limit
  double grace_s = 2;    // time for the other children to end by themselves after the first failure
  // A stream of lines with numbers of signals, like Child::input, of the process that controls this one; its
  // end counts as SIGTERM. -1: none.
  int control = -1;
};

// Returns the exit code of the first child that failed, or 0. The code is 128 + signal if a signal ended the
// child, 124 after the timeout, and 128 + signal if this process itself was signalled to end. When it
// returns, no child is running, nor anything that children started in their process groups. Children are
// killed if this process dies. While nobody reads the output, children wait in their writes; after a signal
// or the timeout the rest of the output is dropped.
int supervise(const std::vector<Child>& children, const SuperviseOptions& options);
