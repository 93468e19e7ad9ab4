"""peers.md and the pictures: what bench/peers.py has found, for people."""
import datetime
import json

import chart
from comparison import MEMORIES, STEPS, bound_us
from systems import run


def microseconds(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(samples, rows, arguments, found):
    """The comparison as Markdown. found: what peers.json has besides the rows."""
    machine = found["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['system']}; Weft "
             f"{', '.join([machine['weft'], *found['versions']])}; {datetime.date.today().isoformat()}; {arguments.ranks} ranks, "
             f"{arguments.rounds} rounds; load before the run {found['load']:.1f}.", ""]
    lines += left_out_lines(found["left_out"])
    for work in arguments.works:
        lines += all_reduce_table(samples, rows, work) + spread_table(rows, work) + [""]
    lines += step_lines(samples, rows) + threshold_table(samples) + hosts_table(rows) + limit_table(samples, arguments)
    return "\n".join(lines + target_table(found["targets"])) + "\n"


def machine_of(arguments):
    return json.loads(run([arguments.build / "tools" / "weft", "info", "--json"]))


def left_out_lines(left_out):
    def short(reason):
        words = " ".join(reason.split())
        return words if len(words) <= 300 else f"{words[:150]} ... {words[-150:]}"
    return ["Left out:", *(f"- {name}: {short(reason)}" for name, reason in left_out.items()), ""] if left_out else []


def title(work):
    shared = f"{work.ranks} ranks on {len(work.cores)} cores" if work.crowded else f"{work.ranks} ranks"
    return (f"all_reduce of f32, in place, {shared}; microseconds, and in brackets that time over Weft's (arena / private); "
            "behind Weft's the share of its bound:")


def all_reduce_table(samples, rows, work):
    found = {(row["work"], row["bytes"], row["system"]): row for row in rows}
    names = [f"{work.name}_f32_{memory}" for memory in MEMORIES]
    peers = [system for system in ("best", "best-tuned", *samples.systems(work.name))
             if any(row["system"] == system and row["work"] in names for row in rows)]
    lines = [title(work), "", "| " + " | ".join(["bytes", "bound", "Weft, arena", "Weft, private", *peers]) + " |",
             "|---|---|---|---|" + "---|" * len(peers)]
    for size in work.sizes:
        mine = [found.get((name, size, "weft")) for name in names]
        bound = None if work.crowded else bound_us(samples, size)
        cells = [str(size), microseconds(bound) if bound else ""]
        for row in mine:
            share = f" ({row['weft_of_bound']:.2f})" if row and "weft_of_bound" in row else ""
            cells.append(microseconds(row["median_us"]) + share if row else "")
        for system in peers:
            arena, private = (found.get((name, size, system)) for name in names)
            which = f"{arena['which']}: " if arena and "which" in arena else ""
            cells.append(f"{which}{microseconds(arena['median_us'])} ({arena['weft_ratio']:.2f} / "
                         f"{private['weft_ratio']:.2f})" if arena and private else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines if any(row["work"] in names for row in rows) else []


def spread_table(rows, work):
    """How far the rounds lie apart: a difference that is smaller than that may be noise."""
    found = {(row["work"], row["bytes"], row["system"]): row for row in rows}
    names = [f"{work.name}_f32_{memory}" for memory in MEMORIES]
    if not any(row["work"] in names for row in rows):
        return []

    def spread(row, least, most):
        return f"{microseconds(row[least])} to {microseconds(row[most])}" if row else ""

    lines = ["", "Least and most of the rounds' medians, microseconds:", "",
             "| bytes | Weft, arena | Weft, private | best | best-tuned |", "|---|---|---|---|---|"]
    for size in work.sizes:
        cells = [spread(found.get((name, size, "weft")), "weft_least_us", "weft_most_us") for name in names]
        for system in ("best", "best-tuned"):
            row = found.get((names[0], size, system))
            cells.append(f"{row['which']}: {spread(row, 'least_us', 'most_us')}" if row else "")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def step_lines(samples, rows):
    lines = []
    for row in rows:
        if row["work"] in STEPS and row["system"] == "ddp-gloo" and "weft_ratio" in row:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            lines += [f"Gradient step of {STEPS[row['work']]}, copy mode: Weft {row['weft_median_us'] / 1000:.1f} ms; "
                      f"DistributedDataParallel on Gloo {row['median_us'] / 1000:.1f} ms exposed ({row['weft_ratio']:.2f} times), "
                      f"{whole / 1000:.1f} ms with its backward.", ""]
    return lines


def threshold_table(samples):
    """Private buffers along the path that measuring chose, and along each path alone."""
    systems, sizes = samples.systems("thresholds"), samples.sizes("thresholds")
    if not systems:
        return []
    lines = ["all_reduce of f32, private buffers, along each path alone and as measured when the communicator formed; "
             "the least median of all processes, microseconds:", "",
             "| bytes | " + " | ".join(systems) + " |", "|---|" + "---|" * len(systems)]
    for size in sizes:
        least = [samples.least(("thresholds", size, system)) for system in systems]
        lines.append(f"| {size} | " + " | ".join("" if us is None else microseconds(us) for us in least) + " |")
    return lines + [""]


def hosts_table(rows):
    shown = [row for row in rows if row["work"].startswith("hosts_")]
    lines = ["Between two hosts that are namespaces of this machine; microseconds, and that time over Weft's:", "",
             "| work | bytes | system | median | least to most | over Weft's |", "|---|---|---|---|---|---|"] if shown else []
    for row in shown:
        ratio = f"{row['weft_ratio']:.2f}" if "weft_ratio" in row and row["system"] != "weft" else ""
        lines.append(f"| {row['work']} | {row['bytes']} | {row['system']} | {microseconds(row['median_us'])} | "
                     f"{microseconds(row['least_us'])} to {microseconds(row['most_us'])} | {ratio} |")
    return lines + [""] if shown else []


def limit_table(samples, arguments):
    """What the machine moves, in GB/s: all cores together, reads and writes counted."""
    sizes = samples.sizes("limit_arena")
    if not sizes:
        return []
    lines = ["What the machine allows (`bench/machine_limits`), GB/s of all cores together, read and written; a flag from one core "
             f"to another takes {samples.median(('limit_flag', 8, 'machine')) * 1e3:.0f} ns:", "",
             "| bytes a rank | copy | reads all, writes all |", "|---|---|---|"]
    for size in sizes:
        speeds = [2 * arguments.ranks * size / samples.median((f"limit_{kind}", size, "machine")) * 1e-3
                  for kind in ("copy", "arena")]
        lines.append(f"| {size} | " + " | ".join(f"{speed:.1f}" for speed in speeds) + " |")
    return lines + [""]


def target_table(targets):
    words = {True: "yes", False: "no", None: "not measured"}
    return ["Targets:", "", "| work | target | measured | met |", "|---|---|---|---|"] + [
        f"| {one['work']} | {one['target']} | {one['measured']} | {words[one['met']]} |" for one in targets]


def pictures(samples, rows, arguments, folder):
    """Bandwidth over size, and the steps with what of them is exposed."""
    work = next((work for work in arguments.works if work.name == "all_reduce"), None)
    curves = {}
    for name, key, system in [(f"Weft, {memory}", f"all_reduce_f32_{memory}", "weft") for memory in MEMORIES] + [
            (system, "all_reduce", system) for system in samples.systems("all_reduce")]:
        times = [(size, samples.median((key, size, system))) for size in (work.sizes if work else ())]
        curves[name] = [(size, size / us * 1e-3) for size, us in times if us]
    if any(curves.values()):
        (folder / "bandwidth.svg").write_text(chart.lines(curves, "bytes", f"all_reduce of f32, {work.ranks} ranks: GB/s"))
    for row in rows:
        if row["work"] in STEPS and row["system"] == "ddp-gloo" and "weft_ratio" in row:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            exposed = max(row["median_us"], 0.0)
            # Weft's step here computes nothing: beside the same backward, all of it is exposed.
            backward = max(whole - exposed, 0.0)
            bars = [("Weft", backward / 1e3, row["weft_median_us"] / 1e3),
                    ("DDP on Gloo", backward / 1e3, exposed / 1e3)]
            (folder / f"{row['work']}.svg").write_text(chart.bars(bars, "ms", ("backward of DDP's", "exposed")))
