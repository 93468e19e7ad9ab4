// weft-bench, the program behind `weft bench`: it measures collectives and gradient steps. It is a program of
// its own so that `weft`, which starts ranks, compiles in little time.
#include "weft/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Weft: measure collectives and gradient steps");
  app.name("weft");
  app.require_subcommand(1);
  const std::vector<std::string> words(argv + 1, argv + argc);
  int exit_code = 0;
  add_bench(app, words, &exit_code);
  return run_command(app, words, &exit_code);
}
