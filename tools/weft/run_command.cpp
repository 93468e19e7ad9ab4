#include <cstdio>
#include <exception>

#include "commands.h"

int run_command(CLI::App& app, const std::vector<std::string>& words, const int* exit_code) {
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the order that it expects
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    return 1;
  }
  return *exit_code;
}
