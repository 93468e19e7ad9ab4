#include "metrics/text.h"

#include <cstdio>
#include <string_view>

#include "base/text.h"

namespace weft {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return result;
}

}  // namespace

void MetricsText::add(const Metric& metric, uint64_t value, std::initializer_list<MetricLabel> labels,
                      const char* suffix) {
  add_text(metric, std::to_string(value), labels, suffix);
}

void MetricsText::add_seconds(const Metric& metric, uint64_t ns, std::initializer_list<MetricLabel> labels,
                              const char* suffix) {
  constexpr uint64_t kSecond = 1'000'000'000;
  char value[40];
  std::snprintf(value, sizeof value, "%llu.%09llu", static_cast<unsigned long long>(ns / kSecond),
                static_cast<unsigned long long>(ns % kSecond));
  add_text(metric, value, labels, suffix);
}

void MetricsText::append(const MetricsText& other) {
  for (const auto& [name, family] : other.families_) {
    Family& own = families_[name];
    own.metric = family.metric;
    own.samples.insert(own.samples.end(), family.samples.begin(), family.samples.end());
  }
}

std::string MetricsText::text() const {
  std::string text;
  for (const auto& [name, family] : families_) {
    text += cat("# HELP ", name, " ", family.metric->help, "\n# TYPE ", name, " ", family.metric->type, "\n");
    for (const std::string& sample : family.samples) text += sample;
  }
  return text;
}

void MetricsText::add_text(const Metric& metric, const std::string& value,
                           std::initializer_list<MetricLabel> labels, const char* suffix) {
  std::string line = cat(metric.name, suffix);
  char before = '{';
  const auto append = [&](const MetricLabel& label) {
    line += cat(std::string(1, before), label.name, "=\"", escaped(label.value), "\"");
    before = ',';
  };
  for (const MetricLabel& label : labels_) append(label);
  for (const MetricLabel& label : labels) append(label);
  if (before == ',') line += '}';
  Family& family = families_[metric.name];
  family.metric = &metric;
  family.samples.push_back(cat(line, " ", value, "\n"));
}

}  // namespace weft
