/* A C trainer as it may have been before Weft: parameters, gradients and momentum of all layers lie in one
 * array each, and the layers' weights are one stacked tensor. Weft reduces the gradients where they are, so
 * backward needs no other addresses and nothing is copied. Each layer's slice of the weights is a parameter
 * of its own, which is reduced while backward continues below. Two micro-batches make a step. The
 * state is saved, and training resumes from it.
 *   weft run -n 2 -- flat_gradients state.bin [steps]
 * Data-parallel training adds the part "Weft" and the lines that name it. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { LAYERS = 3, WIDTH = 32, OUT = 4, BATCH = 8, MICRO_BATCHES = 2, TENSORS = 4 };
static const int64_t shapes[TENSORS][3] = {
    {LAYERS, WIDTH, 1}, {LAYERS, WIDTH, WIDTH}, {1, OUT, WIDTH}, {1, OUT, 1}};
static const char* const names[TENSORS] = {"layers.bias", "layers.weight", "out.weight", "out.bias"};
enum { PARAMETERS = LAYERS * WIDTH + LAYERS * WIDTH * WIDTH + OUT * WIDTH + OUT };

typedef struct trainer {
  float *parameters, *gradients, *momentum; /* PARAMETERS values each */
  uint64_t step;
  size_t offsets[TENSORS];
  weft_reducer* reducer;
} trainer;

static int initialise(trainer* t) {
  t->parameters = malloc(PARAMETERS * sizeof(float));
  t->gradients = calloc(PARAMETERS, sizeof(float));
  t->momentum = calloc(PARAMETERS, sizeof(float));
  t->step = 0;
  if (t->parameters == NULL || t->gradients == NULL || t->momentum == NULL) return 0;
  for (size_t i = 0, at = 0; i < TENSORS; at += (size_t)(shapes[i][0] * shapes[i][1] * shapes[i][2]), i++)
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

static void ready(const trainer* t, uint64_t parameter); /* Weft */

/* Adds the gradients of a micro-batch to t->gradients, and returns its loss. The task: the sum of some
 * inputs. */
static float forward_backward(trainer* t, int rank, int micro_batch) {
  const float *b = t->parameters + t->offsets[0], *w = t->parameters + t->offsets[1];
  const float *w_out = t->parameters + t->offsets[2], *b_out = t->parameters + t->offsets[3];
  float *db = t->gradients + t->offsets[0], *dw = t->gradients + t->offsets[1];
  float *dw_out = t->gradients + t->offsets[2], *db_out = t->gradients + t->offsets[3];
  static float h[LAYERS + 1][BATCH][WIDTH], dh[BATCH][WIDTH];
  const int last = micro_batch + 1 == MICRO_BATCHES;
  float loss = 0;
  for (int n = 0; n < BATCH; n++) {
    const double seed =
        (double)((t->step * 64 + (uint64_t)rank) * MICRO_BATCHES + (uint64_t)micro_batch) * BATCH + n;
    for (int i = 0; i < WIDTH; i++) h[0][n][i] = (float)sin(seed * 78.2 + i * 37.7);
  }
  for (int l = 0; l < LAYERS; l++) {
    for (int n = 0; n < BATCH; n++) {
      for (int j = 0; j < WIDTH; j++) {
        float sum = b[l * WIDTH + j];
        for (int i = 0; i < WIDTH; i++) sum += w[(l * WIDTH + j) * WIDTH + i] * h[l][n][i];
        h[l + 1][n][j] = h[l][n][j] + (sum > 0 ? sum : 0);
      }
    }
  }
  memset(dh, 0, sizeof dh);
  for (int n = 0; n < BATCH; n++) {
    for (int k = 0; k < OUT; k++) {
      float error = b_out[k] - (h[0][n][k] + h[0][n][k + OUT]);
      for (int j = 0; j < WIDTH; j++) error += w_out[k * WIDTH + j] * h[LAYERS][n][j];
      loss += error * error / BATCH;
      error *= 2.0f / BATCH;
      db_out[k] += error;
      for (int j = 0; j < WIDTH; j++) {
        dw_out[k * WIDTH + j] += error * h[LAYERS][n][j];
        dh[n][j] += error * w_out[k * WIDTH + j];
      }
    }
  }
  if (last) ready(t, LAYERS + 2); /* Weft: the output's bias and weights */
  if (last) ready(t, LAYERS + 1); /* Weft */
  for (int l = LAYERS; l-- > 0;) {
    for (int n = 0; n < BATCH; n++) {
      float below[WIDTH];
      memcpy(below, dh[n], sizeof below);
      for (int j = 0; j < WIDTH; j++) {
        if (h[l + 1][n][j] <= h[l][n][j]) continue;
        db[l * WIDTH + j] += dh[n][j];
        for (int i = 0; i < WIDTH; i++) {
          dw[(l * WIDTH + j) * WIDTH + i] += dh[n][j] * h[l][n][i];
          below[i] += dh[n][j] * w[(l * WIDTH + j) * WIDTH + i];
        }
      }
      memcpy(dh[n], below, sizeof below);
    }
    if (last) ready(t, (uint64_t)l + 1); /* Weft: this layer's slice of the weights */
  }
  if (last) ready(t, 0); /* Weft: the biases of all layers */
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

/* The weights of each layer are a parameter, a slice of the stacked tensor. The small biases of all layers
 * are one parameter: so many small messages would cost more than they overlap. Momentum and the step number
 * have no gradients. create copies rank 0's values of all of them to the other ranks, so rank 0 alone reads
 * the checkpoint. */
static weft_reducer* make_reducer(weft_comm* comm, trainer* t) {
  static const int64_t whole[] = {PARAMETERS}, one[] = {1};
  static const uint64_t limits[] = {WIDTH * WIDTH * sizeof(float)}; /* a bucket for each slice */
  weft_param params[TENSORS + LAYERS + 1];
  char slices[LAYERS][32];
  uint64_t count = 0;
  for (size_t i = 0; i < TENSORS; i++) {
    const int64_t parts = i == 1 ? LAYERS : 1, elements = shapes[i][0] * shapes[i][1] * shapes[i][2] / parts;
    for (int64_t l = 0; l < parts; l++) {
      weft_param* const p = &params[count++];
      *p = (weft_param)WEFT_PARAM_INIT;
      if (parts > 1) snprintf(slices[l], sizeof slices[l], "%s.%d", names[i], (int)l);
      p->name = parts > 1 ? slices[l] : names[i];
      p->dtype = WEFT_DTYPE_F32;
      p->ndim = parts > 1 ? 2 : 3;
      p->shape = parts > 1 ? shapes[i] + 1 : shapes[i];
      p->gradient = t->gradients + t->offsets[i] + (size_t)(l * elements);
      p->parameter = t->parameters + t->offsets[i] + (size_t)(l * elements);
    }
  }
  params[count++] = (weft_param){.struct_size = sizeof(weft_param),
                                 .name = "momentum",
                                 .dtype = WEFT_DTYPE_F32,
                                 .ndim = 1,
                                 .shape = whole,
                                 .flags = WEFT_PARAM_STATE_ONLY,
                                 .parameter = t->momentum};
  params[count++] = (weft_param){.struct_size = sizeof(weft_param),
                                 .name = "step",
                                 .dtype = WEFT_DTYPE_U64,
                                 .ndim = 1,
                                 .shape = one,
                                 .flags = WEFT_PARAM_STATE_ONLY,
                                 .parameter = &t->step};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = count;
  options.mode = WEFT_GRADIENT_IN_PLACE;
  options.bucket_limits = limits;
  options.bucket_limit_count = 1;
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

/* A complete gradient is reduced while backward continues. */
static void ready(const trainer* t, uint64_t parameter) {
  check(weft_reducer_ready(t->reducer, parameter, NULL, NULL), t->reducer);
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
  t.reducer = make_reducer(comm, &t);
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.micro_batches = MICRO_BATCHES;
  /* ---- the training loop ---- */
  float loss = 0;
  for (int s = 0; s < steps; s++) {
    loss = 0;
    check(weft_reducer_begin(t.reducer, &begin), t.reducer); /* Weft */
    for (int micro_batch = 0; micro_batch < MICRO_BATCHES; micro_batch++)
      loss += forward_backward(&t, rank, micro_batch) / MICRO_BATCHES;
    check(weft_reducer_finish(t.reducer, NULL), t.reducer); /* Weft */
    update(&t);
  }
  uint32_t checksum = 2166136261u;
  for (size_t i = 0; i < PARAMETERS * sizeof(float); i++)
    checksum = (checksum ^ ((unsigned char*)t.parameters)[i]) * 16777619u;
  printf("rank %d: step %llu, loss %.4f, parameters %08x\n", rank, (unsigned long long)t.step, (double)loss,
         checksum);
  const int saved = rank != 0 || save(&t, argv[1]);
  weft_reducer_destroy(&t.reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  free(t.parameters);
  free(t.gradients);
  free(t.momentum);
  return saved ? 0 : 1;
}
