#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "command_table.h"
#include "commands.h"
#include "signals.h"
#include "suggest.h"

namespace {

// Returns "weft trace merge".
std::string full_name(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

std::vector<std::string> command_names(const CLI::App& within) {
  std::vector<std::string> names;
  for (const CLI::App* command : within.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

void say_unknown(const CLI::App& within, const char* kind, const std::string& word,
                 const std::vector<std::string>& choices) {
  std::fprintf(stderr, "%s: there is no %s %s%s (--help describes them)\n", full_name(within).c_str(), kind,
               word.c_str(), suggestion(word, choices, (std::string(kind) + "s").c_str()).c_str());
}

// Returns false, with an error, if a word is not a command where one is needed. The parser's own error would
// say that a command is missing, without naming the wrong word.
bool known_commands(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* within = &app;
  for (const std::string& word : words) {
    const std::vector<std::string> names = command_names(*within);
    if (names.empty() || word.empty() || word[0] == '-') return true;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      say_unknown(*within, "command", word, names);
      return false;
    }
    within = within->get_subcommand(word);
  }
  return true;
}

// Returns false, with an error, if the parser has found an option that the command does not have.
bool known_options(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  for (const std::string& word : app.remaining(true)) {
    if (!word.starts_with("--") || word.size() == 2) continue;
    say_unknown(*command, "option", word.substr(0, word.find('=')), option_names(*command));
    return false;
  }
  return true;
}

// Returns false, with an error, if what was printed could not be written, as on a full disk.
bool output_is_written() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  std::fprintf(stderr, "weft: cannot write the output: %s\n", std::strerror(errno));
  return false;
}

}  // namespace

int run_command(CLI::App& app, const std::vector<std::string>& words, const int* exit_code) {
  keep_exit_codes();
  if (words == std::vector<std::string>{"--command-table"}) {
    std::printf("%s\n", command_table(app).c_str());
    return 0;
  }
  if (!known_commands(app, words)) return 2;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the order that it expects
  } catch (const CLI::ExtrasError& error) {
    if (known_options(app)) app.exit(error);
    return 2;
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    return output_is_written() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    return 1;
  }
  const bool written = output_is_written();
  return written || *exit_code != 0 ? *exit_code : 1;
}
