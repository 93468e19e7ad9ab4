#include "rendezvous/secure_stream.h"

namespace weft {

SecureStream::SecureStream(Role role, const AuthKey& key, const Key& nonce)
    : handshake_(role, key, nonce), out_(handshake_.begin()) {}

void SecureStream::set_limit(size_t limit) {
  limit_ = limit;
  if (reader_) reader_->set_limit(limit);
}

Status SecureStream::receive(ByteView bytes, std::vector<Bytes>* frames) {
  while (!handshake_.done() && !bytes.empty()) {
    size_t consumed = 0;
    WEFT_TRY(handshake_.receive(bytes, &consumed, &out_));
    bytes = bytes.subspan(consumed);
  }
  if (!handshake_.done()) return {};
  if (!reader_) {
    writer_.emplace(handshake_.keys().send);
    reader_.emplace(handshake_.keys().receive, limit_);
    for (const Bytes& frame : early_) writer_->seal(frame, &out_);
    early_.clear();
  }
  reader_->feed(bytes);
  for (;;) {
    bool found = false;
    Bytes frame;
    WEFT_TRY(reader_->next(&found, &frame));
    if (!found) return {};
    frames->push_back(std::move(frame));
  }
}

void SecureStream::send(ByteView frame) {
  if (writer_) {
    writer_->seal(frame, &out_);
  } else {
    early_.emplace_back(frame.begin(), frame.end());
  }
}

}  // namespace weft
