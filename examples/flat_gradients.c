/* A C trainer as it may have been before Weft: parameters, gradients and momentum of all layers lie in one
 * array each. Weft reduces the gradients where they are, so backward needs no other addresses and nothing is
 * copied. Two micro-batches make a step. The state is saved, and training resumes from it.
 *   weft run -n 2 -- flat_gradients state.bin [steps]
 * Data-parallel training adds the part "Weft" and the lines that name it. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { IN = 16, HIDDEN = 64, OUT = 4, BATCH = 8, MICRO_BATCHES = 2, TENSORS = 4 };
static const int64_t shapes[TENSORS][2] = {{HIDDEN, IN}, {HIDDEN, 1}, {OUT, HIDDEN}, {OUT, 1}};
static const char* const names[TENSORS] = {"hidden.weight", "hidden.bias", "out.weight", "out.bias"};
enum { PARAMETERS = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT };

typedef struct trainer {
  float *parameters, *gradients, *momentum; /* PARAMETERS values each */
  uint64_t step;
  size_t offsets[TENSORS];
} trainer;

static int initialise(trainer* t) {
  t->parameters = malloc(PARAMETERS * sizeof(float));
  t->gradients = calloc(PARAMETERS, sizeof(float));
  t->momentum = calloc(PARAMETERS, sizeof(float));
  t->step = 0;
  if (t->parameters == NULL || t->gradients == NULL || t->momentum == NULL) return 0;
  for (size_t i = 0, at = 0; i < TENSORS; at += (size_t)(shapes[i][0] * shapes[i][1]), i++)
    t->offsets[i] = at;
  for (int i = 0; i < PARAMETERS; i++) t->parameters[i] = (float)sin(12.9 * i) * 0.1f;
  return 1;
}

/* A missing file is a new training run. */
static void load(trainer* t, const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return;
  if (fread(t->parameters, sizeof(float), PARAMETERS, file) != PARAMETERS ||
      fread(t->momentum, sizeof(float), PARAMETERS, file) != PARAMETERS ||
      fread(&t->step, sizeof t->step, 1, file) != 1) {
    fprintf(stderr, "%s is not a whole checkpoint: remove it\n", path);
    exit(1);
  }
  fclose(file);
}

static int save(const trainer* t, const char* path) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) return 0;
  const int whole = fwrite(t->parameters, sizeof(float), PARAMETERS, file) == PARAMETERS &&
                    fwrite(t->momentum, sizeof(float), PARAMETERS, file) == PARAMETERS &&
                    fwrite(&t->step, sizeof t->step, 1, file) == 1;
  return (fclose(file) == 0) && whole;
}

/* Adds the gradients of a micro-batch to t->gradients, and returns its loss. The task: the sum of some
 * inputs. */
static float forward_backward(trainer* t, int rank, int micro_batch) {
  const float *w1 = t->parameters + t->offsets[0], *b1 = t->parameters + t->offsets[1];
  const float *w2 = t->parameters + t->offsets[2], *b2 = t->parameters + t->offsets[3];
  float *dw1 = t->gradients + t->offsets[0], *db1 = t->gradients + t->offsets[1];
  float *dw2 = t->gradients + t->offsets[2], *db2 = t->gradients + t->offsets[3];
  float loss = 0;
  for (int n = 0; n < BATCH; n++) {
    float x[IN], h[HIDDEN], dh[HIDDEN] = {0};
    const double seed =
        (double)((t->step * 64 + (uint64_t)rank) * MICRO_BATCHES + (uint64_t)micro_batch) * BATCH + n;
    for (int i = 0; i < IN; i++) x[i] = (float)sin(seed * 78.2 + i * 37.7);
    for (int j = 0; j < HIDDEN; j++) {
      float sum = b1[j];
      for (int i = 0; i < IN; i++) sum += w1[j * IN + i] * x[i];
      h[j] = sum > 0 ? sum : 0;
    }
    for (int k = 0; k < OUT; k++) {
      float error = b2[k] - (x[k] + x[k + OUT]);
      for (int j = 0; j < HIDDEN; j++) error += w2[k * HIDDEN + j] * h[j];
      loss += error * error / BATCH;
      error *= 2.0f / BATCH;
      db2[k] += error;
      for (int j = 0; j < HIDDEN; j++) {
        dw2[k * HIDDEN + j] += error * h[j];
        dh[j] += error * w2[k * HIDDEN + j];
      }
    }
    for (int j = 0; j < HIDDEN; j++) {
      if (h[j] <= 0) continue;
      db1[j] += dh[j];
      for (int i = 0; i < IN; i++) dw1[j * IN + i] += dh[j] * x[i];
    }
  }
  return loss;
}

static void update(trainer* t) {
  for (int i = 0; i < PARAMETERS; i++) {
    t->momentum[i] = 0.9f * t->momentum[i] + t->gradients[i];
    t->parameters[i] -= 0.01f * t->momentum[i];
    t->gradients[i] = 0;
  }
  t->step++;
}

/* ---- Weft ---- */

static void stop(weft_status status, const weft_error* error) {
  if (status == WEFT_OK) return;
  fprintf(stderr, "%s: %s\n", weft_status_string(status), error->text);
  exit(1);
}

/* Every tensor has its place in the gradient array. Momentum and the step number have no gradients. create
 * copies rank 0's values of all of them to the other ranks, so rank 0 alone reads the checkpoint. */
static weft_reducer* make_reducer(weft_comm* comm, trainer* t) {
  static const int64_t whole[] = {PARAMETERS}, one[] = {1};
  weft_param params[TENSORS + 2];
  for (size_t i = 0; i < TENSORS + 2; i++) params[i] = (weft_param)WEFT_PARAM_INIT;
  for (size_t i = 0; i < TENSORS; i++) {
    params[i].name = names[i];
    params[i].dtype = WEFT_DTYPE_F32;
    params[i].ndim = 2;
    params[i].shape = shapes[i];
    params[i].gradient = t->gradients + t->offsets[i];
    params[i].parameter = t->parameters + t->offsets[i];
  }
  params[TENSORS] = (weft_param){.struct_size = sizeof(weft_param),
                                 .name = "momentum",
                                 .dtype = WEFT_DTYPE_F32,
                                 .ndim = 1,
                                 .shape = whole,
                                 .flags = WEFT_PARAM_STATE_ONLY,
                                 .parameter = t->momentum};
  params[TENSORS + 1] = (weft_param){.struct_size = sizeof(weft_param),
                                     .name = "step",
                                     .dtype = WEFT_DTYPE_U64,
                                     .ndim = 1,
                                     .shape = one,
                                     .flags = WEFT_PARAM_STATE_ONLY,
                                     .parameter = &t->step};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = TENSORS + 2;
  options.mode = WEFT_GRADIENT_IN_PLACE;
  weft_reducer* reducer = NULL;
  weft_error error = WEFT_ERROR_INIT;
  stop(weft_reducer_create(comm, &options, &reducer, &error), &error);
  return reducer;
}

static void check(weft_status status, weft_reducer* reducer) {
  weft_error error = WEFT_ERROR_INIT;
  weft_reducer_error(reducer, &error);
  stop(status, &error);
}

/* Averages the gradients over the ranks and the micro-batches. A model with more layers calls ready as soon
 * as a layer's gradient is complete, so that it is reduced while backward continues. */
static void average(weft_reducer* reducer) {
  for (uint64_t i = TENSORS; i-- > 0;) check(weft_reducer_ready(reducer, i, NULL, NULL), reducer);
  check(weft_reducer_finish(reducer, NULL), reducer);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: flat_gradients CHECKPOINT [STEPS]\n");
    return 2;
  }
  const int steps = argc > 2 ? atoi(argv[2]) : 40;
  trainer t;
  if (!initialise(&t)) return 1;
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  int32_t rank = 0;
  stop(weft_context_create(NULL, &context, &error), &error);
  stop(weft_comm_create(context, NULL, &comm, &error), &error);
  weft_comm_rank(comm, &rank);
  if (rank == 0) load(&t, argv[1]);
  weft_reducer* reducer = make_reducer(comm, &t);
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.micro_batches = MICRO_BATCHES;
  /* ---- the training loop ---- */
  float loss = 0;
  for (int s = 0; s < steps; s++) {
    loss = 0;
    check(weft_reducer_begin(reducer, &begin), reducer); /* Weft */
    for (int micro_batch = 0; micro_batch < MICRO_BATCHES; micro_batch++)
      loss += forward_backward(&t, rank, micro_batch) / MICRO_BATCHES;
    average(reducer); /* Weft */
    update(&t);
  }
  uint32_t checksum = 2166136261u;
  for (size_t i = 0; i < PARAMETERS * sizeof(float); i++)
    checksum = (checksum ^ ((unsigned char*)t.parameters)[i]) * 16777619u;
  printf("rank %d: step %llu, loss %.4f, parameters %08x\n", rank, (unsigned long long)t.step, (double)loss,
         checksum);
  const int saved = rank != 0 || save(&t, argv[1]);
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  free(t.parameters);
  free(t.gradients);
  free(t.momentum);
  return saved ? 0 : 1;
}
