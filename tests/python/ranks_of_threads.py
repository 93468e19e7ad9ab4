"""What the tests of the package share: the package, and ranks that are threads."""
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
    """What body(comm) returned on each rank; over loopback, unless options say otherwise."""
    return weft.run_threads(size, body, **{"timeout": 20, "init_timeout": 20, "backend": "loopback", **options})


def expect_raises(kind, text, call, *arguments, **more):
    """The exception that the call must raise, with this text in it."""
    try:
        call(*arguments, **more)
    except kind as error:
        expect(text in str(error), f"the error says {text!r}", error)
        return error
    raise AssertionError(f"no {kind.__name__} ({text})")
