/* weft/weft.h: the whole C ABI of Weft.
 *
 * Status codes, errors, contexts, communicators, collectives, requests, and the conventions: core.h.
 * Collectives with blocks of different sizes, sparse arrays, groups of calls: collectives.h.
 * Kinds of devices, streams: device.h.
 * Gradient synchronisation: reducer.h.
 * Communication hooks: hook.h.
 * Averaging of parameters' values (local SGD): averager.h.
 * How a job continues after a rank has failed: recovery.h.
 * Backends, communicator statistics, traces, flight records: diagnostics.h.
 *
 * Two more headers are included separately: weft_mpi.h (communicators from MPI communicators) and
 * weft_transport.h (transports of the program). */
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
