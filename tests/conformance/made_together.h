// Divides work among the ranks that mpirun has started: each makes some of the items, and passes them on
// through files in the folder that WEFT_TEST_SHARED names. References are thus computed once, not on each
// rank.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace weft::test {

class MadeTogether {
 public:
  MadeTogether(std::string folder, int rank, int ranks);

  int rank() const { return rank_; }

  // Returns for each item the parts that this rank wants, in their order; make(item) makes all its parts. All
  // ranks pass the same arguments except `wanted`. Throws if another rank's file does not appear within
  // minutes.
  std::vector<std::vector<Bytes>> run(size_t items, const std::function<std::vector<Bytes>(size_t)>& make,
                                      const std::vector<size_t>& wanted);

 private:
  std::string file(int round, int rank) const;
  void write(size_t items, const std::function<std::vector<Bytes>(size_t)>& make) const;
  void read(int from, const std::vector<size_t>& wanted, std::vector<std::vector<Bytes>>* taken) const;

  const std::string folder_;
  const int rank_;
  const int ranks_;
  int round_ = 0;
};

// Null unless mpirun has started this process and WEFT_TEST_SHARED is set.
MadeTogether* made_together();

}  // namespace weft::test
