"""The classes that torch creates for the backend "weft"."""
from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from ._operations import Operations


class ProcessGroupWeft(Operations, dist.ProcessGroup):
    """A process group of the backend "weft", for torch 2.13, where a backend in Python has to be a process group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        dist.ProcessGroup.__init__(self, rank, size)  # torch gives subclasses no constructor that takes a store
        self._store, self._splits = store, 0
        self._group_name, self._group_desc = "", "undefined"
        self._open(store, rank, size, timeout)

    def get_group_store(self) -> Any:
        """Return the group's store."""
        return self._store

    def getBackendName(self) -> str:  # torch's name
        """Return the backend's name."""
        return "weft"

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:  # torch's name
        """Return this rank."""
        return self._weft_rank

    def getGroupName(self) -> str:  # torch's name
        """Return the group's name."""
        return self._group_name

    def setGroupName(self, group_name: str) -> None:  # torch's name
        """Set the group's name."""
        self._group_name = group_name

    def getGroupDesc(self) -> str:  # torch's name
        """Return the group's description."""
        return self._group_desc

    def setGroupDesc(self, group_desc: str) -> None:  # torch's name
        """Set the group's description."""
        self._group_desc = group_desc

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def getSize(self) -> int:  # torch's name
        """Return the number of ranks."""
        return self._weft_size

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have called, or raise an error that names the absent ranks on rank 0."""
        self._check_alive("monitored_barrier")
        self._monitor.wait(self._timeout if timeout is None else timeout, wait_all_ranks)

    def split_group(self, new_ranks: list[int], timeout: Optional[timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None,
                    device_types: Any = None) -> Optional[ProcessGroupWeft]:
        """Return a process group of some ranks of this one; None on other ranks. All ranks call."""
        self._check_alive("split_group")
        self._splits += 1
        if self._weft_rank not in new_ranks:
            return None
        name = group_name or f"split {self._splits} {sorted(new_ranks)}"
        part = ProcessGroupWeft(dist.PrefixStore(f"{name}/", self._store), sorted(new_ranks).index(self._weft_rank),
                                len(new_ranks), timeout or self._timeout)
        part._set_group_name(name)
        part._set_group_desc(group_desc or "undefined")
        return part

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> ProcessGroupWeft:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self


def backend_class() -> type:
    """Make the class for torch 2.14 and later, where a backend in Python is a Backend.

    Its methods are those that torch 2.14.1 calls from C++ (PyBackend.hpp). It has not been run.
    """
    class BackendWeft(Operations, torch._C._distributed_c10d.Backend):
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            torch._C._distributed_c10d.Backend.__init__(self, rank, size)
            self._open(store, rank, size, timeout)

        def getBackendName(self) -> str:  # torch's name
            return "weft"

        def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
            self._check_alive("monitored_barrier")
            self._monitor.wait(timedelta(seconds=self._seconds(opts)), wait_all_ranks)

    return BackendWeft
