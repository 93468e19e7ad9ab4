// The options of a built-in hook as text: "rank=4 start=100". Every hook reads its options when it is made.
// They are part of its full name, which ranks agree on. Threads: the thread that makes the hook.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace weft {

// Each call reads and checks one option, if it was given; done() returns the first error.
class Options {
 public:
  Options(std::string hook, std::string_view text);

  Options& integer(const char* key, int64_t* value, int64_t low, int64_t high);
  Options& real(const char* key, double* value, double low, double high);
  Options& flag(const char* key, bool* value);  // 0 or 1
  // *value: the position in names.
  Options& choice(const char* key, int* value, std::initializer_list<const char*> names);
  // kArg for options that no call has read, or for invalid values. *name: the hook's name with all options,
  // from which the same hook can be made: "powersgd(rank=4 start=100 ...)". name may be null.
  Status done(std::string* name);

 private:
  // Returns the text given for a key; null if there is none.
  const std::string* take(const char* key);
  void bad(const char* key, const std::string& value, const std::string& wanted);
  void keep(const char* key, const std::string& value);

  const std::string hook_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::string full_;
  std::string known_;
  Status status_;
};

// Returns kArg if rescue=1 was given for a hook without error feedback. hook: its name with all options, for
// the error.
Status check_rescue(const std::string& hook, bool rescue, bool feedback);

}  // namespace weft
