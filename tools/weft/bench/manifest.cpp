#include "manifest.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 36;

ManifestParam read_param(const nlohmann::json& entry) {
  ManifestParam param;
  param.name = entry.at("name").get<std::string>();
  param.shape = entry.at("shape").get<std::vector<int64_t>>();
  param.count = 1;
  for (const int64_t dim : param.shape) {
    if (dim < 1 || static_cast<uint64_t>(dim) > kMostElements / param.count) {
      throw std::runtime_error("parameter " + param.name + " has a dimension of " + std::to_string(dim) +
                               "; expected dimensions of 1 or more, and at most 2^36 elements in all");
    }
    param.count *= static_cast<uint64_t>(dim);
  }
  return param;
}

uint64_t read_ms(const std::string& name, const nlohmann::json& value) {
  const double ms = value.get<double>();
  if (!(ms >= 0 && ms < 1e7)) {
    throw std::runtime_error("ready_ms of " + name + " is " + value.dump() + ", expected 0 to 1e7 ms");
  }
  return static_cast<uint64_t>(std::llround(ms * 1e6));
}

}  // namespace

Manifest read_manifest(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open the manifest " + path);
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    Manifest manifest;
    manifest.name = json.at("name").get<std::string>();
    for (const nlohmann::json& entry : json.at("params")) {
      manifest.params.push_back(read_param(entry));
      manifest.count += manifest.params.back().count;
    }
    if (manifest.params.empty()) throw std::runtime_error("its list params is empty");
    return manifest;
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " is not a manifest of parameters: " + error.what());
  }
}

Backward read_backward(const std::string& manifest_path, const Manifest& manifest) {
  const std::string ending = ".json";
  const bool ends = manifest_path.size() > ending.size() && manifest_path.ends_with(ending);
  const std::string path =
      (ends ? manifest_path.substr(0, manifest_path.size() - ending.size()) : manifest_path) +
      ".backward.json";
  std::ifstream file(path);
  if (!file)
    throw std::runtime_error(
        "cannot open " + path +
        ", the recorded backward of the manifest; bench/manifests/record.py writes such files");
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    Backward backward;
    for (const ManifestParam& param : manifest.params) {
      backward.ready_ns.push_back(read_ms(param.name, json.at("ready_ms").at(param.name)));
    }
    backward.order.resize(manifest.params.size());
    std::iota(backward.order.begin(), backward.order.end(), size_t{0});
    std::stable_sort(backward.order.begin(), backward.order.end(),
                     [&](size_t a, size_t b) { return backward.ready_ns[a] < backward.ready_ns[b]; });
    backward.ns = backward.ready_ns[backward.order.back()];
    return backward;
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " is not a recorded backward of " + manifest.name + ": " + error.what());
  }
}
