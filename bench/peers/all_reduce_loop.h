/* The protocol of `weft bench all_reduce` for ranks started by MPI: every rank rewrites its buffer, all ranks
 * meet in a barrier, then the call is timed. The time of an iteration is the slowest rank's. Included by the
 * programs in this folder, which bench/systems.py builds; C99 and C++.
 * usage: mpirun ... PROGRAM [--iterations N] [--seconds S] BYTES...
 * N: calls of each size (20 to 5000, by size). S: limits the time of a size in seconds; a size whose first
 * calls are slow gets fewer calls, at least 20. Prints one JSON line for each size. */
#pragma once

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLength = 4099, kWarmup = 3, kFewest = 20 }; /* kLength: as in tools/weft/bench/pattern.h */

static float tile[2 * kLength];
static float sum[kLength];

static int number(int rank, uint64_t k) {
  return (int)(((k * 2654435761u + (uint64_t)rank * 40503u) >> 5) % 8);
}

static void make_tiles(int rank, int ranks) {
  for (int k = 0; k < kLength; ++k) {
    tile[k] = tile[k + kLength] = (float)number(rank, (uint64_t)k);
    for (int r = 0; r < ranks; ++r) sum[k] += (float)number(r, (uint64_t)k);
  }
}

static void rewrite(float* data, size_t count, size_t round) {
  for (size_t done = 0; done < count; done += kLength) {
    const size_t part = count - done < kLength ? count - done : kLength;
    memcpy(data + done, tile + round % kLength, part * sizeof *data);
  }
}

static int check(const float* data, size_t count, size_t round) {
  for (size_t i = 0; i < count; ++i) {
    if (data[i] != sum[(i + round) % kLength]) return 0;
  }
  return 1;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double quantile(const double* sorted, size_t count, double q) {
  return sorted[(size_t)(q * (double)(count - 1) + 0.5)] * 1e6;
}

/* The timed function: replaces data by the sum over the ranks. */
typedef void (*all_reduce_fn)(float* data, size_t count);

static size_t between(double least, double value, double most) {
  return (size_t)(value < least ? least : value > most ? most : value);
}

/* Returns how many calls fit into the seconds at the pace of the slowest rank's first ones. Equal on all
 * ranks. */
static size_t that_fit(size_t iterations, double seconds, double first_calls) {
  double slowest = first_calls / kWarmup;
  MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (seconds <= 0 || slowest <= 0) return iterations;
  return between(iterations < kFewest ? (double)iterations : kFewest, seconds / slowest, (double)iterations);
}

/* Options of the command line; zero: iterations by size, no time limit. */
struct limits {
  size_t iterations;
  double seconds;
};

static int measure(size_t bytes, int rank, struct limits limits, all_reduce_fn all_reduce) {
  const size_t count = bytes / sizeof(float) > 0 ? bytes / sizeof(float) : 1;
  size_t iterations =
      limits.iterations > 0 ? limits.iterations : between(kFewest, (double)(256 << 20) / (double)bytes, 5000);
  float* data = (float*)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  double* times = (double*)calloc(iterations, sizeof *times);
  if (data == NULL || times == NULL) return 0;
  int correct = 1;
  const double begin = MPI_Wtime();
  for (size_t round = 0; round < kWarmup + iterations; ++round) {
    if (round == kWarmup) iterations = that_fit(iterations, limits.seconds, MPI_Wtime() - begin);
    rewrite(data, count, round);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    all_reduce(data, count);
    const double end = MPI_Wtime();
    if (round >= kWarmup) times[round - kWarmup] = end - start;
    if (round == 0 || round + 1 == kWarmup + iterations) correct = check(data, count, round) && correct;
  }
  MPI_Allreduce(MPI_IN_PLACE, times, (int)iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &correct, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  qsort(times, iterations, sizeof *times, compare);
  if (rank == 0) {
    printf("{\"bytes\": %zu, \"median_us\": %.3f, \"p99_us\": %.3f, \"correct\": %s}\n", bytes,
           quantile(times, iterations, 0.5), quantile(times, iterations, 0.99), correct ? "true" : "false");
    fflush(stdout);
  }
  free(times);
  free(data);
  return correct;
}

/* Measures all sizes after MPI_Init. Returns 0 if every result was right. */
static int measure_all(int argc, char** argv, all_reduce_fn all_reduce) {
  struct limits limits = {0, 0};
  int rank = 0, ranks = 0, correct = 1, i = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  make_tiles(rank, ranks);
  for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
    if (strcmp(argv[i], "--iterations") == 0) limits.iterations = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--seconds") == 0) limits.seconds = strtod(argv[i + 1], NULL);
  }
  for (; i < argc; ++i) correct = measure(strtoull(argv[i], NULL, 10), rank, limits, all_reduce) && correct;
  return correct ? 0 : 1;
}
