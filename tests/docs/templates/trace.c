#include <stdio.h>
#include <weft/weft.h>

static void train(weft_comm* comm) {
  float data[1000] = {0};
  for (int i = 0; i < 3; i++)
    weft_all_reduce(comm, data, data, 1000, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, NULL);
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  if (weft_context_create(NULL, &context, &error) || weft_comm_create(context, NULL, &comm, &error) ||
      weft_comm_query(comm, &info))
    return 1;
  const int rank = info.rank;
  BLOCK
  weft_comm_destroy(&comm);
  return weft_context_destroy(&context);
}
