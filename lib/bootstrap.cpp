#include "bootstrap.h"

#include <sys/random.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

#include "base/cores.h"
#include "base/guard.h"
#include "base/text.h"
#include "bootstrap_report.h"
#include "bootstrap_wire.h"
#include "coll/calibration.h"
#include "coll/hierarchical/hierarchical.h"
#include "coll/over_transport.h"
#include "coll/staged.h"
#include "comm/members.h"
#include "environment/config.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"
#include "rendezvous/callback_exchange.h"
#include "rendezvous/mesh.h"
#include "rendezvous/store_exchange.h"

namespace weft {
namespace {

// Exchanges where the ranks run. hosts: which ranks share this rank's host, simulated hosts included.
Status exchange_processes(Exchange& exchange, const FdChannel& hosts, Deadline deadline,
                          std::vector<ProcessInfo>* ranks) {
  int leader = 0;
  while (leader < exchange.rank() && !hosts.same_host(leader)) leader++;
  std::vector<Bytes> all;
  WEFT_TRY(exchange.all_gather(encode(own_process(leader)), &all, deadline));
  ranks->resize(all.size());
  for (size_t r = 0; r < all.size(); r++) {
    if (decode(all[r], &(*ranks)[r])) continue;
    const int name = exchange.name(static_cast<int>(r));
    return Status::error(Code::kInternal,
                         cat("internal: rank ", name, " sent a malformed description of its process (",
                             all[r].size(), " bytes): this is a bug of Weft, please report it"))
        .with_ranks({name});
  }
  return {};
}

// Returns true if the ranks of this real host have fewer cores than ranks, so that waiting threads must
// yield. Launchers pin ranks, so the cores of one rank are not enough.
bool is_crowded(const std::vector<ProcessInfo>& ranks, const SocketMesh& mesh) {
  Bytes cores;
  uint64_t here = 0;
  for (size_t r = 0; r < ranks.size(); r++) {
    if (!mesh.same_host(static_cast<int>(r))) continue;
    here++;
    const Bytes& theirs = ranks[r].cores;
    cores.resize(std::max(cores.size(), theirs.size()));
    for (size_t i = 0; i < theirs.size(); i++) cores[i] |= theirs[i];
  }
  return here > count_cores(cores);
}

// Distinguishes communicators that write into one folder; need not be secure.
uint64_t random_number() {
  uint64_t number = 0;
  return ::getrandom(&number, sizeof number, GRND_NONBLOCK) < 0 ? 0 : number;
}

// Validates the device that the program specifies, or uses the calling thread's current device. Subgroups and
// survivors of the communicator keep the device.
Status choose_device(Context& context, bool needed, int* device) {
  if (!needed && *device < 0) return {};
  std::string detail;
  const Status works = context.probe_accelerator(&detail);
  WEFT_TRY(*device < 0 ? works : works.with_prefix(cat("weft_comm_options.device is ", *device, ": ")));
  Accelerator& accelerator = *context.accelerator();
  if (*device < 0) return accelerator.current_device(device);
  const int count = accelerator.device_count();
  if (*device < count) return {};
  if (count <= 0) {
    return Status::error(Code::kArg, cat("weft_comm_options.device is ", *device,
                                         ", but this process sees no CUDA device (CUDA_VISIBLE_DEVICES?)"));
  }
  return Status::error(Code::kArg,
                       cat("weft_comm_options.device is ", *device, ", but this process sees ", count,
                           count == 1 ? " CUDA device: give 0" : " CUDA devices: give 0 to ",
                           count == 1 ? "" : cat(count - 1)));
}

// Returns the names of those backends that may be chosen by preference and are available here.
std::vector<std::string> available_of(const std::deque<BackendEntry>& entries, const Registry& registry) {
  std::vector<std::string> names;
  for (const BackendEntry& entry : entries) {
    std::string detail;
    if (entry.backend != nullptr && entry.backend->preference >= 0 && registry.probe(entry, &detail).ok())
      names.push_back(entry.name);
  }
  return names;
}

// Returns true if all ranks offer this backend.
bool all_offer(const std::vector<Offer>& offers, const std::string& name) {
  return std::all_of(offers.begin(), offers.end(), [&](const Offer& offer) {
    return std::find(offer.available.begin(), offer.available.end(), name) != offer.available.end();
  });
}

// Returns true if the offers are enough for a choice: either all name every backend, or none names more than
// those without modules and a preferred one is among them. The result is equal on all ranks.
bool suffice(const std::vector<Offer>& offers) {
  const bool modules = offers[0].modules;
  for (const Offer& offer : offers) {
    if (offer.modules != modules) return false;
  }
  const std::vector<std::string>& names = offers[0].available;
  return modules || std::any_of(names.begin(), names.end(),
                                [&](const std::string& name) { return all_offer(offers, name); });
}

// Fails if the ranks have different settings.
Status compare_offers(const Exchange& exchange, const std::vector<Offer>& offers) {
  const Offer& first = offers.front();
  for (size_t r = 1; r < offers.size(); r++) {
    const Offer& offer = offers[r];
    const int zero = exchange.name(0);
    const int name = exchange.name(static_cast<int>(r));
    const auto differ = [&](const auto&... text) {
      return Status::error(Code::kMismatch, cat(text...)).with_ranks({name});
    };
    if (offer.algorithms != first.algorithms) {
      return differ("WEFT_TUNE is \"", first.algorithms, "\" on rank ", zero, " and \"", offer.algorithms,
                    "\" on rank ", name, ": set the same value on all ranks");
    }
    if (offer.shm_thresholds != first.shm_thresholds) {
      return differ("WEFT_SHM_THRESHOLDS is \"", first.shm_thresholds, "\" on rank ", zero, " and \"",
                    offer.shm_thresholds, "\" on rank ", name, ": set the same value on all ranks");
    }
    if ((offer.host < 0) != (first.host < 0)) {
      return differ("WEFT_HOSTS is set on rank ", offer.host < 0 ? zero : name, " and not on rank ",
                    offer.host < 0 ? name : zero, ": set it on all ranks or on none");
    }
    if (offer.wanted == first.wanted) continue;
    const auto shown = [](const std::string& backend) {
      return backend.empty() ? "\"\" (automatic)" : backend;
    };
    return differ("rank ", zero, " asks for backend ", shown(first.wanted), ", rank ", name, " for ",
                  shown(offer.wanted), ": give all ranks the same weft_comm_options.backend or WEFT_BACKEND");
  }
  return {};
}

// Exchanges the offers of all ranks. Fails if the ranks have different settings, or if this rank's settings
// are invalid. modules: also offers backends that modules have to be loaded for.
Status exchange_offers(Context& context, Exchange& exchange, const Registry& registry, CommOptions& options,
                       bool modules, Deadline deadline, std::vector<Offer>* offers) {
  const std::string& wanted = options.backend;
  Status local;
  bool needs = false;
  if (!wanted.empty()) {
    const BackendEntry* entry = registry.find(wanted);
    std::string detail;
    local =
        entry == nullptr
            ? Status::error(Code::kArg,
                            cat("unknown backend \"", wanted,
                                "\" (weft_comm_options.backend or WEFT_BACKEND); known: ", registry.names()))
            : registry.probe(*entry, &detail).with_prefix(cat("backend ", wanted, ": "));
    needs = local.ok() && needs_device(*entry->backend);
  }
  if (local.ok()) {
    local = choose_device(context, needs, &options.device)
                .with_prefix(needs ? cat("backend ", wanted, ": ") : std::string());
  }
  WEFT_TRY(agree_on(exchange, local, deadline));

  Offer mine;
  mine.id = random_number();
  mine.wanted = wanted;
  mine.algorithms = options.algorithms;
  mine.shm_thresholds = registry.measurements().shm_thresholds();
  mine.host = static_cast<int32_t>(options.host_label);
  mine.modules = modules;
  mine.available = available_of(modules ? registry.backends() : registry.built_in(), registry);
  std::vector<Bytes> all;
  WEFT_TRY(exchange.all_gather(encode(mine), &all, deadline));
  offers->resize(all.size());
  for (size_t r = 0; r < all.size(); r++) {
    if (decode(all[r], &(*offers)[r])) continue;
    const int name = exchange.name(static_cast<int>(r));
    return Status::error(Code::kInternal,
                         cat("internal: rank ", name, " sent a malformed list of backends and settings (",
                             all[r].size(), " bytes): this is a bug of Weft, please report it"))
        .with_ranks({name});
  }
  return compare_offers(exchange, *offers);
}

bool is_one_host(const SocketMesh& mesh, int ranks) {
  int here = 0;
  while (here < ranks && mesh.same_host(here)) here++;
  return here == ranks;
}

// Checks that the ranks of one simulated host share a real host.
Status check_hosts(const Exchange& exchange, const SocketMesh& mesh, const std::vector<int>& labels) {
  const int rank = exchange.rank();
  for (size_t r = 0; r < labels.size(); r++) {
    const int other = static_cast<int>(r);
    if (labels[r] != labels[static_cast<size_t>(rank)] || mesh.same_host(other)) continue;
    const int name = exchange.name(other);
    return Status::error(
               Code::kArg,
               cat("WEFT_HOSTS puts rank ", exchange.name(rank), " and rank ", name,
                   " on one simulated host, but they run on different hosts (or network namespaces)"))
        .with_ranks({name});
  }
  return {};
}

// Chooses the most preferred backend that is available on all ranks and suits them.
Status best_backend(const BackendArgs& args, const Registry& registry, const std::vector<Offer>& offers,
                    const Backend** chosen) {
  std::vector<const Backend*> candidates;
  for (const std::string& name : offers[0].available) {
    if (all_offer(offers, name)) candidates.push_back(registry.find(name)->backend);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Backend* a, const Backend* b) { return a->preference > b->preference; });
  for (const Backend* candidate : candidates) {
    bool reaches = true;
    if (candidate->reachable != nullptr) WEFT_TRY(candidate->reachable(args, &reaches));
    if (!reaches) continue;
    *chosen = candidate;
    return {};
  }
  return Status::error(Code::kUnavailable,
                       "no backend is available on every rank and connects all ranks: run `weft info` on "
                       "each host for the reasons");
}

// Chooses the backend that all ranks specify, or else the best.
Status choose_backend(const BackendArgs& args, const Registry& registry, const std::vector<Offer>& offers,
                      const Backend** chosen) {
  if (offers[0].wanted.empty()) return best_backend(args, registry, offers, chosen);
  *chosen = registry.find(offers[0].wanted)->backend;
  return {};
}

Status make_collectives(const Backend& backend, const BackendArgs& args, const coll::Forced& forced,
                        std::unique_ptr<Collectives>* collectives) {
  if (backend.local != nullptr) {
    return coll::make_hierarchical(backend, args, forced, collectives);
  }
  if (backend.make_collectives != nullptr) return backend.make_collectives(args, collectives);
  std::unique_ptr<Transport> transport;
  WEFT_TRY(make_transport(backend, args, &transport));
  const int rank = args.exchange.rank(), size = args.exchange.size();
  coll::Forced chosen = forced;
  // Autotunes only automatically chosen backends: tests and programs count the messages of their own
  // transports.
  if (backend.preference >= 0)
    WEFT_TRY(coll::measure_one_shot({*transport, args.host, rank, size, forced}, true, args, &chosen));
  *collectives = over_transport(std::move(transport), rank, size, args.host, args.clock, chosen,
                                args.allocator, args.arena);
  return {};
}

// Creates the collectives of device memory, on top of the best backend for host memory.
Status make_on_device(const Backend& backend, BackendArgs args, const Registry& registry,
                      const std::vector<Offer>& offers, const coll::Forced& forced,
                      std::unique_ptr<Collectives>* collectives) {
  const Backend* host = nullptr;
  std::unique_ptr<Collectives> below;
  WEFT_TRY(best_backend(args, registry, offers, &host));
  const Status made = make_collectives(*host, args, forced, &below);
  WEFT_TRY(agree_on(args.exchange, made.with_prefix(cat("host collectives over ", host->name, ": ")),
                    args.deadline));
  below = staged(std::move(below), args.exchange.rank(), args.exchange.size());
  args.host_collectives = &below;
  return backend.make_collectives(args, collectives);
}

// *members is set as soon as the processes of the ranks are known, also if an error follows.
Status create_over(const std::shared_ptr<Context>& context, const Registry& registry, Exchange& exchange,
                   CommOptions options, Deadline deadline, std::shared_ptr<Comm>* comm, Generation generation,
                   std::shared_ptr<Arena> arena, std::shared_ptr<const Members>* members) {
  MeshOptions mesh_options;
  mesh_options.tcp = options.authenticated && options.spans_hosts;
  mesh_options.host = options.host;
  WEFT_TRY(process_network(&mesh_options.network));
  mesh_options.on_thread_start = context->options().thread_start;
  mesh_options.resolver = registry.resolver();
  mesh_options.heartbeat_timeout_ms = options.heartbeat_timeout_ms;
  mesh_options.deadline = deadline;
  std::unique_ptr<SocketMesh> mesh;
  WEFT_TRY(SocketMesh::make(exchange, mesh_options, context->clock(), context->log(), &mesh));

  if (options.failpoints != nullptr) {
    WEFT_TRY(options.failpoints->reach(FailPlace::kGroupSetup, generation.number, 0, context->clock()));
  }
  coll::Forced forced;
  Status understood =
      options.algorithms.size() > kMaxAlgorithms
          ? Status::error(Code::kArg, cat("WEFT_TUNE has ", options.algorithms.size(),
                                          " characters; at most ", kMaxAlgorithms, " are allowed"))
          : coll::parse_forced(options.algorithms, &forced);
  if (registry.measurements().shm_thresholds().size() > kMaxThresholds) {
    understood = Status::error(
        Code::kArg, cat("WEFT_SHM_THRESHOLDS has ", registry.measurements().shm_thresholds().size(),
                        " characters; at most ", kMaxThresholds, " are allowed"));
  }
  WEFT_TRY(agree_on(exchange, understood, deadline));

  // Loading all modules takes longer than the rest of group setup. On one host none is needed as a rule.
  std::vector<Offer> offers;
  const bool modules = options.host_label >= 0 || !is_one_host(*mesh, exchange.size());
  WEFT_TRY(exchange_offers(*context, exchange, registry, options, modules, deadline, &offers));
  if (!suffice(offers))
    WEFT_TRY(exchange_offers(*context, exchange, registry, options, true, deadline, &offers));
  options.id = offers[0].id;
  std::vector<int> labels;
  labels.reserve(offers.size());
  for (const Offer& offer : offers) labels.push_back(offer.host);
  LabelledHosts hosts(*mesh, labels, exchange.rank());
  if (options.host_label >= 0) {
    WEFT_TRY(agree_on(exchange, check_hosts(exchange, *mesh, labels), deadline));
  }

  BackendArgs args{exchange, context->clock(), context->log(), context->host()};
  args.fds = &hosts;
  args.allocator = context->options().host_allocator;
  args.arena_limit_bytes = options.arena_limit_bytes;
  args.deadline = deadline;
  args.arena = std::move(arena);
  args.failpoints = options.failpoints;
  args.accelerator = context->options().accelerator;
  args.progress_thread = context->engine().mode() == Engine::Mode::kThread;
  std::vector<ProcessInfo> ranks;
  WEFT_TRY(exchange_processes(exchange, hosts, deadline, &ranks));
  options.members = *members = std::make_shared<const Members>(exchange.rank(), ranks);
  args.crowded = is_crowded(ranks, *mesh);
  if (SystemClock* clock = context->system_clock(); clock != nullptr && args.crowded)
    clock->set_crowded(true);
  args.measurements = &registry.measurements();
  args.libraries = registry.libraries();
  args.device = options.device;
  const Backend* backend = nullptr;
  WEFT_TRY(choose_backend(args, registry, offers, &backend));
  std::unique_ptr<Collectives> collectives;
  const Status made = backend->on_device
                          ? make_on_device(*backend, args, registry, offers, forced, &collectives)
                          : make_collectives(*backend, args, forced, &collectives);
  WEFT_TRY(agree_on(exchange, made.with_prefix(cat("backend ", backend->name, ": ")), deadline));

  // Local decision: staging does not change the messages between ranks.
  if (context->accelerator() != nullptr && !backend->on_device)
    collectives = staged(std::move(collectives), exchange.rank(), exchange.size());

  exchange.finish();
  options.backend = backend->name;
  const int rank = exchange.rank();
  const int size = exchange.size();
  std::string created;
  if (context->log().enabled(LogLevel::kInfo))
    created = creation_text(registry, offers, options, rank, *backend, collectives->transports());
  Status opened;
  *comm = Comm::create(context, rank, size, std::move(options), std::move(mesh), std::move(collectives),
                       std::move(generation), &opened);
  if (!*comm) return opened.with_prefix(cat("backend ", backend->name, ": "));
  context->log().info(created);
  return {};
}

// Creates the communicator. Collective over the exchange. A rank that fails reports the reason to the others.
Status create(const std::shared_ptr<Context>& context, const Registry& registry, Exchange& exchange,
              CommOptions options, Deadline deadline, std::shared_ptr<Comm>* comm, Generation generation = {},
              std::shared_ptr<Arena> arena = nullptr) {
  std::shared_ptr<const Members> members;
  Status formed = guarded([&] {
    return create_over(context, registry, exchange, std::move(options), deadline, comm, std::move(generation),
                       std::move(arena), &members);
  });
  // Without memory for a longer text the error stays as it is.
  if (members != nullptr) (void)guarded_run([&] { formed = members->with_places(formed); }).ok();
  (void)guarded_run([&] { exchange.fail(formed); }).ok();
  return formed;
}

// The Exchange of a single rank.
class SoloExchange final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline /*deadline*/) override {
    all->assign(1, Bytes(mine.begin(), mine.end()));
    return {};
  }
};

// Fills in settings from the environment.
Status from_environment(BootstrapOptions* bootstrap, std::string* job) {
  Environment environment;
  const bool asked = bootstrap->method == BootstrapOptions::Method::kEnvironment;
  // A program that specifies the ranks itself ignores the launcher's variables.
  if (asked) {
    WEFT_TRY(process_environment(&environment));
  } else {
    environment.settings = process_settings();
  }
  const Settings& settings = environment.settings;
  *job = settings.job;
  if (bootstrap->options.backend.empty()) bootstrap->options.backend = settings.backend;
  if (!bootstrap->own_heartbeat) {
    WEFT_TRY(parse_heartbeat(settings.heartbeat, &bootstrap->options.heartbeat_timeout_ms));
  }
  WEFT_TRY(FailPoints::parse(settings.failpoints, &bootstrap->options.failpoints));
  if (bootstrap->options.algorithms.empty()) bootstrap->options.algorithms = settings.algorithms;
  if (bootstrap->options.flight_path.empty()) bootstrap->options.flight_path = settings.flight;
  bootstrap->options.job = *job;
  if (asked) {
    bootstrap->rank = environment.launch.rank;
    bootstrap->size = environment.launch.size;
    bootstrap->store = environment.store;
    bootstrap->store_external = environment.store_external;
    bootstrap->launch = environment.launch;
    if (bootstrap->secret.empty()) WEFT_TRY(load_secret(environment.secret, &bootstrap->secret));
  }
  const int rank = bootstrap->rank, size = bootstrap->size;
  return parse_hosts(settings.hosts, rank, size, &bootstrap->options.host_label);
}

// The ranks of other hosts would wait for their deadline.
void warn_of_loopback(const BootstrapOptions& bootstrap, Log& log) {
  const Launch& launch = bootstrap.launch;
  Address address;
  const bool elsewhere = launch.hosts > 1 || (launch.local_size > 0 && launch.local_size < launch.size);
  if (!elsewhere || !parse_address(bootstrap.store, &address).ok() || !address.local()) return;
  log.warn(cat("the ranks meet at ", bootstrap.store, ", which only this host reaches, but ",
               name(launch.launcher),
               " has started ranks on other hosts: set WEFT_STORE=tcp://HOST_OF_RANK_0:PORT"));
}

}  // namespace

Status create_comm(const std::shared_ptr<Context>& context, const Registry& registry,
                   BootstrapOptions bootstrap, std::shared_ptr<Comm>* comm) {
  std::string job;
  bootstrap.options.flight_path = context->options().flight_path;
  WEFT_TRY(from_environment(&bootstrap, &job));
  const Deadline deadline = Deadline::after(context->clock(), bootstrap.options.init_timeout_ms, 60'000);
  std::unique_ptr<Exchange> exchange;
  if (bootstrap.method == BootstrapOptions::Method::kCallback) {
    exchange = std::make_unique<CallbackExchange>(bootstrap.rank, bootstrap.size, bootstrap.all_gather,
                                                  bootstrap.all_gather_user_data, context->clock());
    // The caller's channel is trusted, and carries the communicator's key.
    bootstrap.options.authenticated = true;
    bootstrap.options.spans_hosts = true;  // it may; this cannot be determined
    bootstrap.options.met = "through the program's all-gather";
  } else if (bootstrap.size == 1) {
    exchange = std::make_unique<SoloExchange>();
    bootstrap.options.met = "at once, there are none";
  } else {
    WEFT_TRY(init_crypto());
    bootstrap.options.met =
        bootstrap.invitation ? "through the program's unique id"
                             : cat("at ", bootstrap.store, ", started by ", name(bootstrap.launch.launcher));
    warn_of_loopback(bootstrap, context->log());
    StoreOptions options;
    options.rank = bootstrap.rank;
    options.size = bootstrap.size;
    options.store = bootstrap.store;
    options.key = bootstrap.secret.empty() ? AuthKey::open() : AuthKey::from_secret(bootstrap.secret);
    options.job = job;
    options.invitation = bootstrap.invitation;
    if (options.invitation) {
      options.job = "";  // the id is for one communicator
    } else {
      options.sequence =
          context->next_rendezvous() + first_of(bootstrap.options.failpoints, FailCounter::kGroups);
    }
    options.munge = bootstrap.launch.launcher == Launcher::kSlurm;
    options.external = bootstrap.store_external;
    WEFT_TRY(process_network(&options.network));
    options.on_thread_start = context->options().thread_start;
    options.resolver = registry.resolver();
    std::unique_ptr<StoreExchange> store;
    WEFT_TRY(StoreExchange::make(options, context->clock(), context->log(), deadline, &store,
                                 std::move(bootstrap.server)));
    bootstrap.options.authenticated = store->authenticated();
    bootstrap.options.spans_hosts = store->spans_hosts();
    bootstrap.options.host = store->reachable_host();
    exchange = std::move(store);
  }
  return create(context, registry, *exchange, std::move(bootstrap.options), deadline, comm);
}

namespace {

// Agrees with all ranks on who is in which part. *exchange: among the ranks of this rank's part, if it is in
// one.
Status meet(const std::shared_ptr<Comm>& parent, bool no_color, int color, int key, uint32_t id,
            Deadline deadline, std::unique_ptr<Exchange>* exchange) {
  std::vector<Bytes> all;
  WEFT_TRY(parent->agree(encode(SplitChoice{no_color, color, key}), &all, deadline));
  if (no_color) return {};
  std::vector<std::tuple<int32_t, int>> members;  // key, rank
  for (int r = 0; r < parent->size(); r++) {
    SplitChoice place;
    if (!decode(all[static_cast<size_t>(r)], &place))
      return Status::error(Code::kMismatch,
                           cat("rank ", r,
                               " made another collective call while this rank called weft_comm_split: all "
                               "ranks must make the same calls in the same order"))
          .with_ranks({r});
    if (!place.none && place.color == color) members.emplace_back(place.key, r);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  ranks.reserve(members.size());
  for (const auto& [its_key, r] : members) ranks.push_back(r);
  *exchange = parent->subgroup(id, std::move(ranks));
  return {};
}

}  // namespace

Status split(const std::shared_ptr<Comm>& parent, const Registry& registry, bool no_color, int color, int key,
             std::shared_ptr<Comm>* part) {
  Context& context = parent->context();
  const Deadline deadline = Deadline::after(context.clock(), parent->options().init_timeout_ms, 60'000);
  const uint32_t id = parent->next_subgroup_id();
  std::unique_ptr<Exchange> exchange;
  CommOptions options;
  const Status met = guarded([&] {
    options = parent->options();
    return meet(parent, no_color, color, key, id, deadline, &exchange);
  });
  // Others may have met and wait for this rank in their part: they learn of it from the parent.
  if (met.code() == Code::kNoMemory) parent->fail(met);
  WEFT_TRY(met);
  if (no_color) return {};
  return create(parent->shared_context(), registry, *exchange, std::move(options), deadline, part);
}

Status shrink(const std::shared_ptr<Comm>& failed, const Registry& registry, const ShrinkOptions& options,
              std::shared_ptr<Comm>* survivors) {
  const auto create_generation = [&](Exchange& exchange, const Generation& generation, Deadline deadline,
                                     std::shared_ptr<Comm>* comm) {
    return create(failed->shared_context(), registry, exchange, failed->options(), deadline, comm, generation,
                  failed->collectives().arena());
  };
  return shrink(failed, options, create_generation, survivors);
}

}  // namespace weft
