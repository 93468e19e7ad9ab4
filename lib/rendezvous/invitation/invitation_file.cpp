#include "rendezvous/invitation/invitation_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <span>
#include <utility>

#include "base/text.h"
#include "rendezvous/invitation/munge.h"

namespace weft {
namespace {

// Returns the first 64 bits of a hash as hexadecimal digits.
std::string hash_text(const Key& hash) {
  std::string text;
  for (size_t i = 0; i < 8; i++) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(hash[i]));
    text += digits.data();
  }
  return text;
}

std::string name_for(const std::string& job, uint64_t sequence) {
  const std::string whose = cat("user ", ::geteuid(), " job ", job);
  const ByteView bytes = std::as_bytes(std::span(whose));
  return cat("weft-", hash_text(AuthKey::from_secret(bytes).key), "-", sequence);
}

// Returns why a file is not trusted; empty: it is.
std::string distrust(const struct stat& about) {
  if (!S_ISREG(about.st_mode)) return "is not a regular file";
  if (about.st_uid != ::geteuid())
    return cat("belongs to user ", about.st_uid, ", but this process runs as user ", ::geteuid());
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) return "is open to other users";
  return "";
}

}  // namespace

InvitationFile::InvitationFile(std::string folder, const std::string& job, uint64_t sequence, bool munge)
    : folder_(std::move(folder)), name_(name_for(job, sequence)), munge_(munge) {}

InvitationFile::~InvitationFile() {
  Fd folder;
  struct stat about{};
  if (!published_ || !open_folder(&folder).ok()) return;
  if (::fstatat(folder.get(), name_.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (about.st_dev == device_ && about.st_ino == inode_) ::unlinkat(folder.get(), name_.c_str(), 0);
}

std::string InvitationFile::path() const {
  return cat(folder_, "/", name_);
}

Status InvitationFile::open_folder(Fd* folder) const {
  *folder = Fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder->valid()) return {};
  if (errno == ENOENT || errno == ENOTDIR) {
    return Status::error(Code::kArg, cat("the ranks are to meet in the folder ", folder_,
                                         errno == ENOENT ? ", which does not exist on this host"
                                                         : ", which is not a folder on this host",
                                         ": name a folder that all hosts of the job see"));
  }
  return Status::system(cat("cannot open the folder ", folder_, ", in which the ranks are to meet"), errno);
}

Status InvitationFile::publish(const Invitation& invitation) {
  Fd folder;
  WEFT_TRY(open_folder(&folder));
  const std::string draft = cat(".", name_, ".", hash_text(random_key()));
  const auto cannot = [&] {
    const int error = errno;
    ::unlinkat(folder.get(), draft.c_str(), 0);
    return Status::system(cat("rank 0 cannot write the file ", path(), ", through which the ranks meet"),
                          error);
  };
  const Fd file(
      ::openat(folder.get(), draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot();
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return cannot();
  if (const std::string why = distrust(about); !why.empty()) {
    ::unlinkat(folder.get(), draft.c_str(), 0);
    return Status::error(Code::kAuth, cat("rank 0 has written the file ", path(), ", but it ", why,
                                          ": name a folder whose file system keeps owners and modes"));
  }
  Bytes bytes = encode(invitation);
  std::string credential;
  if (munge_ && munge::seal(bytes, &credential).ok()) {
    const ByteView text = std::as_bytes(std::span(credential));
    bytes.assign(text.begin(), text.end());
  }
  if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fsync(file.get()) != 0 || ::renameat(folder.get(), draft.c_str(), folder.get(), name_.c_str()) != 0) {
    return cannot();
  }
  published_ = true;
  device_ = about.st_dev;
  inode_ = about.st_ino;
  return {};
}

Status InvitationFile::read(Invitation* invitation, std::string* why_not) const {
  // NFS looks for new files in a folder only when a process opens it.
  Fd folder;
  WEFT_TRY(open_folder(&folder));
  const Fd file(
      ::openat(folder.get(), name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat about{};
  Bytes bytes(munge::kMostText);
  if (!file.valid() && errno == ENOENT) {
    *why_not = cat("rank 0 has not written the file ", path());
  } else if (!file.valid() && errno == ELOOP) {
    *why_not = cat("the file ", path(), " is a symbolic link");
  } else if (!file.valid() || ::fstat(file.get(), &about) != 0) {
    *why_not = Status::system(cat("cannot open the file ", path()), errno).text();
  } else if (const std::string why = distrust(about); !why.empty()) {
    *why_not = cat("the file ", path(), " ", why);
  } else if (const ssize_t got = ::read(file.get(), bytes.data(), bytes.size()); got < 0) {
    *why_not = Status::system(cat("cannot read the file ", path()), errno).text();
  } else {
    bytes.resize(static_cast<size_t>(got));
    Status read = munge::is_credential(bytes) ? munge::open(Bytes(bytes), &bytes) : Status();
    if (read.ok()) read = decode(bytes, invitation);
    *why_not = read.ok() ? "" : cat("the file ", path(), ": ", read.text());
  }
  return {};
}

}  // namespace weft
