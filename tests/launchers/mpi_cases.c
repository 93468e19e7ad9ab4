/* Exercises the mpi backend from an MPI program. test_mpi.py runs it under mpirun; it prints the results.
 *
 *   mpi_cases LEVEL PROGRESS WHAT
 *
 * LEVEL: none (MPI_Init is not called), single, funneled, serialized, multiple.
 *
 * PROGRESS: thread, caller.
 *
 * WHAT:
 * - sum: one sum.
 * - launcher: rank and size come from mpirun's variables, not from MPI.
 * - other-thread: another thread waits.
 * - finalize-first, finalize-before (a second sum), finalize-busy, leak: MPI_Finalize comes early or alone.
 * - part: all ranks but the last. many: many communicators.
 * - mismatch. silent: the last rank does not call.
 * - refused: rank 0's options are refused. nowhere: rank 0 passes no place for its communicator. no-size:
 *   options without struct_size.
 * - stopped, killed: the last rank, between two sums; the others print whether they got their answer in time.
 * - stuck: the last rank enters MPI's communicator creation after the deadline.
 * - exhausted, no-duplicate: MPI cannot create a communicator, for Weft's module or weft_mpi.h, and the
 *   program's error handler ends the job.
 * - given-up (mpi.native): the last rank stops after it has joined the sum and before it calls MPI's.
 * - traffic: MPI_Finalize while sums are in progress.
 * - disagree: only rank 0 names the backend mpi.
 * - afterwards: the communicator is created after MPI_Finalize.
 * - header: with LEVEL none, uses weft_mpi.h all the same.
 *
 * Environment: MODULES is the folder of Weft's modules. BACKEND replaces mpi. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft_mpi.h>

enum { kOpTimeoutMs = 2000, kInitTimeoutMs = 3000, kSlackMs = 4000 };

static weft_comm* comm;
static int rank, size;
static int late_in_mpi;  /* this rank is late inside MPI */
static int stops_in_mpi; /* this rank stops inside MPI, in its next sum */
static int makes_none;   /* MPI makes no communicator */
static int dups_none;

/* Reports an error as MPI's own calls do. */
static int fail(MPI_Comm of) {
  MPI_Comm_call_errhandler(of, MPI_ERR_NO_MEM);
  return MPI_ERR_NO_MEM;
}

/* Replaces the MPI library's function, also for Weft's module. */
int MPI_Comm_create_group(MPI_Comm of, MPI_Group group, int tag, MPI_Comm* made) {
  if (late_in_mpi) sleep(kInitTimeoutMs / 1000 + 1);
  if (makes_none) return fail(of);
  return PMPI_Comm_create_group(of, group, tag, made);
}

int MPI_Comm_dup(MPI_Comm of, MPI_Comm* made) {
  return dups_none ? fail(of) : PMPI_Comm_dup(of, made);
}

int MPI_Iallreduce(const void* src, void* dst, int count, MPI_Datatype type, MPI_Op op, MPI_Comm of,
                   MPI_Request* request) {
  if (stops_in_mpi) raise(SIGSTOP);
  return PMPI_Iallreduce(src, dst, count, type, op, of, request);
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static weft_status sum(weft_comm* over, int64_t wanted) {
  int64_t values[3000];
  for (int i = 0; i < 3000; i++) values[i] = 1;
  const weft_status status =
      weft_all_reduce(over, values, values, 3000, WEFT_DTYPE_I64, WEFT_OP_SUM, NULL, NULL);
  return status == WEFT_OK && values[2999] != wanted ? WEFT_ERR_INTERNAL : status;
}

static void say(const char* what, weft_status status, const weft_error* error) {
  printf("%s: %s: %s\n", what, weft_status_string(status), status == WEFT_OK ? "fine" : error->text);
}

static void told(const char* what, weft_status status) {
  weft_error error = WEFT_ERROR_INIT;
  if (status != WEFT_OK) weft_comm_error(comm, &error);
  say(what, status, &error);
}

/* The last rank does not join the second sum. */
static void without_the_last(const char* what) {
  const int last = rank == size - 1;
  const int pid = (int)getpid();
  int* const pids = calloc((size_t)size, sizeof *pids);
  MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
  told("before", sum(comm, size));
  fflush(stdout); /* so that the output survives a kill */
  /* The others do not need the last rank any more once it has received all values. */
  MPI_Gather(&pid, 1, MPI_INT, pids, 1, MPI_INT, size - 1, MPI_COMM_WORLD);
  if (last) raise(strcmp(what, "killed") == 0 ? SIGKILL : SIGSTOP);
  const int64_t begun = now_ms();
  told(what, sum(comm, size));
  if (!last) printf(now_ms() - begun < kOpTimeoutMs + kSlackMs ? "in time\n" : "too late\n");
  if (strcmp(what, "stopped") == 0) {
    if (rank == 0) kill(pids[size - 1], SIGCONT);
    free(pids);
    return;
  }
  /* MPI_Finalize would wait for the dead rank, and mpirun ends the others if one exits without it. */
  weft_comm_destroy(&comm);
  printf("the end of rank %d\n", rank);
  fflush(stdout);
  sleep(2);
  _exit(0);
}

/* The last rank joins the operation, and stops before it calls MPI's sum. When the others' calls return,
   their buffers must not be written to any more. */
static void given_up(void) {
  enum { kCount = 3000 };
  static int64_t values[kCount];
  const int last = rank == size - 1;
  const int pid = (int)getpid();
  int* const pids = calloc((size_t)size, sizeof *pids);
  MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
  told("before", sum(comm, size));
  fflush(stdout);
  stops_in_mpi = last;
  const int64_t begun = now_ms();
  for (int i = 0; i < kCount; i++) values[i] = 1;
  told("given-up", weft_all_reduce(comm, values, values, kCount, WEFT_DTYPE_I64, WEFT_OP_SUM, NULL, NULL));
  stops_in_mpi = 0;
  if (!last) printf(now_ms() - begun < kOpTimeoutMs + kSlackMs ? "in time\n" : "too late\n");
  for (int i = 0; i < kCount; i++) values[i] = 7;
  if (rank == 0) kill(pids[size - 1], SIGCONT);
  free(pids);
  weft_comm_destroy(&comm);
  MPI_Barrier(MPI_COMM_WORLD); /* lets MPI progress its pending operations */
  sleep(1);
  MPI_Barrier(MPI_COMM_WORLD);
  int wrong = 0;
  for (int i = 0; i < kCount; i++) wrong += values[i] != 7;
  printf(wrong == 0 ? "untouched\n" : "touched\n");
}

/* Calls MPI_Finalize while sums are in progress. Each sum ends, with success or an error. */
static void traffic(void) {
  enum { kSums = 8, kCount = 4 << 20 };
  int64_t* const values = calloc(kCount, sizeof *values);
  weft_request* requests[kSums];
  weft_status status = WEFT_OK;
  int good = 0, bad = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < kSums; i++) {
    weft_all_reduce(comm, values, values, kCount, WEFT_DTYPE_I64, WEFT_OP_SUM, NULL, &requests[i]);
  }
  weft_request_wait(requests[0], 5); /* in caller mode no operation would start otherwise */
  MPI_Finalize();
  for (int i = 0; i < kSums; i++) {
    const weft_status one = weft_request_wait(requests[i], 2 * kOpTimeoutMs);
    if (one != WEFT_OK) status = one;
    *(one == WEFT_OK ? &good : &bad) += 1;
    weft_request_release(&requests[i]);
  }
  told("traffic", status);
  printf("all %d sums have ended\n", good + bad);
  weft_comm_destroy(&comm);
  free(values);
}

static void* on_other_thread(void* status) {
  *(weft_status*)status = sum(comm, size);
  return NULL;
}

static void run(weft_context* context, const weft_comm_options* options, const char* what) {
  weft_status status = WEFT_OK;
  if (strcmp(what, "other-thread") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, on_other_thread, &status);
    pthread_join(thread, NULL);
    told(what, status);
    return;
  }
  if (strcmp(what, "many") == 0) {
    for (int i = 0; i < 40 && status == WEFT_OK; i++) {
      weft_comm* part = NULL;
      weft_error error = WEFT_ERROR_INIT;
      status = weft_comm_create_from_mpi(context, MPI_COMM_WORLD, options, &part, &error);
      if (status != WEFT_OK) {
        say(what, status, &error);
        return;
      }
      status = sum(part, size);
      weft_comm_destroy(&part);
    }
    told(what, status);
    return;
  }
  if (strcmp(what, "finalize-busy") == 0 && rank != size - 1) {
    int64_t value[3000] = {0};
    weft_request* request = NULL;
    weft_all_reduce(comm, value, value, 3000, WEFT_DTYPE_I64, WEFT_OP_SUM, NULL, &request);
    MPI_Finalize();
    status = weft_request_wait(request, WEFT_TIMEOUT_INFINITE);
    told(what, status);
    weft_request_release(&request);
    return;
  }
  if (strcmp(what, "given-up") == 0) {
    given_up();
    return;
  }
  if (strcmp(what, "traffic") == 0) {
    traffic();
    return;
  }
  if (strcmp(what, "stopped") == 0 || strcmp(what, "killed") == 0) {
    without_the_last(what);
    return;
  }
  if (strcmp(what, "mismatch") == 0) {
    int64_t value[8] = {0};
    status = weft_all_reduce(comm, value, value, rank == 0 ? 8 : 7, WEFT_DTYPE_I64, WEFT_OP_SUM, NULL, NULL);
    told(what, status);
    return;
  }
  const int silent = rank == size - 1 && strcmp(what, "silent") == 0;
  if (strcmp(what, "finalize-busy") != 0 && !silent) status = sum(comm, size);
  if (strncmp(what, "finalize", 8) == 0) MPI_Finalize();
  if (strcmp(what, "finalize-before") == 0) status = sum(comm, size);
  weft_comm_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  if (status == WEFT_OK && weft_comm_query(comm, &info) == WEFT_OK &&
      info.bytes_sent >= 3000 * sizeof(int64_t)) {
    printf("it went over %s by %s\n", info.backend, info.algorithm);
  }
  if (!silent) told(what, status);
}

int main(int argc, char* argv[]) {
  static const char* const names[] = {"single", "funneled", "serialized", "multiple"};
  static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                               MPI_THREAD_MULTIPLE};
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  MPI_Comm mpi_comm = MPI_COMM_WORLD;
  int level = 0, finalized = 0;
  if (argc != 4) return 2;
  for (int i = 0; i < 4; i++) {
    if (strcmp(argv[1], names[i]) == 0) MPI_Init_thread(&argc, &argv, levels[i], &level);
  }
  context_options.progress = strcmp(argv[2], "caller") == 0 ? WEFT_PROGRESS_CALLER : WEFT_PROGRESS_THREAD;
  context_options.module_path = getenv("MODULES");
  options.backend = getenv("BACKEND") != NULL ? getenv("BACKEND") : "mpi";
  options.op_timeout_ms = kOpTimeoutMs;
  if (weft_context_create(&context_options, &context, &error) != WEFT_OK) return 2;
  weft_status status;
  if (strcmp(argv[3], "afterwards") == 0) {
    MPI_Finalize();
    say("afterwards", weft_comm_create_from_mpi(context, mpi_comm, &options, &comm, &error), &error);
    status = weft_comm_create(context, &options, &comm, &error);
  } else if (strcmp(argv[3], "header") == 0) {
    status = weft_comm_create_from_mpi(context, mpi_comm, &options, &comm, &error);
  } else if (strcmp(argv[1], "none") == 0 || strcmp(argv[3], "launcher") == 0) {
    options.init_timeout_ms = 10000;
    status = weft_comm_create(context, &options, &comm, &error);
  } else {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(argv[3], "part") == 0) {
      MPI_Comm_split(MPI_COMM_WORLD, rank == size - 1, -rank, &mpi_comm);
      MPI_Comm_size(mpi_comm, &size);
    }
    if (strcmp(argv[3], "refused") == 0 && rank == 0) options.flags = (uint64_t)1 << 40;
    if (strcmp(argv[3], "no-size") == 0) options.struct_size = 0;
    if (strcmp(argv[3], "disagree") == 0 && rank == 0) options.backend = "mpi";
    if (strcmp(argv[3], "stuck") == 0) {
      options.init_timeout_ms = kInitTimeoutMs;
      late_in_mpi = rank == size - 1;
    }
    makes_none = strcmp(argv[3], "exhausted") == 0;
    dups_none = strcmp(argv[3], "no-duplicate") == 0;
    const int nowhere = strcmp(argv[3], "nowhere") == 0 && rank == 0;
    status = weft_comm_create_from_mpi(context, mpi_comm, &options, nowhere ? NULL : &comm, &error);
  }
  if (status == WEFT_OK) {
    run(context, &options, argv[3]);
  } else {
    say("create", status, &error);
  }
  if (strcmp(argv[3], "stuck") == 0) sleep(3); /* until MPI has created the communicator */
  if (strcmp(argv[3], "leak") != 0) {
    weft_comm_destroy(&comm);
    weft_context_destroy(&context);
  }
  if (strcmp(argv[1], "none") != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
  printf("the end of rank %d\n", rank);
  return 0; /* mpirun would end the other ranks at once */
}
