// weft_launch_query.
#include "capi/guard.h"
#include "environment/config.h"

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_launch_query(weft_launch_info* info, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(info);
    Launch launch;
    WEFT_TRY(process_launch(&launch));
    weft_launch_info out{};
    out.rank = launch.rank;
    out.size = launch.size;
    out.local_rank = launch.local_rank;
    out.local_size = launch.local_size;
    out.host_index = launch.host;
    out.host_count = launch.hosts;
    put_text(name(launch.launcher), out.launcher);
    return write_struct(out, "info", info);
  });
}

}  // extern "C"
