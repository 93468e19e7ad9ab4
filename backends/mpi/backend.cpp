// The mpi modules: what libweft-mpi-openmpi.so and libweft-mpi-mpich.so export.
#include "core/backend.h"

#include "frames/meet.h"
#include "library.h"
#include "mpi_link.h"

namespace weft::mpi {
namespace {

Status probe(std::string* detail) {
  WEFT_TRY(usable());
  *detail = version();
  return {};
}

Status connect(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  auto link =
      std::make_unique<MpiLink>(args.exchange, args.deadline, args.progress_thread, args.clock, args.log);
  return frames::meet_over(std::move(link), args, transport);
}

const Backend& backend() noexcept {
  static constexpr Backend kBackend = {
      .name = "mpi",
      .summary = "messages over the program's MPI library",
      .preference = 40,
      .probe = probe,
      .make_transport = connect,
      .make_collectives = nullptr,
      .reachable = nullptr,
  };
  return kBackend;
}

}  // namespace
}  // namespace weft::mpi

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {weft::kBackendModuleAbi, &weft::mpi::backend()};
