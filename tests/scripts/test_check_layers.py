#!/usr/bin/env python3
"""tools/check_layers.py finds every kind of violation, and none in code that keeps the rules."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_layers  # noqa: E402


def problems(path, text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (file.parent / "beside.h").touch()
        return check_layers.check(folder)[1]


ALLOWED = [
    ("lib/base/fd.cpp", '#include "base/fd.h"\n#include <unistd.h>\n'),
    ("lib/base/log.cpp", "#include <spdlog/logger.h>\n"),
    ("lib/environment/variables.cpp", 'const char* x = getenv("WEFT_RANK");'),
    ("lib/comm/comm.cpp", '#include "comm/comm.h"\n#include "base/status.h"\n'),
    ("lib/reducer/reducer.cpp", '#include "trace/recorder.h"\n#include "reducer/plan/plan.h"\n'),
    ("lib/capi_comm.cpp", '#include "rendezvous/store.h"\n'),
    ("lib/base/guard.h", "void f() { try { g(); } catch (...) {} }"),
    ("lib/engine/engine.h", "static Poll poll(Task& task) noexcept {"),
    ("lib/registry.cpp", '#include "registry_table.h"\n'),
    ("backends/shm/ring.cpp", '#include "shm/ring.h"\n#include "beside.h"\n#include "transport/backend.h"\n'),
    ("hooks/allreduce/hook.cpp", '#include "hook/hook.h"\n#include "device/device.h"\n#include "base/status.h"\n'),
    ("lib/engine/a.cpp", "// printf( in a comment, exit(1)\nconst char* s = \"abort()\";\nint n = 1'000'000; f('x');"),
    ("lib/engine/b.cpp", "Status Comm::abort(const char* reason);\nvoid f() { comm->abort(\"x\"); snprintf(b, 1, s); }"),
    ("lib/rendezvous/mesh.cpp", "void f() { ::poll(&ready, 1, 5); ::epoll_wait(fd, events, 64, 5); }"),
    ("lib/engine/callbacks.h", "std::condition_variable changed;"),
    ("lib/base/clock.cpp", "void f() { sched_yield(); syscall(SYS_futex, &word); }"),
    ("lib/comm/lane.cpp", "Poll Lane::poll() { control_->poll(); lane.poll(rank); return poll(); }"),
    ("lib/coll/select.h", "Status select(Coll coll, const Shape& shape);"),
    ("lib/trace/flight_file.cpp", 'json["slot"] = operation.slot;'),
    ("lib/comm/lane.cpp", '#include "comm/lane.h"\n// a "lane" in a comment\nf(lane, "plane, timeslot");'),
    ("backends/loopback/control.h", "void poll(int rank) { deliver(rank); }"),
]
VIOLATIONS = [
    ("lib/base/fd.cpp", '#include "comm/comm.h"'),
    ("lib/comm/comm.cpp", '#include "reducer/reducer.h"'),
    ("lib/comm/comm.cpp", '#include "../reducer/reducer.h"'),
    ("lib/comm/comm.cpp", '#include "shm/ring.h"'),
    ("lib/coll/ring.cpp", '#include "rendezvous/store.h"'),
    ("lib/hook/hook.cpp", '#include "control/consensus.h"'),
    ("lib/engine/engine.cpp", '#include "comm/lane.h"'),
    ("lib/transport/transport.h", '#include "engine/engine.h"'),
    ("lib/reducer/step/step.cpp", '#include "reducer/feature/norms/step_norms.h"'),
    ("lib/rendezvous/store.cpp", '#include "coll/ring.h"'),
    ("lib/unknown/x.cpp", '#include "base/fd.h"'),
    ("backends/shm/ring.cpp", '#include "rendezvous/store.h"'),
    ("backends/shm/ring.cpp", '#include "loopback/queue.h"'),
    ("backends/shm/ring.cpp", '#include "../loopback/queue.h"'),
    ("hooks/cast/hook.cpp", '#include "comm/comm.h"'),
    ("hooks/cast/hook.cpp", '#include "hooks/allreduce/hook.h"'),
    ("lib/comm/comm.cpp", "#include <spdlog/spdlog.h>"),
    ("lib/comm/comm.cpp", "#include <iostream>"),
    ("lib/comm/comm.cpp", "#include <cuda_runtime.h>"),
    ("backends/shm/ring.cpp", "#include <ucp/api/ucp.h>"),
    ("lib/comm/comm.cpp", 'cat("slot ", slot, ": ranks differ")'),
    ("backends/shm/lane.cpp", 'f("one line",\n  "too many lanes");'),
    ("lib/reducer/plan/plan.cpp", 'cat("another Hash: ", tag)'),
    ("lib/comm/comm.cpp", 'auto x = std::getenv("A");'),
    ("lib/comm/comm.cpp", "void f() { try { g(); } catch (const E& e) {} }"),
    ("backends/shm/ring.cpp", 'void f() { printf("x"); }'),
    ("lib/comm/comm.cpp", "void f() { std::cerr << 1; }"),
    ("lib/comm/comm.cpp", "void f() { if (x) exit(1); }"),
    ("lib/comm/comm.cpp", "void f() {\n  _exit(1);\n}"),
    ("lib/comm/comm.cpp", "void f() {\n  abort();\n}"),
    ("lib/comm/comm.cpp", "void f() { x ? std::abort() : g(); }"),
    ("lib/comm/comm.cpp", "void f() { std::terminate(); }"),
    ("lib/comm/comm.cpp", "void f() { sigaction(1, 0, 0); }"),
    ("lib/comm/comm.cpp", "void f() { ::signal(1, h); }"),
    ("lib/comm/comm.cpp", "auto t = std::chrono::steady_clock::now();"),
    ("hooks/cast/hook.cpp", "void f() { std::this_thread::sleep_for(1ms); }"),
    ("lib/comm/comm.cpp", "void f() { ::poll(&ready, 1, 5); }"),
    ("lib/comm/comm.cpp", "int n = poll(fds.data(), fds.size(), -1);"),
    ("backends/ucx/transport.cpp", "void f() { epoll_wait(fd, events, 64, 5); }"),
    ("lib/reducer/step/step.cpp", "void f() { ::select(1, &set, nullptr, nullptr, nullptr); }"),
    ("lib/comm/comm.h", "std::condition_variable changed;"),
    ("lib/comm/comm.cpp", "std::future<int> later;"),
    ("lib/engine/engine.cpp", "void f() { syscall(SYS_futex, &word); }"),
    ("hooks/cast/hook.cpp", "void f() { std::this_thread::yield(); }"),
]


class CheckLayersTest(unittest.TestCase):
    def test_code_that_keeps_the_rules(self):
        for path, text in ALLOWED:
            self.assertEqual(problems(path, text), [], path)

    def test_every_violation_is_found_once_and_placed(self):
        for path, text in VIOLATIONS:
            with self.subTest(path=path, text=text):
                found = problems(path, text)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(path + ":"), found)

    def test_the_line_is_named(self):
        self.assertIn(":3:", problems("lib/engine/a.cpp", "/* two\nlines */\nvoid f() { std::exit(1); }")[0])


if __name__ == "__main__":
    unittest.main()
