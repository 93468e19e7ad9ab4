"""Messages with tags, and receives from any rank, over the library's send and recv, which have neither.

A message is a header (tag, bytes) followed by its elements. The receiver has at most one receive for a header
outstanding with each peer, and only while a receive of the program waits for a message. Once a header has arrived, the
elements go into the tensor of the first receive that fits, or else into memory that waits for one.

The messages have a communicator of their own, so that its failures do not touch collectives.
"""
from __future__ import annotations

import collections
import functools
import math
import threading
from typing import Optional

import torch

from ..comm import Comm
from ..errors import WeftError
from ..request import Request
from . import _threads
from ._errors import converted
from ._tensors import part, raw
from ._work import JointWork, PostedWork, RequestWork, Work

_HEADER = 2  # int64: tag, bytes


class _Posted:
    """A receive of the program that waits for its message. peer is None for any rank."""

    def __init__(self, work: PostedWork, target: torch.Tensor, peer: Optional[int], tag: int) -> None:
        self.work, self.target, self.peer, self.tag = work, target, peer, tag

    def fits(self, peer: int, tag: int) -> bool:
        return self.tag == tag and self.peer in (None, peer)


class _Arrived:
    """A message that no receive has asked for yet. error is set if its elements did not arrive."""

    def __init__(self, peer: int, tag: int, content: torch.Tensor) -> None:
        self.peer, self.tag, self.content = peer, tag, content
        self.complete = False
        self.error: Optional[BaseException] = None
        self.taken: Optional[_Posted] = None


class Messages:
    """Sends and receives of one process group. Threads: any."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._lock = threading.RLock()
        self._posted: list[_Posted] = []
        self._arrived: collections.deque[_Arrived] = collections.deque()
        self._listening: dict[int, Request] = {}  # the receive of a header, by peer
        self._failed: dict[int, BaseException] = {}

    def send(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> Work:
        """Send the contiguous tensor."""
        header = torch.tensor([tag, tensor.nbytes], dtype=torch.int64)
        with self._lock:
            try:
                parts = [self._comm.send(part(header), peer, timeout=seconds, wait=False)]
                if tensor.nbytes:
                    parts.append(self._comm.send(raw(tensor), peer, timeout=seconds, wait=False))
            except WeftError as error:
                raise converted(error, "send", seconds) from error
        works = [RequestWork("send", one, [tensor], seconds) for one in parts if one is not None]
        return works[0] if len(works) == 1 else JointWork("send", works, seconds)

    def receive(self, tensor: torch.Tensor, peer: Optional[int], tag: int, seconds: float) -> Work:
        """Receive a message with this tag from the rank peer, or from any rank, into the contiguous tensor."""
        work = PostedWork("recv", [tensor], seconds, self._withdraw)
        posted = _Posted(work, tensor, peer, tag)
        with self._lock:
            for message in self._arrived:
                if message.taken is None and posted.fits(message.peer, message.tag):
                    message.taken = posted
                    self._deliver(message)
                    return work
            if peer in self._failed:
                raise self._failed[peer]
            self._posted.append(posted)
            for other in range(self._comm.size) if peer is None else [peer]:
                if other != self._comm.rank:
                    self._listen(other)
        return work

    def close(self, reason: BaseException) -> None:
        """Fail the receives that wait. The group's owner closes the communicator afterwards."""
        with self._lock:
            waiting, self._posted = self._posted, []
        for posted in waiting:
            posted.work.complete(reason)

    def _withdraw(self, work: Work) -> bool:
        with self._lock:
            for posted in self._posted:
                if posted.work is work:
                    self._posted.remove(posted)
                    return True
        return False

    def _listen(self, peer: int) -> None:
        """Receive the next header of the peer, if a receive of the program may need it. Holds the lock."""
        if peer in self._listening or not any(one.peer in (None, peer) for one in self._posted):
            return
        header = torch.empty(_HEADER, dtype=torch.int64)
        try:
            request = self._comm.recv(part(header), peer, timeout=math.inf, wait=False)
            assert request is not None
            self._listening[peer] = request
            _threads.watch(request._handle, lambda: self._headed(peer, request, header))
        except WeftError as error:
            self._fail(peer, converted(error, "recv", 0.0))

    def _headed(self, peer: int, request: Request, header: torch.Tensor) -> None:
        """Continue after a header: receive the elements."""
        with self._lock:
            self._listening.pop(peer, None)
            try:
                request.done()
                tag, size = (int(one) for one in header)
                if size < 0:
                    raise RuntimeError(f"weft recv: rank {peer} sent a header with {size} bytes, expected 0 or more")
                posted = next((one for one in self._posted if one.fits(peer, tag)), None)
                if posted is not None and posted.target.nbytes == size:
                    content = posted.target
                else:
                    content = torch.empty(size, dtype=torch.uint8)
                message = _Arrived(peer, tag, content)
                if posted is not None:
                    self._posted.remove(posted)
                    message.taken = posted
                self._arrived.append(message)
                if size == 0:
                    self._ended(message, None)
                else:
                    received = self._comm.recv(raw(content), peer, timeout=math.inf, wait=False)
                    assert received is not None
                    _threads.watch(received._handle, lambda: self._ended(message, received))
            except WeftError as error:
                self._fail(peer, converted(error, "recv", 0.0))
                return
            except RuntimeError as error:  # also torch's, without memory for so many bytes
                self._fail(peer, error)
                return
            self._listen(peer)

    def _ended(self, message: _Arrived, request: Optional[Request]) -> None:
        """Continue after the elements of a message."""
        with self._lock:
            try:
                if request is not None:
                    request.done()
            except WeftError as error:
                message.error = converted(error, "recv", 0.0)
            message.complete = True
            self._deliver(message)

    def _deliver(self, message: _Arrived) -> None:
        """Give a complete message to the receive that took it, if both exist. Holds the lock."""
        posted = message.taken
        if posted is None or not message.complete:
            return
        self._arrived.remove(message)
        error = message.error
        target, size = posted.target, message.content.nbytes
        if error is None and target.nbytes != size:
            error = RuntimeError(f"weft recv: the message of rank {message.peer} with tag {message.tag} has {size} "
                                 f"bytes, expected {target.nbytes}: send a tensor of the same size and type")
        if error is None and message.content is not target:
            target.detach().view(-1).view(torch.uint8).copy_(message.content)
        posted.work._source = message.peer
        _threads.submit(functools.partial(posted.work.complete, error))

    def _fail(self, peer: int, error: BaseException) -> None:
        """Fail the receives that only this peer could serve. Holds the lock."""
        self._failed[peer] = error
        others = self._comm.size - 1
        lost = [one for one in self._posted
                if one.peer == peer or (one.peer is None and len(self._failed) >= others)]
        self._posted = [one for one in self._posted if one not in lost]
        for one in lost:
            _threads.submit(functools.partial(one.work.complete, error))
