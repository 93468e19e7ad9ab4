#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "weft/commands.h"

// weft-bench lies beside this program, in the build folder and where both are installed.
void add_bench(CLI::App& app, const std::vector<std::string>& words, int* exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure collectives and gradient steps on this machine");
  bench->prefix_command();
  bench->set_help_flag();
  bench->callback([&words, exit_code] {
    std::error_code unknown;
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
    const std::string program = self.parent_path() / "weft-bench";
    std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execv(program.c_str(), arguments.data());
    std::fprintf(stderr, "weft: %s cannot be executed: %s%s\n", program.c_str(), std::strerror(errno),
                 errno == ENOENT ? "; `make build` builds it, and so does Meson with -Dbench=true" : "");
    *exit_code = 2;
  });
}
