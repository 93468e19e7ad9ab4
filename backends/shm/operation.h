// The shape of one collective: which ranks give and take data, and how a range of the result is computed from
// the peers' inputs. Values; used on the thread that holds the progress lock.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "device/device.h"
#include "group.h"
#include "transport/collectives.h"

namespace weft::shm {

struct Operation {
  enum class Take : uint8_t { kNothing, kFold, kEach, kRoot };

  // Derives all members from the call.
  static Operation of(const CollectiveArgs& args, uint64_t slot, int rank, int size);

  // Bytes of a rank's whole input.
  uint64_t input_bytes() const { return bytes * static_cast<uint64_t>(src_blocks); }
  bool is_root() const { return rank == args.peer; }
  // This rank's input and result, as given in the call.
  const std::byte* input() const { return args.src != nullptr ? args.src : args.dst; }
  // Returns the offset in bytes of the block that this rank needs in a peer's input.
  uint64_t wanted() const { return src_blocks == 1 ? 0 : static_cast<uint64_t>(rank) * bytes; }
  // True if this rank reads the peer's input.
  bool takes_from(int peer) const { return take == Take::kRoot ? peer == args.peer : take != Take::kNothing; }

  // Returns the peer whose input only this rank reads; -1 if there is none.
  int only_source() const { return size == 2 && takes_from(1 - rank) ? 1 - rank : -1; }

  CollectiveArgs args;
  uint64_t slot = 0;
  uint64_t bytes = 0;  // of one block of count elements
  uint32_t element = 1;
  int rank = 0;
  int size = 1;
  int src_blocks = 1;  // blocks of the input: 1, or one for each rank
  bool gives = false;  // peers read this rank's input
  Take take = Take::kNothing;
};

// Folds `inputs` (one for each rank, in rank order) into the outputs.
inline void fold(const Group& group, const Operation& op, const std::byte* const* inputs,
                 std::byte* const* outputs, int output_count, uint64_t bytes, bool streaming = false) {
  FoldArgs args;
  args.dtype = op.args.dtype;
  args.op = op.args.op;
  args.inputs = inputs;
  args.input_count = op.size;
  args.outputs = outputs;
  args.output_count = output_count;
  args.count = bytes / op.element;
  args.prescale = op.args.prescale;
  args.postscale = op.args.postscale;
  args.streaming = streaming;
  group.host().fold(args);
}

// Computes bytes [offset, offset + bytes) of this rank's result from the inputs of all ranks. A Source
// accesses the peer's range of the wanted block:
//   Status view(int peer, uint64_t bytes, const std::byte** at)   to read it in place
//   Status copy(int peer, uint64_t bytes, std::byte* to)
template <class Source>
Status take_range(const Group& group, const Operation& op, uint64_t offset, uint64_t bytes,
                  const std::byte** inputs, Source&& source) {
  if (bytes == 0) return {};
  const std::byte* const own = op.input() == nullptr ? nullptr : op.input() + op.wanted() + offset;
  std::byte* const dst = op.args.dst == nullptr ? nullptr : op.args.dst + offset;
  switch (op.take) {
    case Operation::Take::kFold: {
      for (int r = 0; r < op.size; r++) {
        inputs[r] = own;
        if (r != op.rank) WEFT_TRY(source.view(r, bytes, &inputs[r]));
      }
      fold(group, op, inputs, &dst, 1, bytes);
      return {};
    }
    case Operation::Take::kEach:
      if (dst == nullptr)
        return Status::error(Code::kInternal,
                             cat("internal: the operation has no buffer for the ", op.bytes,
                                 " bytes that each rank sends; report this as a bug of Weft"));
      for (int r = 0; r < op.size; r++) {
        std::byte* const to = dst + static_cast<uint64_t>(r) * op.bytes;
        if (r != op.rank) {
          WEFT_TRY(source.copy(r, bytes, to));
        } else if (to != own) {
          std::memcpy(to, own, bytes);
        }
      }
      return {};
    case Operation::Take::kRoot:
      if (!op.is_root()) return source.copy(op.args.peer, bytes, dst);
      if (op.args.dst != nullptr && dst != own) std::memcpy(dst, own, bytes);
      return {};
    case Operation::Take::kNothing:
      return {};
  }
  return {};
}

// The source for a communicator of one rank.
struct NoPeers {
  Status view(int, uint64_t, const std::byte**) { return {}; }
  Status copy(int, uint64_t, std::byte*) { return {}; }
};

}  // namespace weft::shm
