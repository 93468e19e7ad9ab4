"""launch_info: how this process was started, without a communicator."""
from __future__ import annotations

from typing import NamedTuple

from . import _abi
from ._library import lib, raise_error


class LaunchInfo(NamedTuple):
    """How this process was started (weft_launch_info).

    rank, size  this rank, and the number of ranks; 0 and 1 without a launcher
    local_rank  number of this rank among those of its host; -1: the launcher does not say it
    local_size  number of ranks on this host; 0: the launcher does not say it
    host_index  number of this host; -1: the launcher does not say it
    host_count  number of hosts; 0: the launcher does not say it
    launcher    "weft" for Weft's own variables, "torchrun", "Slurm" and so on, or "no launcher"
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host_index: int
    host_count: int
    launcher: str


def launch_info() -> LaunchInfo:
    """Read the variables of Weft or of the launcher, without contacting other ranks.

    Programs choose their device by it: torch.cuda.set_device(launch_info().local_rank). Raises WeftError (ERR_ARG) if
    the variables contradict each other, or give only the rank or only the size. Threads: any.
    """
    info, error = _abi.LaunchInfo(), _abi.Error()
    code = lib.launch_query(info, error)
    if code:
        raise_error(code, error)
    return LaunchInfo(info.rank, info.size, info.local_rank, info.local_size, info.host_index, info.host_count,
                      info.launcher.decode())
