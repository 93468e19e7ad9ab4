// The mutual authentication handshake. Two processes prove to each other that they hold the same key, before
// any other byte is interpreted, and derive session keys. A state machine without sockets: bytes in, bytes
// out. SecureStream uses it, on the thread that owns the connection.
//
//   client -> server   hello: magic, versions, whether there is a secret, 32 random bytes
//   server -> client   hello
//   client -> server   proof: MAC(key, "client" + both hellos)
//   server -> client   proof: MAC(key, "server" + both hellos)
//
// The server does not answer a client whose first bytes are not Weft's, and sends its proof only after the
// client's. It answers a wrong proof with random bytes, so that the client too detects that the keys differ.
// The random bytes of both sides make every proof and session key unique, which defeats replays of recorded
// handshakes. The role in the MAC defeats reflected ones.
#pragma once

#include <weft/weft.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

using Key = std::array<std::byte, 32>;

// The shared key of the members of a job or a communicator.
struct AuthKey {
  Key key{};
  bool secret = false;  // false: the well-known key of jobs without a secret

  static AuthKey from_secret(ByteView secret);
  static AuthKey open();
};

// Initialises libsodium. Called before anything else here; only the first call in a process has an effect.
// kInternal: no random number source.
Status init_crypto();
Key random_key();

// Incremented with every change of the protocol between ranks, in this folder and in backends.
inline constexpr uint32_t kProtocolVersion = 4;
// Same value as WEFT_VERSION_NUMBER.
inline constexpr uint32_t kWeftVersion =
    WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH;

// The versions of a process.
struct Versions {
  uint32_t protocol = kProtocolVersion;
  uint32_t weft = kWeftVersion;
};
// Returns "Weft 0.9.0 (protocol 4)".
std::string version_text(const Versions& versions);
// Ranks of different minor versions may lay out shared memory differently.
bool compatible(const Versions& a, const Versions& b);

enum class Role : uint8_t { kClient = 1, kServer = 2 };

// The fields of a hello after its magic. Tests construct invalid ones.
struct Hello : Versions {
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

  // Returns the bytes to send first: the client's hello; empty for a server.
  Bytes begin() const;
  // Handles bytes from the peer, as many as this step needs, and sets *consumed to their number (the rest are
  // frames, or belong to a later call). Appends the bytes to send to *out, also when it returns an error:
  // send them, then close. kAuth, kVersion; error texts refer to "this side" and "the other side".
  Status receive(ByteView bytes, size_t* consumed, Bytes* out);
  bool done() const { return stage_ == Stage::kDone; }
  // True once the peer has sent a compatible hello; an unauthenticated client can do that too.
  bool greeted() const { return stage_ != Stage::kHello; }
  // Returns the session keys; valid when done.
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
  Bytes pending_;     // part of the message that is being received
  Bytes transcript_;  // the client's hello, then the server's
  SessionKeys keys_;
};

// Returns the hello as sent; for tests that implement a peer.
Bytes encode_hello(const Hello& hello);

}  // namespace weft
