// Selection of the MPI library that a process uses.
#include "mpi_flavour.h"

#include "support/catch.h"

namespace unit_mpi_flavour {

using namespace weft;

TEST_CASE("the MPI library that the program has loaded is used, whatever started the process") {
  for (const char* const loaded : {"openmpi", "mpich"}) {
    for (const char* const launcher : {"", "openmpi", "mpich"}) {
      INFO(loaded << " under " << launcher);
      std::string flavour;
      CHECK(choose_mpi({loaded, launcher}, &flavour).ok());
      CHECK(flavour == loaded);
    }
  }
}

TEST_CASE("a program that has loaded no MPI library uses that of the mpirun that started it") {
  for (const char* const launcher : {"openmpi", "mpich"}) {
    std::string flavour;
    CHECK(choose_mpi({"", launcher}, &flavour).ok());
    CHECK(flavour == launcher);
  }
}

TEST_CASE("a process that is no rank of an MPI job loads no MPI library") {
  std::string flavour = "as before";
  const Status status = choose_mpi({}, &flavour);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.text() ==
        "this process was not started by mpirun and has loaded no MPI library: start it with "
        "mpirun, or load MPI before creating the context");
  CHECK(flavour == "as before");
}

TEST_CASE("the MPI libraries are reported by their names") {
  CHECK(std::string(mpi_title("openmpi")) == "Open MPI");
  CHECK(std::string(mpi_title("mpich")) == "MPICH");
}

}  // namespace unit_mpi_flavour
