// The accelerator over the CUDA runtime. Threads: any thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "device/accelerator.h"
#include "kernels.h"
#include "library.h"
#include "programs_driver.h"

namespace weft::cuda {

class Runtime final : public Accelerator {
 public:
  explicit Runtime(std::string file) : file_(std::move(file)) {}

  const char* name() const override { return "cuda"; }
  Status probe(std::string* detail) override;
  bool sees_memory() const override { return loaded() || programs_driver_.found(); }
  bool notice_use() override { return loaded() || programs_driver_.find(file_); }
  int device_count() const override { return cuda_.devices; }
  bool loads_lazily() const override { return cuda_.lazy; }

  Status current_device(int* device) override;
  Status within(int device, const std::function<Status()>& work) override;
  Status query_pointer(const void* pointer, PointerInfo* info) override;
  Status check_stream(int device, DeviceStream stream) override;
  Status check_captured(int device, DeviceStream stream) override;
  bool own_of_thread(DeviceStream stream) const override;
  bool is_legacy(DeviceStream stream) const override;
  Status create_stream(int device, DeviceStream* stream) override;
  void destroy_stream(int device, DeviceStream stream) override;
  Status create_event(int device, DeviceEvent* event) override;
  void destroy_event(int device, DeviceEvent event) override;
  Status record(int device, DeviceEvent event, DeviceStream stream) override;
  Status wait_event(int device, DeviceStream stream, DeviceEvent event) override;
  Status query(int device, DeviceEvent event, bool* done) override;
  Status allocate(int device, uint64_t size, std::byte** memory) override;
  void free(int device, std::byte* memory) override;
  Status allocate_pinned(int device, uint64_t size, std::byte** memory) override;
  void free_pinned(std::byte* memory) override;
  Status pin(int device, std::byte* memory, uint64_t size) override;
  void unpin(std::byte* memory) override;
  Status copy(int device, DeviceStream stream, std::byte* dst, const std::byte* src, uint64_t size) override;
  Status wait_value(int device, DeviceStream stream, uint32_t* word, uint32_t value) override;
  Status load_kernels(int device) override;
  Status copy_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) override;
  Status accumulate_pieces(int device, DeviceStream stream, const CopyPiecesArgs& args) override;
  Status fold(int device, DeviceStream stream, const FoldKernelArgs& args) override;
  Status squares(int device, DeviceStream stream, const SquaresKernelArgs& args) override;

 private:
  class Scope;
  // The context of each used device: its primary context, which all libraries of the process share.
  class Contexts {
   public:
    explicit Contexts(const Library& library) : cuda_(library) {}
    ~Contexts();
    Contexts(const Contexts&) = delete;
    Contexts& operator=(const Contexts&) = delete;
    CUcontext any();           // null: no device was used
    CUcontext of(int device);  // null: unavailable, so calls that need it will fail

   private:
    const Library& cuda_;
    std::mutex mutex_;
    std::map<int, CUcontext> known_;  // guarded by mutex_
  };
  bool loaded() const { return loaded_.load(std::memory_order_acquire); }
  Status check(const char* what, CUresult result) const;
  Status check_device(int device, DeviceStream stream);

  const std::string file_;
  std::mutex mutex_;    // held while the library is loaded
  bool tried_ = false;  // guarded by mutex_
  Status status_;       // guarded by mutex_
  std::atomic<bool> loaded_{false};
  Library cuda_;  // constant once loaded_
  ProgramsDriver programs_driver_;
  Contexts contexts_{cuda_};
  Kernels kernels_{cuda_};
};

}  // namespace weft::cuda
