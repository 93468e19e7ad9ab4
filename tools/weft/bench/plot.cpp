#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "names.h"

namespace {

constexpr double kWidth = 760, kHeight = 460;
constexpr double kLeft = 70, kRight = 560, kTop = 50, kBottom = 400;  // of the area of the lines
constexpr double kLabelGap = 16;                                      // between labels of lines
// Distinguishable with any colour vision, and from their shapes in print.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"};
constexpr const char* kDashes[] = {"", "7 4", "2 3", "9 3 2 3", "1 5"};
static_assert(std::size(kColours) == kMostLines && std::size(kDashes) == kMostLines);

struct Line {
  std::string name;
  std::map<uint64_t, double> us;  // by bytes
};

std::vector<Line> lines_of(const nlohmann::json& run) {
  std::vector<Line> lines;
  for (const nlohmann::json& row : run.at("results")) {
    const std::string name = row.at("work").get<std::string>() + " " + row.at("details").get<std::string>();
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& one) { return one.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
    // The scales are logarithmic.
    const uint64_t bytes = row.at("bytes");
    if (bytes > 0) line->us[bytes] = std::max(row.at("median_us").get<double>(), 1e-3);
  }
  std::erase_if(lines, [](const Line& line) { return line.us.size() < 2; });
  if (lines.empty()) throw std::invalid_argument("--plot needs a benchmark with at least two --sizes");
  if (lines.size() > kMostLines) {
    throw std::invalid_argument("--plot shows at most " + std::to_string(kMostLines) + " benchmarks, given " +
                                std::to_string(lines.size()));
  }
  return lines;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return result;
}

// A logarithmic axis from the largest power of `base` below all values to the smallest above them.
class Axis {
 public:
  Axis(double base, double least, double most, double from, double to)
      : base_(base),
        first_(std::floor(std::log(least) / std::log(base) + 1e-9)),
        last_(std::max(std::ceil(std::log(most) / std::log(base) - 1e-9), first_ + 1)),
        from_(from),
        to_(to) {}
  double at(double value) const {
    return from_ + (to_ - from_) * (std::log(value) / std::log(base_) - first_) / (last_ - first_);
  }
  // Returns at most `most` powers, evenly spaced.
  std::vector<double> marks(int most) const {
    const double step = std::ceil((last_ - first_ + 1) / most);
    std::vector<double> values;
    for (double power = first_; power <= last_; power += step) values.push_back(std::pow(base_, power));
    return values;
  }

 private:
  double base_, first_, last_, from_, to_;
};

std::string label(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
         escaped(text) + "</text>\n";
}

std::string rule(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" +
         number(y2) + "\" stroke=\"" + colour + "\"/>\n";
}

std::string grid(const Axis& x, const Axis& y) {
  std::string text;
  for (const double bytes : x.marks(9)) {
    text += rule(x.at(bytes), kTop, x.at(bytes), kBottom, "#ddd");
    text += label(x.at(bytes), kBottom + 18, "middle", bytes_text(static_cast<uint64_t>(bytes)));
  }
  for (const double us : y.marks(9)) {
    text += rule(kLeft, y.at(us), kRight, y.at(us), "#ddd");
    text += label(kLeft - 6, y.at(us) + 4, "end", number(us));
  }
  text += rule(kLeft, kBottom, kRight, kBottom, "#333") + rule(kLeft, kTop, kLeft, kBottom, "#333");
  text += label((kLeft + kRight) / 2, kBottom + 40, "middle", "bytes of the larger buffer");
  const double middle = (kTop + kBottom) / 2;
  const std::string turned = " transform=\"rotate(-90 18 " + number(middle) + ")\"";
  return text + label(18, middle, "middle", "median time in \xc2\xb5s", turned.c_str());
}

std::string drawn(const Line& line, size_t index, const Axis& x, const Axis& y) {
  const std::string colour = kColours[index];
  std::string points, dots;
  for (const auto& [bytes, us] : line.us) {
    const std::string px = number(x.at(static_cast<double>(bytes))), py = number(y.at(us));
    points += px + "," + py + " ";
    dots += "<circle cx=\"" + px + "\" cy=\"" + py + "\" r=\"3\" fill=\"" + colour + "\"/>\n";
  }
  return "<polyline points=\"" + points + "\" fill=\"none\" stroke=\"" + colour +
         "\" stroke-width=\"2\" stroke-dasharray=\"" + kDashes[index] + "\"/>\n" + dots;
}

// Labels the lines at their ends, far enough from each other.
std::string line_labels(const std::vector<Line>& lines, const Axis& x, const Axis& y) {
  std::vector<size_t> order(lines.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto end = [&](size_t i) { return y.at(lines[i].us.rbegin()->second); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return end(a) < end(b); });
  std::string text;
  double free = kTop;
  for (const size_t i : order) {
    const double at = std::max(end(i), free);
    const double from = x.at(static_cast<double>(lines[i].us.rbegin()->first));
    text += rule(from + 4, end(i), kRight + 8, at, "#bbb");
    const std::string colour = std::string(" fill=\"") + kColours[i] + "\"";
    text += label(kRight + 12, at + 4, "start", lines[i].name, colour.c_str());
    free = at + kLabelGap;
  }
  return text;
}

std::string description(const std::vector<Line>& lines) {
  std::string text = "Median times. ";
  for (const Line& line : lines) {
    text += line.name + ": ";
    for (const auto& [bytes, us] : line.us)
      text += (bytes == line.us.begin()->first ? "" : ", ") + bytes_text(bytes) + " bytes " + number(us) +
              " \xc2\xb5s";
    text += ". ";
  }
  return text;
}

}  // namespace

std::string plot_svg(const nlohmann::json& run) {
  const std::vector<Line> lines = lines_of(run);
  uint64_t least_bytes = UINT64_MAX, most_bytes = 0;
  double least_us = HUGE_VAL, most_us = 0;
  for (const Line& line : lines) {
    least_bytes = std::min(least_bytes, line.us.begin()->first);
    most_bytes = std::max(most_bytes, line.us.rbegin()->first);
    for (const auto& [bytes, us] : line.us) {
      least_us = std::min(least_us, us);
      most_us = std::max(most_us, us);
    }
  }
  const Axis x(2, static_cast<double>(least_bytes), static_cast<double>(most_bytes), kLeft, kRight);
  const Axis y(10, least_us, most_us, kBottom, kTop);
  const std::string title = "weft bench: " + run.at("results")[0].at("ranks").dump() + " ranks over " +
                            run.at("backend").get<std::string>();
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " +
                    number(kHeight) +
                    "\" role=\"img\" aria-labelledby=\"title description\" font-family=\"sans-serif\" "
                    "font-size=\"12\">\n<title id=\"title\">" +
                    escaped(title) + "</title>\n<desc id=\"description\">" + escaped(description(lines)) +
                    "</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += label(kLeft, 26, "start", title, " font-size=\"15\"") + grid(x, y);
  for (size_t i = 0; i < lines.size(); ++i) svg += drawn(lines[i], i, x, y);
  return svg + line_labels(lines, x, y) + "</svg>\n";
}
