// One authenticated, encrypted connection without its socket: the handshake (auth.h), then frames (frame.h).
// Bytes of the peer go in, frames come out; frames to send go in, bytes come out. Used by Connection.
// Threads: one thread at a time; once established, receive() may run on one thread while another one sends.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/frame.h"

namespace weft {

class SecureStream {
 public:
  SecureStream(Role role, const AuthKey& key, const Key& nonce = random_key());

  // Take bytes of the peer and append the frames that they complete. On an error the connection is over; the
  // bytes in out() should still be sent.
  Status receive(ByteView bytes, std::vector<Bytes>* frames);
  // Both sides have proved that they hold the key.
  bool established() const { return reader_.has_value(); }
  // The peer speaks Weft's protocol at least.
  bool greeted() const { return handshake_.greeted(); }
  // Largest frame to accept; kSmallFrame at first.
  void set_limit(size_t limit);

  // Encrypt a frame into out(); before the handshake is done it is kept and follows then.
  void send(ByteView frame);
  // What is to be written to the socket; the caller erases what it wrote.
  Bytes& out() { return out_; }

 private:
  Handshake handshake_;
  std::optional<FrameWriter> writer_;
  std::optional<FrameReader> reader_;
  std::vector<Bytes> early_;  // frames that were sent before the handshake was done
  Bytes out_;
  size_t limit_ = kSmallFrame;
};

}  // namespace weft
