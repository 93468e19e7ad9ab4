#include "library.h"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>

#include "base/guard.h"
#include "base/text.h"

namespace weft::ucx {
namespace {

thread_local Log* speaking = nullptr;

// Called by UCX for every line that it would print. Other users of UCX in this process keep theirs.
ucs_log_func_rc_t hear(const char* file, unsigned line, const char* function, ucs_log_level_t level,
                       const ucs_log_component_config_t* component, const char* message, va_list arguments) {
  // Said on UCX's own thread of each stranger who connects and goes at once: any of them could fill the
  // program's output with it.
  if (std::strcmp(function, "uct_tcp_cm_handle_incoming_conn") == 0) return UCS_LOG_FUNC_RC_STOP;
  if (speaking == nullptr) return UCS_LOG_FUNC_RC_CONTINUE;
  static_cast<void>(component);
  if (level > UCS_LOG_LEVEL_INFO || !speaking->enabled(LogLevel::kDebug)) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  std::vsnprintf(text, sizeof text, message, arguments);
  const char* const slash = std::strrchr(file, '/');
  // What UCX calls an error, Weft reports by itself, or survives: a peer that goes, for one. So it does a
  // line that there is no memory for: nothing is thrown through UCX.
  const auto say = [&] {
    speaking->debug(cat("UCX: ", slash == nullptr ? file : slash + 1, ":", line, ": ", text));
  };
  (void)guarded_run(say).ok();
  return UCS_LOG_FUNC_RC_STOP;
}

struct Setting {
  const char* name;
  const char* value;
};

// What Weft relies on, whatever the environment says. Names that a version of UCX does not know are skipped.
constexpr Setting kSettings[] = {
    {"MM_ERROR_HANDLING", "y"},     // shared memory together with endpoints that report errors
    {"KEEPALIVE_INTERVAL", "inf"},  // the control channel knows better who is alive
    {"MEMTYPE_CACHE", "n"},         // it hooks memory calls; Weft says what memory it passes
    {"RCACHE_ENABLE", "n"},         // the same
    {"RESOLVE_REMOTE_EP_ID", "y"},  // an endpoint calls when it is made (lib/frames/meet.cpp, call)
    {"RNDV_THRESH", "inf"},         // each message says itself how it goes
    {"ZCOPY_THRESH", "8k"},         // a piece for TCP goes as one, not in copied parts (UCX 1.22)
    {"WARN_INVALID_CONFIG", "n"},
};

// Unless the user chose transports: all but POSIX shared memory. It makes files in /dev/shm and unlinks them
// a moment later, so a rank that is killed in between leaves one; System V's carries the same messages.
constexpr Setting kTransports = {"TLS", "^posix"};

// The output of a UCX function that prints.
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

// Words like "tcp/eth0" in lines that begin with `head`.
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

Speaking::Speaking(Log& log) : before_(speaking) {
  speaking = &log;
}

Speaking::~Speaking() {
  speaking = before_;
}

std::string version() {
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  return cat("UCX ", major, ".", minor, ".", patch);
}

Status failed(const std::string& what, ucs_status_t status) {
  return Status::error(Code::kUnavailable, cat("because ", what, ": ", ucs_status_string(status)));
}

Status open_context(int peers, ContextPtr* context) {
  static std::once_flag heard;  // UCX has one list of handlers a process
  std::call_once(heard, [] { ucs_log_push_handler(hear); });
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  if (major != 1 || minor < 13) {
    return Status::error(Code::kUnavailable,
                         cat("because it needs UCX 1.13 or later, and this is ", version()));
  }
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read("WEFT", nullptr, &config);
  if (status != UCS_OK) return failed("UCX's configuration is not readable", status);
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
  if (status != UCS_OK) return failed(cat(version(), " does not start"), status);
  context->reset(opened);
  return {};
}

std::string devices(ucp_context_h context) {
  return resources(printed([&](FILE* to) { ucp_context_print_info(context, to); }), "resource ");
}

Status open_worker(ucp_context_h context, WorkerPtr* worker) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // under the engine's drive lock, by changing threads
  ucp_worker_h opened = nullptr;
  const ucs_status_t status = ucp_worker_create(context, &params, &opened);
  if (status != UCS_OK) return failed("UCX gives no worker", status);
  worker->reset(opened);
  return {};
}

Status address_of(ucp_worker_h worker, Bytes* address) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  const ucs_status_t status = ucp_worker_query(worker, &attributes);
  if (status != UCS_OK) return failed("UCX gives no address", status);
  const auto* const begin = reinterpret_cast<const std::byte*>(attributes.address);
  address->assign(begin, begin + attributes.address_length);
  ucp_worker_release_address(worker, attributes.address);
  return {};
}

std::string transports(ucp_ep_h endpoint) {
  return resources(printed([&](FILE* to) { ucp_ep_print_info(endpoint, to); }), "lane[");
}

}  // namespace weft::ucx
