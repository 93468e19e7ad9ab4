#include "native.h"

#include <utility>

#include "base/text.h"

namespace weft::mpi {
namespace {

MPI_Datatype type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return MPI_UINT8_T;
    case Dtype::kI8:
      return MPI_INT8_T;
    case Dtype::kU16:
      return MPI_UINT16_T;
    case Dtype::kI16:
      return MPI_INT16_T;
    case Dtype::kU32:
      return MPI_UINT32_T;
    case Dtype::kI32:
      return MPI_INT32_T;
    case Dtype::kU64:
      return MPI_UINT64_T;
    case Dtype::kI64:
      return MPI_INT64_T;
    case Dtype::kF32:
      return MPI_FLOAT;
    case Dtype::kF64:
      return MPI_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;  // MPI does not add 16-bit floats
  }
}

MPI_Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return MPI_SUM;  // scales are applied outside MPI
    case ReduceOp::kBand:
      return MPI_BAND;
    case ReduceOp::kBor:
      return MPI_BOR;
    case ReduceOp::kBxor:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

// True for operations with equal results in every library. Open MPI 4.1 adds u8 and u16 with saturation where
// the CPU has AVX (its component op/avx). MPICH 4.0 compares u64 as if it were signed. No library specifies
// NaN in a minimum.
bool is_plain(Dtype dtype, MPI_Op op) {
  if (op == MPI_SUM) return dtype_size(dtype) >= 4;
  return op == MPI_BAND || op == MPI_BOR || op == MPI_BXOR;
}

}  // namespace

int Natives::make(MPI_Comm comm, std::vector<MPI_Comm>* made) {
  made->assign(kLanes, MPI_COMM_NULL);
  for (MPI_Comm& one : *made) {
    int error = MPI_Comm_dup(comm, &one);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(one, MPI_ERRORS_RETURN);
    if (error != MPI_SUCCESS) return error;
  }
  return MPI_SUCCESS;
}

Natives::Natives(const std::vector<MPI_Comm>& made, std::recursive_mutex& mutex,
                 std::function<bool()> may_call)
    : mutex_(mutex), may_call_(std::move(may_call)) {
  for (MPI_Comm comm : made) {
    Line& line = lines_.emplace_back();
    line.comm = comm;
    line.parts.fill(MPI_REQUEST_NULL);
  }
}

bool Natives::executes(const CollectiveArgs& args) const {
  switch (args.coll) {
    case Coll::kAllReduce:
    case Coll::kReduce:
    case Coll::kReduceScatter:
      return type_of(args.dtype) != MPI_DATATYPE_NULL && is_plain(args.dtype, op_of(args.op));
    case Coll::kBroadcast:
    case Coll::kAllGather:
    case Coll::kGather:
    case Coll::kScatter:
    case Coll::kAllToAll:
      return true;
    default:
      return false;
  }
}

// Counts are a chunk's, so they fit into an int.
int Natives::call(const Line& line, const CollectiveArgs& part, MPI_Request* request) {
  const auto bytes = static_cast<int>(part.count * dtype_size(part.dtype));
  const auto count = static_cast<int>(part.count);
  const MPI_Datatype type = type_of(part.dtype);
  const MPI_Op op = op_of(part.op);
  int rank = 0;
  MPI_Comm_rank(line.comm, &rank);
  const bool root = rank == part.peer;
  switch (part.coll) {
    case Coll::kAllReduce:
      return MPI_Iallreduce(MPI_IN_PLACE, part.dst, count, type, op, line.comm, request);
    case Coll::kReduce:
      return MPI_Ireduce(root ? MPI_IN_PLACE : part.src, root ? part.dst : nullptr, count, type, op,
                         part.peer, line.comm, request);
    case Coll::kReduceScatter:
      return MPI_Ireduce_scatter_block(part.src, part.dst, count, type, op, line.comm, request);
    case Coll::kBroadcast:
      return MPI_Ibcast(part.dst, bytes, MPI_BYTE, part.peer, line.comm, request);
    case Coll::kAllGather:
      return MPI_Iallgather(part.src, bytes, MPI_BYTE, part.dst, bytes, MPI_BYTE, line.comm, request);
    case Coll::kGather:
      return MPI_Igather(part.src, bytes, MPI_BYTE, root ? part.dst : nullptr, bytes, MPI_BYTE, part.peer,
                         line.comm, request);
    case Coll::kScatter:
      return MPI_Iscatter(root ? part.src : nullptr, bytes, MPI_BYTE, part.dst, bytes, MPI_BYTE, part.peer,
                          line.comm, request);
    default:
      return MPI_Ialltoall(part.src, bytes, MPI_BYTE, part.dst, bytes, MPI_BYTE, line.comm, request);
  }
}

Status Natives::finalised() {
  return Status::error(Code::kState, "MPI was finalised while the communicator was in use");
}

Status Natives::start(uint32_t lane, size_t place, const CollectiveArgs& part) {
  const std::lock_guard lock(mutex_);
  if (!may_call_()) return finalised();
  Line& line = lines_[lane];
  const int error = call(line, part, &line.parts[place]);
  return error == MPI_SUCCESS ? Status() : failed(cat("the MPI library's ", weft::name(part.coll)), error);
}

Status Natives::test(uint32_t lane, size_t place, bool* done) {
  const std::lock_guard lock(mutex_);
  if (!may_call_()) return finalised();
  int complete = 0;
  const int error = MPI_Test(&lines_[lane].parts[place], &complete, MPI_STATUS_IGNORE);
  *done = complete != 0;
  return error == MPI_SUCCESS ? Status() : failed("the MPI library's collective", error);
}

// Begins a barrier after an operation. An operation is complete for a rank when MPI has its data, but the
// data may still be in a queue that only further MPI calls empty. The rank makes such calls until all ranks
// have reached this barrier.
void Natives::end(uint32_t lane) {
  ended_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (!may_call_()) return;
  Line& line = lines_[lane];
  line.ends.push_back(MPI_REQUEST_NULL);
  if (MPI_Ibarrier(line.comm, &line.ends.back()) != MPI_SUCCESS) line.ends.pop_back();
}

bool Natives::settled() {
  bool all = true;
  for (Line& line : lines_) {
    if (line.ends.empty()) continue;
    int complete = 0;
    const int error =
        MPI_Testall(static_cast<int>(line.ends.size()), line.ends.data(), &complete, MPI_STATUSES_IGNORE);
    if (complete != 0 || error != MPI_SUCCESS) line.ends.clear();
    all = all && line.ends.empty();
  }
  return all;
}

void Natives::free() {
  for (Line& line : lines_) {
    bool idle = line.ends.empty();
    for (MPI_Request& part : line.parts) {
      int complete = 0;
      idle = MPI_Test(&part, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0 && idle;
    }
    if (idle && line.comm != MPI_COMM_NULL) MPI_Comm_free(&line.comm);
  }
}

}  // namespace weft::mpi
