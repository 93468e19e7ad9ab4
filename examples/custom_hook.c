/* A custom communication hook, which sends gradients as signs times their mean magnitude. Each rank
 * all-reduces +1 or -1 for every element as one byte, and one magnitude. The result is sum of signs / ranks *
 * magnitude. Buckets are f32; at most 127 ranks, since a byte holds the sum.
 *   weft run -n 2 -- custom_hook */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

static uint64_t magnitude_at(const weft_bucket* bucket) { /* in scratch, behind the signs */
  return (bucket->count + 63) / 64 * 64;
}

/* Called once for each plan: declares the collectives of the bucket's stages, and their buffers. */
static weft_status plan(void* user_data, const weft_bucket* bucket, weft_hook_plan* out, char* message) {
  (void)user_data;
  if (bucket->dtype != WEFT_DTYPE_F32 || bucket->size > 127) {
    strcpy(message, "signs are for f32 and at most 127 ranks");
    return WEFT_ERR_UNSUPPORTED;
  }
  out->scratch_bytes = magnitude_at(bucket) + sizeof(float);
  out->collective_count = 2;
  for (int k = 0; k < 2; k++) {
    weft_hook_collective* c = &out->collectives[k];
    c->coll = WEFT_COLL_ALL_REDUCE;
    c->dtype = k == 0 ? WEFT_DTYPE_I8 : WEFT_DTYPE_F32;
    c->op = k == 0 ? WEFT_OP_SUM : WEFT_OP_AVG; /* AVG divides by the step's divisor */
    c->count = k == 0 ? bucket->count : 1;
    c->src_space = c->dst_space = WEFT_SPACE_SCRATCH;
    c->src_offset_bytes = c->dst_offset_bytes = k == 0 ? 0 : magnitude_at(bucket);
  }
  return WEFT_OK;
}

/* Stage k runs before collective k, the last stage after all of them. */
static weft_status stage(void* user_data, const weft_bucket* bucket, weft_stage* now, char* message) {
  (void)user_data, (void)message;
  float* values = bucket->buffer;
  int8_t* signs = bucket->scratch;
  float* magnitude = (float*)((char*)bucket->scratch + magnitude_at(bucket));
  uint64_t i;
  if (now->index == 0) {
    double sum = 0;
    for (i = 0; i < bucket->count; i++) {
      signs[i] = values[i] < 0 ? -1 : 1;
      sum += fabs(values[i]);
    }
    *magnitude = bucket->count > 0 ? (float)(sum / (double)bucket->count) : 0.0f;
  } else if (now->index == 2) {
    for (i = 0; i < bucket->count; i++) values[i] = (float)signs[i] / (float)bucket->size * *magnitude;
  }
  return WEFT_OK;
}

static int fail(const char* call, const weft_error* error) {
  fprintf(stderr, "%s: %s: %s\n", call, weft_status_string(error->code), error->text);
  return 1;
}

/* Executes one step with a gradient of four elements. */
static int step(weft_comm* comm, weft_hook* hook) {
  weft_error error = WEFT_ERROR_INIT;
  const int64_t shape[] = {4};
  float weight[4] = {0};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = shape;
  param.parameter = weight; /* create copies rank 0's to all ranks */
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.hook = hook;
  weft_reducer* reducer = NULL;
  if (weft_reducer_create(comm, &options, &reducer, &error) != WEFT_OK) {
    return fail("weft_reducer_create", &error);
  }
  int32_t rank = 0;
  weft_comm_rank(comm, &rank);
  float gradient[] = {1, -2, 3, rank == 0 ? -2.0f : 2.0f}; /* all signs but the last are equal on all ranks */
  weft_status status = weft_reducer_begin(reducer, NULL);
  if (status == WEFT_OK) status = weft_reducer_ready(reducer, 0, gradient, NULL);
  if (status == WEFT_OK) status = weft_reducer_finish(reducer, NULL);
  if (status == WEFT_OK) {
    printf("rank %d: %g %g %g %g\n", (int)rank, gradient[0], gradient[1], gradient[2], gradient[3]);
  } else {
    weft_reducer_error(reducer, &error);
    fail("step", &error);
  }
  weft_reducer_destroy(&reducer);
  return status == WEFT_OK ? 0 : 1;
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  weft_hook* hook = NULL;
  weft_hook_table table = WEFT_HOOK_TABLE_INIT;
  table.name = "signs"; /* all ranks must bring a hook of this name */
  table.plan = plan;
  table.stage = stage;
  if (weft_context_create(NULL, &context, &error) != WEFT_OK) return fail("weft_context_create", &error);
  if (weft_comm_create(context, NULL, &comm, &error) != WEFT_OK) return fail("weft_comm_create", &error);
  if (weft_hook_create_custom(context, &table, NULL, &hook) != WEFT_OK) return 1;
  const int result = step(comm, hook);
  weft_hook_destroy(&hook);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return result;
}
