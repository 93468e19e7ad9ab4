#!/usr/bin/env python3
"""A rank that meets another version of Weft: the table "Which versions may meet in a job" of COMPATIBILITY.md.

The other version is a socket of this test that sends the hello of that version."""
import contextlib
import os
import re
import socket
import struct
import threading

from ranks_of_threads import ROOT, cases, expect, expect_equal, weft

MAGIC = b"\x89WEFT\r\n\x1a"
HELLO_BYTES = 56
SOURCE = (ROOT / "lib/rendezvous/auth.h").read_text()
PROTOCOL = int(re.search(r"kProtocolVersion = (\d+);", SOURCE)[1])
MAJOR, MINOR, PATCH = (int(re.search(rf"WEFT_VERSION_{part} (\d+)", (ROOT / "include/weft/core.h").read_text())[1])
                       for part in ("MAJOR", "MINOR", "PATCH"))
OWN = f"Weft {MAJOR}.{MINOR}.{PATCH} (protocol {PROTOCOL})"
CLIENT, SERVER = 1, 2
BEFORE = (MAJOR, MINOR - 1) if MINOR > 0 else (MAJOR - 1, 9)
# Versions that no job has together with this one: version, protocol.
OTHERS = [((*BEFORE, 0), PROTOCOL - 1), ((*BEFORE, 9), PROTOCOL), ((MAJOR, MINOR + 1, 0), PROTOCOL),
          ((MAJOR + 1, MINOR, PATCH), PROTOCOL), ((MAJOR + 1, 0, 0), PROTOCOL + 1), ((MAJOR, MINOR, PATCH), PROTOCOL + 1)]


def hello(version, protocol, role):
    number = version[0] * 10000 + version[1] * 100 + version[2]
    return MAGIC + struct.pack("<IIBB6x", protocol, number, 1, role) + os.urandom(32)


def text_of(version, protocol):
    return f"Weft {'.'.join(map(str, version))} (protocol {protocol})"


def received(connection, count):
    """Return the next bytes of the connection, fewer if it ends."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while len(data) < count and (more := connection.recv(count - len(data))):
            data += more
    return data


class OtherStore:
    """A store of another version: it answers each client with its hello, and keeps what clients sent."""

    def __init__(self, version, protocol):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.hello = hello(version, protocol, SERVER)
        self.hellos = []
        self.proofs = []  # after the store's hello
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.settimeout(10)
                self.hellos.append(received(connection, HELLO_BYTES))
                connection.sendall(self.hello)
                self.proofs.append(received(connection, 1))
                connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def test_other_store():
    """a rank whose store is of another version gets ERR_VERSION, with both versions, and proves nothing to it"""
    for version, protocol in OTHERS:
        with OtherStore(version, protocol) as store:
            try:
                weft.Comm(rank=1, size=2, store=store.address, secret=b"0123456789abcdef", init_timeout=20)
            except weft.WeftError as error:
                expect_equal(error.code, weft.Status.ERR_VERSION, error)
                expect(OWN in str(error) and text_of(version, protocol) in str(error), "both versions", error)
            else:
                expect(False, f"refused: {text_of(version, protocol)}")
            expect_equal([(one[:8], len(one)) for one in store.hellos], [(MAGIC, HELLO_BYTES)])
            cases.wait_until(lambda: store.proofs, "the connection ends")
            expect_equal(store.proofs, [b""], "after the other's hello it sends nothing")


def test_other_patch_version():
    """a rank whose store is of another patch version goes through with the handshake"""
    for patch in (PATCH + 1, 99):
        with OtherStore((MAJOR, MINOR, patch), PROTOCOL) as store:
            try:
                weft.Comm(rank=1, size=2, store=store.address, secret=b"0123456789abcdef", init_timeout=3)
            except weft.WeftError as error:
                expect(error.code != weft.Status.ERR_VERSION, "no version is refused", error)
            expect(any(store.proofs), "it proves that it holds the secret", store.proofs)


def test_other_rank():
    """a rank of another version gets the hello of the store, and the job forms with a rank of this version"""
    port = cases.free_ports()[0]
    store = f"tcp://127.0.0.1:{port}"
    options = {"size": 2, "store": store, "secret": b"0123456789abcdef", "init_timeout": 30}
    made = {}
    first = threading.Thread(target=lambda: made.update(first=weft.Comm(rank=0, **options)))
    first.start()

    def connected():
        with contextlib.suppress(ConnectionRefusedError):
            made["socket"] = socket.create_connection(("127.0.0.1", port), timeout=10)
        return "socket" in made

    for version, protocol in OTHERS:
        cases.wait_until(connected, "rank 0 listens")
        with made.pop("socket") as other:
            other.sendall(hello(version, protocol, CLIENT))
            answer = received(other, HELLO_BYTES + 1)
            expect_equal((len(answer), answer[:8]), (HELLO_BYTES, MAGIC), version)
            own = struct.unpack("<II", answer[8:16])
            expect_equal(own, (PROTOCOL, MAJOR * 10000 + MINOR * 100 + PATCH), "which says this version")
    with weft.Comm(rank=1, **options) as second:
        first.join()
        expect_equal((made["first"].size, second.size), (2, 2))
        made["first"].close()


cases.main(globals())
