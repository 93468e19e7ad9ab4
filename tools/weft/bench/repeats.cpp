#include "repeats.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace {

using nlohmann::json;
using Objects = std::vector<const json*>;

int open_passed() {
  const int fd = ::memfd_create("weft-bench", 0);  // inherited by started processes
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  return fd;
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double greatest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Returns the index of the median; of two, the lower one.
size_t middle(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order[(order.size() - 1) / 2];
}

std::vector<double> numbers(const Objects& rows, const char* name) {
  std::vector<double> values;
  for (const json* row : rows) {
    if (row->at(name).is_number()) values.push_back(row->at(name).get<double>());
  }
  return values;
}

// Returns each text once, in order of appearance, and its number of occurrences.
std::vector<std::pair<std::string, size_t>> texts(const Objects& objects, const char* name) {
  std::vector<std::pair<std::string, size_t>> found;
  for (const json* object : objects) {
    const std::string text = object->at(name);
    const auto same = [&](const auto& one) { return one.first == text; };
    const auto known = std::find_if(found.begin(), found.end(), same);
    if (known == found.end()) {
      found.emplace_back(text, 1);
    } else {
      ++known->second;
    }
  }
  return found;
}

json merge_rows(const Objects& rows) {
  const std::vector<double> medians = numbers(rows, "median_us");
  json row = *rows[middle(medians)];
  const double of_middle = row.at("median_us"), of_all = median(medians);
  const auto set = [&](const char* name, double (*choose)(const std::vector<double>&)) {
    const std::vector<double> values = numbers(rows, name);
    row[name] = values.empty() ? json() : json(choose(values));
  };
  const auto median_of = [](const std::vector<double>& values) { return median(values); };
  for (const char* time : {"median_us", "p99_us", "wall_median_us", "exposed_us"}) set(time, median_of);
  for (const char* time : {"median_low_us", "min_us"}) set(time, least);
  set("median_high_us", greatest);
  for (const char* count : {"page_faults", "allocations", "system_calls", "moved_bytes"}) set(count, least);
  for (const char* bandwidth : {"algbw_gb_s", "busbw_gb_s"}) {
    if (of_all > 0) row[bandwidth] = row.at(bandwidth).get<double>() * of_middle / of_all;
  }
  row["process_medians_us"] = medians;
  for (const json* one : rows) {
    if (one->at("correct") == false) row["correct"] = false;  // null: unchecked
  }
  std::string algorithms;
  for (const auto& [name, count] : texts(rows, "algorithm"))
    algorithms += (algorithms.empty() ? "" : "/") + name;
  row["algorithm"] = algorithms;
  return row;
}

std::string transports(const Objects& runs) {
  const auto found = texts(runs, "transports");
  if (found.size() == 1) return found.front().first;
  std::string all;
  for (const auto& [text, count] : found) {
    all += (all.empty() ? "" : "; ") + text + " (" + std::to_string(count) + " of " +
           std::to_string(runs.size()) + " processes)";
  }
  return all;
}

}  // namespace

PassedFile::PassedFile() : fd_(open_passed()) {}

PassedFile::~PassedFile() {
  ::close(fd_);
}

std::string PassedFile::path() const {
  return "/proc/self/fd/" + std::to_string(fd_);
}

json merge(const std::vector<json>& runs) {
  Objects all;
  for (const json& run : runs) all.push_back(&run);
  json whole = runs.front();
  whole["processes"] = runs.size();
  whole["transports"] = transports(all);
  for (size_t i = 0; i < whole.at("results").size(); ++i) {
    Objects rows;
    for (const json& run : runs) rows.push_back(&run.at("results").at(i));
    whole["results"][i] = merge_rows(rows);
  }
  return whole;
}
