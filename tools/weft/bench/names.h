// Converts between words of the command line and the constants of weft.h.
#pragma once

#include <cstdint>
#include <string>

uint32_t dtype_size(int32_t dtype);
bool dtype_is_float(int32_t dtype);
// Each throws std::invalid_argument that lists the choices.
int32_t parse_dtype(const std::string& name);
int32_t parse_op(const std::string& name);
// Parses "8", "64K", "4M", "1.5G": binary units.
uint64_t parse_bytes(const std::string& text);
std::string bytes_text(uint64_t bytes);  // "64K"
