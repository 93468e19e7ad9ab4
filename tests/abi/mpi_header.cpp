// Checks that weft_mpi.h is valid C++. (examples/mpi_gradient.c includes it as C99.)
#include <weft/weft_mpi.h>

#include <cstdio>
#include <cstring>

// Without MPI_Init the call returns an error.
int main() {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  if (weft_context_create(nullptr, &context, &error) != WEFT_OK) return 1;
  const weft_status status = weft_comm_create_from_mpi(context, MPI_COMM_WORLD, nullptr, &comm, &error);
  weft_context_destroy(&context);
  std::puts(error.text);
  return status == WEFT_ERR_UNAVAILABLE && comm == nullptr &&
                 std::strstr(error.text, "not initialised") != nullptr
             ? 0
             : 1;
}
