// lib/tagged: which receive takes which message, under many schedules, and how operations end
// early.
#include "tagged/messages.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/context.h"
#include "comm/trace_sink.h"
#include "device/arena.h"
#include "kernels/host_ops.h"
#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"
#include "trace/recorder.h"

namespace unit_tagged_messages {

using namespace weft;
using namespace weft::tagged;
using namespace weft::test;

namespace {

constexpr int64_t kLimitMs = 60'000;

// One send or receive, and its buffer.
struct Mail {
  Mail() = default;
  explicit Mail(size_t count) : data(count) { std::iota(data.begin(), data.end(), 0u); }

  Request request;
  std::vector<uint32_t> data;
  Taken taken;
  uint64_t tag = 0;

  Code code() const { return request.result.code(); }
};

Messages* messages_of(Rank& self) {
  Messages* messages = nullptr;
  self.expect(Messages::of(*self.comm, &messages), "messages");
  return messages;
}

void write_taken(void* target, const Taken& message) {
  static_cast<Mail*>(target)->taken = message;
}

void submit(Rank& self, Mail& mail, Coll coll, int peer, uint64_t tag, int64_t timeout_ms = kLimitMs,
            Dtype dtype = Dtype::kU32) {
  CollectiveArgs& args = mail.request.args;
  args.coll = coll;
  args.dtype = dtype;
  args.peer = peer;
  args.count = mail.data.size() * sizeof(uint32_t) / dtype_size(dtype);
  auto* const memory = reinterpret_cast<std::byte*>(mail.data.data());
  (coll == Coll::kSend ? args.src = memory : args.dst = memory);
  mail.tag = tag;
  mail.request.deadline = self.comm->op_deadline(timeout_ms);
  messages_of(self)->submit(&mail.request, tag, {coll == Coll::kRecv ? write_taken : nullptr, &mail});
  self.comm->context().engine().notify();
}

void wait(Rank& self, const Mail& mail, const std::string& what) {
  Engine& engine = self.comm->context().engine();
  const bool done = engine.wait([&] { return mail.request.done(); },
                                Deadline::after(self.comm->context().clock(), 2 * kLimitMs, 0));
  self.expect(done, cat(what, " does not end"));
}

void cancel(Rank& self, const Mail& mail) {
  messages_of(self)->cancel(mail.request);
}

void barrier(Rank& self) {
  self.expect(self.run({}), "barrier");
}

// ---- Random programs ----

// A message that the program sends. Its first elements are the sender and its number among all messages.
struct Planned {
  int from = 0;
  int to = 0;
  uint64_t tag = 0;
  uint64_t count = 0;
  bool wild_source = false;  // all receives with this tag accept any source
};

// Tags of the first phase. Receives name them; those of kWild accept any source.
constexpr uint64_t kPlain = 10;
constexpr uint64_t kWild = 20;
constexpr uint64_t kKinds = 4;  // tags of each
// Messages of the second phase, whose receives accept everything, have any tag.
constexpr uint64_t kAnything = 1000;

uint64_t draw_count(Random& random) {
  constexpr std::array<uint64_t, 8> kCounts = {0, 1, 56, 57, 1000, 4096, 4097, 50'000};
  if (random.chance(40)) return 262'144 + random.below(100);
  return random.chance(2) ? random.below(30) : kCounts[random.below(kCounts.size())];
}

std::vector<Planned> draw_messages(Random& random, int size, uint64_t number, bool second) {
  std::vector<Planned> all;
  for (uint64_t i = 0; i < number; i++) {
    Planned one;
    one.from = static_cast<int>(random.below(static_cast<uint64_t>(size)));
    one.to = static_cast<int>(random.below(static_cast<uint64_t>(size)));
    one.wild_source = random.chance(2);
    one.tag =
        second ? kAnything + random.below(5) : (one.wild_source ? kWild : kPlain) + random.below(kKinds);
    one.count = draw_count(random);
    all.push_back(one);
  }
  return all;
}

std::vector<uint32_t> content(const Planned& message, size_t number) {
  std::vector<uint32_t> data(message.count);
  std::iota(data.begin(), data.end(), static_cast<uint32_t>(number * 7919));
  if (message.count > 1) data[1] = static_cast<uint32_t>(message.from);
  if (message.count > 0) data[0] = static_cast<uint32_t>(number);
  return data;
}

struct Receive {
  Mail mail;
  int source = kAnySource;
};

// Checks the receives of a phase, in the order of their calls: each message once, complete, and those with
// one source and tag in the order in which they were sent.
void check_received(Rank& self, const std::vector<Planned>& plan,
                    const std::vector<std::unique_ptr<Receive>>& receives) {
  std::map<std::pair<int, uint64_t>, size_t> next;
  for (const auto& receive : receives) {
    const Mail& mail = receive->mail;
    self.expect(mail.request.result, "receive");
    const Taken& taken = mail.taken;
    self.expect(receive->source == kAnySource || receive->source == taken.source, "the source");
    self.expect(mail.tag == kAnyTag || mail.tag == taken.tag, "the tag");
    size_t& number = next[{taken.source, taken.tag}];
    const auto matches = [&](const Planned& message) {
      return message.from == taken.source && message.to == self.rank && message.tag == taken.tag;
    };
    while (number < plan.size() && !matches(plan[number])) number++;
    if (number == plan.size()) return self.expect(false, "a message that was not sent, or twice");
    const std::vector<uint32_t> expected = content(plan[number], number);
    self.expect(taken.count == expected.size(), cat("count of message ", number));
    self.expect(mail.data.size() >= expected.size() &&
                    std::equal(expected.begin(), expected.end(), mail.data.begin()),
                cat("data of message ", number));
    number++;
  }
}

// Sends and receives the messages of a plan, in an order drawn from `random`.
void run_phase(Rank& self, const std::vector<Planned>& plan, bool second, Random& random) {
  std::vector<std::unique_ptr<Mail>> sends;
  std::vector<std::unique_ptr<Receive>> receives;
  std::vector<size_t> incoming;
  size_t outgoing = 0;
  for (size_t i = 0; i < plan.size(); i++) {
    if (plan[i].to == self.rank) incoming.push_back(i);
  }
  // Receives are called in another order than messages are sent.
  for (size_t i = incoming.size(); i > 1; i--) std::swap(incoming[i - 1], incoming[random.below(i)]);
  const auto send_next = [&] {
    while (outgoing < plan.size() && plan[outgoing].from != self.rank) outgoing++;
    if (outgoing == plan.size()) return false;
    const Planned& message = plan[outgoing];
    Mail& mail = *sends.emplace_back(std::make_unique<Mail>());
    mail.data = content(message, outgoing++);
    submit(self, mail, Coll::kSend, message.to, message.tag);
    return true;
  };
  const auto receive_next = [&] {
    if (receives.size() == incoming.size()) return false;
    const Planned& message = plan[incoming[receives.size()]];
    Receive& receive = *receives.emplace_back(std::make_unique<Receive>());
    receive.mail.data.resize(263'000);
    const bool any = second || message.wild_source;
    receive.source = any ? kAnySource : message.from;
    submit(self, receive.mail, Coll::kRecv, receive.source, second ? kAnyTag : message.tag);
    return true;
  };
  for (bool more = true; more;) {
    const bool sends_first = random.chance(2);
    more = sends_first ? send_next() || receive_next() : receive_next() || send_next();
    if (random.chance(4)) self.comm->context().clock().relax(0);
  }
  for (const auto& send : sends) {
    wait(self, *send, "a send");
    self.expect(send->request.result, "send");
  }
  for (const auto& receive : receives) wait(self, receive->mail, "a receive");
  check_received(self, plan, receives);
}

void random_program(uint64_t seed, int size) {
  Random shared(seed * 31 + 7);
  const std::vector<Planned> first = draw_messages(shared, size, 120, false);
  const std::vector<Planned> second = draw_messages(shared, size, 40, true);
  Simulation simulation(seed, size);
  check(simulation
            .run([&](Rank& self) {
              run_phase(self, first, false, simulation.random());
              barrier(self);
              run_phase(self, second, true, simulation.random());
            })
            .failures);
}

// Both ranks of two run the body.
void pair(const std::function<void(Rank&)>& body) {
  check(run_threads(2, body));
}

}  // namespace

TEST_CASE("random programs: each message is received once, whole, and in order") {
  for (uint64_t i = 0; i < 60; i++) random_program(base_seed() + i, 1 + static_cast<int>(i % 4));
}

TEST_CASE("whenever sends and receives are cancelled, both ends agree on which messages moved") {
  for (uint64_t i = 0; i < 60; i++) {
    std::array<Mail, 20> sends, receives;
    Simulation simulation(base_seed() + i, 2);
    const auto report = simulation.run([&](Rank& self) {
      const bool sender = self.rank == 0;
      std::array<Mail, 20>& mine = sender ? sends : receives;
      Random& random = simulation.random();
      for (size_t j = 0; j < mine.size(); j++) {
        mine[j].data.resize(sender ? 5000 + j : 6000);
        submit(self, mine[j], sender ? Coll::kSend : Coll::kRecv, 1 - self.rank, 5);
        if (random.chance(3)) cancel(self, mine[random.below(j + 1)]);
        if (random.chance(2)) simulation.pause();
      }
      // The sender gives up everything before the receiver does.
      if (!sender) barrier(self);
      for (const Mail& mail : mine) cancel(self, mail);
      for (const Mail& mail : mine) wait(self, mail, "an operation");
      if (sender) barrier(self);
      barrier(self);  // neither leaves before the other is done
    });
    check(report.failures);
    std::vector<uint64_t> sent, received;
    for (const Mail& mail : sends) {
      if (mail.code() == Code::kOk) sent.push_back(mail.data.size());
      INFO(mail.request.result.text());
      CHECK((mail.code() == Code::kOk || mail.code() == Code::kCancelled));
    }
    for (const Mail& mail : receives) {
      if (mail.code() == Code::kOk) received.push_back(mail.taken.count);
      INFO(mail.request.result.text());
      CHECK((mail.code() == Code::kOk || mail.code() == Code::kCancelled));
    }
    std::sort(received.begin(), received.end());
    INFO("seed " << base_seed() + i);
    CHECK(sent == received);
  }
}

TEST_CASE("a message that is given up while its data moves ends at both ends, and others follow it") {
  std::map<std::pair<Code, bool>, int> outcomes;
  for (uint64_t i = 0; i < 60; i++) {
    const bool sender_ends = i % 2 == 0;
    Mail send(1'500'000), receive(1'500'000), later(100'000), later_received(100'000);
    Simulation simulation(base_seed() + i, 2);
    const auto report = simulation.run([&](Rank& self) {
      const bool sender = self.rank == 0;
      Mail& mail = sender ? send : receive;
      submit(self, mail, sender ? Coll::kSend : Coll::kRecv, 1 - self.rank, 3);
      if (sender == sender_ends) {
        for (uint64_t n = simulation.random().below(100); n > 0; n--) {
          bool had_lock = false;
          self.comm->context().engine().poll_tasks(&had_lock);
          self.comm->context().clock().relax(256);  // microseconds each
        }
        messages_of(self)->end(mail.request, Status::error(Code::kCancelled, "ended by the test"));
      }
      submit(self, sender ? later : later_received, sender ? Coll::kSend : Coll::kRecv, 1 - self.rank, 4);
      wait(self, sender ? later : later_received, "the next message");
      self.expect((sender ? later : later_received).request.result, "the next message");
      // Either the receive has taken the message, or nobody will.
      if (sender && !sender_ends) cancel(self, mail);
      if (sender) wait(self, mail, "the send");
      barrier(self);
      if (!sender) cancel(self, mail);
      if (!sender) wait(self, mail, "the receive");
      self.expect(!self.comm->failed(), "the communicator continues");
    });
    check(report.failures);
    INFO("seed " << base_seed() + i);
    CHECK((send.code() == Code::kOk || send.code() == Code::kCancelled));
    if (sender_ends) CHECK(receive.code() == send.code());
    CHECK(later_received.data == later.data);
    const bool part =
        receive.request.result.text().find("gave up its message with tag 3 after") != std::string::npos;
    outcomes[{receive.code(), part}]++;
  }
  CHECK(outcomes[{Code::kOk, false}] > 0);
  CHECK(outcomes[{Code::kCancelled, false}] > 0);
  CHECK(outcomes[{Code::kCancelled, true}] > 0);  // a part had arrived
}

TEST_CASE("a long message that no receive asks for holds back no other") {
  pair([](Rank& self) {
    const Coll coll = self.rank == 0 ? Coll::kSend : Coll::kRecv;
    const std::array<uint64_t, 4> order =
        self.rank == 0 ? std::array<uint64_t, 4>{1, 2, 3, 4} : std::array<uint64_t, 4>{3, 2, 4, 1};
    std::map<uint64_t, Mail> mails;
    for (const uint64_t tag : order) {
      Mail& mail = mails[tag];
      mail.data.resize(tag == 2 ? 2 : 1'000'000, self.rank == 0 ? static_cast<uint32_t>(tag) : 0);
      submit(self, mail, coll, 1 - self.rank, tag);
      if (self.rank == 1) wait(self, mail, cat("the message with tag ", tag));
    }
    for (auto& [tag, mail] : mails) {
      wait(self, mail, cat("tag ", tag));
      self.expect(mail.request.result, "message");
      self.expect(mail.data == std::vector<uint32_t>(mail.data.size(), static_cast<uint32_t>(tag)), "data");
    }
  });
}

TEST_CASE("messages that no receive asks for wait at their sender once the window is full") {
  constexpr size_t kMany = 3000;
  pair([](Rank& self) {
    std::vector<Mail> many(kMany);
    Mail last(2);
    const Coll coll = self.rank == 0 ? Coll::kSend : Coll::kRecv;
    const auto submit_many = [&] {
      for (uint32_t i = 0; i < kMany; i++) {
        many[i].data.assign(25, self.rank == 0 ? i : 0);
        submit(self, many[i], coll, 1 - self.rank, 1);
      }
    };
    if (self.rank == 0) submit_many();
    submit(self, last, coll, 1 - self.rank, 2);
    wait(self, last, "the message with another tag");
    if (self.rank == 0) {
      const auto done =
          std::count_if(many.begin(), many.end(), [](const Mail& mail) { return mail.request.done(); });
      const auto fit = static_cast<ptrdiff_t>(kEagerWindowBytes / eager_cost(100));
      self.expect(done <= fit, cat(done, " sends are complete, expected at most ", fit));
      self.expect(done > fit / 2, cat(done, " sends are complete"));
    }
    barrier(self);
    if (self.rank == 1) submit_many();
    for (uint32_t i = 0; i < kMany; i++) {
      wait(self, many[i], "a message");
      self.expect(many[i].request.result, "message");
      self.expect(many[i].data == std::vector<uint32_t>(25, i), "data");
    }
  });
}

TEST_CASE(
    "short sends complete at their calls while they fit into the window; one that is given up is not "
    "received") {
  constexpr uint32_t kFit = static_cast<uint32_t>(kEagerWindowBytes / eager_cost(400));
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  check(run_threads(
      2,
      [](Rank& self) {
        const bool sender = self.rank == 0;
        std::vector<Mail> fit(kFit);
        Mail late(100), cancelled(100);
        if (sender) {
          for (uint32_t i = 0; i < kFit; i++) {
            fit[i].data.assign(100, i);
            submit(self, fit[i], Coll::kSend, 1, 1);
            self.expect(fit[i].request.done() && fit[i].request.result.ok(), cat("send ", i));
            fit[i].data.assign(100, 0);
          }
          submit(self, late, Coll::kSend, 1, 1, 20);
          submit(self, cancelled, Coll::kSend, 1, 1);
          self.expect(!late.request.done() && !cancelled.request.done(), "sends that do not fit wait");
          wait(self, late, "a send with a deadline");
          cancel(self, cancelled);
          self.expect(late.code() == Code::kTimeout && cancelled.code() == Code::kCancelled,
                      "both are given up");
        }
        barrier(self);
        if (!sender) {
          for (uint32_t i = 0; i < kFit; i++) {
            fit[i].data.assign(100, 0);
            submit(self, fit[i], Coll::kRecv, 0, 1);
            wait(self, fit[i], "a receive");
            self.expect(fit[i].request.result, "receive");
            self.expect(fit[i].data == std::vector<uint32_t>(100, i), cat("data of message ", i));
          }
          submit(self, late, Coll::kRecv, 0, 1, 50);
          wait(self, late, "a receive");
          self.expect(late.code() == Code::kTimeout, "nothing else is received");
        }
        barrier(self);
      },
      options));
}

TEST_CASE("messages beyond those that may be offered wait at their sender") {
  constexpr size_t kMany = kMostOffers + 100;
  pair([](Rank& self) {
    const bool sender = self.rank == 0;
    std::vector<Mail> many(sender ? kMany : 0);
    for (Mail& mail : many) {
      mail.data.assign(kEagerMessageBytes / sizeof(uint32_t) + 1, 7);
      submit(self, mail, Coll::kSend, 1, 1);
    }
    // Rank 1 receives the offers while it waits for another message.
    Mail none(1);
    if (!sender) submit(self, none, Coll::kRecv, 0, 2, 300);
    if (!sender) wait(self, none, "a receive that nothing matches");
    barrier(self);
    for (size_t i = 0; !sender && i < kMany; i++) {
      Mail mail(kEagerMessageBytes / sizeof(uint32_t) + 1);
      submit(self, mail, Coll::kRecv, 0, 1);
      wait(self, mail, "a receive");
      self.expect(mail.request.result, cat("receive ", i));
    }
    for (const Mail& mail : many) wait(self, mail, "a send");
    for (const Mail& mail : many) self.expect(mail.request.result, "send");
    barrier(self);
    self.expect(!self.comm->failed(), "the communicator continues");
  });
}

TEST_CASE("a send that waits for the window completes once it is free") {
  pair([](Rank& self) {
    constexpr uint32_t kMany = 200;  // of 4 KiB
    std::vector<Mail> many(kMany);
    for (uint32_t i = 0; i < kMany; i++) {
      many[i].data.assign(1024, self.rank == 0 ? i : 0);
      submit(self, many[i], self.rank == 0 ? Coll::kSend : Coll::kRecv, 1 - self.rank, 1);
      if (self.rank == 1) wait(self, many[i], "a receive");
      self.expect(self.rank == 0 || many[i].data == std::vector<uint32_t>(1024, i), cat("message ", i));
    }
    for (const Mail& mail : many) wait(self, mail, "a message");
    for (const Mail& mail : many) self.expect(mail.request.result, "message");
  });
}

TEST_CASE("a rank that leaves has sent what is complete, and its refusals") {
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  std::atomic<bool> leaves{false};
  check(run_threads(
      2,
      [&](Rank& self) {
        std::vector<Mail> many(40);
        Mail refused(self.rank == 0 ? 4 : 100'000);
        submit(self, refused, self.rank == 0 ? Coll::kRecv : Coll::kSend, 1 - self.rank, 2);
        if (self.rank == 0) {
          for (uint32_t i = 0; i < many.size(); i++) {
            many[i].data.assign(1000, i);
            submit(self, many[i], Coll::kSend, 1, 1);
          }
          for (const Mail& mail : many) wait(self, mail, "a send");
          wait(self, refused, "a receive that is too short");
          leaves = true;
          self.expect(self.comm->close(), "close");
          return;
        }
        while (!leaves) self.comm->context().clock().relax(5000);  // receives nothing meanwhile
        wait(self, refused, "the send that is refused");
        self.expect(refused.code() == Code::kMismatch, refused.request.result.text());
        for (uint32_t i = 0; i < many.size(); i++) {
          many[i].data.assign(1000, 0);
          submit(self, many[i], Coll::kRecv, 0, 1);
          wait(self, many[i], "a receive");
          self.expect(many[i].request.result, "receive");
          self.expect(many[i].data == std::vector<uint32_t>(1000, i), "data");
        }
      },
      options));
}

TEST_CASE("ranks that leave wait for no message that nobody receives") {
  pair([](Rank& self) {
    std::vector<Mail> many(20);
    for (Mail& mail : many) {
      mail.data.resize(1000);
      submit(self, mail, Coll::kSend, 1 - self.rank, 1);
      wait(self, mail, "a send");
    }
    const uint64_t begin_ns = self.comm->context().clock().now_ns();
    self.expect(self.comm->close(), "close");
    self.expect(self.comm->context().clock().now_ns() - begin_ns < 5'000'000'000, "close takes too long");
  });
}

TEST_CASE("a receive from any rank that has a message names its sender at the deadline") {
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  std::atomic<bool> ended{false};
  check(run_threads(
      2,
      [&](Rank& self) {
        Mail mail(1'000'000);
        if (self.rank == 0) {
          submit(self, mail, Coll::kSend, 1, 5);
          while (!ended) self.comm->context().clock().relax(5000);  // nobody polls here meanwhile
          wait(self, mail, "the send");
          self.expect(mail.request.result, "a send whose receive gave up");
        } else {
          submit(self, mail, Coll::kRecv, kAnySource, 5, 100);
          wait(self, mail, "the receive");
          ended = true;
          self.expect(mail.code() == Code::kTimeout, mail.request.result.text());
          self.expect(mail.request.result.info().ranks == std::vector<int>{0}, "the sender");
          self.expect(
              mail.request.result.text().find("from rank 0 with tag 5 on rank 1 passed") != std::string::npos,
              mail.request.result.text());
        }
        barrier(self);
      },
      options));
}

TEST_CASE("a rank sends to itself") {
  check(run_threads(1, [](Rank& self) {
    for (const size_t count : {size_t{0}, size_t{5}, size_t{4096}, size_t{1'000'000}}) {
      Mail send(count), receive;
      receive.data.resize(count);
      submit(self, send, Coll::kSend, 0, 9);
      if (count <= 4096) {
        wait(self, send, "a short send, before its receive,");
      } else {
        self.expect(!send.request.done(), "a long send waits for its receive");
      }
      submit(self, receive, Coll::kRecv, kAnySource, kAnyTag);
      wait(self, receive, "receive");
      wait(self, send, "send");
      self.expect(send.request.result, "send");
      self.expect(receive.request.result, "receive");
      self.expect(receive.data == send.data, "data");
      self.expect(receive.taken.source == 0 && receive.taken.tag == 9 && receive.taken.count == count,
                  "taken");
      Mail next(count), posted;
      posted.data.resize(count);
      submit(self, posted, Coll::kRecv, 0, 7);
      submit(self, next, Coll::kSend, 0, 7);
      wait(self, posted, "receive");
      self.expect(posted.request.result, "receive");
      self.expect(posted.data == next.data, "data");
    }
    Mail send(10'000), receive(9'999);
    submit(self, send, Coll::kSend, 0, 1);
    submit(self, receive, Coll::kRecv, 0, 1);
    wait(self, receive, "receive");
    self.expect(send.code() == Code::kMismatch && receive.code() == Code::kMismatch, "both ends fail");
  }));
}

TEST_CASE("a receive that does not fit fails alone, with its send if that still waits") {
  pair([](Rank& self) {
    const bool sender = self.rank == 0;
    for (const size_t count : {size_t{10}, size_t{10'000}}) {
      for (const bool other_type : {false, true}) {
        Mail mail(sender || other_type ? count : count - 1);
        submit(self, mail, sender ? Coll::kSend : Coll::kRecv, 1 - self.rank, 6, kLimitMs,
               !sender && other_type ? Dtype::kF32 : Dtype::kU32);
        wait(self, mail, "the operation");
        const std::string text = mail.request.result.text();
        if (sender && count == 10) {
          self.expect(mail.request.result, "a short send");
        } else {
          const std::string both =
              cat("message with tag 6: rank 0 sends u32 x ", count, ", rank 1 receives at most ",
                  other_type ? "f32 x " : "u32 x ", other_type ? count : count - 1);
          self.expect(mail.code() == Code::kMismatch && text.find(both) == 0, text);
          self.expect(mail.request.result.info().ranks == std::vector<int>{1 - self.rank}, "the other rank");
        }
        if (!sender) self.expect(mail.taken.count == count && mail.taken.tag == 6, "taken");
      }
    }
    barrier(self);
    self.expect(!self.comm->failed(), "the communicator continues");
  });
}

TEST_CASE("a deadline fails only its message") {
  pair([](Rank& self) {
    Mail receive(4), any(4), send(100'000);
    submit(self, receive, Coll::kRecv, 1 - self.rank, 1, 30);
    submit(self, any, Coll::kRecv, kAnySource, 2, 30);
    submit(self, send, Coll::kSend, 1 - self.rank, 3, 30);
    for (const Mail* mail : {&receive, &any, &send}) {
      wait(self, *mail, "an operation");
      self.expect(mail->code() == Code::kTimeout, mail->request.result.text());
    }
    const std::string other = std::to_string(1 - self.rank), own = std::to_string(self.rank);
    self.expect(receive.request.result.text() == "recv_tagged u32 x 4 from rank " + other +
                                                     " with tag 1 on rank " + own +
                                                     " passed its deadline waiting for rank " + other +
                                                     ": check that rank " + other + " sends tag 1",
                receive.request.result.text());
    self.expect(any.request.result.text() == "recv_tagged u32 x 4 from any rank with tag 2 on rank " + own +
                                                 " passed its deadline: check that a rank sends tag 2",
                any.request.result.text());
    self.expect(send.request.result.text().find(": check that rank " + other + " receives tag 3") !=
                    std::string::npos,
                send.request.result.text());
    barrier(self);
    // The message that was given up does not arrive, and those after it do.
    Mail in(100'000), out(100'000);
    in.data.assign(in.data.size(), 0);
    submit(self, in, Coll::kRecv, 1 - self.rank, 3);
    submit(self, out, Coll::kSend, 1 - self.rank, 3);
    wait(self, in, "receive");
    wait(self, out, "send");
    self.expect(in.request.result, "receive");
    self.expect(in.data == out.data, "data");
    barrier(self);
    self.expect(!self.comm->failed(), "the communicator continues");
  });
}

TEST_CASE("messages of a rank that has left are received; what still needs it fails alone") {
  pair([](Rank& self) {
    Mail first(4), second(4), any(4), send(100'000), short_send(4), late(4);
    if (self.rank == 1) {
      submit(self, first, Coll::kSend, 0, 1);
      wait(self, first, "send");
      self.expect(self.comm->close(), "close");
      return;
    }
    while (!self.comm->departed(1)) self.comm->context().clock().relax(5000);
    submit(self, first, Coll::kRecv, 1, 1);
    submit(self, second, Coll::kRecv, 1, 1);
    submit(self, any, Coll::kRecv, kAnySource, 2);
    submit(self, send, Coll::kSend, 1, 3);
    submit(self, short_send, Coll::kSend, 1, 3);
    wait(self, first, "the message that was sent before");
    self.expect(first.request.result, "the message that was sent before");
    for (const Mail* mail : {&second, &any, &send, &short_send}) {
      wait(self, *mail, "an operation");
      self.expect(mail->code() == Code::kPeerFailed, mail->request.result.text());
    }
    self.expect(second.request.result.text().find("rank 1 left the communicator; recv_tagged") == 0,
                second.request.result.text());
    submit(self, late, Coll::kRecv, 1, 1);
    wait(self, late, "a later receive");
    self.expect(late.code() == Code::kPeerFailed, late.request.result.text());
    self.expect(!self.comm->failed(), "the communicator continues");
  });
}

TEST_CASE("whenever a rank dies, all messages of the others complete") {
  for (uint64_t i = 0; i < 40; i++) {
    Simulation simulation(base_seed() + i, 3);
    const SimulationReport report = simulation.run([&](Rank& self) {
      if (self.rank == 0) simulation.kill(2, simulation.random().below(100'000));
      while (!self.comm->failed()) {
        Mail in(20'000), out(20'000), small(3), any(20'000);
        const int to = (self.rank + 1) % 3;
        submit(self, small, Coll::kSend, to, 2);
        submit(self, any, Coll::kRecv, kAnySource, 2);
        submit(self, in, Coll::kRecv, (self.rank + 2) % 3, 1);
        submit(self, out, Coll::kSend, to, 1);
        for (const Mail* mail : {&small, &any, &in, &out}) wait(self, *mail, "an operation");
      }
      self.expect(self.comm->failure().code() == Code::kPeerFailed, self.comm->failure().text());
    });
    check(report.failures);
  }
}

TEST_CASE("closing the communicator cancels messages, and an idle one is parked") {
  RanksOptions options;
  options.mode = Engine::Mode::kCaller;
  check(run_threads(
      2,
      [](Rank& self) {
        Mail in(4), out(4), unmatched(4);
        submit(self, out, Coll::kSend, 1 - self.rank, 1);
        submit(self, in, Coll::kRecv, 1 - self.rank, 1);
        wait(self, in, "receive");
        wait(self, out, "send");
        barrier(self);
        bool had_lock = false;
        self.expect(self.comm->context().engine().poll_tasks(&had_lock) == Poll::kParked, "parked");
        self.expect(self.comm->quiet(), "quiet");
        submit(self, unmatched, Coll::kRecv, kAnySource, 1);
        self.expect(!self.comm->quiet(), "not quiet");
        self.expect(self.comm->close(), "close");
        self.expect(unmatched.code() == Code::kCancelled, unmatched.request.result.text());
        Mail late(4);
        submit(self, late, Coll::kRecv, kAnySource, 1);
        self.expect(late.code() == Code::kCancelled, late.request.result.text());
      },
      options));
}

TEST_CASE("messages in flight and those that ended are in the flight record and in the trace") {
  pair([](Rank& self) {
    Context& context = self.comm->context();
    TraceRecorder recorder(context.clock());
    self.expect(recorder.start(0), "start");
    context.engine().locked([&] { context.set_trace(&recorder); });
    Mail done(4), any(5), other(10'000);
    const bool sender = self.rank == 0;
    const Coll coll = sender ? Coll::kSend : Coll::kRecv;
    submit(self, done, coll, 1 - self.rank, 7);
    wait(self, done, "the message");
    // Neither of these finds its other end.
    if (sender) submit(self, any, Coll::kRecv, kAnySource, kAnyTag);
    submit(self, other, coll, 1 - self.rank, sender ? 8 : 9);
    barrier(self);
    using State = FlightMessage::State;
    using Entries = std::vector<std::pair<std::string, State>>;
    const Entries sends = {{"send_tagged u32 x 4 to rank 1 with tag 7", State::kFinished},
                           {"recv_tagged u32 x 5 from any rank with any tag", State::kUnmatched},
                           {"send_tagged u32 x 10000 to rank 1 with tag 8", State::kUnmatched}};
    const Entries receives = {{"recv_tagged u32 x 4 from rank 0 with tag 7", State::kFinished},
                              {"recv_tagged u32 x 10000 from rank 0 with tag 9", State::kUnmatched}};
    Entries found;
    for (const FlightMessage& message : self.comm->flight().messages)
      found.emplace_back(message.text(), message.state);
    self.expect(found == (sender ? sends : receives), "the flight record");
    barrier(self);
    if (sender) cancel(self, any);
    cancel(self, other);
    wait(self, other, "a cancelled operation");
    context.engine().locked([&] { context.set_trace(nullptr); });
    self.expect(recorder.stop(), "stop");
    uint64_t lost = 0;
    std::vector<std::string> traced;
    for (const RecordedEvent& event : recorder.events(&lost)) {
      if (event.event.kind != TraceKind::kMessage) continue;
      traced.emplace_back(event.name.data());
      self.expect(event.event.begin_ns > 0 && event.event.end_ns >= event.event.begin_ns, "times");
    }
    self.expect(traced.size() == found.size() && traced[0] == found[0].first, "the trace");
    barrier(self);
  });
}

// ---- Frames of another process ----

namespace {

// The parts that the other rank sends, as the lane delivers them.
struct Script {
  std::vector<std::vector<std::byte>> parts;
  size_t next = 0;
};

// Delivers the script's parts, and then nothing. Sends complete at once.
class ScriptedLane final : public CollectiveLane {
 public:
  ScriptedLane(Script* script) : script_(script) {}
  void start(const CollectiveArgs& args, uint64_t) override { args_ = args; }
  Poll poll() override {
    if (args_.coll == Coll::kSend) return Poll::kFinished;
    if (script_ == nullptr || script_->next == script_->parts.size()) return Poll::kWaiting;
    const std::vector<std::byte>& part = script_->parts[script_->next++];
    std::copy_n(part.begin(), std::min<size_t>(part.size(), args_.count), args_.dst);
    return Poll::kFinished;
  }
  Status result() const override { return {}; }
  void abandon() override {}
  std::vector<int> missing() const override { return {1}; }
  const char* algorithm() const override { return "scripted"; }

 private:
  Script* const script_;
  CollectiveArgs args_;
};

class ScriptedBackend final : public Collectives {
 public:
  explicit ScriptedBackend(Script* script) : script_(script) {}
  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    *lane = std::make_unique<ScriptedLane>(key.id == 2 ? script_ : nullptr);
    return {};
  }
  std::shared_ptr<Arena> arena() override { return nullptr; }
  CollectiveCounters counters() const override { return {}; }
  int local_size() const override { return 2; }
  const char* name() const override { return "scripted"; }

 private:
  Script* const script_;
};

class Silence final : public Control {
 public:
  void start(ControlListener*) override {}
  void send(int, ByteView) override {}
  void leave() override {}
  void stop() override {}
};

// Rank 0 of 2 with a long send, a receive of a long message with tag 1, and a receive that nothing matches.
// Rank 1 sends the script.
struct Target {
  explicit Target(Script script_of_rank_1) : script(std::move(script_of_rank_1)) {
    ContextOptions options;
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    REQUIRE(Context::create(std::move(options), &self.context_owner).ok());
    self.rank.comm = Comm::create(self.context_owner, 0, 2, {}, std::make_unique<Silence>(),
                                  std::make_unique<ScriptedBackend>(&script));
    REQUIRE(self.rank.comm != nullptr);
    submit(self.rank, receive, Coll::kRecv, 1, 1);  // first: the script begins with the first call
    submit(self.rank, send, Coll::kSend, 1, 1);
    submit(self.rank, unmatched, Coll::kRecv, kAnySource, 999);
    for (int i = 0; i < 50; i++) {
      bool had_lock = false;
      self.context_owner->engine().poll_tasks(&had_lock);
    }
  }
  Status failure() { return self.rank.comm->failure(); }

  Script script;
  Mail send{10'000}, receive{600'000}, unmatched{4};  // outlive the communicator, which completes them
  struct {
    std::shared_ptr<Context> context_owner;
    Rank rank;
  } self;
};

std::vector<std::byte> frame(const Header& header) {
  Frame whole;
  whole.header = header;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&whole);
  return {bytes, bytes + sizeof whole};
}

constexpr Dtype kU32 = Dtype::kU32;
constexpr uint64_t kLong = 2'000'000;

Header offer(uint64_t id, uint64_t tag) {
  return {.kind = FrameOf::kOffer, .dtype = kU32, .id = id, .tag = tag, .bytes = kLong};
}

}  // namespace

TEST_CASE("frames that no rank sends fail the communicator, and name the rank") {
  const auto kind = [](int number) { return static_cast<FrameOf>(number); };
  const std::vector<std::vector<Header>> scripts = {
      {{.kind = kind(0)}},
      {{.kind = kind(8)}},
      {{.kind = kind(255)}},
      {{.kind = FrameOf::kEager, .dtype = static_cast<Dtype>(77)}},
      {{.kind = FrameOf::kEager, .dtype = kU32, .tag = 4, .bytes = 3}},
      {{.kind = FrameOf::kEager, .dtype = kU32, .tag = kAnyTag, .bytes = 4}},
      {{.kind = FrameOf::kEager, .dtype = kU32, .tag = 4, .bytes = kEagerMessageBytes + 4}},
      {{.kind = FrameOf::kEager, .dtype = kU32, .tag = 4, .bytes = UINT64_MAX - 3}},
      {offer(0, 4)},
      {offer(2, 4)},
      {offer(1, 4), offer(1, 4)},
      {{.kind = FrameOf::kOffer, .dtype = kU32, .id = 1, .tag = 4, .bytes = UINT64_MAX - 3}},
      {{.kind = FrameOf::kOffer, .dtype = kU32, .id = 1, .tag = kAnyTag, .bytes = 4}},
      {{.kind = FrameOf::kAccept, .id = 0}},
      {{.kind = FrameOf::kAccept, .id = 2}},
      {{.kind = FrameOf::kRefuse, .dtype = kU32, .id = 2, .bytes = 4}},
      {{.kind = FrameOf::kRefuse, .dtype = static_cast<Dtype>(0), .id = 1, .bytes = 4}},
      {{.kind = FrameOf::kChunk, .id = 1, .bytes = 4}},
      {offer(1, 4), {.kind = FrameOf::kChunk, .id = 1, .bytes = kMessageChunkBytes}},  // not accepted
      {offer(1, 1), {.kind = FrameOf::kChunk, .id = 1, .bytes = 4}},
      {offer(1, 1), {.kind = FrameOf::kChunk, .id = 1, .bytes = kMessageChunkBytes + 4}},
      {{.kind = FrameOf::kWithdraw, .id = 1}},
      {{.kind = FrameOf::kCredit, .bytes = 1}},
      {{.kind = FrameOf::kCredit, .bytes = UINT64_MAX}},
  };
  for (const std::vector<Header>& headers : scripts) {
    Script script;
    for (const Header& header : headers) script.parts.push_back(frame(header));
    Target target(std::move(script));
    INFO("script " << &headers - scripts.data());
    CHECK(target.failure().code() == Code::kPeerFailed);
    CHECK(target.failure().text().find("rank 1 sent an invalid frame about tagged messages") == 0);
    CHECK(target.failure().info().ranks == std::vector<int>{1});
    CHECK((target.send.request.done() && target.receive.request.done() && target.unmatched.request.done()));
  }
}

TEST_CASE("a rank that sends more than the window or offers too much fails the communicator") {
  for (const bool offers : {false, true}) {
    Script script;
    for (uint64_t i = 1; i <= 5000; i++) {
      script.parts.push_back(
          frame(offers ? offer(i, 4) : Header{.kind = FrameOf::kEager, .dtype = kU32, .tag = 4, .bytes = 4}));
    }
    Target target(std::move(script));
    // Polls take 64 frames each, so some are left.
    for (int i = 0; i < 100 && target.failure().ok(); i++) {
      bool had_lock = false;
      target.self.context_owner->engine().poll_tasks(&had_lock);
    }
    CHECK(target.failure().code() == Code::kPeerFailed);
    CHECK(target.script.next == (offers ? kMostOffers : kEagerWindowBytes / eager_cost(4)) + 1);
  }
}

TEST_CASE("random frames neither break memory nor leave an operation behind") {
  Random random(base_seed());
  for (int run = 0; run < 300; run++) {
    Script script;
    uint64_t offers = 0;
    for (int i = 0; i < 30; i++) {
      Header header{.kind = static_cast<FrameOf>(random.below(9)),
                    .dtype = random.chance(20) ? static_cast<Dtype>(random.below(256)) : kU32,
                    .id = random.below(4),
                    .tag = random.below(3),
                    .bytes = random.chance(2)   ? random.below(100) * 4
                             : random.chance(9) ? random.next()
                                                : kLong};
      if (header.kind == FrameOf::kOffer && !random.chance(8)) header.id = ++offers;
      if (header.kind == FrameOf::kChunk && !random.chance(8)) header.bytes = kMessageChunkBytes;
      script.parts.push_back(frame(header));
    }
    Target target(std::move(script));
    CHECK(target.self.rank.comm->close().ok());
    CHECK((target.send.request.done() && target.receive.request.done() && target.unmatched.request.done()));
  }
}

}  // namespace unit_tagged_messages
