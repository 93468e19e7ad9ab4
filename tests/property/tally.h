// Counts the features that random programs cover. The counts are printed and checked, so that no feature
// silently stops being drawn.
#pragma once

#include "reducer_cases.h"

namespace weft::test {

class Tally {
 public:
  void count(const ReducerCase& program);
  // "12000 cases, 8011 with absences, ..."
  std::string text() const;
  // Returns the required features that fewer programs than this have covered.
  std::string fewer_than(uint64_t least) const;

 private:
  struct Entry {
    const char* what;
    bool wanted;
    uint64_t count;
  };

  void add(const char* what, bool wanted, bool has);

  std::vector<Entry> entries_;
  size_t next_ = 0;  // index into a program's entries, which always come in the same order
  uint64_t cases_ = 0;
};

}  // namespace weft::test
