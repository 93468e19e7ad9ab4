#include "host_options.h"

#include <stdexcept>

void HostChoice::read() {
  try {
    on.hosts = list ? parse_host_list(*list) : read_host_file(*file);
  } catch (const std::runtime_error& error) {
    throw CLI::ValidationError(list ? "--hosts" : "--hostfile", error.what());
  }
}

HostFlags add_host_options(CLI::App& command, const std::string& purpose, HostChoice* choice) {
  CLI::Option* list = command.add_option("--hosts", choice->list, purpose);
  CLI::Option* file = command.add_option("--hostfile", choice->file,
                                         "the same, with a line HOST:RANKS or HOST slots=RANKS for each");
  list->excludes(file);
  command
      .add_option("--ssh", choice->on.ssh,
                  "with --hosts: the command that runs a command on a host; \"HOST COMMAND\" is added to it")
      ->option_text("COMMAND");
  command
      .add_option("--weft", choice->on.program,
                  "with --hosts: the path of weft there (default: the path here)")
      ->option_text("PATH");
  return {list, file};
}
