#!/usr/bin/env python3
"""weft trace convert writes what PyTorch's analyser of flight records reads. Where `make test-torch` has installed PyTorch
in the build folder, that analyser itself reads it. Usage: test_convert.py WEFT FLIGHT_RANK BUILD"""
import json
import pickle
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, FLIGHT_RANK, BUILD = sys.argv[1:4]
RANKS, VICTIM = 3, 1
ENTRY = {"record_id": int, "pg_id": int, "process_group": list, "collective_seq_id": int, "p2p_seq_id": int, "op_id": int,
         "profiling_name": str, "time_created_ns": int, "time_discovered_started_ns": type(None),
         "time_discovered_completed_ns": type(None), "duration_ms": type(None), "input_sizes": list, "input_dtypes": list,
         "output_sizes": list, "output_dtypes": list, "state": str, "timeout_ms": int, "is_p2p": bool, "retired": bool,
         "frames": list}


def converted(folder, scenario):
    """Let ranks fail in a scenario of flight_rank, and return the folder with the converted records."""
    flights, into = Path(folder) / "flights", Path(folder) / "torch"
    cases.run([WEFT, "run", "-n", RANKS, "--grace", 20, "--", FLIGHT_RANK, scenario, VICTIM],
              environment={"WEFT_FLIGHT": str(flights), "WEFT_BACKEND": "shm"})
    result = cases.run([WEFT, "trace", "convert", flights, into])
    expect_equal(result.returncode, 0, result)
    expect(f"the records of {len(list(flights.iterdir()))} ranks" in result.stdout, "what it wrote", result)
    return into


def analysed(folder):
    """Return what PyTorch's analyser says, or None where PyTorch is not installed."""
    python = Path(BUILD) / "torch/bin/python"
    if not python.exists():
        return None
    result = cases.run([python, "-m", "torch.distributed.flight_recorder.fr_trace", folder], timeout=300)
    expect_equal(result.returncode, 0, result)
    return result.stdout + result.stderr


def test_schema():
    """each rank has a pickle whose fields have the types of PyTorch's dumps"""
    with tempfile.TemporaryDirectory() as folder:
        into = converted(folder, "absent")
        expect_equal(sorted(path.name for path in into.iterdir()), [f"rank_{rank}" for rank in range(RANKS)])
        lasts = []
        for rank in range(RANKS):
            dump = pickle.loads((into / f"rank_{rank}").read_bytes())
            expect_equal(sorted(dump), ["entries", "pg_config", "pg_status", "version"])
            for name, group in dump["pg_config"].items():
                expect_equal((group["name"], group["ranks"]), (name, "[0,1,2]"), group)
            for number, entry in enumerate(dump["entries"]):
                expect_equal({key: type(value) for key, value in entry.items()}, ENTRY, entry)
                expect_equal(entry["record_id"], number)
                expect(entry["process_group"][0] in dump["pg_config"], "its group", entry)
                expect(entry["profiling_name"].startswith("gloo:"), "a name that the analyser knows", entry)
            reduced = [entry for entry in dump["entries"] if entry["profiling_name"] == "gloo:all_reduce"]
            expect_equal((reduced[0]["input_sizes"], reduced[0]["input_dtypes"], reduced[0]["state"]),
                         ([[20000]], ["Float"], "completed"), reduced[0])
            lasts.append((reduced[-1]["collective_seq_id"], reduced[-1]["state"]))
        expect(lasts[0] == lasts[2] and lasts[0][1] == "started" and lasts[VICTIM][1] == "completed", "rank 1 was absent", lasts)


def test_analyser():
    """PyTorch's analyser names the rank that was missing, and the collective that differs"""
    with tempfile.TemporaryDirectory() as folder:
        said = analysed(converted(folder, "absent"))
        if said is None:
            cases.skip("PyTorch is not installed in the build folder")
        expect("Not all ranks joining collective" in said and "missing ranks: {1}" in said, "the missing rank", said)
    with tempfile.TemporaryDirectory() as folder:
        said = analysed(written(folder, [[reduced(0), reduced(1, count=19999)], [reduced(0), reduced(1)]]))
        expect("SIZE_OR_SYNTAX_MISMATCH" in said and "19999" in said and "sequence number: 1" in said, "the collective that differs", said)
    with tempfile.TemporaryDirectory() as folder:
        said = analysed(written(folder, [[reduced(0)], [reduced(0)]], pair=True))
        expect("mismatch" not in said.lower() and "errors" not in said and "missing" not in said, "nothing is wrong", said)


def reduced(slot, count=20000):
    return {"slot": slot, "coll": "all_reduce", "dtype": "f32", "op": "sum", "count": count, "state": "finished"}


def written(folder, operations, pair=False):
    """Write flight records of two ranks with these operations, and with a message from rank 0 to rank 1 if `pair` says so;
    return the folder with the converted records."""
    flights = Path(folder) / "flights"
    flights.mkdir()
    for rank, own in enumerate(operations):
        lanes = [{"kind": "collective", "id": 0, "next_slot": len(own), "queued": 0, "waits_for": [], "operations": own}]
        if pair:
            sent = {"slot": 0, "coll": ("send", "recv")[rank], "dtype": "u8", "count": 5, "state": "finished"}
            lanes.append({"kind": ("send", "receive")[rank], "id": 3, "peer": 1 - rank, "next_slot": 1, "queued": 0,
                          "waits_for": [], "operations": [sent]})
        record = {"weft_flight": 1, "comm": "00c0ffee00c0ffee", "rank": rank, "size": 2, "generation": 0, "backend": "shm",
                  "completed": 1, "lanes": lanes}
        (flights / f"weft-00c0ffee00c0ffee-rank{rank}.json").write_text(json.dumps(record))
    result = cases.run([WEFT, "trace", "convert", flights, Path(folder) / "torch"])
    expect_equal(result.returncode, 0, result)
    return Path(folder) / "torch"


def test_refused():
    """a folder without records, another format and an unknown communicator are refused"""
    with tempfile.TemporaryDirectory() as folder:
        for words, code, said in ((["--to", "other"], 2, "pytorch"), ([], 1, "no flight records")):
            result = cases.run([WEFT, "trace", "convert", folder, f"{folder}/torch", *words])
            expect(result.returncode == code and said in result.stderr, "refused", result)
        converted(folder, "absent")
        result = cases.run([WEFT, "trace", "convert", f"{folder}/flights", f"{folder}/torch", "--comm", "zz"])
        expect(result.returncode == 1 and "begins with zz" in result.stderr, "the communicators", result)
        for rank in range(8):
            Path(f"{folder}/taken/rank_{rank}").mkdir(parents=True)
        result = cases.run([WEFT, "trace", "convert", f"{folder}/flights", f"{folder}/taken"])
        expect(result.returncode == 1 and "Is a directory" in result.stderr, "the reason", result)


cases.main(globals())
