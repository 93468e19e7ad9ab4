// Two processes prove to each other that they hold the same key, before any other byte is interpreted, and
// agree on keys for what follows. A state machine without sockets: bytes in, bytes out. Used by
// SecureStream, on whatever thread owns the connection.
//
//   client -> server   hello: magic, versions, whether there is a secret, 32 random bytes
//   server -> client   hello
//   client -> server   proof: MAC(key, "client" + both hellos)
//   server -> client   proof: MAC(key, "server" + both hellos)
//
// The server says nothing to somebody whose first bytes are not Weft's, and proves nothing to somebody who
// has not proved it first. A wrong proof is answered with random bytes, so that the client too learns that
// the keys differ. The random bytes of both make every proof and every session key new, so a recorded
// handshake is worthless; the role in the MAC makes a reflected one worthless.
#pragma once

#include <weft/weft.h>

#include <array>
#include <cstdint>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

using Key = std::array<std::byte, 32>;

// What the members of a job, or of a comm, have in common.
struct AuthKey {
  Key key{};
  bool secret = false;  // false: the key that everybody knows, for jobs without a secret

  static AuthKey from_secret(ByteView secret);
  static AuthKey open();
};

// Once per process before anything else here; again is free. kInternal when there is no randomness.
Status init_crypto();
Key random_key();

// Raised with every change of what ranks say to each other, in this folder and in backends.
inline constexpr uint32_t kProtocolVersion = 2;
// As WEFT_VERSION_NUMBER.
inline constexpr uint32_t kWeftVersion =
    WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH;

enum class Role : uint8_t { kClient = 1, kServer = 2 };

// What a hello says besides its magic. Tests make others.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  uint32_t weft = kWeftVersion;
  bool secret = false;
  Role role = Role::kClient;
  Key nonce{};

  static constexpr size_t kBytes = 56;
};

struct SessionKeys {
  Key send{};
  Key receive{};
};

// Threads: one thread at a time.
class Handshake {
 public:
  Handshake(Role role, const AuthKey& key, const Key& nonce = random_key());

  // What to send before anything came: the client's hello, nothing for a server.
  Bytes begin() const;
  // Take bytes of the peer, as many as this step needs; *consumed says how many (the rest are frames, or
  // belong to a later call). Appends what must be sent to *out, also when it returns an error: send it, then
  // close. kAuth, kVersion; texts say what "this side" and "the other side" have.
  Status receive(ByteView bytes, size_t* consumed, Bytes* out);
  bool done() const { return stage_ == Stage::kDone; }
  // The other side has said a hello that suits; anybody can.
  bool greeted() const { return stage_ != Stage::kHello; }
  // Valid when done.
  const SessionKeys& keys() const { return keys_; }

 private:
  enum class Stage { kHello, kProof, kDone };
  Status take_hello(Bytes* out);
  Status take_proof(Bytes* out);
  Key derive(const char* label) const;
  void make_session_keys();

  const Role role_;
  const AuthKey key_;
  Hello mine_;
  Stage stage_ = Stage::kHello;
  Bytes pending_;     // of the message that is being received
  Bytes transcript_;  // the client's hello, then the server's
  SessionKeys keys_;
};

// The hello as it is sent; for tests that are somebody else.
Bytes encode_hello(const Hello& hello);

}  // namespace weft
