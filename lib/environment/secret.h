// The job's secret: where it comes from, and which files may contain it.
#pragma once

#include <string>

#include "base/buffer.h"
#include "base/status.h"
#include "environment/variables.h"

namespace weft {

inline constexpr size_t kMinSecretBytes = 16;
inline constexpr size_t kMaxSecretBytes = 256;

// A secret, or the file that contains it; both are empty if the job has none.
struct SecretSource {
  Bytes secret;
  std::string file;
};

// Reads WEFT_SECRET and WEFT_SECRET_FILE. kArg if both are set; kAuth for a secret of another length.
Status read_secret(const Variables& variables, SecretSource* source);

// Reads source.file, if set, into *secret, and copies source.secret otherwise. kAuth: other users may read or
// change the file, or its size is invalid. kSystem: it cannot be read.
Status load_secret(const SecretSource& source, Bytes* secret);

// Reads the job's secret from this process's environment, for a process that is not a rank; empty: none.
Status process_secret(Bytes* secret);

}  // namespace weft
