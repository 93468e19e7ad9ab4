#include "machine.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

extern "C" char __executable_start;

namespace weft::model {
namespace {

bool acquires(Order order) {
  return order == Order::kConsume || order == Order::kAcquire || order >= Order::kAcqRel;
}
bool releases(Order order) {
  return order >= Order::kRelease;
}

std::string hex(uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", static_cast<size_t>(value));
  return text;
}

std::string place(uintptr_t call) {
  if (call == 0) return "unknown code";
  const SourceLine line = source_lines({call}).at(call);
  return line.file + ":" + std::to_string(line.line) + " (" + line.text + ")";
}

}  // namespace

void Clocks::join(const Clocks& other) {
  for (size_t i = 0; i < at.size(); i++) at[i] = std::max(at[i], other.at[i]);
}

bool Clocks::covers(const Clocks& other) const {
  for (size_t i = 0; i < at.size(); i++) {
    if (at[i] < other.at[i]) return false;
  }
  return true;
}

Machine::Machine() : places_(kPlaces), cells_(kPlaces / 2 * 8) {}

void Machine::reset() {
  execution_++;
  used_ = 0;
  for (size_t i = 0; i < words_; i++) messages_[i].clear();
  words_ = 0;
  ordered_ = {};
  fenced_ = {};
  for (Threaded& thread : threads_) thread = {};
  threads_[0].now.clocks.at[0] = 1;
}

void Machine::start(int thread, int by) {
  Threaded& started = threads_[static_cast<size_t>(thread)];
  started = {};
  if (by >= 0) {
    Threaded& starter = threads_[static_cast<size_t>(by)];
    started.now = starter.now;
    starter.now.clocks.at[static_cast<size_t>(by)]++;
  }
  started.now.clocks.at[static_cast<size_t>(thread)] = 1;
}

void Machine::join(int thread) {
  learn(self().now, threads_[static_cast<size_t>(thread)].now);
}

void Machine::release(MutexState& mutex) {
  mutex.released = self().now;
  self().now.clocks.at[current_]++;
}

void Machine::learn(Knowledge& own, const Knowledge& other) const {
  own.clocks.join(other.clocks);
  for (size_t i = 0; i < words_; i++) own.view.at[i] = std::max(own.view.at[i], other.view.at[i]);
}

Machine::Place& Machine::place_of(uintptr_t block) {
  size_t at = (block * 0x9e3779b97f4a7c15u) >> 50;
  while (places_[at].execution == execution_ && places_[at].block != block) at = (at + 1) % kPlaces;
  return places_[at];
}

Machine::Cell& Machine::cell(uintptr_t granule) {
  Place& place = place_of(granule / 8);
  if (place.execution != execution_) {
    if (used_ + 8 > cells_.size()) fail("the program accesses too much memory");
    place = {granule / 8, execution_, static_cast<uint32_t>(used_)};
    for (size_t i = 0; i < 8; i++) {
      Cell& fresh = cells_[used_++];
      fresh.granule = granule / 8 * 8 + i;
      fresh.call = 0;
      fresh.records = 0;
      fresh.words = 0;
    }
  }
  return cells_[place.cell + granule % 8];
}

Machine::Cell* Machine::existing(uintptr_t granule) {
  const Place& place = place_of(granule / 8);
  return place.execution == execution_ ? &cells_[place.cell + granule % 8] : nullptr;
}

// Fails if another thread has accessed the bytes in a way that conflicts with this access, and that did not
// happen before it.
void Machine::note(uintptr_t address, size_t size, Access access, uintptr_t call) {
  for (uintptr_t at = address; at < address + size;) {
    const size_t first = at % 8, last = std::min<size_t>(8, first + (address + size - at));
    note(cell(at / 8), static_cast<uint8_t>((0xff << first) & (0xff >> (8 - last))), access, call);
    at += last - first;
  }
}

void Machine::note(Cell& its, uint8_t bytes, Access access, uintptr_t call) {
  // By kind of this access: the kinds of other accesses that conflict.
  static constexpr bool kConflicts[4][4] = {{false, true, false, true},
                                            {true, true, true, true},
                                            {false, true, false, false},
                                            {true, true, false, false}};
  const Clocks& now = self().now.clocks;
  const bool* const conflicts = kConflicts[static_cast<size_t>(access)];
  Record* own = nullptr;
  for (uint32_t i = 0; i < its.records; i++) {
    Record& record = its.record[i];
    if (record.thread == current_) {
      if (record.access != access || record.bytes != bytes) continue;
      if (record.clock == now.at[current_]) return;  // compared already
      own = &record;
    } else if ((record.bytes & bytes) != 0 && conflicts[static_cast<size_t>(record.access)] &&
               record.clock > now.at[record.thread]) {
      fail("data race in the 8 bytes at " + hex(its.granule * 8) + " between thread " +
           std::to_string(current_) + " at " + place(call) + " and thread " + std::to_string(record.thread) +
           ", last accessed at " + place(its.call));
    }
  }
  if (own == nullptr) {
    if (its.records == its.record.size()) fail("too many different accesses of 8 bytes");
    own = &its.record[its.records++];
  }
  *own = {now.at[current_], static_cast<uint8_t>(current_), access, bytes};
  its.call = call;
  if (access != Access::kWrite || its.words == 0) return;
  for (size_t b = 0; b < 8; b++) {
    if ((bytes >> b & 1) != 0 && its.word[b] >= 0) forget(static_cast<size_t>(its.word[b]));
  }
}

void Machine::plain(uintptr_t address, size_t size, Access access, uintptr_t call) {
  // The ends of a large range stand for the rest.
  constexpr size_t kEnd = 64;
  if (size > 4 * kEnd) {
    plain(address, kEnd, access, call);
    plain(address + size - kEnd, kEnd, access, call);
    return;
  }
  note(address, size, access, call);
}

// Ends the life of an atomic word: its memory is written as something else, or is freed.
void Machine::forget(size_t word) {
  for (uintptr_t at = addresses_[word]; at < addresses_[word] + static_cast<uintptr_t>(sizes_[word]); at++) {
    if (Cell* const its = existing(at / 8)) its->set_word(at % 8, -1);
  }
}

void Machine::free(uintptr_t address, size_t size) {
  const auto clear = [&](Cell& its) {
    if (its.granule * 8 < address || its.granule * 8 >= address + size) return;
    for (size_t b = 0; b < 8 && its.words > 0; b++) {
      if (its.word[b] >= 0) forget(static_cast<size_t>(its.word[b]));
    }
    its.records = 0;
  };
  if (size / 8 > used_) {
    for (size_t i = 0; i < used_; i++) clear(cells_[i]);
    return;
  }
  for (uintptr_t granule = address / 8; granule <= (address + size - 1) / 8; granule++) {
    if (Cell* const its = existing(granule)) clear(*its);
  }
}

void Machine::zero_accessed(std::byte* base, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(base);
  for (size_t i = 0; i < used_; i++) {
    const uintptr_t at = cells_[i].granule * 8;
    if (at >= from && at < from + bytes) std::memset(base + (at - from), 0, 8);
  }
}

size_t Machine::find(uintptr_t address, int size, uintptr_t call) {
  Cell& its = cell(address / 8);
  const int known = its.words == 0 ? -1 : its.word[address % 8];
  if (known >= 0) {
    const auto word = static_cast<size_t>(known);
    if (addresses_[word] != address || sizes_[word] != size)
      fail("atomic operations of different sizes overlap");
    use(word, call);
    return word;
  }
  if (words_ == kWords) fail("the program has too many atomic words");
  const size_t word = words_++;
  addresses_[word] = address;
  sizes_[word] = size;
  for (int b = 0; b < size; b++) {
    const uintptr_t at = address + static_cast<uintptr_t>(b);
    cell(at / 8).set_word(at % 8, static_cast<int>(word));
  }
  Message first;
  std::memcpy(&first.value, reinterpret_cast<const void*>(address), static_cast<size_t>(size));
  messages_[word].push_back(first);
  threads_of_[word] = 0;
  calls_of_[word].clear();
  use(word, call);
  return word;
}

void Machine::use(size_t word, uintptr_t call) {
  threads_of_[word] |= 1u << current_;
  std::vector<uintptr_t>& calls = calls_of_[word];
  if (std::find(calls.begin(), calls.end(), call) == calls.end()) calls.push_back(call);
}

bool Machine::add_shared(std::set<uintptr_t>* calls) const {
  bool added = false;
  for (size_t word = 0; word < words_; word++) {
    if ((threads_of_[word] & (threads_of_[word] - 1)) == 0) continue;
    for (const uintptr_t call : calls_of_[word]) added |= calls->insert(call).second;
  }
  return added;
}

void Machine::take(size_t word, size_t message, Order order) {
  Threaded& own = self();
  const Message& taken = messages_[word][message];
  own.now.view.at[word] = std::max(own.now.view.at[word], taken.place);
  learn(acquires(order) ? own.now : own.seen, taken.released);
}

// Returns the place of the oldest store that an operation may read, or follow.
uint32_t Machine::oldest(size_t word, Order order) {
  const uint32_t seen = self().now.view.at[word];
  return order == Order::kSeqCst ? std::max({seen, ordered_.at[word], fenced_.view.at[word]}) : seen;
}

void Machine::put(size_t word, size_t index, uint64_t value, Order order, bool update) {
  Threaded& own = self();
  std::vector<Message>& messages = messages_[word];
  Message message;
  message.value = value;
  message.updates = update;
  const uint32_t before = messages[index - 1].place;
  message.place =
      index == messages.size() ? before + (1u << 16) : before + (messages[index].place - before) / 2;
  if (message.place == before) fail("too many stores between two others");
  own.now.view.at[word] = message.place;
  message.released = releases(order) ? own.now : own.released;
  if (update) learn(message.released, messages[index - 1].released);
  message.released.view.at[word] = message.place;
  if (order == Order::kSeqCst) ordered_.at[word] = std::max(ordered_.at[word], message.place);
  messages.insert(messages.begin() + static_cast<ptrdiff_t>(index), message);
  const uint64_t newest = messages.back().value;
  std::memcpy(reinterpret_cast<void*>(addresses_[word]), &newest, static_cast<size_t>(sizes_[word]));
  own.now.clocks.at[current_]++;
  count_store();
}

uint64_t Machine::load(uintptr_t address, int size, Order order, uintptr_t call) {
  const size_t word = find(address, size, call);
  note(address, static_cast<size_t>(size), Access::kAtomicLoad, call);
  const std::vector<Message>& messages = messages_[word];
  const uint32_t limit = oldest(word, order);
  int older = 0;
  while (messages[messages.size() - 1 - static_cast<size_t>(older)].place > limit) older++;
  const size_t read = messages.size() - 1 - static_cast<size_t>(choose(older + 1));
  take(word, read, order);
  return messages[read].value;
}

// A store follows any other that its thread may still read, except one that an update has read.
void Machine::store(uintptr_t address, int size, uint64_t value, Order order, uintptr_t call) {
  const size_t word = find(address, size, call);
  note(address, static_cast<size_t>(size), Access::kAtomicStore, call);
  const std::vector<Message>& messages = messages_[word];
  const uint32_t limit = oldest(word, order);
  std::array<size_t, 64> places;
  size_t count = 0;
  for (size_t i = messages.size(); i > 0 && count < places.size(); i--) {
    if (i == messages.size() || !messages[i].updates) places[count++] = i;
    if (messages[i - 1].place <= limit) break;
  }
  put(word, places[static_cast<size_t>(choose(static_cast<int>(count)))], value, order, false);
}

size_t Machine::choose_updated(size_t word, Order order) {
  const std::vector<Message>& messages = messages_[word];
  const uint32_t limit = oldest(word, order);
  std::array<size_t, 64> places;
  size_t count = 0;
  for (size_t i = messages.size(); i > 0 && count < places.size(); i--) {
    if (i == messages.size() || !messages[i].updates) places[count++] = i - 1;
    if (messages[i - 1].place <= limit) break;
  }
  return places[static_cast<size_t>(choose(static_cast<int>(count)))];
}

void Machine::fence(Order order) {
  Threaded& own = self();
  if (acquires(order)) learn(own.now, own.seen);
  if (order == Order::kSeqCst) {
    for (size_t i = 0; i < words_; i++) own.now.view.at[i] = std::max(own.now.view.at[i], ordered_.at[i]);
    learn(own.now, {{}, fenced_.view});
    fenced_.view = own.now.view;
  }
  if (releases(order)) {
    own.released = own.now;
    own.now.clocks.at[current_]++;
  }
}

const std::vector<std::string>& numbered_lines(const std::string& path) {
  static std::map<std::string, std::vector<std::string>>* const known =
      new std::map<std::string, std::vector<std::string>>;
  const auto [found, fresh] = known->try_emplace(path);
  if (!fresh) return found->second;
  std::map<std::string, int> equal;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    text.erase(0, std::min(text.size(), text.find_first_not_of(' ')));
    const int number = ++equal[text];
    found->second.push_back(number == 1 ? text : text + " [" + std::to_string(number) + "]");
  }
  return found->second;
}

std::map<uintptr_t, SourceLine> source_lines(const std::vector<uintptr_t>& calls) {
  static std::map<uintptr_t, SourceLine>* const known = new std::map<uintptr_t, SourceLine>;
  std::string command = "addr2line -a -i -e /proc/" + std::to_string(getpid()) + "/exe";
  std::vector<uintptr_t> asked;
  for (const uintptr_t call : calls) {
    if (known->count(call) > 0) continue;
    (*known)[call] = {"?", 0, hex(call), false};
    asked.push_back(call);
    command += " " + hex(call - 1 - reinterpret_cast<uintptr_t>(&__executable_start));
  }
  if (!asked.empty()) {
    std::FILE* const lines = popen(command.c_str(), "r");
    char buffer[4096];
    size_t next = 0;
    bool found = false;
    while (lines != nullptr && std::fgets(buffer, sizeof buffer, lines) != nullptr) {
      std::string line = buffer;
      line.erase(line.find_last_not_of(" \n") + 1);
      if (line.rfind("0x", 0) == 0) {
        next++;
        found = false;
        continue;
      }
      const size_t colon = line.rfind(':');
      if (found || next == 0 || colon == std::string::npos || line[0] == '?') continue;
      SourceLine& source = (*known)[asked[next - 1]];
      source.counts_references |= line.find("/ext/atomicity.h:") != std::string::npos;
      if (line.find("/include/c++/") != std::string::npos) continue;
      found = true;
      source.line = std::atoi(line.c_str() + colon + 1);
      const std::string path = line.substr(0, colon);
      const std::vector<std::string>& texts = numbered_lines(path);
      const auto at_line = static_cast<size_t>(source.line);
      if (at_line > 0 && at_line <= texts.size()) source.text = texts[at_line - 1];
      source.file = path;
      for (const char* const root : {"/tests/memory_order/", "/lib/", "/backends/"}) {
        const size_t at = path.rfind(root);
        if (at != std::string::npos) source.file = path.substr(at + 1);
      }
    }
    if (lines != nullptr) pclose(lines);
  }
  std::map<uintptr_t, SourceLine> result;
  for (const uintptr_t call : calls) result[call] = known->at(call);
  return result;
}

}  // namespace weft::model
