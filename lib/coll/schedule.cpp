#include "coll/schedule.h"

#include <algorithm>

#include "base/round_up.h"

namespace weft::coll {

void Schedule::send(int peer, uint32_t step, Ref from, uint64_t bytes, When when) {
  transfers_.push_back({true, when, peer, step, from, bytes});
}

void Schedule::receive(int peer, uint32_t step, Ref to, uint64_t bytes, When when) {
  transfers_.push_back({false, when, peer, step, to, bytes});
}

void Schedule::append(WorkKind kind, std::span<const Ref> inputs, Ref to, uint64_t count) {
  if (count == 0) return;
  works_.push_back(
      {kind, static_cast<uint32_t>(inputs_.size()), static_cast<uint32_t>(inputs.size()), to, count});
  inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
}

void Schedule::fold(std::span<const Ref> inputs, Ref to, uint64_t count) {
  append(WorkKind::kFold, inputs, to, count);
}

void Schedule::add(std::span<const Ref> inputs, Ref to, uint64_t count) {
  append(WorkKind::kAdd, inputs, to, count);
}

void Schedule::copy(Ref from, Ref to, uint64_t bytes) {
  append(WorkKind::kCopy, std::span(&from, 1), to, bytes);
}

void Schedule::end_round() {
  const uint32_t begin = rounds_.empty() ? 0 : rounds_.back().works_end;
  rounds_.push_back({static_cast<uint32_t>(transfers_.size()), std::max(begin, meanwhile_end_),
                     static_cast<uint32_t>(works_.size())});
}

Ref Schedule::scratch(uint64_t bytes) {
  const Ref ref{Space::kScratch, scratch_bytes_};
  scratch_bytes_ += round_up(bytes, kCacheLine);
  return ref;
}

void Schedule::add_handshake(int rank, int size, bool every_pair) {
  if (rounds_.empty()) end_round();
  std::vector<bool> sends(static_cast<size_t>(size)), receives(static_cast<size_t>(size));
  if (!every_pair) {
    for (const Transfer& t : transfers(0)) (t.is_send ? sends : receives)[static_cast<size_t>(t.peer)] = true;
  }
  std::vector<Transfer> handshake;
  for (int distance = 1; distance < size; distance++) {
    for (const bool is_send : {true, false}) {
      const int peer = (rank + (is_send ? distance : size - distance)) % size;
      const bool known = (is_send ? sends : receives)[static_cast<size_t>(peer)];
      if (!known) handshake.push_back({is_send, When::kInRound, peer, kHandshakeStep, {}, 0});
    }
  }
  const auto end_of_first = transfers_.begin() + rounds_[0].transfers_end;
  transfers_.insert(end_of_first, handshake.begin(), handshake.end());
  for (Round& round : rounds_) round.transfers_end += static_cast<uint32_t>(handshake.size());
}

std::span<const Transfer> Schedule::transfers(size_t round) const {
  const uint32_t begin = round == 0 ? 0 : rounds_[round - 1].transfers_end;
  return std::span(transfers_).subspan(begin, rounds_[round].transfers_end - begin);
}

std::span<const Work> Schedule::works(size_t round) const {
  const uint32_t begin = round == 0 ? 0 : rounds_[round - 1].works_end;
  return std::span(works_).subspan(begin, rounds_[round].works_end - begin);
}

size_t Schedule::meanwhile(size_t round) const {
  return rounds_[round].meanwhile_end - (round == 0 ? 0 : rounds_[round - 1].works_end);
}

size_t Schedule::most_transfers() const {
  size_t most = 0;
  for (size_t r = 0; r < rounds_.size(); r++) most = std::max(most, transfers(r).size());
  return most;
}

uint64_t Schedule::memory_bytes() const {
  return transfers_.capacity() * sizeof(Transfer) + works_.capacity() * sizeof(Work) +
         inputs_.capacity() * sizeof(Ref) + rounds_.capacity() * sizeof(Round);
}

void Schedule::shrink() {
  transfers_.shrink_to_fit();
  works_.shrink_to_fit();
  inputs_.shrink_to_fit();
  rounds_.shrink_to_fit();
}

}  // namespace weft::coll
