/* A program that calls exit() with a live engine and an outstanding request keeps its exit code: the library
 * has no destructors that could run under its threads. Before that it checks that the library installed no
 * signal handler and that all threads of the library mask all signals. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

static int32_t gather(void* user_data, const void* mine, uint64_t size, void* all) {
  (void)user_data;
  memcpy(all, mine, (size_t)size);
  return 0;
}

/* Counts threads named weft-* that do not mask all ordinary signals. */
static int unmasked_threads(int* seen) {
  int wrong = 0;
  DIR* tasks = opendir("/proc/self/task");
  struct dirent* task;
  while (tasks != NULL && (task = readdir(tasks)) != NULL) {
    char path[300], line[200];
    int ours = 0;
    unsigned long long blocked = 0;
    FILE* status;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    status = fopen(path, "r");
    if (status == NULL) continue;
    while (fgets(line, sizeof line, status) != NULL) {
      if (strncmp(line, "Name:\tweft-", 11) == 0) ours = 1;
      if (strncmp(line, "SigBlk:", 7) == 0) blocked = strtoull(line + 7, NULL, 16);
    }
    fclose(status);
    if (!ours) continue;
    (*seen)++;
    for (int number = 1; number < 32; number++) {
      if (number != SIGKILL && number != SIGSTOP && !(blocked >> (number - 1) & 1)) wrong++;
    }
  }
  if (tasks != NULL) closedir(tasks);
  return wrong;
}

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_comm* comm = NULL;
  weft_request* request = NULL;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  int seen = 0;
  options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  options.size = 1;
  options.all_gather = gather;
  if (weft_context_create(NULL, &context, &error) || weft_comm_create(context, &options, &comm, &error)) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  for (int number = 1; number < 32; number++) {
    struct sigaction action;
    if (number == SIGKILL || number == SIGSTOP) continue;
    if (sigaction(number, NULL, &action) != 0 || action.sa_handler != SIG_DFL) {
      fprintf(stderr, "signal %d has a handler\n", number);
      return 2;
    }
  }
  /* A thread sets its name when it first runs: wait for the progress thread, at most 10 s. */
  for (int tries = 0; tries < 10000 && seen == 0; tries++) {
    const struct timespec moment = {0, 1000000};
    if (unmasked_threads(&seen) != 0) {
      fprintf(stderr, "a thread of the library does not mask all signals\n");
      return 3;
    }
    nanosleep(&moment, NULL);
  }
  if (seen == 0) {
    fprintf(stderr, "no thread of the library was seen\n");
    return 5;
  }
  if (weft_barrier(comm, NULL, &request) != WEFT_OK) return 4;
  exit(23);
}
