"""Declares the structs, function types and prototypes of weft.h for ctypes, under the same names.

Handles are c_void_p. tests/python/test_abi.py compares this module with the header and with
tests/abi/layout-lp64.txt.
"""
from __future__ import annotations

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8,
                    c_uint32, c_uint64, c_void_p, sizeof)
from typing import Any

from .constants import ERROR_RANKS, ERROR_TEXT, NO_SLOT, NO_STEP

P = POINTER
status = c_int32

log_fn = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
interrupt_fn = CFUNCTYPE(c_int32, c_void_p)
thread_start_fn = CFUNCTYPE(None, c_void_p, c_char_p)
alloc_fn = CFUNCTYPE(c_void_p, c_void_p, c_uint64, c_uint64, c_int32)
free_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_uint64, c_int32)
all_gather_fn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64, c_void_p)
complete_fn = CFUNCTYPE(None, c_void_p, status)
reduce_fn = CFUNCTYPE(status, c_void_p, c_void_p, c_void_p, c_uint64, c_int32)
bucket_fn = CFUNCTYPE(None, c_void_p, c_uint64, c_uint32, status)


class Sized(Structure):
    """A struct whose first field is its size. Fields that are not given are zero, which selects their default."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.struct_size = sizeof(self)


class Error(Sized):
    _fields_ = [("struct_size", c_size_t), ("code", c_int32), ("evidence", c_int32), ("slot", c_uint64),
                ("step", c_uint64), ("failed_count", c_uint64), ("failed_ranks", c_int32 * ERROR_RANKS),
                ("text", c_char * ERROR_TEXT)]

    def __init__(self) -> None:
        super().__init__(slot=NO_SLOT, step=NO_STEP)


class Stream(Sized):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("device", c_int32), ("handle", c_void_p)]


class ContextOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("version", c_uint32), ("progress", c_int32), ("log_level", c_int32),
                ("log", log_fn), ("log_user_data", c_void_p),
                ("thread_start", thread_start_fn), ("thread_start_user_data", c_void_p),
                ("host_alloc", alloc_fn), ("host_free", free_fn), ("host_alloc_user_data", c_void_p),
                ("device_alloc", alloc_fn), ("device_free", free_fn), ("device_alloc_user_data", c_void_p),
                ("module_path", c_char_p), ("flight_path", c_char_p), ("cuda_runtime", c_char_p),
                ("nccl_library", c_char_p), ("interrupt", interrupt_fn), ("interrupt_user_data", c_void_p),
                ("flags", c_uint64)]


class BackendInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 32), ("available", c_uint8), ("is_module", c_uint8),
                ("reserved", c_uint8 * 6), ("reason", c_char * 512)]


class DeviceInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("device_count", c_int32), ("available", c_uint8), ("reserved", c_uint8 * 3),
                ("reason", c_char * 512)]


class CommOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("bootstrap", c_int32), ("rank", c_int32), ("size", c_int32),
                ("reserved", c_uint32), ("store", c_char_p), ("secret", c_void_p), ("secret_bytes", c_uint64),
                ("all_gather", all_gather_fn), ("all_gather_user_data", c_void_p), ("backend", c_char_p),
                ("init_timeout_ms", c_int64), ("op_timeout_ms", c_int64), ("arena_limit_bytes", c_uint64),
                ("flags", c_uint64), ("heartbeat_timeout_ms", c_int64), ("device", c_int32), ("reserved2", c_uint32),
                ("unique_id", c_void_p)]


class LaunchInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int32), ("size", c_int32), ("local_rank", c_int32),
                ("local_size", c_int32), ("host_index", c_int32), ("host_count", c_int32), ("launcher", c_char * 32)]


class CommInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int32), ("size", c_int32), ("local_size", c_int32),
                ("failed", c_uint8), ("authenticated", c_uint8), ("reserved", c_uint8 * 2), ("backend", c_char * 32),
                ("algorithm", c_char * 32), ("operations", c_uint64), ("bytes_shared", c_uint64),
                ("bytes_direct", c_uint64), ("bytes_sent", c_uint64), ("bytes_received", c_uint64),
                ("arena_bytes", c_uint64), ("transports", c_char * 128), ("local_rank", c_int32),
                ("host_index", c_int32), ("host_count", c_int32), ("reserved2", c_uint32)]


class ShrinkOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout_ms", c_int64), ("flags", c_uint64)]


class Reduction(Sized):
    _fields_ = [("struct_size", c_size_t), ("combine", reduce_fn), ("user_data", c_void_p), ("unit", c_uint64)]


class CollOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout_ms", c_int64), ("stream", P(Stream)), ("factor", c_double),
                ("flags", c_uint64), ("reduction", P(Reduction))]


class Message(Sized):
    _fields_ = [("struct_size", c_size_t), ("source", c_int32), ("reserved", c_uint32), ("tag", c_uint64),
                ("count", c_uint64)]


class BucketParam(Sized):
    _fields_ = [("struct_size", c_size_t), ("index", c_uint64), ("name", c_char_p), ("dtype", c_int32),
                ("ndim", c_int32), ("shape", P(c_int64)), ("strides", P(c_int64)), ("offset", c_uint64),
                ("count", c_uint64), ("parameter", c_void_p)]


class BucketEntries(Sized):
    _fields_ = [("struct_size", c_size_t), ("row_count", c_uint64), ("row_elements", c_uint64), ("count", c_uint64),
                ("rows", P(c_int64)), ("values", c_void_p)]


class Bucket(Sized):
    _fields_ = [("struct_size", c_size_t), ("index", c_uint32), ("bucket_count", c_uint32), ("is_last", c_uint8),
                ("reserved", c_uint8 * 3), ("dtype", c_int32), ("count", c_uint64), ("step", c_uint64),
                ("divisor", c_double), ("rank", c_int32), ("size", c_int32), ("buffer", c_void_p),
                ("scratch", c_void_p), ("scratch_bytes", c_uint64), ("param_count", c_uint64),
                ("param_size", c_uint64), ("params", P(BucketParam)), ("entries", P(BucketEntries)), ("shares", P(c_uint64))]


class HookCollective(Structure):
    _fields_ = [("coll", c_int32), ("dtype", c_int32), ("op", c_int32), ("root", c_int32), ("count", c_uint64),
                ("src_space", c_int32), ("dst_space", c_int32), ("src_offset_bytes", c_uint64),
                ("dst_offset_bytes", c_uint64), ("flags", c_uint64), ("reserved", c_uint64 * 4)]


class HookPlan(Sized):
    _fields_ = [("struct_size", c_size_t), ("scratch_bytes", c_uint64), ("result_space", c_int32),
                ("collective_count", c_uint32), ("result_offset_bytes", c_uint64), ("collectives", HookCollective * 8)]


class StageToken(Structure):
    _fields_ = [("bucket", c_uint64), ("stage", c_uint64), ("generation", c_uint64)]


class Stage(Sized):
    _fields_ = [("struct_size", c_size_t), ("index", c_uint32), ("pending", c_uint8), ("reserved", c_uint8 * 3),
                ("dynamic_count", c_uint64), ("token", StageToken), ("counts", P(c_uint64)),
                ("moved_count", c_uint64)]


class HookTable(Sized):
    # The last parameter of each callback is char message[256], which the callback writes. c_char_p would pass a copy.
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p),
                ("plan", CFUNCTYPE(status, c_void_p, P(Bucket), P(HookPlan), c_void_p)),
                ("stage", CFUNCTYPE(status, c_void_p, P(Bucket), P(Stage), c_void_p)),
                ("replan", CFUNCTYPE(status, c_void_p, c_uint64, c_void_p)),
                ("join", CFUNCTYPE(status, c_void_p, P(Bucket), c_void_p)),
                ("rebind", CFUNCTYPE(status, c_void_p, c_int32, c_int32, c_void_p)),
                ("save", CFUNCTYPE(status, c_void_p, c_void_p, P(c_uint64), c_void_p)),
                ("load", CFUNCTYPE(status, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("free_user_data", CFUNCTYPE(None, c_void_p)), ("flags", c_uint64)]


class HookParams(Sized):
    _fields_ = [("struct_size", c_size_t), ("options", c_char_p), ("inner", c_void_p), ("error", P(Error)),
                ("comm", c_void_p), ("saved", c_void_p), ("saved_size", c_uint64)]


class Param(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_int32), ("ndim", c_int32),
                ("shape", P(c_int64)), ("strides", P(c_int64)), ("device_kind", c_int32), ("device", c_int32),
                ("flags", c_uint64), ("gradient", c_void_p), ("parameter", c_void_p),
                ("uses", c_uint32), ("sparse_ndim", c_uint32)]


class Plan(Sized):
    _fields_ = [("struct_size", c_size_t), ("bucket_count", c_uint64), ("sizes", P(c_uint64)), ("params", P(c_uint64))]


class ReducerOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("params", P(Param)), ("param_count", c_uint64), ("param_size", c_uint64),
                ("mode", c_int32), ("bucket_limit_count", c_uint32), ("bucket_limits", P(c_uint64)),
                ("hook", c_void_p), ("on_bucket", bucket_fn), ("on_bucket_user_data", c_void_p),
                ("timeout_ms", c_int64), ("flags", c_uint64), ("divide_by", c_int32), ("accumulation", c_int32),
                ("plan", P(Plan)), ("reduce_dtype", c_int32), ("buffers_root", c_int32), ("check_interval", c_uint32),
                ("replan", c_int32)]


class BeginOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint64), ("micro_batches", c_uint32), ("reserved", c_uint32),
                ("weight", c_double), ("gradients", P(c_void_p))]


class FinishOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint64), ("stream", P(Stream)), ("clip_norm", c_double),
                ("stream_count", c_uint64)]


class Tensor(Sized):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("ndim", c_int32),
                ("shape", P(c_int64)), ("strides", P(c_int64)), ("device_kind", c_int32), ("device", c_int32)]


class Sparse(Sized):
    _fields_ = [("struct_size", c_size_t), ("count", c_uint64), ("indices", P(c_int64)), ("values", c_void_p)]


class Norms(Sized):
    _fields_ = [("struct_size", c_size_t), ("total", c_double), ("clip_factor", c_double),
                ("nonfinite_params", c_uint64), ("skipped", c_uint8), ("reserved", c_uint8 * 7)]


class Slice(Structure):
    _fields_ = [("param", c_uint64), ("offset", c_uint64), ("count", c_uint64)]


class GatherOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint64), ("timeout_ms", c_int64)]


class BroadcastOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint64), ("root", c_int32), ("in_flight", c_uint32),
                ("chunk_bytes", c_uint64), ("timeout_ms", c_int64)]


class JoinOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("timeout_ms", c_int64), ("finish_flags", c_uint64)]


class JoinResult(Sized):
    _fields_ = [("struct_size", c_size_t), ("steps", c_uint64), ("last_active", c_int32), ("reserved", c_uint32)]


class ReplanOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("plan", P(Plan)), ("bucket_limits", P(c_uint64)),
                ("bucket_limit_count", c_uint32), ("planner", c_int32)]


class ParamInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("bucket", c_uint32), ("absent", c_uint8), ("absent_everywhere", c_uint8),
                ("reserved", c_uint8 * 2), ("offset", c_uint64), ("count", c_uint64)]


class BucketInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("index", c_uint32), ("dtype", c_int32), ("param_count", c_uint64),
                ("count", c_uint64), ("bytes", c_uint64), ("limit_bytes", c_uint64), ("ready_ns", c_uint64),
                ("launch_ns", c_uint64), ("done_ns", c_uint64), ("transfer_ns", c_uint64), ("sent_bytes", c_uint64)]


class ReducerStats(Sized):
    _fields_ = [("struct_size", c_size_t), ("steps", c_uint64), ("local_steps", c_uint64), ("failed_steps", c_uint64),
                ("bytes_reduced", c_uint64), ("bucket_bytes", c_uint64), ("scratch_bytes", c_uint64),
                ("other_bytes", c_uint64), ("step_ns", c_uint64), ("exposed_ns", c_uint64),
                ("communication_ns", c_uint64), ("retained_bytes", c_uint64), ("active_ranks", c_uint32),
                ("first_active", c_int32), ("last_active", c_int32), ("skipped_buckets", c_uint32),
                ("divisor", c_double), ("absent_params", c_uint64), ("absent_everywhere", c_uint64),
                ("hook_bytes", c_uint64), ("sent_bytes", c_uint64), ("plain_bytes", c_uint64),
                ("plan_generation", c_uint64), ("param_bytes", c_uint64), ("absent_bytes", c_uint64),
                ("compute_ns", c_uint64), ("overlap_ns", c_uint64), ("mean_step_ns", c_uint64),
                ("mean_compute_ns", c_uint64), ("mean_communication_ns", c_uint64), ("mean_overlap_ns", c_uint64),
                ("mean_exposed_ns", c_uint64), ("step_p50_ns", c_uint64), ("step_p99_ns", c_uint64),
                ("exposed_p50_ns", c_uint64), ("exposed_p99_ns", c_uint64), ("straggler_ns", c_uint64),
                ("straggler", c_int32), ("reserved", c_uint32), ("captures", c_uint64), ("launches", c_uint64),
                ("replays", c_uint64), ("copied_gradients", c_uint64), ("hook_error", c_double),
                ("hook_error_bucket", c_uint32), ("reserved2", c_uint32)]


class Verdict(Sized):
    _fields_ = [("struct_size", c_size_t), ("last_finished_step", c_uint64), ("last_committed_step", c_uint64),
                ("next_step", c_uint64), ("can_retry", c_uint8), ("rolled_back", c_uint8), ("reserved", c_uint8 * 6)]


class AverageLevel(Sized):
    _fields_ = [("struct_size", c_size_t), ("period", c_uint64), ("comm", c_void_p)]


class AveragerOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("params", P(Param)), ("param_count", c_uint64), ("param_size", c_uint64),
                ("levels", P(AverageLevel)), ("level_count", c_uint64), ("level_size", c_uint64), ("warmup", c_uint64),
                ("first_step", c_uint64), ("chunk_bytes", c_uint64), ("timeout_ms", c_int64)]


_handle = P(c_void_p)
_counted = (c_void_p, c_void_p, c_void_p, c_uint64, c_int32)  # comm, src, dst, count, dtype
_blocks = (c_void_p, c_void_p, c_void_p, P(c_uint64), P(c_uint64), c_int32)  # comm, src, dst, counts, offsets, dtype
_how = (P(CollOptions), _handle)

# Maps each function's name to its result type, followed by its parameter types.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "weft_version": (c_uint32,),
    "weft_status_string": (c_char_p, status),
    "weft_context_create": (status, P(ContextOptions), _handle, P(Error)),
    "weft_context_destroy": (status, _handle),
    "weft_backend_count": (status, c_void_p, P(c_uint64)),
    "weft_backend_query": (status, c_void_p, c_uint64, P(BackendInfo)),
    "weft_device_query": (status, c_void_p, c_int32, P(DeviceInfo)),
    "weft_capability": (status, c_void_p, c_char_p, c_int32, c_int32, c_int32, c_int32, P(c_uint8)),
    "weft_metrics_text": (status, c_void_p, c_char_p, P(c_uint64)),
    "weft_launch_query": (status, P(LaunchInfo), P(Error)),
    "weft_unique_id_create": (status, c_void_p, c_void_p, P(Error)),
    "weft_comm_create": (status, c_void_p, P(CommOptions), _handle, P(Error)),
    "weft_comm_destroy": (status, _handle),
    "weft_comm_rank": (status, c_void_p, P(c_int32)),
    "weft_comm_size": (status, c_void_p, P(c_int32)),
    "weft_comm_query": (status, c_void_p, P(CommInfo)),
    "weft_comm_split": (status, c_void_p, c_int32, c_int32, _handle, P(Error)),
    "weft_comm_shrink": (status, c_void_p, P(ShrinkOptions), _handle, P(Error)),
    "weft_comm_abort": (status, c_void_p, c_char_p),
    "weft_last_error": (status, P(Error)),
    "weft_comm_error": (status, c_void_p, P(Error)),
    "weft_comm_alloc": (status, c_void_p, c_uint64, _handle),
    "weft_comm_free": (status, c_void_p, c_void_p),
    "weft_all_reduce": (status, *_counted, c_int32, *_how),
    "weft_reduce": (status, *_counted, c_int32, c_int32, *_how),
    "weft_broadcast": (status, c_void_p, c_void_p, c_uint64, c_int32, c_int32, *_how),
    "weft_all_gather": (status, *_counted, *_how),
    "weft_reduce_scatter": (status, *_counted, c_int32, *_how),
    "weft_gather": (status, *_counted, c_int32, *_how),
    "weft_scatter": (status, *_counted, c_int32, *_how),
    "weft_all_to_all": (status, *_counted, *_how),
    "weft_barrier": (status, c_void_p, *_how),
    "weft_send": (status, c_void_p, c_void_p, c_uint64, c_int32, c_int32, *_how),
    "weft_recv": (status, c_void_p, c_void_p, c_uint64, c_int32, c_int32, *_how),
    "weft_all_gather_v": (status, *_blocks, *_how),
    "weft_reduce_scatter_v": (status, *_blocks, c_int32, *_how),
    "weft_gather_v": (status, *_blocks, c_int32, *_how),
    "weft_scatter_v": (status, *_blocks, c_int32, *_how),
    "weft_all_to_all_v": (status, c_void_p, c_void_p, P(c_uint64), P(c_uint64), c_void_p, P(c_uint64), P(c_uint64),
                          c_int32, *_how),
    "weft_sparse_all_reduce": (status, c_void_p, P(Sparse), P(c_int64), c_int32, c_int32, c_int32, c_int32,
                               P(CollOptions), P(Sparse), _handle),
    "weft_sparse_release": (status, P(Sparse)),
    "weft_group_begin": (status, c_void_p),
    "weft_group_end": (status, c_void_p, _handle),
    "weft_send_tagged": (status, c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_uint64, *_how),
    "weft_recv_tagged": (status, c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_uint64, P(Message), *_how),
    "weft_request_cancel": (status, c_void_p),
    "weft_request_wait": (status, c_void_p, c_int64),
    "weft_request_test": (status, c_void_p, P(c_uint8)),
    "weft_request_on_complete": (status, c_void_p, complete_fn, c_void_p),
    "weft_request_error": (status, c_void_p, P(Error)),
    "weft_request_release": (status, _handle),
    "weft_hook_create": (status, c_void_p, c_char_p, c_void_p, _handle),
    "weft_hook_create_custom": (status, c_void_p, P(HookTable), c_void_p, _handle),
    "weft_hook_stage_complete": (status, c_void_p, P(StageToken), status, c_char_p),
    "weft_hook_save": (status, c_void_p, c_void_p, P(c_uint64), P(Error)),
    "weft_hook_load": (status, c_void_p, c_void_p, c_uint64, P(Error)),
    "weft_hook_create_saved": (status, c_void_p, c_void_p, c_uint64, _handle, P(Error)),
    "weft_hook_destroy": (status, _handle),
    "weft_reducer_create": (status, c_void_p, P(ReducerOptions), _handle, P(Error)),
    "weft_reducer_destroy": (status, _handle),
    "weft_reducer_grad_view": (status, c_void_p, c_uint64, _handle),
    "weft_reducer_begin": (status, c_void_p, P(BeginOptions)),
    "weft_reducer_ready": (status, c_void_p, c_uint64, c_void_p, P(Stream)),
    "weft_reducer_absent": (status, c_void_p, P(c_uint64), c_uint64),
    "weft_reducer_finish": (status, c_void_p, P(FinishOptions)),
    "weft_reducer_fail": (status, c_void_p, c_char_p),
    "weft_reducer_wait_param": (status, c_void_p, c_uint64, c_int64),
    "weft_reducer_stream_wait_param": (status, c_void_p, c_uint64, P(Stream)),
    "weft_reducer_result": (status, c_void_p, c_uint64, c_void_p),
    "weft_reducer_ready_tensor": (status, c_void_p, c_uint64, P(Tensor), P(Stream)),
    "weft_reducer_ready_sparse": (status, c_void_p, c_uint64, P(Sparse), P(Stream)),
    "weft_reducer_sparse_result": (status, c_void_p, c_uint64, P(Sparse)),
    "weft_reducer_norms": (status, c_void_p, P(Norms), P(c_double)),
    "weft_reducer_owned": (status, c_void_p, c_int32, P(Slice), P(c_uint64)),
    "weft_reducer_gather_params": (status, c_void_p, P(GatherOptions)),
    "weft_reducer_broadcast": (status, c_void_p, P(BroadcastOptions), P(Error)),
    "weft_reducer_check": (status, c_void_p, P(Error)),
    "weft_reducer_report": (status, c_void_p, c_char_p, P(c_uint64)),
    "weft_reducer_join": (status, c_void_p, P(JoinOptions), P(JoinResult)),
    "weft_reducer_replan": (status, c_void_p, P(ReplanOptions), P(Error)),
    "weft_reducer_param": (status, c_void_p, c_uint64, P(ParamInfo)),
    "weft_reducer_error": (status, c_void_p, P(Error)),
    "weft_reducer_bucket_count": (status, c_void_p, P(c_uint32)),
    "weft_reducer_bucket": (status, c_void_p, c_uint32, P(BucketInfo), P(c_uint64), c_uint64),
    "weft_reducer_query": (status, c_void_p, P(ReducerStats)),
    "weft_reducer_verdict": (status, c_void_p, P(Verdict)),
    "weft_reducer_rebind": (status, c_void_p, c_void_p, P(Error)),
    "weft_reducer_retry": (status, c_void_p, P(FinishOptions)),
    "weft_averager_create": (status, c_void_p, P(AveragerOptions), _handle, P(Error)),
    "weft_averager_step": (status, c_void_p, P(c_uint64), P(Error)),
    "weft_averager_destroy": (status, _handle),
    "weft_trace_start": (status, c_void_p, c_uint64),
    "weft_trace_stop": (status, c_void_p),
    "weft_trace_write": (status, c_void_p, c_char_p),
    "weft_flight_write": (status, c_void_p, c_char_p),
}
