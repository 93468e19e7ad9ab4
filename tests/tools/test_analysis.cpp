// The analysis of `weft report`, from the events of a run, and the values that it refuses in a file.
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "weft/report/analysis.h"
#include "weft/report/page.h"
#include "weft/report/trace_file.h"

using namespace report;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStepMs = 100;

Event event(Kind kind, int64_t begin_ms, int64_t end_ms, uint64_t step, uint32_t bucket = kNone32) {
  Event e;
  e.kind = kind;
  e.begin_ns = begin_ms * kMs;
  e.end_ns = end_ms * kMs;
  e.step = step;
  e.bucket = bucket;
  e.bytes = 4000;
  return e;
}

// The times of a step of one bucket, in milliseconds since the step was due.
struct Times {
  int64_t begin = 10, ready = 20, stage = 20, finish = 30, collective = 30, end = 60;
};

// Adds a step to a process. The collective ends at `end`.
void add_step(Process* process, uint64_t number, const Times& times) {
  const auto at = [&](int64_t ms) { return static_cast<int64_t>(number) * kStepMs + ms; };
  std::vector<Event>& events = process->file.events;
  Event ready = event(Kind::kReady, at(times.ready), at(times.ready), kNone64, 0);
  events.push_back(ready);
  events.push_back(event(Kind::kLaunch, at(times.ready), at(times.ready), number, 0));
  events.push_back(event(Kind::kStage, at(times.ready), at(times.stage), number, 0));
  Event collective = event(Kind::kCollective, at(times.collective), at(times.end), number, 0);
  collective.slot = number;
  collective.name = "all_reduce";
  collective.algorithm = "ring";
  collective.bytes = 1000;
  collective.sent_bytes = 1500;
  events.push_back(collective);
  events.push_back(event(Kind::kDone, at(times.end), at(times.end), number, 0));
  events.push_back(event(Kind::kStep, at(times.begin), at(times.end), number));
  events.push_back(event(Kind::kFinish, at(times.finish), at(times.end), number));
}

RunFiles run_of(int ranks) {
  RunFiles run;
  run.comm = 7;
  run.size = ranks;
  for (int rank = 0; rank < ranks; rank++) {
    Process process;
    process.rank = rank;
    process.clock_error_ns = 0;
    process.file.host = "node";
    process.file.comms = {{7, rank, ranks, "shm", "", {}}};
    run.processes.push_back(std::move(process));
  }
  return run;
}

// Ten steps of three ranks, of which rank 1 has other times.
Analysis with_late(const Times& late) {
  RunFiles run = run_of(3);
  for (uint64_t step = 0; step < 10; step++) {
    for (Process& process : run.processes) add_step(&process, step, process.rank == 1 ? late : Times());
  }
  return analyse(run);
}

}  // namespace

TEST_CASE("the straggler is named with its share, its median and the phase that cost most") {
  const std::vector<std::pair<Times, std::string>> cases = {
      {{50, 51, 51, 51, 51, 60}, "by 21 ms, before its steps"},
      {{10, 50, 50, 51, 51, 60}, "by 21 ms, in its backward"},
      {{10, 20, 50, 20, 51, 60}, "by 21 ms, in its communication hook"},
      {{10, 20, 20, 51, 51, 60}, "by 21 ms, between its backward and finish"},
      {{10, 20, 20, 30, 51, 60}, "by 21 ms, in the library"},
  };
  for (const auto& [times, text] : cases) {
    const Analysis analysis = with_late(times);
    CHECK(straggler_text(analysis) == "rank 1 was last in 100 % of 10 steps, " + text);
    int64_t sum = 0;
    for (const int64_t ns : analysis.steps[0].late.phases) sum += ns;
    CHECK(sum == analysis.steps[0].late.ns);
  }
}

TEST_CASE("a wait for an earlier bucket's collective is not charged to the backward") {
  RunFiles run = run_of(2);
  for (Process& process : run.processes) {
    add_step(&process, 0, {10, 20, 20, 20, 30, 90});
    Event earlier = event(Kind::kCollective, 22, process.rank == 1 ? 80 : 29, 0, 1);
    earlier.name = "all_reduce";
    earlier.slot = 100;
    process.file.events.push_back(earlier);
    if (process.rank == 1) process.file.events[3].begin_ns = 80 * kMs;
  }
  CHECK(straggler_text(analyse(run)) ==
        "rank 1 was last in 100 % of 1 steps, by 50 ms, in the communication of earlier buckets");
}

TEST_CASE("time that is lost in two collectives at once counts once") {
  RunFiles run = run_of(2);
  for (Process& process : run.processes) {
    const bool late = process.rank == 1;
    add_step(&process, 0, late ? Times{10, 50, 50, 50, 50, 60} : Times());
    Event other = event(Kind::kCollective, late ? 55 : 32, 60, 0, 0);
    other.name = "all_gather";
    other.slot = 100;
    process.file.events.push_back(other);
  }
  const Analysis analysis = analyse(run);
  CHECK(analysis.steps[0].late.ns == 25 * kMs);
  CHECK(analysis.steps[0].late.phases[static_cast<size_t>(Phase::kBackward)] == 20 * kMs);
}

TEST_CASE("a rank that is last in some steps has its share of them") {
  RunFiles run = run_of(2);
  for (uint64_t step = 0; step < 4; step++) {
    for (Process& process : run.processes) {
      const bool late = process.rank == (step < 3 ? 1 : 0);
      add_step(&process, step, late ? Times{10, 40, 40, 40, 40, 60} : Times());
    }
  }
  const Analysis analysis = analyse(run);
  CHECK(straggler_text(analysis) == "rank 1 was last in 75 % of 4 steps, by 10 ms, in its backward");
  CHECK(analysis.steps[3].late.rank == 0);
}

TEST_CASE("overlap, exposed time, bytes and algorithms are those of the events") {
  const Analysis analysis = with_late({10, 20, 20, 40, 25, 60});
  REQUIRE(analysis.steps.size() == 10);
  const StepOfRank& rank = analysis.steps[0].ranks[1];
  CHECK(rank.communication_ns == 35 * kMs);
  CHECK(rank.overlap_ns == 15 * kMs);
  CHECK(rank.exposed_ns() == 20 * kMs);
  REQUIRE(rank.buckets.size() == 1);
  CHECK(rank.buckets[0].ready_ns == 20 * kMs);
  CHECK(rank.buckets[0].done_ns == 60 * kMs);
  REQUIRE(analysis.buckets.size() == 1);
  CHECK(analysis.buckets[0].gradient == 4000);
  CHECK(analysis.buckets[0].payload == 1000);
  CHECK(analysis.buckets[0].sent == 1500);
  REQUIRE(analysis.algorithms.size() == 1);
  CHECK(analysis.algorithms[0].name == "all_reduce");
  CHECK(analysis.algorithms[0].algorithm == "ring");
  CHECK(analysis.algorithms[0].from_bytes == 512);
  CHECK(analysis.algorithms[0].count == 10);
  CHECK(analysis.algorithms[0].median_ns == 30 * kMs);
}

TEST_CASE("a step that a rank should have is not compared without it, and one that it cannot have is") {
  RunFiles run = run_of(3);
  for (uint64_t step = 0; step < 3; step++) {
    for (Process& process : run.processes) {
      if (process.rank == 2 && step == 2) continue;  // its file ends
      if (process.rank == 0 && step == 1) continue;  // its file has a hole
      add_step(&process, step, process.rank == 1 ? Times{10, 50, 50, 50, 50, 60} : Times());
    }
  }
  const Analysis analysis = analyse(run);
  REQUIRE(analysis.steps.size() == 3);
  CHECK(analysis.steps[0].complete);
  CHECK_FALSE(analysis.steps[1].complete);
  CHECK(analysis.steps[2].complete);
  CHECK(straggler_text(analysis) == "rank 1 was last in 100 % of 2 steps, by 20 ms, in its backward");
}

TEST_CASE("ranks whose clocks were not compared have no straggler") {
  RunFiles run = run_of(2);
  for (Process& process : run.processes) add_step(&process, 0, Times());
  run.processes[1].clock_error_ns.reset();
  CHECK(straggler_text(analyse(run)) == "no rank can be named as the straggler");
  CHECK(straggler_text(analyse(run_of(1))) == "no rank can be named as the straggler");
}

TEST_CASE("the page escapes what it shows, and its data cannot end the script") {
  RunFiles run = run_of(2);
  for (Process& process : run.processes) {
    add_step(&process, 0, Times());
    process.file.host = "</script><b>";
    process.file.events[3].name = "all_<i>";
  }
  run.damaged.emplace_back("a<b>.json", "is \"bad\" & <worse>");
  const std::string page = page_text(run, analyse(run), {});
  for (const char* text : {"<b>", "<i>", "<worse>"}) CHECK(page.find(text) == std::string::npos);
  CHECK(page.find("a&lt;b&gt;.json</code> is &quot;bad&quot; &amp; &lt;worse&gt;") != std::string::npos);
  CHECK(page.find("{{") == std::string::npos);
}

TEST_CASE("a trace's communicators and times have limits") {
  const auto about = [](const std::string& comm, const std::string& more = "") {
    return R"({"otherData":{"source":"weft","format":1,"communicators":[)" + comm + "]" + more +
           R"(},"traceEvents":[{"cat":"step","ph":"X","ts":1,"dur":1e3,"args":{"step":0}}]})";
  };
  const std::string good =
      R"({"id":"00000000000000ff","rank":1,"size":2,"clock_offset_ns":-5,"clock_error_ns":3})";
  TraceFile file;
  REQUIRE(parse_trace(about(good), &file).ok());
  REQUIRE(file.events.size() == 1);
  CHECK(file.events[0].end_ns == 1'001'000);
  CHECK(file.comms[0].id == 255);
  CHECK(file.comms[0].clock->offset_ns == -5);
  CHECK(file.damage.empty());

  const auto refused = [&](const std::string& text, const std::string& why) {
    TraceFile other;
    const weft::Status status = parse_trace(text, &other);
    CHECK(status.code() == weft::Code::kArg);
    CHECK(status.text().find(why) != std::string::npos);
  };
  refused(about(R"({"id":"ff","rank":0,"size":2})"), "impossible communicator");
  refused(about(R"({"id":"00000000000000ff","rank":2,"size":2})"), "impossible communicator");
  refused(about(R"({"id":"00000000000000ff","rank":-1,"size":2})"), "impossible communicator");
  refused(about("7"), "impossible communicator");
  refused(about(good, R"(,"merged":[])"), "merged trace");
  refused(R"({"otherData":{"source":"weft","format":2}})", "format 2");
  refused(R"({"otherData":{"source":"weft","format":1}})", "no list of communicators");
  refused(R"({"traceEvents":[]})", "not a trace of Weft");
  refused("[[[[[[[[[[", "too deeply");

  for (const char* event :
       {R"({"cat":"step","ts":-1,"args":{}})", R"({"cat":"step","ts":1e300,"args":{}})",
        R"({"cat":"step","ts":1,"dur":-1,"args":{}})", R"({"cat":"step","ts":"1","args":{}})",
        R"({"cat":"step","ts":1})", R"({"cat":"step","ts":1,"args":{"comm":1}})"}) {
    std::string text = about(good);
    text.replace(text.find(R"({"cat")"), std::string::npos, std::string(event) + "]}");
    TraceFile one;
    CHECK(parse_trace(text, &one).ok());
    CHECK(one.events.empty());
    CHECK(one.left_out == 1);
  }
}

TEST_CASE("durations are short") {
  CHECK(duration_text(0) == "0 ns");
  CHECK(duration_text(999) == "999 ns");
  CHECK(duration_text(-1500) == "-1.5 us");
  CHECK(duration_text(41'200'000) == "41 ms");
  CHECK(duration_text(9'960'000) == "10 ms");
  CHECK(duration_text(2'340'000'000) == "2.3 s");
}
