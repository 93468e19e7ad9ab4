#include "environment/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/text.h"

namespace weft {
namespace {

Status check_secret(const char* source, size_t size) {
  if (size >= kMinSecretBytes && size <= kMaxSecretBytes) return {};
  return Status::error(Code::kAuth, cat(source, " holds a secret of ", size, " bytes: allowed are ",
                                        kMinSecretBytes, " to ", kMaxSecretBytes, " bytes"));
}

// Returns true if the group is the effective or a supplementary group of this process.
bool is_own_group(gid_t group) {
  if (group == ::getegid()) return true;
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(static_cast<size_t>(std::max(count, 0)));
  const int got = ::getgroups(count, groups.data());  // -1: root has changed the groups since the count
  return got > 0 && std::find(groups.begin(), groups.begin() + got, group) != groups.begin() + got;
}

// Returns kAuth, with the file's actual and required permissions.
Status bad_secret_file(const std::string& path, const struct stat& about, const char* problem) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(about.st_mode & 07777));
  return Status::error(
      Code::kAuth,
      cat("WEFT_SECRET_FILE ", path, " ", problem, ": it has mode ", mode, ", owner ", about.st_uid,
          " and group ", about.st_gid, "; this process is user ", ::geteuid(), ", group ", ::getegid(),
          ". It must belong to this user or root and be closed to all others (chmod 600), or belong to root "
          "and be readable by a group of this process (chmod 440)"));
}

// Only this user and root may have access to the file. Root may also make it readable to a group of this
// process, as Kubernetes does with a pod's secrets.
Status check_secret_file(const std::string& path, const struct stat& about) {
  const mode_t others = about.st_mode & (S_IRWXG | S_IRWXO);
  const bool owned = about.st_uid == ::geteuid() || about.st_uid == 0;
  const bool by_group = others == S_IRGRP && about.st_uid == 0 && is_own_group(about.st_gid);
  if (owned && (others == 0 || by_group)) return {};
  return bad_secret_file(path, about, "is open to other users");
}

}  // namespace

Status read_secret(const Variables& variables, SecretSource* source) {
  source->file = variables.text_or_empty(Variable::kSecretFile);
  const std::string secret = variables.text_or_empty(Variable::kSecret);
  if (secret.empty()) return {};
  if (!source->file.empty()) {
    return Status::error(Code::kArg, "WEFT_SECRET and WEFT_SECRET_FILE are both set: set one of them");
  }
  WEFT_TRY(check_secret("WEFT_SECRET", secret.size()));
  const ByteView bytes = std::as_bytes(std::span(secret));
  source->secret.assign(bytes.begin(), bytes.end());
  return {};
}

Status load_secret(const SecretSource& source, Bytes* secret) {
  *secret = source.secret;
  const std::string& path = source.file;
  if (path.empty()) return {};
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  const int error = errno;
  struct stat about{};
  if (!file.valid() && error == EACCES && ::stat(path.c_str(), &about) == 0)
    return bad_secret_file(path, about, "cannot be read");
  if (!file.valid()) return Status::system(cat("cannot open WEFT_SECRET_FILE ", path), error);
  if (::fstat(file.get(), &about) != 0)
    return Status::system(cat("cannot examine WEFT_SECRET_FILE ", path), errno);
  if (!S_ISREG(about.st_mode)) {
    return Status::error(Code::kAuth, cat("WEFT_SECRET_FILE ", path,
                                          " is not a regular file: name a file that contains the secret"));
  }
  WEFT_TRY(check_secret_file(path, about));
  Bytes content(kMaxSecretBytes + 2);
  const ssize_t got = ::read(file.get(), content.data(), content.size());
  if (got < 0) return Status::system(cat("cannot read WEFT_SECRET_FILE ", path), errno);
  content.resize(static_cast<size_t>(got));
  if (!content.empty() && content.back() == std::byte{'\n'}) content.pop_back();
  WEFT_TRY(check_secret(cat("WEFT_SECRET_FILE ", path).c_str(), content.size()));
  *secret = std::move(content);
  return {};
}

Status process_secret(Bytes* secret) {
  SecretSource source;
  WEFT_TRY(
      with_process_variables([&](const Variables& variables) { return read_secret(variables, &source); }));
  return load_secret(source, secret);
}

}  // namespace weft
