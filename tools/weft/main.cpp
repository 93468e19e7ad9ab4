// The weft command: starts ranks, serves a store, describes the machine, measures, explains failures, and
// reports runs.
#include <weft/weft.h>

#include <algorithm>
#include <cstdio>

#include "commands.h"

namespace {

// Returns false if the first word is not a command. The parser's own error would say that a command is
// missing, without naming the wrong word.
bool known_command(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty() || words[0].empty() || words[0][0] == '-') return true;
  const auto is_word = [&](const CLI::App* command) { return command->get_name() == words[0]; };
  if (!app.get_subcommands(is_word).empty()) return true;
  std::fprintf(stderr, "weft: there is no command \"%s\"; weft --help lists them\n", words[0].c_str());
  return false;
}

}  // namespace

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
  add_trace(app, &exit_code);
  add_report(app, &exit_code);
  add_store(app, &exit_code);
  if (!known_command(app, words)) return 2;
  return run_command(app, words, &exit_code);
}
