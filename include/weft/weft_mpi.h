/* Weft for programs that have an MPI communicator. Include <mpi.h> and link the program's own MPI library as
 * before: this header is all there is, C99 and C++, and libweft itself needs no MPI. The conventions are
 * weft.h's. Since 0.9 */
#ifndef WEFT_WEFT_MPI_H
#define WEFT_WEFT_MPI_H

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weft_all_gather_fn over the MPI_Comm that user_data points at. */
static inline int32_t weft_mpi_all_gather(void* user_data, const void* mine, uint64_t size, void* all) {
  MPI_Comm comm = *(MPI_Comm*)user_data;
  if (size > INT32_MAX) return 1;
  return MPI_Allgather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, comm) == MPI_SUCCESS ? 0 : 1;
}

/* MPI_Comm_dup whose errors are returned, whatever the program wants of comm's: MPI's default ends the job.
 */
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

/* The user_data of weft_comm_create_from_mpi, and its weft_all_gather_fn. */
struct weft_mpi_meeting {
  MPI_Comm comm;
  int calls;
};
static inline int32_t weft_mpi_meet(void* user_data, const void* mine, uint64_t size, void* all) {
  struct weft_mpi_meeting* meeting = (struct weft_mpi_meeting*)user_data;
  meeting->calls++;
  return weft_mpi_all_gather(&meeting->comm, mine, size, all);
}

/* Make a communicator of Weft's with the ranks of mpi_comm, in their order; collective over both. options:
 * NULL for defaults; its bootstrap, rank, size and all_gather are not looked at. The backend is chosen as
 * ever: the ranks of a host share memory whatever MPI does; options->backend = "mpi" sends everything over
 * MPI. Weft duplicates mpi_comm, and frees the duplicate before this returns: mpi_comm may be freed at any
 * time afterwards. What the backend "mpi" needs of MPI until weft_comm_destroy is a communicator of its own.
 * Returns what weft_comm_create returns; WEFT_ERR_UNAVAILABLE when MPI does not run or has no duplicate to
 * give, whatever error handler mpi_comm has; where Weft refuses one rank's arguments, the other ranks return
 * WEFT_ERR_MISMATCH and name it. MPI has no deadlines: while a rank does not come, or is gone, MPI_Comm_dup
 * and MPI_Allgather wait for it, whatever init_timeout_ms says. Threads: a thread that may call MPI.
 * Since 0.9 */
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
    /* One that holds not even itself is weft_comm_create's to refuse. */
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
    /* Refused before it met the others, who wait. The first round that Weft makes is of one uint64_t, and
     * this value of it says that a rank does not take part (lib/rendezvous/callback_exchange.h). */
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
