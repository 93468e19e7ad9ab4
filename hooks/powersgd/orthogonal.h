// Orthonormal columns, and random ones, equal on every rank and machine.
#pragma once

#include <cstdint>

namespace weft::hook_powersgd {

// Columns of `rows` values, one after the other, become orthonormal, by modified Gram-Schmidt in f64: each is
// divided by its norm + epsilon. A column that depends on those before it, or is zero, becomes zero.
void orthonormalize(float* columns, uint64_t rows, uint64_t rank, double epsilon);

// The same, but what would become zero is replaced by something random.
void orthonormalize_or_refill(float* columns, uint64_t rows, uint64_t rank, double epsilon, uint64_t seed);

// About normal, from whole numbers alone.
void fill_random(float* values, uint64_t count, uint64_t seed);

}  // namespace weft::hook_powersgd
