#include <weft/weft.h>

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm *comm = NULL, *host_ranks = NULL;
  if (weft_context_create(NULL, &context, &error) || weft_comm_create(context, NULL, &comm, &error) ||
      weft_comm_split(comm, 0, 0, &host_ranks, &error))
    return 1;
  BLOCK
  const int right = levels[0].comm == host_ranks && levels[1].period == 16;
  weft_comm_destroy(&host_ranks);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return right ? 0 : 1;
}
