#!/usr/bin/env python3
"""The ucx module from outside: its transports, and algorithms by name. Usage: test_ucx.py WEFT"""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]


def bench(environment, *words, ranks=2):
    """Return the JSON of a run over ucx that must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        result = cases.run([WEFT, "bench", *words, "--backend", "ucx", "--ranks", ranks, "--iterations", 3, "--no-pin",
                            "--json", path], timeout=120, environment=environment)
        expect_equal(result.returncode, 0, result.stdout, result.stderr)
        return json.loads(path.read_text())


def info(environment=None):
    result = cases.run([WEFT, "info"], environment=environment)
    return next(line for line in result.stdout.splitlines() if line.split()[:1] == ["ucx"])


def test_info():
    """weft info reports the UCX version and devices; POSIX shared memory only if it was chosen"""
    line = info()
    expect("available: UCX 1." in line and "sysv/" in line and "posix/" not in line, "what it uses", line)
    line = info({"UCX_TLS": "posix,self"})
    expect("posix/" in line and "sysv/" not in line, "what was chosen", line)


def test_transports():
    """TCP, shared memory and UCX's own choice carry all collectives; the report names the transport"""
    if "tcp/" not in info():
        cases.skip("UCX finds no network device here (it looks into /sys)")
    for wanted, used in (("tcp", "tcp/"), ("posix", "posix/"), ("sysv,cma", "sysv/"), ("", "")):
        whole = bench({"WEFT_UCX_TLS": wanted} if wanted else {}, "all_reduce", "all_gather", "send_recv", "barrier",
                      "--sizes", "8,9K,3M", ranks=3)
        expect(used in whole["transports"] and whole["transports"], "the transport", whole)
        expect(whole["bytes_sent"] > 3 << 20 and whole["bytes_shared"] == 0, "bytes", whole)
        expect(all(row["correct"] for row in whole["results"]), "right results", whole)


def test_unusable():
    """transports that UCX does not have make ucx unavailable, with the reason"""
    result = cases.run([WEFT, "bench", "all_reduce", "--backend", "ucx"], environment={"WEFT_UCX_TLS": "nonsense"})
    expect(result.returncode != 0 and "WEFT_UCX_TLS" in result.stderr, "why", result)


def test_unreachable():
    """ranks that UCX cannot connect are named"""
    result = cases.run([WEFT, "bench", "all_reduce", "--backend", "ucx"], environment={"WEFT_UCX_TLS": "self"})
    expect(result.returncode != 0 and "does not reach rank" in result.stderr, "whom", result)


def test_algorithms():
    """algorithms are forced by name, and the report names the one that ran"""
    wanted = {"all_reduce": ["one_shot", "direct", "ring", "halving_doubling", "doubling", "tree"],
              "broadcast": ["flat", "scatter_gather", "binomial"], "reduce_scatter": ["direct", "ring", "halving"]}
    for coll, names in wanted.items():
        for name in names:
            row = bench({"WEFT_TUNE": f"{coll}:{name}"}, coll, "--sizes", "300K", ranks=3)["results"][0]
            expect_equal((row["algorithm"], row["correct"]), (name, True), row)


def test_every_algorithm():
    """--algorithm all measures the choice and every algorithm, each on a communicator of its own"""
    rows = bench({}, "all_reduce", "--sizes", "300K", "--algorithm", "all", ranks=3)["results"]
    expect([row["algorithm"] for row in rows] == ["direct", "one_shot", "direct", "ring", "halving_doubling", "doubling", "tree"],
           "the choice and all algorithms", rows)
    result = cases.run([WEFT, "bench", "all_reduce", "--algorithm", "circle"])
    expect(result.returncode != 0 and "halving_doubling" in result.stderr, "the list", result)


def test_unknown_algorithm():
    """an unknown algorithm is an error that lists the known ones"""
    result = cases.run([WEFT, "bench", "all_reduce", "--backend", "ucx"], environment={"WEFT_TUNE": "all_reduce:x"})
    expect(result.returncode != 0 and "one_shot" in result.stderr, "the list", result)


def test_other_algorithms():
    """ranks that force different algorithms get an error during creation"""
    command = f'WEFT_TUNE=all_reduce:$([ "$WEFT_RANK" = 1 ] && echo one_shot || echo direct) {WEFT} bench --joined all_reduce'
    result = cases.run([WEFT, "run", "-n", 2, "--", "sh", "-c", command])
    text = result.stdout + result.stderr
    expect(result.returncode != 0 and "all_reduce:one_shot" in text and "all_reduce:direct" in text, "both sides", text)


cases.main(globals())
