// Writes and times the schedules of lib/coll, and makes bucket plans, for bench/simulate.py and
// bench/predict.py. One thread.
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/text.h"
#include "reducer/plan/plan.h"
#include "schedules/model.h"
#include "schedules/trace.h"

namespace {

using namespace weft;
using namespace weft::bench;

constexpr const char* kUsage =
    R"(usage: schedules trace COLLECTIVE ALGORITHM --ranks N --bytes B --out FOLDER [--element 4]
       schedules time COLLECTIVE ALGORITHM --ranks N --bytes B,... --walk all|one --link S,... --latency S
                      --message S --core S --memory S [--element 4]
       schedules buckets < COUNTS

trace    writes a time-independent trace of SimGrid for each rank, and FOLDER/traces, which lists them
time     prints the model's time for each size and link as a line of JSON; costs in seconds (schedules/model.h)
buckets  reads the number of elements of each f32 parameter, in the order of definition; prints a line for
         each bucket of a reducer, in launch order: the indices of its parameters

--bytes: of one rank's count, as in the C ABI: of the vector, or of one rank's block
)";

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(text);
}

template <class Value>
Value number(const std::string& option, std::string_view text) {
  Value value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < Value{0}) {
    refuse(cat(option, " needs a number of at least 0, but is ", text));
  }
  return value;
}

template <class Value>
std::vector<Value> numbers(const std::string& option, std::string_view text) {
  std::vector<Value> values;
  while (true) {
    const size_t comma = text.find(',');
    values.push_back(number<Value>(option, text.substr(0, comma)));
    if (comma == text.npos) return values;
    text.remove_prefix(comma + 1);
  }
}

// The options of a command, by name. Each has a value.
class Options {
 public:
  Options(const std::vector<std::string>& words, const std::vector<std::string>& known) {
    for (size_t i = 0; i < words.size(); i += 2) {
      if (std::find(known.begin(), known.end(), words[i]) == known.end()) {
        refuse(cat("unknown option ", words[i], ": allowed are ", join(known)));
      }
      if (i + 1 == words.size()) refuse(cat(words[i], " needs a value"));
      values_[words[i]] = words[i + 1];
    }
  }
  const std::string& text(const std::string& option) const {
    const auto found = values_.find(option);
    if (found == values_.end()) refuse(cat(option, " is missing"));
    return found->second;
  }
  bool has(const std::string& option) const { return values_.contains(option); }
  double seconds(const std::string& option) const { return number<double>(option, text(option)); }

 private:
  static std::string join(const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& word : words) all += cat(all.empty() ? "" : ", ", word);
    return all;
  }
  std::map<std::string, std::string> values_;
};

Operation operation_of(const std::vector<std::string>& words, const Options& options) {
  Operation operation;
  operation.algorithm = &find_algorithm(words[0], words[1]);
  operation.size = number<int>("--ranks", options.text("--ranks"));
  if (operation.size < 1) refuse("--ranks is 0, expected at least 1");
  if (options.has("--element")) operation.element = number<uint64_t>("--element", options.text("--element"));
  if (operation.element == 0) refuse("--element is 0, expected at least 1");
  return operation;
}

void write_traces(Operation operation, const Options& options) {
  operation.count = number<uint64_t>("--bytes", options.text("--bytes")) / operation.element;
  const std::filesystem::path folder = options.text("--out");
  std::filesystem::create_directories(folder);
  std::ofstream list(folder / "traces");
  for (int rank = 0; rank < operation.size; rank++) {
    const std::filesystem::path path = folder / std::to_string(rank);
    std::ofstream trace(path);
    write_trace(trace, operation, rank);
    trace.flush();
    if (!trace) throw std::runtime_error(cat("cannot write ", path.string()));
    list << path.string() << '\n';
  }
  list.flush();
  if (!list) throw std::runtime_error(cat("cannot write ", (folder / "traces").string()));
}

void print_times(Operation operation, const Options& options) {
  Costs costs;
  costs.latency = options.seconds("--latency");
  costs.message = options.seconds("--message");
  costs.core_byte = options.seconds("--core");
  costs.memory_byte = options.seconds("--memory");
  const std::string& walk = options.text("--walk");
  if (walk != "all" && walk != "one") refuse(cat("--walk: \"", walk, "\": allowed are all, one"));
  for (const uint64_t bytes : numbers<uint64_t>("--bytes", options.text("--bytes"))) {
    operation.count = bytes / operation.element;
    for (const double link : numbers<double>("--link", options.text("--link"))) {
      costs.link_byte = link;
      const double seconds = walk == "all" ? walk_all(operation, costs) : walk_one(operation, costs);
      std::printf("{\"bytes\": %llu, \"link\": %.17g, \"seconds\": %.17g}\n",
                  static_cast<unsigned long long>(bytes), link, seconds);
    }
  }
}

void print_buckets() {
  Manifest manifest;
  uint64_t count = 0;
  while (std::cin >> count) {
    Param param;
    param.count = count;
    param.shape = {static_cast<int64_t>(count)};
    param.strides = {1};
    manifest.params.push_back(param);
  }
  if (manifest.params.empty() || !std::cin.eof())
    refuse("buckets: expected numbers of elements, and only them");
  for (const PlannedBucket& bucket : make_plan(manifest, PlanOptions()).buckets) {
    for (size_t i = 0; i < bucket.params.size(); i++)
      std::printf("%s%u", i == 0 ? "" : " ", bucket.params[i]);
    std::printf("\n");
  }
}

void run(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "buckets" && words.size() == 1) return print_buckets();
  if ((command != "trace" && command != "time") || words.size() < 3) refuse(kUsage);
  const std::vector<std::string> operation(words.begin() + 1, words.begin() + 3);
  const std::vector<std::string> rest(words.begin() + 3, words.end());
  if (command == "trace") {
    const Options options(rest, {"--ranks", "--bytes", "--out", "--element"});
    return write_traces(operation_of(operation, options), options);
  }
  const Options options(rest, {"--ranks", "--bytes", "--walk", "--link", "--latency", "--message", "--core",
                               "--memory", "--element"});
  print_times(operation_of(operation, options), options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "schedules: %s\n", error.what());
    return 1;
  }
}
