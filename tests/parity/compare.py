"""How far two ways to average may be apart. Both are held against a sum in f64 of what each rank contributed.

With u the unit roundoff of a type, W ranks and S = sum |g_r| / W:
- DDP multiplies each g_r by the rounded 1 / W (2 u), and adds W of them in some order (W - 1 roundings), all in the
  gradient's type: it is at most (W + 1) u S off.
- Weft adds in the accumulator's type (f32 for 16 bits), divides once, and rounds once to the gradient's type: at most
  (W + 1) u_acc S + u |mean| off.
To first order; the factor 1.01 is for the rest, the smallest subnormal for results that underflow. With two ranks the
orders are the same, and where the halves of both gradients are exact (they do not underflow) the bits must be, too.
"""
import torch

ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
ACCUMULATOR = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-24, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
SUBNORMAL = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149, torch.float64: 5e-324}


def bounds(contributions, divisor):
    """The f64 mean of gradients, and how far DDP's and Weft's may be from it."""
    kind, count = contributions[0].dtype, len(contributions)
    wide = torch.stack([one.double() for one in contributions])
    mean, size = wide.sum(0) / divisor, wide.abs().sum(0) / divisor
    floor = SUBNORMAL[kind] * count
    # The reference is in f64 itself: its own error is that of a third party.
    reference = (count + 1) * 2.0**-53 * size
    ddp = 1.01 * (count + 1) * ROUNDOFF[kind] * size + reference + floor
    ours = 1.01 * ((count + 1) * ACCUMULATOR[kind] * size + ROUNDOFF[kind] * mean.abs()) + reference + floor
    return mean, ddp, ours


def bits(tensor):
    """A tensor's elements as integers: NaN and the sign of zero count."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def other_bits(ours, theirs, contributions):
    """The text of how two ranks' averages differ where their bits must be equal, or nothing."""
    exact = torch.ones(ours.shape, dtype=torch.bool)
    for one in contributions:
        exact &= (one * 0.5) * 2 == one
    differ = (bits(ours) != bits(theirs)) & exact
    if not differ.any():
        return ""
    return f"{int(differ.sum())} of {differ.numel()} elements differ, by {(ours - theirs)[differ].abs().max().item():.3g}"


def outside(value, mean, bound):
    """The text of how far value is beyond its bound, or nothing."""
    distance = (value.double() - mean).abs()
    worst = (distance - bound).max().item() if distance.numel() else 0.0
    return f"{worst:.3g} beyond its bound" if not worst <= 0 else ""
