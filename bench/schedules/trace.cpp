#include "schedules/trace.h"

namespace weft::bench {

using namespace weft::coll;

namespace {

class Writer {
 public:
  Writer(std::ostream& out, const Operation& operation, int rank)
      : out_(out), operation_(operation), rank_(rank), schedule_(schedule_of(operation, rank)) {}

  void write() {
    line() << "init\n";
    line() << "comm_size " << operation_.size << '\n';
    for (size_t round = 0; round < schedule_.rounds().size(); round++) write_round(round);
    line() << "finalize\n";
  }

 private:
  std::ostream& line() { return out_ << rank_ << ' '; }

  // SMPI's tags are ints. Steps of data are far below this one.
  static uint32_t tag(const Transfer& t) {
    return t.step == Schedule::kHandshakeStep ? uint32_t{1} << 30 : t.step;
  }

  bool post(size_t round, When when, bool sends) {
    bool any = false;
    for (const Transfer& t : schedule_.transfers(round)) {
      if (t.is_send != sends || t.when != when) continue;
      any = true;
      line() << (sends ? "isend " : "irecv ") << t.peer << ' ' << tag(t) << ' ' << t.bytes + kHeaderBytes
             << '\n';
    }
    return any;
  }

  void work(size_t round, size_t begin, size_t end) {
    uint64_t bytes = 0;
    for (const Work& work : schedule_.works(round).subspan(begin, end - begin)) {
      bytes += touched_bytes(work, operation_.element);
    }
    if (bytes > 0) line() << "compute " << bytes << '\n';
  }

  void write_round(size_t round) {
    const bool last = round + 1 == schedule_.rounds().size();
    bool ahead = false;  // messages of the next round are in flight
    for (const bool sends : {false, true}) {
      if (round == 0) post(0, When::kAhead, sends);
      post(round, When::kInRound, sends);
      if (!last && post(round + 1, When::kAhead, sends)) ahead = true;
    }
    const size_t meanwhile = schedule_.meanwhile(round);
    work(round, 0, meanwhile);
    // waitall would also wait for messages of the next round.
    if (!ahead && !schedule_.transfers(round).empty()) line() << "waitall\n";
    for (const Transfer& t : schedule_.transfers(round)) {
      if (!ahead) break;
      line() << "wait " << (t.is_send ? rank_ : t.peer) << ' ' << (t.is_send ? t.peer : rank_) << ' '
             << tag(t) << '\n';
    }
    work(round, meanwhile, schedule_.works(round).size());
  }

  std::ostream& out_;
  const Operation& operation_;
  const int rank_;
  const Schedule schedule_;
};

}  // namespace

void write_trace(std::ostream& out, const Operation& operation, int rank) {
  Writer(out, operation, rank).write();
}

}  // namespace weft::bench
