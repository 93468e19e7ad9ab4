"""The constants of weft.h as enumerations. tests/python/test_abi.py compares each of them with the header."""
from __future__ import annotations

import enum
from typing import Type, TypeVar, Union

Enumeration = TypeVar("Enumeration", bound=enum.Enum)


def choice(kind: Type[Enumeration], value: Union[Enumeration, str], name: str) -> Enumeration:
    """Convert a member's name, in any case, to the member; return other values as they are.

    name is the argument's name for the ValueError of an unknown value, which lists the choices.
    """
    if not isinstance(value, str):
        return value
    if value.upper() not in kind.__members__:
        raise ValueError(f"{name} is {value!r}, expected one of: {', '.join(kind.__members__).lower()}")
    return kind[value.upper()]


class Status(enum.IntEnum):
    """Status codes of calls. OK is the only success."""

    OK = 0
    ERR_ARG = 1
    ERR_STATE = 2
    ERR_NOMEM = 3
    ERR_UNSUPPORTED = 4
    ERR_UNAVAILABLE = 5
    ERR_TIMEOUT = 6
    ERR_NOT_DONE = 7
    ERR_MISMATCH = 8
    ERR_PEER_FAILED = 9
    ERR_ABORTED = 10
    ERR_CANCELLED = 11
    ERR_AUTH = 12
    ERR_VERSION = 13
    ERR_SYSTEM = 14
    ERR_FORKED = 15
    ERR_HOOK = 16
    ERR_MINORITY = 17
    ERR_INTERNAL = 18
    ERR_INTERRUPTED = 19
    ERR_STEP_FAILED = 20


class Evidence(enum.IntEnum):
    """The observation from which a failure was concluded."""

    NONE = 0
    LOCAL = 1
    CONNECTION = 2
    PROCESS = 3
    HEARTBEAT = 4
    DEADLINE = 5
    DESCRIPTOR = 6
    REPORT = 7


class DType(enum.IntEnum):
    """Element types."""

    U8 = 1
    I8 = 2
    U16 = 3
    I16 = 4
    U32 = 5
    I32 = 6
    U64 = 7
    I64 = 8
    F16 = 9
    BF16 = 10
    F32 = 11
    F64 = 12
    C64 = 13  # complex numbers
    C128 = 14
    F8_E4M3 = 15  # floats of one byte: they are sent and copied, but reductions refuse them
    F8_E5M2 = 16
    BOOL = 17

    @property
    def size(self) -> int:
        """Size of an element in bytes."""
        special = {DType.BF16: 2, DType.BOOL: 1}
        return special[self] if self in special else int(self.name.split("_")[0][1:]) // 8


class Op(enum.IntEnum):
    """Reduction operations. MEAN and AVERAGE are other names of AVG; PREMUL_SUM multiplies by a factor first; USER is
    used for a Reduction."""

    SUM = 1
    AVG = 2
    MEAN = 2
    AVERAGE = 2
    PROD = 3
    MIN = 4
    MAX = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    PREMUL_SUM = 9
    USER = 10


class Coll(enum.IntEnum):
    """Collectives, for Context.supports."""

    ALL_REDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    ALL_GATHER_V = 12
    REDUCE_SCATTER_V = 13
    GATHER_V = 14
    SCATTER_V = 15
    ALL_TO_ALL_V = 16
    SPARSE_ALL_REDUCE = 17


class DeviceKind(enum.IntEnum):
    """Kinds of memory."""

    HOST = 0
    CUDA = 1


class LogLevel(enum.IntEnum):
    """Severities of log lines, and the threshold of a context's log."""

    OFF = 0
    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4


class Progress(enum.IntEnum):
    """The threads that drive operations: a thread of the context, or only the program's threads inside Weft calls."""

    THREAD = 1
    CALLER = 2


class Bootstrap(enum.IntEnum):
    """Ways in which the ranks of a new communicator find each other. Comm chooses it by its arguments."""

    ENV = 0
    STORE = 1
    CALLBACK = 2
    UNIQUE_ID = 3


class GradientMode(enum.IntEnum):
    """Memory of the gradients: arrays of the program that are copied (COPY), views into the reducer's buckets (VIEW), or
    arrays of the program that are reduced where they are (IN_PLACE)."""

    COPY = 1
    VIEW = 2
    IN_PLACE = 3


class ContextFlag(enum.IntFlag):
    STREAM_WAITS = 2


class CommFlag(enum.IntFlag):
    STORE_EXTERNAL = 1
    DEVICE = 2


class ShrinkFlag(enum.IntFlag):
    LAST_OF_TWO = 1


class ReducerFlag(enum.IntFlag):
    """Flags of a reducer (WEFT_REDUCER_ in weft/reducer.h); each is an argument of Reducer."""

    RETAIN = 1
    ABSENT = 2
    UNEVEN = 4
    STOP_WHEN_EXHAUSTED = 8
    STATIC = 16
    BUFFERS = 32
    SHARDED = 64
    OWN_WHOLE = 128
    NORMS = 256
    ACCUMULATE_F32 = 512
    DETERMINISTIC = 1024
    COPY_STRAYS = 2048
    GRAPH = 4096
    KEEP_VALUES = 8192
    STRICT_STRIDES = 16384
    DDP_BUCKETS = 32768


class ParamFlag(enum.IntFlag):
    SPARSE = 1
    STATE_ONLY = 2
    BUFFER = 4
    IGNORED = 8


class BroadcastFlag(enum.IntFlag):
    """Kinds of parameters whose values Reducer.broadcast sends: those with gradients, state-only ones, and buffers."""

    PARAMS = 1
    STATE = 2
    BUFFERS = 4


class Accumulation(enum.IntEnum):
    """Parties that add up the micro-batches of local steps.

    UNSET    not chosen; local steps in copy mode, with sparse gradients or with copy_strays are then refused
    PROGRAM  the program: `ready` takes the sum of all micro-batches since the last synchronised step, as PyTorch's
             .grad holds it under no_sync
    REDUCER  the reducer, in copy mode: each `ready` takes the gradient of its micro-batch alone
    """

    UNSET = 0
    PROGRAM = 1
    REDUCER = 2


class Planner(enum.IntEnum):
    """Methods to divide parameters into buckets.

    DEFAULT  as documented where it is used
    LIMITS   by bucket_limits
    MODEL    by a cost model of the step, which minimises the communication after the last gradient
    NONE     Reducer(replan=...) only: never
    """

    DEFAULT = 0
    LIMITS = 1
    MODEL = 2
    NONE = 3


class Divide(enum.IntEnum):
    """Divisors of sums: the number of ranks, the number of ranks with data in the step, or the sum of their weights."""

    WORLD = 0
    ACTIVE = 1
    WEIGHTS = 2


class Space(enum.IntEnum):
    """Memory that a hook's collective reads or writes: the bucket's buffer, or the hook's scratch for the bucket."""

    BUCKET = 0
    SCRATCH = 1


class HookCollectiveFlag(enum.IntFlag):
    """Kinds of a hook's collectives, see HookCollective."""

    DYNAMIC = 1
    OPTIONAL = 2
    WORLD = 4


class HookFlag(enum.IntFlag):
    SPARSE = 1
    SHARES = 2


class BeginFlag(enum.IntFlag):
    LOCAL = 1
    NO_DATA = 2
    FIXED = 4
    RECORD = 8
    CAPTURE = 16


class FinishFlag(enum.IntFlag):
    COMMIT = 1
    REST_ABSENT = 2
    SKIP = 4
    SKIP_NONFINITE = 8


VERSION_MAJOR = 0
VERSION_MINOR = 9
VERSION_PATCH = 0
VERSION_NUMBER = VERSION_MAJOR * 10000 + VERSION_MINOR * 100 + VERSION_PATCH
HOOK_COLLECTIVES = 8  # the most collectives of a bucket
ERROR_RANKS = 64
ERROR_TEXT = 1024
UNIQUE_ID_BYTES = 256
NO_SLOT = 2**64 - 1
NO_STEP = 2**64 - 1
TIMEOUT_INFINITE = -1
TIMEOUT_POLL = -2
COLOR_NONE = -(2**31)
ROOT_LAST_ACTIVE = -1
ANY_SOURCE = -1
ANY_TAG = 2**64 - 1
