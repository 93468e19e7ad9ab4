"""The package's exception: what weft_error says, as attributes."""
from __future__ import annotations

from typing import Optional, Union

from .constants import NO_SLOT, NO_STEP, Evidence, Status


class WeftError(Exception):
    """A call that failed.

    code      Status, or the number of one that this package does not know
    text      what happened, to whom, and what to do
    ranks     the ranks at fault, ascending
    evidence  what that rests on
    slot      the operation's number in its order, or None
    step      the reducer's step, or None
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
