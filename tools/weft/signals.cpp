#include "signals.h"

#include <signal.h>

std::vector<int> ending_signals() {
  std::vector<int> numbers;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action{};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) numbers.push_back(number);
  }
  return numbers;
}

void keep_exit_codes() {
  ::signal(SIGCHLD, SIG_DFL);
}
