#include <weft/weft.h>

int main(void) {
  static float gradient[1000];
  const int64_t shape[] = {1000};
  weft_param param = WEFT_PARAM_INIT;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  weft_finish_options commit = WEFT_FINISH_OPTIONS_INIT;
  weft_verdict verdict = WEFT_VERDICT_INIT;
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm *comm = NULL, *next = NULL;
  weft_reducer* reducer = NULL;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = shape;
  options.params = &param;
  options.param_count = 1;
  options.flags = WEFT_REDUCER_RETAIN;
  commit.flags = WEFT_FINISH_COMMIT;
  if (weft_context_create(NULL, &context, &error) || weft_comm_create(context, NULL, &comm, &error) ||
      weft_reducer_create(comm, &options, &reducer, &error) || weft_reducer_begin(reducer, NULL) ||
      weft_reducer_ready(reducer, 0, gradient, NULL))
    return 1;
  BLOCK
  const weft_status status = weft_reducer_verdict(reducer, &verdict);
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return status == WEFT_OK && verdict.last_committed_step == 0 ? 0 : 1;
}
