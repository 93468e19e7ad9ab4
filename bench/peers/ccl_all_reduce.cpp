// Measures oneCCL's ccl::allreduce over Intel MPI.
#include <oneapi/ccl.hpp>

#include "all_reduce_loop.h"

// Hooks of a profiler, which the static library calls only if they are not null.
extern "C" {
void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;
}

namespace {

ccl::communicator* world = nullptr;

void all_reduce(float* data, size_t count) {
  ccl::allreduce(data, data, count, ccl::datatype::float32, ccl::reduction::sum, *world).wait();
}

}  // namespace

int main(int argc, char** argv) {
  ccl::init();
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, wrong = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  {
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
      store = ccl::create_main_kvs();
      address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    ccl::communicator made = ccl::create_communicator(ranks, rank, store);
    world = &made;
    wrong = measure_all(argc, argv, all_reduce);
  }
  MPI_Finalize();
  return wrong;
}
