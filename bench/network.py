"""The network that bench/predict.py and bench/simulate.py assume: costs of the model, and SimGrid's platforms."""
import json
import subprocess

RATES = (25, 100, 400)  # Gbit/s
PAYLOAD = 1448 / 1514  # data bytes in a frame
LATENCY_S = 5e-6  # of a message between two hosts
MESSAGE_S = 1e-6  # core time of a message, on both sides
MEMORY_BYTES_S = 30e9  # that one core reads and writes in a fold
# SimGrid's topo_parameters for a number of ranks. A route of the fat tree has four links.
FAT_TREE = {1024: "2;32,32;1,32;1,1", 4096: "2;64,64;1,64;1,1"}  # full bisection bandwidth
DRAGONFLY = {1024: "4,4;4,3;8,1;8", 4096: "8,4;4,4;16,1;8"}  # groups, chassis, routers, nodes; with links between them
TOPOLOGIES = {"fat_tree": FAT_TREE, "dragonfly": DRAGONFLY}
ROUTE_LINKS = 4


def link_byte(rate):
    """Returns a link's time for a byte of data, in seconds."""
    return 8 / (rate * 1e9 * PAYLOAD)


def model_s(tool, collective, algorithm, ranks, sizes, rates, element=4, walk="one"):
    """Returns {(bytes, Gbit/s): seconds} of the model in bench/schedules/model.h."""
    links = {repr(link_byte(rate)): rate for rate in rates}
    command = [tool, "time", collective, algorithm, "--ranks", ranks, "--bytes", ",".join(map(str, sizes)), "--walk", walk,
               "--link", ",".join(links), "--latency", LATENCY_S, "--message", MESSAGE_S, "--core", 0,
               "--memory", 1 / MEMORY_BYTES_S, "--element", element]
    found = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(found.stderr.strip())
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    return {(row["bytes"], links[repr(row["link"])]): row["seconds"] for row in rows}


def platform(topology, ranks, rate):
    """Returns SimGrid's description of a cluster, whose hosts have a speed of one flop for each byte of memory."""
    parameters = TOPOLOGIES[topology].get(ranks)
    if parameters is None:
        raise ValueError(f"no {topology} of {ranks} hosts: there are {', '.join(map(str, TOPOLOGIES[topology]))}")
    return ("<?xml version='1.0'?>\n"
            '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
            '<platform version="4.1">\n'
            f'  <cluster id="{topology}" prefix="host" suffix="" radical="0-{ranks - 1}" speed="{MEMORY_BYTES_S / 1e9:g}Gf" '
            f'bw="{1 / link_byte(rate):.0f}Bps" lat="{LATENCY_S / ROUTE_LINKS * 1e9:g}ns" topology="{topology.upper()}" '
            f'topo_parameters="{parameters}"/>\n</platform>\n')
