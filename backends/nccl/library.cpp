#include "library.h"

#include <utility>

#include "base/dl.h"
#include "base/text.h"

namespace weft::nccl {
namespace {

constexpr int kRegisters = 21900;
constexpr const char* kInstalled = "libnccl.so.2";

template <class Function>
Status find(const std::string& file, const char* symbol, Function* function) {
  void* address = nullptr;
  WEFT_TRY(load_symbol(file, symbol, &address));
  *function = reinterpret_cast<Function>(address);
  return {};
}

}  // namespace

std::string version_text(int version) {
  return cat(version / 10'000, ".", version % 10'000 / 100, ".", version % 100);
}

Status load(const std::string& file, std::shared_ptr<const Library>* library) {
  auto made = std::make_shared<Library>();
  made->file = file.empty() || is_loaded(kInstalled) ? kInstalled : file;
  WEFT_TRY(find(made->file, "ncclGetVersion", &made->ncclGetVersion)
               .with_prefix(cat("NCCL (", made->file, ") was ")));
  // Versions up to 2.8 use another encoding, in thousands; they are below the minimum either way.
  if (made->ncclGetVersion(&made->version) != ncclSuccess || made->version < kMinVersion) {
    return Status::error(Code::kUnavailable,
                         cat("NCCL is version ", version_text(made->version), " (", made->file,
                             "), and Weft needs ", version_text(kMinVersion), " or later"));
  }
#define WEFT_NCCL_FIND(name) \
  WEFT_TRY(find(made->file, #name, &made->name).with_prefix(cat("NCCL (", made->file, "): ")));
  WEFT_NCCL_FUNCTIONS(WEFT_NCCL_FIND)
#undef WEFT_NCCL_FIND
  (void)find(made->file, "ncclAlltoAll", &made->all_to_all).ok();
  (void)find(made->file, "ncclGather", &made->gather).ok();
  (void)find(made->file, "ncclScatter", &made->scatter).ok();
  const bool registers = made->version >= kRegisters &&
                         find(made->file, "ncclCommRegister", &made->comm_register).ok() &&
                         find(made->file, "ncclCommDeregister", &made->comm_deregister).ok() &&
                         find(made->file, "ncclMemFree", &made->mem_free).ok();
  if (registers) (void)find(made->file, "ncclMemAlloc", &made->mem_alloc).ok();
  *library = std::move(made);
  return {};
}

}  // namespace weft::nccl
