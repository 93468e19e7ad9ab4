#include <weft/weft.h>

enum { COUNT = 1000, SLICES = 16 };

static float weight[COUNT], gradient[COUNT];
static weft_slice slices[SLICES];
static uint64_t count = SLICES;

static int owned(int k) {
  for (uint64_t s = 0; s < count; s++)
    if ((uint64_t)k >= slices[s].offset && (uint64_t)k < slices[s].offset + slices[s].count) return 1;
  return 0;
}

int main(void) {
  const int64_t shape[] = {COUNT};
  const uint64_t i = 0;
  weft_param param = WEFT_PARAM_INIT;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  weft_reducer* reducer = NULL;
  int32_t rank = 0;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = shape;
  param.parameter = weight;
  options.params = &param;
  options.param_count = 1;
  options.flags = WEFT_REDUCER_SHARDED;
  if (weft_context_create(NULL, &context, &error) || weft_comm_create(context, NULL, &comm, &error) ||
      weft_reducer_create(comm, &options, &reducer, &error) || weft_comm_rank(comm, &rank) ||
      weft_reducer_owned(reducer, rank, slices, &count))
    return 1;
  for (int k = 0; k < COUNT; k++) gradient[k] = (float)(rank + 1);
  if (weft_reducer_begin(reducer, NULL) || weft_reducer_ready(reducer, 0, gradient, NULL)) return 1;
  BLOCK
  int wrong = 0; /* the mean of 1 and 2 is 1.5 */
  for (int k = 0; k < COUNT; k++) wrong += weight[k] < -0.1501f || weight[k] > -0.1499f;
  for (int k = 0; k < COUNT; k++) gradient[k] = 0;
  wrong += weft_reducer_ready(reducer, 0, gradient, NULL) || weft_reducer_finish(reducer, NULL);
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return wrong == 0 ? 0 : 1;
}
