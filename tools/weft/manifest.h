// A list of parameters, as bench/manifests holds them: {"name": ..., "params": [{"name": ..., "shape":
// [...]}]}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct ManifestParam {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t count = 0;
};

struct Manifest {
  std::string name;
  std::vector<ManifestParam> params;  // in the order of definition
  uint64_t count = 0;                 // elements of all
};

// Throws std::runtime_error with the path and what is wrong.
Manifest read_manifest(const std::string& path);
