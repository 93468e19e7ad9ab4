// The table of checks.
#include "finding.h"

namespace doctor {
namespace {

constexpr Check kChecks[] = {
    {"hosts", Severity::kError, "whether the hosts of --hosts can be asked over ssh",
     "ssh HOST weft --version must work without a password (--ssh, --weft)", hosts},
    {"environment", Severity::kError, "the launcher's variables and Weft's own",
     "see the text; weft run --help shows what a rank needs", environment},
    {"rendezvous", Severity::kError, "whether the ranks meet at the store, with one secret",
     "start all ranks at the same time, and check WEFT_STORE, its port in firewalls, and WEFT_SECRET_FILE on "
     "each host",
     rendezvous},
    {"open-files", Severity::kError, "the limit of file descriptors against what a rank needs",
     "ulimit -n 65536 (LimitNOFILE= of systemd, --ulimit nofile= of a container)", open_files},
    {"locked-memory", Severity::kError, "the limit of locked memory, where there are RDMA devices",
     "ulimit -l unlimited (LimitMEMLOCK=infinity of systemd, --ulimit memlock=-1 of a container)",
     locked_memory},
    {"address-space", Severity::kError, "the limit of address space against what an arena reserves",
     "ulimit -v unlimited, or a smaller weft_comm_options.arena_limit_bytes", address_space},
    {"threads", Severity::kError, "whether a rank can start threads",
     "raise ulimit -u or the control group's pids.max, or update the container runtime if clone3 is refused",
     threads},
    {"memory", Severity::kError, "memory that the machine and the control group have left",
     "raise the control group's memory limit, or start fewer ranks a host", memory},
    {"dev-shm", Severity::kError, "size and writability of /dev/shm, which NCCL, MPI and PyTorch use",
     "--shm-size=1g of a container, an emptyDir with medium Memory at /dev/shm in Kubernetes, or "
     "NCCL_SHM_DISABLE=1",
     dev_shm},
    {"temporary-folder", Severity::kWarning, "whether the folder of temporary files can be written to",
     "mount a writable folder there, or set TMPDIR", temporary_folder},
    {"flight-folder", Severity::kWarning, "whether flight records can be written to WEFT_FLIGHT",
     "name a folder that exists and is writable on every host", flight_folder},
    {"system-calls", Severity::kError, "system calls that a filter or an old kernel refuses",
     "allow the call in the container's seccomp profile, or update the kernel", system_calls},
    {"cross-memory", Severity::kWarning, "whether ranks may read each other's memory: ptrace_scope, seccomp",
     "allow process_vm_readv in the container's seccomp profile (--cap-add SYS_PTRACE)", cross_memory},
    {"user-namespace", Severity::kError, "rootless containers, and users that are not known from others",
     "set WEFT_SECRET_FILE to the same secret on all ranks, or map the user", user_namespace},
    {"shared-cores", Severity::kWarning, "ranks of a host that have fewer cores than ranks",
     "start fewer ranks a host, or bind each to cores of its own (mpirun --bind-to, srun --cpu-bind, "
     "taskset)",
     shared_cores},
    {"core-binding", Severity::kWarning, "ranks that are bound to one core, or to threads of one core",
     "give each rank at least two cores, or none of the bindings (mpirun --bind-to none)", core_binding},
    {"cpu-quota", Severity::kWarning, "the time that the control group's cpu controller allows",
     "raise the limit (resources.limits.cpu of Kubernetes, --cpus of a container), or start fewer ranks",
     cpu_quota},
    {"clock-source", Severity::kWarning, "how long reading the clock takes",
     "let the kernel use the tsc: see /sys/devices/system/clocksource and the kernel's log", clock_source},
    {"clock-offset", Severity::kNote, "how far the hosts' times of day are apart",
     "run an NTP client on every host", clock_offset},
    {"addresses", Severity::kError, "addresses besides loopback, and those that several hosts have",
     "give the host (or the container) a network", addresses},
    {"reachability", Severity::kError, "whether each host can connect to each address of the others",
     "open the ports between the hosts in firewalls and security groups, and check the routes", reachability},
    {"path-mtu", Severity::kError, "whether data passes where a connection is made",
     "set one MTU on all interfaces and switches of the path: too large packets are dropped on the way",
     path_mtu},
    {"mtu", Severity::kWarning, "interfaces with a small MTU, or with one that differs between hosts",
     "ip link set dev NAME mtu SIZE, the same on all hosts", mtu},
    {"ucx-devices", Severity::kError, "the networks that UCX uses",
     "check WEFT_UCX_NET_DEVICES and WEFT_UCX_TLS, and that UCX's InfiniBand module is installed (ucx_info "
     "-d)",
     ucx_devices},
    {"library", Severity::kError, "whether the library can be used at all",
     "see the text, and the other findings", library},
    {"versions", Severity::kWarning, "Weft's version on each rank", "install the same Weft on all hosts",
     versions},
    {"backends", Severity::kError, "backends that are wanted, and those that connect all ranks",
     "install the library and Weft's module for it, or choose another WEFT_BACKEND (weft info lists them)",
     backends},
    {"cuda", Severity::kError, "CUDA devices, and NCCL on machines that have them",
     "install the CUDA runtime, NCCL and Weft's modules for them (weft info gives the reasons)", cuda},
    {"mpi", Severity::kNote, "backend mpi, where mpirun started the ranks",
     "nothing, unless the data should go over MPI: then install Weft's module for this MPI", mpi},
    {"settings", Severity::kWarning, "variables for tests and debuggers", "unset it for production",
     settings},
    {"communicator", Severity::kError, "whether the ranks can create a communicator", "see the text",
     communicator},
    {"transfers", Severity::kWarning, "latency and bandwidth of every pair of ranks, against the median pair",
     "compare the links of these hosts (ethtool NAME, ethtool -S NAME) and what else runs on them",
     transfers},
};

}  // namespace

std::span<const Check> checks() {
  return kChecks;
}

}  // namespace doctor
