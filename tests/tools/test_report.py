#!/usr/bin/env python3
"""`weft trace merge` and `weft report`. Usage: test_report.py WEFT TRACE_RANK FLIGHT_RANK"""
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402

WEFT, TRACE_RANK, FLIGHT_RANK = sys.argv[1:4]
STEPS = 12
PHASES = {"X", "i", "b", "e", "M"}


def traced(folder, place, victim=2, ranks=3, ms=150):
    """Run ranks that write their traces into the folder."""
    result = cases.run([WEFT, "run", "-n", ranks, "--", TRACE_RANK, folder, STEPS, place, victim, ms], timeout=120)
    expect_equal(result.returncode, 0, result)


def report(folder, *paths, code=0):
    """Return what `weft report` says, and the page."""
    page = Path(folder) / "RUN.html"
    result = cases.run([WEFT, "report", *(paths or [folder]), "-o", page])
    expect_equal(result.returncode, code, result)
    return result, page.read_text() if page.exists() else ""


def shared(_runs={}):
    """Return a folder with the traces of a job whose rank 2 sleeps in its backward. Do not change it."""
    if not _runs:
        _runs["folder"] = tempfile.TemporaryDirectory(prefix="weft-report-")
        traced(_runs["folder"].name, "backward")
    return Path(_runs["folder"].name)


def copied(folder):
    for path in shared().glob("rank*.json"):
        shutil.copy(path, folder)
    return Path(folder)


def expect_trace(trace):
    """Check a trace against the Chrome trace-event format."""
    expect(isinstance(trace["traceEvents"], list) and trace["traceEvents"], "it has events")
    open_ids = set()
    for event in trace["traceEvents"]:
        expect(event["ph"] in PHASES and isinstance(event["name"], str), "phase and name", event)
        expect(isinstance(event["pid"], int) and isinstance(event["tid"], int), "process and thread", event)
        if event["ph"] == "M":
            expect(event["name"] in ("process_name", "process_labels", "process_sort_index", "thread_name",
                                     "thread_sort_index") and len(event["args"]) == 1, "metadata", event)
            continue
        expect(event["ts"] >= 0 and isinstance(event["cat"], str), "time and category", event)
        if event["ph"] == "X":
            expect(event["dur"] >= 0, "a slice has a duration", event)
        if event["ph"] == "i":
            expect(event["s"] == "t", "an instant has a scope", event)
        if event["ph"] in "be":
            key = (event["cat"], event["id"])
            expect((key in open_ids) == (event["ph"] == "e"), "begins and ends alternate", event)
            open_ids ^= {key}
    expect(not open_ids, "every begin has an end", open_ids)
    for track in {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["ph"] == "X"}:
        expect_nested([event for event in trace["traceEvents"]
                       if event["ph"] == "X" and (event["pid"], event["tid"]) == track])


def expect_nested(slices):
    """The slices of a track lie inside each other or behind each other."""
    ends = []
    for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        while ends and ends[-1] <= one["ts"] + 1e-3:
            ends.pop()
        expect(not ends or one["ts"] + one["dur"] <= ends[-1] + 1e-3, "slices of a track do not cross", one)
        ends.append(one["ts"] + one["dur"])


class Page(html.parser.HTMLParser):
    """Finds what a page loads, its tables and its pictures."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.tables, self.captions, self.pictures, self.open = [], 0, 0, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        for key in ("src", "href", "data", "action"):
            if attributes.get(key, "data:").split(":")[0] != "data":
                self.loads.append(attributes[key])
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag == "svg":
            self.pictures.append(attributes)


def test_schema():
    """the trace of a rank keeps to the Chrome trace-event format and describes its process"""
    for rank in range(3):
        trace = json.loads((shared() / f"rank{rank}.json").read_text())
        expect_trace(trace)
        expect_equal({event["pid"] for event in trace["traceEvents"]}, {rank})
        about = trace["otherData"]
        expect_equal((about["source"], about["events_overwritten"]), ("weft", 0), about)
        comm = about["communicators"][0]
        expect_equal((comm["rank"], comm["size"]), (rank, 3), about)
        expect("clock_offset_ns" in comm and about["clock"], "its clock was compared with rank 0's", about)
        # The clocks of one host are one clock.
        expect(abs(comm["clock_offset_ns"]) <= comm["clock_error_ns"], "the offset is within its error", comm)
        categories = {event.get("cat") for event in trace["traceEvents"]}
        expect(categories >= {"step", "finish", "ready", "launch", "stage", "collective", "done"}, "all kinds", categories)
        collectives = [event for event in trace["traceEvents"] if event.get("cat") == "collective"]
        of_bucket = [event for event in collectives if "bucket" in event["args"]]
        expect_equal(len(of_bucket), 2 * STEPS)
        expect(all(event["args"]["algorithm"] for event in collectives), "algorithms", collectives)


def test_merge():
    """traces are merged into one with a process per rank, on rank 0's clock"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = copied(name)
        # Rank 1 gets another clock, 5 s behind rank 0's.
        path = folder / "rank1.json"
        trace = json.loads(path.read_text())
        trace["otherData"]["clock"] = "another host"
        trace["otherData"]["communicators"][0].update(clock_offset_ns=5_000_000_000, clock_error_ns=1000)
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] -= 5e6
        path.write_text(json.dumps(trace))
        output = folder / "merged" / "all.json"
        output.parent.mkdir()
        result = cases.run([WEFT, "trace", "merge", folder, "-o", output])
        expect_equal(result.returncode, 0, result)
        merged = json.loads(output.read_text())
        expect_trace(merged)
        names = {event["pid"]: event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
        expect_equal(names, {0: "rank 0", 1: "rank 1", 2: "rank 2"})
        alone = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(3)]
        expect_equal(len(merged["traceEvents"]), sum(len(one["traceEvents"]) for one in alone))
        # No rank ends an all_reduce before the others have started it.
        spans = {}
        for event in merged["traceEvents"]:
            if event.get("cat") == "collective" and event["name"] == "all_reduce":
                spans.setdefault((event["args"].get("lane"), event["args"]["slot"]), []).append(event)
        spans = {key: events for key, events in spans.items() if len(events) == 3}
        expect(len(spans) >= 2 * STEPS, "collectives match", len(spans))
        for events in spans.values():
            expect(max(event["ts"] for event in events) <= min(event["ts"] + event["dur"] for event in events) + 1,
                   "one clock", events)
        # A merged file is not merged again.
        again = cases.run([WEFT, "trace", "merge", output, "-o", folder / "again.json"])
        expect(again.returncode == 1 and "is a merged trace" in again.stderr, "it says so", again)


def test_straggler():
    """the report names the rank that was late, in how many steps, by how much, and where"""
    result, page = report(shared())
    found = re.search(r"^rank (\d) was last in (\d+) % of (\d+) steps, by ([\d.]+) ms, (.*)$", result.stdout, re.M)
    expect(found, "the sentence", result)
    expect_equal((found[1], found[3], found[5]), ("2", str(STEPS), "in its backward"), result)
    expect(int(found[2]) >= 75 and 60 <= float(found[4]) <= 600, "share and time", result)
    expect(found[0][1:] in page, "the page says the same", page[:4000])
    expect("Files that are missing or damaged" not in page, "nothing is damaged", page[:4000])
    for place, where in (("before", "before its steps"), ("finish", "between its backward and finish"),
                         ("collectives", "before its calls")):
        with tempfile.TemporaryDirectory(prefix="weft-report-") as folder:
            traced(folder, place, victim=1, ranks=2)
            said = report(folder)[0].stdout
            expect(re.search(rf"^rank 1 was last in \d+ % of \d+ (steps|collectives), by .*, {where}$", said, re.M), place, said)


def test_damaged():
    """a report from damaged files names them and shows the rest"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = copied(name)
        whole = (folder / "rank1.json").read_text()
        (folder / "rank1.json").write_text(whole[:len(whole) * 2 // 3])
        (folder / "empty.json").write_text("")
        (folder / "other.json").write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1}]}')
        (folder / "deep.json").write_text('{"otherData":' + "[" * 100_000)
        (folder / "<img src=x onerror=alert(1)>.json").write_text("no")
        os.mkfifo(folder / "pipe.json")
        (folder / "link.json").symlink_to("/etc/passwd")
        with open(folder / "long.json", "wb") as file:
            file.truncate((1 << 30) + 1)
        result, page = report(folder)
        reasons = {"rank1.json": "was cut off after", "empty.json": "is not JSON", "other.json": "another program",
                   "deep.json": "too deeply", "onerror": "is not JSON", "pipe.json": "not a regular file",
                   "link.json": "cannot be opened", "long.json": "at most"}
        for file, why in reasons.items():
            for text in (result.stderr, page):
                expect(re.search(re.escape(file) + ".*" + why, text), f"{file}: {why}", text[:5000])
        expect("<img" not in page, "names are escaped", page[:5000])
        expect("rank 2 was last in" in result.stdout, "the rest is shown", result)
        expect("rank1.json" in page.split("Processes")[-1], "the events before the damage count", page[-3000:])
        # Impossible values are counted and left out.
        bent = json.loads((folder / "rank2.json").read_text())
        for event in bent["traceEvents"]:
            if event.get("cat") == "launch":
                event["ts"] = -1
        (folder / "rank2.json").write_text(json.dumps(bent))
        expect(f"has {2 * STEPS} malformed events" in report(folder)[0].stderr, "they are counted")


def test_two_runs():
    """of two runs in a folder the newer one is shown, and the files of the other are named"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = Path(name)
        ids = {}
        for run in ("b", "a"):  # neither the order of names nor that of ids decides
            traced(name, "backward", ms=5)
            for path in folder.glob("rank*.json"):
                path.rename(folder / f"{run}-{path.name}")
            ids[run] = json.loads((folder / f"{run}-rank0.json").read_text())["otherData"]["communicators"][0]["id"]
        expect(ids["a"] != ids["b"], "two communicators", ids)
        for newer, older in (("a", "b"), ("b", "a")):
            for path in folder.glob("*-rank*.json"):
                age = 100 if path.name.startswith(older) else 10
                os.utime(path, (time.time() - age, time.time() - age))
            result, page = report(folder)
            left_out = re.findall(r"(\w)-rank\d\.json belongs to another run, of 3 ranks", result.stderr)
            expect_equal(left_out, [older] * 3, result)
            expect(page.count("belongs to another run") == 3, "the page says the same", page[:3000])
            expect(f"{newer}-rank0.json" in page.split("Processes")[-1], "the newer run is shown", page[-3000:])


def test_newest_of_a_rank():
    """of two traces of a rank the newer one is shown, unless it is damaged and the older one is whole"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = copied(name)
        whole = (folder / "rank1.json").read_text()
        os.utime(folder / "rank1.json", (time.time() - 100, time.time() - 100))
        (folder / "again.json").write_text(whole)
        result, page = report(folder)
        expect("rank1.json is not the newest trace of rank 1" in result.stderr, "the newer one", result)
        (folder / "again.json").write_text(whole[:len(whole) * 2 // 3])
        result, page = report(folder)
        expect(re.search(r"again\.json is left out: .*rank1\.json is an older trace of rank 1, and whole", result.stderr),
               "the whole one", result)
        expect("rank1.json" in page.split("Processes")[-1], "it is shown", page[-3000:])


def test_killed():
    """the trace of a process that ended before it wrote its events is named with that reason"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = copied(name)
        trace = json.loads((folder / "rank1.json").read_text())
        trace["otherData"]["communicators"], trace["traceEvents"] = [], []
        (folder / "rank1.json").write_text(json.dumps(trace))
        expect("rank1.json has no events: its process ended before it wrote them" in report(folder)[0].stderr, "the reason")


def test_useless():
    """without a usable file there is no report, and every file's reason is given"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as folder:
        expect("there is no *.json file" in report(folder, code=1)[0].stderr, "nothing is there")
        Path(folder, "a.json").write_text("[]")
        for words in (["report"], ["trace", "merge"]):
            result = cases.run([WEFT, *words, folder, folder + "/b.json", "-o", folder + "/out"])
            expect_equal(result.returncode, 1, result)
            expect("a.json is not a trace of Weft" in result.stderr and "b.json cannot be opened" in result.stderr,
                   "reasons", result)
            expect(not Path(folder, "out").exists(), "nothing is written")
            expect_equal(cases.run([WEFT, *words]).returncode, 2, "a path is required")


def test_flight_records():
    """the report explains a failure as weft trace explain does"""
    with tempfile.TemporaryDirectory(prefix="weft-report-") as folder:
        environment = {"WEFT_FLIGHT": folder, "WEFT_BACKEND": "shm"}
        cases.run([WEFT, "run", "-n", "3", "--", FLIGHT_RANK, "absent", "1"], environment=environment)
        explained = json.loads(cases.run([WEFT, "trace", "explain", folder, "--json"]).stdout)["communicators"][0]
        result, page = report(folder)
        expect(explained["text"] in result.stdout and explained["text"] in html.unescape(page), "the same text", explained, result)
        expect_equal(page.count("(at fault)"), len(explained["ranks"]), explained)
        expect_equal(page.count(f"Failure of communicator {explained['comm']}"), 1, explained)


def test_self_contained():
    """the page loads nothing, and every picture has text"""
    _, text = report(shared())
    page = Page(text)
    expect_equal(page.loads, [])
    expect("url(" not in text and "@import" not in text and "http-equiv=\"Content-Security-Policy\"" in text, "styles")
    expect(page.tables >= 7 and page.captions == page.tables, "each table has a caption", page.tables)
    for section in ("Stragglers", "Timeline of buckets", "Overlap and exposed time", "Bytes and compression",
                    "Algorithms by size", "Processes"):
        expect(f"<h2>{section}</h2>" in text, section)
    expect("prefers-color-scheme: dark" in text, "light and dark")


def test_browser():
    """the page renders in Chromium without an error on the console"""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        cases.skip("chromium is not installed")
    with tempfile.TemporaryDirectory(prefix="weft-report-") as name:
        folder = copied(name)
        (folder / "bad.json").write_text("no")
        _, page = report(folder)
        dom, errors = render(browser, folder / "RUN.html")
        expect_equal(errors, [], dom[:1000])
        rendered = Page(dom)
        expect_equal(len(rendered.pictures), 2, dom[:3000])
        for picture in rendered.pictures:
            expect(picture["role"] == "img" and "rank 2" in picture["aria-label"], "text of a picture", picture)
        bars = dom.count('class="communication"')
        expect(bars >= 2 * 3, "the timeline has the buckets of three ranks", bars)
        expect(dom.count("<option") >= STEPS, "every step can be chosen")
        rows = dom.split('id="step-rows">')[1].split("</tbody>")[0]
        expect_equal(rows.count("<tr>"), 3, rows)
        # The check itself sees an error.
        (folder / "wrong.html").write_text(page.replace("JSON.parse(", "JSON.pars("))
        expect(render(browser, folder / "wrong.html")[1], "an error on the console is found")


def render(browser, path):
    """Return the DOM after scripts ran, and the console's errors."""
    with tempfile.TemporaryDirectory(prefix="weft-chromium-") as profile:
        result = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
             f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", path.as_uri()],
            capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    expect_equal(result.returncode, 0, result.stderr[-3000:])
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


cases.main(globals())
