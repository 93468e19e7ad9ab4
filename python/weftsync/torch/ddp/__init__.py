"""DistributedDataParallel over a Weft reducer. docs/pytorch.md describes it."""
from .module import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
