// What a run leaves behind: processes, files, shared memory, names of sockets.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace faults {

// Gives the calling thread, and the threads and processes that it starts from then on, an empty /dev/shm of
// their own: no other program can put a file there. False, with errno, where the system does not allow it.
bool make_private_shared_memory();

class Watch {
 public:
  // Looks at what there is already, and makes the folder. private_shm: /dev/shm is these runs' own; a shared
  // one is not looked at, because the files of other programs appear there at any time.
  Watch(std::string name, bool private_shm);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::string& name() const { return name_; }      // that all names of the run begin with
  const std::string& folder() const { return folder_; }  // the ranks' TMPDIR and working directory
  void add(pid_t pid) { pids_.insert(pid); }
  // The process has ended and is not reaped yet: what is left in its group is ended too.
  void ended(pid_t pid);
  // After all have ended.
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
