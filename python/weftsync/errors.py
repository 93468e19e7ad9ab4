"""WeftError, the package's exception: the fields of weft_error as attributes."""
from __future__ import annotations

from typing import Optional, Union

from .constants import NO_SLOT, NO_STEP, Evidence, Status


class WeftError(Exception):
    """Raised when the library refuses or fails a call.

    code      Status; a plain int if this package does not know the number
    text      what failed, on which rank, and what to do
    ranks     the ranks at fault in ascending order, at most 64; empty if no rank is at fault
    evidence  Evidence: the observation from which the failure was concluded; an int if the number is unknown
    slot      sequence number of the operation on its communicator or reducer, or None
    step      number of the reducer's step, or None
    """

    def __init__(self, code: int, text: str, *, ranks: tuple[int, ...] = (), evidence: int = 0, slot: int = NO_SLOT,
                 step: int = NO_STEP) -> None:
        super().__init__(text)
        self.code: Union[Status, int] = Status(code) if code in set(Status) else code
        self.text = text
        self.ranks = ranks
        self.evidence: Union[Evidence, int] = Evidence(evidence) if evidence in set(Evidence) else evidence
        self.slot: Optional[int] = None if slot == NO_SLOT else slot
        self.step: Optional[int] = None if step == NO_STEP else step

    def __str__(self) -> str:
        name = self.code.name if isinstance(self.code, Status) else f"status {self.code}"
        return f"{name}: {self.text}"


def described(error: BaseException) -> str:
    """Return the type and the text of an exception, even if its __str__ raises."""
    try:
        text = str(error)
    except Exception:
        text = "(its __str__ raised an exception)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
