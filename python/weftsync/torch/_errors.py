"""Converts WeftError to the exceptions that programs of torch.distributed expect."""
from __future__ import annotations

from typing import Optional

import torch.distributed as dist

from ..constants import Status
from ..errors import WeftError

_TIMEOUTS = (Status.ERR_TIMEOUT, Status.ERR_NOT_DONE)


def timed_out(name: str, seconds: float, detail: str = "") -> RuntimeError:
    """Make the error of an operation whose deadline passed. Its words are those of Gloo."""
    error: RuntimeError = dist.DistBackendError(
        f"weft {name}: Timed out waiting {round(seconds * 1000)}ms for the operation to complete; it timed out"
        + (f": {detail}" if detail else ""))
    return error


# Remedies in the words of C, and in those of this module.
_REMEDIES = {"create the reducer with WEFT_REDUCER_UNEVEN and call weft_reducer_join on each rank that has no more data":
             "if it has fewer batches, train inside `with model.join():` on all ranks"}


def _text(error: WeftError) -> str:
    text = str(error)
    for in_c, here in _REMEDIES.items():
        text = text.replace(in_c, here)
    return text


def converted(error: WeftError, name: str, seconds: float) -> RuntimeError:
    """Make the RuntimeError for a failed operation. The WeftError is its __cause__."""
    made: RuntimeError
    if error.code in _TIMEOUTS:
        made = timed_out(name, seconds, error.text)
    elif error.code == Status.ERR_PEER_FAILED:
        made = dist.DistBackendError(f"weft {name}: Connection closed by peer: {_text(error)}")
    elif error.code == Status.ERR_FORKED:
        made = dist.DistBackendError(f"weft {name}: a forked child cannot use its parent's process groups: destroy this one "
                                     "and create one in the child")
    else:
        made = dist.DistBackendError(f"weft {name}: {_text(error)}")
    made.__cause__ = error
    return made


def failed_earlier(error: WeftError, name: str) -> RuntimeError:
    """Make the error of a call on a communicator that has failed before it. error is that failure."""
    made: RuntimeError = dist.DistBackendError(
        f"weft {name}: the communicator failed earlier, so nothing was sent: create the process group anew on all ranks. "
        f"Its failure was {error}")
    made.__cause__ = error
    return made


def stopped_waiting(name: str, seconds: float) -> RuntimeError:
    """Make the error of a wait whose own timeout passed, with the words of Gloo."""
    error: RuntimeError = dist.DistBackendError(
        f"weft {name}: Timed out waiting {round(seconds * 1000)}ms. Only Work.wait timed out: the operation continues "
        "until its deadline, and wait may be called again")
    return error


def refused(name: str, reason: str, kind: Optional[type[Exception]] = None) -> Exception:
    """Make the error of an argument that the backend refuses before anything is sent."""
    return (kind or ValueError)(f"weft {name}: {reason}")
