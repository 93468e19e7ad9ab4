#include "foreign_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "base/text.h"

using weft::cat;
using weft::Code;
using weft::Status;

Status read_text(const std::string& path, size_t most, std::string* text, int64_t* written) {
  // Does not follow links, and does not wait for the other end of a pipe.
  const weft::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about{};
  if (!fd.valid() || ::fstat(fd.get(), &about) != 0) return Status::system("cannot be opened", errno);
  if (!S_ISREG(about.st_mode)) return Status::error(Code::kArg, "is not a regular file");
  if (static_cast<uint64_t>(about.st_size) > most)
    return Status::error(Code::kArg, cat("has ", about.st_size, " bytes; at most ", most, " are read"));
  *written = about.st_mtime;
  text->resize(static_cast<size_t>(about.st_size));
  size_t have = 0;
  while (have < text->size()) {
    const ssize_t got = ::read(fd.get(), text->data() + have, text->size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system("cannot be read", errno);
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  text->resize(have);
  return {};
}

std::string printable(std::string text) {
  for (size_t i = 0; i < text.size(); i++) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7f) text[i] = '?';
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) text[i] = text[i + 1] = '?';
  }
  return text;
}
