// The export of the ucx module, libweft-ucx.so.
#include "backend.h"

#include "base/text.h"
#include "framed/connect.h"
#include "library.h"
#include "link.h"

namespace weft::ucx {
namespace {

Status probe(const Libraries&, std::string* detail) {
  Log silent;
  const LogScope log_scope(silent);
  ContextPtr context;
  WEFT_TRY(open_context(2, &context));
  const std::string found = devices(context.get());
  if (found.empty())
    return Status::error(
        Code::kUnavailable,
        cat(version(), " finds no device that it may use (check WEFT_UCX_TLS and WEFT_UCX_NET_DEVICES)"));
  *detail = cat(version(), " over ", found);
  return {};
}

Status connect(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  return framed::connect_over(std::make_unique<UcxLink>(args.exchange.size(), args.clock, args.log), args,
                              transport);
}

}  // namespace

const Backend& backend() noexcept {
  static constexpr Backend kBackend = {
      .name = "ucx",
      .summary = "messages over UCX, between hosts and inside one",
      .preference = 50,
      .find = probe,
      .make_transport = connect,
      .make_collectives = nullptr,
      .reachable = nullptr,
  };
  return kBackend;
}

}  // namespace weft::ucx

extern "C" __attribute__((visibility("default"))) const weft::BackendModule weft_backend_module;
const weft::BackendModule weft_backend_module = {weft::kBackendModuleAbi, &weft::ucx::backend()};
