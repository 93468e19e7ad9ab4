// A Link over a program's own table of functions (weft_transport.h). Nothing that the table does is believed:
// a token that was not handed out, a call back at the wrong time or limits that cannot be lose all peers.
#pragma once

#include <weft/weft_transport.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/guard.h"
#include "base/log.h"
#include "frames/link.h"

namespace weft::frames {

class CustomLink final : public Link {
 public:
  // log outlives the link. table: checked, complete.
  CustomLink(const weft_transport& table, int rank, int size, Log& log);
  ~CustomLink() override { stop(); }

  Status open(LinkEvents& events, Bytes* address) override;
  Status connect(int peer, ByteView address, LinkLimits* limits) override;
  bool send(int peer, ByteView head, ByteView data, Lent& lent) override;
  bool progress() override;
  void close(int peer) override;
  void stop() override;
  bool settled() override;
  std::string path(int peer) const override;
  std::string about() const override;
  const char* name() const override { return table_.name; }

 private:
  // Which of the table's functions is running: it says what may be called back.
  enum class Inside { kNothing, kOpen, kConnect, kSend, kProgress, kClosePeer, kSettled };
  template <class Call>
  auto inside(Inside where, Call&& call);
  bool may_call_back(bool allowed, const char* what);
  template <class Call>
  void called_back(Call&& call);
  void misbehaved(const std::string& how);

  static void on_heard(void* self, const void* frame, uint64_t size);
  static void on_sent(void* self, uint64_t token, weft_status status);
  static void on_lost(void* self, int32_t peer, const char* reason);
  Status lost_status(int peer, const char* reason) const;

  // A frame that the table holds, or none; its token is its place and its generation.
  struct Loan {
    Lent* lent = nullptr;
    uint32_t generation = 0;
  };
  uint64_t lend(Lent& lent);
  Lent* take_back(uint64_t token);

  weft_transport table_;
  const int rank_;
  const int size_;
  Log& log_;
  LinkEvents* events_ = nullptr;
  weft_transport_events told_{};  // what the table calls back
  void* link_ = nullptr;
  bool open_ = false;
  bool misbehaved_ = false;
  CarriedException carried_;
  // Atomic because a transport may call back on any thread, to be refused.
  std::atomic<Inside> inside_{Inside::kNothing};
  std::atomic<std::thread::id> thread_{};  // that is inside
  std::vector<Loan> loans_;
  std::vector<uint32_t> free_;  // places in loans_
};

}  // namespace weft::frames
