#include "library.h"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>

#include "base/guard.h"
#include "base/text.h"

namespace weft::ucx {
namespace {

thread_local Log* thread_log = nullptr;

// UCX calls this for every line that it would print. Lines of other users of UCX in this process are passed
// on.
ucs_log_func_rc_t on_log(const char* file, unsigned line, const char* function, ucs_log_level_t level,
                         const ucs_log_component_config_t* component, const char* message,
                         va_list arguments) {
  // UCX's own thread prints this line for each unauthenticated client that connects and disconnects at once.
  // Any client could fill the program's output with it.
  if (std::strcmp(function, "uct_tcp_cm_handle_incoming_conn") == 0) return UCS_LOG_FUNC_RC_STOP;
  if (thread_log == nullptr) return UCS_LOG_FUNC_RC_CONTINUE;
  static_cast<void>(component);
  if (level > UCS_LOG_LEVEL_INFO || !thread_log->enabled(LogLevel::kDebug)) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  std::vsnprintf(text, sizeof text, message, arguments);
  const char* const slash = std::strrchr(file, '/');
  // Weft reports what UCX calls an error itself, or survives it, such as a peer that disconnects. A line for
  // which there is no memory is dropped: no exception passes through UCX.
  const auto say = [&] {
    thread_log->debug(cat("UCX: ", slash == nullptr ? file : slash + 1, ":", line, ": ", text));
  };
  (void)guarded_run(say).ok();
  return UCS_LOG_FUNC_RC_STOP;
}

struct Setting {
  const char* name;
  const char* value;
};

// Settings that Weft relies on, whatever the environment contains. Names unknown to a version of UCX are
// skipped.
constexpr Setting kSettings[] = {
    {"MM_ERROR_HANDLING", "y"},     // shared memory together with endpoints that report errors
    {"KEEPALIVE_INTERVAL", "inf"},  // the control channel detects failed ranks
    {"MEMTYPE_CACHE", "n"},         // it hooks memory calls; Weft passes each buffer's memory type
    {"RCACHE_ENABLE", "n"},         // it hooks memory calls, too
    {"RESOLVE_REMOTE_EP_ID", "y"},  // a new endpoint contacts its peer (lib/framed/connect.cpp, call)
    {"RNDV_THRESH", "inf"},         // each message selects its own protocol
    {"ZCOPY_THRESH", "8k"},         // a piece for TCP is sent whole, not in copied parts (UCX 1.22)
    {"WARN_INVALID_CONFIG", "n"},
};

// Used unless the user chose transports: all but POSIX shared memory. UCX creates files in /dev/shm and
// unlinks them a moment later, so a rank that is killed in between leaves one behind. System V shared memory
// carries the same messages.
constexpr Setting kTransports = {"TLS", "^posix"};

// Returns the output of a UCX function that prints.
template <class Print>
std::string printed(Print&& print) {
  char* text = nullptr;
  size_t size = 0;
  FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

bool all_transports(const ucp_config_t* config) {
  const std::string settings =
      printed([&](FILE* to) { ucp_config_print(config, to, nullptr, UCS_CONFIG_PRINT_CONFIG); });
  return settings.find("_TLS=all\n") != std::string::npos;
}

// Returns words like "tcp/eth0" in lines that begin with `head`.
std::string resources(const std::string& text, const std::string& head) {
  std::set<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(head) == std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word && word != "->";) {
      const size_t slash = word.find('/');
      if (slash == std::string::npos || slash == 0) continue;
      const size_t begin = word.find(':') < slash ? word.find(':') + 1 : 0;  // "2:tcp/lo.0"
      const size_t dot = word.rfind('.');
      found.insert(word.substr(begin, dot == std::string::npos || dot < slash ? dot : dot - begin));
    }
  }
  return list_text(found);
}

}  // namespace

LogScope::LogScope(Log& log) : before_(thread_log) {
  thread_log = &log;
}

LogScope::~LogScope() {
  thread_log = before_;
}

std::string version() {
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  return cat("UCX ", major, ".", minor, ".", patch);
}

Status failed(const std::string& what, ucs_status_t status) {
  return Status::error(Code::kUnavailable, cat(what, ": ", ucs_status_string(status)));
}

Status open_context(int peers, ContextPtr* context) {
  static std::once_flag heard;  // UCX has one list of handlers in a process
  std::call_once(heard, [] { ucs_log_push_handler(on_log); });
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  if (major != 1 || minor < 13) {
    return Status::error(Code::kUnavailable,
                         cat("UCX 1.13 or a later 1.x is needed, and the loaded library is ", version()));
  }
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read("WEFT", nullptr, &config);
  if (status != UCS_OK) return failed("ucp_config_read failed (check the WEFT_UCX_* variables)", status);
  for (const Setting& setting : kSettings) {
    static_cast<void>(ucp_config_modify(config, setting.name, setting.value));
  }
  if (all_transports(config)) {
    static_cast<void>(ucp_config_modify(config, kTransports.name, kTransports.value));
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM;
  params.estimated_num_eps = static_cast<size_t>(peers);
  params.name = "weft";
  ucp_context_h opened = nullptr;
  status = ucp_init(&params, config, &opened);
  ucp_config_release(config);
  if (status != UCS_OK)
    return failed(cat(version(), " does not start (check the WEFT_UCX_* variables, such as WEFT_UCX_TLS)"),
                  status);
  context->reset(opened);
  return {};
}

std::string devices(ucp_context_h context) {
  return resources(printed([&](FILE* to) { ucp_context_print_info(context, to); }), "resource ");
}

Status open_worker(ucp_context_h context, WorkerPtr* worker) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // under the engine's progress lock, from changing threads
  ucp_worker_h opened = nullptr;
  const ucs_status_t status = ucp_worker_create(context, &params, &opened);
  if (status != UCS_OK) return failed("UCX cannot create a worker", status);
  worker->reset(opened);
  return {};
}

Status address_of(ucp_worker_h worker, Bytes* address) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  const ucs_status_t status = ucp_worker_query(worker, &attributes);
  if (status != UCS_OK) return failed("UCX cannot return its worker's address", status);
  const auto* const begin = reinterpret_cast<const std::byte*>(attributes.address);
  address->assign(begin, begin + attributes.address_length);
  ucp_worker_release_address(worker, attributes.address);
  return {};
}

std::string transports(ucp_ep_h endpoint) {
  return resources(printed([&](FILE* to) { ucp_ep_print_info(endpoint, to); }), "lane[");
}

}  // namespace weft::ucx
