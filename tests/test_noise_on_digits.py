"""`minigrad noise`: what it prints is predicted, and its figures show what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import cli, noise_on_digits, plotting
from minigrad.data import measured
from minigrad.noise_on_digits import AVERAGED, RULES, Stop, Training, scaled_errors
from tests.lines import PACKAGE


@pytest.fixture(scope="module")
def gradients():
    return noise_on_digits.each_gradient(noise_on_digits.net())


@pytest.fixture(scope="module")
def training():
    return noise_on_digits.train()


def test_the_rules_tend_to_what_the_table_says():
    for rule in (*RULES, AVERAGED):
        values, law = scaled_errors(rule), noise_on_digits.limit(rule)
        growth = math.log10(values[-1] / values[len(values) // 10])
        if law[0].isdigit():
            assert values[-1] == pytest.approx(float(law.split()[0]), rel=0.05)
        else:
            power = law.split("n^")[-1] if "n^" in law else "1"
            assert growth == pytest.approx(float(power), abs=0.02), rule


def test_the_average_of_n_to_the_minus_seven_tenths_is_as_good_as_the_best_rule_in_the_end():
    assert scaled_errors(AVERAGED)[-1] < 1.05 * scaled_errors("1/n")[-1]


def test_batches_miss_as_much_as_is_predicted(gradients):
    rng = np.random.default_rng(0)
    for size in (4, 64, 1024):
        mean, error = noise_on_digits.missed(gradients, size, rng)
        assert abs(mean - mg.batch_noise(gradients, size)) < 4 * error
    whole, _ = noise_on_digits.missed(gradients, len(gradients), rng)
    assert whole < 1e-20


def test_windows_estimate_what_all_samples_have(training):
    """At each point where the weights stand still: within 4 standard errors, both ways; and by
    parts one window spreads less."""
    assert list(training.stops) == list(noise_on_digits.STOPS)
    for computed, seen in training.stops.values():
        spreads = {}
        for way, values in seen.items():
            spreads[way] = values.std(axis=0, ddof=1)
            errors = spreads[way] / math.sqrt(len(values))
            assert (np.abs(values.mean(axis=0) - computed) < 4 * errors).all()
        assert (spreads["sums"] > spreads["parts"]).all()


def test_the_noise_scale_grows_in_training_as_the_readme_says(training):
    """From 28 to some hundreds: more than tenfold, by all samples and by the windows alike."""
    first, *_, last = [noise.scale for noise in training.computed.values()]
    assert f"{first:.0f}" == "28"
    assert last > 10 * first
    means = [stop.estimates["parts"].mean(axis=0) for stop in training.stops.values()]
    told = noise_on_digits.scales(np.array(means))
    assert told[-1] > 10 * told[0]
    smoothed = noise_on_digits.scales(training.smoothed["parts"])
    assert np.median(smoothed[-100:]) > 8 * first


def test_a_scale_without_signal_is_infinite():
    found = noise_on_digits.scales(np.array([[1.0, 2.0], [0.0, 2.0], [-1.0, 2.0]]))
    assert found.tolist() == [2.0, math.inf, math.inf]


def quick(monkeypatch):
    """The command without its long computations."""
    noise = mg.GradientNoise(1.0, 4.0)
    values = np.full((4, 2), noise) + np.arange(-1.5, 2)[:, None]
    by_way = {"parts": values, "sums": values}
    training = Training(by_way, {0: noise, 60: noise}, {0: Stop(noise, by_way)})
    monkeypatch.setattr(noise_on_digits, "train", lambda: training)
    monkeypatch.setattr(noise_on_digits, "DRAWS", 40)
    monkeypatch.setattr(noise_on_digits, "SIZES", (4, 64))
    return training


def test_the_command_prints_its_tables_and_draws_two_figures(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    quick(monkeypatch)
    figures = tmp_path / "n.svg", tmp_path / "r.svg"
    arguments = ["noise", "--out", str(figures[0]), "--roots", str(figures[1])]
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert f"{AVERAGED:<18}" in output
    assert "grows like n^0.5" in output
    assert "by parts" in output
    before = [path.read_bytes() for path in figures]
    assert cli.main(arguments) == 0
    assert [path.read_bytes() for path in figures] == before  # the same figure, the same bytes


def test_the_figure_of_the_walks_in_the_repository_is_the_one_that_is_drawn(tmp_path):
    """The same bytes where Matplotlib is that which drew the figures, else twice the same."""
    matplotlib = pytest.importorskip("matplotlib")

    def drawn():
        figure = noise_on_digits.figure_of_roots()
        return plotting.save(figure, tmp_path / "x.svg").read_bytes()

    same_version = matplotlib.__version__ == measured("rates")["versions"]["Matplotlib"]
    expected = (PACKAGE.parent / "figures/robbins_monro.svg").read_bytes()
    assert drawn() == (expected if same_version else drawn())


def test_an_estimate_that_is_far_off_is_an_error_code(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    training = quick(monkeypatch)
    wrong = Stop(mg.GradientNoise(9.0, 4.0), training.stops[0].estimates)
    monkeypatch.setattr(noise_on_digits, "train", lambda: training._replace(stops={0: wrong}))
    figures = str(tmp_path / "n.svg"), str(tmp_path / "r.svg")
    assert cli.main(["noise", "--out", figures[0], "--roots", figures[1]]) == 1


@pytest.mark.parametrize("option", ["--out", "--roots"])
@pytest.mark.parametrize("name", ["x.pdf", "absent/x.svg", "mine.svg"])
def test_a_figure_that_cannot_be_written_is_one_sentence(
    option, name, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.svg").write_text("somebody's")
    assert cli.main(["noise", option, str(tmp_path / name)]) == 2
    assert "expected" in capsys.readouterr().err
    assert (tmp_path / "mine.svg").read_text() == "somebody's"
