#include "rendezvous/auth.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "rendezvous/unsigned_bytes.h"

namespace weft {
namespace {

// No text and no other protocol begins like this; \r\n reveals transfers that change line ends.
constexpr std::array<std::byte, 8> kMagic = {std::byte{0x89}, std::byte{'W'}, std::byte{'E'},
                                             std::byte{'F'},  std::byte{'T'}, std::byte{'\r'},
                                             std::byte{'\n'}, std::byte{0x1a}};
constexpr size_t kProofBytes = sizeof(Key);

// Returns the keyed BLAKE2b-256 hash of label and message.
Key keyed_hash(const Key& key, std::string_view label, ByteView message) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(key.data()), key.size(), sizeof(Key));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(label.data()), label.size());
  crypto_generichash_update(&state, raw(message.data()), message.size());
  Key hash;
  crypto_generichash_final(&state, raw(hash.data()), hash.size());
  return hash;
}

Hello decode_hello(ByteView bytes) {
  ByteReader reader(bytes);
  reader.get_raw(kMagic.size());  // compared earlier
  Hello hello;
  hello.protocol = reader.get<uint32_t>();
  hello.weft = reader.get<uint32_t>();
  hello.secret = reader.get<uint8_t>() != 0;
  hello.role = reader.get<Role>();
  reader.get_raw(6);
  const ByteView nonce = reader.get_raw(hello.nonce.size());
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  return hello;
}

Status compare(const Hello& mine, const Hello& theirs) {
  if (theirs.role == mine.role || (theirs.role != Role::kClient && theirs.role != Role::kServer)) {
    return Status::error(
        Code::kAuth,
        cat("the other side sent role ", static_cast<int>(theirs.role), " in its handshake, expected ",
            static_cast<int>(mine.role == Role::kClient ? Role::kServer : Role::kClient),
            " (1: connects, 2: listens): its bytes were sent back or changed"));
  }
  if (!compatible(mine, theirs)) {
    return Status::error(Code::kVersion, cat("this side is ", version_text(mine), ", the other side is ",
                                             version_text(theirs), ": install the same Weft on all hosts"));
  }
  if (mine.secret != theirs.secret) {
    return Status::error(
        Code::kAuth, mine.secret ? "this side has a secret, the other side has none: give all ranks the same "
                                   "WEFT_SECRET or WEFT_SECRET_FILE"
                                 : "the other side has a secret, this side has none: set WEFT_SECRET or "
                                   "WEFT_SECRET_FILE");
  }
  return {};
}

}  // namespace

std::string version_text(const Versions& versions) {
  return cat("Weft ", versions.weft / 10000, ".", versions.weft / 100 % 100, ".", versions.weft % 100,
             " (protocol ", versions.protocol, ")");
}

bool compatible(const Versions& a, const Versions& b) {
  return a.protocol == b.protocol && a.weft / 100 == b.weft / 100;
}

Status init_crypto() {
  if (sodium_init() >= 0) return {};
  return Status::error(
      Code::kInternal,
      "sodium_init failed: the system has no source of randomness (getrandom, /dev/urandom)");
}

Key random_key() {
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

AuthKey AuthKey::from_secret(ByteView secret) {
  return {keyed_hash(Key{}, "weft secret of a job", secret), true};
}
AuthKey AuthKey::open() {
  return {keyed_hash(Key{}, "weft job without a secret", {}), false};
}

Bytes encode_hello(const Hello& hello) {
  ByteWriter writer;
  writer.put_raw(kMagic).put(hello.protocol).put(hello.weft);
  writer.put(static_cast<uint8_t>(hello.secret)).put(hello.role);
  writer.put(uint16_t{0}).put(uint32_t{0});  // reserved
  writer.put_raw(hello.nonce);
  return writer.take();
}

Handshake::Handshake(Role role, const AuthKey& key, const Key& nonce) : role_(role), key_(key) {
  mine_.secret = key.secret;
  mine_.role = role;
  mine_.nonce = nonce;
}

Bytes Handshake::begin() const {
  return role_ == Role::kClient ? encode_hello(mine_) : Bytes{};
}

Status Handshake::receive(ByteView bytes, size_t* consumed, Bytes* out) {
  *consumed = 0;
  if (done()) return {};
  const size_t wanted = stage_ == Stage::kHello ? Hello::kBytes : kProofBytes;
  *consumed = std::min(wanted - pending_.size(), bytes.size());
  pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(*consumed));
  if (stage_ == Stage::kHello &&
      !std::equal(pending_.begin(),
                  pending_.begin() + static_cast<ptrdiff_t>(std::min(pending_.size(), kMagic.size())),
                  kMagic.begin())) {
    return Status::error(Code::kAuth,
                         cat("the other side does not speak Weft's protocol: another program ",
                             role_ == Role::kClient ? "listens at" : "connects to", " this address"));
  }
  if (pending_.size() < wanted) return {};
  return stage_ == Stage::kHello ? take_hello(out) : take_proof(out);
}

Status Handshake::take_hello(Bytes* out) {
  const Hello theirs = decode_hello(pending_);
  const Bytes my_hello = encode_hello(mine_);
  const bool client = role_ == Role::kClient;
  // The server sends its hello before it checks the client's, so that the client can compare versions as
  // well.
  if (!client) out->insert(out->end(), my_hello.begin(), my_hello.end());
  WEFT_TRY(compare(mine_, theirs));

  ByteWriter transcript;
  transcript.put_raw(client ? my_hello : pending_).put_raw(client ? pending_ : my_hello);
  transcript_ = transcript.take();
  if (client) {
    const Key proof = derive("weft proof of client");
    out->insert(out->end(), proof.begin(), proof.end());
  }
  pending_.clear();
  stage_ = Stage::kProof;
  return {};
}

Status Handshake::take_proof(Bytes* out) {
  const bool client = role_ == Role::kClient;
  const Key wanted = derive(client ? "weft proof of server" : "weft proof of client");
  const bool proved = sodium_memcmp(pending_.data(), wanted.data(), wanted.size()) == 0;
  if (!client) {
    const Key answer = proved ? derive("weft proof of server") : random_key();
    out->insert(out->end(), answer.begin(), answer.end());
  }
  if (!proved) {
    return Status::error(
        Code::kAuth,
        key_.secret
            ? "the other side has another secret: give all ranks the same WEFT_SECRET or WEFT_SECRET_FILE"
            : "the other side sent a wrong proof in its handshake: the bytes were changed on the way");
  }
  make_session_keys();
  pending_.clear();
  stage_ = Stage::kDone;
  return {};
}

Key Handshake::derive(const char* label) const {
  return keyed_hash(key_.key, label, transcript_);
}

void Handshake::make_session_keys() {
  keys_.send = derive("weft session from client");
  keys_.receive = derive("weft session from server");
  if (role_ == Role::kServer) std::swap(keys_.send, keys_.receive);
}

}  // namespace weft
