// Finds what a run leaves behind: processes, files, shared memory, socket names.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace faults {

// Gives the calling thread an empty /dev/shm, shared only by the threads and processes that it starts
// afterwards: no other program can put a file there. Returns false, with errno, if the system does not allow
// it.
bool make_private_shared_memory();

class Watch {
 public:
  // Records what exists already, and makes the folder. private_shm: /dev/shm belongs to these runs. A shared
  // one is not checked, because files of other programs appear there at any time.
  Watch(std::string name, bool private_shm);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::string& name() const { return name_; }      // the prefix of all names of the run
  const std::string& folder() const { return folder_; }  // the ranks' TMPDIR and working directory
  void add(pid_t pid) { pids_.insert(pid); }
  // The process has ended and is not reaped yet; ends what is left in its group.
  void ended(pid_t pid);
  // Returns what the run has left behind. Called after all processes have ended.
  std::vector<std::string> leftovers() const;

 private:
  const std::string name_;
  const bool private_shm_;
  std::string folder_;
  std::set<std::string> shared_before_;
  std::set<pid_t> pids_;
  std::vector<std::string> processes_;
};

}  // namespace faults
