#!/usr/bin/env python3
"""Compares python/weftsync/_abi.py and constants.py with weft.h and the ABI's golden file. Needs no library."""
import ctypes
import dataclasses
import enum
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python")]
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402
from weftsync import _abi, constants  # noqa: E402

INCLUDE = ROOT / "include/weft"
HEADER = "".join((INCLUDE / name).read_text()  # all that weft.h includes
                 for name in re.findall(r'^#include "(\w+\.h)"', (INCLUDE / "weft.h").read_text(), re.M))
HEADER = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
HEADER = re.sub(r"\\\n\s*", "", HEADER)  # continued lines
# Maps the prefixes of constants to the package's enumerations.
PREFIXES = {"": "Status", "EVIDENCE": "Evidence", "DTYPE": "DType", "OP": "Op", "COLL": "Coll", "DEVICE": "DeviceKind",
            "LOG": "LogLevel", "PROGRESS": "Progress", "BOOTSTRAP": "Bootstrap", "GRADIENT": "GradientMode",
            "CONTEXT": "ContextFlag", "COMM": "CommFlag", "SHRINK": "ShrinkFlag", "REDUCER": "ReducerFlag", "PARAM": "ParamFlag",
            "BROADCAST": "BroadcastFlag", "BEGIN": "BeginFlag", "DIVIDE": "Divide", "PLANNER": "Planner", "ACCUMULATION": "Accumulation",
            "FINISH": "FinishFlag", "SPACE": "Space", "HOOK_COLLECTIVE": "HookCollectiveFlag", "HOOK": "HookFlag"}
FOR_C = re.compile(r"WEFT_DEFAULT_\w+|WEFT_API|\w+_INIT")


def struct_name(cls):
    return "weft" + re.sub(r"[A-Z]", lambda letter: "_" + letter.group().lower(), cls.__name__)


def structs():
    """Return the structs of _abi.py by their names in C."""
    return {struct_name(cls): cls for cls in vars(_abi).values()
            if isinstance(cls, type) and issubclass(cls, ctypes.Structure) and hasattr(cls, "_fields_")}


def test_layout():
    """every struct of weft.h has the size and the offsets of the ABI's golden file"""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        cases.skip("layout-lp64.txt is for 64-bit machines")
    lines = []
    for name, cls in structs().items():
        lines.append(f"{name} size {ctypes.sizeof(cls)}")
        for field, *_ in cls._fields_:
            place = getattr(cls, field)
            lines.append(f"{name}.{field} at {place.offset}, {place.size} bytes")
    golden = [line for line in (ROOT / "tests/abi/layout-lp64.txt").read_text().splitlines()
              if not line.startswith("weft_transport")]  # for C alone
    expect_equal(set(golden) - set(lines), set())
    # Names of reserved fields are not in the golden file everywhere.
    expect_equal({line for line in set(lines) - set(golden) if ".reserved" not in line}, set())


def constant(name):
    """Return the package's value of WEFT_name, or None if it has none."""
    for prefix, enumeration in sorted(PREFIXES.items(), reverse=True):
        member = name[len(prefix) + 1:] if prefix and name.startswith(prefix + "_") else name
        kind = getattr(constants, enumeration, None)
        if (not prefix or member != name) and isinstance(kind, enum.EnumMeta) and member in kind.__members__:
            return int(kind[member])
    return getattr(constants, name, None)


def test_constants():
    """every constant of weft.h has the same value in the package"""
    limits = {"UINT64_MAX": 2**64 - 1, "INT32_MIN": -2**31}
    for name, value in re.findall(r"^#define (WEFT_\w+) (\S.*)$", HEADER, re.M):
        if FOR_C.fullmatch(name) or name == "WEFT_VERSION_NUMBER":
            continue
        value = re.sub(r"U?INT\d+_C\((-?\d+)\)", r"\1", value.strip())
        expect_equal(constant(name[5:]), limits[value] if value in limits else int(value, 0), name)


def c_type(text, name):
    """Return the ctypes type for a parameter or result type of weft.h."""
    pointers, base = text.count("*"), re.sub(r"\bconst\b|\*", " ", text).split()[0]
    scalars = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
               "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "double": ctypes.c_double,
               "uint8_t": ctypes.c_uint8}
    # weft_status, weft_dtype and the like.
    scalars.update((name, scalars[kind]) for kind, name in re.findall(r"^typedef (\w+_t) (weft_\w+);", HEADER, re.M))
    if base in scalars:
        kind = scalars[base]
    elif base in ("char", "void"):
        kind, pointers = (ctypes.c_char_p if base == "char" else ctypes.c_void_p), pointers - 1
    elif base.endswith("_fn"):
        kind = getattr(_abi, base[len("weft_"):])
    elif base in structs():
        kind = structs()[base]
    else:
        expect(re.search(rf"typedef struct {base} {base};", HEADER), f"{name}: what is {base}?")
        kind, pointers = ctypes.c_void_p, pointers - 1  # a handle
    for _ in range(pointers):
        kind = ctypes.POINTER(kind)
    return kind


def test_prototypes():
    """every function of weft.h has its prototype, with the types of its parameters"""
    declared = {}
    for result, name, parameters in re.findall(r"WEFT_API ([\w\s*]*?)\b(weft_\w+)\((.*?)\);", HEADER, re.S):
        words = [] if parameters.strip() == "void" else parameters.split(",")
        # Without the parameter's name.
        types = [re.sub(r"\w+$", "", " ".join(word.split())) for word in words]
        declared[name] = tuple(c_type(text, name) for text in [result] + types)
    expect(len(declared) > 50, "functions of weft.h", declared)
    expect_equal(set(_abi.PROTOTYPES), set(declared))
    for name, types in declared.items():
        expect_equal(_abi.PROTOTYPES[name], types, name)


# Functions that the package does not call, and why.
UNCALLED = {
    "weft_comm_rank": "Comm.query has the rank",
    "weft_comm_size": "Comm.query has the size",
    "weft_context_add_transport": "a transport of the program is written in C (weft_transport.h)",
    "weft_hook_create_saved": "Hook passes saved to weft_hook_create",
    "weft_reducer_stream_wait_param": "orders a device's stream, and the package takes host memory",
    "weft_request_error": "weft_last_error has the details of the request's failed wait or test",
}


def test_calls():
    """the package calls every function of the C ABI, except for those that are listed here with a reason"""
    declared = {name for path in INCLUDE.glob("*.h") for name in re.findall(r"WEFT_API [\w\s*]*?\b(weft_\w+)\(", path.read_text())}
    # Without the backend of torch.distributed, which is not for every program.
    sources = "".join(path.read_text() for path in (ROOT / "python/weftsync").glob("*.py") if path.name != "_abi.py")
    called = {"weft_" + name for pattern in (r"\blib\.(\w+)", r'\b_destructor = "(\w+)"') for name in re.findall(pattern, sources)}
    expect(len(declared) > 90, "functions of all headers", declared)
    expect_equal(declared - called - set(UNCALLED), set(), "functions that the package neither calls nor lists")
    expect_equal(set(UNCALLED) & called, set(), "functions that are listed and called")
    expect_equal(set(UNCALLED) - declared, set(), "functions that do not exist")


def test_records():
    """every record of the package has all fields of its C struct"""
    from weftsync import comm, launch, records
    for name in ("Stats", "BucketInfo", "ParamInfo", "JoinResult", "Verdict"):
        fields = {field.name for field in dataclasses.fields(getattr(records, name))} - {"params"}
        struct = getattr(_abi, {"Stats": "ReducerStats"}.get(name, name))
        apart = {"struct_size", "reserved", "reserved2", "param_count"}
        expect_equal(fields, {field[0] for field in struct._fields_} - apart, name)
    for name, record in (("CommInfo", comm.CommInfo), ("LaunchInfo", launch.LaunchInfo)):
        apart = {"struct_size", "reserved", "reserved2"}
        expect_equal(set(record._fields), {field[0] for field in getattr(_abi, name)._fields_} - apart, name)


def test_old_python():
    """the package has only syntax of Python 3.10"""
    import ast
    for path in (ROOT / "python/weftsync").rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))


if __name__ == "__main__":
    cases.main(globals())
