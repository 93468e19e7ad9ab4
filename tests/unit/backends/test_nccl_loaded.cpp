// Which NCCL is used in a process that has already loaded one. A loaded library stays loaded, so these cases
// have a program of their own.
#include <dlfcn.h>

#include <string>

#include "library.h"
#include "support/catch.h"
#include "support/fake_nccl/fake_nccl.h"

using namespace weft;

namespace {

template <class Function>
std::string file_of(Function* function) {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(function), &info);
  return info.dli_fname;
}

}  // namespace

TEST_CASE("a libnccl.so.2 that the process has loaded is used before the named file") {
  const std::string named = file_of(&fake_nccl_setup);
  std::shared_ptr<const nccl::Library> library;
  REQUIRE(nccl::load(named, &library).ok());
  CHECK(library->file == named);
  CHECK(file_of(library->ncclAllReduce) == named);
  REQUIRE(dlopen(WEFT_TEST_LOADED_NCCL, RTLD_NOW | RTLD_LOCAL) != nullptr);
  for (const std::string& file : {named, std::string("/nowhere/libnccl.so.2"), std::string()}) {
    INFO(file);
    const Status status = nccl::load(file, &library);
    INFO(status.text());
    REQUIRE(status.ok());
    CHECK(library->file == "libnccl.so.2");
    CHECK(file_of(library->ncclAllReduce) == WEFT_TEST_LOADED_NCCL);
  }
}
