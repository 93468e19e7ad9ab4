#include "rendezvous/mesh_wire.h"

#include <algorithm>

#include "rendezvous/heartbeat.h"

namespace weft::mesh {
namespace {

constexpr uint32_t kMaxName = 100;
constexpr uint32_t kMaxHost = 255;
constexpr uint32_t kMagic = 0x54464557;  // "WEFT"
constexpr size_t kVersionBytes = 12;     // the magic and the versions

}  // namespace

Bytes encode(const Advertisement& advertisement) {
  ByteWriter writer;
  writer.put(kMagic).put(advertisement.versions.protocol).put(advertisement.versions.weft);
  writer.put_string(advertisement.unix_name).put(advertisement.tcp_port);
  const size_t hosts = std::min(advertisement.hosts.size(), kMaxHosts);
  writer.put(static_cast<uint32_t>(hosts));
  for (size_t i = 0; i < hosts; i++) writer.put_string(advertisement.hosts[i]);
  return writer.put(advertisement.heartbeat_timeout_ms).put_raw(advertisement.key).take();
}

bool decode(ByteView bytes, Advertisement* advertisement) {
  const std::optional<Versions> versions = versions_of(bytes);
  if (!versions || !compatible(*versions, {})) return false;
  advertisement->versions = *versions;
  ByteReader reader(bytes);
  reader.get_raw(kVersionBytes);
  advertisement->unix_name = reader.get_string(kMaxName);
  advertisement->tcp_port = reader.get<uint16_t>();
  const uint32_t hosts = reader.get<uint32_t>();
  if (!reader.ok() || hosts > kMaxHosts) return false;
  advertisement->hosts.clear();
  for (uint32_t i = 0; i < hosts; i++) advertisement->hosts.push_back(reader.get_string(kMaxHost));
  const auto budget = reader.get<int64_t>();
  const ByteView key = reader.get_raw(advertisement->key.size());
  if (!reader.done() || advertisement->unix_name.empty()) return false;
  if (budget != -1 && budget < Heartbeat::kLeastMs) return false;
  advertisement->heartbeat_timeout_ms = budget;
  std::copy(key.begin(), key.end(), advertisement->key.begin());
  return true;
}

std::optional<Versions> versions_of(ByteView bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.get<uint32_t>();
  Versions versions;
  versions.protocol = reader.get<uint32_t>();
  versions.weft = reader.get<uint32_t>();
  if (!reader.ok() || magic != kMagic) return std::nullopt;
  return versions;
}

Bytes hello_frame(int rank) {
  ByteWriter writer;
  return writer.put(MeshFrame::kHello).put(static_cast<int32_t>(rank)).take();
}

std::optional<int> hello_rank(ByteView frame) {
  ByteReader reader(frame);
  const MeshFrame type = reader.get<MeshFrame>();
  const int32_t rank = reader.get<int32_t>();
  if (!reader.done() || type != MeshFrame::kHello) return std::nullopt;
  return rank;
}

Bytes message_frame(ByteView message) {
  Bytes frame;
  frame.reserve(1 + message.size());
  frame.push_back(static_cast<std::byte>(MeshFrame::kMessage));
  frame.insert(frame.end(), message.begin(), message.end());
  return frame;
}

Bytes plain_frame(MeshFrame type) {
  return {static_cast<std::byte>(type)};
}

MeshFrame type_of(ByteView frame) {
  return frame.empty() ? MeshFrame(0) : static_cast<MeshFrame>(frame[0]);
}

}  // namespace weft::mesh
