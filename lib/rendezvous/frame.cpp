#include "rendezvous/frame.h"

#include "base/text.h"
#include "rendezvous/unsigned_bytes.h"

namespace weft {
namespace {

constexpr size_t kHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr size_t kOverhead = crypto_secretstream_xchacha20poly1305_ABYTES;

}  // namespace

FrameWriter::FrameWriter(const Key& key) : header_(kHeaderBytes) {
  crypto_secretstream_xchacha20poly1305_init_push(&state_, raw(header_.data()), raw(key.data()));
}

void FrameWriter::seal(ByteView plain, Bytes* out) {
  out->insert(out->end(), header_.begin(), header_.end());
  header_.clear();
  const auto length = static_cast<uint32_t>(plain.size() + kOverhead);
  const size_t at = out->size();
  out->resize(at + sizeof length + length);
  std::memcpy(out->data() + at, &length, sizeof length);
  crypto_secretstream_xchacha20poly1305_push(&state_, raw(out->data() + at + sizeof length), nullptr,
                                             raw(plain.data()), plain.size(), nullptr, 0,
                                             crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
}

void FrameReader::feed(ByteView bytes) {
  if (at_ == buffer_.size() || at_ > buffer_.size() / 2) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(at_));
    at_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

bool FrameReader::take(size_t size, ByteView* bytes) {
  if (buffer_.size() - at_ < size) return false;
  *bytes = ByteView(buffer_).subspan(at_, size);
  at_ += size;
  return true;
}

Status FrameReader::next(bool* found, Bytes* plain) {
  *found = false;
  ByteView bytes;
  if (!started_) {
    if (!take(kHeaderBytes, &bytes)) return {};
    if (crypto_secretstream_xchacha20poly1305_init_pull(&state_, raw(bytes.data()), raw(key_.data())) != 0) {
      return Status::error(Code::kAuth,
                           "the encrypted stream has an invalid header: its bytes were changed on the way");
    }
    started_ = true;
  }
  uint32_t length = 0;
  if (buffer_.size() - at_ < sizeof length) return {};
  std::memcpy(&length, buffer_.data() + at_, sizeof length);
  if (length < kOverhead || length - kOverhead > limit_) {
    return Status::error(Code::kAuth, cat("a frame has ", length, " bytes, allowed are ", kOverhead, " to ",
                                          limit_ + kOverhead));
  }
  if (buffer_.size() - at_ - sizeof length < length) return {};
  take(sizeof length, &bytes);
  take(length, &bytes);
  plain->resize(length - kOverhead);
  unsigned char tag = 0;
  if (crypto_secretstream_xchacha20poly1305_pull(&state_, raw(plain->data()), nullptr, &tag,
                                                 raw(bytes.data()), bytes.size(), nullptr, 0) != 0) {
    return Status::error(Code::kAuth,
                         "a frame failed authentication: it was changed, replayed or forged on the way");
  }
  *found = true;
  return {};
}

}  // namespace weft
