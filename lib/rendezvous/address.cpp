#include "rendezvous/address.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace weft {
namespace {

static_assert(kMaxUnixName == sizeof(sockaddr_un{}.sun_path) - 1);
constexpr size_t kMaxHost = 255;

Status bad(const std::string& text, const std::string& why) {
  return Status::error(Code::kArg, cat("the store address \"", text.substr(0, 128), "\" ", why,
                                       "; expected is tcp://host:port, unix:@name or file:///folder"));
}

bool parse_port(std::string_view text, uint16_t* port) {
  uint32_t value = 0;
  if (text.empty() || text.size() > 5) return false;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  if (value > UINT16_MAX) return false;
  *port = static_cast<uint16_t>(value);
  return true;
}

bool printable(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c > '~') return false;
  }
  return true;
}

Status parse_folder(const std::string& text, std::string_view path, Address* address) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 127; };
  if (path.empty() || path[0] != '/') return bad(text, "has no absolute path after file://");
  if (path.size() > kMaxFolder)
    return bad(text, cat("has a path of ", path.size(), " bytes; at most ", kMaxFolder, " are allowed"));
  if (std::any_of(path.begin(), path.end(), control)) return bad(text, "has control characters");
  address->kind = Address::Kind::kFolder;
  address->folder = path;
  return {};
}

}  // namespace

std::string Address::text() const {
  if (kind == Kind::kFolder) return cat("file://", folder);
  if (kind == Kind::kUnix) return cat("unix:@", name);
  const bool ipv6 = host.find(':') != std::string::npos;
  return cat("tcp://", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
}

bool Address::local() const {
  if (kind == Kind::kUnix || host == "localhost" || host == "::1") return true;
  // An address in 127.0.0.0/8: a host name may begin like that too, but has letters.
  return host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos;
}

Status parse_address(const std::string& text, Address* address) {
  *address = Address();
  constexpr std::string_view kFile = "file://";
  if (text.starts_with(kFile))
    return parse_folder(text, std::string_view(text).substr(kFile.size()), address);
  if (!printable(text)) return bad(text, "has blanks or characters that are not ASCII");
  if (text.rfind("unix:", 0) == 0) {
    if (text.rfind("unix:@", 0) != 0) return bad(text, "names a socket file, which is not supported");
    address->kind = Address::Kind::kUnix;
    address->name = text.substr(6);
    if (address->name.empty()) return bad(text, "has no name after unix:@");
    if (address->name.size() > kMaxUnixName)
      return bad(text, cat("has a name of ", address->name.size(), " characters; at most ", kMaxUnixName,
                           " are allowed"));
    return {};
  }
  if (text.rfind("tcp://", 0) != 0) return bad(text, "begins neither with tcp:// nor with unix:@ or file://");
  address->kind = Address::Kind::kTcp;
  const std::string rest = text.substr(6);
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || !parse_port(rest.substr(colon + 1), &address->port)) {
    return bad(text, "does not end in a port, 0 to 65535");
  }
  std::string host = rest.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (!brackets && host.find(':') != std::string::npos) return bad(text, "has an IPv6 host without [ and ]");
  if (host.empty() || host.size() > kMaxHost || host.find_first_of("[]/@?#") != std::string::npos) {
    return bad(text, cat("has no valid host name (1 to ", kMaxHost, " characters, none of []/@?#)"));
  }
  address->host = host;
  return {};
}

Status check_reach(const Address& address, bool secret) {
  if (secret || address.local() || address.kind == Address::Kind::kFolder) return {};
  return Status::error(
      Code::kAuth,
      cat("the store address ", address.text(),
          " can be reached from other hosts, but the job has no secret: set WEFT_SECRET_FILE (or "
          "WEFT_SECRET) to the same secret on all ranks, or use a loopback address"));
}

}  // namespace weft
