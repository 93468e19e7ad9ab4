"""Writes peers.md and the pictures of bench/peers.py."""
import collections
import datetime
import json
import re
import statistics

import chart
import planner
import training
from comparison import BETWEEN_HOSTS, MEMORIES, STEPS, bound_us, fastest
from systems import run


def microseconds(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(samples, rows, arguments, found):
    """Returns the comparison as Markdown. found: the contents of peers.json besides the rows."""
    machine = found["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['system']}, compiler {machine['compiler']}; "
             f"Weft {machine['weft']} ({found['commit'] or 'no commit'}, `buildtype={machine['build_type']}`), {', '.join(found['versions'])}; "
             f"{datetime.date.today().isoformat()}; {arguments.ranks} ranks, {arguments.rounds} rounds; load before the run {found['load']:.1f}.", ""]
    lines += left_out_lines(found["left_out"])
    for work in arguments.works:
        lines += all_reduce_table(samples, rows, work) + spread_table(rows, work) + [""]
    lines += step_lines(samples, rows) + threshold_table(samples) + hosts_table(rows) + wire_lines(samples) + planner_table(samples)
    lines += training_table(samples) + hosts_training_table(samples)
    lines += limit_table(samples, arguments)
    return "\n".join(lines + target_table(found["targets"])) + "\n"


def machine_of(arguments):
    """Describes the machine from `weft info`, and the build's optimisation from the data of `meson introspect`."""
    options = json.loads((arguments.build / "meson-info" / "intro-buildoptions.json").read_text())
    build_type = next(option["value"] for option in options if option["name"] == "buildtype")
    return {**json.loads(run([arguments.build / "tools" / "weft", "info", "--json"])), "build_type": build_type}


def ucx_of(machine):
    """Returns UCX and its version, if Weft has loaded it."""
    ucx = next((backend for backend in machine["backends"] if backend["name"] == "ucx"), {"available": False})
    return re.findall(r"UCX \d[\d.]*", ucx["reason"])[:1] if ucx["available"] else []


def left_out_lines(left_out):
    def short(reason):
        words = " ".join(reason.split())
        return words if len(words) <= 300 else f"{words[:150]} ... {words[-150:]}"
    return ["Left out:", *(f"- {name}: {short(reason)}" for name, reason in left_out.items()), ""] if left_out else []


def title(work):
    shared = f"{work.ranks} ranks on {len(work.cores)} cores" if work.crowded else f"{work.ranks} ranks"
    return (f"all_reduce of f32, in place, {shared}; microseconds, and in brackets that time over Weft's (arena / private)"
            + ("" if work.crowded else "; behind Weft's the share of its bound") + ":")


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
    """Describes the spread of the rounds: a smaller difference may be noise."""
    found = {(row["work"], row["bytes"], row["system"]): row for row in rows}
    names = [f"{work.name}_f32_{memory}" for memory in MEMORIES]
    if not any(row["work"] in names for row in rows):
        return []

    def spread(row, least, most):
        return f"{microseconds(row[least])} to {microseconds(row[most])}" if row else ""

    lines = ["", "Least and most of the rounds' medians, microseconds, and in brackets of the rounds' times over Weft's (arena / private):", "",
             "| bytes | Weft, arena | Weft, private | best | best-tuned |", "|---|---|---|---|---|"]
    for size in work.sizes:
        cells = [spread(found.get((name, size, "weft")), "weft_least_us", "weft_most_us") for name in names]
        for system in ("best", "best-tuned"):
            both = [row for name in names if (row := found.get((name, size, system)))]
            ratios = " / ".join(f"{row['weft_ratio_least']:.2f} to {row['weft_ratio_most']:.2f}" for row in both)
            cells.append(f"{both[0]['which']}: {spread(both[0], 'least_us', 'most_us')} ({ratios})" if both else "")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def milliseconds(row, of=""):
    """Formats the median, minimum and maximum of the rounds."""
    median, least, most = (row[f"{of}{which}_us"] / 1e3 for which in ("median", "least", "most"))
    return f"{median:.1f} ms ({least:.1f} to {most:.1f})"


def step_lines(samples, rows):
    lines = []
    for row in rows:
        if row["work"] in STEPS and row["system"] == "ddp-gloo" and "weft_ratio" in row:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            lines += [f"Gradient step of {STEPS[row['work']]}, copy mode: Weft {milliseconds(row, 'weft_')}; DistributedDataParallel on "
                      f"Gloo {milliseconds(row)} exposed ({row['weft_ratio']:.2f} times, {row['weft_ratio_least']:.2f} to "
                      f"{row['weft_ratio_most']:.2f}), {whole / 1000:.1f} ms with its backward.", ""]
    return lines


def threshold_table(samples):
    """Tabulates private buffers with the path that autotuning chose, and with each path alone."""
    systems, sizes = samples.systems("thresholds"), samples.sizes("thresholds")
    if not systems:
        return []
    lines = ["all_reduce of f32, private buffers, along each path alone and as measured when the communicator formed; "
             "the median of all processes, microseconds:", "",
             "| bytes | " + " | ".join(systems) + " |", "|---|" + "---|" * len(systems)]
    for size in sizes:
        medians = [samples.median(("thresholds", size, system)) for system in systems]
        lines.append(f"| {size} | " + " | ".join("" if us is None else microseconds(us) for us in medians) + " |")
    found = collections.Counter(one["found"] for one in samples.noted.get("thresholds", []))
    return lines + ["", "What the processes found: " + "; ".join(f"{text}: {count}" for text, count in found.most_common()) + ".", ""]


def hosts_table(rows):
    shown = [row for row in rows if row["work"].startswith("hosts_") and not BETWEEN_HOSTS.match(row["work"])]
    lines = ["Between hosts that are namespaces of this machine (two, where not four: 4x); microseconds, and that time over Weft's:", "",
             "| work | bytes | system | median | least to most | over Weft's |", "|---|---|---|---|---|---|"] if shown else []
    for row in shown:
        ratio = f"{row['weft_ratio']:.2f}" if "weft_ratio" in row and row["system"] != "weft" else ""
        lines.append(f"| {row['work']} | {row['bytes']} | {row['system']} | {microseconds(row['median_us'])} | "
                     f"{microseconds(row['least_us'])} to {microseconds(row['most_us'])} | {ratio} |")
    return lines + [""] if shown else []


def wire_lines(samples):
    """Tabulates the bytes of Weft's all-reduces on the links over the necessary bytes, and TCP's retransmissions."""
    ratios, again = {}, {}
    for one in samples.noted.get("hosts", []):
        ratios.setdefault(one["rate"], []).append(one["ratio"])
        if one["direction"] == "sent":
            again.setdefault(one["rate"], {}).setdefault(one["round"], []).append(one["sent_again"])
    if not ratios:
        return []
    return ["Bytes on the cables, in each direction of each host, over those of the buffers:",
            *(f"- {rate}: {min(found):.4f} to {max(found):.4f}" for rate, found in ratios.items()), "",
            "Segments that TCP sent again, of both hosts, in each round:",
            *(f"- {rate}: {', '.join(str(sum(of_hosts)) for of_hosts in rounds.values())}" for rate, rounds in again.items()), ""]


def planner_table(samples):
    def ms(us):
        return "" if us is None else f"{us / 1e3:.1f}"

    lines = []
    for model, slower in planner.CASES:
        work = planner.work_of(model, slower)
        for size in samples.sizes(work):
            backward = planner.recorded(model)[1] * slower
            times = [samples.median((work, size, system)) for system in (*planner.PLANNERS, "least")]
            lines.append(f"| {model}, x{slower} | {ms(backward)} | {ms(planner.wire_us(size))} | " + " | ".join(map(ms, times)) + " |")
    return ["Milliseconds of a step between two hosts at 1 Gbit/s that a recorded backward does not hide, by what ends its buckets; x2: "
            "behind a backward twice as slow:", "", "| model | backward | on the wire | by limits | by model | least |", "|---|---|---|---|---|---|",
            *lines, ""] if lines else []


def training_table(samples):
    """Tabulates PyTorch's training steps, and their times over those of DistributedDataParallel on Gloo."""
    lines = []
    for model in training.MODELS:
        work = training.work_of(model)
        for size in samples.sizes(work):
            for way, (name, _) in training.WAYS.items():
                cells = [model, f"{size / 1e6:.0f}", name]
                for kind in ("alone ", "whole ", ""):
                    cells.append("" if (us := samples.median((kind + work, size, way))) is None else f"{us / 1e3:.1f}")
                for kind in ("whole ", ""):
                    ratios = samples.ratios((kind + work, size, way), (kind + work, size, "ddp-gloo"))
                    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "")
                lines.append("| " + " | ".join(cells) + " |")
    return ["Whole training steps of PyTorch on the CPU, milliseconds; \"exposed\" is what a forward and a backward pass take longer than "
            "alone; and both over those of DDP on Gloo, with the spread of the rounds:", "",
            "| model | MB | way | pass alone | step | exposed | step, over | exposed, over |", "|---|---|---|---|---|---|---|---|",
            *lines, ""] if lines else []


def hosts_training_table(samples):
    """Tabulates PyTorch's training steps between hosts."""
    names = {"bound": "least", "compute": "no averaging", "sockets": "beside sockets",
             **{way: name for way, (name, _) in training.BETWEEN_HOSTS.items()}}
    lines = []
    for rate, count in training.TrainingBetweenHosts.PLACES:
        for model in training.MODELS:
            work = training.work_of(model, rate, count)
            for size in samples.sizes(work):
                times = [samples.median((work, size, system)) for system in names]
                lines.append(f"| {count}, {rate} | {model} | {size / 1e6:.0f} | " +
                             " | ".join("" if us is None else f"{us / 1e3:.1f}" for us in times) + " |")
    return ["Whole training steps of PyTorch between hosts of one core and rank each, milliseconds. \"Least\" is the larger one of two: "
            "the gradients' time on the wire, and all else of the step but its backward pass; the cores' time for a step and for as many "
            "bytes over plain sockets:", "",
            "| hosts | model | MB | " + " | ".join(names.values()) + " |", "|" + "---|" * (len(names) + 3), *lines, ""] if lines else []


def limit_table(samples, arguments):
    """Tabulates the machine's bandwidth in GB/s: all cores together, reads and writes counted."""
    sizes = samples.sizes("limit_arena")
    if not sizes:
        return []
    lines = ["What the machine allows (`bench/machine_limits`), GB/s of all cores together, read and written, and in brackets the best of "
             f"all samples; a flag from one core to another takes {samples.median(('limit_flag', 8, 'machine')) * 1e3:.0f} ns:", "",
             "| bytes a rank | copy | reads all, writes all |", "|---|---|---|"]
    for size in sizes:
        keys = [(f"limit_{kind}", size, "machine") for kind in ("copy", "arena")]
        speeds = [[2 * arguments.ranks * size / us * 1e-3 for us in (samples.median(key), samples.least(key))] for key in keys]
        lines.append(f"| {size} | " + " | ".join(f"{median:.1f} ({best:.1f})" for median, best in speeds) + " |")
    return lines + [""]


def target_table(targets):
    def met(one):
        return {True: "yes", False: "no", None: one["why"]}[one["met"]]

    def spread(one):
        if one["least"] is None:
            return "" if one["value"] is None else "one"
        return f"{one['least']:.3g} to {one['most']:.3g}"

    return ["Targets; \"rounds\" is how far they lie apart:", "", "| work | target | measured | rounds | met |", "|---|---|---|---|---|"] + [
        f"| {one['work']} | {one['target']} | {one['measured']} | {spread(one)} | {met(one)} |" for one in targets]


def pictures(samples, rows, arguments, folder):
    """Draws bandwidth over size, of Weft, the fastest peers and Gloo, and the steps with their exposed parts."""
    work = next((work for work in arguments.works if work.name == "all_reduce"), None)
    curves = {}
    for name, key, system in [(f"Weft, {memory}", f"all_reduce_f32_{memory}", lambda size: "weft") for memory in MEMORIES] + [
            ("fastest peer", "all_reduce", lambda size: fastest(samples, size, False)),
            ("fastest peer, tuned", "all_reduce", lambda size: fastest(samples, size, True)),
            ("Gloo", "all_reduce", lambda size: "gloo")]:
        times = [(size, samples.median((key, size, system(size)))) for size in (work.sizes if work else ())]
        curves[name] = [(size, size / us * 1e-3) for size, us in times if us]
    if any(curves.values()):
        (folder / "bandwidth.svg").write_text(chart.lines(curves, "bytes", f"all_reduce of f32, {work.ranks} ranks: GB/s"))
    for row in rows:
        if row["work"] in STEPS and row["system"] == "ddp-gloo" and "weft_ratio" in row:
            whole = samples.median((f"whole {row['work']}", row["bytes"], "ddp-gloo"))
            exposed = max(row["median_us"], 0.0)
            # Weft's step computes nothing, so it has no backward to show.
            bars = [("Weft", 0.0, row["weft_median_us"] / 1e3),
                    ("DDP on Gloo", max(whole - exposed, 0.0) / 1e3, exposed / 1e3)]
            (folder / f"{row['work']}.svg").write_text(chart.bars(bars, "ms", ("backward of DDP's", "exposed")))
