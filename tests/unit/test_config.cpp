// lib/environment: the variables of Weft and of launchers, and errors in them.
#include "environment/config.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "environment/network.h"
#include "environment/slurm.h"
#include "support/catch.h"
#include "support/users.h"

namespace unit_config {

using namespace weft;

namespace {

using Values = std::map<std::string, std::string>;

Status read(const Values& values, Environment* environment) {
  const Getter get = [&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
  return read_environment(Variables(get), ProcessFacts{1000, 77, 66}, environment);
}

// Returns the text of the error that these variables cause; empty if none.
std::string error_of(const Values& variables) {
  Environment environment;
  return read(variables, &environment).text();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A temporary file with this content and mode. The destructor removes it.
struct SecretFile {
  explicit SecretFile(const std::string& content, mode_t mode) {
    const int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    REQUIRE(::fchmod(fd, mode) == 0);
    ::close(fd);
  }
  ~SecretFile() { ::unlink(path); }
  char path[32] = "/tmp/weft-test-secret-XXXXXX";
};

const Values kMpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "2047868929"},
                        {"PMIX_SERVER_URI2", "2047868928.0;tcp4://127.0.0.1:53249"}};

}  // namespace

TEST_CASE("a process without a launcher is rank 0 of 1") {
  Environment environment;
  REQUIRE(read({}, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kNone);
  CHECK(environment.launch.rank == 0);
  CHECK(environment.launch.size == 1);
  CHECK(environment.store.rfind("unix:@weft-1000-", 0) == 0);
}

TEST_CASE("weft's own variables give rank, size, store, secret, backend and log level") {
  Environment environment;
  REQUIRE(read({{"WEFT_RANK", "3"},
                {"WEFT_SIZE", "4"},
                {"WEFT_LOCAL_SIZE", "2"},
                {"WEFT_STORE", "tcp://10.0.0.1:7000"},
                {"WEFT_STORE_EXTERNAL", "1"},
                {"WEFT_JOB", "night run"},
                {"WEFT_SECRET", "0123456789abcdef"},
                {"WEFT_BACKEND", "shm"},
                {"WEFT_TUNE", "all_reduce:direct"}},
               &environment)
              .ok());
  CHECK(environment.launch.launcher == Launcher::kWeft);
  CHECK(environment.launch.rank == 3);
  CHECK(environment.launch.size == 4);
  CHECK(environment.launch.local_size == 2);
  CHECK(environment.store == "tcp://10.0.0.1:7000");
  CHECK(environment.store_external);
  CHECK(environment.settings.job == "night run");
  CHECK(environment.secret.secret.size() == 16);
  CHECK(environment.settings.backend == "shm");
  CHECK(environment.settings.algorithms == "all_reduce:direct");
}

TEST_CASE("mpirun's ranks of one host bootstrap over a unix socket named after user and job") {
  Environment environment;
  REQUIRE(read(kMpirun, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kOpenMpi);
  CHECK(environment.launch.rank == 1);
  CHECK(environment.launch.size == 2);
  CHECK(environment.launch.local_size == 2);
  const std::string store = environment.store;
  CHECK(store.rfind("unix:@weft-1000-", 0) == 0);

  Values other_job = kMpirun;
  other_job["PMIX_NAMESPACE"] = "2047868930";
  REQUIRE(read(other_job, &environment).ok());
  CHECK(environment.store != store);
}

TEST_CASE("mpirun over several hosts gives an error that WEFT_STORE must be set") {
  Values variables = kMpirun;
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  CHECK(contains(error_of(variables), "WEFT_STORE=tcp://"));
  variables["WEFT_STORE"] = "tcp://node1:7000";
  CHECK(error_of(variables).empty());
}

TEST_CASE("torchrun's ranks bootstrap next to its store's port, on one host over a unix socket") {
  Values variables = {{"RANK", "5"},         {"WORLD_SIZE", "8"},      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "x"},
                      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"},    {"SLURM_STEP_NUM_TASKS", "2"}};
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kTorchrun);
  CHECK(environment.launch.rank == 5);
  CHECK(environment.store == "tcp://n0:29501");

  variables["MASTER_ADDR"] = "fd00::2";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store == "tcp://[fd00::2]:29501");

  variables["LOCAL_WORLD_SIZE"] = "8";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store.rfind("unix:@weft-1000-", 0) == 0);

  variables["LOCAL_WORLD_SIZE"] = "4";
  variables["MASTER_PORT"] = "65535";
  CHECK(contains(error_of(variables), "MASTER_PORT is \"65535\""));
  variables.erase("MASTER_PORT");
  CHECK(contains(error_of(variables), "MASTER_PORT"));
}

TEST_CASE("hydra's ranks of one host bootstrap although hydra names no job") {
  Environment environment;
  REQUIRE(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kPmi);
  CHECK(environment.store.rfind("unix:@weft-1000-", 0) == 0);
}

TEST_CASE("srun's tasks are ranks, a batch script is not") {
  Values variables = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "12"}};
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kNone);
  CHECK(environment.launch.size == 1);

  // A container may forward only some of the variables. A rank other than 0 then proves a task of srun.
  CHECK(contains(error_of({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}}), "SLURM_PROCID=3"));

  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_STEP_NUM_TASKS"] = "4";
  variables["SLURM_STEP_NUM_NODES"] = "1";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kSlurm);
  CHECK(environment.launch.size == 4);
  CHECK(environment.launch.local_size == 4);
  CHECK(environment.settings.job == "12/0");

  // Without a secret, a file in the job's folder has a key.
  variables["SLURM_STEP_NUM_NODES"] = "2";
  variables["HOME"] = "/home/user";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store == "file:///home/user");
  variables["SLURM_SUBMIT_DIR"] = "/home/user/job";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store == "file:///home/user/job");

  // With a secret: the port is the step's, so that steps of one job do not meet.
  variables["WEFT_SECRET_FILE"] = "/home/user/secret";
  CHECK(contains(error_of(variables), "SLURM_STEP_NODELIST"));
  variables["SLURM_STEP_NODELIST"] = "node[07-09],login1";
  REQUIRE(read(variables, &environment).ok());
  const std::string store = environment.store;
  CHECK(store.rfind("tcp://node07:", 0) == 0);
  const int port = std::atoi(store.substr(store.rfind(':') + 1).c_str());
  CHECK(port >= 10000);
  CHECK(port < 30000);
  variables["SLURM_STEP_ID"] = "1";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store != store);
  variables["WEFT_PORTS"] = "4711-4711";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store == "tcp://node07:4711");
}

TEST_CASE("ports and interfaces are read strictly") {
  const auto network_of = [](const Values& values, NetworkSettings* network) {
    const Getter get = [&](const char* name) -> const char* {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    };
    return read_network(Variables(get), network);
  };
  NetworkSettings network;
  REQUIRE(network_of({}, &network).ok());
  CHECK(network.first_port == 0);
  CHECK(network.ports() == 1);
  CHECK(!network.chooses_interfaces());
  REQUIRE(
      network_of({{"WEFT_PORTS", "20000-20063"}, {"WEFT_INTERFACES", "ib0,^docker0,eth0.5"}}, &network).ok());
  CHECK(network.first_port == 20000);
  CHECK(network.ports() == 64);
  CHECK(network.interfaces == std::vector<std::string>{"ib0", "eth0.5"});
  CHECK(network.left_out == std::vector<std::string>{"docker0"});
  CHECK((network.ipv4 && network.ipv6));
  const auto families = [&](const char* text) {
    REQUIRE(network_of({{"WEFT_INTERFACES", text}}, &network).ok());
    return cat(network.ipv4 ? "4" : "", network.ipv6 ? "6" : "", " of ", network.interfaces.size());
  };
  CHECK(families("ipv6,eth0") == "6 of 1");
  CHECK(families("^ipv6") == "4 of 0");
  CHECK(network.chooses_interfaces());
  CHECK(families("ipv4,ipv6") == "46 of 0");
  for (const char* wrong : {"20000", "20000-", "-20000", "2-1", "0-5", "1-65536", "1-2-3", "a-b", "1 - 2"}) {
    const std::string text = error_of({{"WEFT_PORTS", wrong}});
    INFO(wrong << ": " << text);
    CHECK(contains(text, cat("WEFT_PORTS is \"", wrong, "\", but must be FIRST-LAST")));
  }
  for (const char* wrong : {",", "eth0,", "^", "eth0,,ib0", "a b", "^^eth0", "a/b", "sixteen-letters-"}) {
    const std::string text = error_of({{"WEFT_INTERFACES", wrong}});
    INFO(wrong << ": " << text);
    CHECK(contains(text, cat("WEFT_INTERFACES is \"", wrong, "\", but must be names of interfaces")));
  }
}

TEST_CASE("a node of Kubeflow is a rank, if the container starts the program itself") {
  Values variables = {{"PET_NNODES", "4"},
                      {"PET_NODE_RANK", "3"},
                      {"PET_NPROC_PER_NODE", "1"},
                      {"PET_MASTER_ADDR", "train-node-0-0.train"},
                      {"PET_MASTER_PORT", "29500"}};
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  const Launch& launch = environment.launch;
  CHECK(launch.launcher == Launcher::kKubeflow);
  CHECK(launch.rank == 3);
  CHECK(launch.size == 4);
  CHECK(launch.local_rank == 0);
  CHECK(launch.local_size == 1);
  CHECK(launch.host == 3);
  CHECK(launch.hosts == 4);
  CHECK(launch.job == "train-node-0-0.train/29500");
  CHECK(environment.store == "tcp://train-node-0-0.train:29500");  // torchrun does not use it

  for (const char* several : {"2", "auto", "gpu"}) {
    variables["PET_NPROC_PER_NODE"] = several;
    const std::string text = error_of(variables);
    INFO(text);
    CHECK(contains(text, cat("PET_NPROC_PER_NODE=", several)));
    CHECK(contains(text, "start the program with torchrun, or with weft run"));
  }
  // torchrun's ranks inherit its options.
  variables.insert({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "1"}});
  REQUIRE(read(variables, &environment).ok());
  CHECK(launch.launcher == Launcher::kTorchrun);
  CHECK(launch.rank == 9);

  variables = {{"PET_NNODES", "2:4"}, {"PET_NODE_RANK", "0"}};
  CHECK(contains(error_of(variables), "PET_NNODES is \"2:4\""));
  variables["PET_NNODES"] = "2";
  CHECK(contains(error_of(variables), "PET_MASTER_ADDR is not set"));
  variables["PET_NNODES"] = "1";
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.store.starts_with("unix:@"));
}

TEST_CASE("the first host of Slurm's list, and the tasks of each node, are found") {
  const std::map<std::string, std::string> hosts = {{"node1", "node1"},
                                                    {"a,b", "a"},
                                                    {"node[07-09,12],login1", "node07"},
                                                    {"n[3,5]", "n3"},
                                                    {"r[1-2]c[04-08]", "r1c04"},
                                                    {"n[010]-ib", "n010-ib"},
                                                    {"", ""},
                                                    {"n[", ""},
                                                    {"n[]", ""},
                                                    {"n]", ""},
                                                    {",a", ""}};
  for (const auto& [list, first] : hosts) {
    INFO(list);
    CHECK(first_slurm_host(list) == first);
  }
  const auto tasks = [](int node) { return slurm_tasks_on("4,2(x3),1", node); };
  CHECK(tasks(0) == 4);
  CHECK(tasks(1) == 2);
  CHECK(tasks(3) == 2);
  CHECK(tasks(4) == 1);
  CHECK(tasks(5) == 0);
  for (const char* wrong : {"", "x", "2(", "2(x", "2(x0)", "2(x-1)", "2(x2", "2x2", "-2", "99999999999"}) {
    INFO(wrong);
    CHECK(slurm_tasks_on(wrong, 1) == 0);
  }
}

TEST_CASE("a rank's place among the ranks of its host is read from every launcher that says it") {
  struct Case {
    Values values;
    int local_rank, local_size, host, hosts;
  };
  const Values store = {{"WEFT_STORE", "tcp://n0:7000"}};
  const Case cases[] = {
      {{{"WEFT_RANK", "5"}, {"WEFT_SIZE", "8"}, {"WEFT_LOCAL_RANK", "1"}, {"WEFT_LOCAL_SIZE", "4"}},
       1,
       4,
       -1,
       0},
      {{{"WEFT_RANK", "5"}, {"WEFT_SIZE", "8"}}, -1, 0, -1, 0},
      {{{"WEFT_RANK", "5"}, {"WEFT_SIZE", "8"}, {"WEFT_LOCAL_SIZE", "8"}}, 5, 8, 0, 1},
      {{{"WEFT_RANK", "5"}, {"WEFT_SIZE", "8"}, {"WEFT_LOCAL_SIZE", "1"}}, 0, 1, -1, 0},
      {{{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"GROUP_RANK", "1"},
        {"GROUP_WORLD_SIZE", "2"}},
       1,
       4,
       1,
       2},
      {{{"HOROVOD_RANK", "5"},
        {"HOROVOD_SIZE", "8"},
        {"HOROVOD_LOCAL_RANK", "1"},
        {"HOROVOD_LOCAL_SIZE", "4"},
        {"HOROVOD_CROSS_RANK", "1"},
        {"HOROVOD_CROSS_SIZE", "2"}},
       1,
       4,
       1,
       2},
      {{{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
       1,
       4,
       -1,
       0},
      {{{"MV2_COMM_WORLD_RANK", "5"},
        {"MV2_COMM_WORLD_SIZE", "8"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}},
       1,
       4,
       -1,
       0},
      {{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}},
       1,
       4,
       -1,
       0},
      {{{"JSM_NAMESPACE_RANK", "5"},
        {"JSM_NAMESPACE_SIZE", "8"},
        {"JSM_NAMESPACE_LOCAL_RANK", "1"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "4"}},
       1,
       4,
       -1,
       0},
      {{{"FLUX_TASK_RANK", "5"},
        {"FLUX_JOB_SIZE", "8"},
        {"FLUX_TASK_LOCAL_ID", "1"},
        {"FLUX_JOB_NNODES", "2"}},
       1,
       0,
       -1,
       2},
      // PMI's ranks that PALS has started.
      {{{"PMI_RANK", "5"},
        {"PMI_SIZE", "8"},
        {"PALS_RANKID", "5"},
        {"PALS_LOCAL_RANKID", "1"},
        {"PALS_LOCAL_SIZE", "4"},
        {"PALS_NODEID", "1"}},
       1,
       4,
       1,
       0},
      {{{"SLURM_PROCID", "5"},
        {"SLURM_STEP_NUM_TASKS", "8"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_NODEID", "1"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}},
       1,
       4,
       1,
       2},
      {{}, 0, 1, 0, 1},
  };
  for (const Case& each : cases) {
    Values values = each.values;
    values.insert(store.begin(), store.end());
    INFO((values.begin()->first));
    Environment environment;
    const Status status = read(values, &environment);
    INFO(status.text());
    REQUIRE(status.ok());
    CHECK(environment.launch.local_rank == each.local_rank);
    CHECK(environment.launch.local_size == each.local_size);
    CHECK(environment.launch.host == each.host);
    CHECK(environment.launch.hosts == each.hosts);
  }
  CHECK(contains(
      error_of({{"WEFT_RANK", "1"}, {"WEFT_SIZE", "4"}, {"WEFT_LOCAL_SIZE", "2"}, {"WEFT_LOCAL_RANK", "2"}}),
      "WEFT_LOCAL_RANK is \"2\", but must be a whole number from 0 to 1"));
}

TEST_CASE("a variable that Weft does not know is found, with the name that it resembles") {
  ::setenv("WEFT_BACKND", "shm", 1);
  ::setenv("WEFT_TEST_SOMETHING", "1", 1);
  const std::vector<std::string> unknown = unknown_variables();
  CHECK(std::count(unknown.begin(), unknown.end(), "WEFT_BACKND") == 1);
  CHECK(std::count(unknown.begin(), unknown.end(), "WEFT_TEST_SOMETHING") == 0);
  CHECK(std::count(unknown.begin(), unknown.end(), "WEFT_BACKEND") == 0);
  ::unsetenv("WEFT_BACKND");
  ::unsetenv("WEFT_TEST_SOMETHING");
  CHECK(similar_variable("WEFT_BACKND") == "WEFT_BACKEND");
  CHECK(similar_variable("WEFT_HEARTBEAT") == "WEFT_HEARTBEAT_MS");
  CHECK(similar_variable("WEFT_SOMETHING_ELSE").empty());
}

TEST_CASE("every launcher's rank and size are read, and its ranks of one host bootstrap over a unix socket") {
  const std::map<std::string, Values> launchers = {
      {"torchrun",
       {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}, {"TORCHELASTIC_RUN_ID", "x"}}},
      {"horovodrun",
       {{"HOROVOD_RANK", "2"},
        {"HOROVOD_SIZE", "3"},
        {"HOROVOD_LOCAL_SIZE", "3"},
        {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
        {"HOROVOD_GLOO_RENDEZVOUS_PORT", "4711"}}},
      {"MVAPICH2",
       {{"MV2_COMM_WORLD_RANK", "2"}, {"MV2_COMM_WORLD_SIZE", "3"}, {"MV2_COMM_WORLD_LOCAL_SIZE", "3"}}},
      {"jsrun",
       {{"JSM_NAMESPACE_RANK", "2"},
        {"JSM_NAMESPACE_SIZE", "3"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "3"},
        {"PMIX_RANK", "2"}}},
      {"Flux",
       {{"FLUX_TASK_RANK", "2"}, {"FLUX_JOB_SIZE", "3"}, {"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_ID", "f2x"}}},
      // Other launchers' variables, together with a launcher that does not give the number of ranks.
      {"PMI", {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PALS_RANKID", "2"}, {"PALS_LOCAL_SIZE", "3"}}},
      {"Slurm",
       {{"SLURM_PROCID", "2"},
        {"SLURM_STEP_NUM_TASKS", "3"},
        {"SLURM_STEP_NUM_NODES", "1"},
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"PMIX_RANK", "2"},
        {"WORLD_SIZE", "8"}}},
  };
  for (const auto& [launcher, variables] : launchers) {
    INFO(launcher);
    Environment environment;
    const Status status = read(variables, &environment);
    INFO(status.text());
    REQUIRE(status.ok());
    CHECK(name(environment.launch.launcher) == launcher);
    CHECK(environment.launch.rank == 2);
    CHECK(environment.launch.size == 3);
    CHECK(environment.launch.local_size == 3);
    CHECK(environment.store.rfind("unix:@weft-1000-", 0) == 0);
  }
}

TEST_CASE("Flux and Slurm determine whether PMI's ranks are on one host, but only for the same job") {
  Values variables = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}};
  variables["FLUX_JOB_NNODES"] = "1";
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kPmi);
  CHECK(environment.launch.local_size == 4);
  variables["FLUX_JOB_NNODES"] = "2";
  CHECK(contains(error_of(variables), "set WEFT_STORE=tcp://"));
  // mpiexec inside a task of its own.
  variables["FLUX_JOB_NNODES"] = "1";
  variables["FLUX_TASK_RANK"] = "0";
  variables["FLUX_JOB_SIZE"] = "1";
  CHECK(contains(error_of(variables), "set WEFT_STORE=tcp://"));
}

TEST_CASE("a launcher that does not give the number of ranks is an error that names its variable") {
  for (const char* rank :
       {"PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK"}) {
    INFO(rank);
    for (const char* value : {"0", "3"}) {
      Environment environment;
      const Status status = read({{rank, value}}, &environment);
      CHECK(status.code() == Code::kArg);
      CHECK(contains(status.text(), std::string(rank) + "=" + value));
      CHECK(contains(status.text(), "WEFT_SIZE=1"));
    }
    // The setting that the error names solves it.
    Environment environment;
    REQUIRE(read({{rank, "3"}, {"WEFT_SIZE", "1"}}, &environment).ok());
    CHECK(environment.launch.rank == 0);
    CHECK(environment.launch.size == 1);
    REQUIRE(
        read({{rank, "3"}, {"WEFT_RANK", "3"}, {"WEFT_SIZE", "4"}, {"WEFT_STORE", "unix:@x"}}, &environment)
            .ok());
    CHECK(environment.launch.rank == 3);
    CHECK(environment.launch.size == 4);
  }
}

TEST_CASE("a launcher's size without a rank is an error, unless it is 1") {
  for (const char* size : {"WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
                           "PMI_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    INFO(size);
    CHECK(contains(error_of({{size, "512"}}), std::string(size) + "=512"));
    Environment environment;
    REQUIRE(read({{size, "1"}}, &environment).ok());
    CHECK(environment.launch.rank == 0);
    CHECK(environment.launch.size == 1);
  }
  Environment environment;
  REQUIRE(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, &environment).ok());
  CHECK(environment.launch.size == 1);
}

TEST_CASE("a rank number of an inner launcher that an outer one contradicts is an error") {
  // One of four ranks that one task of srun has launched.
  const Values step = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "3"}};
  const std::string text = error_of(step);
  CHECK(contains(text, "PMIX_RANK=3"));
  CHECK(contains(text, "SLURM_PROCID=0"));
}

TEST_CASE("variables that Open MPI sets without mpirun are no sign of a launcher") {
  Values variables = {
      {"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "1417412609"}, {"OMPI_MCA_orte_ess_num_procs", "1"}};
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.launcher == Launcher::kNone);
  CHECK(environment.launch.rank == 0);
  CHECK(environment.launch.size == 1);
  // A task of srun that MPI does not know of.
  variables.insert({{"SLURM_PROCID", "3"},
                    {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_STEP_NUM_NODES", "1"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_STEP_ID", "0"}});
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.rank == 3);
  CHECK(environment.launch.size == 4);
}

TEST_CASE("WEFT_SIZE=1 alone means one rank, a larger size needs a rank number") {
  Environment environment;
  REQUIRE(read({{"WEFT_SIZE", "1"}}, &environment).ok());
  CHECK(environment.launch.rank == 0);
  CHECK(environment.launch.size == 1);
  CHECK(contains(error_of({{"WEFT_SIZE", "2"}}), "WEFT_SIZE is set, but WEFT_RANK is not"));
}

TEST_CASE("settings are read with and without a launcher's variables") {
  const Values values = {
      {"WEFT_RANK", "x"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"WEFT_BACKEND", "shm"}, {"WEFT_JOB", "j"}};
  const Getter get = [&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
  Settings settings;
  read_settings(Variables(get), &settings);
  CHECK(settings.backend == "shm");
  CHECK(settings.job == "j");
}

TEST_CASE("the heartbeat variable accepts milliseconds from 100 or off, and its error says so") {
  Environment environment;
  CHECK(read({{"WEFT_HEARTBEAT_MS", "2500"}}, &environment).ok());
  CHECK(environment.settings.heartbeat == "2500");
  int64_t ms = 5000;
  CHECK(parse_heartbeat("", &ms).ok());
  CHECK(ms == 5000);
  CHECK(parse_heartbeat("100", &ms).ok());
  CHECK(ms == 100);
  CHECK(parse_heartbeat("off", &ms).ok());
  CHECK(ms == -1);
  for (const char* const wrong : {"99", "0", "-1", "5s", "1e3", "never", " 500", "99999999999999999999"}) {
    ms = 7;
    const Status status = parse_heartbeat(wrong, &ms);
    CHECK(status.code() == Code::kArg);
    CHECK(ms == 7);
    CHECK(contains(status.text(), std::string("WEFT_HEARTBEAT_MS is \"") + wrong + '"'));
    CHECK(contains(status.text(), "milliseconds from 100 on, or \"off\""));
  }
}

TEST_CASE("weft's variables override a launcher's, and one of the pair alone is an error that names both") {
  Values variables = kMpirun;
  variables["WEFT_RANK"] = "0";
  const std::string text = error_of(variables);
  CHECK(contains(text, "WEFT_RANK is set, but WEFT_SIZE is not"));
  CHECK(contains(text, "OMPI_COMM_WORLD_RANK=1"));
  variables["WEFT_SIZE"] = "3";
  CHECK(contains(error_of(variables), "WEFT_STORE is not"));
  variables["WEFT_STORE"] = "unix:@x";
  Environment environment;
  REQUIRE(read(variables, &environment).ok());
  CHECK(environment.launch.size == 3);
}

TEST_CASE("numbers are strict and errors name the variable and its value") {
  for (const char* bad : {"x", "-1", "+1", " 1", "1 ", "0x1", "1.0", "99999999999999999999", "2147483648"}) {
    const std::string text = error_of({{"WEFT_RANK", bad}, {"WEFT_SIZE", "4"}, {"WEFT_STORE", "unix:@x"}});
    INFO(bad);
    CHECK(contains(text, "WEFT_RANK"));
    CHECK(contains(text, bad));
  }
  CHECK(contains(error_of({{"WEFT_RANK", "4"}, {"WEFT_SIZE", "4"}, {"WEFT_STORE", "unix:@x"}}),
                 "WEFT_RANK is 4, but WEFT_SIZE is 4"));
  CHECK(contains(error_of({{"WEFT_RANK", "0"}, {"WEFT_SIZE", "0"}}), "WEFT_SIZE is \"0\""));
  CHECK(contains(error_of({{"WEFT_STORE_EXTERNAL", "2"}}), "WEFT_STORE_EXTERNAL"));
}

TEST_CASE(
    "a secret file that a group can read is taken from root alone, and only of a group of this process") {
  test::need_other_users();
  constexpr uid_t kUser = 4711;
  constexpr gid_t kGroup = 4712, kExtra = 4713, kForeign = 4714;
  struct Case {
    mode_t mode;
    uid_t owner;
    gid_t group;
    bool accepted;
  };
  constexpr Case kCases[] = {
      {0600, kUser, kGroup, true},  {0400, kUser, kForeign, true},  {0440, 0, kGroup, true},
      {0640, 0, kGroup, true},      {0440, 0, kExtra, true},        {0440, 0, kForeign, false},
      {0640, 0, kForeign, false},   {0640, kUser, kGroup, false},   {0440, kUser, kGroup, false},
      {0660, 0, kGroup, false},     {0450, 0, kGroup, false},       {0444, 0, kGroup, false},
      {0604, kUser, kGroup, false}, {0640, kUser, kForeign, false}, {0644, 4799, kGroup, false},
  };
  for (const Case& each : kCases) {
    INFO(std::oct << each.mode << std::dec << ", owner " << each.owner << ", group " << each.group);
    const SecretFile file("0123456789abcdef", 0600);
    REQUIRE(::chown(file.path, each.owner, each.group) == 0);
    REQUIRE(::chmod(file.path, each.mode) == 0);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {  // in a child, because a process becomes another user for good
      const bool user = ::setgroups(1, &kExtra) == 0 && ::setresgid(kGroup, kGroup, kGroup) == 0 &&
                        ::setresuid(kUser, kUser, kUser) == 0;
      Bytes secret;
      const Status status = load_secret({{}, file.path}, &secret);
      const std::string text = status.ok() ? "ok" : status.text();
      const bool said = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      ::_exit(user && said && (status.ok() || status.code() == Code::kAuth) ? 0 : 1);
    }
    ::close(ends[1]);
    char bytes[1024];
    const ssize_t got = ::read(ends[0], bytes, sizeof bytes);
    ::close(ends[0]);
    int state = -1;
    REQUIRE(::waitpid(pid, &state, 0) == pid);
    CHECK(state == 0);
    const std::string text(bytes, static_cast<size_t>(std::max<ssize_t>(got, 0)));
    CHECK((text == "ok") == each.accepted);
    if (each.accepted) continue;
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(each.mode));
    for (const std::string& part : {std::string("mode ") + mode, "owner " + std::to_string(each.owner),
                                    "group " + std::to_string(each.group), std::string("chmod")}) {
      INFO(text);
      CHECK(contains(text, part));
    }
  }
}

TEST_CASE("a secret must come from one place, be long enough, and its file be private") {
  CHECK(contains(error_of({{"WEFT_SECRET", "short"}}), "5 bytes"));
  CHECK(contains(error_of({{"WEFT_SECRET", "0123456789abcdef"}, {"WEFT_SECRET_FILE", "/x"}}), "both"));

  Bytes secret;
  const auto code_of_file = [&](const char* path) { return load_secret({{}, path}, &secret).code(); };
  const SecretFile good("0123456789abcdef\n", 0600);
  REQUIRE(load_secret({{}, good.path}, &secret).ok());
  CHECK(secret.size() == 16);

  const SecretFile open_to_all("0123456789abcdef", 0644);
  CHECK(code_of_file(open_to_all.path) == Code::kAuth);
  const SecretFile too_long(std::string(300, 'x'), 0600);
  CHECK(code_of_file(too_long.path) == Code::kAuth);
  CHECK(code_of_file("/nowhere/secret") == Code::kSystem);
  CHECK(code_of_file("/dev/zero") == Code::kAuth);
}

}  // namespace unit_config
