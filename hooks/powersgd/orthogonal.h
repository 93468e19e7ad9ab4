// Orthonormal and random columns, bitwise equal on every rank and machine.
#pragma once

#include <cstdint>

namespace weft::hook_powersgd {

// Orthonormalises consecutive columns of `rows` values by modified Gram-Schmidt in f64: each is divided by
// its norm + epsilon. A column that is zero, or depends on those before it, becomes zero.
void orthonormalize(float* columns, uint64_t rows, uint64_t rank, double epsilon);

// Does the same, but replaces a column that would become zero by a random one.
void orthonormalize_or_refill(float* columns, uint64_t rows, uint64_t rank, double epsilon, uint64_t seed);

// Fills with approximately normal values, computed from integers only.
void fill_random(float* values, uint64_t count, uint64_t seed);

}  // namespace weft::hook_powersgd
