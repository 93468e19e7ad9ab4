// Tagged messages over every backend.
#include <algorithm>
#include <memory>
#include <vector>

#include "backends.h"
#include "base/text.h"
#include "calls.h"
#include "comm/context.h"
#include "support/catch.h"
#include "tagged/messages.h"

using namespace weft;
using namespace weft::test;

namespace {

// A tagged message of i32. It must be complete before it is destroyed.
struct Tagged {
  Request request;
  std::vector<int32_t> data;
  tagged::Taken taken;

  void submit(Rank& self, Coll coll, int peer, uint64_t tag) {
    request.args = coll == Coll::kSend ? send(data, peer) : receive(data, peer);
    request.deadline = self.comm->op_deadline(0);
    tagged::Messages* messages = nullptr;
    self.expect(tagged::Messages::of(*self.comm, &messages), "messages");
    const auto write = [](void* target, const tagged::Taken& message) {
      *static_cast<tagged::Taken*>(target) = message;
    };
    messages->submit(&request, tag, {write, &taken});
    self.comm->context().engine().notify();
  }
  Status wait(Rank& self) {
    self.comm->context().engine().wait([&] { return request.done(); }, Deadline::never());
    return request.result;
  }
};

}  // namespace

TEST_CASE("tagged messages of every size go between all ranks, in any order of tags") {
  const std::vector<size_t> counts = {0, 1, 56, 57, 4096, 4097, 300'000};
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 3, [&](Rank& self) {
      std::vector<std::unique_ptr<Tagged>> sends, receives;
      for (size_t i = 0; i < counts.size(); i++) {
        for (int peer = 0; peer < self.size; peer++) {
          Tagged& message = *sends.emplace_back(std::make_unique<Tagged>());
          message.data.assign(counts[i], static_cast<int32_t>(i) * 10 + self.rank);
          message.submit(self, Coll::kSend, peer, i);
        }
      }
      for (size_t i = counts.size(); i-- > 0;) {
        for (int n = 0; n < self.size; n++) {
          Tagged& message = *receives.emplace_back(std::make_unique<Tagged>());
          message.data.assign(300'001, -1);
          message.submit(self, Coll::kRecv, i % 2 == 0 ? tagged::kAnySource : n, i);
        }
      }
      self.expect(self.run(barrier()), "collectives are apart from tagged messages");
      for (const auto& message : sends) self.expect(message->wait(self), "send");
      std::vector<std::vector<bool>> seen(counts.size(), std::vector<bool>(static_cast<size_t>(self.size)));
      for (const auto& message : receives) {
        self.expect(message->wait(self), "receive");
        const auto tag = static_cast<size_t>(message->taken.tag);
        const auto source = static_cast<size_t>(message->taken.source);
        if (tag >= counts.size() || source >= seen[tag].size())
          return self.expect(false, "an unknown message");
        self.expect(!seen[tag][source] && message->taken.count == counts[tag],
                    cat("message ", tag, " from ", source));
        seen[tag][source] = true;
        std::vector<int32_t> expected(300'001, -1);
        std::fill_n(expected.begin(), counts[tag], static_cast<int32_t>(tag * 10 + source));
        self.expect(message->data == expected, cat("data of message ", tag, " from ", source));
      }
    });
  }
}

TEST_CASE("a tagged message that does not fit fails alone over every backend") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 2, [](Rank& self) {
      const Coll coll = self.rank == 0 ? Coll::kSend : Coll::kRecv;
      for (const size_t count : {size_t{20'000}, size_t{19'999}, size_t{20'000}}) {
        Tagged message;
        message.data.assign(self.rank == 0 ? 20'000 : count, 5 * (1 - self.rank));
        message.submit(self, coll, 1 - self.rank, 4);
        self.expect(message.wait(self).code() == (count == 20'000 ? Code::kOk : Code::kMismatch),
                    message.request.result.text());
        if (count == 20'000) self.expect(message.data == std::vector<int32_t>(count, 5), "data");
      }
      self.expect(self.run(barrier()), "the communicator continues");
    });
  }
}

TEST_CASE("short tagged sends complete while the receiver is in a barrier, over every backend") {
  for (const BackendRow& row : backend_rows()) {
    run_on(row, 2, [](Rank& self) {
      for (const size_t count : {size_t{1}, size_t{2000}}) {
        // The receiver may keep half of the window until more messages are received.
        const size_t fit = tagged::kEagerWindowBytes / 2 / tagged::eager_cost(count * sizeof(int32_t));
        for (const size_t number : {size_t{1}, size_t{9}, size_t{40}}) {
          std::vector<std::unique_ptr<Tagged>> messages;
          const auto submit = [&](Coll coll) {
            for (size_t i = 0; i < number; i++) {
              Tagged& message = *messages.emplace_back(std::make_unique<Tagged>());
              message.data.assign(count, coll == Coll::kSend ? static_cast<int32_t>(i) : -1);
              message.submit(self, coll, 1 - self.rank, i % 3);
            }
          };
          if (self.rank == 0) submit(Coll::kSend);
          for (size_t i = 0; i < std::min(fit, messages.size()); i++)
            self.expect(messages[i]->wait(self), "a send that fits into the window");
          self.expect(self.run(barrier()), "barrier");
          if (self.rank == 1) submit(Coll::kRecv);
          for (size_t i = 0; i < number; i++) {
            self.expect(messages[i]->wait(self), "message");
            self.expect(messages[i]->data == std::vector<int32_t>(count, static_cast<int32_t>(i)), "data");
          }
          self.expect(self.run(barrier()), "barrier after the messages");
        }
      }
    });
  }
}
