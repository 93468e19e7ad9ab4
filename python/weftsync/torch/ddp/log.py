"""Log: what torch's DistributedDataParallel reports of itself (_get_ddp_logging_data)."""
from __future__ import annotations

import weakref
from typing import Any


class Log:
    """Takes the place of torch.distributed.Logger, which needs torch's Reducer. Threads: one at a time."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = weakref.proxy(reducer)  # which refers to its log
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def set_construction_data_and_log(self, module_name: str, device_ids: list[int], output_device: int,
                                      broadcast_buffers: bool, has_sync_bn: bool, static_graph: bool) -> None:
        """Store what is known when the module is wrapped."""
        self._texts.update(module_name=module_name, device_ids=", ".join(map(str, device_ids)))
        self._numbers.update(output_device=output_device, broadcast_buffers=int(broadcast_buffers),
                             has_sync_bn=int(has_sync_bn), static_graph=int(static_graph))

    def set_runtime_stats_and_log(self) -> None:
        """Do nothing: the reducer measures every step."""

    def set_error_and_log(self, text: str) -> None:
        """Store the text of an error."""
        self._texts["error"] = text
        self._numbers["has_error"] = 1

    def _set_comm_hook_name(self, name: str) -> None:
        self._texts["comm_hook"] = name

    def _set_static_graph(self) -> None:
        self._numbers["static_graph"] = 1

    def _set_uneven_input_join(self) -> None:
        self._numbers["join_uneven_inputs"] = 1

    def _get_ddp_logging_data(self) -> Log:
        return self

    @property
    def strs_map(self) -> dict[str, str]:
        """Texts by name."""
        return {**self._texts, **self._reducer.described()[0]}

    @property
    def ints_map(self) -> dict[str, int]:
        """Numbers by name."""
        return {**self._numbers, **self._reducer.described()[1]}
