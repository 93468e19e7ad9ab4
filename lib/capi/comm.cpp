// weft_comm_*, weft_unique_id_create.
#include <cstring>
#include <utility>

#include "base/arguments.h"
#include "bootstrap.h"
#include "capi/group.h"
#include "capi/handles.h"
#include "device/arena.h"
#include "environment/config.h"
#include "rendezvous/heartbeat.h"

namespace weft::capi {
namespace {

Status usable(const weft_comm* comm) {
  WEFT_NOT_NULL(comm);
  return check_call(comm->rep->context());
}

// The bytes come from the program, which may have broadcast others, or only some.
Status unique_id_of(const weft_comm_options& given, BootstrapOptions* bootstrap) {
  if (given.unique_id == nullptr) return null_argument("weft_comm_options.unique_id");
  if (given.secret != nullptr)
    return Status::error(Code::kArg, "weft_comm_options.secret is set, but a unique id has a key of its own");
  WEFT_TRY(init_crypto());
  const auto* const bytes = static_cast<const std::byte*>(given.unique_id);
  return decode(ByteView(bytes, WEFT_UNIQUE_ID_BYTES), &bootstrap->invitation.emplace())
      .with_prefix("weft_comm_options.unique_id is not that of weft_unique_id_create on rank 0: ");
}

// Moves the store of a unique id from rank 0's context into the bootstrap.
Status take_store(weft_context& context, BootstrapOptions* bootstrap) {
  if (!bootstrap->invitation || bootstrap->rank != 0) return {};
  bootstrap->server = context.stores.take(*bootstrap->invitation);
  if (bootstrap->server != nullptr) return {};
  return Status::error(Code::kArg,
                       "weft_comm_options.unique_id is not of this context, or has created a communicator "
                       "before: rank 0 makes a new one with weft_unique_id_create for each communicator, in "
                       "the context of the communicator");
}

Status bootstrap_options_of(const weft_comm_options& given, BootstrapOptions* bootstrap) {
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_COMM_STORE_EXTERNAL), WEFT_NAMED(WEFT_COMM_DEVICE)};
  constexpr NamedValue kBootstraps[] = {WEFT_NAMED(WEFT_BOOTSTRAP_ENV), WEFT_NAMED(WEFT_BOOTSTRAP_STORE),
                                        WEFT_NAMED(WEFT_BOOTSTRAP_CALLBACK),
                                        WEFT_NAMED(WEFT_BOOTSTRAP_UNIQUE_ID)};
  WEFT_TRY(check_flags("weft_comm_options.flags", given.flags, kFlags));
  if (given.reserved != 0)
    return Status::error(Code::kArg, cat("weft_comm_options.reserved is ", given.reserved, ": it must be 0"));
  if (given.reserved2 != 0)
    return Status::error(Code::kArg,
                         cat("weft_comm_options.reserved2 is ", given.reserved2, ": it must be 0"));
  const bool on_device = (given.flags & WEFT_COMM_DEVICE) != 0;
  if (on_device ? given.device < 0 : given.device != 0) {
    return Status::error(Code::kArg,
                         cat("weft_comm_options.device is ", given.device,
                             on_device ? "; it must be 0 or more"
                                       : ", but weft_comm_options.flags does not have WEFT_COMM_DEVICE"));
  }
  WEFT_TRY(check_choice("weft_comm_options.bootstrap", given.bootstrap, kBootstraps));
  WEFT_TRY(check_timeout("weft_comm_options.init_timeout_ms", given.init_timeout_ms));
  WEFT_TRY(check_timeout("weft_comm_options.op_timeout_ms", given.op_timeout_ms));
  const int64_t heartbeat = given.heartbeat_timeout_ms;
  if (heartbeat != 0 && heartbeat != WEFT_TIMEOUT_INFINITE && heartbeat < Heartbeat::kLeastMs) {
    return Status::error(
        Code::kArg,
        cat("weft_comm_options.heartbeat_timeout_ms is ", heartbeat, ": allowed are ", Heartbeat::kLeastMs,
            " milliseconds and more, 0 for the default, and WEFT_TIMEOUT_INFINITE (-1)"));
  }
  if (given.secret_bytes != 0 && given.secret == nullptr) return null_argument("weft_comm_options.secret");
  if (given.secret != nullptr &&
      (given.secret_bytes < kMinSecretBytes || given.secret_bytes > kMaxSecretBytes)) {
    return Status::error(Code::kArg,
                         cat("weft_comm_options.secret_bytes is ", given.secret_bytes, ": allowed are ",
                             kMinSecretBytes, " to ", kMaxSecretBytes, " bytes"));
  }
  bootstrap->method = static_cast<BootstrapOptions::Method>(given.bootstrap);
  bootstrap->rank = given.rank;
  bootstrap->size = given.size;
  if (given.store != nullptr) bootstrap->store = given.store;
  bootstrap->store_external = (given.flags & WEFT_COMM_STORE_EXTERNAL) != 0;
  if (given.secret != nullptr) {
    const auto* secret = static_cast<const std::byte*>(given.secret);
    bootstrap->secret.assign(secret, secret + given.secret_bytes);
  }
  bootstrap->all_gather = given.all_gather;
  bootstrap->all_gather_user_data = given.all_gather_user_data;
  CommOptions& options = bootstrap->options;
  if (given.backend != nullptr) options.backend = given.backend;
  if (given.init_timeout_ms != 0) options.init_timeout_ms = given.init_timeout_ms;
  if (given.op_timeout_ms != 0) options.op_timeout_ms = given.op_timeout_ms;
  if (heartbeat != 0) options.heartbeat_timeout_ms = heartbeat;
  bootstrap->own_heartbeat = heartbeat != 0;
  if (given.arena_limit_bytes != 0) options.arena_limit_bytes = given.arena_limit_bytes;
  if (on_device) options.device = given.device;
  if (given.bootstrap == WEFT_BOOTSTRAP_ENV) return {};
  WEFT_TRY(check_range("weft_comm_options.size", given.size, 1, kMaxRanks));
  WEFT_TRY(check_range("weft_comm_options.rank", given.rank, 0, given.size - 1));
  if (given.bootstrap == WEFT_BOOTSTRAP_CALLBACK && given.all_gather == nullptr)
    return null_argument("weft_comm_options.all_gather");
  if (given.bootstrap == WEFT_BOOTSTRAP_STORE && given.store == nullptr)
    return null_argument("weft_comm_options.store");
  return given.bootstrap == WEFT_BOOTSTRAP_UNIQUE_ID ? unique_id_of(given, bootstrap) : Status();
}

}  // namespace
}  // namespace weft::capi

using namespace weft;
using namespace weft::capi;

extern "C" {

weft_status weft_comm_create(weft_context* context, const weft_comm_options* options, weft_comm** comm,
                             weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(comm);
    *comm = nullptr;
    WEFT_NOT_NULL(context);
    WEFT_TRY(check_call(*context->rep));
    weft_comm_options read;
    WEFT_TRY(read_struct(options, "weft_comm_options", &read));
    BootstrapOptions bootstrap;
    WEFT_TRY(bootstrap_options_of(read, &bootstrap));
    WEFT_TRY(take_store(*context, &bootstrap));
    auto handle = std::make_unique<weft_comm>();
    handle->registry = context->registry;
    // A copy: the program may destroy the context while this call waits for other ranks.
    const std::shared_ptr<Context> rep = context->rep;
    WEFT_TRY(create_comm(rep, *handle->registry, std::move(bootstrap), &handle->rep));
    *comm = handle.release();
    return {};
  });
}

weft_status weft_unique_id_create(weft_context* context, void* id, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(id);
    WEFT_NOT_NULL(context);
    WEFT_TRY(check_call(*context->rep));
    Context& rep = *context->rep;
    Invitation invitation;
    NetworkSettings network;
    WEFT_TRY(process_network(&network));
    std::unique_ptr<StoreServer> server;
    WEFT_TRY(open_store(AuthKey::open(), "", rep.options().thread_start, network, rep.clock(), rep.log(),
                        &invitation, &server));
    const Bytes bytes = encode(invitation);
    static_assert(Invitation::kBytes == WEFT_UNIQUE_ID_BYTES);
    context->stores.put(invitation, std::move(server));
    std::memcpy(id, bytes.data(), bytes.size());
    return {};
  });
}

weft_status weft_comm_destroy(weft_comm** comm) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(comm);
    if (*comm == nullptr) return {};
    if (!(*comm)->rep->context().forked()) {
      WEFT_TRY(check_call((*comm)->rep->context()));
      Status closed = (*comm)->rep->close();
      if ((*comm)->group != nullptr) {
        (*comm)->group->launch(nullptr);
        Status drained = (*comm)->rep->context().callbacks().drain((*comm)->rep->context().clock());
        if (closed.ok()) closed = std::move(drained);
      }
      delete std::exchange(*comm, nullptr);
      return closed;
    }
    *comm = nullptr;
    return {};
  });
}

weft_status weft_comm_rank(const weft_comm* comm, int32_t* rank) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(rank);
    *rank = 0;
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_process(comm->rep->context()));
    *rank = comm->rep->rank();
    return {};
  });
}

weft_status weft_comm_size(const weft_comm* comm, int32_t* size) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(size);
    *size = 0;
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_process(comm->rep->context()));
    *size = comm->rep->size();
    return {};
  });
}

weft_status weft_comm_query(const weft_comm* comm, weft_comm_info* info) {
  return plain([&]() -> Status {
    WEFT_TRY(usable(comm));
    Comm& rep = *comm->rep;
    weft_comm_info out{};
    out.rank = rep.rank();
    out.size = rep.size();
    if (const Members* members = rep.options().members.get(); members != nullptr) {
      out.local_rank = members->local_rank();
      out.local_size = members->local_size();
      out.host_index = members->host();
      out.host_count = members->hosts();
    }
    out.failed = rep.failed() ? 1 : 0;
    out.authenticated = rep.options().authenticated ? 1 : 0;
    put_text(rep.collectives().name(), out.backend);
    put_text(rep.last_algorithm(), out.algorithm);
    out.operations = rep.operations();
    const CollectiveCounters counters = rep.collectives().counters();
    out.bytes_shared = counters.bytes_shared;
    out.bytes_direct = counters.bytes_direct;
    out.bytes_sent = counters.bytes_sent;
    out.bytes_received = counters.bytes_received;
    out.arena_bytes = rep.collectives().arena()->populated_bytes();
    put_text(rep.collectives().transports(), out.transports);
    return write_struct(out, "info", info);
  });
}

weft_status weft_comm_split(weft_comm* comm, int32_t color, int32_t key, weft_comm** part,
                            weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(part);
    *part = nullptr;
    WEFT_TRY(usable(comm));
    WEFT_TRY(no_group(*comm));
    std::shared_ptr<Comm> made;
    WEFT_TRY(split(comm->rep, *comm->registry, color == WEFT_COLOR_NONE, color, key, &made));
    if (!made) return {};
    auto handle = std::make_unique<weft_comm>();
    handle->rep = std::move(made);
    handle->registry = comm->registry;
    *part = handle.release();
    return {};
  });
}

weft_status weft_comm_shrink(weft_comm* comm, const weft_shrink_options* options, weft_comm** survivors,
                             weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(survivors);
    *survivors = nullptr;
    WEFT_TRY(usable(comm));
    WEFT_TRY(no_group(*comm));
    weft_shrink_options given;
    WEFT_TRY(read_struct(options, "weft_shrink_options", &given));
    constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_SHRINK_LAST_OF_TWO)};
    WEFT_TRY(check_flags("weft_shrink_options.flags", given.flags, kFlags));
    WEFT_TRY(check_timeout("weft_shrink_options.timeout_ms", given.timeout_ms));
    auto handle = std::make_unique<weft_comm>();
    handle->registry = comm->registry;
    const ShrinkOptions read{given.timeout_ms, (given.flags & WEFT_SHRINK_LAST_OF_TWO) != 0};
    WEFT_TRY(shrink(comm->rep, *comm->registry, read, &handle->rep));
    *survivors = handle.release();
    return {};
  });
}

weft_status weft_comm_abort(weft_comm* comm, const char* reason) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(comm);
    Comm& rep = *comm->rep;
    WEFT_TRY(check_process(rep.context()));
    std::string text = cat("rank ", rep.rank(), " aborted the communicator");
    if (reason != nullptr) text += cat(": ", std::string_view(reason).substr(0, 512));
    rep.fail(Status::error(Code::kAborted, std::move(text)).with_ranks({rep.rank()}));
    return {};
  });
}

weft_status weft_comm_error(const weft_comm* comm, weft_error* error) {
  std::string refused;
  const Status status = guarded([&]() -> Status {
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_process(comm->rep->context()));
    WEFT_TRY(comm->rep->failure());
    refused = comm->refusal.text();
    return {};
  });
  fill_error(status, error, refused);
  return code_of(status);
}

weft_status weft_comm_alloc(weft_comm* comm, uint64_t size_bytes, void** memory) {
  return called(comm, [&]() -> Status {
    WEFT_NOT_NULL(memory);
    *memory = nullptr;
    WEFT_TRY(usable(comm));
    if (size_bytes == 0)
      return Status::error(Code::kArg, "weft_comm_alloc: size_bytes is 0: allowed are 1 or more");
    std::byte* block = nullptr;
    WEFT_TRY(comm->rep->reach(FailPlace::kMemory, 0));
    WEFT_TRY(comm->rep->collectives().arena()->allocate(size_bytes, &block));
    *memory = block;
    return {};
  });
}

weft_status weft_comm_free(weft_comm* comm, void* memory) {
  return called(comm, [&]() -> Status {
    WEFT_TRY(usable(comm));
    if (memory == nullptr) return {};
    return comm->rep->collectives().arena()->free(static_cast<std::byte*>(memory));
  });
}

}  // extern "C"
