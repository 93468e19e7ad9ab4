// Loading NCCL: the fake, and the real library if meson has found its wheel (it needs no GPU for that).
#include <dlfcn.h>

#include <string>

#include "library.h"
#include "support/catch.h"
#include "support/fake_nccl/fake_nccl.h"

using namespace weft;

namespace {

std::string fake_file() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&fake_nccl_setup), &info);
  return info.dli_fname;
}

}  // namespace

TEST_CASE("versions of NCCL are printed as NVIDIA prints them") {
  CHECK(nccl::version_text(21403) == "2.14.3");
  CHECK(nccl::version_text(23203) == "2.32.3");
}

TEST_CASE("a library that is too old, missing, or no NCCL is refused") {
  std::shared_ptr<const nccl::Library> library;
  REQUIRE(nccl::load(fake_file(), &library).ok());
  CHECK(library->all_to_all != nullptr);
  CHECK(library->registers());
  fake_nccl_version(nccl::kMinVersion - 1);
  Status status = nccl::load(fake_file(), &library);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.text().find("needs 2.14.3 or later") != std::string::npos);
  fake_nccl_version(nccl::kMinVersion);
  CHECK(nccl::load(fake_file(), &library).ok());
  CHECK(!library->registers());  // not before 2.19
  fake_nccl_version(0);
  status = nccl::load("libm.so.6", &library);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.text().find("libm.so.6 has no symbol ncclGetVersion") != std::string::npos);
  CHECK(nccl::load("/nowhere.so", &library).code() == Code::kUnavailable);
}

#ifdef WEFT_REAL_NCCL
TEST_CASE("the real NCCL exports what Weft calls") {
  std::shared_ptr<const nccl::Library> library;
  const Status status = nccl::load(WEFT_REAL_NCCL, &library);
  INFO(status.text());
  REQUIRE(status.ok());
  CHECK(library->version >= nccl::kMinVersion);
  CHECK((library->all_to_all != nullptr) == (library->version >= 22800));
  CHECK(library->registers() == (library->version >= 21900));
}
#endif
