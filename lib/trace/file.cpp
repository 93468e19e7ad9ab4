#include "trace/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/text.h"

namespace weft {

Status write_whole(const std::string& text, const std::string& path, const char* what) {
  const auto failed = [&] { return Status::system(cat("cannot write ", what, " ", path), errno); };
  // Not mkstemp: the file gets the process's usual permissions.
  const std::string temporary = cat(path, ".", ::getpid(), ".tmp");
  const Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.valid()) return failed();
  Status status;
  for (size_t at = 0; at < text.size() && status.ok();) {
    const ssize_t wrote = ::write(file.get(), text.data() + at, text.size() - at);
    if (wrote >= 0) {
      at += static_cast<size_t>(wrote);
    } else if (errno != EINTR) {
      status = failed();
    }
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = failed();
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace weft
