"""Model: what the reducers of this package know of a module's parameters."""
from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

import torch

from ..._memory import row_major, same_strides
from ...reducer import _dense


@dataclasses.dataclass
class Settings:
    """How DistributedDataParallel reduces gradients; equal on all ranks.

    limits         bytes at which buckets end; the last one repeats
    view           gradients are views of the buckets
    find_unused    parameters may be unused in a step
    static         the first step shows which parameters are used, and how often
    reduce_dtype   element type in which gradients are communicated; None: their own
    uneven         ranks may have no data in a step
    divide_by      "world", or "active": the ranks that have data
    """

    limits: Sequence[int]
    view: bool
    find_unused: bool
    static: bool
    reduce_dtype: Optional[str] = None
    uneven: bool = False
    divide_by: str = "world"

    @property
    def absent(self) -> bool:
        """True if some parameters may have no gradient in a step."""
        return self.find_unused or self.static


class Model:
    """The parameters of a module whose gradients are reduced, in the order of the module.

    parameters  tensors that require a gradient, each once
    names       of the parameters, for errors
    sparse      True for a parameter whose gradients are sparse COO tensors
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], names: Sequence[str], sparse: Sequence[bool]) -> None:
        self.parameters, self.names, self.sparse = list(parameters), list(names), list(sparse)
        # Autograd gives a gradient the strides of its parameter, if these are dense.
        self.strides = [parameter.stride() if _dense(parameter.shape, parameter.stride()) else row_major(parameter.shape)
                        for parameter in self.parameters]

    def __len__(self) -> int:
        return len(self.parameters)

    def fits(self, index: int, gradient: torch.Tensor) -> bool:
        """Return True if a dense gradient has the layout and the type of its parameter."""
        return gradient.dtype == self.parameters[index].dtype and (
            gradient.stride() == self.strides[index] or
            same_strides(gradient.shape, gradient.stride(), self.strides[index]))

    def described(self, indices: Sequence[int]) -> str:
        """List parameters for an error, by name and index."""
        listed = [f"{self.names[index]} ({index})" for index in indices[:20]]
        return ", ".join(listed) + (f" and {len(indices) - 20} more" if len(indices) > 20 else "")

    def empty_gradient(self, index: int) -> torch.Tensor:
        """Return a new tensor with the layout of a parameter's gradient; its contents are undefined."""
        parameter = self.parameters[index]
        return torch.empty_strided(parameter.shape, self.strides[index], dtype=parameter.dtype, device=parameter.device)

    def zero_gradient(self, index: int) -> torch.Tensor:
        """Return a new tensor of zeros with the layout of a parameter's gradient."""
        return self.empty_gradient(index).zero_()
