/* The smallest program: every rank contributes its number, and every rank gets the sum.
 *   weft run -n 4 -- hello_allreduce */
#include <stdio.h>
#include <weft/weft.h>

static int fail(const char* call, const weft_error* error) {
  fprintf(stderr, "%s: %s: %s\n", call, weft_status_string(error->code), error->text);
  return 1;
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  int32_t rank = 0, size = 0;
  float values[2];

  if (weft_context_create(NULL, &context, &error) != WEFT_OK) return fail("weft_context_create", &error);
  /* NULL: rank, size and store come from the environment that `weft run` (or mpirun, srun, torchrun) sets. */
  if (weft_comm_create(context, NULL, &comm, &error) != WEFT_OK) {
    weft_context_destroy(&context);
    return fail("weft_comm_create", &error);
  }
  weft_comm_rank(comm, &rank);
  weft_comm_size(comm, &size);

  values[0] = (float)rank;
  values[1] = 1.0f;
  weft_status status = weft_all_reduce(comm, values, values, 2, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, NULL);
  if (status == WEFT_OK) {
    printf("rank %d of %d: the ranks' numbers sum to %g, counted %g ranks\n", (int)rank, (int)size, values[0],
           values[1]);
  } else {
    weft_comm_error(comm, &error);
    fail("weft_all_reduce", &error);
  }
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return status == WEFT_OK ? 0 : 1;
}
