// A list of parameters, as in bench/manifests: {"name": ..., "params": [{"name": ..., "shape": [...]}]}.
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
  uint64_t count = 0;                 // total elements
};

// Times in ns from the beginning of backward until gradients become ready, recorded by
// bench/manifests/record.py.
struct Backward {
  std::vector<uint64_t> ready_ns;  // of each parameter of the manifest
  std::vector<size_t> order;       // parameters in ready order
  uint64_t ns = 0;                 // duration of the whole backward
};

// Reads NAME.backward.json beside a manifest. Throws std::runtime_error with the path and the error.
Backward read_backward(const std::string& manifest_path, const Manifest& manifest);

// Throws std::runtime_error with the path and the error.
Manifest read_manifest(const std::string& path);
