// The shm backend: collectives over memory that the ranks of one host share. Found through lib/registry.cpp.
#pragma once

#include "transport/backend.h"

namespace weft::shm {

const Backend& backend();

// Returns the Collectives of an existing group.
class Group;
std::unique_ptr<Collectives> collectives_over(std::shared_ptr<Group> group);

}  // namespace weft::shm
