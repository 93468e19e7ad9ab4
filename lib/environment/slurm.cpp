#include "environment/slurm.h"

#include <charconv>

namespace weft {
namespace {

// Returns the number with which *text begins, and removes it; -1 if there is none.
int take_number(std::string_view* text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number < 0) return -1;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

bool take(std::string_view* text, std::string_view part) {
  if (!text->starts_with(part)) return false;
  text->remove_prefix(part.size());
  return true;
}

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list[0] != ',') {
    if (list[0] != '[') {
      if (list[0] == ']') return "";
      host += list[0];
      list.remove_prefix(1);
      continue;
    }
    // A list of numbers and ranges of them, of which the first number counts, with its leading zeros.
    const size_t close = list.find(']'), end = list.find_first_of(",-]");
    if (close == list.npos || end == 1) return "";
    host += list.substr(1, end - 1);
    list.remove_prefix(close + 1);
  }
  return host;
}

int slurm_tasks_on(std::string_view tasks_per_node, int node) {
  for (int first = 0; !tasks_per_node.empty();) {
    const int tasks = take_number(&tasks_per_node);
    int nodes = 1;
    if (take(&tasks_per_node, "(x")) {
      nodes = take_number(&tasks_per_node);
      if (!take(&tasks_per_node, ")")) return 0;
    }
    if (tasks < 0 || nodes < 1) return 0;
    if (node < first + nodes) return node < first ? 0 : tasks;
    first += nodes;
    if (!tasks_per_node.empty() && !take(&tasks_per_node, ",")) return 0;
  }
  return 0;
}

}  // namespace weft
