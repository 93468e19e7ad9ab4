// Finds the control groups of this process, of version 1 and 2.
#pragma once

#include <string>
#include <vector>

namespace doctor {

// Returns the folders of the group that has `controller` ("memory", "cpu", "pids") for this process, and of
// the groups around it, as far as they are visible from here. The limits of each apply.
std::vector<std::string> cgroup_folders(const std::string& controller);

}  // namespace doctor
