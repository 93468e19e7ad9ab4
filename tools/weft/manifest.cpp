#include "manifest.h"

#include <fstream>
#include <nlohmann/json.hpp>
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
      throw std::runtime_error("the shape of " + param.name + " is not positive or too large");
    }
    param.count *= static_cast<uint64_t>(dim);
  }
  return param;
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
    if (manifest.params.empty()) throw std::runtime_error("it has no parameters");
    return manifest;
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " is no manifest: " + error.what());
  }
}
