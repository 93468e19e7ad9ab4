// transport/failpoints: parsing of the list, and the effects at a place.
#include "support/catch.h"
#include "transport/failpoints.h"

namespace unit_failpoints {

using namespace weft;

namespace {

FailPointsPtr parsed(const std::string& text) {
  FailPointsPtr points;
  const Status status = FailPoints::parse(text, &points);
  INFO(status.text());
  REQUIRE(status.ok());
  return points;
}

bool fails(const FailPointsPtr& points, FailPlace place, uint64_t number, uint64_t stage = 0) {
  SystemClock clock;
  return !points->reach(place, number, stage, clock).ok();
}

}  // namespace

TEST_CASE("an empty text sets no failpoint") {
  CHECK(parsed("") == nullptr);
  CHECK(parsed(" , ") == nullptr);
}

TEST_CASE("a failpoint is hit at its place, number and stage, or at any") {
  const FailPointsPtr points =
      parsed("operation@7=fail, stage@3.1=fail, forming=fail, leaving@0=delay:0, memory@1=fail");
  CHECK(fails(points, FailPlace::kOperation, 7));
  CHECK(!fails(points, FailPlace::kOperation, 8));
  CHECK(fails(points, FailPlace::kStage, 3, 1));
  CHECK(!fails(points, FailPlace::kStage, 3, 0));
  CHECK(!fails(points, FailPlace::kStage, 2, 1));
  CHECK(fails(points, FailPlace::kGroupSetup, 0));
  CHECK(fails(points, FailPlace::kGroupSetup, 5));
  CHECK(!fails(points, FailPlace::kLeaving, 0));
  CHECK(fails(points, FailPlace::kMemory, 1));
  CHECK(!fails(points, FailPlace::kSystem, 1));
  SystemClock clock;
  CHECK(points->reach(FailPlace::kMemory, 1, 0, clock).code() == Code::kNoMemory);
  CHECK(points->reach(FailPlace::kOperation, 7, 0, clock).text() ==
        "failpoint operation@7=fail: WEFT_FAILPOINTS requests this failure");
}

TEST_CASE("a counter begins where the text says, and at 0 without it") {
  const FailPointsPtr points =
      parsed("operations=begin:9223372036854775800, operation@7=fail, stamps=begin:4294967295");
  CHECK(points->first(FailCounter::kSlots) == 9223372036854775800u);
  CHECK(points->first(FailCounter::kStamps) == UINT32_MAX);
  CHECK(points->first(FailCounter::kSteps) == 0);
  CHECK(fails(points, FailPlace::kOperation, 7));
  CHECK(first_of(points, FailCounter::kSlots) == 9223372036854775800u);
  CHECK(first_of(nullptr, FailCounter::kSlots) == 0);
}

TEST_CASE("a delay waits for its duration") {
  SystemClock clock;
  const uint64_t begin = clock.now_ns();
  CHECK(parsed("stage=delay:20")->reach(FailPlace::kStage, 1, 2, clock).ok());
  CHECK(clock.now_ns() - begin >= 20'000'000);
}

TEST_CASE(
    "a text that is no list of failpoints is quoted, with the places, actions and counters that exist") {
  for (const char* text :
       {"operation", "operation@7", "nowhere=kill", "operation@x=kill", "operation@7=explode",
        "operation@7=delay", "operation@7=delay:x", "stage@1.=kill.", "=kill", "operation=begin:1",
        "operations=begin", "operations=begin:x", "operations@1=begin:1", "operations=kill",
        "stamps=begin:4294967296"}) {
    FailPointsPtr points;
    const Status status = FailPoints::parse(text, &points);
    INFO(text);
    CHECK(status.code() == Code::kArg);
    CHECK(status.text().find(text) != std::string::npos);
    for (const char* accepted : {"forming",
                                 "operation,",
                                 "stage,",
                                 "leaving",
                                 "memory",
                                 "system",
                                 "writing",
                                 "measuring",
                                 "kill",
                                 "stop",
                                 "fail",
                                 "delay:MILLISECONDS",
                                 "operations",
                                 "packets",
                                 "messages",
                                 "steps",
                                 "stages",
                                 "groups",
                                 "turns, up to 18446744073709551614",
                                 "stamps",
                                 "reducers",
                                 "splits",
                                 "notes, up to 4294967295"}) {
      CHECK(status.text().find(accepted) != std::string::npos);
    }
    CHECK(points == nullptr);
  }
}

}  // namespace unit_failpoints
