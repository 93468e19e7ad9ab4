// Samples of metrics, and their text in Prometheus's exposition format. Threads: one at a time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace weft {

struct Metric {
  const char* name;  // "weft_reducer_steps_total"
  const char* type;  // "counter", "gauge" or "summary"
  const char* help;  // one sentence, without a line break
};

struct MetricLabel {
  const char* name;
  std::string value;  // any text
};

class MetricsText {
 public:
  // Labels of the samples that are added from now on, besides their own.
  void set_labels(std::vector<MetricLabel> labels) { labels_ = std::move(labels); }
  // metric: its texts must live as long as this object; constants do. suffix: "_sum" or "_count" of a
  // summary.
  void add(const Metric& metric, uint64_t value, std::initializer_list<MetricLabel> labels = {},
           const char* suffix = "");
  void add_seconds(const Metric& metric, uint64_t ns, std::initializer_list<MetricLabel> labels = {},
                   const char* suffix = "");
  // Adds the samples of another text.
  void append(const MetricsText& other);
  // Returns the samples by metric, in the order of names.
  std::string text() const;

 private:
  struct Family {
    const Metric* metric = nullptr;
    std::vector<std::string> samples;  // lines
  };
  void add_text(const Metric& metric, const std::string& value, std::initializer_list<MetricLabel> labels,
                const char* suffix);

  std::vector<MetricLabel> labels_;
  std::map<std::string, Family> families_;
};

}  // namespace weft
