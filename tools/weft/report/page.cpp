#include "page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text.h"
#include "report_page.h"

namespace report {
namespace {

using Json = nlohmann::json;
using weft::cat;

constexpr size_t kMostRows = 128;     // of a table
constexpr size_t kMostPictured = 64;  // ranks of a picture
constexpr size_t kMostSteps = 48;     // steps whose timeline the page has
constexpr size_t kSlowSteps = 12;     // the slowest ones among them
constexpr size_t kMostBars = 1000;    // steps of the picture of lateness
constexpr size_t kRanges = 10;        // rows of the straggler's table over time

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string percent(double part, double whole) {
  return whole > 0 ? cat(fixed(100 * part / whole, 0), " %") : "-";
}

std::string size_text(double bytes) {
  return weft::bytes_text(static_cast<uint64_t>(std::clamp(bytes, 0.0, 1e18)));
}

std::string paragraph(const std::string& text, const char* kind = "") {
  return *kind == 0 ? cat("<p>", escaped(text), "</p>\n")
                    : cat("<p class=\"", kind, "\">", escaped(text), "</p>\n");
}

std::string heading(const std::string& text) {
  return cat("<h2>", escaped(text), "</h2>\n");
}

using Row = std::vector<std::string>;

std::string table(const std::string& caption, const Row& head, const std::vector<Row>& rows) {
  std::string html = cat("<div class=\"scroll\"><table><caption>", escaped(caption), "</caption><thead><tr>");
  for (const std::string& cell : head) html += cat("<th scope=\"col\">", escaped(cell), "</th>");
  html += "</tr></thead><tbody>\n";
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); i++) {
    html += "<tr>";
    for (const std::string& cell : rows[i]) html += cat("<td>", escaped(cell), "</td>");
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (rows.size() > kMostRows) html += paragraph(cat("and ", rows.size() - kMostRows, " more"));
  return html;
}

// Means over the steps of a rank.
struct RankMeans {
  double steps = 0, step_ns = 0, compute_ns = 0, communication_ns = 0, overlap_ns = 0, exposed_ns = 0;
  void add(const StepOfRank& step) {
    steps++;
    step_ns += static_cast<double>(step.end_ns - step.begin_ns);
    compute_ns += static_cast<double>(step.finish_ns - step.begin_ns);
    communication_ns += static_cast<double>(step.communication_ns);
    overlap_ns += static_cast<double>(step.overlap_ns);
    exposed_ns += static_cast<double>(step.exposed_ns());
  }
  std::string text(double sum) const { return duration_text(std::llround(sum / steps)); }
};

std::string step_label(const Step& step, bool several) {
  return several ? cat("step ", step.number, " of reducer ", step.lane) : cat("step ", step.number);
}

class Page {
 public:
  Page(const RunFiles& run, const Analysis& analysis, const std::vector<FlightGroup>& flights)
      : run_(run), analysis_(analysis), flights_(flights) {
    std::set<std::pair<uint64_t, uint32_t>> reducers;
    for (const Step& step : analysis.steps) reducers.emplace(step.comm, step.lane);
    several_ = reducers.size() > 1;
  }

  std::string body() {
    std::string html = "<h1>Weft: report of a run</h1>\n";
    html += damaged();
    if (!run_.processes.empty()) html += paragraph(sentence() + ".", "lead");
    html += summary();
    for (const FlightGroup& group : flights_) html += flight(group);
    if (!analysis_.steps.empty() || !analysis_.calls.empty()) html += stragglers();
    if (!analysis_.steps.empty()) html += timeline() + overlap();
    if (!analysis_.buckets.empty()) html += bytes();
    if (!analysis_.algorithms.empty()) html += algorithms();
    if (!run_.processes.empty()) html += processes();
    return html;
  }

  Json data() const {
    Json json{{"straggler", analysis_.straggler.rank}, {"lateText", late_text()}};
    json["late"] = late_json();
    Json& steps = json["steps"] = Json::array();
    const std::vector<size_t> chosen = chosen_steps();
    size_t slowest = 0;
    for (size_t i = 0; i < chosen.size(); i++) {
      steps.push_back(step_json(analysis_.steps[chosen[i]]));
      if (duration(chosen[i]) > duration(chosen[slowest])) slowest = i;
    }
    json["chosen"] = slowest;
    return json;
  }

 private:
  int64_t duration(size_t step) const {
    return analysis_.steps[step].end_ns - analysis_.steps[step].begin_ns;
  }
  std::string sentence() const {
    std::string text = straggler_text(analysis_);
    if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    return text;
  }

  std::string damaged() const {
    if (run_.damaged.empty()) return {};
    std::string html =
        cat("<section class=\"alert\" id=\"damaged\"><h2>Files that are missing or damaged</h2>",
            "<p>The report has the rest.</p><ul>\n");
    for (size_t i = 0; i < std::min(run_.damaged.size(), kMostRows); i++)
      html += cat("<li><code>", escaped(run_.damaged[i].first), "</code> ", escaped(run_.damaged[i].second),
                  "</li>\n");
    if (run_.damaged.size() > kMostRows)
      html += cat("<li>and ", run_.damaged.size() - kMostRows, " more</li>\n");
    return html + "</ul></section>\n";
  }

  std::string summary() const {
    if (run_.processes.empty()) return {};
    std::set<std::string> hosts;
    uint64_t lost = 0;
    for (const Process& process : run_.processes) {
      hosts.insert(process.file.host);
      lost += process.file.lost;
    }
    std::string text = cat("The traces of ", run_.processes.size());
    if (run_.size > 0) text += cat(" of ", run_.size);
    text += cat(" ranks on ", hosts.size(), hosts.size() == 1 ? " host" : " hosts", " have ",
                analysis_.steps.size(), " steps");
    if (analysis_.in_steps && analysis_.straggler.rank >= 0) {
      text += cat("; waiting for rank ", analysis_.straggler.rank, " took ",
                  percent(static_cast<double>(analysis_.straggler.total_ns),
                          static_cast<double>(analysis_.compared_ns)),
                  " of their time");
    }
    text += ".";
    if (lost > 0)
      text += cat(" The ranks overwrote ", lost,
                  " earlier events: start the trace with a higher capacity to keep them.");
    return paragraph(text);
  }

  std::string flight(const FlightGroup& group) const {
    const weft::FlightRecord& record = group.record();
    std::string html = heading(cat("Failure of communicator ", comm_text(record)));
    html += paragraph(group.diagnosis.text, "lead");
    std::vector<Row> rows;
    for (const FlightFile& file : group.files) {
      const FlightRow row = row_of(file);
      rows.push_back({cat("rank ", row.rank, at_fault(group, row.rank) ? " (at fault)" : ""), file.host,
                      row.doing, row.waits, row.says});
    }
    for (const int rank : without_record(group))
      rows.push_back({cat("rank ", rank), "", "no flight record", "", ""});
    return html + table("Flight records", {"rank", "host", "was", "waiting for", "says"}, rows);
  }

  std::vector<const Lateness*> units(std::vector<std::string>* labels) const {
    std::vector<const Lateness*> units;
    for (const Step& step : analysis_.steps) {
      if (!step.complete) continue;
      units.push_back(&step.late);
      labels->push_back(step_label(step, several_));
    }
    if (!analysis_.in_steps) {
      for (const Lateness& call : analysis_.calls) {
        units.push_back(&call);
        labels->push_back(cat("collective ", labels->size()));
      }
    }
    return units;
  }

  std::string late_text() const {
    return cat("Time lost in each ", analysis_.in_steps ? "step" : "collective",
               " because of its last rank: ", straggler_text(analysis_));
  }

  std::string stragglers() const {
    std::vector<std::string> labels;
    const std::vector<const Lateness*> all = units(&labels);
    std::string html = heading("Stragglers");
    if (all.empty())
      return html + paragraph(
                        "The ranks cannot be compared: give the traces of at least two ranks, which have "
                        "the same steps, and whose clocks were compared.");
    html += paragraph(
        "A rank is late by the time between its start of a collective and the start of the rank before it.");
    html += "<div id=\"late\"></div>\n";
    std::vector<Row> rows;
    const size_t ranges = std::min(kRanges, all.size());
    for (size_t i = 0; i < ranges; i++) {
      const size_t from = i * all.size() / ranges, to = (i + 1) * all.size() / ranges;
      const Straggler last = straggler_of(
          {all.begin() + static_cast<ptrdiff_t>(from), all.begin() + static_cast<ptrdiff_t>(to)});
      if (last.rank < 0) continue;
      const std::string range = to - from == 1 ? labels[from] : cat(labels[from], " to ", labels[to - 1]);
      rows.push_back({range, cat("rank ", last.rank), percent(last.share, 1), duration_text(last.median_ns),
                      duration_text(last.total_ns), phase_text(last.phase, analysis_.in_steps)});
    }
    html += table("The straggler over time", {"range", "last", "of them", "by (median)", "in total", "where"},
                  rows);
    return html + late_ranks(all);
  }

  std::string late_ranks(const std::vector<const Lateness*>& all) const {
    struct Sum {
      size_t times = 0;
      Lateness late;
    };
    std::map<int, Sum> by_rank;
    for (const Lateness* one : all) {
      if (one->rank < 0) continue;
      Sum& sum = by_rank[one->rank];
      sum.times++;
      sum.late.add(*one);
    }
    std::vector<std::pair<int, Sum>> ordered(by_rank.begin(), by_rank.end());
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto& a, const auto& b) { return a.second.late.ns > b.second.late.ns; });
    Row head{"rank", "last in", "in total"};
    for (size_t i = 0; i < (analysis_.in_steps ? kPhases : 1); i++)
      head.emplace_back(phase_text(static_cast<Phase>(i), analysis_.in_steps));
    std::vector<Row> rows;
    for (const auto& [rank, sum] : ordered) {
      Row row{cat("rank ", rank), percent(static_cast<double>(sum.times), static_cast<double>(all.size())),
              duration_text(sum.late.ns)};
      for (size_t i = 0; i < (analysis_.in_steps ? kPhases : 1); i++)
        row.push_back(duration_text(sum.late.phases[i]));
      rows.push_back(std::move(row));
    }
    return table("Time lost because of each rank, and what it did meanwhile", head, rows);
  }

  std::string timeline() const {
    return cat(
        heading("Timeline of buckets"), "<p><label for=\"step\">Step</label> <select id=\"step\"></select>",
        "<span class=\"key\" style=\"background:var(--backward)\"></span>until finish",
        "<span class=\"key\" style=\"background:var(--communication)\"></span>collectives of a bucket",
        "<span class=\"key\" style=\"background:var(--exposed)\"></span>exposed</p>\n",
        "<div id=\"timeline\"></div>\n<div class=\"scroll\"><table><caption>The same step in numbers, from "
        "its "
        "begin on the first rank</caption><thead><tr><th scope=\"col\">rank</th><th scope=\"col\">begin</th>"
        "<th scope=\"col\">finish</th><th scope=\"col\">end</th><th scope=\"col\">exposed</th>"
        "<th scope=\"col\">buckets</th></tr></thead><tbody id=\"step-rows\"></tbody></table></div>\n",
        "<noscript><p>The timeline of one step needs JavaScript. The tables below need "
        "none.</p></noscript>\n",
        mean_buckets());
  }

  // The mean step of the lowest rank, for each bucket.
  std::string mean_buckets() const {
    struct Sums {
      double steps = 0, ready = 0, begin = 0, end = 0, done = 0;
    };
    std::map<std::pair<uint32_t, uint32_t>, Sums> sums;
    for (const Step& step : analysis_.steps) {
      const StepOfRank& rank = step.ranks.front();
      for (const BucketTimes& bucket : rank.buckets) {
        if (bucket.begin_ns == 0 || bucket.done_ns == 0) continue;
        Sums& sum = sums[{step.lane, bucket.bucket}];
        const auto since = [&](int64_t ns) { return static_cast<double>(ns - rank.begin_ns); };
        sum.steps++;
        sum.ready += since(bucket.ready_ns != 0 ? bucket.ready_ns : bucket.launch_ns);
        sum.begin += since(bucket.begin_ns);
        sum.end += since(bucket.end_ns);
        sum.done += since(bucket.done_ns);
      }
    }
    std::vector<Row> rows;
    for (const auto& [key, sum] : sums) {
      const auto mean = [steps = sum.steps](double total) {
        return duration_text(std::llround(total / steps));
      };
      rows.push_back({bucket_label(key.first, key.second), mean(sum.ready), mean(sum.begin), mean(sum.end),
                      mean(sum.done)});
    }
    return table(cat("Mean times of rank ", run_.processes.front().rank, ", from its begin of the step"),
                 {"bucket", "ready", "first collective", "last collective ended", "result in place"}, rows);
  }

  std::string bucket_label(uint32_t lane, uint32_t bucket) const {
    return several_ ? cat("bucket ", bucket, " of reducer ", lane) : cat("bucket ", bucket);
  }

  std::string overlap() const {
    std::map<size_t, RankMeans> means;
    for (const Step& step : analysis_.steps) {
      for (const StepOfRank& rank : step.ranks) means[rank.process].add(rank);
    }
    std::vector<Row> rows;
    for (const auto& [process, mean] : means) {
      rows.push_back({cat("rank ", run_.processes[process].rank), fixed(mean.steps, 0),
                      mean.text(mean.step_ns), mean.text(mean.compute_ns), mean.text(mean.communication_ns),
                      mean.text(mean.overlap_ns), percent(mean.overlap_ns, mean.communication_ns),
                      mean.text(mean.exposed_ns), percent(mean.exposed_ns, mean.step_ns)});
    }
    return heading("Overlap and exposed time") +
           paragraph(
               "Communication before finish overlaps with the backward. The time in finish is exposed.") +
           table("Means of a step",
                 {"rank", "steps", "step", "until finish", "communication", "overlapped", "of it", "exposed",
                  "of the step"},
                 rows);
  }

  std::string bytes() const {
    std::vector<Row> rows;
    double gradient = 0, payload = 0, sent = 0;
    bool counted = true;
    const auto row = [](const std::string& label, double grad, double pay, double out) {
      return Row{label, size_text(grad), size_text(pay), pay > 0 ? cat(fixed(grad / pay, 2), " x") : "-",
                 out < 0 ? "not counted" : size_text(out)};
    };
    for (const BucketBytes& bucket : analysis_.buckets) {
      rows.push_back(
          row(bucket_label(bucket.lane, bucket.bucket), bucket.gradient, bucket.payload, bucket.sent));
      gradient += bucket.gradient;
      payload += bucket.payload;
      sent += bucket.sent;
      counted &= bucket.sent >= 0;
    }
    rows.insert(rows.begin(), row("all", gradient, payload, counted ? sent : -1));
    return heading("Bytes and compression") +
           table(cat("Means of a step of rank ", run_.processes.front().rank),
                 {"bucket", "gradients", "collectives' payload", "compression", "sent by this rank"}, rows);
  }

  std::string algorithms() const {
    std::vector<Row> rows;
    for (const AlgorithmRow& row : analysis_.algorithms) {
      rows.push_back({row.name, row.from_bytes == 0 ? "0 B" : cat("from ", weft::bytes_text(row.from_bytes)),
                      row.algorithm.empty() ? "-" : row.algorithm, fixed(static_cast<double>(row.count), 0),
                      duration_text(row.median_ns), cat(size_text(row.bytes_per_s), "/s")});
    }
    return heading("Algorithms by size") +
           paragraph("The time of a collective begins when its last rank starts it. Sizes are payloads.") +
           table("Collectives",
                 {"collective", "size", "algorithm", "count", "time (median)", "payload per time"}, rows);
  }

  std::string processes() const {
    std::vector<Row> rows;
    for (const Process& process : run_.processes) {
      const std::string clock = !process.clock_error_ns ? "unknown"
                                : *process.clock_error_ns == 0
                                    ? "the same clock"
                                    : cat(duration_text(process.offset_ns), " (within ",
                                          duration_text(static_cast<int64_t>(*process.clock_error_ns)), ")");
      rows.push_back({cat("rank ", process.rank), process.file.host, cat(process.file.pid),
                      cat(process.file.events.size()), cat(process.file.lost), clock, process.file.name});
    }
    return heading("Processes") +
           table("Traces", {"rank", "host", "process", "events", "overwritten", "added to its clock", "file"},
                 rows);
  }

  static double micros(int64_t ns) { return std::round(static_cast<double>(ns) / 100.0) / 10.0; }

  Json late_json() const {
    std::vector<std::string> labels;
    const std::vector<const Lateness*> all = units(&labels);
    Json list = Json::array();
    const size_t bars = std::min(all.size(), kMostBars);
    // Each bar is the worst of the units that it stands for.
    for (size_t i = 0; i < bars; i++) {
      size_t worst = i * all.size() / bars;
      for (size_t u = worst; u < (i + 1) * all.size() / bars; u++) {
        if (all[u]->ns > all[worst]->ns) worst = u;
      }
      list.push_back({{"label", labels[worst]}, {"rank", all[worst]->rank}, {"us", micros(all[worst]->ns)}});
    }
    return list;
  }

  // The slowest steps and others at equal distances, by time.
  std::vector<size_t> chosen_steps() const {
    const size_t count = analysis_.steps.size();
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return duration(a) > duration(b); });
    std::set<size_t> chosen(order.begin(),
                            order.begin() + static_cast<ptrdiff_t>(std::min(kSlowSteps, count)));
    const size_t even = std::min(kMostSteps - kSlowSteps, count);
    for (size_t i = 0; i < even; i++) chosen.insert(i * count / even);
    return {chosen.begin(), chosen.end()};
  }

  Json step_json(const Step& step) const {
    Json rows = Json::array();
    for (size_t i = 0; i < std::min(step.ranks.size(), kMostPictured); i++) {
      const StepOfRank& rank = step.ranks[i];
      const auto since = [&](int64_t ns) { return micros(ns - step.begin_ns); };
      Json buckets = Json::array();
      for (const BucketTimes& bucket : rank.buckets) {
        if (bucket.begin_ns == 0) continue;
        const int64_t ready_ns = bucket.ready_ns != 0 ? bucket.ready_ns : bucket.launch_ns;
        buckets.push_back({bucket.bucket, since(ready_ns), since(bucket.begin_ns), since(bucket.end_ns)});
      }
      rows.push_back({{"rank", run_.processes[rank.process].rank},
                      {"begin", since(rank.begin_ns)},
                      {"finish", since(rank.finish_ns)},
                      {"end", since(rank.end_ns)},
                      {"buckets", std::move(buckets)}});
    }
    const std::string text =
        step.late.rank < 0
            ? cat(duration_text(step.end_ns - step.begin_ns), " long")
            : cat(duration_text(step.end_ns - step.begin_ns), " long; rank ", step.late.rank,
                  " was last, by ", duration_text(step.late.ns), ", ", phase_text(step.late.phase()));
    return {{"label", cat(step_label(step, several_), ", ", duration_text(step.end_ns - step.begin_ns))},
            {"text", text},
            {"us", std::max(micros(step.end_ns - step.begin_ns), 0.1)},
            {"rows", std::move(rows)}};
  }

  const RunFiles& run_;
  const Analysis& analysis_;
  const std::vector<FlightGroup>& flights_;
  bool several_ = false;  // reducers
};

// Returns the template with its two places filled.
std::string filled(const std::string& body, const std::string& data) {
  const std::string whole = kPageTemplate;
  const size_t first = whole.find("{{BODY}}"), second = whole.find("{{DATA}}");
  return whole.substr(0, first) + body + whole.substr(first + 8, second - first - 8) + data +
         whole.substr(second + 8);
}

}  // namespace

std::string page_text(const RunFiles& run, const Analysis& analysis,
                      const std::vector<FlightGroup>& flights) {
  Page page(run, analysis, flights);
  // Inside a script element "<" could end it.
  std::string data;
  for (const char c : page.data().dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<') {
      data += "\\u003c";
    } else {
      data += c;
    }
  }
  return filled(page.body(), data);
}

}  // namespace report
