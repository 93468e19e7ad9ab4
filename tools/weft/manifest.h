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

// When gradients become ready, ns since backward begins: bench/manifests/record.py wrote it.
struct Backward {
  std::vector<uint64_t> ready_ns;  // of each parameter of the manifest
  std::vector<size_t> order;       // of parameters, as they become ready
  uint64_t ns = 0;                 // of all
};

// Of the file beside a manifest, NAME.backward.json. Throws std::runtime_error with the path and what is
// wrong.
Backward read_backward(const std::string& manifest_path, const Manifest& manifest);

// Throws std::runtime_error with the path and what is wrong.
Manifest read_manifest(const std::string& path);
