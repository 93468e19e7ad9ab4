/* Shows how a framework uses Weft under its autograd: a toy framework (layers, a tape, SGD) and its glue,
 * which is the middle third of this file. The model contains the difficult cases: a layer that is used twice,
 * and a layer that some ranks leave out in some steps. docs/tutorials/gradients.md walks through it.
 *   weft run -n 2 -- framework_glue */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

/* ---- The framework: parameters, and a tape of the layers that forward went through ----------------------
 */

enum { BATCH = 16, WIDTH = 24, STEPS = 60, MAX_OPS = 8 };
/* The index of a layer's weight; its bias follows. */
enum { FIRST = 0, MIDDLE = 2, EXTRA = 4, LAST = 6, PARAMS = 8 };

typedef struct {
  const char* name;
  int64_t shape[2]; /* a weight's inputs and outputs, a bias' outputs */
  int32_t ndim;
  uint32_t uses; /* in one forward pass */
  size_t count;
  float* value;
  float* gradient;
} param;

typedef struct {
  float value[BATCH][WIDTH];
  float gradient[BATCH][WIDTH];
} activation;

typedef struct {
  int layer, relu;
  activation *in, *out;
} op;

typedef struct {
  param params[PARAMS];
  op ops[MAX_OPS];
  activation activations[MAX_OPS + 1];
  int op_count, activation_count;
} model;

static float random_float(uint64_t* state) { /* in [-1, 1) */
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

static void add_layer(model* m, int layer, const char* weight, const char* bias, int in, int out,
                      uint32_t uses) {
  const param made[2] = {{weight, {in, out}, 2, uses, (size_t)(in * out), NULL, NULL},
                         {bias, {out, 0}, 1, uses, (size_t)out, NULL, NULL}};
  uint64_t state = (uint64_t)layer + 1; /* equal on all ranks */
  for (int i = 0; i < 2; i++) {
    param* p = &m->params[layer + i];
    *p = made[i];
    p->value = calloc(p->count, sizeof(float));
    p->gradient = calloc(p->count, sizeof(float));
    for (size_t k = 0; i == 0 && k < p->count; k++) p->value[k] = random_float(&state) / sqrtf((float)in);
  }
}

/* Runs one layer forward, and records it on the tape. */
static activation* apply(model* m, int layer, activation* x, int relu) {
  const param *w = &m->params[layer], *b = &m->params[layer + 1];
  activation* y = &m->activations[m->activation_count++];
  const op done = {layer, relu, x, y};
  m->ops[m->op_count++] = done;
  memset(y->gradient, 0, sizeof y->gradient);
  for (int n = 0; n < BATCH; n++) {
    for (int o = 0; o < (int)w->shape[1]; o++) {
      float sum = b->value[o];
      for (int i = 0; i < (int)w->shape[0]; i++) sum += x->value[n][i] * w->value[i * w->shape[1] + o];
      y->value[n][o] = relu && sum < 0 ? 0 : sum;
    }
  }
  return y;
}

/* Computes the gradients of one layer's parameters and of its input. */
static void differentiate(model* m, const op* at) {
  param *w = &m->params[at->layer], *b = &m->params[at->layer + 1];
  for (int n = 0; n < BATCH; n++) {
    for (int o = 0; o < (int)w->shape[1]; o++) {
      const float dy = at->relu && at->out->value[n][o] <= 0 ? 0 : at->out->gradient[n][o];
      b->gradient[o] += dy;
      for (int i = 0; i < (int)w->shape[0]; i++) {
        w->gradient[i * w->shape[1] + o] += at->in->value[n][i] * dy;
        at->in->gradient[n][i] += w->value[i * w->shape[1] + o] * dy;
      }
    }
  }
}

/* Returns the mean squared error of predicting a sine; resets the tape. with_extra: takes the branch. */
static float forward(model* m, uint64_t* state, int with_extra) {
  m->op_count = m->activation_count = 0;
  activation* x = &m->activations[m->activation_count++];
  float target[BATCH], loss = 0;
  memset(x, 0, sizeof *x);
  for (int n = 0; n < BATCH; n++) {
    x->value[n][0] = random_float(state);
    target[n] = sinf(3 * x->value[n][0]);
  }
  x = apply(m, FIRST, x, 1);
  x = apply(m, MIDDLE, x, 1);
  if (with_extra) x = apply(m, EXTRA, x, 1);
  x = apply(m, MIDDLE, x, 1); /* the second use of its weights */
  x = apply(m, LAST, x, 0);
  for (int n = 0; n < BATCH; n++) {
    const float error = x->value[n][0] - target[n];
    loss += error * error / BATCH;
    x->gradient[n][0] = 2 * error / BATCH;
  }
  return loss;
}

/* ---- The glue -------------------------------------------------------------------------------------------
 */

typedef struct {
  weft_context* context;
  weft_comm* comm;
  weft_reducer* reducer;
  int32_t rank, size;
  int failed;
} glue;

/* Prints the first error; later calls do nothing. */
static int worked(glue* g, weft_status status, const char* call) {
  weft_error error = WEFT_ERROR_INIT;
  if (status == WEFT_OK) return !g->failed;
  if (!g->failed && g->reducer != NULL) weft_reducer_error(g->reducer, &error);
  if (!g->failed) fprintf(stderr, "%s: %s: %s\n", call, weft_status_string(status), error.text);
  g->failed = 1;
  return 0;
}

/* Declares the model's parameters to Weft. Their names, shapes and uses are equal on all ranks. */
static void glue_attach(glue* g, model* m) {
  weft_param params[PARAMS];
  const uint64_t limits[] = {1024, 4096}; /* so that even this model has several buckets */
  for (int i = 0; i < PARAMS; i++) {
    const weft_param empty = WEFT_PARAM_INIT;
    params[i] = empty;
    params[i].name = m->params[i].name;
    params[i].dtype = WEFT_DTYPE_F32;
    params[i].ndim = m->params[i].ndim;
    params[i].shape = m->params[i].shape;
    params[i].gradient = m->params[i].gradient; /* for results, even if this rank left the layer out */
    params[i].parameter = m->params[i].value;   /* create copies rank 0's to all ranks */
    params[i].uses = m->params[i].uses;
  }
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = PARAMS;
  options.bucket_limits = limits;
  options.bucket_limit_count = 2;
  options.flags = WEFT_REDUCER_ABSENT;
  worked(g, weft_reducer_create(g->comm, &options, &g->reducer, NULL), "weft_reducer_create");
}

/* Called before backward: parameters that are not on the tape will have no gradient on this rank. */
static void glue_begin(glue* g, const model* m) {
  uint64_t absent[PARAMS], count = 0;
  worked(g, weft_reducer_begin(g->reducer, NULL), "weft_reducer_begin");
  for (uint64_t i = 0; i < PARAMS; i++) {
    int used = 0;
    for (int k = 0; k < m->op_count; k++) used |= m->ops[k].layer == (int)i || m->ops[k].layer + 1 == (int)i;
    if (!used) absent[count++] = i;
  }
  if (!g->failed) worked(g, weft_reducer_absent(g->reducer, absent, count), "weft_reducer_absent");
}

/* Called in backward, whenever a layer has added to its gradients. For a layer that is used twice, the first
 * call is only counted. A bucket that becomes full is sent while backward continues. */
static void glue_ready(glue* g, int layer) {
  for (uint64_t i = (uint64_t)layer; i < (uint64_t)layer + 2 && !g->failed; i++) {
    worked(g, weft_reducer_ready(g->reducer, i, NULL, NULL), "weft_reducer_ready");
  }
}

/* Waits for the parameter's averaged gradient, which may arrive before others. For the optimiser. */
static int glue_wait(glue* g, uint64_t i) {
  return !g->failed && worked(g, weft_reducer_wait_param(g->reducer, i, 0), "weft_reducer_wait_param");
}

static void glue_finish(glue* g) {
  if (!g->failed) worked(g, weft_reducer_finish(g->reducer, NULL), "weft_reducer_finish");
}

/* ---- Training -------------------------------------------------------------------------------------------
 */

static float train_step(glue* g, model* m, uint64_t* data, int step) {
  for (int i = 0; i < PARAMS; i++) memset(m->params[i].gradient, 0, m->params[i].count * sizeof(float));
  /* No rank, some ranks, or all ranks take the branch. */
  const float loss = forward(m, data, (step + g->rank) % 3 == 0);
  glue_begin(g, m);
  for (int k = m->op_count; k-- > 0;) {
    differentiate(m, &m->ops[k]);
    glue_ready(g, m->ops[k].layer);
  }
  /* The last layers' gradients are sent first, so their parameters are stepped first. */
  for (uint64_t i = PARAMS; i-- > 0;) {
    param* p = &m->params[i];
    if (!glue_wait(g, i)) return loss;
    for (size_t k = 0; k < p->count; k++) p->value[k] -= 0.1f * p->gradient[k];
  }
  glue_finish(g);
  return loss;
}

/* Returns 1 if all ranks have the same weights. */
static int replicas_agree(glue* g, const model* m) {
  double sums[2] = {0, 0};
  for (int i = 0; i < PARAMS; i++) {
    for (size_t k = 0; k < m->params[i].count; k++) sums[0] += m->params[i].value[k] * (double)(k + 1);
  }
  sums[1] = -sums[0];
  const weft_status status = weft_all_reduce(g->comm, sums, sums, 2, WEFT_DTYPE_F64, WEFT_OP_MAX, NULL, NULL);
  return worked(g, status, "weft_all_reduce") && sums[0] == -sums[1];
}

int main(void) {
  glue g = {0};
  weft_error error = WEFT_ERROR_INIT;
  model* m = calloc(1, sizeof *m);
  add_layer(m, FIRST, "first.weight", "first.bias", 1, WIDTH, 1);
  add_layer(m, MIDDLE, "middle.weight", "middle.bias", WIDTH, WIDTH, 2);
  add_layer(m, EXTRA, "extra.weight", "extra.bias", WIDTH, WIDTH, 1);
  add_layer(m, LAST, "last.weight", "last.bias", WIDTH, 1, 1);
  if (weft_context_create(NULL, &g.context, &error) != WEFT_OK ||
      weft_comm_create(g.context, NULL, &g.comm, &error) != WEFT_OK) {
    fprintf(stderr, "%s: %s\n", weft_status_string(error.code), error.text);
    return 1;
  }
  weft_comm_rank(g.comm, &g.rank);
  weft_comm_size(g.comm, &g.size);
  glue_attach(&g, m);
  uint64_t data = 100 + (uint64_t)g.rank; /* every rank has data of its own */
  float first = 0, last = 0;
  for (int step = 0; step < STEPS && !g.failed; step++) {
    const float loss = train_step(&g, m, &data, step);
    if (step < 5) first += loss / 5;
    if (step >= STEPS - 5) last += loss / 5;
  }
  const int agree = !g.failed && replicas_agree(&g, m);
  if (!g.failed)
    printf("rank %d of %d: loss %.3f, then %.3f; replicas %s\n", (int)g.rank, (int)g.size, first, last,
           agree ? "agree" : "differ");
  weft_reducer_destroy(&g.reducer);
  weft_comm_destroy(&g.comm);
  weft_context_destroy(&g.context);
  for (int i = 0; i < PARAMS; i++) free(m->params[i].value), free(m->params[i].gradient);
  free(m);
  return agree && last < first / 2 ? 0 : 1;
}
