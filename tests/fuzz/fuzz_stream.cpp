// Input: whether the unauthenticated peer faces a client, a server, or an established side; the pieces into
// which the bytes are cut; and the bytes. Without the key no bytes become a frame.
#include "fuzz.h"
#include "rendezvous/secure_stream.h"

using namespace weft;
using fuzz::demand;

namespace {

void carry(SecureStream& from, SecureStream& to) {
  std::vector<Bytes> frames;
  demand(to.receive(from.out(), &frames).ok() && frames.empty());
  from.out().clear();
}

// The nonces are fixed, so that a run can be repeated.
void establish(SecureStream& client, SecureStream& server) {
  for (int i = 0; i < 3; i++) {
    carry(client, server);
    carry(server, client);
  }
  demand(client.established() && server.established());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t side = input.byte() % 3;
  const size_t piece = 1 + input.byte();
  SecureStream client(Role::kClient, AuthKey::open(), Key{});
  SecureStream server(Role::kServer, AuthKey::open(), Key{std::byte{1}});
  if (side == 2) establish(client, server);
  SecureStream& stream = side == 0 ? client : server;

  std::vector<Bytes> frames;
  Status status;
  while (status.ok() && !input.empty()) status = stream.receive(input.take(piece), &frames);
  demand(frames.empty());
  if (side != 2) demand(!stream.established());
  // No peer makes the library answer with more than a hello and a proof.
  demand(side == 0 || stream.out().size() <= Hello::kBytes + sizeof(Key));
  return 0;
}
