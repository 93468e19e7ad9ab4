// Input: the trace of a process, as `weft report` finds it in a folder. Reading any input returns an error
// with a text, or events within their limits, of which a page can be made.
#include <string>
#include <utility>

#include "fuzz.h"
#include "weft/report/page.h"

using weft::fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  report::TraceFile file;
  const weft::Status status = parse_trace(std::string(reinterpret_cast<const char*>(data), size), &file);
  if (!status.ok()) {
    demand(!status.text().empty());
    return 0;
  }
  for (const report::Event& event : file.events) {
    demand(event.comm < file.comms.size());
    demand(event.begin_ns >= 0 && event.begin_ns <= event.end_ns);
  }
  if (file.comms.empty()) return 0;
  // A second rank with the same events, later.
  report::RunFiles run;
  for (int rank = 0; rank < 2; rank++) {
    report::Process process;
    process.file = file;
    process.rank = rank;
    process.clock_error_ns = 0;
    for (report::Event& event : process.file.events)
      event.begin_ns += (event.end_ns - event.begin_ns) / 2 * rank;
    run.processes.push_back(std::move(process));
  }
  const std::string page = page_text(run, report::analyse(run), {});
  demand(page.find("</html>") != std::string::npos);
  return 0;
}
