/* weft/weft_mpi.h: communicators for programs that have an MPI communicator.
 *
 * Everything is in this header (C99 and C++), which includes <mpi.h>: the program links its own MPI library,
 * and libweft needs none. The conventions of core.h apply. Since 0.9 */
#ifndef WEFT_WEFT_MPI_H
#define WEFT_WEFT_MPI_H

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gathers over the MPI_Comm to which user_data points: a weft_all_gather_fn. Since 0.9 */
static inline int32_t weft_mpi_all_gather(void* user_data, const void* mine, uint64_t size, void* all) {
  MPI_Comm comm = *(MPI_Comm*)user_data;
  if (size > INT32_MAX) return 1;
  return MPI_Allgather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, comm) == MPI_SUCCESS ? 0 : 1;
}

/* Calls MPI_Comm_dup so that errors are returned, whatever error handler comm has (MPI's default ends the
 * job). Internal. */
static inline int weft_mpi_dup(MPI_Comm comm, MPI_Comm* made) {
  MPI_Errhandler programs;
  int error = MPI_Comm_get_errhandler(comm, &programs);
  if (error != MPI_SUCCESS) return error;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  error = MPI_Comm_dup(comm, made);
  MPI_Comm_set_errhandler(comm, programs);
  MPI_Errhandler_free(&programs);
  return error;
}

/* user_data of weft_mpi_meet. Internal. */
struct weft_mpi_meeting {
  MPI_Comm comm; /* a duplicate of the program's communicator */
  int calls;     /* exchanges so far */
};
/* Gathers for weft_comm_create_from_mpi, and counts the calls. Internal. */
static inline int32_t weft_mpi_meet(void* user_data, const void* mine, uint64_t size, void* all) {
  struct weft_mpi_meeting* meeting = (struct weft_mpi_meeting*)user_data;
  meeting->calls++;
  return weft_mpi_all_gather(&meeting->comm, mine, size, all);
}

/* Creates a communicator with the ranks of mpi_comm, in their order. Collective over mpi_comm, which may be
 * freed afterwards: Weft uses a duplicate and frees it before this returns (the backend "mpi" has its own
 * communicator until weft_comm_destroy). MPI has no deadlines: while a rank is absent, MPI_Comm_dup and
 * MPI_Allgather wait for it, whatever init_timeout_ms is.
 * options: NULL for defaults; bootstrap, rank, size, store and all_gather are ignored. The backend is chosen
 * as by weft_comm_create: ranks of a host share memory; backend "mpi" sends everything over MPI.
 * Returns: as weft_comm_create; WEFT_ERR_UNAVAILABLE if MPI is not running or MPI_Comm_dup fails. If Weft
 * refuses one rank's arguments the other ranks return WEFT_ERR_MISMATCH and name it.
 * Ownership: the caller destroys *comm. Threads: a thread that may call MPI. Since 0.9 */
static inline weft_status weft_comm_create_from_mpi(weft_context* context, MPI_Comm mpi_comm,
                                                    const weft_comm_options* options, weft_comm** comm,
                                                    weft_error* error) {
  weft_comm_options mine = WEFT_COMM_OPTIONS_INIT;
  struct weft_mpi_meeting meeting = {MPI_COMM_NULL, 0};
  int running = 0, ended = 0, rank = 0, size = 0;
  weft_status status;
  if (comm != NULL) *comm = NULL;
  if (MPI_Initialized(&running) != MPI_SUCCESS || MPI_Finalized(&ended) != MPI_SUCCESS || !running || ended ||
      weft_mpi_dup(mpi_comm, &meeting.comm) != MPI_SUCCESS) {
    if (error != NULL && error->struct_size >= offsetof(weft_error, text) + sizeof error->text) {
      error->code = WEFT_ERR_UNAVAILABLE;
      strcpy(error->text, !running ? "MPI is not initialised"
                          : ended  ? "the program has called MPI_Finalize"
                                   : "MPI_Comm_dup fails");
    }
    return WEFT_ERR_UNAVAILABLE;
  }
  MPI_Comm_set_errhandler(meeting.comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(meeting.comm, &rank);
  MPI_Comm_size(meeting.comm, &size);
  if (options != NULL) {
    memcpy(&mine, options, options->struct_size < sizeof mine ? options->struct_size : sizeof mine);
    /* weft_comm_create refuses a struct_size that is too small. */
    mine.struct_size = options->struct_size < sizeof(size_t) ? options->struct_size : sizeof mine;
  }
  mine.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  mine.rank = rank;
  mine.size = size;
  mine.store = NULL;
  mine.all_gather = weft_mpi_meet;
  mine.all_gather_user_data = &meeting;
  status = weft_comm_create(context, &mine, comm, error);
  if (status != WEFT_OK && meeting.calls == 0) {
    /* This rank was refused before its first gather, in which the others wait. That gather is of one
     * uint64_t, and this value reports that a rank does not take part (lib/rendezvous/callback_exchange.h).
     */
    uint64_t refused = UINT64_MAX;
    uint64_t* const all = (uint64_t*)malloc((size_t)size * sizeof refused);
    if (all != NULL)
      MPI_Allgather(&refused, sizeof refused, MPI_BYTE, all, sizeof refused, MPI_BYTE, meeting.comm);
    free(all);
  }
  MPI_Comm_free(&meeting.comm);
  return status;
}

#ifdef __cplusplus
}
#endif

#endif /* WEFT_WEFT_MPI_H */
