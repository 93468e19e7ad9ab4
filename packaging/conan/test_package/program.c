/* A job of one rank reduces. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  float value = 1;

  setenv("WEFT_RANK", "0", 1);
  setenv("WEFT_SIZE", "1", 1);
  weft_status status = weft_context_create(NULL, &context, &error);
  if (status == WEFT_OK) status = weft_comm_create(context, NULL, &comm, &error);
  if (status == WEFT_OK)
    status = weft_all_reduce(comm, &value, &value, 1, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, NULL);
  printf("Weft %u: %s %s\n", (unsigned)weft_version(), weft_status_string(status), error.text);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return status == WEFT_OK && value == 1 ? 0 : 1;
}
