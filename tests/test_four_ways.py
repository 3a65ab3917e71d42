"""`minigrad batchnorm`: one way is one batch, three are not, and it costs what is predicted."""

from __future__ import annotations

import numpy as np
import pytest

from minigrad import cli, four_ways


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
    # L = 1, k = 4: statistics 1 and a probe of 1/4, adjoints 2 forward and 1 back, parameters 5.
    assert four_ways.work(1, 4) == (1 + 1 / 4 + 3 + 5) / 5
    assert four_ways.work(2, 8) == (3 + 2 / 8 + (3 + 2) + (3 + 1) + 8) / 8


@pytest.mark.parametrize("layers", [1, 2])
def test_time_is_what_the_products_predict(layers):
    """Wide layers, so that products are most of the work."""
    ratio = min(four_ways.time_ratio(layers, width=512, b=256, tries=3) for _ in range(2))
    assert ratio < 1.15 * four_ways.work(layers, 4)


def test_the_exact_way_holds_less_than_the_batch():
    for layers in four_ways.LAYERS:
        whole, parts = four_ways.peaks(layers)
        assert parts < 0.5 * whole


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
