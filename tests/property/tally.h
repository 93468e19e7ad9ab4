// How many random programs were about what: printed, and asked for, so that no draw dries up unseen.
#pragma once

#include "reducer_cases.h"

namespace weft::test {

class Tally {
 public:
  void count(const ReducerCase& program);
  // "12000 cases, 8011 with absences, ..."
  std::string text() const;
  // What must be tested and was in fewer programs than this.
  std::string fewer_than(uint64_t least) const;

 private:
  struct Entry {
    const char* what;
    bool wanted;
    uint64_t count;
  };

  void add(const char* what, bool wanted, bool has);

  std::vector<Entry> entries_;
  size_t next_ = 0;  // of a program's entries, which come in one order
  uint64_t cases_ = 0;
};

}  // namespace weft::test
