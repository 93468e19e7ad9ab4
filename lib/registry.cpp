#include "registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/dl.h"
#include "base/guard.h"
#include "base/text.h"
#include "base/unwinding.h"
#include "coll/hierarchical/hierarchical.h"
#include "environment/config.h"
#include "environment/variables.h"
#include "framed/connect.h"
#include "framed/custom_link.h"
#include "mpi_flavour.h"

#define WEFT_BACKEND(name)  \
  namespace weft::name {    \
  const Backend& backend(); \
  }
#define WEFT_HOOK(name)           \
  namespace weft::hook_##name {   \
    const HookFactory& factory(); \
  }
#include "registry_table.h"
#undef WEFT_BACKEND
#undef WEFT_HOOK

namespace weft {
namespace {

#define WEFT_BACKEND(name) &name::backend,
#define WEFT_HOOK(name)
const Backend& (*const kBackends[])() = {
#include "registry_table.h"
};
#undef WEFT_BACKEND
#undef WEFT_HOOK

#define WEFT_BACKEND(name)
#define WEFT_HOOK(name) &hook_##name::factory,
const HookFactory& (*const kHooks[])() = {
#include "registry_table.h"
};
#undef WEFT_BACKEND
#undef WEFT_HOOK

std::unique_ptr<Measurements> measurements_of_process() {
  return std::make_unique<Measurements>(process_settings().shm_thresholds);
}

// Backends that need an external library and are loaded if they are installed.
struct Module {
  const char* name;
  std::vector<EnvironmentVariable> environment;  // set while its library is loaded
};
std::vector<Module> modules() {
  // UCX patches mmap, munmap, mremap and the allocator of the whole process when it is loaded, unless these
  // variables prevent it. The patches serve caches of registered memory, which this backend does not use.
  return {{"ucx",
           {{"UCX_MEM_EVENTS", "n"},
            {"UCX_MEM_MMAP_HOOK_MODE", "none"},
            {"UCX_MEM_MALLOC_HOOKS", "n"},
            {"UCX_MEM_MALLOC_RELOC", "n"}}},
          {"nccl", {}}};
}

std::string module_folder(const std::string& module_path) {
  return module_path.empty() ? folder_of_this_library() + "/" WEFT_MODULES_NAME : module_path;
}

Status other_version(const std::string& path, uint32_t abi, uint32_t wanted) {
  return Status::error(Code::kUnavailable,
                       cat(path, " belongs to another version of Weft (module interface ", abi,
                           ", this library has ", wanted, "): install modules and library of one version"));
}

// file: "ucx" for libweft-ucx.so.
BackendEntry load_module(const std::string& folder, const Module& wanted, const std::string& file,
                         const Backend** variant = nullptr) {
  BackendEntry entry;
  entry.name = wanted.name;
  entry.is_module = true;
  const std::string path = cat(folder, "/libweft-", file, ".so");
  const BackendModule* module = nullptr;
  if (file_exists(path) && !is_loaded(path)) {
    const TemporaryEnvironment environment(wanted.environment);
    entry.status = load_symbol(path, kBackendModuleSymbol, &module);
  } else {
    entry.status = load_symbol(path, kBackendModuleSymbol, &module);
  }
  if (!entry.status.ok()) return entry;
  if (module->abi != kBackendModuleAbi) {
    entry.status = other_version(path, module->abi, kBackendModuleAbi);
    return entry;
  }
  module->prepare();
  entry.backend = module->backend;
  if (variant != nullptr) *variant = module->variant;
  return entry;
}

// An exception of a module is the reason why its backend is not available.
Status probe_guarded(const Backend& backend, std::string* detail, const Libraries& libraries) {
  return guarded([&] { return backend.probe(detail, libraries); });
}

// Returns null if there is none.
const BackendEntry* entry_of(const std::deque<BackendEntry>& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const BackendEntry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

// Loads the module for the MPI library of this process.
BackendEntry load_mpi(const std::string& folder, const Backend** variant) {
  const auto path = [&](const std::string& flavour) { return cat(folder, "/libweft-mpi-", flavour, ".so"); };
  BackendEntry entry;
  entry.name = "mpi";
  entry.is_module = true;
  if (!file_exists(path("openmpi")) && !file_exists(path("mpich"))) {
    entry.status = Status::error(
        Code::kUnavailable, cat("not loaded: there is no libweft-mpi-openmpi.so or libweft-mpi-mpich.so in ",
                                folder, " (weft_context_options.module_path)"));
    return entry;
  }
  std::string flavour;
  entry.status = choose_mpi(mpi_facts(), &flavour);
  if (!entry.status.ok()) return entry;
  if (!file_exists(path(flavour))) {
    entry.status = Status::error(Code::kUnavailable, cat("this process uses ", mpi_title(flavour),
                                                         ", but there is no ", path(flavour)));
    return entry;
  }
  // MPICH's library is libmpich.so.12 in Debian and libmpi.so.12 elsewhere. The wheel has a module for each.
  const std::string other = flavour == "mpich" ? "mpi-mpich-upstream" : "";
  const bool has_other = !other.empty() && file_exists(cat(folder, "/libweft-", other, ".so"));
  if (has_other && is_loaded("libmpi.so.12")) return load_module(folder, {"mpi", {}}, other, variant);
  entry = load_module(folder, {"mpi", {}}, cat("mpi-", flavour), variant);
  if (entry.status.ok() || !has_other) return entry;
  BackendEntry second = load_module(folder, {"mpi", {}}, other, variant);
  return second.status.ok() ? second : entry;
}

}  // namespace

std::shared_ptr<Accelerator> Registry::load_accelerator(const std::string& module_path,
                                                        const std::string& library, Status* status) {
  const std::string path = module_folder(module_path) + "/libweft-cuda.so";
  const AcceleratorModule* module = nullptr;
  *status = load_symbol(path, kAcceleratorModuleSymbol, &module);
  if (!status->ok()) return nullptr;
  if (module->abi == kAcceleratorModuleAbi) return module->make(library);
  *status = other_version(path, module->abi, kAcceleratorModuleAbi);
  return nullptr;
}

Registry::Registry(const std::string& module_path, Libraries libraries)
    : module_path_(module_path), libraries_(std::move(libraries)), measurements_(measurements_of_process()) {
  prepare_unwinding();
  for (const auto& make : kBackends) {
    BackendEntry entry;
    entry.backend = &make();
    entry.name = entry.backend->name;
    built_in_.push_back(std::move(entry));
  }
}

const std::deque<BackendEntry>& Registry::backends() const {
  std::call_once(loaded_, [this] { load_modules(); });
  return backends_;
}

// Needs that no other thread reads the list: called once.
void Registry::load_modules() const {
  backends_ = built_in_;
  const std::string folder = module_folder(module_path_);
  const Backend* native_mpi = nullptr;
  for (const Module& module : modules()) backends_.push_back(load_module(folder, module, module.name));
  BackendEntry native = backends_.emplace_back(load_mpi(folder, &native_mpi));
  native.name = "mpi.native";
  native.backend = native_mpi;
  backends_.push_back(std::move(native));
  compose("shm+ucx", "shm among the ranks of a host, ucx between hosts", 75, "shm", "ucx");
  compose("shm+mpi", "shm among the ranks of a host, mpi between hosts", 45, "shm", "mpi");
  compose("nccl+ucx", "nccl among the CUDA devices of a host, ucx between hosts", -1, "nccl", "ucx");
}

Status Registry::add(const weft_transport& table) {
  const std::string name = table.name;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  if (name.empty() || name.size() > 31 - 4 || !std::all_of(name.begin(), name.end(), letter)) {
    return Status::error(Code::kArg, cat("weft_transport.name is \"", name.substr(0, 64),
                                         "\": allowed are 1 to 27 characters of a-z, 0-9 and '-'"));
  }
  if (find(name) != nullptr)
    return Status::error(
        Code::kArg, cat("weft_transport.name is \"", name,
                        "\", the name of an existing backend: choose another (existing: ", names(), ")"));
  own_.push_back(table);
  Backend backend{};
  backend.name = own_.back().name;
  backend.summary = table.summary != nullptr ? table.summary : table.name;
  backend.preference = -1;
  backend.find = [](const Libraries&, std::string* detail) {
    *detail = "the program's own transport";
    return Status();
  };
  backend.make_transport = [](const BackendArgs& args, std::unique_ptr<Transport>* transport) {
    return framed::connect_over(
        std::make_unique<framed::CustomLink>(*static_cast<const weft_transport*>(args.self),
                                             args.exchange.rank(), args.exchange.size(), args.log),
        args, transport);
  };
  backend.self = &own_.back();
  composed_.push_back(std::make_unique<const Backend>(backend));
  BackendEntry entry;
  entry.name = name;
  entry.backend = composed_.back().get();
  backends_.push_back(std::move(entry));
  const std::string& both = texts_.emplace_back(cat("shm+", name));
  const std::string& summary =
      texts_.emplace_back(cat("shm among the ranks of a host, ", name, " between hosts"));
  compose(both.c_str(), summary.c_str(), -1, "shm", table.name);
  return {};
}

// Adds a backend composed of two, `local` inside hosts and `across` between hosts. By its preference it is
// chosen before `across`, and after a backend by which all ranks may reach each other.
// Needs the list to itself, which holds both.
void Registry::compose(const char* name, const char* summary, int preference, const char* local,
                       const char* across) const {
  BackendEntry entry;
  entry.name = name;
  const auto find = [this](const std::string& part) { return entry_of(backends_, part); };
  for (const char* part : {local, across}) {
    const BackendEntry* const found = find(part);
    if (found == nullptr) return;  // not part of this build
    if (entry.status.ok() && found->backend == nullptr) entry.status = found->status;
  }
  if (entry.status.ok()) {
    Backend composed{};
    composed.name = name;
    composed.summary = summary;
    composed.preference = preference;
    composed.reachable = coll::spans_shared_hosts;
    composed.local = find(local)->backend;
    composed.across = find(across)->backend;
    if (composed.local->on_device) composed.under = find("shm")->backend;
    composed_.push_back(std::make_unique<const Backend>(composed));
    entry.backend = composed_.back().get();
  }
  backends_.push_back(std::move(entry));
}

const BackendEntry* Registry::find(const std::string& name) const {
  const BackendEntry* const built_in = entry_of(built_in_, name);
  return built_in != nullptr ? built_in : entry_of(backends(), name);
}

Status Registry::probe(const BackendEntry& entry, std::string* detail) const {
  if (entry.backend == nullptr) return entry.status;
  if (entry.backend->local != nullptr) {
    std::string across;
    WEFT_TRY(probe_guarded(*entry.backend->local, detail, libraries_)
                 .with_prefix(cat(entry.backend->local->name, ": ")));
    if (const Backend* const under = entry.backend->under; under != nullptr) {
      WEFT_TRY(probe_guarded(*under, &across, libraries_).with_prefix(cat(under->name, ": ")));
    }
    WEFT_TRY(probe_guarded(*entry.backend->across, &across, libraries_)
                 .with_prefix(cat(entry.backend->across->name, ": ")));
    *detail = cat(*detail, "; between hosts ", across);
    return {};
  }
  return probe_guarded(*entry.backend, detail, libraries_);
}

std::string Registry::names() const {
  std::vector<std::string> names;
  names.reserve(backends().size());
  for (const BackendEntry& entry : backends()) names.push_back(entry.name);
  return list_text(names);
}

const HookFactory* Registry::find_hook(const std::string& name) {
  for (const auto& make : kHooks) {
    if (name == make().name) return &make();
  }
  return nullptr;
}

Status Registry::make_hook(const std::string& name, HookArgs args, std::shared_ptr<Hook>* hook) {
  const HookFactory* const factory = find_hook(name);
  if (factory == nullptr) {
    return Status::error(Code::kArg, cat("unknown hook \"", name.substr(0, 64), "\"; known: ", hook_names()));
  }
  if (!factory->wraps && args.inner != nullptr) {
    return Status::error(Code::kArg, cat("hook '", name,
                                         "' takes no inner hook, but one is given (weft_hook_params.inner, "
                                         "or [...] in a saved hook's name)"));
  }
  if (factory->wraps && args.inner == nullptr) {
    WEFT_TRY(make_hook("allreduce", {{}, nullptr, args.host, args.log, args.comm}, &args.inner));
  }
  if (factory->wraps && args.comm == nullptr) args.comm = args.inner->comm();
  if (factory->wraps && args.comm != args.inner->comm()) {
    return Status::error(Code::kArg,
                         cat("hook '", name,
                             "' uses the communicator of its inner hook, but weft_hook_params.comm is a "
                             "different one: give that one to the inner hook"));
  }
  WEFT_TRY(factory->make(args, hook));
  (*hook)->set_comm(std::move(args.comm));
  return {};
}

Status Registry::make_hook_again(std::string_view full_name, const HookArgs& args,
                                 std::shared_ptr<Hook>* hook) {
  std::string_view rest = full_name;
  const std::string_view name = rest.substr(0, rest.find_first_of("(["));
  rest.remove_prefix(name.size());
  std::string_view options;
  std::shared_ptr<Hook> inner;
  if (rest.starts_with('(') && rest.find(')') != std::string_view::npos) {
    options = rest.substr(1, rest.find(')') - 1);
    rest.remove_prefix(options.size() + 2);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) {
    WEFT_TRY(make_hook_again(rest.substr(1, rest.size() - 2), args, &inner));
    rest = {};
  }
  if (!rest.empty())
    return Status::error(Code::kArg, cat("the saved hook's name \"", full_name,
                                         "\" is malformed: expected name(options)[inner hook]"));
  return make_hook(std::string(name), {options, std::move(inner), args.host, args.log, args.comm}, hook);
}

std::string Registry::hook_names() {
  std::vector<std::string> names;
  for (const auto& make : kHooks) names.emplace_back(make().name);
  return list_text(names);
}

}  // namespace weft
