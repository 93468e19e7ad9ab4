#include "audit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <set>

#include "machine.h"
#include "support/catch.h"

extern "C" const char __executable_start;

namespace weft::model {
namespace {

double seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

constexpr const char* kOrders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};

// Returns true for lines with an order or a call of an atomic operation. A default order is not in the text,
// nor are operators: atomic_calls() finds these.
bool names_operation(const std::string& text) {
  constexpr const char* kCalls[] = {"load(", "store(", "exchange(", "fetch_", "compare_exchange_"};
  const auto is_called = [&](const char* name) {
    const std::string member = std::string(".") + name, pointed = std::string("->") + name;
    return text.find(member) != std::string::npos || text.find(pointed) != std::string::npos;
  };
  return text.find("memory_order_") != std::string::npos ||
         std::any_of(std::begin(kCalls), std::end(kCalls), is_called);
}

// Returns the orders that are one step weaker.
std::vector<Order> weaker(Kind kind, Order order) {
  switch (order) {
    case Order::kSeqCst:
      if (kind == Kind::kLoad || kind == Kind::kFailedUpdate) return {Order::kAcquire};
      if (kind == Kind::kStore) return {Order::kRelease};
      return {Order::kAcqRel};
    case Order::kAcqRel:
      return {Order::kRelease, Order::kAcquire};
    case Order::kAcquire:
    case Order::kRelease:
      return {Order::kRelaxed};
    default:
      return {};
  }
}

// Returns the weakest order that no program notices.
Order weakest(const std::vector<const Program*>& programs, const Site& site, Order order) {
  for (const Order next : weaker(site.kind, order)) {
    const Mutant mutant{site, next};
    const bool found = std::any_of(programs.begin(), programs.end(), [&](const Program* program) {
      return !explore(program->body, {program->mutants}, &mutant).passed;
    });
    if (!found) return weakest(programs, site, next);
  }
  return order;
}

// Returns the return addresses of this program's calls of atomic operations, also of those that no thread
// executes.
std::vector<uintptr_t> atomic_calls() {
  // objdump prints each instruction with its address: "   16c86:\tcall   31130 <__tsan_atomic32_load>".
  const std::string command = "objdump -d --no-show-raw-insn /proc/" + std::to_string(getpid()) + "/exe";
  const auto base = reinterpret_cast<uintptr_t>(&__executable_start);
  std::FILE* const output = popen(command.c_str(), "r");
  std::vector<uintptr_t> calls;
  bool after_call = false;
  char line[4096];
  while (output != nullptr && std::fgets(line, sizeof line, output) != nullptr) {
    char* end = nullptr;
    const uintptr_t address = std::strtoull(line, &end, 16);
    if (end == line || *end != ':') continue;
    if (after_call) calls.push_back(base + address);
    const char* const callee = std::strstr(end, "<__tsan_atomic");
    after_call = callee != nullptr && std::strpbrk(callee, ".+") == nullptr;  // else inside the explorer
  }
  if (output != nullptr) pclose(output);
  return calls;
}

struct Place {
  std::string file;
  int line = 0;
  auto operator<=>(const Place&) const = default;
};

// Returns the lines of these files on which there is an atomic operation, with their text.
std::map<Place, std::string> places(const std::vector<std::string>& files) {
  const auto is_audited = [&](const std::string& file) {
    return std::find(files.begin(), files.end(), file) != files.end();
  };
  std::map<Place, std::string> all;
  for (const std::string& file : files) {
    const std::vector<std::string>& lines = numbered_lines(std::string(WEFT_SOURCE_ROOT) + "/" + file);
    for (size_t i = 0; i < lines.size(); i++) {
      if (lines[i].compare(0, 2, "//") != 0 && names_operation(lines[i]))
        all[{file, static_cast<int>(i) + 1}] = lines[i];
    }
  }
  const std::map<uintptr_t, SourceLine> compiled = source_lines(atomic_calls());
  CHECK(!compiled.empty());  // objdump works
  for (const auto& [call, at] : compiled) {
    if (is_audited(at.file) && !at.counts_references) all[{at.file, at.line}] = at.text;
  }
  return all;
}

// Returns the lines of orders.txt about these files.
std::set<std::string> listed(const std::vector<std::string>& files) {
  std::ifstream in(std::string(WEFT_SOURCE_ROOT) + "/tests/memory_order/orders.txt");
  std::set<std::string> lines;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    for (const std::string& file : files) {
      if (line.rfind(file + ": ", 0) == 0) lines.insert(line);
    }
  }
  return lines;
}

}  // namespace

void audit(const std::vector<Program>& programs, const std::vector<std::string>& files) {
  std::map<std::string, Site> all;
  std::map<std::string, std::vector<const Program*>> users;  // by site
  for (const Program& program : programs) {
    (void)sites();
    const double begun = seconds();
    const Result result = explore(program.body, {program.deviations});
    INFO("program " << program.name << ", execution " << result.executions);
    CHECK(result.failure == "");
    CHECK(result.complete);
    if (!result.passed) return;
    if (std::getenv("WEFT_MODEL_COUNTS") != nullptr)
      std::fprintf(stderr, "%s: %llu executions, %.3f s\n", program.name,
                   static_cast<unsigned long long>(result.executions), seconds() - begun);
    for (Site& site : sites()) {
      users[site.name()].push_back(&program);
      Site& known = all.emplace(site.name(), site).first->second;
      known.calls.insert(known.calls.end(), site.calls.begin(), site.calls.end());
    }
  }
  std::set<Place> executed;
  std::set<std::string> found;
  for (const auto& [name, site] : all) {
    executed.insert({site.file, site.line});
    if (std::find(files.begin(), files.end(), site.file) == files.end() || site.counts_references) continue;
    const double begun = seconds();
    const Order needed = weakest(users[name], site, site.order);
    if (std::getenv("WEFT_MODEL_COUNTS") != nullptr)
      std::fprintf(stderr, "%s: %s, %.3f s\n", name.c_str(), kOrders[static_cast<int>(needed)],
                   seconds() - begun);
    if (needed != site.order)
      found.insert(name.substr(0, name.size() - 1) + " -> " + kOrders[static_cast<int>(needed)] + ")");
  }
  for (const auto& [place, text] : places(files)) {
    if (executed.count(place) == 0) found.insert(place.file + ": " + text + " (not executed)");
  }
  if (const char* const path = std::getenv("WEFT_MODEL_WRITE")) {
    std::ofstream out(path, std::ios::app);
    for (const std::string& line : found) out << line << '\n';
  }
  const std::set<std::string> expected = listed(files);
  std::string differences;
  for (const std::string& line : expected) {
    if (found.count(line) == 0) differences += "- " + line + "\n";
  }
  for (const std::string& line : found) {
    if (expected.count(line) == 0) differences += "+ " + line + "\n";
  }
  INFO("orders.txt and what was found (+) differ");
  CHECK(differences == "");
}

}  // namespace weft::model
