"""How far two ways to average may be apart. Both are held against a sum in f64 of what each rank contributed.

With u the unit roundoff of a type, W ranks and S = sum |g_r| / W:
- DDP multiplies each g_r by the rounded 1 / W (2 u), and adds W of them in some order (W - 1 roundings), all in the
  gradient's type: it is at most (W + 1) u S off.
- Weft adds in the accumulator's type (f32 for 16 bits), divides once, and rounds once to the gradient's type: at most
  (W + 1) u_acc S + u |mean| off.
To first order; the factor 1.01 is for the rest, the smallest subnormal for results that underflow. With two ranks the
orders are the same, and where the halves of both gradients are exact (they do not underflow) the bits must be, too.

Values come as arrays of f64, types by Weft's names. Used beside PyTorch (rank.py) and without it (test_recorded.py).
"""
import numpy as np

ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
ACCUMULATOR = {"f16": 2.0**-24, "bf16": 2.0**-24, "f32": 2.0**-24, "f64": 2.0**-53}
SUBNORMAL = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}


def difference(kind, ours, theirs, contributions, divisor, wire=None):
    """What is wrong with two averages of the ranks' contributions (zeros where a rank had none), or nothing.

    wire is the type that a hook casts them to before they are divided and added, if it does: its cast and the one
    back are two more roundings to the bounds that DDP's have above, in that type.
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
    """The text of how far value is beyond its bound, or nothing."""
    wrong = ~(np.abs(value - mean) <= bound)
    return f"{np.abs(value - mean)[wrong].max():.3g} off, beyond its bound" if wrong.any() else ""


def other_bits(kind, ours, theirs, contributions):
    """The text of how two ranks' averages differ where their bits must be equal, or nothing."""
    halves = contributions * 0.5
    exact = halves * 2 == contributions if kind == "f64" else np.fmod(halves / SUBNORMAL[kind], 1) == 0
    differ = exact.all(0) & (ours.view(np.int64) != theirs.view(np.int64))
    return f"{differ.sum()} of {differ.size} elements have other bits" if differ.any() else ""
