#include "rendezvous/invitation/invitation.h"

#include <algorithm>

#include "base/text.h"

namespace weft {
namespace {

constexpr uint64_t kInvitationMagic = 0x4554495654464557;  // "WEFTVITE"
constexpr uint32_t kMostAddress = 45;                      // characters of an IPv6 address that maps IPv4
constexpr size_t kDigestBytes = 16;                        // at the end; it finds damage, not forgery
constexpr size_t kBody = Invitation::kBytes - kDigestBytes;

ByteView digest_of(ByteView body, Key* space) {
  *space = AuthKey::from_secret(body).key;
  return ByteView(*space).first(kDigestBytes);
}

bool is_address(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
}

}  // namespace

Address Invitation::address(size_t host) const {
  Address address;
  address.kind = Address::Kind::kTcp;
  address.host = hosts[host];
  address.port = port;
  return address;
}

AuthKey Invitation::store_key(const AuthKey& job) const {
  Bytes both(key.begin(), key.end());
  if (job.secret) both.insert(both.end(), job.key.begin(), job.key.end());
  return AuthKey::from_secret(both);
}

Bytes encode(const Invitation& invitation) {
  ByteWriter writer;
  writer.put(kInvitationMagic).put(kProtocolVersion).put(kWeftVersion);
  writer.put(invitation.port).put_raw(invitation.key);
  size_t room = kBody - writer.bytes().size() - 1;
  size_t hosts = 0;
  for (; hosts < invitation.hosts.size(); hosts++) {
    const size_t needed = sizeof(uint32_t) + invitation.hosts[hosts].size();
    if (needed > room) break;
    room -= needed;
  }
  writer.put(static_cast<uint8_t>(hosts));
  for (size_t i = 0; i < hosts; i++) writer.put_string(invitation.hosts[i]);
  Bytes bytes = writer.take();
  bytes.resize(kBody);
  Key space;
  const ByteView digest = digest_of(bytes, &space);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  return bytes;
}

Status decode(ByteView bytes, Invitation* invitation) {
  *invitation = {};
  ByteReader reader(bytes);
  const auto magic = reader.get<uint64_t>();
  Versions versions;
  versions.protocol = reader.get<uint32_t>();
  versions.weft = reader.get<uint32_t>();
  if (!reader.ok() || magic != kInvitationMagic || bytes.size() != Invitation::kBytes)
    return Status::error(Code::kArg, cat("these ", bytes.size(), " bytes are no invitation to a store"));
  if (!compatible(versions, {})) {
    return Status::error(Code::kVersion,
                         cat("the invitation is of ", version_text(versions), ", this side is ",
                             version_text({}), ": install the same Weft on all hosts"));
  }
  Key space;
  const ByteView digest = digest_of(bytes.first(kBody), &space);
  invitation->port = reader.get<uint16_t>();
  const ByteView key = reader.get_raw(invitation->key.size());
  std::copy(key.begin(), key.end(), invitation->key.begin());
  const auto hosts = reader.get<uint8_t>();
  for (uint8_t i = 0; i < hosts && reader.ok(); i++)
    invitation->hosts.push_back(reader.get_string(kMostAddress));
  const bool whole = std::equal(digest.begin(), digest.end(), bytes.begin() + kBody);
  const bool good = std::all_of(invitation->hosts.begin(), invitation->hosts.end(), is_address);
  if (reader.ok() && whole && good && hosts > 0 && invitation->port != 0) return {};
  return Status::error(Code::kArg, "the invitation to the store is damaged");
}

}  // namespace weft
