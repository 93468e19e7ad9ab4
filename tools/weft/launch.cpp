#include "launch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/fd.h"
#include "supervise.h"

namespace {

std::string prefix_of(Prefix prefix, int rank) {
  const bool plain = prefix == Prefix::kNone || (prefix == Prefix::kOthers && rank == 0);
  return plain ? "" : "[" + std::to_string(rank) + "] ";
}

// Holds a secret in memory of this process, which only this user can open, at a path below /proc. A variable
// would be passed to everything that the ranks start, and shown by everything that prints its environment.
class SecretMemory {
 public:
  explicit SecretMemory(const std::string& secret)
      : memory_(::memfd_create("weft-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    const auto size = static_cast<ssize_t>(secret.size());
    const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.get());
    if (memory_.valid() && ::write(memory_.get(), secret.data(), secret.size()) == size &&
        ::fchmod(memory_.get(), 0400) == 0 && ::fcntl(memory_.get(), F_ADD_SEALS, kSeals) == 0 &&
        ::access(path.c_str(), R_OK) == 0) {
      path_ = path;
    }
  }
  // Returns the path; empty if the kernel has no such memory, or /proc is not mounted.
  const std::string& path() const { return path_; }

 private:
  const weft::Fd memory_;
  std::string path_;
};

}  // namespace

std::string random_hex(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    unsigned char byte = 0;
    if (::getrandom(&byte, 1, 0) != 1) {
      throw std::system_error(errno, std::generic_category(),
                              "cannot draw random bytes for the secret or the store's name: getrandom");
    }
    constexpr char kDigits[] = "0123456789abcdef";
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

int launch(const LaunchOptions& options) {
  const std::string store = options.store.empty() ? "unix:@weft-" + random_hex(16) : options.store;
  const std::string secret = options.secret.empty() ? random_hex(32) : options.secret;
  const SecretMemory memory(secret);
  const int size = std::max(options.size, options.ranks);
  const bool elsewhere = size > options.ranks;
  std::vector<Child> children;
  for (int i = 0; i < options.ranks; ++i) {
    const int rank = options.first_rank + i;
    Child child;
    child.number = std::to_string(rank);
    child.name = "rank " + child.number;
    child.command = options.command;
    child.prefix = prefix_of(options.prefix, rank);
    child.environment = {{"WEFT_RANK", child.number},
                         {"WEFT_SIZE", std::to_string(size)},
                         {"WEFT_LOCAL_RANK", std::to_string(i)},
                         {"WEFT_LOCAL_SIZE", std::to_string(options.ranks)},
                         {"WEFT_STORE", store}};
    // If some ranks are elsewhere, the secret is the one that the user gave to all of them.
    if (!elsewhere || !options.secret.empty()) {
      child.unset = {"WEFT_STORE_EXTERNAL", "WEFT_SECRET", "WEFT_SECRET_FILE"};
      if (memory.path().empty()) {
        child.environment.emplace_back("WEFT_SECRET", secret);
      } else {
        child.environment.emplace_back("WEFT_SECRET_FILE", memory.path());
      }
    }
    child.environment.insert(child.environment.end(), options.environment.begin(), options.environment.end());
    children.push_back(std::move(child));
  }
  SuperviseOptions how;
  how.program = "weft run";
  how.timeout_s = options.timeout_s;
  how.grace_s = options.grace_s;
  how.control = options.control;
  return supervise(children, how);
}
