#include "mpi_flavour.h"

#include "base/dl.h"
#include "base/text.h"

namespace weft {
namespace {

// The loader's names: Debian's MPICH has its own.
struct Library {
  const char* flavour;
  const char* soname;
};
constexpr Library kLibraries[] = {{"openmpi", "libmpi.so.40"},
                                  {"openmpi", "libmpi.so.80"},
                                  {"mpich", "libmpich.so.12"},
                                  {"mpich", "libmpi.so.12"}};

}  // namespace

MpiFacts mpi_facts() {
  MpiFacts facts;
  for (const Library& library : kLibraries) {
    if (facts.loaded.empty() && is_loaded(library.soname)) facts.loaded = library.flavour;
  }
  switch (process_mpi_launcher()) {
    case Launcher::kOpenMpi:
      facts.launcher = "openmpi";
      break;
    case Launcher::kPmi:
      facts.launcher = "mpich";
      break;
    default:
      break;
  }
  return facts;
}

Status choose_mpi(const MpiFacts& facts, std::string* flavour) {
  if (facts.loaded.empty() && facts.launcher.empty()) {
    return Status::error(Code::kUnavailable,
                         "this process was not started by mpirun and has loaded no MPI library: start it "
                         "with mpirun, or load MPI before creating the context");
  }
  // A program of one library under the other's mpirun becomes many jobs of one rank; connect reports this.
  *flavour = facts.loaded.empty() ? facts.launcher : facts.loaded;
  return {};
}

const char* mpi_title(const std::string& flavour) {
  return flavour == "openmpi" ? "Open MPI" : "MPICH";
}

}  // namespace weft
