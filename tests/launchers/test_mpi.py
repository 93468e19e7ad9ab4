#!/usr/bin/env python3
"""The mpi backend under mpirun, with each installed MPI library. Usage: test_mpi.py BUILD"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
import mpi  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parent.parent.parent
HELLO = BUILD / "examples" / "hello_allreduce"


def test_by_itself():
    """a program that does not use MPI runs over it, under the mpirun of either library"""
    for flavour in mpi.each(BUILD):
        for backend, more in (("mpi", {}), ("shm+mpi", {"WEFT_HOSTS": "0,0,1"})):
            code, output = mpi.run(flavour, 3, [HELLO], WEFT_BACKEND=backend, **more)
            expect_equal(code, 0, flavour, backend, output)
            expect_equal(output.count("of 3: the ranks' numbers sum to 3,"), 3, flavour, backend, output)


def test_without_mpirun():
    """outside of an MPI job the backend is not available, and the error gives the reason"""
    mpi.each(BUILD)
    result = cases.run([HELLO], environment=mpi.environment(WEFT_BACKEND="mpi"))
    expect(result.returncode == 1 and "not started by mpirun" in result.stderr, "no refusal", result)


def run_cases(flavour, words, ranks=3, under=None, **more):
    """Run mpi_cases and return the ranks' output; each rank must reach its end."""
    code, output = mpi.run(under or flavour, ranks, [BUILD / "tests" / "launchers" / f"mpi_cases_{flavour}", *words.split()], **more)
    expect_equal((code, output.count("the end of rank")), (0, ranks), flavour, words, output)
    return output


def expect_fine(words, adapt=lambda flavour, words: words, **more):
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, adapt(flavour, words), **more)
        expect_equal(output.count(": ok: fine"), 3, flavour, words, output)


def expect_refused(words, text, adapt=lambda flavour, words: words, **more):
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, adapt(flavour, words), **more)
        expect(output.count(text) == 3, "no refusal", flavour, words, text, output)


def test_example():
    """training gives equal results if MPI, Weft in shared memory or Weft over MPI reduces the gradients"""
    for flavour in mpi.each(BUILD):
        said = set()
        for words in ([], ["weft"], ["weft", "allreduce", "mpi"], ["weft", "fp16", "mpi"]):
            code, output = mpi.run(flavour, 4, [BUILD / "examples" / f"mpi_gradient_{flavour}", *words])
            expect(code == 0 and "weights are equal on all 4 ranks" in output, flavour, words, output)
            if "fp16" not in words:
                said.add(output.partition(": ")[2].strip())
        expect_equal(len(said), 1, flavour, said)


def test_counters():
    """the bytes that ranks send are counted, and all of them go over MPI"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread sum")
        expect_equal(output.count("it went over mpi"), 3, flavour, output)


def test_demo():
    """make demo BACKEND=mpi trains over MPI, by the mpirun of either library, with the loss curve of one process"""
    if not Path("/usr/share/datasets/fashion-mnist").is_dir() or not (BUILD / "examples" / "train_fashion").exists():
        cases.skip("no data set (apt-get install dataset-fashion-mnist), or the demo is not built")
    for flavour in mpi.each(BUILD):
        # Runs the command of `make demo` without the build before it, and shortened.
        words = ["make", "-C", ROOT, "--no-print-directory", "-n", "-o", "build", "demo", f"BUILD={BUILD}", "BACKEND=mpi", f"MPI={flavour}"]
        made = cases.run(words, environment={"MAKEFLAGS": ""})
        expect_equal(made.returncode, 0, made)
        expect(f"mpirun.{flavour} " in made.stdout or "mpirun " in made.stdout, "no mpirun", made)
        ran = cases.run(["sh", "-c", made.stdout.strip() + " --epochs 1 --limit 2000"], timeout=120)
        expect(ran.returncode == 0 and "backend=mpi" in ran.stdout and "replicas=identical curve=matches" in ran.stdout, flavour, ran)


def test_threads():
    """with MPI_THREAD_MULTIPLE any thread may wait, at lower levels those that MPI allows"""
    for words in ("multiple thread other-thread", "multiple caller other-thread", "serialized caller other-thread",
                  "funneled caller sum", "single caller sum"):
        expect_fine(words)


def test_threads_refused():
    """a thread that may not call MPI is refused by name, either at once or when it would call MPI"""
    for level in ("single", "funneled", "serialized"):
        expect_refused(f"{level} thread sum", f"MPI was initialised with MPI_THREAD_{level.upper()}")
    expect_refused("funneled caller other-thread", "MPI was not initialised for several threads")


def test_not_initialised():
    """a program that has not initialised its MPI library gets an error"""
    for words in ("none thread sum", "none thread header"):
        expect_refused(words, "MPI is not initialised")


def test_finalised_already():
    """a program that has called MPI_Finalize gets an error, by either way of creating a communicator"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread afterwards")
        expect_equal(output.count("the program has called MPI_Finalize"), 6, flavour, output)


def test_parts():
    """a communicator of a part of MPI_COMM_WORLD in another order works, and so do many in sequence"""
    expect_fine("multiple thread part")
    expect_fine("multiple thread many")


def unless_mpich_waits(flavour, words):
    """Avoid progress threads with MPICH, whose MPI_Finalize aborts a process in which another thread is
    inside MPI (docs/how-to/mpi.md)."""
    return words.replace("thread", "caller") if flavour == "mpich" else words


def test_finalized():
    """MPI_Finalize before or without the communicator's destruction does no harm"""
    for words in ("multiple thread finalize-first", "single caller finalize-first", "multiple thread leak"):
        expect_fine(words, unless_mpich_waits)
    expect_refused("multiple thread finalize-before", "MPI was finalised while the communicator was in use",
                   unless_mpich_waits)


def test_finalized_meanwhile():
    """MPI_Finalize under an operation fails the operation"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, unless_mpich_waits(flavour, "multiple thread finalize-busy"))
        expect_equal(output.count(": ok: fine"), 1, flavour, output)  # the last rank has no request


def test_finalized_under_load():
    """MPI_Finalize during transfers ends every operation on every rank, and the communicator can be destroyed"""
    for flavour in mpi.each(BUILD):
        for backend in ("mpi", "mpi.native"):
            output = run_cases(flavour, unless_mpich_waits(flavour, "multiple thread traffic"), BACKEND=backend)
            expect_equal(output.count("all 8 sums have ended"), 3, flavour, backend, output)
            expect("MPI was finalised while the communicator was in use" in output, "it was not", flavour, backend, output)


def test_native():
    """the MPI library's own collectives run, by option, on every thread that MPI allows, over parts and in sequence"""
    for words in ("multiple thread sum", "multiple caller other-thread", "single caller sum", "multiple thread part"):
        for flavour in mpi.each(BUILD):
            output = run_cases(flavour, words, BACKEND="mpi.native")
            expect_equal(output.count(": ok: fine"), 3, flavour, words, output)
            if words.endswith("sum"):
                expect_equal(output.count("it went over mpi.native by mpi"), 3, flavour, words, output)
    expect_fine("multiple thread many", BACKEND="mpi.native")


def test_native_finalized():
    """with the MPI library's collectives too, MPI_Finalize before the communicator's destruction does no harm"""
    for words in ("multiple thread finalize-first", "multiple thread leak"):
        expect_fine(words, unless_mpich_waits, BACKEND="mpi.native")
    expect_refused("multiple thread finalize-before", "MPI was finalised while the communicator was in use",
                   unless_mpich_waits, BACKEND="mpi.native")


def test_native_agreed():
    """ranks get an error that names them if not all select the library's collectives, or if their calls differ"""
    expect_refused("multiple thread disagree", "rank 0 asks for backend mpi, rank 1 for mpi.native", BACKEND="mpi.native")
    expect_refused("multiple thread mismatch", "rank 0 calls all_reduce sum i64 x 8", BACKEND="mpi.native")


def test_native_given_up():
    """if a rank stops inside the library's collective, the others end at the deadline, and own their buffers again"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread given-up", BACKEND="mpi.native")
        expect_equal((output.count("before: ok"), output.count("in time"), output.count("untouched")), (3, 2, 3), flavour, output)
        expect(output.count("passed its deadline") >= 2, "no deadline", flavour, output)


def test_failures():
    """mismatches and missing ranks are reported as on every backend"""
    expect_refused("multiple thread mismatch", "rank 0 calls all_reduce sum i64 x 8")
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread silent")
        expect(output.count("rank 2 left the communicator") == 2, flavour, output)


def test_stopped():
    """a stopped rank is named at the deadline, fails by name when it continues, and MPI ends cleanly"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread stopped")
        expect_equal((output.count("before: ok"), output.count("in time")), (3, 2), flavour, output)
        expect_equal(output.count("passed its deadline waiting for rank 2"), 3, flavour, output)


def test_killed():
    """a killed rank is named by the others before the deadline, and they end if mpirun lets them"""
    if "openmpi" not in mpi.each(BUILD):
        cases.skip("MPICH's mpirun ends the other ranks, told otherwise or not")
    command = [BUILD / "tests" / "launchers" / "mpi_cases_openmpi", "multiple", "thread", "killed"]
    _, output = mpi.run("openmpi", 3, command, flags=["--enable-recovery"])
    expect_equal((output.count("before: ok"), output.count("in time"), output.count("the end of rank")), (3, 2, 2), output)
    expect_equal(output.count("killed: another rank failed: "), 2, output)
    expect_equal(output.count("rank 2 is process"), 2, output)


def test_stuck():
    """creating a communicator ends at its deadline, although a rank is late inside MPI, which has no deadline"""
    for flavour in mpi.each(BUILD):
        output = run_cases(flavour, "multiple thread stuck")
        expect_equal(output.count("create: deadline passed: "), 3, flavour, output)
        expect("MPI has not made its communicator" in output, flavour, output)


def test_exhausted():
    """if MPI cannot create a communicator, each rank reports that, whatever the program's error handler"""
    for words, text in (("exhausted", "MPI_Comm_create_group: "), ("no-duplicate", "MPI_Comm_dup fails")):
        expect_refused(f"multiple thread {words}", text)
        expect_refused(f"funneled caller {words}", text)


def test_refused():
    """a rank whose arguments are refused is named by the others, which do not wait for it"""
    for flavour in mpi.each(BUILD):
        for words in ("multiple thread refused", "multiple thread nowhere"):
            output = run_cases(flavour, words)
            expect_equal(output.count("rank 0 was refused: see its error"), 2, flavour, output)
        output = run_cases(flavour, "multiple thread no-size")
        expect_equal(output.count("weft_comm_options.struct_size is 0"), 3, flavour, output)


def test_wrong_launcher():
    """a program under the other MPI library's mpirun is a job of one rank each, and gets an error"""
    if len(mpi.each(BUILD)) < 2:
        cases.skip("there is one MPI library alone")
    for flavour, under in (("openmpi", "mpich"), ("mpich", "openmpi")):
        output = run_cases(flavour, "multiple thread launcher", under=under)
        expect("MPI_COMM_WORLD has 1 rank" in output, flavour, output)


def test_wrong_module():
    """a process is refused if its MPI library's module is missing, or is that of the other library"""
    if len(mpi.each(BUILD)) < 2:
        cases.skip("there is one MPI library alone")
    with tempfile.TemporaryDirectory() as folder:
        for flavour, other in (("openmpi", "mpich"), ("mpich", "openmpi")):
            lacking = Path(folder) / flavour
            lacking.mkdir()
            module = BUILD / f"libweft-mpi-{other}.so"
            (lacking / module.name).symlink_to(module)
            output = run_cases(flavour, "multiple thread sum", MODULES=str(lacking))
            expect(f"this process uses {mpi.TITLES[flavour]}, but there is no" in output, flavour, output)
            (lacking / f"libweft-mpi-{flavour}.so").symlink_to(module)
            output = run_cases(flavour, "multiple thread sum", MODULES=str(lacking))
            expect("this module was built for" in output, flavour, output)


if __name__ == "__main__":
    cases.main(globals())
