// Which backends and hooks there are: those compiled in (a table that meson generates from the folders) and
// the modules that are loaded at run time. The only file that knows them all.
#pragma once

#include <weft/weft_transport.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/accelerator.h"
#include "core/backend.h"
#include "core/hook.h"
#include "rendezvous/resolve.h"

namespace weft {

struct BackendEntry {
  std::string name;
  bool is_module = false;
  const Backend* backend = nullptr;  // null: the module could not be loaded
  Status status;                     // why not
};

// Threads: any thread.
class Registry {
 public:
  // module_path: folder of libweft-<name>.so; empty: "weft" beside libweft.so. Loads every module once;
  // modules are never unloaded.
  explicit Registry(const std::string& module_path, Libraries libraries = {});

  // What buffers of WEFT_DEVICE_CUDA take; null where there is no module, because of the status. library: see
  // AcceleratorModule.
  static std::shared_ptr<Accelerator> load_accelerator(const std::string& module_path,
                                                       const std::string& library, Status* status);

  const std::deque<BackendEntry>& backends() const { return backends_; }
  const BackendEntry* find(const std::string& name) const;
  // The program's own. The table's texts outlive the registry. No other call is running.
  Status add(const weft_transport& table);
  // Ok and what it will use, or kUnavailable and why.
  Status probe(const BackendEntry& entry, std::string* detail) const;
  std::string names() const;  // "loopback, shm": for error texts
  Measurements& measurements() const { return *measurements_; }
  const Libraries& libraries() const { return libraries_; }
  const Resolver& resolver() const { return resolver_; }

  static const HookFactory* find_hook(const std::string& name);
  // A built-in hook; around args.inner if it wraps, by default around allreduce. kArg naming what is wrong.
  static Status make_hook(const std::string& name, HookArgs args, std::shared_ptr<Hook>* hook);
  // The hook of that Hook::name(): "fp16(order=ddp)[allreduce]". args: but options and inner.
  static Status make_hook_again(std::string_view full_name, const HookArgs& args,
                                std::shared_ptr<Hook>* hook);
  static std::string hook_names();

 private:
  void compose(const char* name, const char* summary, int preference, const char* local, const char* across);

  const Libraries libraries_;
  const Resolver resolver_;
  const std::unique_ptr<Measurements> measurements_;
  std::deque<BackendEntry> backends_;
  std::vector<std::unique_ptr<const Backend>> composed_;  // what entries point at
  std::deque<weft_transport> own_;
  std::deque<std::string> texts_;  // of what add composes
};

}  // namespace weft
