// lib/trace: recorded events, overwritten ones, and the file that Perfetto opens.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "reducer_rig.h"
#include "registry.h"
#include "trace/recorder.h"
#include "trace/timeline.h"

namespace unit_trace {

using namespace weft;
using namespace weft::test;

namespace {

TraceEvent event(TraceKind kind, const char* name, uint64_t begin_ns, uint64_t end_ns) {
  TraceEvent e;
  e.kind = kind;
  e.name = name;
  e.begin_ns = begin_ns;
  e.end_ns = end_ns;
  return e;
}

// A folder that the destructor removes.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-trace-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

nlohmann::json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

std::vector<nlohmann::json> of(const nlohmann::json& trace, const std::string& category) {
  std::vector<nlohmann::json> out;
  for (const auto& e : trace["traceEvents"]) {
    if (e.value("cat", "") == category) out.push_back(e);
  }
  return out;
}

}  // namespace

TEST_CASE("a recorder starts once, forgets what was before, and stops once") {
  SystemClock clock;
  TraceRecorder recorder(clock);
  uint64_t lost = 0;
  recorder.record(event(TraceKind::kReady, "too early", 1, 1));
  CHECK(recorder.events(&lost).empty());
  CHECK(recorder.stop().code() == Code::kState);
  REQUIRE(recorder.start(0).ok());
  CHECK(recorder.start(0).code() == Code::kState);
  recorder.record(event(TraceKind::kReady, "a", 1, 1));
  REQUIRE(recorder.stop().ok());
  recorder.record(event(TraceKind::kReady, "too late", 2, 2));
  REQUIRE(recorder.events(&lost).size() == 1);
  CHECK(std::string(recorder.events(&lost)[0].name.data()) == "a");
  REQUIRE(recorder.start(8).ok());
  CHECK(recorder.events(&lost).empty());
  CHECK(TraceRecorder(clock).start(UINT64_MAX).code() == Code::kArg);
}

TEST_CASE("a full recorder keeps the newest events in order and counts what it lost") {
  SystemClock clock;
  TraceRecorder recorder(clock);
  REQUIRE(recorder.start(4).ok());
  for (uint64_t i = 0; i < 10; i++) recorder.record(event(TraceKind::kReady, "x", i, i));
  uint64_t lost = 0;
  const auto events = recorder.events(&lost);
  REQUIRE(events.size() == 4);
  CHECK(lost == 6);
  for (uint64_t i = 0; i < 4; i++) CHECK(events[i].event.begin_ns == 6 + i);
}

TEST_CASE("long names keep their ends") {
  RecordedEvent recorded;
  const std::string name = std::string(100, 'm') + ".query.weight";
  recorded.set(event(TraceKind::kReady, name.c_str(), 0, 0));
  const std::string kept = recorded.name.data();
  CHECK(kept.size() == RecordedEvent::kNameBytes - 1);
  CHECK(has(kept, "...mmm"));
  CHECK(has(kept, ".query.weight"));
}

TEST_CASE("many threads may record while events are read and traces restart") {
  SystemClock clock;
  clock.set_crowded(true);
  TraceRecorder recorder(clock);
  REQUIRE(recorder.start(64).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      const std::string name(static_cast<size_t>(10 + t), static_cast<char>('a' + t));
      for (uint64_t i = 0; !stop; i++) recorder.record(event(TraceKind::kReady, name.c_str(), i, i));
    });
  }
  bool whole = true;
  for (int i = 0; i < 200; i++) {
    uint64_t lost = 0;
    for (const RecordedEvent& e : recorder.events(&lost)) {
      const std::string name = e.name.data();
      whole &= std::set<char>(name.begin(), name.end()).size() == 1;  // never half of one and half of another
    }
    if (i % 20 == 19) whole &= recorder.stop().ok() && recorder.start(64).ok();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(whole);
}

TEST_CASE("a timeline is a trace of slices and instants with named tracks") {
  std::vector<RecordedEvent> events(3);
  TraceEvent stage = event(TraceKind::kStage, "fc.\"weight\"\n\xff", 2'000, 5'500);
  stage.comm = 9;
  stage.rank = 3;
  stage.lane = 1;
  stage.step = 4;
  stage.bucket = 2;
  stage.stage = 0;
  events[0].set(stage);
  TraceEvent ready = event(TraceKind::kReady, "b", 7'000, 7'000);
  ready.comm = 9;
  ready.rank = 3;
  events[1].set(ready);
  TraceEvent sub = event(TraceKind::kCollective, "barrier", 8'000, 9'000);
  sub.comm = 10;
  sub.rank = 0;
  sub.algorithm = "ring";
  sub.sent_bytes = 12;
  events[2].set(sub);
  TraceProcess process;
  process.host = "node7";
  process.pid = 42;
  process.clock = "a clock";
  process.lost = 5;
  process.comms = {{10, 0, 2, "shm", "", std::nullopt}, {9, 3, 4, "ucx", "job", ClockOffset{-50, 20}}};
  const auto trace = nlohmann::json::parse(timeline_text(events, process));
  CHECK(trace["otherData"] ==
        nlohmann::json{{"source", "weft"},
                       {"format", 1},
                       {"host", "node7"},
                       {"pid", 42},
                       {"clock", "a clock"},
                       {"events_overwritten", 5},
                       {"communicators",
                        {{{"id", "0000000000000009"},
                          {"rank", 3},
                          {"size", 4},
                          {"backend", "ucx"},
                          {"job", "job"},
                          {"clock_offset_ns", -50},
                          {"clock_error_ns", 20}},
                         {{"id", "000000000000000a"}, {"rank", 0}, {"size", 2}, {"backend", "shm"}}}}});
  const auto slices = of(trace, "stage");
  REQUIRE(slices.size() == 1);
  CHECK(slices[0]["ph"] == "X");
  CHECK(slices[0]["ts"] == 2.0);
  CHECK(slices[0]["dur"] == 3.5);
  CHECK(slices[0]["args"] == nlohmann::json{{"lane", 1}, {"step", 4}, {"bucket", 2}, {"stage", 0}});
  CHECK(has(slices[0]["name"], "stage 0 of bucket 2 [fc.\"weight\""));
  const auto instants = of(trace, "ready");
  REQUIRE(instants.size() == 1);
  CHECK(instants[0]["ph"] == "i");
  const auto collectives = of(trace, "collective");
  REQUIRE(collectives.size() == 1);
  CHECK(collectives[0]["args"] == nlohmann::json{{"comm", 1}, {"sent_bytes", 12}, {"algorithm", "ring"}});
  std::set<std::string> names;
  for (const auto& e : trace["traceEvents"]) {
    CHECK(e["pid"] == 3);  // the rank in the largest communicator
    if (e["ph"] == "M" && e["args"].contains("name")) names.insert(e["args"]["name"].get<std::string>());
  }
  CHECK(names ==
        std::set<std::string>{"rank 3", "hook 1, bucket 2", "reducer", "collectives, communicator 1"});
  CHECK(nlohmann::json::parse(timeline_text({}, {}))["traceEvents"].empty());
}

TEST_CASE("collectives that run at once are on two tracks, so that slices of a track never cross") {
  std::vector<RecordedEvent> events(3);
  for (uint64_t slot = 0; slot < 3; slot++) {
    TraceEvent collective = event(TraceKind::kCollective, "all_reduce", 1'000 * slot, 1'000 * slot + 1'500);
    collective.lane = 1;
    collective.index = slot;
    events[slot].set(collective);
  }
  const auto tids = [&] {
    std::vector<int> found;
    for (const auto& e : of(nlohmann::json::parse(timeline_text(events, {})), "collective"))
      found.push_back(e["tid"]);
    return found;
  };
  CHECK(tids() == std::vector<int>{1, 2, 1});
  for (RecordedEvent& one : events) one.event.end_ns = one.event.begin_ns + 1'000;
  CHECK(tids() == std::vector<int>{1, 1, 1});
}

TEST_CASE("this process has a host, an id and a clock") {
  const TraceProcess process = describe_process();
  CHECK(!process.host.empty());
  CHECK(process.pid == getpid());
  CHECK(process.clock.size() >= 36);
}

TEST_CASE("tagged messages are asynchronous slices, because they overlap") {
  std::vector<RecordedEvent> events(2);
  TraceEvent message = event(TraceKind::kMessage, "recv_tagged u8 x 9 from any rank with tag 7", 1000, 9000);
  message.index = 7;
  message.bytes = 9;
  events[0].set(message);
  message = event(TraceKind::kMessage, "send_tagged u8 x 9 to rank 1 with tag 8", 2000, 4000);
  events[1].set(message);
  const auto slices = of(nlohmann::json::parse(timeline_text(events, {})), "message");
  REQUIRE(slices.size() == 4);
  CHECK(slices[0]["name"] == "recv_tagged u8 x 9 from any rank with tag 7");
  CHECK(slices[0]["ph"] == "b");
  CHECK(slices[0]["ts"] == 1.0);
  CHECK(slices[0]["args"] == nlohmann::json{{"tag", 7}, {"bytes", 9}});
  CHECK(slices[1]["ph"] == "e");
  CHECK(slices[1]["ts"] == 9.0);
  CHECK(slices[1]["id"] == slices[0]["id"]);
  CHECK(slices[2]["id"] != slices[0]["id"]);
}

TEST_CASE("a timeline replaces the file before it, and an error names the path") {
  const Folder folder;
  const std::string path = folder.path / "trace.json";
  std::ofstream(path) << "old";
  SystemClock clock;
  TraceRecorder recorder(clock);
  REQUIRE(recorder.start(0).ok());
  recorder.record(event(TraceKind::kReady, "a", 1, 1));
  REQUIRE(recorder.write(path, {}).ok());
  CHECK(of(read(path), "ready").size() == 1);
  // Nothing else is left in the folder.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);

  const Status nowhere = recorder.write(folder.path / "no" / "such" / "trace.json", {});
  CHECK(nowhere.code() == Code::kSystem);
  CHECK(has(nowhere.text(), "no/such/trace.json"));
  // A folder cannot be replaced; the temporary file is removed all the same.
  std::filesystem::create_directory(folder.path / "taken");
  CHECK(recorder.write(folder.path / "taken", {}).code() == Code::kSystem);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2);
}

TEST_CASE("the trace of a step shows a bucket encoded while the previous one is communicated") {
  const Model model({{"first", {5000}}, {"second", {5000}}, {"last", {5000}}});
  std::atomic<bool> encoded{false};
  const auto failures = run_threads(2, [&](Rank& self) {
    Context& context = self.comm->context();
    TraceRecorder recorder(context.clock());
    std::shared_ptr<Hook> hook;
    self.expect(Registry::make_hook("int8", {{}, nullptr, host_ops()}, &hook), "hook");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    self.expect(recorder.start(0), "start");
    context.set_trace(&recorder);
    // Returns the first event of a kind; if a bucket is given, of that bucket.
    const auto first = [&](TraceKind kind, uint32_t bucket) {
      uint64_t lost = 0;
      for (const RecordedEvent& e : recorder.events(&lost)) {
        if (e.event.kind == kind && (bucket == UINT32_MAX || e.event.bucket == bucket)) return e.event;
      }
      return TraceEvent();
    };
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    // Rank 1 starts once rank 0 has encoded two buckets: until then the first one cannot have arrived.
    const auto may_come = [&] { return self.rank == 0 || encoded; };
    self.expect(context.engine().wait(may_come, Deadline::after(context.clock(), 60'000, 0)), "encoded");
    self.expect(reducer->begin(nullptr), "begin");
    const auto encoded_here = [&](uint32_t bucket) {
      const auto seen = [&] { return self.rank == 1 || first(TraceKind::kStage, bucket).end_ns != 0; };
      return context.engine().wait(seen, Deadline::after(context.clock(), 60'000, 0));
    };
    self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
    self.expect(encoded_here(0), "bucket 0 is encoded");
    int rounds = 0;  // of polling: a few start its collective
    context.engine().wait([&] { return ++rounds > 1000; }, Deadline::after(context.clock(), 60'000, 0));
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(encoded_here(1), "bucket 1 is encoded");
    encoded = true;
    self.expect(reducer->finish({}), "finish");
    if (self.rank == 0) {
      // The communication of bucket 0's codes.
      const TraceEvent travel = first(TraceKind::kCollective, UINT32_MAX);
      const TraceEvent encode = first(TraceKind::kStage, 1);
      self.expect(travel.begin_ns < encode.begin_ns && encode.end_ns < travel.end_ns,
                  "bucket 1 is encoded meanwhile");
    }
    reducer.reset();
    context.engine().locked([&] { context.set_trace(nullptr); });
    self.expect(recorder.stop(), "stop");
  });
  check(failures);
}

TEST_CASE("the trace of a step shows a launch before the last ready") {
  const Folder folder;
  const Model model({{"first", {500}}, {"last", {500}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    Context& context = self.comm->context();
    TraceRecorder recorder(context.clock());
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    self.expect(recorder.start(0), "start");
    context.set_trace(&recorder);
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    const auto launched = [&] {
      uint64_t lost = 0;
      const auto events = recorder.events(&lost);
      return std::any_of(events.begin(), events.end(),
                         [](const RecordedEvent& e) { return e.event.kind == TraceKind::kLaunch; });
    };
    self.expect(context.engine().wait(launched, Deadline::after(context.clock(), 60'000, 0)), "launched");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    reducer.reset();  // the names end with it
    context.engine().locked([&] { context.set_trace(nullptr); });
    self.expect(recorder.stop(), "stop");
    self.expect(
        recorder.write(folder.path / (std::to_string(self.rank) + ".json"), context.trace_comms().list()),
        "write");
  });
  check(failures);
  for (int rank = 0; rank < 2; rank++) {
    const auto trace = read(folder.path / (std::to_string(rank) + ".json"));
    const auto ready = of(trace, "ready");
    const auto launch = of(trace, "launch");
    REQUIRE(ready.size() == 2);
    REQUIRE(launch.size() == 2);
    CHECK(ready[1]["name"] == "ready first");
    CHECK(launch[0]["name"] == "launch bucket 0 [last]");
    CHECK(launch[0]["ts"].get<double>() < ready[1]["ts"].get<double>());
    CHECK(of(trace, "stage").size() == 4);
    CHECK(of(trace, "collective").size() == 2);
    CHECK(of(trace, "collective")[0]["name"] == "all_reduce");
    CHECK(of(trace, "done").size() == 2);
    CHECK(of(trace, "collective")[1]["args"]["step"] == 0);
    CHECK(of(trace, "collective")[1]["args"]["bucket"] == 1);
    REQUIRE(of(trace, "step").size() == 1);
    REQUIRE(of(trace, "finish").size() == 1);
    const auto step = of(trace, "step")[0], finish = of(trace, "finish")[0];
    CHECK(finish["ts"].get<double>() >= ready[1]["ts"].get<double>());
    CHECK(finish["dur"].get<double>() < step["dur"].get<double>());
    CHECK(finish["tid"] == step["tid"]);
    for (const auto& e : trace["traceEvents"]) CHECK(e["pid"] == rank);
  }
}

TEST_CASE("the trace of a step shows the collective of absences concurrent with the buckets") {
  const Model model({{"first", {500}}, {"second", {500}}, {"last", {500}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    Context& context = self.comm->context();
    TraceRecorder recorder(context.clock());
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.limits = {0}, .flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    self.expect(recorder.start(0), "start");
    context.set_trace(&recorder);
    const auto all_of = [&](TraceKind kind) {
      uint64_t lost = 0;
      std::vector<TraceEvent> events;
      for (const RecordedEvent& e : recorder.events(&lost)) {
        if (e.event.kind == kind) events.push_back(e.event);
      }
      return events;
    };
    const auto wait_for = [&](TraceKind kind, size_t count) {
      const auto there = [&] { return all_of(kind).size() >= count; };
      self.expect(context.engine().wait(there, Deadline::after(context.clock(), 60'000, 0)), "it comes");
    };
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
    wait_for(TraceKind::kDone, 1);  // the bucket that does not wait for the others' absent parameters
    const uint64_t absent = 0;
    if (self.rank == 1) {
      self.expect(reducer->absent(&absent, 1), "absent");
    } else {
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    }
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    wait_for(TraceKind::kCollective, 3);  // all of the step's but the last bucket's, which waits for finish
    self.expect(reducer->finish({}), "finish");
    const std::vector<TraceEvent> travels = all_of(TraceKind::kCollective), done = all_of(TraceKind::kDone);
    self.expect(travels.size() == 4 && done.size() == 3, "three buckets, and what is absent");
    if (travels.size() != 4 || done.size() != 3) return;
    // The map of absences is submitted after the second bucket and before the last one, which alone waits for
    // it.
    const TraceEvent& map = travels[2];
    self.expect(map.bytes == sizeof(uint64_t), "a bit a parameter");
    self.expect(travels[1].bytes == 2000 && travels[3].bytes == 2000, "buckets");
    self.expect(map.begin_ns <= travels[3].begin_ns && map.end_ns <= travels[3].end_ns &&
                    travels[3].end_ns <= done[2].begin_ns,
                "before the last bucket");
    self.expect(done[0].begin_ns < map.begin_ns, "behind the first");
    weft_param_info info{};
    self.expect(reducer->param(0, &info).ok() && info.absent == (self.rank == 1), "absent there");
    reducer.reset();
    context.engine().locked([&] { context.set_trace(nullptr); });
    self.expect(recorder.stop(), "stop");
  });
  check(failures);
}

}  // namespace unit_trace
