#include "fabric.h"

#include <utility>

namespace weft::loopback {

Fabric::Fabric(int size, std::shared_ptr<Delays> delays) : size_(size), delays_(std::move(delays)) {
  for (int i = 0; i < size * size; i++) boxes_.push_back(std::make_unique<Mailbox>());
}

}  // namespace weft::loopback
