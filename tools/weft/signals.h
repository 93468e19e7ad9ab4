// The signals that end a weft command, and the one that reports the end of a process that it started.
#pragma once

#include <vector>

// Returns SIGINT, SIGTERM and SIGHUP without those that the process ignores: nohup and a shell's background
// job ignore some of them on purpose. A signal that is blocked arrives even if it is ignored.
std::vector<int> ending_signals();

// Undoes SIG_IGN for SIGCHLD, which a process inherits: with it the kernel keeps no exit codes of children.
// For the start of a program.
void keep_exit_codes();
