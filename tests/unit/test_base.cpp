// lib/base: basic types of all other code.
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/pause.h"
#include "base/process.h"
#include "base/round_up.h"
#include "base/splitmix.h"
#include "base/status.h"
#include "base/text.h"
#include "device/arena.h"
#include "support/catch.h"

namespace unit_base {

using namespace weft;

TEST_CASE("a status keeps code, text, ranks and slot through additions") {
  const Status status =
      Status::error(Code::kMismatch, "counts differ").with_ranks({1, 3}).with_slot(7).with_prefix("x: ");
  CHECK(!status.ok());
  CHECK(status.code() == Code::kMismatch);
  CHECK(status.text() == "x: counts differ");
  CHECK(status.info().ranks == std::vector<int>{1, 3});
  CHECK(status.info().slot == 7);
  CHECK(Status().with_prefix("x").ok());
}

TEST_CASE("a reader never gives bytes beyond the end and stays bad") {
  ByteWriter writer;
  writer.put(uint32_t{5}).put_string("abc").put_f64(2.5);
  ByteReader reader(writer.bytes());
  CHECK(reader.get<uint32_t>() == 5);
  CHECK(reader.get_string(16) == "abc");
  CHECK(reader.get_f64() == 2.5);
  CHECK(reader.done());
  CHECK(reader.get<uint64_t>() == 0);
  CHECK(!reader.ok());

  ByteReader bounded(writer.bytes());
  bounded.get<uint32_t>();
  CHECK(bounded.get_string(2).empty());  // longer than the given maximum
  CHECK(!bounded.ok());

  ByteWriter lying;
  lying.put(std::numeric_limits<uint32_t>::max());
  ByteReader lied(lying.bytes());
  CHECK(lied.get_bytes(std::numeric_limits<uint32_t>::max()).empty());
  CHECK(!lied.ok());
}

TEST_CASE("timeouts follow weft.h: default, infinite, poll, and no overflow") {
  SystemClock clock;
  CHECK(Deadline::after(clock, -1, 5).ns() == UINT64_MAX);
  CHECK(Deadline::after(clock, -2, 5).expired(clock));
  CHECK(!Deadline::after(clock, 0, 60000).expired(clock));
  CHECK(Deadline::after(clock, INT64_MAX, 5).ns() == UINT64_MAX);
  CHECK(Deadline::after(clock, 0, 60000).remaining_ms(clock) > 50000);
}

TEST_CASE("invalid reductions are refused by name") {
  CHECK(check_reduction(ReduceOp::kSum, Dtype::kBf16).ok());
  const Status status = check_reduction(ReduceOp::kAvg, Dtype::kI32);
  CHECK(status.code() == Code::kUnsupported);
  CHECK(status.text().find("avg") != std::string::npos);
  CHECK(status.text().find("i32") != std::string::npos);
  CHECK(check_reduction(ReduceOp::kBxor, Dtype::kF32).code() == Code::kUnsupported);
  CHECK(check_reduction(ReduceOp::kAvg, Dtype::kBool).code() == Code::kUnsupported);
  CHECK(check_reduction(ReduceOp::kMax, Dtype::kC64).text().find("c64") != std::string::npos);
  CHECK(check_reduction(ReduceOp::kUser, Dtype::kF8E4m3).ok());
}

TEST_CASE("names and sizes of all dtypes agree with their parser") {
  for (int i = 1; i <= kDtypeLast; i++) {
    const auto dtype = static_cast<Dtype>(i);
    Dtype parsed{};
    REQUIRE(parse(name(dtype), &parsed));
    CHECK(parsed == dtype);
    CHECK(dtype_size(dtype) > 0);
  }
  CHECK(dtype_size(static_cast<Dtype>(200)) == 0);
  CHECK(std::string(name(static_cast<Dtype>(200))) == "?");
}

TEST_CASE("extents are reused, merged, and never allocated twice") {
  ExtentAllocator extents(16 * Arena::kAlignment);
  uint64_t a, b, c, d;
  REQUIRE(extents.allocate(1, &a));
  REQUIRE(extents.allocate(2 * Arena::kAlignment, &b));
  REQUIRE(extents.allocate(Arena::kAlignment, &c));
  CHECK(a == 0);
  CHECK(b == Arena::kAlignment);
  CHECK(c == 3 * Arena::kAlignment);
  CHECK(extents.free(a) == Arena::kAlignment);
  CHECK(extents.free(a) == 0);  // freed twice
  CHECK(extents.free(b) == 2 * Arena::kAlignment);
  REQUIRE(extents.allocate(3 * Arena::kAlignment, &d));  // fits only if a and b were merged
  CHECK(d == 0);
  CHECK(!extents.allocate(13 * Arena::kAlignment, &a));
  CHECK(!extents.allocate(UINT64_MAX, &a));
  CHECK(extents.high_water() == 4 * Arena::kAlignment);
  extents.keep_freed();
  CHECK(extents.free(c) == Arena::kAlignment);
  CHECK(extents.free(c) == 0);
  REQUIRE(extents.allocate(Arena::kAlignment, &b));
  CHECK(b == 4 * Arena::kAlignment);  // not at the place of c
}

TEST_CASE("text is concatenated from words, characters and numbers of every width") {
  const std::string word = "word";
  CHECK(cat(word) == "word");
  CHECK(cat("a", 'b') == "ab");
  CHECK(cat(word, std::string_view("view"), "") == "wordview");
  CHECK(cat(int8_t{-128}, ' ', uint8_t{200}, ' ', true) == "-128 200 1");
  CHECK(cat(INT64_MIN, " ", UINT64_MAX, " ", 0.25, " ", 1e300) ==
        "-9223372036854775808 18446744073709551615 0.25 1e+300");
  CHECK(cat(1, 2u, 3l, 4ul, short{5}, 6ll, "seven") == "123456seven");
  const auto* const address = reinterpret_cast<const std::byte*>(uintptr_t{0xabc});
  CHECK(cat("at ", address) == "at 0xabc");
  CHECK(list_text(std::vector<int>{3, 1, 2}) == "3, 1, 2");
  CHECK(list_text(std::vector<int>{3, 1, 2}, 1) == "3 and 2 more");
}

TEST_CASE("byte counts are printed in readable units") {
  CHECK(bytes_text(640) == "640 B");
  CHECK(bytes_text(1u << 20) == "1 MiB");
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(list_text(std::vector<int>{1, 2, 3}) == "1, 2, 3");
  CHECK(list_text(std::vector<int>{1, 2, 3}, 2) == "1, 2 and 1 more");
}

TEST_CASE("SplitMix64 gives its published numbers") {
  SplitMix64 random(1234567);
  CHECK(random.next() == 6457827717110365317u);
  CHECK(random.next() == 3203168211198807973u);
  CHECK(random.next() == 9817491932198370423u);
}

TEST_CASE("sizes are rounded up to whole units") {
  CHECK(round_up(0, kCacheLine) == 0);
  CHECK(round_up(1, kCacheLine) == 64);
  CHECK(round_up(64, kCacheLine) == 64);
  CHECK(round_up(65, 4096) == 4096);
}

TEST_CASE("a process identity equals itself, also after serialisation, and no other one") {
  const ProcessIdentity me = this_process();
  CHECK(me.start_ticks != 0);
  CHECK(me == this_process());
  ByteWriter writer;
  me.put(writer);
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  CHECK(ProcessIdentity::get(reader) == me);
  CHECK(reader.done());
  ByteReader cut(ByteView(bytes).first(bytes.size() - 1));
  CHECK(!(ProcessIdentity::get(cut) == me));
  CHECK(!cut.done());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(this_process() == me ? 1 : 0);
  int how = 0;
  REQUIRE(::waitpid(child, &how, 0) == child);
  CHECK(how == 0);
}

namespace {

// Each reading is `step_ns` after the previous one.
class SteppingClock final : public Clock {
 public:
  explicit SteppingClock(uint64_t step_ns) : step_ns_(step_ns) {}
  uint64_t now_ns() override { return now_ns_ += step_ns_; }
  void relax(uint32_t) override {}
  void sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
  void wake_all(const std::atomic<uint32_t>&) override {}

 private:
  const uint64_t step_ns_;
  uint64_t now_ns_ = 0;
};

}  // namespace

TEST_CASE("a loop pauses about as long as requested, whatever one pause takes") {
  SteppingClock ten(2'000), hundred(20'000), still(0);  // 200 pauses take 2 us, 20 us, or no time
  CHECK(pauses_in(50, ten) == 5);
  CHECK(pauses_in(14, ten) == 1);
  CHECK(pauses_in(16, ten) == 2);
  CHECK(pauses_in(0, ten) == 1);
  CHECK(pauses_in(1'000'000, ten) == kMostPauses);
  CHECK(pauses_in(49, hundred) == 1);
  CHECK(pauses_in(50, still) == kMostPauses);
  SystemClock clock;
  const int pauses = pauses_in(2'000, clock);
  CHECK(pauses >= 1);
  const uint64_t start = clock.now_ns();
  for (int i = 0; i < pauses; i++) cpu_pause();
  CHECK((clock.now_ns() - start >= 500 || pauses == kMostPauses));
}

}  // namespace unit_base
