/* hello_allreduce over a custom network: the transport of unix_transport.c.
 *   weft run -n 4 -- own_network */
#include <stdio.h>

#include "unix_transport.h"

static int fail(const char* call, const weft_error* error) {
  fprintf(stderr, "%s: %s: %s\n", call, weft_status_string(error->code), error->text);
  return 1;
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  int32_t rank = 0;
  float value;
  int failed;

  if (weft_context_create(NULL, &context, &error) != WEFT_OK) return fail("weft_context_create", &error);
  options.backend = "unix";
  failed = weft_context_add_transport(context, unix_transport(), &error) != WEFT_OK &&
           fail("weft_context_add_transport", &error);
  if (!failed && weft_comm_create(context, &options, &comm, &error) != WEFT_OK) {
    failed = fail("weft_comm_create", &error);
  }
  if (!failed) {
    weft_comm_rank(comm, &rank);
    value = (float)rank;
    if (weft_all_reduce(comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, NULL) == WEFT_OK) {
      printf("rank %d: the ranks' numbers sum to %g\n", (int)rank, value);
    } else {
      weft_comm_error(comm, &error);
      failed = fail("weft_all_reduce", &error);
    }
    weft_comm_destroy(&comm);
  }
  weft_context_destroy(&context);
  return failed;
}
