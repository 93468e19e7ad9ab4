// A rank for test_link.py: runs all-reduces until the communicator fails, and prints the failure. The rank
// that the argument CUTTER names disconnects its host's network in the middle.
#include <weft/weft.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const int cutter = argc > 1 ? std::atoi(argv[1]) : -1;
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_context_create(nullptr, &context, &error) != WEFT_OK ||
      weft_comm_create(context, nullptr, &comm, &error) != WEFT_OK) {
    std::fprintf(stderr, "%s\n", error.text);
    return 2;
  }
  int32_t rank = -1;
  weft_comm_rank(comm, &rank);
  std::vector<float> data(100'000, 1.0f);
  weft_status status = WEFT_OK;
  for (int i = 0; status == WEFT_OK; i++) {
    if (i == 20 && rank == cutter && std::system("ip link set eth0 down") != 0) return 3;
    status = weft_all_reduce(comm, data.data(), data.data(), data.size(), WEFT_DTYPE_F32, WEFT_OP_MAX,
                             nullptr, nullptr);
  }
  weft_comm_error(comm, &error);
  std::printf("status %d evidence %d: %s\n", status, error.evidence, error.text);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return 0;
}
