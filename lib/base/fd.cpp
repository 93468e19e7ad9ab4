#include "base/fd.h"

#include <unistd.h>

namespace weft {

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace weft
