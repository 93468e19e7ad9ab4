// The ucx backend: a Transport over UCX, in a module of its own (libweft-ucx.so).
#pragma once

#include "transport/backend.h"

namespace weft::ucx {

const Backend& backend() noexcept;

}  // namespace weft::ucx
