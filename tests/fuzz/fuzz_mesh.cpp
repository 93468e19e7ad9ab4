// Input: an advertisement or a frame of a member of a mesh. A decoded value encodes to the same bytes.
#include "fuzz.h"
#include "rendezvous/mesh_wire.h"

using namespace weft;
using fuzz::demand;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  mesh::Advertisement advertisement;
  if (mesh::decode(bytes, &advertisement)) {
    const Bytes again = mesh::encode(advertisement);
    demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  (void)mesh::versions_of(bytes);
  if (const auto rank = mesh::hello_rank(bytes)) {
    const Bytes again = mesh::hello_frame(*rank);
    demand(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  (void)mesh::type_of(bytes);
  return 0;
}
