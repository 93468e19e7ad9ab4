// weft report: one page of HTML about a run, from the traces and flight records of its ranks. weft trace
// merge: one trace from those of the ranks.
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "base/text.h"
#include "commands.h"
#include "report/analysis.h"
#include "report/merge.h"
#include "report/page.h"
#include "trace/file.h"

namespace {

struct Options {
  std::vector<std::string> paths;
  std::string output;
};

// Throws if a status is not ok.
void check(const weft::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.text());
}

report::RunFiles read(const Options& options) {
  report::RunFiles run;
  check(report::read_run(options.paths, &run));
  return run;
}

void name_damaged(const report::RunFiles& run) {
  for (const auto& [file, why] : run.damaged)
    std::fprintf(stderr, "weft: %s %s\n", file.c_str(), why.c_str());
}

void make_report(const Options& options) {
  report::RunFiles run = read(options);
  const std::vector<FlightGroup> flights = grouped(&run.flights);
  run.damaged.insert(run.damaged.end(), run.flights.unread.begin(), run.flights.unread.end());
  const report::Analysis analysis = report::analyse(run);
  check(weft::write_whole(report::page_text(run, analysis, flights), options.output, "the report"));
  name_damaged(run);
  for (const FlightGroup& group : flights) std::printf("%s\n", group.diagnosis.text.c_str());
  if (!run.processes.empty()) std::printf("%s\n", report::straggler_text(analysis).c_str());
  std::printf("The report is in %s\n", printable(options.output).c_str());
}

void merge(const Options& options) {
  const report::RunFiles run = read(options);
  name_damaged(run);
  if (run.processes.empty()) throw std::runtime_error("there is no trace to merge, only flight records");
  std::string text;
  check(report::merged_text(run, &text));
  check(weft::write_whole(text, options.output, "the merged trace"));
  for (const report::Process& process : run.processes) {
    if (!process.clock_error_ns)
      std::fprintf(stderr,
                   "weft: the clock of rank %d was not compared with the others': its times are its own\n",
                   process.rank);
  }
  std::printf("The traces of %zu ranks are in %s\n", run.processes.size(), printable(options.output).c_str());
}

std::shared_ptr<Options> add_options(CLI::App* command, const char* output) {
  auto options = std::make_shared<Options>();
  options->output = output;
  command->add_option("PATH", options->paths, "files that ranks wrote, and folders of them")->required();
  command->add_option("-o,--output", options->output, "the file to write")->capture_default_str();
  return options;
}

}  // namespace

void add_report(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("report", "Make a page about a run from traces and flight records");
  command->footer(
      "The page shows who was late, the timeline of buckets, overlap, bytes and algorithms. It loads "
      "nothing.\n"
      "Files that are damaged are named, and the rest is shown. Exit code: 1 if no file can be used.");
  const auto options = add_options(command, "weft-report.html");
  command->callback([options, exit_code] {
    make_report(*options);
    *exit_code = 0;
  });
}

void add_trace_merge(CLI::App& trace, int* exit_code) {
  CLI::App* command = trace.add_subcommand("merge", "Merge the traces of ranks into one, on one clock");
  command->footer(
      "The result opens in ui.perfetto.dev. Each rank is a process. Exit code: 1 if no trace can be used.");
  const auto options = add_options(command, "weft-trace.json");
  command->callback([options, exit_code] {
    merge(*options);
    *exit_code = 0;
  });
}
