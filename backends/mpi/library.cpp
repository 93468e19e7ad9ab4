#include "library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/text.h"
#include "environment/launch.h"

namespace weft::mpi {
namespace {

#if defined(OPEN_MPI)
constexpr const char* kFlavour = "Open MPI";
#else
constexpr const char* kFlavour = "MPICH";
#endif

// MPI is initialised and finalised once in a process.
std::mutex begin_mutex;
std::atomic<int> long_calls{0};

bool asked(int (*question)(int*)) {
  int answer = 0;
  return question(&answer) == MPI_SUCCESS && answer != 0;
}

// The objects of the process in load order, until both are found.
struct Order {
  const void* mpi = nullptr;
  const void* module = nullptr;
  bool mpi_first = false;
};

int look_for(dl_phdr_info* info, size_t /*size*/, void* data) {
  auto& order = *static_cast<Order*>(data);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    const auto holds = [&](const void* address) {
      return reinterpret_cast<uintptr_t>(address) - begin < info->dlpi_phdr[i].p_memsz;
    };
    if (holds(order.module)) return 1;
    if (holds(order.mpi)) order.mpi_first = true;
  }
  return 0;
}

// True if other code had loaded the library before this module needed it.
bool is_the_programs() {
  Order order;
  order.mpi = reinterpret_cast<const void*>(&MPI_Init_thread);
  order.module = reinterpret_cast<const void*>(&is_the_programs);
  dl_iterate_phdr(look_for, &order);
  return order.mpi_first;
}

// Makes MPI's functions global. Open MPI's components resolve them in the global scope, where only a program
// linked to MPI has put them.
void show_to_components() {
#if defined(OPEN_MPI)
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &info) == 0) return;
  void* const object = dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  if (object != nullptr) dlclose(object);
#endif
}

// Finalises MPI at exit of a process where Weft has initialised it, even after failures. mpirun treats a rank
// that does not finalise as dead, and ends the other ranks.
void end() {
  if (long_calls == 0 && !asked(MPI_Finalized)) MPI_Finalize();
}

Status unavailable(const std::string& why) {
  return Status::error(Code::kUnavailable, why);
}

std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

}  // namespace

LongCall::LongCall() {
  long_calls++;
}

LongCall::~LongCall() {
  long_calls--;
}

std::string version() {
  // The loaded library may be another one with a larger limit: MPICH's is 8192, Open MPI's 256.
  char text[std::max(MPI_MAX_LIBRARY_VERSION_STRING, 16384)] = {};
  int size = 0;
  if (MPI_Get_library_version(text, &size) != MPI_SUCCESS) return "MPI";
  std::string line(text, strnlen(text, sizeof text));
  line = line.substr(0, line.find_first_of(",\n"));  // Open MPI appends who built it, MPICH further lines
  const std::string label = "Version:";              // "MPICH Version:\t4.0.2"
  const size_t at = line.find(label);
  if (at != std::string::npos) {
    const size_t number = line.find_first_not_of(" \t", at + label.size());
    if (number != std::string::npos) line = line.substr(0, at) + line.substr(number);
  }
  return line;
}

Status usable() {
  const std::string found = version();
  if (found.find(kFlavour) == std::string::npos) {
    return unavailable(cat("the process has loaded ", found, ", and this module was built for ", kFlavour));
  }
  if (asked(MPI_Finalized)) return unavailable("the program has called MPI_Finalize");
  if (!asked(MPI_Initialized) && is_the_programs()) {
    return unavailable(
        "MPI is not initialised: call MPI_Init_thread with MPI_THREAD_MULTIPLE before the communicator is "
        "made");
  }
  return {};
}

Status begin(int size, bool progress_thread, Callers* callers) {
  WEFT_TRY(usable());
  const std::lock_guard lock(begin_mutex);
  int level = MPI_THREAD_SINGLE;
  if (!asked(MPI_Initialized)) {
    int ranks = 0;
    static_cast<void>(process_mpi_launcher(&ranks));
    if (ranks != 0 && ranks != size) {
      return unavailable(cat("MPI is not initialised, and Weft does that only with the ", ranks,
                             " ranks that mpirun started all in one communicator; this one has ", size));
    }
    show_to_components();
    const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    if (error != MPI_SUCCESS) return unavailable("MPI_Init_thread failed with " + words(error));
    std::atexit(end);
  }
  int error = MPI_Query_thread(&level);
  if (error != MPI_SUCCESS) return failed("MPI_Query_thread", error);
  if (level >= MPI_THREAD_MULTIPLE) {
    *callers = Callers::kAny;
    return {};
  }
  if (progress_thread) {
    return unavailable(cat("MPI was initialised with ", level_name(level),
                           ", and Weft's progress thread calls it beside the program: initialise it with "
                           "MPI_THREAD_MULTIPLE, or make the context with WEFT_PROGRESS_CALLER"));
  }
  *callers = level == MPI_THREAD_SERIALIZED ? Callers::kOneAtATime : Callers::kMainThread;
  int main = 0;
  if (*callers == Callers::kMainThread && (MPI_Is_thread_main(&main) != MPI_SUCCESS || main == 0)) {
    return unavailable(cat("MPI was initialised with ", level_name(level),
                           " by another thread: only that one may make the communicator and wait"));
  }
  return {};
}

std::string words(int error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  if (MPI_Error_string(error, text, &size) != MPI_SUCCESS) return cat("MPI error code ", error);
  return std::string(text, strnlen(text, sizeof text));
}

Status failed(const std::string& what, int error) {
  return unavailable(cat(what, ": ", words(error)));
}

}  // namespace weft::mpi
