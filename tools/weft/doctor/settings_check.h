// Checks the environment as weft_context_create and weft_comm_create do, without a job.
#pragma once

#include <string>
#include <vector>

// Returns the reasons why this process could not create a communicator with its environment; none: it could.
// Parses every variable that is not free text. Creates no context, so it does not find a folder that takes no
// files, or a backend that does not exist. Threads: see environment/variables.h.
std::vector<std::string> environment_errors();
