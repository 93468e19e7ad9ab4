#include "judge.h"

#include <weft/weft.h>

#include <algorithm>
#include <bit>
#include <map>

namespace faults {
namespace {

std::string set_text(uint64_t ranks) {
  std::string text = "{";
  for (int r = 0; r < 64; r++) {
    if ((ranks >> r & 1) != 0) text += (text.size() > 1 ? "," : "") + std::to_string(r);
  }
  return text + "}";
}

class Judge {
 public:
  Judge(const Draw& draw, const RunTrace& trace) : draw_(draw), trace_(trace) {}
  Verdict verdict();

 private:
  template <class... Parts>
  void disagree(size_t rank, const Parts&... parts) {
    std::string text = "rank " + std::to_string(rank) + ": ";
    ((text += parts), ...);
    verdict_.disagreements.push_back(text);
  }
  bool survives(size_t rank) const { return (survivors_ >> rank & 1) != 0; }
  void find_survivors();
  void check_end(size_t rank);
  void check_failure(size_t rank, const Word& word);
  void check_outcome();
  void check_woken(size_t rank);
  const Word* last_state(size_t rank) const;
  void check_equal();
  void measure();

  const Draw& draw_;
  const RunTrace& trace_;
  Verdict verdict_;
  uint64_t survivors_ = 0;  // ranks that no fault removed
  uint64_t woken_ = 0;      // ranks that were stopped and continue
  uint64_t went_on_ = 0;    // members of the survivors' last communicator
  uint64_t at_fault_ = 0;   // ranks that a fault struck
  bool death_ = false;      // a fault struck that must be noticed
  uint64_t first_ns_ = 0, last_ns_ = 0;
};

void Judge::find_survivors() {
  survivors_ = (uint64_t{1} << draw_.ranks) - 1;
  for (size_t i = 0; i < draw_.faults.size(); i++) {
    const Fault& fault = draw_.faults[i];
    if (trace_.struck_ns[i] == 0) {
      // A delay by the library itself is invisible from outside.
      verdict_.reached &= fault.action == Action::kDelay;
      continue;
    }
    if (fault.action == Action::kDelay) continue;
    death_ = true;
    at_fault_ |= uint64_t{1} << fault.victim;
    if (fault.leaves()) survivors_ &= ~(uint64_t{1} << fault.victim);
    if (fault.action == Action::kStop && fault.wakes) woken_ |= uint64_t{1} << fault.victim;
    if (first_ns_ == 0) first_ns_ = trace_.struck_ns[i];
    last_ns_ = std::max(last_ns_, trace_.struck_ns[i]);
  }
}

void Judge::check_failure(size_t rank, const Word& word) {
  const std::string said = std::string(" (") + weft_status_string(word.status) + ", evidence " +
                           std::to_string(word.evidence) + ", ranks " + set_text(word.ranks) +
                           "): " + word.text;
  if (!death_) return disagree(rank, "reported a failure although no fault was injected", said);
  // A rank that dies before it has joined is noticed only at the deadline. A rank that joins after rank 0 has
  // given up because of it finds no store any more, and reports rank 0.
  const bool never_came =
      word.kind == Kind::kRefused && word.status == WEFT_ERR_TIMEOUT &&
      (draw_.faults[0].trigger == Trigger::kStarted || draw_.faults[0].action == Action::kStop);
  const uint64_t right = at_fault_ | kUnknownRank | (never_came ? 1u : 0u);
  bool status = word.status == WEFT_ERR_PEER_FAILED || never_came;
  for (const Fault& fault : draw_.faults) {
    status |= fault.action == Action::kAbort && word.status == WEFT_ERR_ABORTED;
    status |= fault.action == Action::kFail && word.status == WEFT_ERR_SYSTEM;
    status |= fault.action == Action::kHook && word.status == WEFT_ERR_HOOK;
  }
  if (!status) disagree(rank, "reported a wrong status", said);
  if (word.evidence == WEFT_EVIDENCE_NONE || (word.evidence == WEFT_EVIDENCE_DEADLINE && !never_came)) {
    disagree(rank, "reported wrong evidence", said);
  }
  bool named = (word.ranks & right) != 0;
  for (int r = 0; r < draw_.ranks; r++) {
    if ((at_fault_ >> r & 1) == 0) continue;
    named |= std::string(word.text).find("rank " + std::to_string(r)) != std::string::npos;
    named |= static_cast<int>(rank) == r;  // it knows its own fault
  }
  if (!named) disagree(rank, "its error does not name the rank at fault", said);
  if ((word.ranks & ~right) != 0) disagree(rank, "its error names a rank that is not at fault", said);
}

// Checks how a survivor's process ended.
void Judge::check_end(size_t rank) {
  const RankTrace& one = trace_.ranks[rank];
  if (one.killed) return;  // because of a hang, which is counted as such
  if (one.exit_code > 128) {
    disagree(rank, "was ended by signal ", std::to_string(one.exit_code - 128));
  } else if (one.exit_code != 0 || one.words.empty() || one.words.back().kind != Kind::kEnded) {
    disagree(rank, "ended unexpectedly, exit code ", std::to_string(one.exit_code));
  }
}

// Checks a rank that was stopped and woke up; it ends by itself. It may continue only with the survivors:
// with them, if it woke up before they had agreed. Of two ranks either may continue alone.
void Judge::check_woken(size_t rank) {
  const Word* last = last_state(rank);
  if (last == nullptr || last->kind != Kind::kWorking || last->generation == 0) return;
  const bool alone = draw_.ranks == 2 && draw_.last_of_two && last->ranks == uint64_t{1} << rank;
  if (!alone && last->ranks != went_on_)
    disagree(rank, "resumed after its stop and continued with the ranks ", set_text(last->ranks));
}

const Word* Judge::last_state(size_t rank) const {
  const Word* last = nullptr;
  for (const Word& word : trace_.ranks[rank].words) {
    if (word.kind == Kind::kWorking || word.kind == Kind::kFailed || word.kind == Kind::kShrunk) last = &word;
  }
  return last;
}

// Checks the outcome: either all survivors of a fault continue together, or all report that they are too few.
void Judge::check_outcome() {
  const int left = std::popcount(survivors_);
  const bool may_be_few = 2 * left <= draw_.ranks && !(draw_.ranks == 2 && draw_.last_of_two);
  int few = 0, went_on = 0;
  for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
    if (!survives(rank)) continue;
    const Word* last = last_state(rank);
    if (last == nullptr) {
      disagree(rank, "never reported that its communicator works");
    } else if (last->kind == Kind::kWorking) {
      went_on++;
      if (went_on_ == 0) went_on_ = last->ranks;
      if ((last->ranks & ~woken_) != survivors_ || last->ranks != went_on_) {
        disagree(rank, "continues with the ranks ", set_text(last->ranks), "; the survivors are ",
                 set_text(survivors_), ", and the first of them continues with ", set_text(went_on_));
      }
    } else if (last->kind == Kind::kShrunk && last->status == WEFT_ERR_MINORITY && may_be_few) {
      few++;
    } else {
      disagree(rank, "does not continue: ", weft_status_string(last->status), ": ", last->text);
    }
  }
  if (few > 0 && went_on > 0)
    verdict_.disagreements.push_back("some survivors continue, others report that they are too few");
  verdict_.minority = few > 0;
}

// Checks that the ranks of one communicator see the same members, the same bits and the same step.
void Judge::check_equal() {
  // By kind and members: the first rank that reported them, and its value.
  std::map<std::pair<Kind, uint64_t>, std::pair<size_t, uint64_t>> said;
  for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
    for (const Word& word : trace_.ranks[rank].words) {
      if (word.kind != Kind::kWorking && word.kind != Kind::kBound) continue;
      const auto [it, is_new] = said.try_emplace({word.kind, word.ranks}, rank, word.bits);
      if (!is_new && it->second.second != word.bits) {
        disagree(rank,
                 word.kind == Kind::kBound ? "continues with another step than rank "
                                           : "computed other bits than rank ",
                 std::to_string(it->second.first));
      }
      if ((word.ranks >> rank & 1) == 0)
        disagree(rank, "works in a group that it does not belong to: ranks ", set_text(word.ranks));
    }
  }
}

void Judge::measure() {
  uint64_t first_seen = 0, last_seen = 0, went_on = 0;
  int detected = 0;
  for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
    bool seen = false;
    for (const Word& word : trace_.ranks[rank].words) {
      const bool failed =
          word.kind == Kind::kFailed || (word.kind == Kind::kRefused && word.status != WEFT_ERR_TIMEOUT);
      if (failed && !seen && survives(rank)) {
        seen = true;
        detected++;
        first_seen = first_seen == 0 ? word.at_ns : std::min(first_seen, word.at_ns);
        last_seen = std::max(last_seen, word.at_ns);
      }
      if (word.kind == Kind::kWorking && word.generation > 0 && survives(rank)) {
        went_on = std::max(went_on, word.at_ns);
      }
    }
  }
  const auto ms = [](uint64_t from, uint64_t to) {
    return to > from ? static_cast<double>(to - from) / 1e6 : 0.0;
  };
  // From outside, a rank's own stop or kill is seen later than it happens.
  const bool exact = std::none_of(draw_.faults.begin(), draw_.faults.end(), [](const Fault& fault) {
    return fault.trigger == Trigger::kFailpoint && (fault.ends_process() || fault.action == Action::kStop);
  });
  if (death_ && detected > 0 && exact) verdict_.detect_ms = ms(first_ns_, last_seen);
  if (went_on > 0) verdict_.recover_ms = ms(std::max(first_seen, last_ns_), went_on);
}

Verdict Judge::verdict() {
  find_survivors();
  for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
    const RankTrace& one = trace_.ranks[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (!one.hang.empty()) verdict_.hangs.push_back(who + " did not return from " + one.hang);
    for (const Word& word : one.words) {
      if (word.kind == Kind::kWrong) disagree(rank, word.text);
      if (word.kind == Kind::kFailed || word.kind == Kind::kRefused) check_failure(rank, word);
      if (word.kind == Kind::kEnded && word.text[0] != 0)
        verdict_.leftovers.push_back(who + ": " + word.text);
    }
    if (survives(rank) || (woken_ >> rank & 1) != 0) check_end(rank);
  }
  for (const std::string& left : trace_.leftovers) verdict_.leftovers.push_back(left);
  check_equal();
  if (verdict_.hangs.empty()) {
    if (!draw_.ends_with_fault()) check_outcome();
    for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
      if ((woken_ >> rank & 1) != 0) check_woken(rank);
    }
    if (draw_.phase == Phase::kForming && death_) {
      for (size_t rank = 0; rank < trace_.ranks.size(); rank++) {
        const auto failed = [](const Word& word) {
          return word.kind == Kind::kRefused || word.kind == Kind::kFailed;
        };
        const std::vector<Word>& words = trace_.ranks[rank].words;
        if (survives(rank) && std::none_of(words.begin(), words.end(), failed))
          disagree(rank, "reported no failure of the group setup");
      }
    }
  }
  measure();
  return std::move(verdict_);
}

}  // namespace

Verdict judge(const Draw& draw, const RunTrace& trace) {
  return Judge(draw, trace).verdict();
}

}  // namespace faults
