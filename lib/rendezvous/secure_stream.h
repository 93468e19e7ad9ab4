// An authenticated, encrypted connection without its socket: the handshake (auth.h), then frames (frame.h).
// It turns received bytes into frames, and frames to send into bytes. Used by Connection. Threads: one thread
// at a time; once established, receive() may run on one thread while another one sends.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/frame.h"

namespace weft {

class SecureStream {
 public:
  SecureStream(Role role, const AuthKey& key, const Key& nonce = random_key());

  // Handles received bytes and appends the frames that they complete. On an error the connection must be
  // closed; the bytes in out() should still be sent.
  Status receive(ByteView bytes, std::vector<Bytes>* frames);
  // True once both sides have proved that they hold the key.
  bool established() const { return reader_.has_value(); }
  // True once the peer has sent Weft's hello; it may be unauthenticated.
  bool greeted() const { return handshake_.greeted(); }
  // Sets the largest frame to accept; kSmallFrame at first.
  void set_limit(size_t limit);

  // Encrypts a frame into out(). Frames sent before the handshake is done are stored and follow then.
  void send(ByteView frame);
  // Returns the bytes to write to the socket; the caller erases what it has written.
  Bytes& out() { return out_; }

 private:
  Handshake handshake_;
  std::optional<FrameWriter> writer_;
  std::optional<FrameReader> reader_;
  std::vector<Bytes> early_;  // frames sent before the handshake was done
  Bytes out_;
  size_t limit_ = kSmallFrame;
};

}  // namespace weft
