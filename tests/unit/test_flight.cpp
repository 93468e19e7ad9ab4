// Flight records: written records can be read, invalid ones are refused, and the rank at fault is found.
#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.h"
#include "trace/flight_file.h"
#include "weft/diagnosis.h"
#include "weft/flight.h"

using namespace weft;

namespace {

CollectiveArgs all_reduce(uint64_t count) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.op = ReduceOp::kSum;
  args.count = count;
  return args;
}

// Returns a lane that has finished `finished` operations, and is in another one if it waits for ranks.
FlightLane lane(uint32_t id, uint64_t finished, std::vector<int> waits_for = {}, uint64_t count = 8) {
  FlightLane lane;
  lane.key.id = id;
  lane.waits_for = std::move(waits_for);
  lane.next_slot = finished + (lane.waits_for.empty() ? 0 : 1);
  FlightRing ring(FlightRing::kCapacity);
  for (uint64_t slot = 0; slot < lane.next_slot; slot++) {
    ring.started(all_reduce(slot == finished ? count : 8), slot);
    if (slot < finished) ring.finished(slot, "ring", true);
  }
  lane.operations = ring.operations(lane.next_slot);
  return lane;
}

FlightFile file(int rank, int size, std::vector<FlightLane> lanes, Status failure = {}) {
  FlightFile file;
  file.record.comm = 0xabcdef0123456789u;
  file.record.backend = "shm";
  file.record.rank = rank;
  file.record.size = size;
  file.record.failure = std::move(failure);
  file.record.lanes = std::move(lanes);
  return file;
}

FlightMessage message(bool sends, int peer, uint64_t tag,
                      FlightMessage::State state = FlightMessage::State::kUnmatched) {
  FlightMessage message;
  message.sends = sends;
  message.peer = peer;
  message.tag = tag;
  message.dtype = Dtype::kF32;
  message.count = 4;
  message.state = state;
  message.waiters = message.running() ? 1 : 0;
  return message;
}

FlightMessage asynchronous(FlightMessage message) {
  message.waiters = 0;
  return message;
}

FlightFile with_messages(int rank, int size, std::vector<FlightMessage> messages) {
  FlightFile made = file(rank, size, {lane(0, 3)});
  made.record.messages = std::move(messages);
  return made;
}

Status failure(Code code, Evidence evidence, std::vector<int> ranks) {
  return Status::error(code, "told so", evidence).with_ranks(std::move(ranks));
}

std::string why(const std::string& text) {
  FlightFile file;
  return parse_flight(text, &file).text();
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a flight record can be written and read without change") {
  FlightRecord record =
      file(2, 3, {lane(0, 300, {0, 1}), lane(1, 2)}, failure(Code::kTimeout, Evidence::kDeadline, {0}))
          .record;
  record.job = "job \x01 \xff";
  record.now_ns = 5'000'000'000;
  record.lanes[0].operations.back().waiting_since_ns = 2'000'000'000;
  record.lanes[1].has_step = true;
  record.lanes[1].step = {7, 4, 3, 1, "gradients"};
  record.messages = {message(true, 1, 7, FlightMessage::State::kFinished),
                     message(false, FlightMessage::kAnyPeer, FlightMessage::kAnyTag)};
  record.messages[1].waiting_since_ns = 4'000'000'000;
  record.messages[1].waiters = 2;
  FlightFile read;
  REQUIRE(parse_flight(flight_text(record), &read).text() == "");
  CHECK(read.record.comm == record.comm);
  CHECK(read.record.rank == 2);
  CHECK(says(read.record.job, "job ? "));
  CHECK(read.record.failure.info().ranks == std::vector<int>{0});
  CHECK(read.record.failure.info().evidence == Evidence::kDeadline);
  REQUIRE(read.record.lanes.size() == 2);
  CHECK(read.record.lanes[0].waits_for == std::vector<int>{0, 1});
  REQUIRE(read.record.lanes[0].operations.size() == FlightRing::kCapacity);
  const FlightOperation& last = read.record.lanes[0].operations.back();
  CHECK(last.call == Descriptor::of(all_reduce(8)));
  CHECK(last.slot == 300);
  CHECK(read.record.now_ns - last.waiting_since_ns == 3'000'000'000);
  CHECK(read.record.lanes[1].step.where == "gradients");
  CHECK(read.record.lanes[1].step.launched == 3);
  REQUIRE(read.record.messages.size() == 2);
  CHECK(read.record.messages[0].text() == "send_tagged f32 x 4 to rank 1 with tag 7");
  CHECK(read.record.messages[0].state == FlightMessage::State::kFinished);
  CHECK(read.record.messages[1].text() == "recv_tagged f32 x 4 from any rank with any tag");
  CHECK(read.record.messages[1].state == FlightMessage::State::kUnmatched);
  CHECK(read.record.messages[0].waiters == 0);
  CHECK(read.record.messages[1].waiters == 2);
  CHECK(read.record.now_ns - read.record.messages[1].waiting_since_ns == 1'000'000'000);
}

TEST_CASE("the record of very many lanes stays below its limit, and can be read") {
  FlightRecord record = file(0, 65536, {}).record;
  record.failure = failure(Code::kTimeout, Evidence::kDeadline, std::vector<int>(5000, 65535));
  FlightLane full = lane(0, 1000, std::vector<int>(60000, 65535));
  full.has_step = true;
  full.step = {UINT64_MAX - 1, 1, 1, 1, std::string(100'000, '"')};
  for (FlightOperation& operation : full.operations) operation.call.count = operation.call.tag = UINT64_MAX;
  record.lanes.assign(2000, full);
  record.messages.assign(64, message(true, 1, 7, FlightMessage::State::kFinished));
  record.messages.resize(100'000, message(false, 65535, UINT64_MAX - 1));
  for (FlightMessage& one : record.messages) one.count = UINT64_MAX;
  const std::string text = flight_text(record);
  CHECK(text.size() < kMaxFlightBytes);
  FlightFile read;
  CHECK(parse_flight(text, &read).text() == "");
  REQUIRE(!read.record.messages.empty());
  CHECK(read.record.messages[0].running());  // those in flight are kept
}

TEST_CASE("invalid or inconsistent flight records are refused by name") {
  const std::string good =
      flight_text(file(1, 3, {lane(0, 2, {0})}, failure(Code::kTimeout, Evidence::kDeadline, {0})).record);
  REQUIRE(why(good) == "");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    return why(text.replace(text.find(from), from.size(), to));
  };
  CHECK(says(why(""), "not JSON"));
  CHECK(says(why("3"), "not a flight record"));
  CHECK(says(why("{}"), "not a flight record"));
  CHECK(says(why(good.substr(0, good.size() / 2)), "cut off"));
  CHECK(says(why(std::string(1000, '[')), "too deeply"));
  CHECK(says(why(std::string(kMaxFlightBytes + 1, ' ')), "too long"));
  CHECK(says(with("\"weft_flight\":1", "\"weft_flight\":9"), "format 9"));
  CHECK(says(with("\"rank\":1", "\"rank\":3"), "rank"));
  CHECK(says(with("\"rank\":1", "\"rank\":-1"), "rank"));
  CHECK(says(with("\"size\":3", "\"size\":0"), "size"));
  CHECK(says(with("\"waits_for\":[0]", "\"waits_for\":[3]"), "waits_for"));
  CHECK(says(with("\"next_slot\":3", "\"next_slot\":2"), "ascend"));
  CHECK(says(with("all_reduce", "all_lower"), "coll"));
  CHECK(says(with("\"code\":6", "\"code\":0"), "failure"));
  CHECK(says(with("\"code\":6", "\"code\":99"), "code"));
  CHECK(says(with("\"comm\":\"a", "\"comm\":\"g"), "hexadecimal"));
  CHECK(says(with("\"lanes\":[", "\"lanes\":7,\"more\":["), "lanes"));
  const auto message = [&](const std::string& kind, const std::string& more) {
    return with("\"lanes\":[", "\"messages\":[{\"kind\":\"" + kind + "\",\"dtype\":\"f32\",\"count\":1," +
                                   more + "\"state\":\"moving\"}],\"lanes\":[");
  };
  CHECK(message("receive", "") == "");
  CHECK(says(message("letter", ""), "message kind \"letter\""));
  CHECK(says(message("send", ""), "without peer or tag"));
  CHECK(says(message("receive", "\"peer\":3,"), "peer"));
  CHECK(says(message("receive", "\"tag\":7,"), "tag"));
  CHECK(says(with("\"lanes\":[", "\"messages\":7,\"lanes\":["), "messages"));
}

TEST_CASE("a rank without a record is at fault if others saw it die") {
  const Status dead = failure(Code::kPeerFailed, Evidence::kProcess, {1});
  const Diagnosis diagnosis =
      diagnose({file(0, 3, {lane(0, 4, {1})}, dead), file(2, 3, {lane(0, 4, {0, 1})}, dead)});
  CHECK(diagnosis.cause == Diagnosis::Cause::kDied);
  CHECK(diagnosis.ranks == std::vector<int>{1});
  CHECK(diagnosis.slot == 4);
}

TEST_CASE("the cause of a departure takes precedence over the departure") {
  const Diagnosis diagnosis =
      diagnose({file(0, 2, {lane(0, 4, {1})}, failure(Code::kPeerFailed, Evidence::kConnection, {1})),
                file(1, 2, {lane(0, 4)}, failure(Code::kHook, Evidence::kLocal, {1}))});
  CHECK(diagnosis.cause == Diagnosis::Cause::kFailed);
  CHECK(diagnosis.ranks == std::vector<int>{1});
}

TEST_CASE("a minority that makes a different call is at fault; of two ranks both are") {
  const Status differ = failure(Code::kMismatch, Evidence::kDescriptor, {2});
  const Diagnosis three =
      diagnose({file(0, 3, {lane(0, 4, {1})}, differ), file(1, 3, {lane(0, 4, {0})}, differ),
                file(2, 3, {lane(0, 4, {0}, 9)}, differ)});
  CHECK(three.cause == Diagnosis::Cause::kMismatch);
  CHECK(three.ranks == std::vector<int>{2});
  CHECK(three.operation == "all_reduce sum f32 x 8");
  CHECK(says(three.text, "rank 2 calls all_reduce sum f32 x 9"));
  const Diagnosis two =
      diagnose({file(0, 2, {lane(0, 4, {1})}, differ), file(1, 2, {lane(0, 4, {0}, 9)}, differ)});
  CHECK(two.ranks == std::vector<int>{0, 1});
}

TEST_CASE("chains of waiting ranks are followed to the rank that never joined") {
  const Diagnosis diagnosis =
      diagnose({file(0, 4, {lane(0, 4, {3})}, failure(Code::kTimeout, Evidence::kDeadline, {3})),
                file(1, 4, {lane(0, 3)}), file(2, 4, {lane(0, 4, {1})}), file(3, 4, {lane(0, 4, {2})})});
  CHECK(diagnosis.cause == Diagnosis::Cause::kAbsent);
  CHECK(diagnosis.ranks == std::vector<int>{1});
  CHECK(diagnosis.slot == 4);
  CHECK(says(diagnosis.text, "never called it"));
}

TEST_CASE("ranks that make their calls in different orders are reported") {
  const Diagnosis diagnosis =
      diagnose({file(0, 2, {lane(0, 4, {1}), lane(1, 2)}), file(1, 2, {lane(0, 4), lane(1, 2, {0})})});
  CHECK(diagnosis.cause == Diagnosis::Cause::kDeadlock);
  CHECK(diagnosis.ranks == std::vector<int>{0, 1});
}

TEST_CASE("a tagged message names the rank that it waits for, its tag, and what that rank did instead") {
  const Diagnosis wrong_tag =
      diagnose({with_messages(0, 2, {message(false, 1, 7)}),
                with_messages(1, 2, {message(true, 0, 8, FlightMessage::State::kFinished)})});
  CHECK(wrong_tag.cause == Diagnosis::Cause::kAbsent);
  CHECK(wrong_tag.ranks == std::vector<int>{1});
  CHECK(wrong_tag.tagged);
  CHECK(wrong_tag.operation == "recv_tagged f32 x 4 from rank 1 with tag 7");
  CHECK(says(wrong_tag.text, "Rank 0 waited for rank 1 in recv_tagged f32 x 4 from rank 1 with tag 7."));
  CHECK(says(wrong_tag.text,
             "its last one of this kind was send_tagged f32 x 4 to rank 0 with tag 8, which is done."));

  const Diagnosis any =
      diagnose({with_messages(0, 3, {message(false, FlightMessage::kAnyPeer, FlightMessage::kAnyTag)}),
                with_messages(1, 3, {}), with_messages(2, 3, {})});
  CHECK(any.ranks == std::vector<int>{1, 2});
  CHECK(says(any.text, "Rank 0 waited for any rank in recv_tagged f32 x 4 from any rank with any tag."));
  CHECK(says(any.text, "it has made none of this kind lately"));

  const Diagnosis behind_own =
      diagnose({with_messages(0, 2, {message(true, 0, 1), message(false, 1, 7)}), with_messages(1, 2, {})});
  CHECK(behind_own.ranks == std::vector<int>{1});
  // A message of a rank to itself, and one that has ended, wait for nobody.
  CHECK(diagnose(
            {with_messages(0, 2, {message(true, 0, 1), message(false, 1, 2, FlightMessage::State::kFailed)}),
             with_messages(1, 2, {})})
            .ranks.empty());
}

TEST_CASE("ranks whose tagged messages wait for each other are in a deadlock, unless it is one message") {
  const auto cause = [](uint64_t tag) {
    return diagnose(
        {with_messages(0, 2, {message(false, 1, 7)}), with_messages(1, 2, {message(true, 0, tag)})});
  };
  CHECK(cause(8).cause == Diagnosis::Cause::kDeadlock);
  CHECK(cause(8).ranks == std::vector<int>{0, 1});
  CHECK(cause(7).cause == Diagnosis::Cause::kSilent);
  // Rank 1 does not send because it is in a collective, for which rank 0 does not come.
  const Diagnosis mixed =
      diagnose({with_messages(0, 2, {message(false, 1, 7)}), file(1, 2, {lane(0, 3, {0})})});
  CHECK(mixed.cause == Diagnosis::Cause::kDeadlock);
  CHECK(says(mixed.text, "Rank 1 waited for rank 0 in lane 0, slot 3"));
}

TEST_CASE("tagged messages in flight for which no thread is blocked wait for no rank") {
  const FlightMessage receive = asynchronous(message(false, 1, 7));
  const FlightMessage send = asynchronous(message(true, 0, 8));
  CHECK(diagnose({with_messages(0, 2, {receive}), with_messages(1, 2, {send})}).ranks.empty());
  // Rank 0 waits in a collective for rank 1, which computes.
  FlightFile waits = file(0, 2, {lane(0, 3, {1})});
  waits.record.messages = {receive};
  const Diagnosis diagnosis = diagnose({waits, with_messages(1, 2, {send})});
  CHECK(diagnosis.cause == Diagnosis::Cause::kAbsent);
  CHECK(diagnosis.ranks == std::vector<int>{1});
}

TEST_CASE("records of a working communicator name no rank") {
  const Diagnosis diagnosis = diagnose({file(0, 2, {lane(0, 4)}), file(1, 2, {lane(0, 3)})});
  CHECK(diagnosis.ranks.empty());
  CHECK(!diagnosis.text.empty());
}
