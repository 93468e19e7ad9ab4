// The schedule of a run. It depends only on the options, the number of ranks and the size of the data.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "options.h"

struct Schedule {
  uint32_t batch = 0;  // images for each rank and step
  uint32_t steps = 0;  // per epoch
  uint32_t epochs = 0;
  float start_rate = 0;

  Schedule(const Options& options, uint32_t images, int ranks)
      : batch(options.global_batch / static_cast<uint32_t>(ranks)),
        epochs(options.epochs),
        start_rate(options.rate) {
    if (batch < 8) batch = 8;
    steps = images / static_cast<uint32_t>(ranks) / batch;
    if (steps == 0)
      throw std::invalid_argument(std::to_string(images) + " training images are too few for one step of " +
                                  std::to_string(ranks) + " ranks with " + std::to_string(batch) +
                                  " images each");
  }

  uint32_t total_steps() const { return steps * epochs; }
  // Falls from start_rate to 0 by half a cosine.
  float rate(uint32_t step) const {
    const double part = static_cast<double>(step) / total_steps();
    return static_cast<float>(start_rate * 0.5 * (1 + std::cos(part * 3.14159265358979)));
  }
};
