// Selection of the largest values, for the instruction set being compiled. Included by host_ops.cpp, which
// has the table, and select.cpp.
#if defined(WEFT_KERNELS_SELECT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SELECT_INL_H
#undef WEFT_KERNELS_SELECT_INL_H
#else
#define WEFT_KERNELS_SELECT_INL_H
#endif

#include <hwy/highway.h>
#include "device/device.h"

namespace weft {
namespace HWY_NAMESPACE {

void select_largest(const SelectArgs& args);

}  // namespace HWY_NAMESPACE
}  // namespace weft

#endif
