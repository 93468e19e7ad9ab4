// weft-bench, the program behind `weft bench`: it measures collectives and gradient steps. It is a program of
// its own so that `weft`, which starts ranks, compiles in little time.
#include <cstdio>
#include <exception>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("Weft: measure collectives and gradient steps");
  app.name("weft");
  app.require_subcommand(1);
  const std::vector<std::string> words(argv + 1, argv + argc);
  int exit_code = 0;
  add_bench(app, words, &exit_code);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 wants them reversed
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    return 1;
  }
  return exit_code;
}
