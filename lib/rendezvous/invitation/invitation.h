// An invitation to a store that has chosen its own port: the store's addresses and its key. Whoever has it
// can join the job, so it is as confidential as the job's secret. Rank 0 passes it to the other ranks through
// a file (invitation_file.h), or the program does (weft_unique_id_create). Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"

namespace weft {

struct Invitation {
  std::vector<std::string> hosts;  // addresses of the store's host, without names; at least one
  uint16_t port = 0;
  Key key{};

  static constexpr size_t kBytes = 256;  // of every encoded invitation

  Address address(size_t host) const;
  // Returns the key of the store: the invitation's and, if the job has a secret, the secret's too.
  AuthKey store_key(const AuthKey& job) const;
};

// Leaves out the last hosts if not all of them fit.
Bytes encode(const Invitation& invitation);
// Decodes bytes that are not trusted. kVersion: another version of Weft has made them. kArg: they are no
// invitation, or are damaged.
Status decode(ByteView bytes, Invitation* invitation);

}  // namespace weft
