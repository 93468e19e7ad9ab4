/* weft/weft.h: the whole C ABI of Weft.
 *
 * core.h         status codes, errors, contexts, communicators, collectives, requests; the conventions
 * collectives.h  blocks of different sizes, sparse arrays, groups of calls
 * device.h       kinds of devices, streams
 * reducer.h      gradient synchronisation
 * hook.h         communication hooks
 * averager.h     averaging of parameters' values (local SGD)
 * recovery.h     continuing after a rank has failed
 * diagnostics.h  backends, communicator statistics, traces, flight records
 *
 * Separate: weft_mpi.h (communicators from MPI ones) and weft_transport.h (transports of the program). */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "averager.h"
#include "collectives.h"
#include "core.h"
#include "device.h"
#include "diagnostics.h"
#include "hook.h"
#include "recovery.h"
#include "reducer.h"

#endif /* WEFT_WEFT_H */
