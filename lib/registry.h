// The available backends and hooks: compiled-in ones (a table that meson generates from the folders) and
// modules loaded at run time. Only the registry knows them all.
#pragma once

#include <weft/weft_transport.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/accelerator.h"
#include "hook/hook.h"
#include "rendezvous/resolve.h"
#include "transport/backend.h"

namespace weft {

struct BackendEntry {
  std::string name;
  bool is_module = false;
  const Backend* backend = nullptr;  // null: the module could not be loaded
  Status status;                     // why the module could not be loaded
};

// Threads: any thread.
class Registry {
 public:
  // module_path: folder of libweft-<name>.so; empty: "weft" beside libweft.so. Modules are loaded where they
  // are first needed, all together, because their libraries take milliseconds. They are never unloaded.
  explicit Registry(const std::string& module_path, Libraries libraries = {});

  // Loads the accelerator for buffers of WEFT_DEVICE_CUDA. Returns null if there is no module, with the
  // reason in *status. library: see AcceleratorModule.
  static std::shared_ptr<Accelerator> load_accelerator(const std::string& module_path,
                                                       const std::string& library, Status* status);

  // The backends without modules. Loads nothing.
  const std::deque<BackendEntry>& built_in() const { return built_in_; }
  // All backends, those of built_in() first. Loads the modules.
  const std::deque<BackendEntry>& backends() const;
  // Loads the modules unless the backend is built in.
  const BackendEntry* find(const std::string& name) const;
  // Adds a transport of the program. The table's strings must outlive the registry. No other call may be
  // running.
  Status add(const weft_transport& table);
  // Returns ok with a description in *detail, or kUnavailable with the reason.
  Status probe(const BackendEntry& entry, std::string* detail) const;
  std::string names() const;  // "loopback, shm": for error texts
  Measurements& measurements() const { return *measurements_; }
  const Libraries& libraries() const { return libraries_; }
  const Resolver& resolver() const { return resolver_; }

  static const HookFactory* find_hook(const std::string& name);
  // Creates a built-in hook, around args.inner if it wraps another hook (default: allreduce). kArg states
  // what is invalid.
  static Status make_hook(const std::string& name, HookArgs args, std::shared_ptr<Hook>* hook);
  // Creates the hook with a given Hook::name(): "fp16(order=ddp)[allreduce]". options and inner of args are
  // ignored.
  static Status make_hook_again(std::string_view full_name, const HookArgs& args,
                                std::shared_ptr<Hook>* hook);
  static std::string hook_names();

 private:
  void load_modules() const;
  void compose(const char* name, const char* summary, int preference, const char* local,
               const char* across) const;

  const std::string module_path_;
  const Libraries libraries_;
  const Resolver resolver_;
  const std::unique_ptr<Measurements> measurements_;
  std::deque<BackendEntry> built_in_;
  // Written by load_modules, once, and by add.
  mutable std::once_flag loaded_;
  mutable std::deque<BackendEntry> backends_;
  mutable std::vector<std::unique_ptr<const Backend>> composed_;  // the backends that entries point at
  std::deque<weft_transport> own_;
  std::deque<std::string> texts_;  // names and summaries that add creates
};

}  // namespace weft
