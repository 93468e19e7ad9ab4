// Implements the fake's operations, as they run once a stream has reached them.
#include <cstring>

#include "kernels/host_ops.h"
#include "state.h"
#include "support/fake_cuda/state.h"

namespace fake_nccl {
namespace {

// The host address of bytes, kept valid while this object lives.
struct Memory {
  std::byte* at = nullptr;
  std::shared_ptr<std::byte[]> keep;
};
Memory memory(const void* pointer, size_t size, const char* what) {
  Memory found;
  if (size == 0) return found;
  const std::lock_guard lock(fake::state().mutex);
  found.at = fake::reach(pointer, size, what);
  if (found.at != nullptr) found.keep = fake::find_block(pointer)->content;
  return found;
}

weft::Dtype dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return weft::Dtype::kI8;
    case ncclInt32:
      return weft::Dtype::kI32;
    case ncclUint32:
      return weft::Dtype::kU32;
    case ncclInt64:
      return weft::Dtype::kI64;
    case ncclUint64:
      return weft::Dtype::kU64;
    case ncclFloat16:
      return weft::Dtype::kF16;
    case ncclBfloat16:
      return weft::Dtype::kBf16;
    case ncclFloat32:
      return weft::Dtype::kF32;
    case ncclFloat64:
      return weft::Dtype::kF64;
    default:
      return weft::Dtype::kU8;
  }
}

weft::ReduceOp op_of(ncclRedOp_t op) {
  return op == ncclProd  ? weft::ReduceOp::kProd
         : op == ncclMin ? weft::ReduceOp::kMin
         : op == ncclMax ? weft::ReduceOp::kMax
                         : weft::ReduceOp::kSum;
}

// A collective that all ranks have reached.
class Collective {
 public:
  Collective(const std::map<int, Task*>& parts, int size)
      : parts_(parts),
        size_(size),
        first_(*parts.begin()->second),
        block_(first_.count * size_of(first_.type)) {}

  void run() {
    const auto n = static_cast<size_t>(size_);
    const bool all_in = first_.kind == Kind::kReduceScatter || first_.kind == Kind::kAllToAll;
    const bool all_out = first_.kind == Kind::kAllGather || first_.kind == Kind::kAllToAll;
    from_.reserve(n);
    to_.reserve(n);
    for (const auto& [rank, task] : parts_) {
      const bool root = rank == first_.peer;
      const bool gives = root || (first_.kind != Kind::kBroadcast && first_.kind != Kind::kScatter);
      const bool takes = root || (first_.kind != Kind::kReduce && first_.kind != Kind::kGather);
      const size_t in = all_in || (first_.kind == Kind::kScatter && root) ? n * block_ : block_;
      const size_t out = all_out || (first_.kind == Kind::kGather && root) ? n * block_ : block_;
      from_.push_back(gives ? memory(task->src, in, name(task->kind)) : Memory());
      to_.push_back(takes ? memory(task->dst, out, name(task->kind)) : Memory());
      if (block_ > 0 && ((gives && from_.back().at == nullptr) || (takes && to_.back().at == nullptr)))
        return;
    }
    if (block_ > 0) move();
  }

 private:
  std::byte* in(int rank, int block = 0) const {
    return from_[static_cast<size_t>(rank)].at + static_cast<size_t>(block) * block_;
  }
  std::byte* out(int rank, int block = 0) const {
    return to_[static_cast<size_t>(rank)].at + static_cast<size_t>(block) * block_;
  }
  void copy(std::byte* to, const std::byte* from) const {
    if (to != from) std::memcpy(to, from, block_);
  }
  // Folds in an order other than rank order: callers may not rely on NCCL's order.
  void fold(int block, const std::vector<std::byte*>& outputs) const {
    std::vector<const std::byte*> inputs;
    for (int i = 0; i < size_; i++) inputs.push_back(in((i + size_ / 2) % size_, block));
    weft::FoldArgs args;
    args.dtype = dtype_of(first_.type);
    args.op = op_of(first_.op);
    args.inputs = inputs.data();
    args.input_count = size_;
    args.outputs = outputs.data();
    args.output_count = static_cast<int>(outputs.size());
    args.count = first_.count;
    args.prescale = first_.factor;
    weft::host_ops().fold(args);
  }
  void move() const {
    std::vector<std::byte*> outputs;
    switch (first_.kind) {
      case Kind::kAllReduce:
        for (int r = 0; r < size_; r++) outputs.push_back(out(r));
        return fold(0, outputs);
      case Kind::kReduce:
        return fold(0, {out(first_.peer)});
      case Kind::kReduceScatter:
        for (int r = 0; r < size_; r++) fold(r, {out(r)});
        return;
      default:
        break;
    }
    for (int a = 0; a < size_; a++) {
      if (first_.kind == Kind::kBroadcast) copy(out(a), in(first_.peer));
      if (first_.kind == Kind::kGather) copy(out(first_.peer, a), in(a));
      if (first_.kind == Kind::kScatter) copy(out(a), in(first_.peer, a));
      for (int b = 0; b < size_ && first_.kind == Kind::kAllGather; b++) copy(out(b, a), in(a));
      for (int b = 0; b < size_ && first_.kind == Kind::kAllToAll; b++) copy(out(b, a), in(a, b));
    }
  }

  const std::map<int, Task*>& parts_;
  const int size_;
  const Task& first_;
  const size_t block_;
  std::vector<Memory> from_, to_;
};

bool same(const Task& a, const Task& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.peer == b.peer &&
         a.factor == b.factor && (a.op == b.op || (a.op >= ncclNumOps && b.op >= ncclNumOps));
}

void meet_collective(ncclComm& comm, Task& task) {
  Clique& clique = *comm.clique;
  std::map<int, Task*>& parts = clique.collectives[task.number];
  parts[comm.rank] = &task;
  if (static_cast<int>(parts.size()) < comm.size) return;
  for (const auto& [rank, part] : parts) {
    if (same(*part, task)) continue;
    problem("ranks call different collectives: " + std::string(name(part->kind)) + " and " + name(task.kind));
    return;  // the operation never completes
  }
  for (const auto& [rank, part] : parts) {
    if (part->src_at != task.src_at || part->dst_at != task.dst_at)
      problem(std::string(name(task.kind)) + " of memory that ranks have registered differently");
  }
  Collective(parts, comm.size).run();
  for (const auto& [rank, part] : parts) part->done = true;
  clique.collectives.erase(task.number);
}

void meet_message(ncclComm& comm, Task& task) {
  Clique& clique = *comm.clique;
  const bool sends = task.kind == Kind::kSend;
  const auto key =
      sends ? std::tuple(comm.rank, task.peer, task.number) : std::tuple(task.peer, comm.rank, task.number);
  auto& own = sends ? clique.messages : clique.receives;
  auto& others = sends ? clique.receives : clique.messages;
  const auto found = others.find(key);
  if (found == others.end()) {
    own[key] = &task;
    return;
  }
  Task& other = *found->second;
  others.erase(found);
  const Task& from = sends ? task : other;
  const Task& to = sends ? other : task;
  const size_t size = from.count * size_of(from.type);
  if (size != to.count * size_of(to.type)) {
    problem("a message is received that has another size");
    return;
  }
  const Memory src = memory(from.src, size, "ncclSend"), dst = memory(to.dst, size, "ncclRecv");
  if (src.at != nullptr && dst.at != nullptr && src.at != dst.at) std::memcpy(dst.at, src.at, size);
  task.done = other.done = true;
}

void withdraw(ncclComm& comm, std::vector<Task>& tasks) {
  Clique& clique = *comm.clique;
  const auto is_own = [&](const auto& entry) {
    return entry.second >= tasks.data() && entry.second < tasks.data() + tasks.size();
  };
  for (auto& [number, parts] : clique.collectives) std::erase_if(parts, is_own);
  std::erase_if(clique.messages, is_own);
  std::erase_if(clique.receives, is_own);
}

// Runs on the stream's thread, without any lock.
void work(const std::shared_ptr<ncclComm>& comm, std::vector<Task>& tasks) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  for (Task& task : tasks) {
    if (comm->aborted) break;
    if (task.kind == Kind::kSend || task.kind == Kind::kRecv) {
      meet_message(*comm, task);
    } else {
      meet_collective(*comm, task);
    }
  }
  s.changed.notify_all();
  s.changed.wait(lock, [&] {
    if (comm->aborted) return true;
    for (const Task& task : tasks) {
      if (!task.done) return false;
    }
    return true;
  });
  withdraw(*comm, tasks);
  comm->pending--;
  s.changed.notify_all();
}

}  // namespace

namespace {

// Counts a communicator's tasks in a graph while the graph exists.
class Reference {
 public:
  explicit Reference(std::shared_ptr<ncclComm> comm) : comm_(std::move(comm)) { comm_->graphs++; }
  ~Reference() { comm_->graphs--; }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  const std::shared_ptr<ncclComm>& comm() const { return comm_; }

 private:
  const std::shared_ptr<ncclComm> comm_;
};

// Runs one launch of a graph. Each launch is a separate collective. Launches are numbered apart from
// operations outside of graphs: programs may not rely on one matching the other.
void replay(const std::shared_ptr<ncclComm>& comm, std::vector<Task> tasks) {
  constexpr uint64_t kInGraphs = uint64_t{1} << 63;
  {
    const std::lock_guard lock(state().mutex);
    if (comm->aborted) return;
    if (comm->pending > 0) problem("a graph is launched while the communicator is at work");
    comm->pending++;
    for (Task& task : tasks) {
      if (task.kind == Kind::kSend || task.kind == Kind::kRecv)
        problem("messages in graphs, which the fake does not have");
      task.number = kInGraphs | comm->replayed++;
    }
  }
  work(comm, tasks);
}

}  // namespace

bool enqueue(const std::shared_ptr<ncclComm>& comm, std::vector<Task> tasks) {
  const std::lock_guard lock(fake::state().mutex);
  const auto stream = fake::find_stream(tasks.front().stream, "a call of NCCL");
  if (stream == nullptr) return false;
  if (stream->capture) {
    const auto reference = std::make_shared<Reference>(comm);
    fake::enqueue(stream, {{}, [reference, tasks] { replay(reference->comm(), tasks); }});
    return true;
  }
  comm->pending++;
  const auto shared = std::make_shared<std::vector<Task>>(std::move(tasks));
  fake::enqueue(stream, {{}, [comm, shared] { work(comm, *shared); }});
  return true;
}

}  // namespace fake_nccl
