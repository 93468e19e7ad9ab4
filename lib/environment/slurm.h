// Texts in Slurm's environment variables. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace weft {

// Returns the first host of a list: "node07" for "node[07-09,12],login1". Empty if the text is no such list.
std::string first_slurm_host(std::string_view list);

// Returns the number of tasks on the node with this number: 2 for node 1 of "4,2(x3)". 0 if the text does not
// say it.
int slurm_tasks_on(std::string_view tasks_per_node, int node);

}  // namespace weft
