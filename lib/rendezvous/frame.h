// Frames on an authenticated connection: a length, then the encrypted and authenticated bytes. Every frame is
// numbered by libsodium's secretstream, so one that was forged, replayed, reordered or left out does not
// open. No sockets here. Used by SecureStream.
#pragma once

#include <sodium.h>

#include "base/buffer.h"
#include "base/status.h"
#include "rendezvous/auth.h"

namespace weft {

// Most bytes of a frame before its sender has joined or told its rank, and afterwards: a message of the
// largest size (Exchange::kMaxBytes, Control::kMaxMessage) and what is said around it.
inline constexpr size_t kSmallFrame = 4096;
inline constexpr size_t kLargeFrame = (1u << 20) + 4096;

// Threads: one thread at a time.
class FrameWriter {
 public:
  explicit FrameWriter(const Key& key);
  // Append one frame to *out; the first one follows the stream's header. At most kLargeFrame bytes.
  void seal(ByteView plain, Bytes* out);

 private:
  crypto_secretstream_xchacha20poly1305_state state_;
  Bytes header_;  // until it has been written
};

// Threads: one thread at a time.
class FrameReader {
 public:
  FrameReader(const Key& key, size_t limit) : key_(key), limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }

  void feed(ByteView bytes);
  // The next whole frame, if there is one. kAuth when it is longer than the limit or does not open; the
  // connection is then worthless.
  Status next(bool* found, Bytes* plain);

 private:
  bool take(size_t size, ByteView* bytes);

  const Key key_;
  size_t limit_;
  bool started_ = false;  // the header has come
  crypto_secretstream_xchacha20poly1305_state state_;
  Bytes buffer_;
  size_t at_ = 0;  // what was consumed of buffer_
};

}  // namespace weft
