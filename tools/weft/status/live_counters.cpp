#include "live_counters.h"

#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include "environment/launch.h"

namespace {

// One line: name{label="value",label="value"} number
struct Sample {
  std::string_view name;
  std::map<std::string_view, std::string> labels;
  double value = 0;
};

// Takes the value of a label up to its closing quote, which escaped ones are not.
bool take_quoted(std::string_view* rest, std::string* value) {
  for (size_t i = 0; i < rest->size(); ++i) {
    char c = (*rest)[i];
    if (c == '"') {
      rest->remove_prefix(i + 1);
      return true;
    }
    if (c == '\\' && ++i < rest->size()) c = (*rest)[i] == 'n' ? '\n' : (*rest)[i];
    *value += c;
  }
  return false;
}

bool parse_sample(std::string_view line, Sample* sample) {
  const size_t open = line.find('{');
  if (open == line.npos) return false;
  sample->name = line.substr(0, open);
  std::string_view rest = line.substr(open);
  while (!rest.empty() && rest[0] != '}') {
    rest.remove_prefix(1);  // the brace, or a comma
    const size_t equals = rest.find("=\"");
    if (equals == rest.npos) return false;
    std::string& value = sample->labels[rest.substr(0, equals)];
    rest.remove_prefix(equals + 2);
    if (!take_quoted(&rest, &value)) return false;
  }
  if (!rest.starts_with("} ")) return false;
  rest.remove_prefix(2);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), sample->value);
  return error == std::errc() && end == rest.data() + rest.size() && std::isfinite(sample->value);
}

// Returns -1 for a label that is not a rank.
int rank_in(const Sample& sample, std::string_view label) {
  const auto found = sample.labels.find(label);
  if (found == sample.labels.end()) return -1;
  const std::string& text = found->second;
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc() && end == text.data() + text.size() && rank < weft::kMaxRanks ? rank : -1;
}

bool has_label(const Sample& sample, std::string_view label, std::string_view value) {
  const auto found = sample.labels.find(label);
  return found != sample.labels.end() && found->second == value;
}

}  // namespace

CountersByRank parse_counters(const std::string& samples) {
  CountersByRank all;
  std::istringstream stream(samples);
  for (std::string line; std::getline(stream, line);) {
    Sample sample;
    if (!parse_sample(line, &sample)) continue;
    const int rank = rank_in(sample, "rank");
    if (rank < 0) continue;
    LiveCounters& counters = all[{sample.labels["comm"], rank}];
    const int other = rank_in(sample, "for_rank");
    if (sample.name == "weft_reducer_steps_total" && has_label(sample, "result", "synchronised")) {
      counters.steps += sample.value;
    } else if (sample.name == "weft_comm_bytes_total" && !has_label(sample, "way", "received")) {
      counters.bytes += sample.value;
    } else if (sample.name == "weft_reducer_straggler_steps_total" && other >= 0) {
      counters.waited[other].steps += sample.value;
    } else if (sample.name == "weft_reducer_straggler_seconds_total" && other >= 0) {
      counters.waited[other].seconds += sample.value;
    }
  }
  return all;
}
