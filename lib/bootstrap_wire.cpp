#include "bootstrap_wire.h"

namespace weft {

Bytes encode(const Offer& offer) {
  ByteWriter writer;
  writer.put(offer.id).put_string(offer.wanted).put_string(offer.algorithms);
  writer.put_string(offer.shm_thresholds).put(offer.host).put(uint8_t{offer.modules});
  writer.put(static_cast<uint32_t>(offer.available.size()));
  for (const std::string& name : offer.available) writer.put_string(name);
  return writer.take();
}

bool decode(ByteView bytes, Offer* offer) {
  ByteReader reader(bytes);
  offer->id = reader.get<uint64_t>();
  offer->wanted = reader.get_string(kMaxBackendName);
  offer->algorithms = reader.get_string(kMaxAlgorithms);
  offer->shm_thresholds = reader.get_string(kMaxThresholds);
  offer->host = reader.get<int32_t>();
  const auto modules = reader.get<uint8_t>();
  offer->modules = modules == 1;
  const auto count = reader.get<uint32_t>();
  if (!reader.ok() || modules > 1 || count > kMaxBackends) return false;
  offer->available.clear();
  for (uint32_t i = 0; i < count; i++) offer->available.push_back(reader.get_string(kMaxBackendName));
  return reader.done();
}

Bytes encode(const SplitChoice& place) {
  ByteWriter writer;
  return writer.put(uint8_t{place.none}).put(place.color).put(place.key).take();
}

bool decode(ByteView bytes, SplitChoice* place) {
  ByteReader reader(bytes);
  const auto none = reader.get<uint8_t>();
  place->none = none == 1;
  place->color = reader.get<int32_t>();
  place->key = reader.get<int32_t>();
  return reader.done() && none <= 1;
}

}  // namespace weft
