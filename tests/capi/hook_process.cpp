// Two ranks train some steps with a hook whose state is loaded from files and saved to files: one part of a
// training that test_hook_process.py divides among processes. Usage: capi_hook_process FOLDER HOOK OPTIONS
// FIRST_STEP END. Prints the bits of the last step's gradients.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "capi/ranks.h"

namespace {

constexpr int64_t kRows = 33, kColumns = 40;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void check(weft_status status, const char* call, const weft_error& error) {
  if (status == WEFT_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", call, weft_status_string(status), error.text);
  std::exit(1);
}

void train(weft_test::Rank& r, char** argv, std::vector<float>* gradient) {
  weft_error error = WEFT_ERROR_INIT;
  const std::string path = std::string(argv[1]) + "/rank" + std::to_string(r.rank);
  const std::string saved = read_file(path);
  weft_hook* hook = nullptr;
  if (saved.empty()) {
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    params.options = argv[3];
    params.error = &error;
    check(weft_hook_create(r.context, argv[2], &params, &hook), "weft_hook_create", error);
  } else {
    check(weft_hook_create_saved(r.context, saved.data(), saved.size(), &hook, &error),
          "weft_hook_create_saved", error);
  }
  const int64_t shape[] = {kRows, kColumns};
  weft_param param{};
  param.struct_size = sizeof param;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 2;
  param.shape = shape;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.hook = hook;
  weft_reducer* reducer = nullptr;
  check(weft_reducer_create(r.comm, &options, &reducer, &error), "weft_reducer_create", error);
  gradient->resize(kRows * kColumns);
  for (int step = std::atoi(argv[4]); step < std::atoi(argv[5]); step++) {
    for (size_t i = 0; i < gradient->size(); i++) {
      (*gradient)[i] =
          std::sin(static_cast<float>(i * static_cast<size_t>(r.rank + 2)) + static_cast<float>(step));
    }
    weft_reducer_begin(reducer, nullptr);
    weft_reducer_ready(reducer, 0, gradient->data(), nullptr);
    const weft_status finished = weft_reducer_finish(reducer, nullptr);
    if (finished != WEFT_OK) weft_reducer_error(reducer, &error);
    check(finished, "weft_reducer_finish", error);
  }
  uint64_t size = 0;
  check(weft_hook_save(hook, nullptr, &size, &error), "weft_hook_save", error);
  std::vector<char> blob(size);
  check(weft_hook_save(hook, blob.data(), &size, &error), "weft_hook_save", error);
  std::ofstream(path, std::ios::binary).write(blob.data(), static_cast<std::streamsize>(size));
  weft_reducer_destroy(&reducer);
  weft_hook_destroy(&hook);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  std::vector<float> gradients[2];
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD,
                                           [&](weft_test::Rank& r) { train(r, argv, &gradients[r.rank]); });
  if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
  for (const float value : gradients[0]) std::printf("%a\n", static_cast<double>(value));
  const bool replicas = gradients[0] == gradients[1] || std::string(argv[2]) == "post_local_sgd";
  return error.empty() && replicas ? 0 : 1;
}
