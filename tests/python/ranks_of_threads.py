"""Shared by the package's tests: the package under the name weft, and ranks that are threads."""
import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print(f"{sys.executable} has no NumPy (python3-numpy)")
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python")]
import cases  # noqa: E402
from cases import expect, expect_equal  # noqa: E402
import weftsync as weft  # noqa: E402

SIZE = 3
__all__ = ["ROOT", "SIZE", "cases", "expect", "expect_equal", "expect_raises", "np", "ranks", "weft"]


def ranks(body, size=SIZE, **options):
    """Run body(comm) on each rank and return the results in rank order. options override the backend loopback."""
    return weft.run_threads(size, body, **{"timeout": 20, "init_timeout": 20, "backend": "loopback", **options})


def expect_raises(kind, text, call, *arguments, **more):
    """Return the exception that the call must raise. Its text must contain text."""
    try:
        call(*arguments, **more)
    except kind as error:
        expect(text in str(error), f"the error contains {text!r}", error)
        return error
    raise AssertionError(f"expected {kind.__name__} ({text}), nothing was raised")
