#include "audit.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <set>

#include "support/catch.h"

namespace weft::model {
namespace {

double seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

constexpr const char* kOrders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};

bool names_operation(const std::string& text) {
  return text.find("load(") != std::string::npos || text.find("store(") != std::string::npos ||
         text.find("exchange") != std::string::npos || text.find("fetch_") != std::string::npos;
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

std::vector<std::string> lines_with_orders(const std::string& file) {
  std::ifstream in(std::string(WEFT_SOURCE_ROOT) + "/" + file);
  std::vector<std::string> lines;
  std::string line;
  while (std::getline(in, line)) {
    const size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos || line.compare(indent, 2, "//") == 0) continue;
    if (line.find("memory_order_") != std::string::npos) lines.push_back(file + ": " + line.substr(indent));
  }
  return lines;
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
  std::set<std::string> executed, found;
  for (const auto& [name, site] : all) {
    executed.insert(site.file + ": " + site.text);
    if (std::find(files.begin(), files.end(), site.file) == files.end()) continue;
    if (!names_operation(site.text)) continue;  // a reference count of the standard library's
    const double begun = seconds();
    const Order needed = weakest(users[name], site, site.order);
    if (std::getenv("WEFT_MODEL_COUNTS") != nullptr)
      std::fprintf(stderr, "%s: %s, %.3f s\n", name.c_str(), kOrders[static_cast<int>(needed)],
                   seconds() - begun);
    if (needed != site.order)
      found.insert(name.substr(0, name.size() - 1) + " -> " + kOrders[static_cast<int>(needed)] + ")");
  }
  for (const std::string& file : files) {
    for (const std::string& line : lines_with_orders(file)) {
      if (executed.count(line) == 0) found.insert(line + " (not executed)");
    }
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
