// weft secret: makes the secret of a job.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "commands.h"
#include "launch.h"

namespace {

constexpr int kRandomBytes = 32;

[[noreturn]] void cannot(const char* what, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path);
}

// Creates a file that only this user can read. Refuses a file that exists: jobs may be using its secret.
int make(const std::string& path) {
  const std::string secret = random_hex(kRandomBytes) + "\n";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) cannot("cannot create", path);
  const bool written = ::fchmod(file, 0600) == 0 &&
                       ::write(file, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) &&
                       ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  if (!written) {
    ::unlink(path.c_str());
    errno = error;
    cannot("cannot write", path);
  }
  std::printf("%s has a new secret. Set WEFT_SECRET_FILE to its path on every host of the job.\n",
              path.c_str());
  return 0;
}

}  // namespace

void add_secret(CLI::App& app, int* exit_code) {
  CLI::App* secret = app.add_subcommand("secret", "Make the secret of a job");
  secret->require_subcommand(1);
  CLI::App* fresh = secret->add_subcommand("new", "Create a file with a random secret of 64 characters");
  fresh->footer("Only this user can read the file (mode 0600). A file that exists is not replaced.");
  auto path = std::make_shared<std::string>();
  fresh->add_option("FILE", *path, "the file to create")->required();
  fresh->callback([path, exit_code] { *exit_code = make(*path); });
}
