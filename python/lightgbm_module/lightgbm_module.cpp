// The module libweft-lightgbm.so: the functions through which LightGBM's machines exchange data, over a
// communicator of Weft. The Python module weftsync.lightgbm loads it and gives the functions to
// LGBM_NetworkInitWithFunctions. They are C++ because a failure must reach LightGBM as an exception, which
// its C API turns into an error of the call. LightGBM's network belongs to a thread, and so does the
// communicator here.
#include <weft/weft.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#define WEFT_LIGHTGBM_API extern "C" __attribute__((visibility("default")))

// The communicator, and the functions of the libweft.so that it belongs to. Python makes it.
struct weft_lightgbm_network {
  weft_comm* comm;
  int32_t rank;
  int32_t size;
  int64_t timeout_ms;  // of an exchange; 0: the communicator's
  decltype(&weft_all_gather_v) all_gather_v;
  decltype(&weft_all_to_all_v) all_to_all_v;
  decltype(&weft_last_error) last_error;
};

namespace {

// Combines two blocks of `bytes` bytes, whose items have item_bytes: output = output + input, for example.
using Reducer = void (*)(const char* input, char* output, int item_bytes, int32_t bytes);

constexpr uint64_t kAlignment = 16;  // of received blocks

thread_local weft_lightgbm_network network{};
thread_local std::vector<char> received;

// Throws unless the call of LightGBM fits the communicator.
void check_network(int blocks) {
  if (network.comm == nullptr) {
    throw std::runtime_error(
        "Weft: this thread is in no weftsync.lightgbm.Network: train inside its with block, on its thread");
  }
  if (blocks != network.size) {
    throw std::runtime_error("Weft: LightGBM exchanges " + std::to_string(blocks) +
                             " blocks, but the communicator has " + std::to_string(network.size) + " ranks");
  }
}

void check_status(weft_status status) {
  if (status == WEFT_OK) return;
  weft_error error = WEFT_ERROR_INIT;
  network.last_error(&error);
  throw std::runtime_error("Weft: " + std::string(error.text[0] != 0 ? error.text : "the exchange failed"));
}

weft_coll_options options() {
  weft_coll_options made = WEFT_COLL_OPTIONS_INIT;
  made.timeout_ms = network.timeout_ms;
  return made;
}

std::vector<uint64_t> widened(const int32_t* values) {
  return {values, values + network.size};
}

}  // namespace

// Sets the network of the calling thread; NULL: none.
WEFT_LIGHTGBM_API void weft_lightgbm_use(const weft_lightgbm_network* made) {
  network = made != nullptr ? *made : weft_lightgbm_network{};
  if (made == nullptr) received = {};
}

// LightGBM's Allgather: block r of the output, starts[r], becomes the input of rank r.
WEFT_LIGHTGBM_API void weft_lightgbm_all_gather(char* input, int32_t input_bytes, const int32_t* starts,
                                                const int32_t* lengths, int blocks, char* output,
                                                int32_t output_bytes) {
  check_network(blocks);
  char* const mine = output + starts[network.rank];
  // LightGBM passes one buffer as input and output, where the input is not in its place.
  if (input + input_bytes > output && input < output + output_bytes) {
    std::memmove(mine, input, static_cast<size_t>(input_bytes));
    input = mine;
  }
  const std::vector<uint64_t> counts = widened(lengths), offsets = widened(starts);
  const weft_coll_options how = options();
  check_status(network.all_gather_v(network.comm, input, output, counts.data(), offsets.data(), WEFT_DTYPE_U8,
                                    &how, nullptr));
}

// LightGBM's ReduceScatter: the output becomes the reduction of all ranks' block `rank`, in the order of the
// ranks. WEFT_OP_USER exchanges the data in the same way, but has no form for blocks of different sizes.
WEFT_LIGHTGBM_API void weft_lightgbm_reduce_scatter(char* input, int32_t /*input_bytes*/, int item_bytes,
                                                    const int32_t* starts, const int32_t* lengths, int blocks,
                                                    char* output, int32_t /*output_bytes*/,
                                                    const Reducer& reducer) {
  check_network(blocks);
  const auto size = static_cast<size_t>(network.size);
  const int32_t bytes = lengths[network.rank];
  const uint64_t row = (static_cast<uint64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  if (received.size() < size * row) received.resize(size * row);
  const std::vector<uint64_t> counts = widened(lengths), offsets = widened(starts);
  const std::vector<uint64_t> row_counts(size, static_cast<uint64_t>(bytes));
  std::vector<uint64_t> rows(size);
  for (size_t r = 0; r < size; r++) rows[r] = r * row;
  const weft_coll_options how = options();
  check_status(network.all_to_all_v(network.comm, input, counts.data(), offsets.data(), received.data(),
                                    row_counts.data(), rows.data(), WEFT_DTYPE_U8, &how, nullptr));
  std::copy_n(received.data(), bytes, output);
  for (size_t r = 1; r < size && bytes > 0; r++)
    reducer(received.data() + r * row, output, item_bytes, bytes);
}
