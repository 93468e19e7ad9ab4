#include "base/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/fd.h"
#include "base/text.h"

namespace weft {
namespace {

// Returns the first line of a file of /proc, at most 1 KiB; empty if it cannot be read. A stream would hide
// that there is no memory, and the process would seem to be another one.
std::string first_line(const char* path) {
  std::array<char, 1024> bytes{};
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t read = file.valid() ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  const auto end = bytes.begin() + std::max<ssize_t>(read, 0);
  return {bytes.begin(), std::find(bytes.begin(), end, '\n')};
}

// Returns a number in a line of words with one space between them; 0 if there is none. index: from 0.
uint64_t number_at(const std::string& line, size_t begin, int index) {
  for (int i = 0; i < index && begin < line.size(); i++)
    begin = std::min(line.size(), line.find(' ', begin)) + 1;
  uint64_t number = 0;
  if (begin < line.size()) std::from_chars(line.data() + begin, line.data() + line.size(), number);
  return number;
}

}  // namespace

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
  me.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  // The stat of the process itself has the start of the reading thread where qemu emulates it.
  const std::string line = first_line(cat("/proc/self/task/", me.pid, "/stat").c_str());
  // The start time is field 22. Fields are counted after the command name, which is field 2, ends with the
  // last ')' and may contain anything.
  const size_t name_end = line.rfind(')');
  if (name_end != std::string::npos) me.start_ticks = number_at(line, name_end + 2, 22 - 3);
  return me;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace weft
