#include "options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace {

constexpr const char* kHelp =
    "Train a small network on Fashion-MNIST; Weft sums the gradients of all ranks.\n"
    "usage: weft run -n RANKS -- train_fashion [options]\n\n"
    "  --data DIR        folder of the four files (default: that of Debian's dataset-fashion-mnist)\n"
    "  --epochs N        default 6\n"
    "  --batch N         images a step over all ranks, default 128\n"
    "  --rate X          learning rate at the start, default 0.05; falls to 0 by a cosine\n"
    "  --limit N         use N training images only\n"
    "  --seed N          default 1; equal seeds give equal results\n"
    "  --backend NAME    shm, loopback, ...; default: the best available\n"
    "  --hook NAME       communication hook, default allreduce; options may follow: 'topk ratio=0.1'\n"
    "  --mode copy|view  memory of gradients: the program's, which Weft copies (default), or Weft's\n"
    "  --log-every N     steps between progress lines, default 100\n"
    "  --no-check        do not compare the loss curve with that of one process\n"
    "  --reference N     no ranks: add up N micro-batches a step in this process, without Weft\n"
    "  --losses FILE     write the loss of every step, one a line\n"
    "  --sent FILE       write the bytes that this rank has sent after every step, one number a line\n"
    "  --trace FILE      rank 0 writes the timeline of its steps, for ui.perfetto.dev\n"
    "  --flip-bit RANK   this rank flips one bit of a parameter, which the demo must report\n";

template <class Number>
Number number(std::string_view name, std::string_view text, Number least) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw std::invalid_argument(std::string(name) + " is '" + std::string(text) +
                                "', expected a number of at least " + std::to_string(least));
  }
  return value;
}

using Setters =
    std::map<std::string_view, std::function<void(std::string_view name, std::string_view value)>>;

// Setters of the options with a value.
Setters setters(Options* o) {
  return {
      {"--data", [o](auto, auto value) { o->data = value; }},
      {"--epochs", [o](auto name, auto value) { o->epochs = number<uint32_t>(name, value, 1); }},
      {"--batch", [o](auto name, auto value) { o->global_batch = number<uint32_t>(name, value, 8); }},
      {"--rate", [o](auto name, auto value) { o->rate = number<float>(name, value, 0); }},
      {"--limit", [o](auto name, auto value) { o->limit = number<uint32_t>(name, value, 1); }},
      {"--seed", [o](auto name, auto value) { o->seed = number<uint64_t>(name, value, 0); }},
      {"--backend", [o](auto, auto value) { o->backend = value; }},
      {"--hook",
       [o](auto, auto value) {
         const size_t end = std::min(value.find(' '), value.size());
         o->hook = value.substr(0, end);
         o->of_hook = value.substr(end);
       }},
      {"--mode",
       [o](auto, auto value) {
         if (value != "copy" && value != "view")
           throw std::invalid_argument("--mode is '" + std::string(value) + "', expected copy or view");
         o->view_mode = value == "view";
       }},
      {"--log-every", [o](auto name, auto value) { o->log_every = number<uint32_t>(name, value, 1); }},
      {"--reference", [o](auto name, auto value) { o->reference_ranks = number<int>(name, value, 1); }},
      {"--losses", [o](auto, auto value) { o->losses = value; }},
      {"--sent", [o](auto, auto value) { o->sent = value; }},
      {"--trace", [o](auto, auto value) { o->trace = value; }},
      {"--flip-bit", [o](auto name, auto value) { o->flip_bit_rank = number<int>(name, value, 0); }},
  };
}

}  // namespace

bool parse_options(int argc, char** argv, Options* options) {
  const Setters known = setters(options);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return false;
    }
    if (argument == "--no-check") {
      options->check = false;
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const auto setter = known.find(name);
    if (setter == known.end()) {
      throw std::invalid_argument("unknown option " + std::string(name) + "; see --help");
    }
    if (equals == std::string_view::npos && i + 1 == argc) {
      throw std::invalid_argument(std::string(name) + " needs a value; see --help");
    }
    setter->second(name, equals != std::string_view::npos ? argument.substr(equals + 1) : argv[++i]);
  }
  return true;
}

std::string Options::hook_options(uint32_t steps) const {
  std::string all = of_hook;
  const bool starts_late = hook_is_local() || hook.find("powersgd") != std::string::npos;
  if (starts_late && all.find(" start=") == std::string::npos) {
    all += " start=" + std::to_string(std::max(steps / 10, 2u));
  }
  if (hook_is_local() && all.find(" local=") == std::string::npos) all += " local=none";
  return all;
}

uint32_t Options::hook_start(uint32_t steps) const {
  const std::string all = hook_options(steps);
  const size_t at = all.find(" start=");
  return at == std::string::npos ? 0 : static_cast<uint32_t>(std::strtoul(all.c_str() + at + 7, nullptr, 10));
}
