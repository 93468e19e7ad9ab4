// Frames on an authenticated connection: a length, then encrypted and authenticated bytes. libsodium's
// secretstream numbers every frame, so a forged, replayed, reordered or omitted frame fails to decrypt. No
// sockets here. Used by SecureStream.
#pragma once

#include <sodium.h>

#include "base/buffer.h"
#include "base/status.h"
#include "rendezvous/auth.h"

namespace weft {

// Largest frame that a receiver accepts: kSmallFrame until the sender has joined or sent its rank, then
// kLargeFrame, which holds a message of the largest size (Exchange::kMaxBytes, Control::kMaxMessage) and its
// header.
inline constexpr size_t kSmallFrame = 4096;
inline constexpr size_t kLargeFrame = (1u << 20) + 4096;

// Threads: one thread at a time.
class FrameWriter {
 public:
  explicit FrameWriter(const Key& key);
  // Appends one encrypted frame of at most kLargeFrame plain bytes to *out; the first one follows the
  // stream's header.
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
  // Returns the next complete frame, if there is one. kAuth: the frame exceeds the limit or fails to decrypt;
  // the connection must then be closed.
  Status next(bool* found, Bytes* plain);

 private:
  bool take(size_t size, ByteView* bytes);

  const Key key_;
  size_t limit_;
  bool started_ = false;  // the stream header has been received
  crypto_secretstream_xchacha20poly1305_state state_;
  Bytes buffer_;
  size_t at_ = 0;  // number of consumed bytes of buffer_
};

}  // namespace weft
