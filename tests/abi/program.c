/* A C99 program that includes only weft.h: one rank, an all-reduce, a step of a reducer, errors. */
#include <weft/weft.h>

#include <stdio.h>
#include <string.h>

#define EXPECT(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
      failures++;                                                 \
    }                                                             \
  } while (0)

static int32_t gather(void* user_data, const void* mine, uint64_t size, void* all) {
  (void)user_data;
  memcpy(all, mine, (size_t)size);
  return 0;
}

int main(void) {
  int failures = 0;
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  weft_reducer* reducer = NULL;
  weft_request* request = NULL;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  weft_reducer_options reducer_options = WEFT_REDUCER_OPTIONS_INIT;
  const int64_t shape[2] = {2, 3};
  weft_param param = WEFT_PARAM_INIT;
  float values[6] = {1, 2, 3, 4, 5, 6};
  uint8_t done = 0;

  EXPECT(weft_version() / 10000 == WEFT_VERSION_MAJOR);
  EXPECT(strcmp(weft_status_string(WEFT_OK), "ok") == 0);
  EXPECT(strcmp(weft_status_string(12345), "unknown status") == 0);
  EXPECT(weft_context_create(NULL, &context, &error) == WEFT_OK);

  options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  options.size = 1;
  options.all_gather = gather;
  EXPECT(weft_comm_create(context, &options, &comm, &error) == WEFT_OK);
  EXPECT(weft_all_reduce(comm, values, values, 6, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, &request) == WEFT_OK);
  EXPECT(weft_request_wait(request, 0) == WEFT_OK);
  EXPECT(weft_request_test(request, &done) == WEFT_OK && done == 1);
  EXPECT(weft_request_release(&request) == WEFT_OK && request == NULL);
  EXPECT(weft_all_reduce(comm, values, NULL, 6, WEFT_DTYPE_F32, WEFT_OP_SUM, NULL, NULL) == WEFT_ERR_ARG);

  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 2;
  param.shape = shape;
  reducer_options.params = &param;
  reducer_options.param_count = 1;
  EXPECT(weft_reducer_create(comm, &reducer_options, &reducer, &error) == WEFT_OK);
  EXPECT(weft_reducer_begin(reducer, NULL) == WEFT_OK);
  EXPECT(weft_reducer_ready(reducer, 0, values, NULL) == WEFT_OK);
  EXPECT(weft_reducer_finish(reducer, NULL) == WEFT_OK);
  EXPECT(values[5] == 6.0f);
  EXPECT(weft_reducer_ready(reducer, 0, values, NULL) == WEFT_ERR_STATE);
  EXPECT(weft_reducer_error(reducer, &error) == WEFT_ERR_STATE && strstr(error.text, "weight") != NULL);

  EXPECT(weft_reducer_destroy(&reducer) == WEFT_OK);
  EXPECT(weft_comm_destroy(&comm) == WEFT_OK && comm == NULL);
  EXPECT(weft_context_destroy(&context) == WEFT_OK && context == NULL);
  return failures;
}
