"""How long a training step takes: minigrad beside hand-written NumPy, PyTorch and small engines.

    python -m tests.benchmarks.step                      # all workloads: about ten minutes
    python -m tests.benchmarks.step --workload W1 W2     # some of them
    python -m tests.benchmarks.step --threads 2          # two BLAS threads, elapsed time
    python -m tests.benchmarks.step --json figures/data/speed.json    # and then, for the README,
    python -m tests.benchmarks.draw

One process, all peers in turn, a block of at least 20 ms each, in 12 rounds; a ratio is the median
over the rounds of two blocks of one round. In each round a peer is new, lest it train on into
gradients of nearly zero, and it makes two steps before its clock starts; one whose steps are long
goes on where it was. What is claimed is one BLAS thread and processor time: it is steadier than
elapsed time and counts all that a peer does but, as in timeit, the collection of cyclic garbage.
A machine that others use gets noisy for minutes: three tries, and a ratio's best one counts.

Some machines set OPENBLAS_CORETYPE or OPENBLAS_L2_SIZE, which slow a current NumPy: run with both
unset. The head of the output names the kernel that ran.
"""

import argparse
import gc
import importlib
import json
import os
import platform
import sys
import time
from importlib import metadata
from itertools import combinations
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from tests.benchmarks.workloads import WORKLOADS, does, draw

PEERS = {
    "minigrad": ("tests.benchmarks.ours", "Minigrad"),
    "hand+": ("tests.benchmarks.handplus", "HandPlus"),
    "PyTorch": ("tests.benchmarks.pytorch", "Eager"),
    "PyTorch fused": ("tests.benchmarks.pytorch", "Fused"),
    "HIPS autograd": ("tests.benchmarks.engines.hips_autograd", "HipsAutograd"),
    "SmallPebble": ("tests.benchmarks.engines.smallpebble", "SmallPebble"),
    "DeZero": ("tests.benchmarks.engines.dezero", "DeZero"),
    "micrograd": ("tests.benchmarks.engines.micrograd", "Micrograd"),
}
COMPARED = ("minigrad", "hand+")  # each to all that come after it
PACKAGES = {  # whose versions are told
    "PyTorch": "torch",
    "HIPS autograd": "autograd",
    "SmallPebble": "smallpebble",
    "DeZero": "dezero",
    "micrograd": "micrograd",
}
BOUNDS = {  # at most this many times a peer's time is what minigrad claims
    "hand+": {"W1": 1.6, "W2": 1.1, "W3": 1.1, "W4": 1.1, "W5a": 1.1, "W5b": 1.1},
    "PyTorch": {"W1": 0.3, "W2": 0.9, "W3": 1.05, "W4": 0.9, "W5a": 1.05, "W5b": 1.05},
}
BLAS_FIELDS = ("internal_api", "version", "architecture", "num_threads")  # no path of the machine
ROUNDS, BLOCK_SECONDS, WARM_STEPS = 12, 0.02, 2
LONG_SECONDS = 0.2  # of a step: its peer is not made anew in each round


def main(arguments=None):
    """Measure, print a table, and write the figures to a file where one is named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="W"
    )
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="1 is what counts")
    parser.add_argument("--tries", type=int, default=3, help="the best of them counts (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    options = parser.parse_args(arguments)

    peers = importable_peers()
    limit_threads(options.threads)
    figures = describe(options.threads, options.tries)
    print_head(figures)
    gc.freeze()  # all that is loaded by now, so that the collection before a block is cheap
    gc.disable()
    for name in options.workload:
        workload = WORKLOADS[name]
        able = {peer: made for peer, made in peers.items() if does(made, workload)}
        tries = [measure(workload, able, options.threads) for _ in range(options.tries)]
        figures["workloads"][name] = summarize(name, tries, options.threads == 1)
        print_rows(name, figures["workloads"][name])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def importable_peers():
    """The classes of `PEERS`; one line for each package that is absent."""
    peers, absent = {}, set()
    for name, (module, cls) in PEERS.items():
        try:
            peers[name] = getattr(importlib.import_module(module), cls)
        except ModuleNotFoundError as error:
            absent.add(error.name)
    for package in sorted(absent):
        print(f"{package} is not installed: its peers are left out.")
    return peers


def limit_threads(threads):
    """As many threads for NumPy's BLAS as for PyTorch, until the process ends."""
    threadpool_limits(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


# ---- Measuring ---------------------------------------------------------------------------------


def measure(workload, peers, threads):
    """Seconds a step: {peer: one figure a round}."""
    clock = time.process_time if threads == 1 else time.perf_counter
    drawn = draw(workload)
    steps, kept = {}, {}
    for name in peers:
        peer = warm(peers[name], workload, drawn)
        steps[name], last = steps_a_block(peer, clock)
        if last > LONG_SECONDS:
            kept[name] = peer
    seconds = {name: [] for name in peers}
    turns = list(peers)
    for _ in range(ROUNDS):
        turns.reverse()  # so that nobody always comes after the same peer
        for name in turns:
            peer = kept[name] if name in kept else warm(peers[name], workload, drawn)
            gc.collect()
            seconds[name].append(time_steps(peer, steps[name], clock) / steps[name])
    return seconds


def warm(peer_class, workload, drawn):
    """A new peer that has made its first steps."""
    peer = peer_class(workload, *drawn)
    for _ in range(WARM_STEPS):
        peer.step()
    return peer


def steps_a_block(peer, clock):
    """How many steps take at least as long as a block, a power of two; and seconds of them."""
    steps = 1
    while (seconds := time_steps(peer, steps, clock)) < BLOCK_SECONDS:
        steps *= 2
    return steps, seconds


def time_steps(peer, steps, clock):
    """Seconds of so many steps."""
    step = peer.step
    start = clock()
    for _ in range(steps):
        step()
    return clock() - start


def summarize(workload, tries, claimed):
    """Milliseconds of each peer; minigrad's and hand+'s ratio to the others, and the bounds."""
    peers = list(tries[0])
    summary = {"ms": {}, "ratios": {}}
    for peer in peers:
        summary["ms"][peer] = 1e3 * min(float(np.median(seconds[peer])) for seconds in tries)
    for peer, other in combinations(peers, 2):
        if peer not in COMPARED:
            continue
        medians = [float(np.median(np.divide(one[peer], one[other]))) for one in tries]
        ratio = {"best": min(medians), "tries": medians}
        if claimed and peer == "minigrad" and other in BOUNDS:
            bound = BOUNDS[other][workload]
            ratio |= {"bound": bound, "met": ratio["best"] <= bound}
        summary["ratios"][f"{peer} / {other}"] = ratio
    return summary


# ---- Showing -----------------------------------------------------------------------------------


def describe(threads, tries):
    """What was measured, how and where."""
    versions = {"Python": platform.python_version(), "NumPy": np.__version__}
    for name, package in PACKAGES.items():
        if package in sys.modules:
            versions[name] = metadata.version(package)
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": versions,
        "blas": [
            {field: pool.get(field) for field in BLAS_FIELDS}
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        ],
        "clock": "processor time" if threads == 1 else "elapsed time",
        "threads": threads,
        "rounds": ROUNDS,
        "tries": tries,
        "workloads": {},
    }


def processor():
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def print_head(figures):
    """The conditions, and the head of the table."""
    machine, versions = figures["machine"], figures["versions"]
    print(f"{machine['processor']}, {machine['cores']} cores")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    for blas in figures["blas"]:
        print(f"{blas['internal_api']} {blas['version']}, kernel {blas['architecture']}", end="; ")
        print(f"threads: {blas['num_threads']}")
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"{variable} is set and may slow NumPy: unset it for this command.")
    print(f"{figures['clock']}, medians of {figures['rounds']} rounds, a ratio's best", end=" ")
    print(f"of {figures['tries']} tries\n")
    print(f"{'':4}{'peer':14}{'ms a step':>10}{'minigrad/peer':>15}{'at most':>9}", end="")
    print(f"{'hand+/peer':>18}", flush=True)


def print_rows(workload, summary):
    """A row a peer."""
    for peer, ms in summary["ms"].items():
        row = f"{workload:4}{peer:14}{ms:10.3f}"
        if ratio := summary["ratios"].get(f"minigrad / {peer}"):
            row += f"{ratio['best']:15.3g}"
            if "bound" in ratio:
                row += f"{ratio['bound']:9.2f}  {'met' if ratio['met'] else 'MISSED':6}"
        if ratio := summary["ratios"].get(f"hand+ / {peer}"):
            row = f"{row:60}{ratio['best']:10.3g}"
        print(row.rstrip(), flush=True)


if __name__ == "__main__":
    main()
