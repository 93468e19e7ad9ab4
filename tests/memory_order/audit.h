// Checks that programs are correct under the C++ memory model, and that each order of the real code that
// they execute is needed: with a weaker one the explorer finds a failure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "explorer.h"

namespace weft::model {

struct Program {
  const char* name;
  std::function<void()> body;
  int deviations;  // of executions of the real orders (Limits::deviations)
  int mutants;     // of executions of weaker orders
};

// files: from the root of the sources. orders.txt says for each of them which lines with atomic operations no
// program executes, and which orders are stronger than the programs need. Operators of atomic words in inline
// functions that nothing calls are not found: they are neither compiled, nor seen in the text.
// WEFT_MODEL_WRITE=path appends what was found.
void audit(const std::vector<Program>& programs, const std::vector<std::string>& files);

}  // namespace weft::model
