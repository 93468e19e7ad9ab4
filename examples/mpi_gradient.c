/* An MPI program that trains a small network. The lines marked with W add Weft. Its gradients are then sent
 * in buckets while backward continues, through the named hook. Without Weft each gradient has an
 * MPI_Allreduce after backward.
 *   mpirun -n 4 mpi_gradient          with MPI_Allreduce
 *   mpirun -n 4 mpi_gradient weft [hook] [backend] */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft_mpi.h> /* W */

enum { INPUTS = 32, HIDDEN = 64, SAMPLES = 64, STEPS = 40, LAYERS = 2 };

static float w0[INPUTS * HIDDEN], w1[HIDDEN], g0[INPUTS * HIDDEN], g1[HIDDEN];
static float *const weights[] = {w0, w1}, *const gradients[] = {g0, g1};
static const int64_t sizes[] = {INPUTS * HIDDEN, HIDDEN};

static weft_reducer* reducer; /* W */

/* Called by backward as soon as a layer's gradient is complete, the last layer's first. */
static void gradient_ready(int layer) {
  if (reducer != NULL) weft_reducer_ready(reducer, (uint64_t)layer, gradients[layer], NULL); /* W */
}

/* Returns the mean squared error of this rank's samples; their target is a wave of the inputs. */
static double backward(const float* inputs) {
  float hidden[SAMPLES][HIDDEN], slope[SAMPLES];
  double loss = 0;
  memset(g0, 0, sizeof g0);
  memset(g1, 0, sizeof g1);
  for (int s = 0; s < SAMPLES; s++) {
    const float* in = inputs + s * INPUTS;
    float out = 0;
    for (int h = 0; h < HIDDEN; h++) {
      float sum = 0;
      for (int i = 0; i < INPUTS; i++) sum += in[i] * w0[i * HIDDEN + h];
      hidden[s][h] = tanhf(sum);
      out += hidden[s][h] * w1[h];
    }
    const float difference = out - sinf(3 * in[0] + in[1]);
    loss += difference * difference / SAMPLES;
    slope[s] = 2 * difference / SAMPLES;
    for (int h = 0; h < HIDDEN; h++) g1[h] += slope[s] * hidden[s][h];
  }
  gradient_ready(1);
  for (int s = 0; s < SAMPLES; s++) {
    for (int h = 0; h < HIDDEN; h++) {
      const float back = slope[s] * w1[h] * (1 - hidden[s][h] * hidden[s][h]);
      for (int i = 0; i < INPUTS; i++) g0[i * HIDDEN + h] += back * inputs[s * INPUTS + i];
    }
  }
  gradient_ready(0);
  return loss;
}

static weft_status attach(weft_context** context, weft_comm** comm, const char* hook_name,
                          const char* backend, weft_error* error) {
  const weft_param params[LAYERS] = {{.struct_size = sizeof(weft_param),
                                      .name = "w0",
                                      .dtype = WEFT_DTYPE_F32,
                                      .ndim = 1,
                                      .shape = &sizes[0],
                                      .parameter = w0}, /* W */
                                     {.struct_size = sizeof(weft_param),
                                      .name = "w1",
                                      .dtype = WEFT_DTYPE_F32,
                                      .ndim = 1,
                                      .shape = &sizes[1],
                                      .parameter = w1}}; /* W */
  weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
  weft_reducer_options options = {
      .struct_size = sizeof options, .params = params, .param_count = LAYERS}; /* W */
  weft_hook* hook = NULL;
  comm_options.backend = backend;
  weft_status status = weft_context_create(NULL, context, error); /* W */
  if (status == WEFT_OK) {
    status = weft_comm_create_from_mpi(*context, MPI_COMM_WORLD, &comm_options, comm, error); /* W */
  }
  if (status == WEFT_OK && hook_name != NULL) status = weft_hook_create(*context, hook_name, NULL, &hook);
  options.hook = hook;
  if (status == WEFT_OK) status = weft_reducer_create(*comm, &options, &reducer, error); /* W */
  weft_hook_destroy(&hook);
  return status;
}

int main(int argc, char* argv[]) {
  const char* const hook = argc > 2 ? argv[2] : NULL;
  const char* const backend = argc > 3 ? argv[3] : NULL;
  int rank = 0, size = 1, level = 0;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  weft_error error = WEFT_ERROR_INIT;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 0; i < INPUTS * HIDDEN; i++) w0[i] = 0.3f * sinf((float)i);
  for (int i = 0; i < HIDDEN; i++) w1[i] = 0.1f * cosf((float)i);
  if (argc > 1 && attach(&context, &comm, hook, backend, &error) != WEFT_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  float inputs[SAMPLES * INPUTS];
  for (int i = 0; i < SAMPLES * INPUTS; i++) inputs[i] = sinf((float)(i * (rank + 1)) * 0.7f);

  double first = 0, loss = 0;
  for (int step = 0; step < STEPS; step++) {
    if (reducer != NULL) weft_reducer_begin(reducer, NULL); /* W */
    loss = backward(inputs);
    if (reducer != NULL) {
      if (weft_reducer_finish(reducer, NULL) != WEFT_OK) { /* W: the gradients are the mean over all ranks */
        weft_reducer_error(reducer, &error);
        fprintf(stderr, "rank %d: %s\n", rank, error.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    } else {
      for (int l = 0; l < LAYERS; l++) {
        MPI_Allreduce(MPI_IN_PLACE, gradients[l], (int)sizes[l], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int64_t i = 0; i < sizes[l]; i++) gradients[l][i] /= (float)size;
      }
    }
    for (int l = 0; l < LAYERS; l++) {
      for (int64_t i = 0; i < sizes[l]; i++) weights[l][i] -= 0.05f * gradients[l][i];
    }
    MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    loss /= size;
    if (step == 0) first = loss;
  }

  float least[HIDDEN], most[HIDDEN];
  MPI_Allreduce(w1, least, HIDDEN, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(w1, most, HIDDEN, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  const int equal = memcmp(least, most, sizeof least) == 0;
  if (rank == 0) {
    printf("%s: loss %.4f -> %.4f, weights are %s on all %d ranks\n",
           reducer != NULL ? "weft" : "MPI_Allreduce", first, loss, equal ? "equal" : "not equal", size);
  }
  weft_reducer_destroy(&reducer); /* W */
  weft_comm_destroy(&comm);       /* W */
  weft_context_destroy(&context); /* W */
  MPI_Finalize();
  return equal && loss < first ? 0 : 1;
}
