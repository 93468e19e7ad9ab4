#include "programs_driver.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstring>
#include <string_view>

namespace weft::cuda {
namespace {

struct Search {
  explicit Search(std::string_view stands_in, unsigned long long seen_before)
      : file(stands_in), seen(seen_before) {
    found[0] = 0;
  }
  const std::string_view file;  // a file that counts as the driver; empty: none
  const unsigned long long seen;
  unsigned long long loaded = 0;
  std::array<char, 4096> found;  // the file that the driver was loaded from; empty: not loaded
};

// Examines one loaded object of the process; a result other than 0 ends the search. The loader's lock is held
// meanwhile.
int look(dl_phdr_info* object, size_t /*size*/, void* data) {
  Search& search = *static_cast<Search*>(data);
  search.loaded = object->dlpi_adds;
  if (search.loaded == search.seen) return 1;
  const std::string_view path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  const bool is_driver = name.starts_with("libcuda.so");
  const bool stands_in = !search.file.empty() && (path == search.file || name == search.file);
  if (!(is_driver || stands_in) || path.size() >= search.found.size()) return 0;
  std::memcpy(search.found.data(), path.data(), path.size());
  search.found[path.size()] = 0;
  return is_driver ? 1 : 0;  // a replacement file is often the runtime, and the driver comes after it
}

}  // namespace

bool ProgramsDriver::find(const std::string& file) {
  if (found()) return true;
  Search search(file, seen_.load(std::memory_order_relaxed));
  (void)dl_iterate_phdr(look, &search);
  if (search.found[0] != 0) {
    void* const driver = dlopen(search.found.data(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
    void* const symbol = driver == nullptr ? nullptr : dlsym(driver, "cuPointerGetAttributes");
    attributes_of_.store(reinterpret_cast<decltype(&::cuPointerGetAttributes)>(symbol),
                         std::memory_order_release);
  }
  // A loaded file that is not the driver never becomes one.
  if (!found()) seen_.store(search.loaded, std::memory_order_relaxed);
  return found();
}

PointerInfo ask(decltype(&::cuPointerGetAttributes) attributes_of, const void* pointer) {
  unsigned int type = 0;
  unsigned int managed = 0;
  int device = 0;
  std::array<CUpointer_attribute, 3> wanted = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 3> values = {&type, &managed, &device};
  const CUresult asked = attributes_of(static_cast<unsigned int>(wanted.size()), wanted.data(), values.data(),
                                       reinterpret_cast<CUdeviceptr>(pointer));
  PointerInfo info;
  if (asked != CUDA_SUCCESS) return info;
  info.device = device;
  if (type == CU_MEMORYTYPE_HOST) info.place = MemoryPlace::kPinned;
  if (type == CU_MEMORYTYPE_DEVICE) info.place = MemoryPlace::kDevice;
  if (managed != 0) info.place = MemoryPlace::kManaged;
  return info;
}

}  // namespace weft::cuda
