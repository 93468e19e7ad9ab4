// The export of the mpi modules, libweft-mpi-openmpi.so and libweft-mpi-mpich.so.
#include "transport/backend.h"

#include "framed/connect.h"
#include "library.h"
#include "mpi_link.h"

namespace weft::mpi {
namespace {

Status probe(const Libraries&, std::string* detail) {
  WEFT_TRY(usable());
  *detail = version();
  return {};
}

Status connect(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  const bool natives = args.self != nullptr;
  return framed::connect_over(std::make_unique<MpiLink>(args.exchange, args.deadline, args.progress_thread,
                                                        natives, args.clock, args.log),
                              args, transport);
}

const Backend& backend() noexcept {
  static constexpr Backend kBackend = {
      .name = "mpi",
      .summary = "messages over the program's MPI library",
      .preference = 40,
      .find = probe,
      .make_transport = connect,
      .make_collectives = nullptr,
      .reachable = nullptr,
  };
  return kBackend;
}

// The backend mpi.native: mpi with the library's own collectives. It is never chosen automatically, because
// it guarantees less.
const Backend& native_backend() noexcept {
  static constexpr bool kNatives = true;
  static constexpr Backend kBackend = {
      .name = "mpi.native",
      .summary = "the MPI library's own collectives, where it has them for what is called",
      .preference = -1,
      .find = probe,
      .make_transport = connect,
      .make_collectives = nullptr,
      .reachable = nullptr,
      .self = &kNatives,
  };
  return kBackend;
}

}  // namespace
}  // namespace weft::mpi

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {weft::kBackendModuleAbi, &weft::mpi::backend(),
                                                 &weft::mpi::native_backend()};
