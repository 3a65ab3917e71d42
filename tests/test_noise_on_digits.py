"""`minigrad noise`: what it prints is predicted, and its figures show what is said."""

from __future__ import annotations

import math
from contextlib import contextmanager

import numpy as np
import pytest

import minigrad as mg
from minigrad import cli, noise_on_digits, plotting
from minigrad.data import measured
from minigrad.noise_on_digits import AVERAGED, RULES, Stop, Training, scaled_errors
from tests.lines import PACKAGE
from tests.refusals import refused_before_any_work


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
    """Of all samples: from 28 to more than a thousand, 1,467. Smoothed over windows by parts it
    begins with 46 and is between 232 and 435 in the last hundred updates, 300 in the middle one;
    by sums it ends anywhere: 87 to 1,289 in these."""
    readme = " ".join((PACKAGE.parent / "README.md").read_text(encoding="utf-8").split())
    assert (
        "the noise scale of a small net grows from 28 to more than a thousand while it trains; "
        "smoothed over windows it follows later, to some hundreds by parts, and more roughly by "
        "sums](figures/noise.svg)"
    ) in readme
    first, *_, last = [noise.scale for noise in training.computed.values()]
    assert f"{first:.0f}" == "28"
    assert 1000 < last < 2000
    parts, sums = (noise_on_digits.scales(training.smoothed[way]) for way in ("parts", "sums"))
    assert 28 < parts[0] < 60
    assert 200 < parts[-100:].min() < np.median(parts[-100:]) < parts[-100:].max() < 500
    # Later: what all samples have after so many updates, smoothed windows tell after it.
    for update, noise in list(training.computed.items())[2:-1]:
        assert np.median(parts[update - 10 : update + 10]) < 1.15 * noise.scale, update
    roughness = [np.std(np.log(told[-100:])) for told in (parts, sums)]
    assert roughness[1] > 3 * roughness[0]
    assert sums[-100:].max() > 10 * sums[-100:].min()


def test_a_scale_without_signal_is_infinite():
    found = noise_on_digits.scales(np.array([[1.0, 2.0], [0.0, 2.0], [-1.0, 2.0]]))
    assert found.tolist() == [2.0, math.inf, math.inf]


@pytest.fixture
def quick(monkeypatch, gradients):
    """The command without its long computations."""
    noise = mg.GradientNoise(1.0, 4.0)
    values = np.full((4, 2), noise) + np.arange(-1.5, 2)[:, None]
    by_way = {"parts": values, "sums": values}
    training = Training(by_way, {0: noise, 60: noise}, {0: Stop(noise, by_way)})
    monkeypatch.setattr(noise_on_digits, "train", lambda count: training)
    monkeypatch.setattr(noise_on_digits, "each_gradient", lambda net: gradients[::8])
    monkeypatch.setattr(noise_on_digits, "DRAWS", 40)
    monkeypatch.setattr(noise_on_digits, "SIZES", (4, 64))
    return training


def test_the_command_prints_its_tables_and_draws_two_figures(tmp_path, capsys, monkeypatch, quick):
    pytest.importorskip("matplotlib")
    inside = []

    @contextmanager
    def one_thread():
        inside.append(True)
        yield
        inside.append(False)

    def train(count):
        assert inside[-1]
        return quick

    monkeypatch.setattr(noise_on_digits.command, "one_thread", one_thread)
    monkeypatch.setattr(noise_on_digits, "train", train)
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
    assert inside == [True, False] * 2


def test_each_update_is_counted_once(monkeypatch):
    """Of the 480, and the one after them, whose window is the last that is looked at."""
    for name, value in (("UPDATES", 3), ("EVERY", 100), ("STOPS", ())):
        monkeypatch.setattr(noise_on_digits, name, value)
    counted = []
    noise_on_digits.train(lambda: counted.append(1))
    assert len(counted) == noise_on_digits.UPDATES + 1


def test_what_the_figures_need_is_said_once(tmp_path, capsys, monkeypatch, quick):
    monkeypatch.setattr(plotting, "available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["noise"]) == 0
    assert capsys.readouterr().out.count("needs Matplotlib") == 1
    assert not list(tmp_path.iterdir())


def test_the_figure_of_the_walks_in_the_repository_is_the_one_that_is_drawn(tmp_path):
    """The same bytes where Matplotlib is that which drew the figures, else twice the same."""
    matplotlib = pytest.importorskip("matplotlib")

    def drawn():
        figure = noise_on_digits.figure_of_roots()
        return plotting.save(figure, tmp_path / "x.svg").read_bytes()

    same_version = matplotlib.__version__ == measured("rates")["versions"]["Matplotlib"]
    expected = (PACKAGE.parent / "figures/robbins_monro.svg").read_bytes()
    assert drawn() == (expected if same_version else drawn())


def test_an_estimate_that_is_far_off_is_an_error_code(tmp_path, monkeypatch, quick):
    pytest.importorskip("matplotlib")
    wrong = Stop(mg.GradientNoise(9.0, 4.0), quick.stops[0].estimates)
    monkeypatch.setattr(noise_on_digits, "train", lambda count: quick._replace(stops={0: wrong}))
    figures = str(tmp_path / "n.svg"), str(tmp_path / "r.svg")
    assert cli.main(["noise", "--out", figures[0], "--roots", figures[1]]) == 1


@pytest.mark.parametrize("option", ["--out", "--roots"])
@pytest.mark.parametrize("name", ["x", "x.pdf", "absent/x.svg", "mine.svg", ""])
def test_a_figure_that_cannot_be_written_is_one_sentence_before_any_work(
    option, name, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.svg").write_text("somebody's")
    assert cli.main(["noise", option, name]) == 2
    refused_before_any_work(capsys, f"minigrad noise: {option} is '{name}', expected ")
    assert (tmp_path / "mine.svg").read_text() == "somebody's"


@pytest.mark.parametrize("arguments", ["--out a.svg --roots a.svg", "--out robbins_monro.svg"])
def test_two_figures_in_one_file_are_refused_before_any_work(
    arguments, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["noise", *arguments.split()]) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.count("\n") == 1
    assert "--roots is" in errors
    assert "--out too, expected two files" in errors


def test_a_figure_that_the_disk_refuses_is_named_by_its_option(
    tmp_path, capsys, monkeypatch, quick
):
    pytest.importorskip("matplotlib")

    def full(figure, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plotting, "save", full)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["noise", "--roots", "r.svg"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("minigrad noise: --roots is 'r.svg' and cannot be written (No space")
