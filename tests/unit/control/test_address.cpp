// lib/rendezvous/address: valid addresses of a store, and which of them need a secret.
#include "rendezvous/address.h"

#include "support/catch.h"

namespace unit_address {

using namespace weft;

TEST_CASE("addresses are parsed strictly and printed as they were") {
  for (const char* good : {"tcp://127.0.0.1:0", "tcp://[::1]:65535", "tcp://node-1.cluster:29501",
                           "unix:@weft", "file:///shared/my folder"}) {
    Address address;
    INFO(good);
    REQUIRE(parse_address(good, &address).ok());
    CHECK(address.text() == good);
  }
  for (const char* bad : {"", "tcp://", "tcp://host", "tcp://host:", "tcp://host:65536", "tcp://host:-1",
                          "tcp://host:1x", "tcp://:1", "tcp://::1:5", "tcp://a b:1", "unix:/tmp/x", "unix:@",
                          "http://x:1", "tcp://u@h:1", "file:", "file://", "file://host/x", "file:///a\nb"}) {
    Address address;
    INFO(bad);
    CHECK(parse_address(bad, &address).code() == Code::kArg);
  }
}

TEST_CASE("without a secret only loopback and unix addresses are allowed") {
  for (const char* local :
       {"tcp://127.0.0.1:1", "tcp://127.3.2.1:1", "tcp://localhost:1", "tcp://[::1]:1", "unix:@x"}) {
    Address address;
    REQUIRE(parse_address(local, &address).ok());
    CHECK(check_reach(address, false).ok());
  }
  for (const char* far :
       {"tcp://10.0.0.1:1", "tcp://0.0.0.0:1", "tcp://127.0.0.1.evil.org:1", "tcp://[::]:1"}) {
    Address address;
    REQUIRE(parse_address(far, &address).ok());
    CHECK(check_reach(address, true).ok());
    const Status status = check_reach(address, false);
    CHECK(status.code() == Code::kAuth);
    CHECK(status.text().find("WEFT_SECRET_FILE") != std::string::npos);
  }
}

}  // namespace unit_address
