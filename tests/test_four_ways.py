"""`minigrad batchnorm`: one way is one batch, three are not, and it costs what is predicted."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import minigrad as mg
from minigrad import cli, four_ways, plotting
from minigrad.data import measured
from tests.lines import PACKAGE


@pytest.mark.parametrize("layers", four_ways.LAYERS)
@pytest.mark.parametrize("b", four_ways.SPLITS.values())
def test_only_the_statistics_of_the_whole_batch_with_their_adjoints_are_exact(layers, b):
    errors = {way: four_ways.error(way, layers, b) for way in four_ways.WAYS}
    assert errors.pop("batch") < 1e-12
    assert all(error > 1e-2 or np.isnan(error) for error in errors.values())
    assert np.isnan(errors["micro"]) == np.isnan(errors["running"]) == (b == 1)


def test_the_whole_batch_at_once_is_one_batch_in_each_way_that_looks_at_it():
    for way in ("micro", "running", "batch"):
        assert four_ways.error(way, 2, four_ways.SAMPLES) < 1e-12


def test_the_other_ways_are_as_far_off_as_the_readme_says_of_its_figure():
    """Between a fifth and twice the norm of the gradient, for 12 micro-batches of 8."""
    errors = [four_ways.error(w, L, 8) for w in four_ways.WAYS[:3] for L in four_ways.LAYERS]
    assert 1 / 5 < min(errors) < max(errors) < 2


def test_work_is_counted_as_by_hand():
    # L = 1, k = 4: statistics 1 and a probe of 1/4, adjoints 2 forward and 1 back, ordinary 5.
    assert four_ways.work([1, 1, 1], 4) == (1 + 1 / 4 + 3 + 5) / 5
    assert four_ways.work([1, 1, 1, 1], 8) == (3 + 2 / 8 + (3 + 2) + (3 + 1) + 8) / 8
    # 64-128-10: products of 8192 and 1280 a sample.
    ordinary = 3 * (8192 + 1280) - 8192
    exact = (8192 + 1280 / 2) + (8192 + 1280 + 1280) + ordinary
    assert four_ways.work([64, 128, 10], 2) == exact / ordinary


@pytest.mark.parametrize("sizes", [[6, 5, 4], [3, 7, 7, 2], [8, 8, 8, 8, 8, 4]])
def test_work_is_the_number_of_multiplications_that_are_made(sizes, monkeypatch):
    made = 0

    def linear(x, weight, bias):
        """x @ weight + bias, which counts; what is returned as a function runs where wanted."""
        x, w = mg.functions.as_tensor(x), weight.data
        operands = (x, weight) if bias is None else (x, weight, bias)

        def product(a, b):
            nonlocal made
            made += len(a) * a.shape[1] * b.shape[1]
            return a @ b

        def pullback(g):
            both = lambda out: product(g, w.T), lambda out: product(x.data.T, g)
            return (*both, g.sum(axis=0))[: len(operands)]

        y = product(x.data, w) + (0 if bias is None else bias.data)
        return mg.tensor.record(y, operands, pullback)

    monkeypatch.setattr(mg.functions, "linear", linear)
    counts = []
    for statistics in ("micro", "batch"):
        norm = partial(mg.BatchNorm, statistics=statistics)
        model, made = mg.MLP(*sizes, norm=norm, dtype=np.float64), 0
        x = np.random.default_rng(0).standard_normal((12, sizes[0]))
        mg.accumulate(model, mg.per_sample, (x,), 3)
        counts.append(made)
    assert counts[1] / counts[0] == four_ways.work(sizes, 4)


@pytest.mark.parametrize(
    ("layers", "width", "tries"), [(1, 512, 15), (2, 512, 9), (3, 384, 7), (8, 384, 3)]
)
def test_time_is_what_the_products_predict(layers, width, tries):
    """Wide layers, so that products are most of the work. A busy machine gets three chances."""
    predicted = four_ways.work(four_ways.sizes(layers, width), 2)
    found = []
    for _ in range(3):
        found.append(four_ways.time_ratio(layers, width, b=128, k=2, tries=tries) / predicted)
        if 1 / 1.15 < found[-1] < 1.15:
            return
    raise AssertionError(f"times what is predicted: {found}")


def test_the_exact_way_holds_less_than_the_batch():
    for layers in four_ways.LAYERS:
        whole, parts = four_ways.peaks(layers)
        assert parts < 0.5 * whole


def test_the_figure_in_the_repository_is_the_one_that_is_drawn(tmp_path):
    """The same bytes where Matplotlib is that which drew the figures, else twice the same."""
    matplotlib = pytest.importorskip("matplotlib")
    errors = {(w, L, 8): four_ways.error(w, L, 8) for w in four_ways.WAYS for L in four_ways.LAYERS}

    def drawn():
        return plotting.save(four_ways.figure(errors), tmp_path / "x.svg").read_bytes()

    same_version = matplotlib.__version__ == measured("rates")["versions"]["Matplotlib"]
    expected = (PACKAGE.parent / "figures/batchnorm.svg").read_bytes()
    assert drawn() == (expected if same_version else drawn())


def test_the_command_prints_the_table_and_draws_the_figure(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["batchnorm", "--out", str(tmp_path / "x.svg")]) == 0
    output = capsys.readouterr().out
    assert output.count("rounding") == len(four_ways.LAYERS) * len(four_ways.SPLITS)
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize("out", ["x.pdf", "absent/x.svg", "mine.svg"])
def test_a_figure_that_cannot_be_written_is_one_sentence(out, tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.svg").write_text("somebody's")
    monkeypatch.setattr(four_ways, "table", lambda errors: "")
    monkeypatch.setattr(four_ways, "error", lambda *_: 1e-13)
    assert cli.main(["batchnorm", "--out", str(tmp_path / out)]) == 2
    assert "expected" in capsys.readouterr().err
    assert (tmp_path / "mine.svg").read_text() == "somebody's"
