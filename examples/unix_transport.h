/* A custom transport, over Unix sockets between the processes of one host. */
#ifndef UNIX_TRANSPORT_H
#define UNIX_TRANSPORT_H

#include <weft/weft_transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns its table, for weft_context_add_transport: backend "unix". */
const weft_transport* unix_transport(void);

#ifdef __cplusplus
}
#endif
#endif
