// The weft command: starts ranks, serves a store, describes and examines machines, measures, explains
// failures, and reports runs.
#include <weft/weft.h>

#include <algorithm>
#include <cstdio>

#include "commands.h"

namespace {

// Returns false, with an error that lists the choices, if a word is not a command where one is needed. The
// parser's own error would say that a command is missing, without naming the wrong word.
bool known_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::string called = "weft";
  const CLI::App* within = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> choices =
        within->get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
    if (choices.empty() || word.empty() || word[0] == '-') return true;
    const auto is_word = [&](const CLI::App* command) { return command->get_name() == word; };
    const auto found = std::find_if(choices.begin(), choices.end(), is_word);
    if (found == choices.end()) {
      std::string list;
      for (const CLI::App* choice : choices) list += (list.empty() ? "" : ", ") + choice->get_name();
      std::fprintf(stderr, "%s: there is no command \"%s\"; the commands are %s (--help describes them)\n",
                   called.c_str(), word.c_str(), list.c_str());
      return false;
    }
    called += " " + word;
    within = *found;
  }
  return true;
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
  add_doctor(app, words, &exit_code);
  add_trace(app, &exit_code);
  add_report(app, &exit_code);
  add_store(app, &exit_code);
  add_secret(app, &exit_code);
  add_status(app, &exit_code);
  add_top(app, &exit_code);
  if (!known_command(app, words)) return 2;
  return run_command(app, words, &exit_code);
}
