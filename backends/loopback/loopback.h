// The loopback backend, whose ranks are threads of one process. For tests, and for trying programs out.
#pragma once

#include "transport/backend.h"

namespace weft::loopback {

const Backend& backend();

}  // namespace weft::loopback
