// The weft command: starts ranks, serves a store, describes and examines machines, measures, explains
// failures, and reports runs.
#include <weft/weft.h>

#include <algorithm>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("Weft: gradient synchronisation and collective communication");
  app.name("weft");
  app.require_subcommand(1);
  app.set_version_flag("--version", [] {
    const uint32_t version = weft_version();
    return "weft " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  });
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto divider = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> tail(divider, words.end());
  words.erase(divider, words.end());

  int exit_code = 0;
  add_run(app, tail, &exit_code);
  add_bench(app, words, &exit_code);
  add_info(app, words, &exit_code);
  add_doctor(app, words, &exit_code);
  add_trace(app, &exit_code);
  add_report(app, &exit_code);
  add_store(app, &exit_code);
  add_secret(app, &exit_code);
  add_status(app, &exit_code);
  add_top(app, &exit_code);
  return run_command(app, words, &exit_code);
}
