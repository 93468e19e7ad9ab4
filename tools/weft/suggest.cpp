#include "suggest.h"

#include <algorithm>

namespace {

// Returns how many letters must be added, removed, replaced or exchanged with the next one.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> of(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        of[i][j] = i + j;
        continue;
      }
      const size_t replaced = of[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      of[i][j] = std::min({replaced, of[i - 1][j] + 1, of[i][j - 1] + 1});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
    }
  }
  return of[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& choices) {
  constexpr size_t kLongestWord = 64;
  std::string best;
  if (word.size() > kLongestWord) return best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& choice : choices) {
    // A word that was cut short is like its choice, however long that is.
    const size_t needed = choice.starts_with(word) && word.size() > 2 ? 1 : edits(word, choice);
    if (needed >= least) continue;
    least = needed;
    best = choice;
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& choices, const char* what) {
  const std::string like = nearest(word, choices);
  if (!like.empty()) return "; did you mean " + like + "?";
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  return std::string("; the ") + what + " are " + list;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}
