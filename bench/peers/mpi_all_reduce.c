/* Measures MPI_Allreduce of the MPI that it is built with. */
#include "all_reduce_loop.h"

static void all_reduce(float* data, size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  int wrong = 0;
  MPI_Init(&argc, &argv);
  wrong = measure_all(argc, argv, all_reduce);
  MPI_Finalize();
  return wrong;
}
