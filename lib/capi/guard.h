// Wrappers of every extern "C" body: they stop exceptions, read and write structs of callers with other
// header versions by struct_size, and convert a Status to a code. Only lib/capi includes this.
#pragma once

#include <weft/weft.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/guard.h"
#include "base/interrupt.h"
#include "base/status.h"
#include "base/text.h"

namespace weft::capi {

inline weft_status code_of(const Status& status) {
  return static_cast<weft_status>(status.code());
}

// Ends a call: notes an error for weft_last_error, and returns its code.
weft_status ended(const Status& status) noexcept;

// Runs the body of a call of the program as guarded() does (base/guard.h). The program may interrupt it.
template <class Body>
Status in_call(Body&& body) noexcept {
  const Interrupt::Scope scope;
  return guarded([&] { return Interrupt::result(body()); });
}

inline Status null_argument(const char* name) {
  return Status::error(Code::kArg, cat(name, " is NULL"));
}

#define WEFT_NOT_NULL(pointer) \
  if ((pointer) == nullptr) return ::weft::capi::null_argument(#pointer)

inline constexpr size_t kMaxStructSize = 65536;

// Copies a caller's input struct of any header version: fields that it lacks become zero (the defaults);
// bytes beyond the fields of this version must be zero. Reads at most `limit` bytes (an array's element
// size).
template <class T>
Status read_struct(const T* given, const char* name, T* out, size_t limit = kMaxStructSize) {
  static_assert(std::is_trivially_copyable_v<T>);
  *out = T{};
  if (given == nullptr) {
    out->struct_size = sizeof(T);
    return {};
  }
  const size_t size = given->struct_size;
  if (size < sizeof(size_t) || size > limit) {
    return Status::error(Code::kArg, cat(name, ".struct_size is ", size, "; set it to sizeof(", name, ")"));
  }
  std::memcpy(static_cast<void*>(out), given, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; i++) {
    if (bytes[i] == 0) continue;
    return Status::error(
        Code::kArg, cat(name, " has a value in byte ", i, ", but this version of Weft knows only ", sizeof(T),
                        " bytes of it: leave newer fields zero, or install a newer Weft"));
  }
  out->struct_size = sizeof(T);
  return {};
}

// Fills a caller's output struct up to its struct_size, which is kept.
template <class T>
Status write_struct(const T& value, const char* name, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (out == nullptr) return null_argument(name);
  const size_t size = out->struct_size;
  if (size < sizeof(size_t) || size > kMaxStructSize) {
    return Status::error(Code::kArg, cat(name, "->struct_size is ", size, "; set it to sizeof *", name));
  }
  std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<unsigned char*>(out) + sizeof(T), 0, size - sizeof(T));
  out->struct_size = size;
  return {};
}

// Writes the details of a status for the program; out may be null. An invalid struct_size is ignored.
// otherwise: the text if the status is ok.
void fill_error(const Status& status, weft_error* out, const std::string& otherwise = {});

// Copies a string into a fixed-size field, always terminated.
template <size_t N>
void put_text(const std::string& text, char (&field)[N]) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

// Copies a text of any length into the caller's buffer, cut to its capacity `room` and always terminated;
// text: null to query the size. *size: bytes of the whole text with its final 0. kArg if it was cut.
Status put_long_text(const char* call, const std::string& whole, char* text, uint64_t room, uint64_t* size);

// Wraps calls that report their error through a struct.
template <class Body>
weft_status reported(weft_error* error, Body&& body) noexcept {
  const Status status = in_call(body);
  fill_error(status, error);
  return ended(status);
}

template <class Body>
weft_status plain(Body&& body) noexcept {
  return ended(in_call(body));
}

}  // namespace weft::capi
