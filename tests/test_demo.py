"""What `minigrad demo` prints and draws is true, and what it is given is checked."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import minigrad as mg
from minigrad import cli, command, demo
from minigrad.data import digits
from minigrad.demo import Settings
from minigrad.device import move_to
from tests.fake_device import Meter, to_fake, to_host
from tests.lines import PACKAGE

SMALL = Settings(hidden=(16,), epochs=2)
SMALL_ARGUMENTS = ["--hidden", "16", "--epochs", "2"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Of BLAS: other programs on the same cores would make these small products slow."""
    with command.one_thread():
        yield


@pytest.fixture(scope="module")
def default():
    """The demo as it is without arguments."""
    return demo.experiment(Settings())


@pytest.fixture(scope="module")
def small():
    return demo.experiment(SMALL)


@pytest.fixture(scope="module")
def batch_norm():
    return demo.experiment(replace(SMALL, norm="micro"))


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Run `minigrad demo` with these arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *given: cli.main(["demo", *given])


@pytest.fixture
def plain_figure(monkeypatch):
    """A figure that is drawn in no time, for tests of what stands around it."""
    figures = pytest.importorskip("matplotlib.figure")
    monkeypatch.setattr(demo, "figure", lambda result: figures.Figure((1, 1)))


def rows(result) -> dict[str, tuple[str, str, str]]:
    """The printed table, by the name of each row: the cells of both runs, and the difference."""
    lines = demo.table(result).splitlines()[1:]
    cells = [re.split(r" {2,}", line) for line in lines]
    assert {len(line) for line in cells} == {4}
    return {name: tuple(values) for name, *values in cells}


def said(result) -> str:
    return " ".join(demo.conclusions(result))


# --------------------------------------------------------------------------- the table is true


def test_a_unit_of_rounding_is_half_of_what_separates_1_from_the_next_number():
    assert demo.units(1.0, np.nextafter(1.0, 2)) == 2
    assert demo.units([3.0, 4.0], [3.0, 4.0 + 5 * 2.0**-50]) == 8  # of the norm, which is 5
    assert demo.units([0.0], [0.0]) == 0


def test_the_columns_are_the_two_runs(default):
    head = demo.table(default).splitlines()[0]
    assert re.split(r" {2,}", head.strip()) == ["1 x 256", "8 x 32", "difference"]


def test_the_first_gradient_is_the_one_of_train_step(default):
    printed = rows(default)["gradient of the first update, norm"]
    for size, cell in zip((256, 32), printed, strict=False):
        model, optimizer = demo.start(Settings())
        first = next(demo.batches(Settings()))
        report = mg.train_step(model, mg.cross_entropy, optimizer, first, size)
        assert cell == f"{report.grad_norm:.4f}"
    assert printed[2] == f"{demo.units(*default.gradients[:2]):.1f} units of rounding"


def test_the_weights_are_those_at_the_end(default):
    a, b = default.whole.weights, default.split.weights
    assert rows(default)["weights at the end, norm"] == (
        f"{np.sqrt(a @ a):.4f}",
        f"{np.sqrt(b @ b):.4f}",
        f"{demo.units(a, b):.1f} units of rounding",
    )
    start = command.vector(p.data for p in demo.start(Settings())[0].parameters())
    assert np.linalg.norm(a - start) > 0.1 * np.linalg.norm(start)


def test_loss_and_accuracy_are_those_of_the_printed_weights(default):
    """Computed again by hand from the weights: x W + b, ReLU, and once more."""
    (x, y), (x_test, y_test) = digits(np.float64)
    for column, run in enumerate((default.whole, default.split)):
        w1, b1, w2, b2 = np.split(run.weights, np.cumsum([64 * 256, 256, 256 * 10]))

        def outputs(x, w1=w1, b1=b1, w2=w2, b2=b2):
            return np.maximum(x @ w1.reshape(64, 256) + b1, 0) @ w2.reshape(256, 10) + b2

        z = outputs(x)
        loss = np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y])
        right = np.mean(outputs(x_test).argmax(axis=1) == y_test)
        assert rows(default)["training loss at the end"][column] == f"{loss:.4f}"
        assert rows(default)["test accuracy at the end"][column] == f"{100 * right:.1f} %"
    assert rows(default)["test accuracy at the end"][2] == "0 of 261 read otherwise"


def test_memory_is_several_times_less_and_the_table_says_by_how_much(default):
    one, many = default.peaks
    assert 4 < one / many <= 8
    assert rows(default)["peak memory of one update"] == (
        f"{one / 1e6:.2f} MB",
        f"{many / 1e6:.2f} MB",
        f"{one / many:.1f} times less",
    )


def test_what_stays_is_the_weights_the_gradients_and_the_momentum_and_with_it_less_is_saved(
    default,
):
    """In float64, and at most 2 % more: Python's own objects."""
    weights = 8 * len(default.whole.weights)
    assert 3 * weights < default.stays < 1.02 * 3 * weights
    one, many = (peak + default.stays for peak in default.peaks)
    assert 2 < one / many < default.peaks[0] / default.peaks[1] / 1.5
    assert rows(default)["with model and optimizer"] == (
        f"{one / 1e6:.2f} MB",
        f"{many / 1e6:.2f} MB",
        f"{one / many:.1f} times less",
    )
    both = (
        rf"is {default.peaks[0] / default.peaks[1]:.1f} times less .* {one / many:.1f} times less"
    )
    assert re.search(both, said(default))


def test_memory_falls_with_the_size_of_the_micro_batches():
    peaks = [demo.peak(Settings(), size) for size in (256, 128, 64, 32)]
    assert all(b < 0.7 * a for a, b in itertools.pairwise(peaks))


def test_time_is_printed_and_stands_in_no_sentence(default):
    cells = rows(default)["time of 60 updates"]
    assert cells[0] == f"{default.whole.seconds:.2f} s"
    assert cells[1] == f"{default.split.seconds:.2f} s"
    assert "time of" not in said(default)
    assert "faster" not in said(default)


# ------------------------------------------------------------------- equal, and when it is not


EQUAL = {
    "default": Settings(),
    "uneven parts": replace(SMALL, micro_batch_size=100),
    "one sample at a time": replace(SMALL, batch_size=64, micro_batch_size=1, epochs=1),
    "short last batch": replace(SMALL, batch_size=1000, micro_batch_size=300),
    "two hidden layers": replace(SMALL, hidden=(16, 12)),
    "BatchNorm": replace(SMALL, norm="batch"),
    "BatchNorm, two layers": replace(SMALL, norm="batch", hidden=(16, 12), micro_batch_size=100),
    "LayerNorm": replace(SMALL, norm="layer"),
    "GroupNorm": replace(SMALL, norm="group"),
    "dropout": replace(SMALL, dropout=0.3),
    "Adam": replace(SMALL, optimizer="adam"),
    "AdamW": replace(SMALL, optimizer="adamw"),
    "another seed": replace(SMALL, seed=7),
}


@pytest.mark.parametrize("name", EQUAL)
def test_micro_batches_are_equal_to_rounding(name):
    result = demo.experiment(EQUAL[name])
    assert result.equal
    assert demo.units(*result.gradients[:2]) < 100
    assert demo.units(result.whole.weights, result.split.weights) < 300
    assert result.loss_units.max() < 300
    assert "equal to rounding" in said(result)
    assert "The two runs differ" not in said(result)


def test_batch_norm_differs_and_the_demo_says_so_by_how_much_and_why(batch_norm):
    a, b, _ = batch_norm.gradients
    gap = np.linalg.norm(b - a) / np.linalg.norm(a)
    assert gap > 0.01
    assert not batch_norm.equal
    text = said(batch_norm)
    assert "The two runs differ" in text
    assert f"off by {100 * gap:.1f} % of its norm" in text
    assert "standardized by its own mean and variance" in text
    assert "equal to rounding" not in text
    assert rows(batch_norm)["gradient of the first update, norm"][2] == f"{100 * gap:.1f} % of it"
    assert "units of rounding" not in demo.table(batch_norm)


def test_the_demo_says_how_many_passes_exact_batch_norm_takes():
    result = demo.experiment(replace(SMALL, norm="batch", hidden=(16, 12), epochs=1))
    assert "takes 5 passes over it" in said(result)


@pytest.mark.parametrize("norm", ["batch", "micro", "running"])
def test_batch_norm_in_one_micro_batch_is_one_batch(norm):
    settings = replace(SMALL, norm=norm, micro_batch_size=256, epochs=1)
    result = demo.experiment(settings)
    assert demo.units(*result.gradients[:2]) == 0
    assert demo.units(result.whole.weights, result.split.weights) == 0
    assert "forgets" not in said(result)
    assert "Peak memory" not in said(result)


def test_a_difference_beyond_rounding_is_never_called_equal(
    small, monkeypatch, arguments, capsys, plain_figure
):
    whole, split, forgot = small.gradients
    wrong = replace(small, gradients=(whole, split * (1 + 1e-12), forgot))
    assert not wrong.equal
    assert "a fault of minigrad" in said(wrong)
    assert "equal to rounding. One unit" not in said(wrong)
    monkeypatch.setattr(demo, "experiment", lambda *_: wrong)
    assert arguments() == 1
    assert "The two runs differ" in capsys.readouterr().out


def test_weights_that_rounding_drove_apart_are_not_hidden(small):
    far = replace(small, split=replace(small.split, weights=small.whole.weights * (1 + 1e-6)))
    assert "equal to rounding" in said(far)
    assert "Rounding grew" in said(far)
    assert rows(far)["weights at the end, norm"][2] == "1.0e-06 of it"


# ---------------------------------------------------------------------- who forgets to divide


def test_who_forgets_to_divide_begins_with_k_times_the_gradient(default):
    whole, _, forgot = default.gradients
    np.testing.assert_allclose(forgot, 8 * whole, rtol=0, atol=1e-13)
    assert default.forgot.losses[0] == pytest.approx(default.whole.losses[0], rel=1e-14)
    assert "8.0 times too large" in said(default)


def test_who_forgets_to_divide_ends_higher(default):
    assert default.whole.loss < 0.2
    assert default.forgot.loss > 5 * default.whole.loss
    assert default.forgot.accuracy < default.whole.accuracy - 0.05
    assert f"its training loss ends at {default.forgot.loss:.5g}" in said(default)
    assert f"its test accuracy at {100 * default.forgot.accuracy:.1f} %" in said(default)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_nearly_hides_it_and_the_demo_says_so(optimizer):
    result = demo.experiment(Settings(optimizer=optimizer, epochs=3))
    assert result.forgot.loss == pytest.approx(result.whole.loss, rel=0.01)
    assert "Adam nearly hides the fault" in said(result)


def test_sgd_is_not_said_to_hide_it(default):
    assert "hides" not in said(default)


@pytest.mark.parametrize("norm", ["batch", "micro", "running"])
def test_batch_norm_partly_hides_it_and_the_demo_says_so(norm, default):
    """Weights before it are half as long again as they should be, and the loss is lower; without
    it they are ten times as long, and the loss is more than thirty times as high."""
    result = demo.experiment(Settings(norm=norm))
    first = [np.linalg.norm(run.weights[: 64 * 256]) for run in (result.whole, result.forgot)]
    assert result.too_large > 7
    assert 1.3 < first[1] / first[0] < 3
    assert result.forgot.loss < result.whole.loss
    assert "BatchNorm partly hides the fault" in said(result)
    first = [np.linalg.norm(run.weights[: 64 * 256]) for run in (default.whole, default.forgot)]
    assert first[1] > 10 * first[0]


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_other_norms_hide_nothing(norm):
    result = demo.experiment(Settings(norm=norm))
    assert result.forgot.loss > 5 * result.whole.loss
    assert "hides" not in said(result)


# ------------------------------------------------------------------------------ the experiment


def test_every_sample_is_seen_once_an_epoch_also_with_a_short_last_batch():
    settings = Settings(batch_size=1000, epochs=2)
    batches = list(demo.batches(settings))
    assert [len(x) for x, _ in batches] == [len(y) for _, y in batches] == [1000, 536] * 2
    assert len(batches) == settings.updates
    (x, y), _ = digits(np.float64)
    samples = sorted(map(tuple, np.column_stack((x, y))))
    for epoch in (batches[:2], batches[2:]):
        seen = np.concatenate([np.column_stack(batch) for batch in epoch])
        assert sorted(map(tuple, seen)) == samples != list(map(tuple, seen))


def test_a_seed_gives_the_same_run_and_another_seed_another(small):
    again, other = demo.train(SMALL, 256), demo.train(replace(SMALL, seed=1), 256)
    assert np.array_equal(again.weights, small.whole.weights)
    assert np.array_equal(again.losses, small.whole.losses)
    assert not np.array_equal(other.weights, small.whole.weights)


def test_each_update_is_counted_once():
    counted = itertools.count()
    demo.experiment(SMALL, lambda: next(counted))
    assert next(counted) == 3 * SMALL.updates


def test_on_a_device_the_demo_gives_the_same_bits(monkeypatch):
    """On the fake one, which obeys CuPy's rules: no array of the host meets one of the device."""
    settings = Settings(hidden=(8,), epochs=1, dropout=0.2)
    near = demo.experiment(settings)

    @contextmanager
    def measure(gpu):
        assert gpu
        memory = mg.Memory()
        with Meter() as meter:
            yield memory
        memory.peak = meter.peak

    monkeypatch.setattr(mg, "to_gpu", lambda thing: move_to(thing, to_fake))
    monkeypatch.setattr(
        mg, "to_cpu", lambda data: data if isinstance(data, np.ndarray) else to_host(data)
    )
    monkeypatch.setattr(mg, "measure_memory", measure)
    far = demo.experiment(replace(settings, gpu=True))
    assert np.array_equal(near.whole.weights, far.whole.weights)
    assert np.array_equal(near.split.weights, far.split.weights)
    assert near.split.loss == far.split.loss
    assert far.peaks[0] > far.peaks[1]


# ---------------------------------------------------------------------------------- the figure


@pytest.fixture
def figure():
    pytest.importorskip("matplotlib")
    return demo.figure


def test_the_figure_shows_the_losses_their_difference_and_the_bytes(figure, default):
    top, below, bars = figure(default).axes
    curves = {line.get_label(): line for line in top.get_lines()}
    runs = {
        "one batch of 256": default.whole,
        "8 micro-batches of 32": default.split,
        "the loop that forgets to divide": default.forgot,
    }
    assert [text.get_text() for text in top.get_legend().get_texts()] == list(runs)
    for label, run in runs.items():
        assert np.array_equal(curves[label].get_xdata(), np.arange(1, 61))
        assert np.array_equal(curves[label].get_ydata(), run.losses)
    differences = np.abs(default.split.losses - default.whole.losses) * 2**53
    (points,) = below.get_lines()
    np.testing.assert_allclose(points.get_ydata(), differences / default.whole.losses)
    assert below.get_ylim()[0] < 0 < max(points.get_ydata()) < below.get_ylim()[1]
    heights = [f"{bar.get_height():.2f} MB" for bar in bars.patches]
    assert heights == list(rows(default)["peak memory of one update"][:2])
    assert [label.get_text() for label in bars.get_xticklabels()] == ["1 x 256", "8 x 32"]


def test_no_two_curves_look_the_same_without_colour(figure, default):
    top = figure(default).axes[0]
    looks = {(line.get_linestyle(), line.get_linewidth()) for line in top.get_lines()}
    assert len(looks) == 3


def test_the_title_claims_no_more_than_was_measured(figure, default, batch_norm):
    assert figure(default).get_suptitle().endswith("equal to rounding")
    assert "do not train" in figure(batch_norm).get_suptitle()
    assert "BatchNorm" in figure(batch_norm).get_suptitle()


def test_the_difference_of_batch_norm_is_drawn_on_a_scale_that_can_show_it(figure, batch_norm):
    below = figure(batch_norm).axes[1]
    assert below.get_yscale() == "log"
    assert np.array_equal(below.get_lines()[0].get_ydata(), batch_norm.loss_units)


def test_one_micro_batch_forgets_nothing_and_gets_no_third_curve(figure):
    result = demo.experiment(replace(SMALL, micro_batch_size=256, epochs=1))
    assert len(figure(result).axes[0].get_lines()) == 2


@pytest.mark.parametrize("last", [1e200, np.inf, np.nan])
def test_losses_that_overflow_leave_the_others_in_sight(figure, small, last):
    losses = small.forgot.losses.copy()
    losses[-1] = last
    top = figure(replace(small, forgot=replace(small.forgot, losses=losses))).axes[0]
    assert top.get_ylim()[1] <= 1000 * small.whole.losses.max()


LONG_NAMES = replace(SMALL, micro_batch_size=1000, batch_size=1535, epochs=1)


@pytest.mark.parametrize("settings", [SMALL, replace(SMALL, norm="micro"), LONG_NAMES])
def test_no_words_of_the_figure_overlap_or_leave_it(figure, settings):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    page = figure(demo.experiment(settings))
    FigureCanvasAgg(page).draw()
    top, below, bars = page.axes
    words = [page._suptitle, *(axes._left_title for axes in page.axes), below.xaxis.label]
    words += [*bars.texts, *bars.get_xticklabels(), *below.get_xticklabels()[1:-1]]
    boxes = [part.get_window_extent() for part in (*words, top.get_legend())]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    for box in boxes:
        assert page.bbox.x0 < box.x0 < box.x1 < page.bbox.x1
        assert page.bbox.y0 < box.y0 < box.y1 < page.bbox.y1


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_run_gives_the_same_bytes_whatever_the_clock_says(
    arguments, monkeypatch, suffix, figure, tmp_path
):
    clock = itertools.count()
    for name in ("a", "b"):
        # A clock that ticks by another amount each time: no time is in the picture.
        monkeypatch.setattr(demo, "perf_counter", lambda: next(clock) ** 2)
        assert arguments("--epochs", "1", "--out", name + suffix) == 0
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


# ----------------------------------------------------------------------------- the subcommand


def test_it_prints_what_it_does_the_table_and_what_follows(
    arguments, capsys, tmp_path, plain_figure
):
    assert arguments(*SMALL_ARGUMENTS) == 0
    output, errors = capsys.readouterr()
    assert output.startswith(
        "1,536 handwritten digits; MLP 64-16-10; float64; SGD with momentum; 12 updates; seed 0\n"
    )
    assert "equal to rounding" in output
    assert "2^-53" in output  # the unit is defined
    assert output.endswith("The figure is in demo.svg.\n")
    assert max(map(len, output.splitlines())) <= 100
    assert output.isascii()
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == ["demo.svg"]


def test_batch_norm_is_no_error(arguments, capsys, plain_figure, batch_norm, monkeypatch):
    monkeypatch.setattr(demo, "experiment", lambda *_: batch_norm)
    assert arguments("--norm", "micro", "--dropout", "0.25", "--hidden", "100", "100") == 0
    output = capsys.readouterr().out
    assert "MLP 64-100-100-10 with BatchNorm on micro-batches, dropout 0.25;" in output
    assert "The two runs differ" in output
    assert max(map(len, output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ("", {}),
        ("--micro-batch-size 64", {"micro_batch_size": 64}),
        ("--batch-size 100", {"batch_size": 100, "micro_batch_size": 13}),  # 8 parts
        ("--batch-size 1", {"batch_size": 1, "micro_batch_size": 1}),
        ("--hidden 8 4", {"hidden": (8, 4)}),
        ("--norm layer", {"norm": "layer"}),
        ("--norm running", {"norm": "running"}),
        ("--norm group --hidden 8", {"norm": "group", "hidden": (8,)}),
        ("--dropout 0.5", {"dropout": 0.5}),
        ("--optimizer adamw", {"optimizer": "adamw"}),
        ("--epochs 3", {"epochs": 3}),
        ("--seed 18446744073709551615", {"seed": 2**64 - 1}),
    ],
)
def test_arguments_become_settings(given, changed):
    args = cli.parser().parse_args(["demo", *given.split()])
    assert demo.checked(args) == replace(Settings(), **changed)


BAD = {
    "--micro-batch-size 0": "--micro-batch-size is '0', expected an integer from 1 to 1536",
    "--micro-batch-size abc": "--micro-batch-size is 'abc', expected an integer from 1 to 1536",
    "--micro-batch-size 2.5": "--micro-batch-size is '2.5', expected an integer from 1 to 1536",
    "--micro-batch-size 512": "--micro-batch-size is 512, expected at most the 256 of --batch-size",
    "--batch-size 1537": "--batch-size is '1537', expected an integer from 1 to 1536",
    "--batch-size -1": "--batch-size is '-1', expected an integer from 1 to 1536",
    "--hidden 0": "--hidden is '0', expected an integer from 1 to 10000",
    "--hidden 16 x": "--hidden is 'x', expected an integer from 1 to 10000",
    "--hidden": "--hidden: expected at least one argument",
    "--hidden 30 8 --norm group": "--hidden is 30 8, expected multiples of 4",
    "--norm instance": "--norm is 'instance', expected one of none, batch, micro, running, "
    "layer, group",
    "--norm batch --micro-batch-size 1": "--micro-batch-size 1, which leaves one sample alone",
    "--norm running --micro-batch-size 1": "expected two or more in a micro-batch for --norm run",
    "--norm batch --micro-batch-size 255": "--micro-batch-size 255, which leaves one sample alone",
    "--norm batch --batch-size 1535": "--batch-size is 1535 and --micro-batch-size 192, which",
    "--dropout 1": "--dropout is '1', expected a number from 0 to below 1",
    "--dropout 1.5": "--dropout is '1.5', expected a number from 0 to below 1",
    "--dropout nan": "--dropout is 'nan', expected a number from 0 to below 1",
    "--optimizer rmsprop": "--optimizer is 'rmsprop', expected one of sgd, adam, adamw",
    "--epochs 0": "--epochs is '0', expected an integer from 1",
    "--seed -1": "--seed is '-1', expected an integer from 0",
    "--out nowhere/demo.svg": "--out is 'nowhere/demo.svg', expected a folder that exists",
    "--out x.pdf": "--out is 'x.pdf', expected a name that ends in .svg or .png; give another "
    "name, such as x.svg",
    "--out demo": "--out is 'demo', expected a name that ends in .svg or .png; give another name, "
    "such as demo.svg",
    "--out .": "--out is '.', expected a name that ends in .svg or .png",
    "--out=": "--out is '', expected the name of a file",
}


@pytest.mark.parametrize("given", BAD)
def test_a_bad_value_gets_one_sentence_and_exit_2_before_any_work(
    given, arguments, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(demo, "experiment", None)  # is not reached
    assert arguments(*given.split()) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith("minigrad demo: ")
    assert errors.count("\n") == 1
    assert BAD[given] in errors.replace("\\\\", "/")
    assert ";" in errors  # and then the fix
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(mg.available(), reason="needs a machine without a GPU")
def test_without_a_gpu_gpu_is_refused(arguments, capsys):
    assert arguments("--gpu") == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "no GPU was found" in errors
    assert "leave --gpu out" in errors


def test_an_older_figure_of_ours_is_replaced(
    arguments, plain_figure, tmp_path, small, monkeypatch, capsys
):
    monkeypatch.setattr(demo, "experiment", lambda *_: small)
    assert arguments() == 0
    drawn = (tmp_path / "demo.svg").read_bytes()
    (tmp_path / "demo.svg").write_bytes(drawn + b"<!-- an older one -->")
    assert arguments() == 0
    assert (tmp_path / "demo.svg").read_bytes() == drawn
    assert capsys.readouterr().out.count("The figure is in demo.svg.") == 2


@pytest.mark.parametrize("name", ["demo.svg", "holiday.png"])
def test_a_file_of_somebody_else_is_not_destroyed(arguments, capsys, tmp_path, name):
    (tmp_path / name).write_bytes(b"a year of work, of it some in the folder minigrad/")
    assert arguments("--out", name) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith(f"minigrad demo: --out is '{name}', expected a new file")
    assert "choose another name" in errors
    assert (tmp_path / name).read_bytes().startswith(b"a year of work")


def test_a_folder_is_not_taken_for_a_figure(arguments, capsys, tmp_path):
    (tmp_path / "demo.svg").mkdir()
    assert arguments() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_figure_that_cannot_be_written_is_one_sentence(arguments, capsys, monkeypatch, figure):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command.plotting, "save", full)
    assert arguments(*SMALL_ARGUMENTS) == 2
    output, errors = capsys.readouterr()
    assert "equal to rounding" in output
    assert errors.count("\n") == 1
    assert "No space left on device" in errors


def test_a_training_that_diverges_is_one_sentence(arguments, capsys, monkeypatch):
    monkeypatch.setitem(demo.OPTIMIZERS, "sgd", ("SGD", lambda p, _: mg.SGD(p, lr=1e300)))
    with np.errstate(all="ignore"):
        assert arguments(*SMALL_ARGUMENTS) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "expected finite losses; try --optimizer adam" in errors


def test_with_numpy_alone_it_prints_its_table_and_says_what_the_figure_needs(tmp_path):
    absent = "matplotlib tqdm threadpoolctl cupy"
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split())); "
        "from minigrad.cli import main; sys.exit(main())"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, absent, "demo", *SMALL_ARGUMENTS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "peak memory of one update" in result.stdout
    assert "equal to rounding" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert "needs Matplotlib" in last
    assert 'pip install "minigrad[lessons]"' in last
    assert not list(tmp_path.iterdir())


def test_the_progress_bar_shows_where_somebody_looks(arguments, capsys, monkeypatch, plain_figure):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert arguments(*SMALL_ARGUMENTS) == 0
    output, errors = capsys.readouterr()
    assert "/36" in errors  # three runs of 12 updates
    assert "updates/s" in errors or "s/ updates" in errors
    assert "/36" not in output
