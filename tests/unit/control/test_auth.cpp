// lib/rendezvous/auth, frame and secure_stream: which peers are accepted, and the handling of foreign bytes.
#include "rendezvous/auth.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "rendezvous/secure_stream.h"
#include "support/catch.h"

namespace unit_auth {

using namespace weft;

namespace {

ByteView view(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
AuthKey key_of(std::string_view secret) {
  return AuthKey::from_secret(view(secret));
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Two streams and the wire between them.
struct Pair {
  Pair(const AuthKey& client_key, const AuthKey& server_key)
      : client(Role::kClient, client_key), server(Role::kServer, server_key) {}

  // Carries bytes in both directions, `step` at a time, until nothing moves or a side fails.
  void settle(size_t step = SIZE_MAX) {
    while (client_status.ok() && server_status.ok()) {
      const bool to_server = carry(client, server, step, &server_status, &at_server, &client_wire);
      const bool to_client = carry(server, client, step, &client_status, &at_client, &server_wire);
      if (!to_server && !to_client) return;
    }
    // Delivers what the failing side still had to send.
    carry(server, client, SIZE_MAX, &client_status, &at_client, &server_wire);
  }
  static bool carry(SecureStream& from, SecureStream& to, size_t step, Status* status,
                    std::vector<Bytes>* frames, Bytes* wire) {
    Bytes& out = from.out();
    const size_t size = std::min(step, out.size());
    if (size == 0 || !status->ok()) return false;
    const auto end = out.begin() + static_cast<ptrdiff_t>(size);
    wire->insert(wire->end(), out.begin(), end);
    *status = to.receive(ByteView(out).first(size), frames);
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(size));
    return true;
  }

  SecureStream client, server;
  Status client_status, server_status;
  std::vector<Bytes> at_client, at_server;
  Bytes client_wire, server_wire;  // all bytes that they have sent
};

}  // namespace

TEST_CASE("two holders of a secret exchange frames, however the bytes are cut") {
  REQUIRE(init_crypto().ok());
  for (const size_t step : {size_t{1}, size_t{7}, SIZE_MAX}) {
    Pair pair(key_of("0123456789abcdef"), key_of("0123456789abcdef"));
    pair.client.send(view("before the handshake"));
    pair.settle(step);
    REQUIRE(pair.client.established());
    REQUIRE(pair.server.established());
    pair.server.send(view("answer"));
    pair.server.send({});
    pair.settle(step);
    REQUIRE(pair.at_server.size() == 1);
    CHECK(text_of(pair.at_server[0]) == "before the handshake");
    REQUIRE(pair.at_client.size() == 2);
    CHECK(text_of(pair.at_client[0]) == "answer");
    CHECK(pair.at_client[1].empty());
    CHECK(!contains(text_of(pair.client_wire), "before the handshake"));  // encrypted
  }
}

TEST_CASE("without a secret on both sides the handshake works as well") {
  Pair pair(AuthKey::open(), AuthKey::open());
  pair.settle();
  CHECK(pair.client.established());
  CHECK(pair.server.established());
}

TEST_CASE("another secret is refused on both sides, with that reason") {
  Pair pair(key_of("0123456789abcdef"), key_of("0123456789abcdeF"));
  pair.settle();
  CHECK(pair.server_status.code() == Code::kAuth);
  CHECK(pair.client_status.code() == Code::kAuth);
  CHECK(contains(pair.client_status.text(), "another secret"));
  CHECK(!pair.client.established());
  CHECK(!pair.server.established());
}

TEST_CASE("a side with a secret and one without both get an error that says so") {
  Pair pair(AuthKey::open(), key_of("0123456789abcdef"));
  pair.settle();
  CHECK(pair.server_status.code() == Code::kAuth);
  CHECK(pair.client_status.code() == Code::kAuth);
  CHECK(contains(pair.client_status.text(), "this side has none"));
}

TEST_CASE("a stranger's first bytes end the connection and get no answer") {
  for (const std::string_view stranger :
       {std::string_view("GET / HTTP/1.1\r\n"), std::string_view("\x16\x03\x01\x02\x00", 5),
        std::string_view("\x89WEF?"), std::string_view("\0", 1)}) {
    SecureStream server(Role::kServer, key_of("0123456789abcdef"));
    std::vector<Bytes> frames;
    CHECK(server.receive(view(stranger), &frames).code() == Code::kAuth);
    CHECK(server.out().empty());
    CHECK(frames.empty());
  }
}

TEST_CASE("versions meet as the table of COMPATIBILITY.md says") {
  struct Row {
    uint32_t one, other;
    bool together;
  };
  for (const Row& row : {Row{900, 900, true}, Row{900, 901, true}, Row{900, 999, true}, Row{900, 1000, false},
                         Row{1000, 1001, true}, Row{901, 10000, false}, Row{10000, 10001, true},
                         Row{10000, 10100, false}, Row{10200, 20200, false}}) {
    CAPTURE(row.one, row.other);
    const Versions one{kProtocolVersion, row.one}, other{kProtocolVersion, row.other};
    CHECK(compatible(one, other) == row.together);
    CHECK(compatible(other, one) == row.together);
    CHECK(!compatible(one, {kProtocolVersion - 1, row.other}));  // a patch version keeps the protocol
  }
  CHECK(version_text({3, 10203}) == "Weft 1.2.3 (protocol 3)");
}

TEST_CASE("a different version is refused on both sides, and the error names both") {
  const Versions older{kProtocolVersion, kWeftVersion - 100}, newer{kProtocolVersion, kWeftVersion + 100},
      other_protocol{kProtocolVersion + 1, kWeftVersion}, next_major{kProtocolVersion + 1, 20300};
  for (const Versions& theirs : {older, newer, other_protocol, next_major}) {
    for (const Role role : {Role::kServer, Role::kClient}) {
      Hello hello;
      static_cast<Versions&>(hello) = theirs;
      hello.secret = true;
      hello.role = role == Role::kServer ? Role::kClient : Role::kServer;
      SecureStream stream(role, key_of("0123456789abcdef"));
      std::vector<Bytes> frames;
      const Status status = stream.receive(encode_hello(hello), &frames);
      CHECK(status.code() == Code::kVersion);
      CHECK(status.text() == cat("this side is ", version_text({}), ", the other side is ",
                                 version_text(theirs), ": install the same Weft on all hosts"));
      CHECK(stream.out().size() == Hello::kBytes);  // so that the other side can detect the same error
      CHECK(frames.empty());
    }
  }
}

TEST_CASE("another patch version is accepted") {
  for (const uint32_t patch : {kWeftVersion / 100 * 100, kWeftVersion / 100 * 100 + 99}) {
    Hello hello;
    hello.weft = patch;
    hello.secret = true;
    SecureStream server(Role::kServer, key_of("0123456789abcdef"));
    std::vector<Bytes> frames;
    CHECK(server.receive(encode_hello(hello), &frames).ok());
  }
}

TEST_CASE("a reflected handshake is refused") {
  SecureStream client(Role::kClient, key_of("0123456789abcdef"));
  std::vector<Bytes> frames;
  const Bytes own = client.out();
  CHECK(client.receive(own, &frames).code() == Code::kAuth);
}

TEST_CASE("a replayed handshake does not establish anything") {
  Pair recorded(key_of("0123456789abcdef"), key_of("0123456789abcdef"));
  recorded.client.send(view("pay"));
  recorded.settle();
  REQUIRE(recorded.at_server.size() == 1);

  SecureStream server(Role::kServer, key_of("0123456789abcdef"));
  std::vector<Bytes> frames;
  CHECK(server.receive(recorded.client_wire, &frames).code() == Code::kAuth);
  CHECK(!server.established());
  CHECK(frames.empty());
}

TEST_CASE("replayed, reordered, missing and changed frames are refused") {
  const auto establish = [](Pair& pair) {
    pair.settle();
    REQUIRE(pair.server.established());
    pair.client.send(view("first"));
    Bytes first = std::move(pair.client.out());
    pair.client.out().clear();
    pair.client.send(view("second"));
    Bytes second = std::move(pair.client.out());
    pair.client.out().clear();
    return std::pair(first, second);
  };
  const AuthKey key = key_of("0123456789abcdef");
  std::vector<Bytes> frames;
  {
    Pair pair(key, key);
    const auto [first, second] = establish(pair);
    REQUIRE(pair.server.receive(first, &frames).ok());
    CHECK(frames.size() == 1);
    // The first frame followed the stream's header; skip that, so that only the frame is replayed.
    const ByteView replay = ByteView(first).subspan(crypto_secretstream_xchacha20poly1305_HEADERBYTES);
    CHECK(pair.server.receive(replay, &frames).code() == Code::kAuth);
  }
  {
    Pair pair(key, key);
    const auto [first, second] = establish(pair);
    Bytes header(first.begin(), first.begin() + crypto_secretstream_xchacha20poly1305_HEADERBYTES);
    REQUIRE(pair.server.receive(header, &frames).ok());
    CHECK(pair.server.receive(second, &frames).code() == Code::kAuth);  // the first frame is missing
  }
  {
    Pair pair(key, key);
    auto [first, second] = establish(pair);
    first.back() ^= std::byte{1};
    CHECK(pair.server.receive(first, &frames).code() == Code::kAuth);
  }
  CHECK(frames.size() == 1);
}

namespace {

Bytes taken(SecureStream& from) {
  return std::exchange(from.out(), {});
}

}  // namespace

TEST_CASE("a proof of which any byte is changed is refused") {
  const AuthKey key = key_of("0123456789abcdef");
  std::vector<Bytes> frames;
  for (size_t at = 0; at < sizeof(Key); at++) {
    for (const bool of_client : {true, false}) {
      INFO("byte " << at << " of the " << (of_client ? "client" : "server"));
      SecureStream client(Role::kClient, key), server(Role::kServer, key);
      REQUIRE(server.receive(taken(client), &frames).ok());
      REQUIRE(client.receive(taken(server), &frames).ok());
      Bytes proof = taken(client);
      REQUIRE(proof.size() == sizeof(Key));
      if (of_client) {
        proof[at] ^= std::byte{1};
        CHECK(server.receive(proof, &frames).code() == Code::kAuth);
        CHECK(!server.established());
        continue;
      }
      REQUIRE(server.receive(proof, &frames).ok());
      Bytes answer = taken(server);
      REQUIRE(answer.size() == sizeof(Key));
      answer[at] ^= std::byte{1};
      CHECK(client.receive(answer, &frames).code() == Code::kAuth);
      CHECK(!client.established());
    }
  }
}

TEST_CASE("a server without the secret cannot send the client's proof back") {
  SecureStream client(Role::kClient, key_of("0123456789abcdef"));
  (void)taken(client);
  Hello hello;
  hello.secret = true;
  hello.role = Role::kServer;
  std::vector<Bytes> frames;
  REQUIRE(client.receive(encode_hello(hello), &frames).ok());
  CHECK(client.receive(taken(client), &frames).code() == Code::kAuth);
  CHECK(!client.established());
}

TEST_CASE("frames that are sent back to their sender are refused") {
  const AuthKey key = key_of("0123456789abcdef");
  for (const bool of_client : {true, false}) {
    Pair pair(key, key);
    pair.settle();
    REQUIRE(pair.client.established());
    SecureStream& sender = of_client ? pair.client : pair.server;
    sender.send(view("pay"));
    std::vector<Bytes> frames;
    CHECK(sender.receive(taken(sender), &frames).code() == Code::kAuth);
    CHECK(frames.empty());
  }
}

TEST_CASE("a frame's length is checked before its bytes are awaited") {
  const AuthKey key = key_of("0123456789abcdef");
  for (const uint32_t length : {0u, 16u, uint32_t{kSmallFrame + 18}, 0x7fffffffu, 0xffffffffu}) {
    Pair pair(key, key);
    pair.settle();
    ByteWriter evil;
    evil.put_raw(Bytes(crypto_secretstream_xchacha20poly1305_HEADERBYTES)).put(length);
    std::vector<Bytes> frames;
    INFO(length);
    CHECK(pair.server.receive(evil.bytes(), &frames).code() == Code::kAuth);
  }
  Pair pair(key, key);
  pair.settle();
  pair.server.set_limit(kLargeFrame);
  pair.client.send(Bytes(kLargeFrame));
  pair.settle();
  REQUIRE(pair.at_server.size() == 1);
  CHECK(pair.at_server[0].size() == kLargeFrame);
}

}  // namespace unit_auth
