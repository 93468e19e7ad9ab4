"""Draws measurements as SVG: line charts, and bars of two parts. Needs no other package."""
import math
from xml.sax.saxutils import escape

COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]
WIDTH, HEIGHT, LEFT, BOTTOM, LEGEND = 900, 520, 70, 45, 230


def start(title, height=HEIGHT):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
            f'role="img"><title>{escape(title)}</title><rect width="{WIDTH}" height="{height}" fill="white"/>']


class Axis:
    """Maps numbers from low to high to positions from 0 to 1, and chooses the marks."""

    def __init__(self, values, logarithmic):
        self.logarithmic = logarithmic
        if logarithmic:
            self.low, self.high = min(values), max(values)
        else:
            self.low, self.high = min(0, *values), max(values)
        if self.scaled(self.high) == self.scaled(self.low):
            self.high = self.low * 2 if logarithmic else self.low + 1

    def scaled(self, value):
        return math.log10(value) if self.logarithmic else value

    def place(self, value):
        low, high = self.scaled(self.low), self.scaled(self.high)
        return (self.scaled(value) - low) / (high - low)

    def marks(self):
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits = (1, 2, 5) if len(powers) < 6 else (1,)
            marks = [digit * 10.0 ** power for power in powers for digit in digits]
        else:
            step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
            step *= next(times for times in (1, 2, 5, 10) if (self.high - self.low) / (step * times) <= 8)
            marks = [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [mark for mark in marks if self.low <= mark <= self.high]


def lines(curves, across, up, logarithmic=(True, True)):
    """Draws {name: [(x, y), ...]} with the labels of both axes. Logarithmic axes leave out values that are not positive."""
    shown = {}
    for name, points in curves.items():
        kept = [point for point in points
                if all(value > 0 or not logarithmic[axis] for axis, value in enumerate(point))]
        if kept:
            shown[name] = kept
    if not shown:
        raise ValueError("no curve has a point to draw: logarithmic axes need positive values")
    axes = [Axis([point[axis] for points in shown.values() for point in points], logarithmic[axis]) for axis in (0, 1)]
    right, floor = WIDTH - LEGEND, HEIGHT - BOTTOM

    def place(x, y):
        return LEFT + axes[0].place(x) * (right - LEFT), floor - axes[1].place(y) * (floor - 20)

    out = start(f"{up}, over {across}")
    for axis in (0, 1):
        for mark in axes[axis].marks():
            x, y = place(mark, axes[1].low) if axis == 0 else place(axes[0].low, mark)
            to = (x, 20) if axis == 0 else (right, y)
            out.append(f'<path d="M{x:.1f} {y:.1f}L{to[0]:.1f} {to[1]:.1f}" stroke="#ddd"/>')
            at = (x, floor + 15, "middle") if axis == 0 else (LEFT - 6, y + 4, "end")
            out.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{at[2]}">{mark:g}</text>')
    for index, (name, points) in enumerate(shown.items()):
        colour, dashes = COLOURS[index % len(COLOURS)], "" if index < len(COLOURS) else ' stroke-dasharray="5 3"'
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in points))
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')
        y = 30 + 18 * index
        out.append(f'<path d="M{right + 15} {y}h22" stroke="{colour}" stroke-width="2"{dashes}/>'
                   f'<text x="{right + 43}" y="{y + 4}">{escape(name)}</text>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
               f'<text x="14" y="14">{escape(up)}</text></svg>')
    return "\n".join(out) + "\n"


def bars(rows, unit, parts):
    """Draws [(name, hidden, exposed), ...] as bars, one below the other. parts: the names of the two parts."""
    if not rows:
        raise ValueError("rows is empty, expected one row for each bar")
    height, widest = 60 + 34 * len(rows), max(hidden + exposed for _, hidden, exposed in rows) or 1
    out = start(", ".join(f"{name}: {hidden + exposed:.3g} {unit}" for name, hidden, exposed in rows), height)
    for index, (name, hidden, exposed) in enumerate(rows):
        y, scale = 40 + 34 * index, (WIDTH - LEGEND - 110) / widest
        out.append(f'<text x="{LEGEND - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
                   f'<rect x="{LEGEND}" y="{y}" width="{hidden * scale:.1f}" height="22" fill="#c7c7c7"/>'
                   f'<rect x="{LEGEND + hidden * scale:.1f}" y="{y}" width="{exposed * scale:.1f}" height="22" '
                   f'fill="{COLOURS[3]}"/>'
                   f'<text x="{LEGEND + (hidden + exposed) * scale + 6:.1f}" y="{y + 15}">'
                   f'{hidden + exposed:.3g} {escape(unit)}</text>')
    for index, (part, colour) in enumerate(zip(parts, ("#c7c7c7", COLOURS[3]))):
        out.append(f'<rect x="{LEGEND + 220 * index}" y="12" width="14" height="14" fill="{colour}"/>'
                   f'<text x="{LEGEND + 20 + 220 * index}" y="24">{escape(part)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"
