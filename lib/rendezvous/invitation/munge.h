// Munge, by which the hosts of a Slurm cluster know users: its daemon encrypts bytes so that only the same
// user of another host can decrypt them. libmunge is loaded when it is first used. Threads: any thread.
#pragma once

#include <string>

#include "base/buffer.h"
#include "base/status.h"

namespace weft::munge {

inline constexpr size_t kMostText = 4096;  // bytes of a credential that is accepted

// Returns true for text that begins as a credential.
bool is_credential(ByteView bytes);
// Encrypts bytes for this user. kUnavailable: there is no libmunge, or its daemon does not answer.
Status seal(ByteView bytes, std::string* credential);
// Decrypts a credential; it may be old, or have been decrypted before. kUnavailable as seal. kAuth: it is
// damaged, or of another user.
Status open(ByteView credential, Bytes* bytes);

}  // namespace weft::munge
