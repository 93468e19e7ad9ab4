#include "base/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "base/text.h"

namespace weft {

void ProcessIdentity::put(ByteWriter& writer) const {
  writer.put(pid).put(pid_namespace).put(start_ticks).put_string(boot_id);
}

ProcessIdentity ProcessIdentity::get(ByteReader& reader) {
  ProcessIdentity identity;
  identity.pid = reader.get<uint64_t>();
  identity.pid_namespace = reader.get<uint64_t>();
  identity.start_ticks = reader.get<uint64_t>();
  identity.boot_id = reader.get_string(64);
  return identity;
}

ProcessIdentity this_process() {
  ProcessIdentity me;
  me.pid = static_cast<uint64_t>(::getpid());
  struct stat space{};
  if (::stat("/proc/self/ns/pid", &space) == 0) me.pid_namespace = space.st_ino;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), me.boot_id);
  std::string line;
  // The stat of the process itself has the start of the reading thread where qemu emulates it.
  std::getline(std::ifstream(cat("/proc/self/task/", me.pid, "/stat")), line);
  // The start time is field 22. Fields are counted after the command name, which ends with the last ')' and
  // may contain anything.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i < 22; i++) fields >> skipped;
  fields >> me.start_ticks;
  return me;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace weft
