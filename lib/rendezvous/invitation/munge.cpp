#include "rendezvous/invitation/munge.h"

#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/dl.h"
#include "base/text.h"

namespace weft::munge {
namespace {

// Declarations and numbers of munge.h.
using Encode = int(char** credential, void* context, const void* bytes, int size);
using Decode = int(const char* credential, void* context, void** bytes, int* size, uid_t* uid, gid_t* gid);
using CreateContext = void*();
using SetOption = int(void* context, int option, ...);
using DestroyContext = void(void* context);
using ErrorText = const char*(int error);
constexpr int kCipherOption = 0, kUidOption = 9;
constexpr int kAes128 = 4;
constexpr int kMostSocketError = 7;                          // of those that concern the daemon
constexpr int kExpired = 15, kRewound = 16, kReplayed = 17;  // the bytes are valid

struct Library {
  Encode* encode = nullptr;
  Decode* decode = nullptr;
  CreateContext* create_context = nullptr;
  SetOption* set_option = nullptr;
  DestroyContext* destroy_context = nullptr;
  ErrorText* error_text = nullptr;
};

template <class Function>
Status load(const char* symbol, Function** function) {
  void* address = nullptr;
  WEFT_TRY(load_symbol("libmunge.so.2", symbol, &address));
  *function = reinterpret_cast<Function*>(address);
  return {};
}

Status load(Library* library) {
  WEFT_TRY(load("munge_encode", &library->encode));
  WEFT_TRY(load("munge_decode", &library->decode));
  WEFT_TRY(load("munge_ctx_create", &library->create_context));
  WEFT_TRY(load("munge_ctx_set", &library->set_option));
  WEFT_TRY(load("munge_ctx_destroy", &library->destroy_context));
  return load("munge_strerror", &library->error_text);
}

Status error_of(const Library& library, int error) {
  const bool daemon = error <= kMostSocketError;
  return Status::error(daemon ? Code::kUnavailable : Code::kAuth, cat("munge: ", library.error_text(error)));
}

}  // namespace

bool is_credential(ByteView bytes) {
  constexpr std::string_view kBegin = "MUNGE:";
  return bytes.size() >= kBegin.size() && std::memcmp(bytes.data(), kBegin.data(), kBegin.size()) == 0;
}

Status seal(ByteView bytes, std::string* credential) {
  Library library;
  WEFT_TRY(load(&library));
  const std::unique_ptr<void, DestroyContext*> context(library.create_context(), library.destroy_context);
  if (context == nullptr) return Status::error(Code::kUnavailable, "munge: no memory");
  char* text = nullptr;
  int error = library.set_option(context.get(), kCipherOption, kAes128);
  if (error == 0) error = library.set_option(context.get(), kUidOption, ::geteuid());
  if (error == 0) error = library.encode(&text, context.get(), bytes.data(), static_cast<int>(bytes.size()));
  const std::unique_ptr<char, decltype(&::free)> owner(text, &::free);
  if (error != 0) return error_of(library, error);
  *credential = text;
  return {};
}

Status open(ByteView credential, Bytes* bytes) {
  Library library;
  WEFT_TRY(load(&library));
  const std::string text(reinterpret_cast<const char*>(credential.data()), credential.size());
  void* content = nullptr;
  int size = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  // Several ranks of a host decrypt one credential, some of them late.
  const int error = library.decode(text.c_str(), nullptr, &content, &size, &uid, &gid);
  const std::unique_ptr<void, decltype(&::free)> owner(content, &::free);
  if (error != 0 && error != kExpired && error != kRewound && error != kReplayed)
    return error_of(library, error);
  if (uid != ::geteuid())
    return Status::error(Code::kAuth,
                         cat("munge: it is of user ", uid, ", but this process runs as user ", ::geteuid()));
  const auto* const begin = static_cast<const std::byte*>(content);
  bytes->assign(begin, begin + (content == nullptr ? 0 : size));
  return {};
}

}  // namespace weft::munge
