#!/usr/bin/env python3
"""weft run: starts ranks, ends them and passes on their output. Usage: test_launcher.py WEFT"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import alive, expect, expect_equal  # noqa: E402

WEFT = sys.argv[1]


def weft_run(*arguments, **more):
    return cases.run([WEFT, "run", *arguments], **more)


def shell(ranks, script, *options, **more):
    return weft_run("-n", ranks, *options, "--", "sh", "-c", script, **more)


def test_environment():
    """every rank gets its number, the size, one store and one secret, which its environment does not have"""
    script = 'secret=$(cat "$WEFT_SECRET_FILE"); env | grep -q "$secret" && echo seen; echo "$WEFT_RANK $WEFT_SIZE $WEFT_STORE $secret"'
    result = shell(3, script, "--prefix", "none", environment={"WEFT_SECRET": "another secret, from outside"})
    lines = sorted(line.split() for line in result.stdout.splitlines())
    expect_equal([line[:2] for line in lines], [["0", "3"], ["1", "3"], ["2", "3"]], result)
    expect_equal(len({(line[2], line[3]) for line in lines}), 1, result)
    expect(lines[0][2].startswith("unix:@") and len(lines[0][3]) >= 32, "store and secret", lines[0][2])
    again = shell(1, 'echo "$WEFT_STORE $(cat "$WEFT_SECRET_FILE")"', "--prefix", "none").stdout.split()
    expect(again[0] != lines[0][2] and again[1] != lines[0][3], "two jobs share a store or a secret")


def test_one_host_of_several():
    """ranks of one of several hosts are numbered from --first-rank, with the secret and store that the user gave"""
    with_secret = {"WEFT_SECRET": "a secret of all hosts", "WEFT_JOB": "ours"}
    result = shell(2, 'echo "$WEFT_RANK $WEFT_SIZE $WEFT_LOCAL_RANK $WEFT_LOCAL_SIZE $WEFT_STORE $WEFT_SECRET $WEFT_JOB"',
                   "--first-rank", 4,
                   "--size", 6, "--store", "tcp://192.0.2.1:7000", environment=with_secret)
    expect_equal(sorted(result.stdout.splitlines()),
                 [f"[{r}] {r} 6 {r - 4} 2 tcp://192.0.2.1:7000 a secret of all hosts ours" for r in (4, 5)], result)
    result = shell(2, '[ "$WEFT_RANK" = 5 ] && kill -9 $$; exec sleep 600', "--first-rank", 4, "--size", 6, "--store",
                   "tcp://192.0.2.1:7000", "--grace", "0.1")
    expect("rank 5 was ended by SIGKILL" in result.stderr and "still run: 4" in result.stderr, "global names", result)


def test_prefix():
    """lines start with [rank] and never mix"""
    script = 'i=0; while [ $i -lt 300 ]; do printf "%s" "$WEFT_RANK"; printf "%s-$i\\n" "$WEFT_RANK"; i=$((i+1)); done'
    result = shell(3, script)
    for rank in range(3):
        mine = [line for line in result.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        expect_equal(mine, [f"[{rank}] {rank}{rank}-{i}" for i in range(300)])
    expect_equal(len(result.stdout.splitlines()), 900)


def test_unfinished_line():
    """a last line without a newline is passed on"""
    expect_equal(shell(1, "printf end").stdout, "[0] end\n")


def test_prefix_others():
    """--prefix others leaves rank 0's lines as they are; standard error stays apart"""
    result = shell(2, "echo out; echo err >&2", "--prefix", "others")
    expect_equal(sorted(result.stdout.splitlines()), ["[1] out", "out"])
    expect_equal(sorted(result.stderr.splitlines()), ["[1] err", "err"])


def test_exit_code():
    """the exit code of the first failure is kept, and ends the other ranks"""
    begin = time.monotonic()
    result = shell(3, '[ "$WEFT_RANK" = 1 ] && exit 7; exec sleep 600', "--grace", "0.1")
    expect_equal(result.returncode, 7, result)
    expect(time.monotonic() - begin < 60, "the others were not ended")
    expect("rank 1 ended with exit code 7" in result.stderr, "it says which rank failed", result.stderr)


def test_signal_exit_code():
    """a rank that dies of a signal gives 128 + signal, and is named"""
    result = shell(2, '[ "$WEFT_RANK" = 1 ] && kill -9 $$; exit 0')
    expect_equal(result.returncode, 137, result)
    expect("rank 1 was ended by SIGKILL" in result.stderr, "it names rank and signal", result.stderr)


def test_victim_first():
    """if several ranks have ended since the last check, one that a signal killed decides, whatever its number"""
    script = """echo $$; until [ -e "$GO" ]; do sleep 0.02; done; [ "$WEFT_RANK" = 1 ] && kill -9 $$; exit 1"""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([WEFT, "run", "-n", "2", "--prefix", "none", "--", "sh", "-c", script], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env={**os.environ, "GO": folder + "/go"})
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGSTOP)
        (Path(folder) / "go").touch()
        for pid in pids:
            cases.wait_until(lambda pid=pid: not alive(pid), f"rank {pid} ends")
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    expect_equal(process.returncode, 137, errors)
    expect("rank 1 was ended by SIGKILL" in errors, "it names rank and signal", errors)


def test_survivors_speak():
    """the other ranks have time to print what they saw before they are ended"""
    result = shell(2, '[ "$WEFT_RANK" = 1 ] && exit 3; sleep 0.3; echo rank 1 is gone; exit 4', "--grace", 30)
    expect_equal((result.returncode, result.stdout), (3, "[0] rank 1 is gone\n"), result)


def test_nothing_left():
    """no process of a rank remains, not even one that ignores SIGTERM or runs in the background"""
    script = """sleep 600 & echo $!; echo $$
      if [ $WEFT_RANK = 0 ]; then until [ -e "$READY" ]; do sleep 0.02; done; exit 1; fi
      trap "" TERM; sleep 600 & echo $!; touch "$READY"; wait"""
    with tempfile.TemporaryDirectory() as folder:
        result = shell(2, script, "--grace", "0", "--prefix", "none", environment={"READY": folder + "/ready"})
    pids = [int(line) for line in result.stdout.split()]
    expect_equal((result.returncode, len(pids)), (1, 5), result)
    for pid in pids:
        cases.wait_until(lambda pid=pid: not alive(pid), f"process {pid} ends")


def test_forwarded_signal():
    """SIGTERM and SIGINT are passed on to the ranks, and decide the exit code"""
    for number in (signal.SIGINT, signal.SIGTERM):
        script = f'trap "echo got it; exit 0" {number.name[3:]}; echo up; while :; do sleep 0.02; done'
        # A shell cannot trap signals that are ignored when it starts, as SIGINT is when the tests run in the
        # background.
        process = subprocess.Popen([WEFT, "run", "-n", "2", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
        expect_equal(sorted(rest.splitlines()), ["[0] got it", "[1] got it"])
        expect_equal(process.returncode, 128 + number)


def test_killed_launcher():
    """ranks do not outlive weft run"""
    process = subprocess.Popen([WEFT, "run", "-n", "2", "--prefix", "none", "--", "sh", "-c", "echo $$; exec sleep 600"],
                               stdout=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.kill()
    process.wait(timeout=60)
    for pid in pids:
        cases.wait_until(lambda pid=pid: not alive(pid), f"rank {pid} ends")


def test_timeout():
    """--timeout ends the job with code 124"""
    result = shell(2, "exec sleep 600", "--timeout", "0.2")
    expect_equal(result.returncode, 124, result)


def test_flood():
    """a rank that floods its output does not delay the end of weft run"""
    result = subprocess.run([WEFT, "run", "--timeout", "0.2", "-n", "1", "--", "yes"], stdout=subprocess.DEVNULL,
                            stdin=subprocess.DEVNULL, timeout=60, check=False)
    expect_equal(result.returncode, 124, result)


def test_inherited_child_signal():
    """a job ends, with its exit code, although weft run was started with SIGCHLD ignored"""
    result = shell(2, '[ "$WEFT_RANK" = 1 ] && exit 7; exit 0', timeout=30, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    expect_equal(result.returncode, 7, result)


def test_ignored_signals():
    """a signal that weft run ignores when it starts, as with nohup, does not end weft run, store or top"""
    name = f"unix:@weft-ignored-{os.getpid()}"
    for command in (["run", "-n", "1", "--", "sh", "-c", "echo up; exec sleep 600"], ["store", "--listen", name], ["top"]):
        for number in (signal.SIGHUP, signal.SIGINT):
            process = subprocess.Popen([WEFT, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                       preexec_fn=lambda number=number: signal.signal(number, signal.SIG_IGN))
            process.stdout.readline()
            process.send_signal(number)
            time.sleep(0.3)
            expect(process.poll() is None, f"{command[0]} runs on after {number.name}", process.returncode)
            process.terminate()
            process.communicate(timeout=30)


def test_exit_code_like_a_signal():
    """an exit code above 128 is reported as an exit code"""
    result = shell(2, '[ "$WEFT_RANK" = 1 ] && exit 200; exec sleep 600', "--grace", "0.1")
    expect_equal(result.returncode, 200, result)
    expect("rank 1 ended with exit code 200" in result.stderr and "signal" not in result.stderr, "no signal", result.stderr)


def unread(*arguments):
    """Start weft run, with output that fills the pipe, and read nothing."""
    process = subprocess.Popen([WEFT, "run", "-n", "1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    return process


def test_unread_output():
    """the timeout and signals end a job whose output nobody reads"""
    process = unread("--timeout", "1", "--", "yes")
    expect_equal(process.wait(timeout=30), 124)
    expect("output is lost" in process.stderr.read(), "it says so")
    for number in (signal.SIGTERM, signal.SIGINT):
        process = unread("--", "yes")
        process.send_signal(number)
        expect_equal(process.wait(timeout=30), 128 + number)
    process = unread("--", "seq", "40000")  # it ends: the rest fits in the buffers
    process.terminate()
    expect_equal(process.wait(timeout=30), 128 + signal.SIGTERM)


def test_slow_reader():
    """a reader that is slow gets all of the output"""
    process = unread("--prefix", "none", "--", "seq", "100000")
    output, _ = process.communicate(timeout=60)
    expect_equal(output, "".join(f"{i}\n" for i in range(1, 100001)))
    expect_equal(process.returncode, 0)


def test_cannot_run():
    """a command that does not exist gives code 127 and is named"""
    result = weft_run("-n", "1", "--", "./no such program")
    expect_equal(result.returncode, 127, result)
    expect("./no such program" in result.stderr, "it names the command", result.stderr)


def test_command_options():
    """options after -- belong to the command, and so does a -- after it"""
    result = weft_run("-n", "1", "--", "printf", "%s ", "-n", "7", "--help", "--", "x")
    expect_equal((result.returncode, result.stdout), (0, "[0] -n 7 --help -- x \n"), result)
    result = weft_run("-n", "1", "sh", "-c", 'echo "$@"', "sh", "--", "-x", "--")
    expect_equal((result.returncode, result.stdout), (0, "[0] -- -x --\n"), result)


def test_bad_usage():
    """wrong usage exits with code 2 and explains the usage"""
    for arguments in ([], ["-n", "0", "true"], ["-n", "2"], ["-n", "x", "true"], ["-n", "2", "--first-rank", "1", "true"],
                      ["-n", "2", "--size", "4", "true"], ["-n", "2", "--first-rank", "3", "--size", "4", "true"]):
        result = weft_run(*arguments)
        expect_equal(result.returncode, 2, arguments, result)
        expect("--help" in result.stderr, "it points to --help", result.stderr)


def test_numbers():
    """numbers that are not finite, or out of range, are refused with the range"""
    for words in (["run", "-n", "1", "--timeout", "nan", "true"], ["run", "-n", "1", "--timeout", "1e300", "true"],
                  ["run", "-n", "1", "--timeout", "-1", "true"], ["run", "-n", "1", "--grace", "inf", "true"], ["top", "--interval", "nan"],
                  ["status", "--wait", "nan"], ["doctor", "--wait", "nan"]):
        result = cases.run([WEFT, *words], timeout=20)
        expect(result.returncode == 2 and "not in range [" in result.stderr and len(result.stderr) < 200, "the range", words, result)
    for words in (["run", "-n", "1", "--prefix", "x", "true"], ["store", "--listen", "unix:@x", "--log", "x"]):
        result = cases.run([WEFT, *words], timeout=20)
        expect(result.returncode == 2 and "x not in {" in result.stderr and "->" not in result.stderr, "the choices", words, result)


def test_unwritten_output():
    """a command whose output cannot be written says so, and exits with 1"""
    for words in (["info"], ["--help"], ["--version"], ["doctor", "--json"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([WEFT, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        expect(result.returncode == 1 and "cannot write the output: No space left" in result.stderr, "an error", words, result)


def test_full_queue():
    """weft status lists a process whose queue of questions is full, as that of a stopped one, as without an answer"""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(f"\0weft-status-{os.getuid()}-{os.getpid()}-99")
        listener.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(listener.getsockname())
        result = cases.run([WEFT, "status", "--lines"])
    mine = [line for line in map(json.loads, result.stdout.splitlines()) if line.get("pid") == os.getpid()]
    expect(len(mine) == 1 and mine[0]["answered"] is False, "it is listed", result)


def test_too_many_hosts():
    """weft status --hosts says which limit has room for fewer hosts"""
    hosts = ",".join(f"host{i}" for i in range(200))
    result = cases.run(["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", WEFT, "status", "--hosts", hosts, "--ssh", "true"])
    expect(result.returncode == 1 and "ulimit -n" in result.stderr and "fewer hosts" in result.stderr, "the advice", result)


def test_unknown_option():
    """an unknown option of weft run is refused by name, and never taken for the command"""
    for option in ("--machinefile", "--machinefile=x", "-q"):
        result = weft_run("-n", "2", option, "x", "--", "true")
        expect_equal(result.returncode, 2, option, result)
        expect(f"unknown option {option.split('=')[0]}" in result.stderr and "--help" in result.stderr, "it names the option", result.stderr)
    result = weft_run("-n", "1", "printf", "%s ", "-n", "--machinefile")
    expect_equal((result.returncode, result.stdout), (0, "[0] -n --machinefile \n"), result)


def test_unknown_command():
    """an unknown command is refused by name"""
    result = cases.run([WEFT, "brench", "all_reduce"])
    expect(result.returncode == 2 and "there is no command brench" in result.stderr, "it names the word", result)
    expect("--help" in result.stderr, "it says where the commands are listed", result)
    result = cases.run([WEFT])
    expect(result.returncode == 2 and "--help" in result.stderr, "none at all", result)


def test_suggestions():
    """a misspelt command or option is answered with the one that it is like, and others with the choices"""
    for words, said in ((["statsu"], 'weft: there is no command statsu; did you mean status?'),
                        (["trace", "expl"], 'weft trace: there is no command expl; did you mean explain?'),
                        (["brrrr"], "; the commands are run, bench, "),
                        (["info", "--jsno"], "weft info: there is no option --jsno; did you mean --json?"),
                        (["status", "--intervall=2"], "weft status: there is no option --intervall; the options are --help, "),
                        (["run", "-n", "2", "--time-out", "3", "true"], "unknown option --time-out of weft run; did you mean --timeout?"),
                        (["trace", "merge", "--outptu", "x", "y"], "weft trace merge: there is no option --outptu; did you mean --output?")):
        result = cases.run([WEFT, *words])
        expect(result.returncode == 2 and said in result.stderr, said, words, result)


def test_clean_descriptors():
    """a rank inherits no descriptors except its standard ones"""
    result = shell(1, "ls /proc/self/fd | wc -l", "--prefix", "none", close_fds=True)
    expect_equal(result.stdout.split(), ["4"], result)  # 0, 1, 2 and the folder that ls reads


cases.main(globals())
