// The shm backend: collectives over memory that the ranks of one host share. Found through lib/registry.cpp.
#pragma once

#include "core/backend.h"

namespace weft::shm {

const Backend& backend();

}  // namespace weft::shm
