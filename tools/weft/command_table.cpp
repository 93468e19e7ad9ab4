#include "command_table.h"

#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

json option_row(const CLI::Option& option) {
  json names = json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string text = option.get_option_text();
  const bool takes_value = option.get_expected_max() != 0;  // flags expect none
  return {{"names", names},
          {"positional", option.get_positional() ? json(option.get_name(true)) : json(nullptr)},
          {"required", option.get_required()},
          {"several", option.get_items_expected_max() > 1},
          {"value", takes_value ? json(text.empty() ? option.get_type_name() : text) : json(nullptr)},
          {"help", option.get_description()}};
}

json command_row(const CLI::App& command) {
  json options = json::array(), commands = json::array();
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) options.push_back(option_row(*option));
  }
  for (const CLI::App* one : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!one->get_group().empty()) commands.push_back(command_row(*one));
  }
  return {{"name", command.get_name()},
          {"help", command.get_description()},
          {"footer", command.get_footer()},
          {"options", options},
          {"commands", commands}};
}

}  // namespace

std::string command_table(const CLI::App& app) {
  return command_row(app).dump(1);
}
