// A Link over a program's own table of functions (weft_transport.h). It checks results and events of the
// table. An unknown token, an event at the wrong time or an invalid argument loses all peers; invalid limits
// fail connect().
#pragma once

#include <weft/weft_transport.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/guard.h"
#include "base/log.h"
#include "framed/link.h"

namespace weft::framed {

class CustomLink final : public Link {
 public:
  // log outlives the link. table: validated, with all required functions.
  CustomLink(const weft_transport& table, int rank, int size, Log& log);
  ~CustomLink() override { stop(); }

  Status open(LinkEvents& events, Bytes* address) override;
  Status connect(int peer, ByteView address, LinkLimits* limits) override;
  bool send(int peer, ByteView head, ByteView data, InFlightFrame& frame) override;
  bool progress() override;
  void close(int peer) override;
  void stop() override;
  bool settled() override;
  std::string path(int peer) const override;
  std::string about() const override;
  const char* name() const override { return table_.name; }

 private:
  // The table's function that is running. It determines which events are permitted.
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

  // An entry for a frame in flight. The frame's token consists of the index in tokens_ (low 32 bits) and of
  // the generation, which changes at each completion.
  struct TokenEntry {
    InFlightFrame* frame = nullptr;  // null: the entry is free
    uint32_t generation = 0;
  };
  uint64_t issue_token(InFlightFrame& frame);
  InFlightFrame* redeem_token(uint64_t token);

  weft_transport table_;
  const int rank_;
  const int size_;
  Log& log_;
  LinkEvents* events_ = nullptr;
  weft_transport_events event_table_{};  // the event functions, passed to the table's open
  void* link_ = nullptr;
  bool open_ = false;
  bool misbehaved_ = false;
  CarriedException carried_;
  // Atomic, because a faulty transport may report events on any thread; these are rejected.
  std::atomic<Inside> inside_{Inside::kNothing};
  std::atomic<std::thread::id> thread_{};  // the thread that last called the table
  std::vector<TokenEntry> tokens_;
  std::vector<uint32_t> free_;  // indices of free entries in tokens_
};

}  // namespace weft::framed
