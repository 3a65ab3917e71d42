"""`minigrad rates`: what it measured is what it says, what it measures is what it measured, and
whether accumulation pays is decided seed by seed.

The recorded experiment is figures/data/rates.json. Other processors round otherwise, which training
makes larger, and another NumPy may draw otherwise: what is run again is compared within the spread.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigrad as mg
from minigrad import cli, plotting, rates
from minigrad.data import digits, measured
from tests.lines import PACKAGE
from tests.refusals import refused_before_any_work

RECORDED = measured("rates")
NAMES = ("kept", "cold", "linear", "best", "small")
README = " ".join((PACKAGE.parent / "README.md").read_text(encoding="utf-8").split())


def recorded(name, batch_size):
    return rates.of(RECORDED[name], batch_size)


def surely(a, b):
    """b is larger than a: the mean difference, seed by seed, is above two standard errors."""
    difference, error = rates.paired(a, b)
    return difference - error > 0


# ------------------------------------------------------------------------- what is recorded


def test_the_record_is_of_the_experiment_that_is_in_the_code():
    assert RECORDED["settings"] == rates.settings()
    assert all(len(one["end"]) == 10 for name in NAMES for one in RECORDED[name])
    for name in ("kept", "cold", "linear"):
        assert [one["batch"] for one in RECORDED[name]] == list(rates.BATCHES)
        assert all(one["samples"][-1] == rates.SAMPLES for one in RECORDED[name])
    assert {one["rate"] for one in RECORDED["kept"]} == {rates.RATE}
    for name in ("cold", "linear"):
        assert [one["rate"] for one in RECORDED[name]] == [rates.scaled(b) for b in rates.BATCHES]
    assert [(one["batch"], one["rate"]) for one in RECORDED["small"]] == list(rates.SMALL.values())
    assert [one["batch"] for one in RECORDED["best"]] == list(rates.TUNED)
    for one in RECORDED["best"]:
        assert one["rate"] == rates.fastest(RECORDED["trials"][str(one["batch"])])
        assert (
            rates.RATES[0] < one["rate"] < rates.RATES[-1]
        )  # no better one outside of those tried


@pytest.mark.parametrize(("name", "batch_size"), [("linear", 64), ("linear", 128), ("best", 128)])
def test_three_seeds_run_again_come_out_as_the_ten_that_are_recorded(name, batch_size):
    one, seeds = recorded(name, batch_size), range(3)
    warm = digits()[0][0].shape[0] if name == "linear" else 0
    again = rates.summary(
        batch_size, one["rate"], rates.runs(batch_size, one["rate"], seeds, warm=warm)
    )
    assert again["samples"] == one["samples"]
    assert abs(np.mean(again["end"]) - np.mean(one["end"])) <= 3 * np.std(one["end"], ddof=1)
    assert np.max(np.abs(np.subtract(again["mean"], one["mean"])[:3])) < 0.2


def test_the_same_seed_gives_the_same_run_and_another_another():
    runs = [rates.train(64, 0.25, seed, samples=512) for seed in (0, 0, 1)]
    assert runs[0].updates == runs[1].updates
    assert runs[0].losses == runs[1].losses
    assert runs[0].updates[0] != runs[2].updates[0]


def test_the_larger_batches_are_accumulated_and_the_micro_batch_changes_nothing(monkeypatch):
    """To rounding: 8 updates in float32, in 8 parts, in 4 and at once."""
    steps, step = [], mg.train_step

    def counted(*arguments, **options):
        steps.append(step(*arguments, **options))
        return steps[-1]

    monkeypatch.setattr(mg, "train_step", counted)
    losses = []
    for micro in (16, 32, 128):
        monkeypatch.setattr(rates, "MICRO", micro)
        losses.append(rates.train(128, 0.25, seed=0, samples=1024).updates)
        assert {report.micro_batches for report in steps[-8:]} == {128 // micro}
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


def test_all_sizes_see_the_same_samples_in_the_same_order(monkeypatch):
    seen = {}
    for batch_size in (8, 64):
        rows = seen.setdefault(batch_size, [])
        monkeypatch.setattr(
            mg,
            "train_step",
            lambda model, loss, optimizer, batch, **_: (
                rows.extend(batch[1])  # noqa: B023
                or SimpleNamespace(loss=0.0)
            ),
        )
        rates.train(batch_size, 0.1, seed=0, samples=2048)
    assert seen[8] == seen[64]
    assert len(seen[8]) == 2048


# --------------------------------------------------------------------- what the linear rule does


def test_the_linear_rule_holds_up_to_128_and_then_fails_with_and_without_warm_up():
    for name in ("linear", "cold"):
        assert rates.held(RECORDED[name]) == [8, 16, 32, 64, 128]
        beyond = [one["end"] for one in RECORDED[name] if one["batch"] > 128]
        first = RECORDED[name][0]["end"]
        assert all(surely(np.add(first, 2 * np.std(first, ddof=1)), end) for end in beyond)


def test_a_rule_holds_as_long_as_the_mean_is_within_two_deviations_and_no_longer():
    ends = {8: [1, 2, 3], 16: [2, 3, 4], 32: [4, 4, 4], 64: [4, 4.1, 4.2], 128: [2, 2, 2]}
    made = [{"batch": b, "end": end} for b, end in ends.items()]
    assert rates.held(made) == [8, 16, 32]  # 128 is near again, but 64 was not
    assert rates.held(made[:2]) == [8, 16]


def test_where_it_fails_the_rate_has_met_the_curvature():
    """2 / h is between the last rate that holds and the first that does not, to a factor of two."""
    last, failing = (recorded("linear", b)["rate"] for b in (128, 256))
    limit = 2 / np.array(RECORDED["sharpness"])
    assert last / 2 < limit.min() < limit.max() < failing
    assert abs(np.log2(limit.mean() / last)) < 1 / 4


def test_the_rule_fails_where_it_failed_when_it_is_run_again():
    end = [run.losses[-1] for run in rates.runs(512, rates.scaled(512), range(3), warm=1536)]
    assert min(end) > 5 * np.mean(recorded("linear", 8)["end"])


def test_at_the_same_rate_batches_agree_at_equal_updates():
    small = recorded("kept", 8)
    for batch_size in (32, 128, 512):
        large = recorded("kept", batch_size)
        at = dict(zip(large["samples"], large["mean"]))
        ratios = [
            at[updates * batch_size] / mean
            for samples, mean in zip(small["samples"], small["mean"])
            if (updates := samples // 8) * batch_size in at
        ]
        assert len(ratios) == {32: 12, 128: 3, 512: 0}[batch_size]
        assert all(0.95 < ratio < 1.05 for ratio in ratios)
        assert large["mean"][-1] > 3 * small["mean"][-1]  # at equal samples they do not


@pytest.mark.parametrize("batch_size", [32, 128])
def test_in_proportion_they_agree_at_equal_samples(batch_size):
    small, large = recorded("linear", 8), recorded("linear", batch_size)
    ratios = np.divide(large["mean"], small["mean"])
    assert ratios.min() > 0.9
    assert ratios.max() < 1.15
    assert small["mean"][-1] < small["mean"][0] / 10  # and they learn


# ---------------------------------------------------------------------- whether it pays


def test_where_an_update_costs_nothing_accumulation_is_a_waste():
    """From its own batch, 32, on, a larger one takes more samples, and ends higher with all."""
    own = recorded("best", rates.MICRO)
    for batch_size in (64, 128, 256):
        many = recorded("best", batch_size)
        assert surely(rates.cost(own, 0), rates.cost(many, 0))
        assert surely(own["end"], many["end"])


def test_where_an_update_is_dear_it_pays():
    own, many = recorded("best", 32), recorded("best", 128)
    assert surely(rates.cost(many, 1000), rates.cost(own, 1000))
    assert surely(rates.cost(own, 10), rates.cost(many, 10))
    updates = [rates.cost(one, 0) / one["batch"] for one in (many, own)]
    assert surely(*updates)


def test_it_is_a_waste_when_it_is_run_again():
    """At equal samples, more and smaller updates reach a lower loss."""
    own, many = (
        [run.losses[-1] for run in rates.runs(b, recorded("best", b)["rate"], range(4))]
        for b in (32, 128)
    )
    assert surely(own, many)


def test_the_target_is_reached_at_the_first_look_at_or_below_it(monkeypatch):
    def run(*losses):
        return rates.Run([256, 512, 768], list(losses), [], None)

    assert rates.reached(run(0.4, rates.TARGET, 0.2)) == 512
    assert rates.reached(run(0.4, 0.25, 0.5)) == 512
    assert rates.reached(run(0.4, 0.31, 0.5)) is None
    # A rate at which one of the trials does not arrive is none to choose.
    ways = {1000: run(0.2, 0.2, 0.2), 1001: run(0.2, 0.2, 0.2), 1002: run(1, 1, 1)}
    safe = run(1, 1, 0.2)
    monkeypatch.setattr(
        rates, "train", lambda b, rate, seed, until: safe if rate == 0.25 else ways[seed]
    )
    tried = rates.trial(8)
    assert {rate: samples for rate, samples in tried.items() if samples} == {"0.25": 768}
    assert rates.fastest(tried) == 0.25


def test_the_cost_is_the_samples_and_so_much_an_update():
    way = {"batch": 8, "reached": [80, None]}
    np.testing.assert_array_equal(rates.cost(way, 100), [80 + 100 * 10, np.nan])


def test_paired_differences_are_taken_seed_by_seed():
    difference, error = rates.paired([1, 2, 3, 4], [2, 4, 4, 6])
    assert difference == 1.5
    assert math.isclose(error, 2 * np.std([1, 2, 1, 2], ddof=1) / 2)


# ----------------------------------------------------------------------------- small batches


def test_a_batch_of_one_is_noisier_and_not_unstable_in_itself():
    assert list(rates.SMALL) == ["one", "eight", "many", "free", "wild"]
    one, eight, many, free, wild = RECORDED["small"]
    assert surely(np.multiply(2, eight["scatter"]), one["scatter"])
    assert surely(np.multiply(2, many["scatter"]), eight["scatter"])
    assert abs(np.mean(one["end"]) - np.mean(eight["end"])) < np.std(eight["end"], ddof=1) / 4
    assert max(free["end"]) < 0.5 < min(eight["end"])  # at a rate of its own it is far ahead
    assert min(wild["end"]) > math.log(10)  # and at that of 32 it learns nothing


def test_a_batch_of_one_is_not_unstable_when_it_is_run_again():
    end = [run.losses[-1] for run in rates.runs(1, rates.RATE, range(2), samples=1536)]
    assert max(end) < 0.5


def test_scatter_sees_the_noise_and_not_the_trend():
    rng = np.random.default_rng(0)
    trend = np.linspace(100, 0, 20_000)
    assert abs(rates.scatter(trend + rng.standard_normal(20_000)) - 1) < 0.02
    assert rates.scatter(trend) < 0.004


# ------------------------------------------------------------------------------ the curvature


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian(monkeypatch):
    """Of a small net, whose Hessian is written out, column by column."""
    monkeypatch.setattr(rates, "SIZES", (64, 2, 10))
    model = mg.MLP(64, 2, 10, rng=np.random.default_rng(1), dtype=np.float64)
    x, y = digits(np.float64)[0]

    def gradient():
        mg.accumulate(model, mg.cross_entropy, (x, y), micro_batch_size=len(x))
        return np.concatenate([p.grad.ravel() for p in model.parameters()])

    columns = []
    for p in model.parameters():
        values = p.data.reshape(-1)
        for i in range(values.size):
            start, ends = values[i], []
            for values[i] in (start - 1e-7, start + 1e-7):
                ends.append(gradient())
            values[i] = start
            columns.append((ends[1] - ends[0]) / 2e-7)
    hessian = np.array(columns)
    eigenvalues = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    assert eigenvalues[0] < 0 < eigenvalues[-2] < 0.9 * eigenvalues[-1]
    assert abs(rates.sharpness(model) / eigenvalues[-1] - 1) < 1e-6


# --------------------------------------------------------------- what is printed and drawn


def test_the_tables_state_mean_and_spread():
    text = rates.table(RECORDED)
    assert text.count("±") == 3 * len(rates.BATCHES) + 2 * len(rates.TUNED) + len(rates.SMALL) + 1
    assert max(map(len, text.splitlines())) <= 100
    end = recorded("linear", 128)["end"]
    assert f"{np.mean(end):.3f} ± {np.std(end, ddof=1):.3f}" in text
    assert "nan" not in text


def test_a_way_that_does_not_arrive_is_no_number():
    """One seed of ten does not reach the target: no mean of the other nine stands in its place."""
    best = [{**one, "reached": [None, *one["reached"][1:]]} for one in RECORDED["best"]]
    assert rates.best_rates({"best": best}).count("nan") == 6 * len(best)


def test_the_conclusions_say_what_was_computed():
    ends, axes, waste, single = rates.conclusions(RECORDED)
    assert "up to a batch of 128, after a warm-up over the first epoch, and to 128 without" in ends
    assert "tuned alone, 128 and 256 do best beyond it" in ends
    own, many = recorded("best", 32), recorded("best", 128)
    assert f"{np.mean(own['reached']):,.0f} samples" in waste
    worse, error = rates.paired(own["end"], many["end"])
    assert f"with all samples, by {worse:.3f} ± {error:.3f}" in waste
    n, N = np.mean(own["reached"]), np.mean(many["reached"])
    even = (N - n) / (n / 32 - N / 128)
    assert f"costs as much as {even:.0f} samples" in waste
    assert math.isclose(n + even * n / 32, N + even * N / 128)
    assert "128 has made 96 updates" in axes
    assert "not unstable in itself" in single


def test_the_caption_in_the_readme_is_what_was_measured():
    found = re.search(
        r"from 8 to (\d+) and no further\. At its best rate a batch of 8 takes ([\d,]+) samples to "
        r"a loss of ([\d.]+), one of 32 takes ([\d,]+), one of 128 takes ([\d,]+); they take "
        r"(\d+), (\d+) and (\d+) updates\]\(figures/learning_rate\.svg\)",
        README,
    ).groups()
    samples = [np.mean(recorded("best", b)["reached"]) for b in (8, 32, 128)]
    expected = [
        str(rates.held(RECORDED["linear"])[-1]),
        f"{samples[0]:,.0f}",
        str(rates.TARGET),
        *(f"{n:,.0f}" for n in samples[1:]),
        *(f"{n / b:.0f}" for n, b in zip(samples, (8, 32, 128))),
    ]
    assert list(found) == expected
    even = re.search(r"pay where it costs as much as (\d+) samples or more", README).group(1)
    assert f"as much as {even} samples" in rates.waste(RECORDED)


def test_the_figure_is_that_of_the_record_and_always_the_same(tmp_path):
    """Drawn again, the same bytes: against the figure in the repository where Matplotlib is that
    which drew it, else against a second drawing."""
    matplotlib = pytest.importorskip("matplotlib")

    def drawn():
        return plotting.save(rates.figure(RECORDED), tmp_path / "x.svg").read_bytes()

    same_version = matplotlib.__version__ == RECORDED["versions"]["Matplotlib"]
    expected = (PACKAGE.parent / "figures/learning_rate.svg").read_bytes()
    assert drawn() == (expected if same_version else drawn())


# ------------------------------------------------------------------------------ the command


@pytest.fixture
def quick(monkeypatch):
    """Runs that take no time: each is what was recorded of its batch and rate, whoever asks."""
    asked = []

    def train(batch_size, rate, seed, samples=rates.SAMPLES, until=0.0):
        warm = callable(rate) and rate(0) < rate(10**6)
        rate = rate(10**6) if callable(rate) else rate
        asked.append((batch_size, warm, seed, samples, until))
        loss = 0.2 + abs(math.log2(rate)) / 10  # best at a rate of 1
        model = mg.MLP(64, 1, 10, rng=np.random.default_rng(seed))
        return rates.Run([768, samples], [1.0, loss], [1.0, 0.5, 0.25, 0.5], model)

    monkeypatch.setattr(rates, "train", train)
    monkeypatch.setattr(rates, "sharpness", lambda model: 4.0)
    return asked


def test_the_command_runs_all_of_it_and_writes_what_it_prints(quick, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    totals, counted = [], []

    class Bar:
        def __init__(self, total, unit):
            assert unit == "runs"
            totals.append(total)

        __enter__ = lambda self: lambda: counted.append(1)  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    monkeypatch.setattr(rates.command, "progress", Bar)
    out, data = tmp_path / "x.svg", tmp_path / "x.json"
    assert cli.main(["rates", "--seeds", "2", "--out", str(out), "--data", str(data)]) == 0
    assert totals == [len(counted)]
    assert not capsys.readouterr().err
    before = data.read_bytes()
    assert cli.main(["rates", "--seeds", "2", "--out", str(out), "--data", str(data)]) == 0
    assert data.read_bytes() == before  # its own files it writes again
    del quick[len(quick) // 2 :]
    output = capsys.readouterr().out
    results = json.loads(data.read_text(encoding="utf-8"))
    assert rates.table(results) in output
    assert out.read_text(encoding="utf-8").startswith("<?xml")
    assert results["settings"] == rates.settings()
    assert {one["rate"] for one in results["best"]} == {1}
    # Both trials and results: other seeds, and the trials stop where they have arrived.
    assert {seed for *_, seed, _, until in quick if until} == set(rates.TRIALS)
    assert {seed for *_, seed, _, until in quick if not until} == {0, 1}
    assert [b for b, warm, *_ in quick if warm] == [b for b in rates.BATCHES for _ in range(2)]
    assert sum(samples < rates.SAMPLES for *_, samples, _ in quick) == 2 * len(rates.SMALL)


def test_what_is_written_is_read_again_as_it_was():
    keys = (*NAMES, "trials", "sharpness")
    again = json.loads(rates.as_json({key: RECORDED[key] for key in keys}))
    assert {key: again[key] for key in keys} == {key: RECORDED[key] for key in keys}
    assert again.keys() == RECORDED.keys()


def test_a_figure_that_cannot_be_written_costs_no_measurement(quick, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")

    def full(figure, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plotting, "save", full)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rates", "--seeds", "2", "--data", "x.json"]) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith("minigrad rates: --out is 'learning_rate.svg' and cannot be written")
    assert errors.count("\n") == 1
    assert rates.table(json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))) in output


def test_a_measurement_that_cannot_be_written_is_printed_and_one_sentence(
    quick, tmp_path, capsys, monkeypatch
):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_text", refused)
    assert cli.main(["rates", "--seeds", "2", "--data", "x.json"]) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith("minigrad rates: --data is 'x.json' and cannot be written (Permission")
    assert errors.count("\n") == 1
    assert "Training loss after" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "x.pdf"],
        ["--out", "absent/x.svg"],
        ["--out", "mine.json"],
        ["--out", ""],
        ["--data", "x.txt"],
        ["--data", "absent/x.json"],
        ["--data", "mine.json"],
        ["--data", ""],
        ["--seeds", "1"],
    ],
)
def test_what_cannot_be_done_is_one_sentence_before_any_work(
    arguments, quick, tmp_path, capsys, monkeypatch
):
    (tmp_path / "mine.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rates", *arguments]) == 2
    option, given = arguments
    refused_before_any_work(capsys, f"minigrad rates: {option} is '{given}', expected ")
    assert not quick
    assert (tmp_path / "mine.json").read_text() == "[]"


@pytest.mark.parametrize(("option", "name"), [("--out", "x.svg"), ("--data", "x.json")])
@pytest.mark.parametrize("there", [True, False])
def test_what_may_not_be_written_is_refused_before_any_work(
    option, name, there, quick, tmp_path, capsys, monkeypatch
):
    """A folder in which nothing can be made, or a file of ours that is locked."""
    path = tmp_path / name
    if there:
        path.write_bytes(rates.WHAT.encode() + b"tEXtAuthor\0minigrad")
    locked = path if there else tmp_path
    monkeypatch.setattr(rates.command.os, "access", lambda file, how: file != locked)
    assert cli.main(["rates", option, str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith(f"minigrad rates: {option} is {str(path)!r}, expected a file that may")
    assert not quick
