/* Overlaps the optimizer's step with the communication: each parameter is updated as soon as its gradient has
 * been reduced, while later buckets are still in flight. The weights are bitwise equal to those of updating
 * after finish. Four layers descend toward targets that differ between ranks, by SGD with momentum.
 *   weft run -n 2 -- overlapped_step */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { LAYERS = 4, SIZE = 3000, STEPS = 20 };

typedef struct model {
  float weight[LAYERS][SIZE], momentum[LAYERS][SIZE], gradient[LAYERS][SIZE];
} model;

static void backward(model* m, int layer, int32_t rank) {
  for (int i = 0; i < SIZE; i++) {
    const float target = (float)sin((double)(layer * SIZE + i) + rank);
    m->gradient[layer][i] = m->weight[layer][i] - target;
  }
}

static void update(model* m, int layer) {
  for (int i = 0; i < SIZE; i++) {
    m->momentum[layer][i] = 0.9f * m->momentum[layer][i] + m->gradient[layer][i];
    m->weight[layer][i] -= 0.05f * m->momentum[layer][i];
  }
}

/* Executes one step. Backward processes the last layer first, and so do the buckets. */
static weft_status step(weft_reducer* reducer, model* m, int32_t rank, int overlapped) {
  weft_status status = weft_reducer_begin(reducer, NULL);
  for (int layer = LAYERS - 1; layer >= 0 && status == WEFT_OK; layer--) {
    backward(m, layer, rank);
    status = weft_reducer_ready(reducer, (uint64_t)layer, m->gradient[layer], NULL);
  }
  for (int layer = LAYERS - 1; layer >= 0 && status == WEFT_OK && overlapped; layer--) {
    status = weft_reducer_wait_param(reducer, (uint64_t)layer, WEFT_TIMEOUT_INFINITE);
    if (status == WEFT_OK) update(m, layer);
  }
  if (status == WEFT_OK) status = weft_reducer_finish(reducer, NULL);
  for (int layer = 0; layer < LAYERS && status == WEFT_OK && !overlapped; layer++) update(m, layer);
  return status;
}

static weft_status train(weft_comm* comm, model* m, int overlapped, weft_error* error) {
  static const char* const names[LAYERS] = {"first", "second", "third", "last"};
  const int64_t shape[] = {SIZE};
  const uint64_t limit = 0; /* one bucket for each layer */
  weft_param params[LAYERS];
  memset(m, 0, sizeof *m);
  for (int layer = 0; layer < LAYERS; layer++) {
    const weft_param empty = WEFT_PARAM_INIT;
    params[layer] = empty;
    params[layer].name = names[layer];
    params[layer].dtype = WEFT_DTYPE_F32;
    params[layer].ndim = 1;
    params[layer].shape = shape;
    params[layer].parameter = m->weight[layer]; /* create copies rank 0's to all ranks */
  }
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = LAYERS;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  weft_reducer* reducer = NULL;
  int32_t rank = 0;
  weft_comm_rank(comm, &rank);
  weft_status status = weft_reducer_create(comm, &options, &reducer, error);
  for (int s = 0; s < STEPS && status == WEFT_OK; s++) {
    status = step(reducer, m, rank, overlapped);
    if (status != WEFT_OK) weft_reducer_error(reducer, error);
  }
  weft_reducer_destroy(&reducer);
  return status;
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  model* models = calloc(2, sizeof *models);
  if (models == NULL) return 1;
  weft_status status = weft_context_create(NULL, &context, &error);
  if (status == WEFT_OK) status = weft_comm_create(context, NULL, &comm, &error);
  for (int overlapped = 0; overlapped < 2 && status == WEFT_OK; overlapped++) {
    status = train(comm, &models[overlapped], overlapped, &error);
  }
  const int equal = memcmp(models[0].weight, models[1].weight, sizeof models[0].weight) == 0;
  if (status != WEFT_OK) {
    fprintf(stderr, "%s: %s\n", weft_status_string(status), error.text);
  } else {
    printf("weights are %s to those of updating after finish\n", equal ? "equal" : "not equal");
  }
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  free(models);
  return status == WEFT_OK && equal ? 0 : 1;
}
