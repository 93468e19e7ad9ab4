"""DistributedDataParallel over a Weft reducer. docs/how-to/pytorch.md describes it."""
from .module import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
