"""What step.py measured, in the README and in figures/speed.svg.

    python -m tests.benchmarks.draw       # both anew, from figures/data/speed.json

The README's tables and the words below its picture are made here too.
"""

import json
import math
import re
import textwrap
from pathlib import Path
from statistics import median

from minigrad import plotting
from tests.benchmarks.step import PEERS
from tests.benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
RIVALS = ("hand+", "PyTorch", "PyTorch fused")  # the columns of the first table
ENGINES = [peer for peer in PEERS if peer not in ("minigrad", *RIVALS)]  # and of the second
LOOKS = {  # marker, its size, face and edge, and its place in a row, lest it cover others
    "minigrad": ("D", 8, plotting.BLUE, plotting.DARK, -0.25),
    "PyTorch": ("o", 7, plotting.ORANGE, plotting.ORANGE, -0.05),
    "PyTorch fused": ("o", 7, "white", plotting.ORANGE, -0.05),
    "HIPS autograd": ("^", 7, plotting.GREY, "white", 0.08),
    "SmallPebble": ("s", 5.5, plotting.GREY, "white", 0.2),
    "DeZero": ("v", 7, plotting.GREY, "white", 0.32),
    "micrograd": (">", 7, plotting.GREY, "white", 0.2),
}
LIMITS = 0.85, 70  # of the axis
EDGE = 66  # where a mark stands that lies beyond; its number stands with its name
LETTER = 0.032  # the width of a letter, in decades of the axis


def main():
    """Write both."""
    measured = json.loads((ROOT / "figures/data/speed.json").read_text(encoding="utf-8"))
    page = ROOT / "README.md"
    readme = filled(page.read_text(encoding="utf-8"), measured)
    page.write_text(readme, encoding="utf-8", newline="\n")
    print(plotting.save(figure(measured), ROOT / "figures/speed.svg"))


# ---- The README ---------------------------------------------------------------------------------


def filled(readme, measured):
    """The README with these figures in its two tables and in the words below its picture."""
    for name, summary in measured["workloads"].items():
        ratios = [summary["ratios"][f"minigrad / {peer}"]["best"] for peer in RIVALS]
        first = [f"{summary['ms']['minigrad']:.3g}", *(f"{ratio:.2f}" for ratio in ratios)]
        second = [written(times(summary, peer, over="minigrad")) for peer in ENGINES]
        readme = re.sub(rf"^(\| {name}: [^|]+\|).*", rf"\1 {cells(first)}", readme, flags=re.M)
        readme = re.sub(rf"^(\| {name} \|).*", rf"\1 {cells(second)}", readme, flags=re.M)
    picture = textwrap.fill(f"![{caption(measured)}](figures/speed.svg)", 100)
    return re.sub(r"!\[[^]]*\]\(figures/speed\.svg\)", picture, readme)


def cells(row):
    """The end of a row."""
    return " | ".join(row) + " |"


def times(summary, peer, over):
    """How many times the other's time a peer takes, in the middle try; None if it took no part."""
    ratio = summary["ratios"].get(f"{over} / {peer}")
    return median(1 / one for one in ratio["tries"]) if ratio else None


def caption(measured):
    """What the figure shows, for those who cannot see it."""
    rows = [over_hand(summary) for summary in measured["workloads"].values()]

    def span(*peers):
        numbers = [row[peer] for row in rows for peer in peers if peer in row]
        return f"{written(min(numbers))} to {written(max(numbers))}"

    return (
        f"Times of a training step over that of one written by hand, in {len(rows)} workloads: "
        f"minigrad {span('minigrad')}; PyTorch {span('PyTorch', 'PyTorch fused')}; HIPS autograd, "
        f"SmallPebble and DeZero {span('HIPS autograd', 'SmallPebble', 'DeZero')}; micrograd, in "
        f"the smallest alone, {written(rows[0]['micrograd'])}"
    )


def written(number):
    """A number to one decimal place, and from 100 in two digits."""
    if number is None:
        return "-"
    return f"{number:.1f}" if number < 100 else f"{float(f'{number:.2g}'):,.0f}"


# ---- The figure ---------------------------------------------------------------------------------


def figure(measured):
    """A row a workload, a mark a peer, at its time over that of hand+."""
    from matplotlib.figure import Figure

    rows = {name: over_hand(summary) for name, summary in measured["workloads"].items()}
    with plotting.style():
        page = Figure(figsize=(8.4, 4.4), layout="constrained")
        axes = page.add_subplot()
        for y, marks in enumerate(rows.values()):
            draw_row(axes, y, marks)
        draw_names(axes, next(iter(rows.values())))
        axes.vlines(1, -0.6, len(rows) - 0.5, color=plotting.DARK, lw=1.2, zorder=2)
        axes.set_yticks(range(len(rows)), [str(WORKLOADS[name]) for name in rows])
        axes.set(xscale="log", xlim=LIMITS, ylim=(len(rows) - 0.5, -1.9))
        axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axes.minorticks_off()
        axes.grid(False)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set_title("time of a training step over that of one written by hand (hand+)")
    return page


def over_hand(summary):
    """The times of a workload's peers over that of hand+."""
    marks = {"minigrad": median(summary["ratios"]["minigrad / hand+"]["tries"])}
    for peer in LOOKS:
        if (number := times(summary, peer, over="hand+")) is not None:
            marks[peer] = number
    return marks


def draw_row(axes, y, marks):
    """The marks of a workload."""
    axes.axhspan(y - 0.42, y + 0.42, color="#f3f3f6", lw=0)
    for peer, number in marks.items():
        marker, size, face, edge, place = LOOKS[peer]
        look = {"marker": marker, "ms": size, "mfc": face, "mec": edge, "mew": 1}
        axes.plot(min(number, EDGE), y + place, ls="", zorder=3, **look)


def draw_names(axes, marks):
    """Names above the marks of the first row, each as low as it meets no other."""
    levels = [-math.inf] * 3  # where the last name of each ends
    for peer, number in sorted([("hand+", 1.0), *marks.items()], key=lambda mark: mark[1]):
        name = peer if number <= EDGE else f"{peer}: {written(number)}"
        half = len(name) * LETTER / 2
        middle = min(math.log10(number), math.log10(LIMITS[1]) - half)
        level = next((i for i, end in enumerate(levels) if end < middle - half), 2)
        levels[level] = middle + half
        y = -0.6 - 0.4 * level
        if peer != "hand+":
            place = LOOKS[peer][-1]
            axes.vlines(min(number, EDGE), y, place, color=plotting.GREY, lw=0.7, zorder=2)
        look = {"size": 9, "weight": "bold" if peer == "minigrad" else "normal"}
        look["bbox"] = {"fc": "white", "lw": 0, "pad": 1}  # over the lines to higher names
        axes.text(10**middle, y - 0.06, name, ha="center", va="bottom", **look)


if __name__ == "__main__":
    main()
