"""How far two ways to average may differ. Both are compared with a sum in f64 of each rank's contribution.

Let u be the unit roundoff of a type, W the number of ranks, and S = sum |g_r| / W. To first order:
- DDP multiplies each g_r by the rounded 1 / W (2 u), and adds W of them in some order (W - 1 roundings), all
in the gradient's type. Its error is at most (W + 1) u S.
- Weft adds in the accumulator's type (f32 for 16 bits), divides once, and rounds once to the gradient's type.
Its error is at most (W + 1) u_acc S + u |mean|.

The factor 1.01 covers higher orders, the smallest subnormal covers results that underflow. With two ranks the
orders of addition are the same. If the halves of both gradients are exact (they do not underflow), the bits
must be equal too.

Values are arrays of f64; types have Weft's names. Used beside PyTorch (rank.py) and without it
(test_recorded.py).
"""
import numpy as np

ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
ACCUMULATOR = {"f16": 2.0**-24, "bf16": 2.0**-24, "f32": 2.0**-24, "f64": 2.0**-53}
SUBNORMAL = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}


def difference(kind, ours, theirs, contributions, divisor, wire=None):
    """Return the problems of two averages of the ranks' contributions (zeros where a rank had none), or "".

    wire: the type to which a hook casts the gradients before they are divided and added, if it does. Its two
    casts add two roundings in that type to DDP's bound above.
    """
    wide = np.stack(contributions)
    count, mean, size = len(wide), wide.sum(0) / divisor, np.abs(wide).sum(0) / divisor
    # The reference's own error, and underflow.
    common = (count + 1) * 2.0**-53 * size + SUBNORMAL[kind] * count
    ddp_bound = 1.01 * (count + 1) * ROUNDOFF[kind] * size + common
    our_bound = 1.01 * ((count + 1) * ACCUMULATOR[kind] * size + ROUNDOFF[kind] * np.abs(mean)) + common
    if wire is not None:
        ddp_bound = our_bound = (1.01 * ((count + 2) * ROUNDOFF[wire] + ROUNDOFF[kind]) * size +
                                 2 * count * SUBNORMAL[wire] + SUBNORMAL[kind])
    problems = {"ours is": outside(ours, mean, our_bound), "DDP's is": outside(theirs, mean, ddp_bound)}
    if count == 2 and divisor == 2:
        problems["against DDP's"] = other_bits(wire or kind, ours, theirs, wide)
    return ", ".join(f"{who} {problem}" for who, problem in problems.items() if problem)


def outside(value, mean, bound):
    """Return by how much value exceeds its bound, as a text; "" if it does not."""
    wrong = ~(np.abs(value - mean) <= bound)
    return f"{np.abs(value - mean)[wrong].max():.3g} off, beyond its bound" if wrong.any() else ""


def other_bits(kind, ours, theirs, contributions):
    """Return how two ranks' averages differ where their bits must be equal, as a text; "" if they do not."""
    halves = contributions * 0.5
    exact = halves * 2 == contributions if kind == "f64" else np.fmod(halves / SUBNORMAL[kind], 1) == 0
    differ = exact.all(0) & (ours.view(np.int64) != theirs.view(np.int64))
    return f"{differ.sum()} of {differ.size} elements have other bits" if differ.any() else ""
