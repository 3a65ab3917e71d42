"""The noise of a gradient: what a batch knows of the whole, and what one window says about it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from minigrad.data import digits
from minigrad.noise import NoiseMeter, from_parts, from_sums

GRADIENTS = mg.fractions([3, -1, 4, 1, -5, 9, -2, 6]).reshape(-1, 1)


class Line(mg.Module):
    """x -> x w, whose gradient for a loss that sums outputs is the sum of the inputs."""

    def __init__(self, width=1, dtype=object):
        zeros = np.zeros((width, 1))
        self.w = mg.parameter(mg.fractions(zeros) if dtype is object else zeros.astype(dtype))

    def forward(self, x):
        return x @ self.w


def output(outputs, *targets):
    """Each sample's loss is the model's output, so that its gradient is its input."""
    return mg.per_sample(outputs.sum(axis=1))


def noise(x, micro_batch_size, way, **more):
    """The noise that the window of the inputs x (N, p) reports."""
    model = Line(x.shape[1], object if x.dtype == object else x.dtype)
    return mg.accumulate(model, output, (x,), micro_batch_size, noise=way, **more).noise


def average(values):
    """The mean of (signal, noise) pairs, exactly."""
    values = list(values)
    return tuple(sum(column) / len(values) for column in zip(*values, strict=True))


# -------------------------------------------------------- what a batch knows of the whole


def test_the_noise_of_each_batch_that_can_be_drawn_averages_to_the_formula_exactly():
    """All subsets of 8 samples, in Fractions: `==`."""
    whole, found = GRADIENTS.sum() / 8, {}
    for size in (1, 2, 3, 4, 8):
        means = [sum(drawn) / size for drawn in itertools.combinations(GRADIENTS.ravel(), size)]
        found[size] = sum((g - whole) ** 2 for g in means) / len(means)
        assert mg.batch_noise(GRADIENTS, size) == found[size]
    numbers = ["1159/64", "3477/448", "5795/1344", "1159/448", "0"]
    assert list(found.values()) == [Fraction(n) for n in numbers]


def test_with_replacement_it_is_one_samples_noise_over_the_size_exactly():
    whole, one = GRADIENTS.sum() / 8, mg.batch_noise(GRADIENTS, 1)
    draws = itertools.product(GRADIENTS.ravel(), repeat=3)
    apart = [(sum(drawn) / 3 - whole) ** 2 for drawn in draws]
    assert mg.batch_noise(GRADIENTS, 3, replace=True) == sum(apart) / len(apart) == one / 3
    assert mg.batch_noise(GRADIENTS, 24, replace=True) == one / 24  # more than there are


def test_the_rest_of_an_epoch_is_negatively_correlated_with_its_beginning():
    """Without replacement two batches of 4 make up the whole: one is as far above as the other
    below."""
    whole, total = GRADIENTS.sum() / 8, GRADIENTS.sum()
    products = []
    for drawn in itertools.combinations(GRADIENTS.ravel(), 4):
        first, rest = sum(drawn) / 4, (total - sum(drawn)) / 4
        products.append((first - whole) * (rest - whole))
    assert sum(products) / len(products) == -mg.batch_noise(GRADIENTS, 4)


def test_the_variance_of_drawn_batches_falls_as_1_over_their_size():
    """Slope -1 of the logarithms, from 4,000 batches a size; the standard deviation's is -1/2."""
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((500, 20)) + 1
    sizes, whole = np.array([4, 16, 64]), gradients.mean(axis=0)
    variances = []
    for size in sizes:
        drawn = gradients[rng.integers(0, 500, (4000, size))].mean(axis=1)
        variances.append(((drawn - whole) ** 2).sum(axis=1).mean())
    slope = np.polyfit(np.log(sizes), np.log(variances), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    expected = [mg.batch_noise(gradients, s, replace=True) for s in sizes.tolist()]
    np.testing.assert_allclose(variances, expected, rtol=0.03)


@pytest.mark.parametrize(
    ("size", "sentence"),
    [(0, "size is 0, expected an integer"), (9, "size = 9 of 8 samples, expected at most 8")],
)
def test_a_batch_that_cannot_be_drawn_is_refused(size, sentence):
    with pytest.raises(ValueError, match=sentence):
        mg.batch_noise(GRADIENTS, size)


# --------------------------------------------------------------- what one window says


@pytest.mark.parametrize("way", ["parts", "sums"])
@pytest.mark.parametrize(("draws", "b"), [(3, 1), (4, 2), (5, 2), (6, 4)], ids=str)
def test_both_estimates_are_unbiased_exactly(way, draws, b):
    """All windows that can be drawn from three samples, in Fractions, uneven parts too: `==`."""
    samples = [np.array(g, dtype=object) for g in [(3, -1), (-1, 2), (4, 0)]]
    samples = [mg.fractions(g) for g in samples]
    whole = sum(samples) / 3
    windows = itertools.product(samples, repeat=draws)
    found = average(noise(np.stack(window), b, way) for window in windows)
    assert found == ((whole * whole).sum(), mg.batch_noise(np.stack(samples), 1))


def test_drawn_without_replacement_the_estimates_are_those_of_the_finite_set_exactly():
    """E of the noise is S N/(N-1), that of the signal |G|^2 - S/(N-1): in Fractions, `==`."""
    gradients = GRADIENTS[:5]
    windows = itertools.permutations(gradients, 4)
    signal, one = average(noise(np.stack(window), 2, "parts") for window in windows)
    spread = mg.batch_noise(gradients, 1)
    assert one == spread * 5 / 4
    assert signal == (gradients.sum() / 5) ** 2 - spread / 4


def test_a_window_to_check_by_hand():
    """Two parts of two samples, with mean gradients 1 and 3: the whole has 2."""
    x = mg.fractions([0, 2, 5, 1]).reshape(-1, 1)
    for found in (noise(x, 2, "parts"), from_parts([1, 9], [2, 2], 4)):
        assert found == (3, 4)
        assert float(found.scale) == 4 / 3
    wrong = from_parts([1, 9], [2, 2], 16)  # the sum of the gradients taken for their mean
    assert wrong.noise == -44  # a negative variance


def test_the_straight_line_of_the_running_sums_by_hand():
    """|A|^2 / W of 4/2 and 64/4: the line rises by 14 in 2 samples and meets the axis at -12."""
    x = mg.fractions([0, 2, 5, 1]).reshape(-1, 1)
    assert noise(x, 2, "sums") == from_sums([4, 64], [2, 4]) == (7, -12)


@pytest.mark.parametrize("way", ["parts", "sums"])
def test_what_a_step_reports_is_the_gradient_of_the_mean_whatever_is_trained(way):
    """reduction, clipping and the optimizer change nothing of it."""
    x = np.random.default_rng(0).standard_normal((12, 3))
    expected = noise(x, 3, way)
    assert noise(x, 3, way, reduction="sum") == pytest.approx(expected, rel=1e-12)
    model = Line(3, np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.5)
    report = mg.train_step(model, output, optimizer, (x,), 3, clip_norm=1e-3, noise=way)
    assert report.noise == pytest.approx(expected, rel=1e-12)
    assert report.updated


@pytest.mark.parametrize("way", ["parts", "sums"])
def test_a_stream_reports_the_same_noise_as_the_batch(way):
    x = np.random.default_rng(0).standard_normal((11, 3))
    model = Line(3, np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.0)
    with mg.Accumulator(model, optimizer, accumulation_steps=4, noise=way) as accumulator:
        for start in range(0, 11, 3):  # 3, 3, 3, 2
            with accumulator.micro_batch(len(x[start : start + 3])):
                accumulator.backward(output(model(mg.Tensor(x[start : start + 3]))))
    assert accumulator.report.noise == noise(x, 3, way)
    whole = accumulator.window(output, [(x[:6],), (x[6:],)])
    assert whole.noise == noise(np.concatenate([x[:6], x[6:]]), 6, way)


def test_measuring_changes_nothing_of_the_update():
    """Bit for bit the same weights, with and without."""
    (x, y), _ = digits(np.float32)
    trained = []
    for way in (None, "parts", "sums"):
        model = mg.MLP(64, 16, 10, rng=np.random.default_rng(0))
        optimizer = mg.Adam(model.parameters())
        for start in (0, 64):
            batch = x[start : start + 64], y[start : start + 64]
            mg.train_step(model, mg.cross_entropy, optimizer, batch, 16, noise=way)
        trained.append([p.data for p in model.parameters()])
    for other in trained[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(trained[0], other, strict=True))


def test_a_single_micro_batch_at_the_end_of_a_stream_has_no_noise():
    model = Line(3, np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.1)
    x = np.ones((2, 3))
    accumulator = mg.Accumulator(model, optimizer, accumulation_steps=2, noise="sums")
    with accumulator, accumulator.micro_batch(2):
        accumulator.backward(output(model(mg.Tensor(x))))
    assert accumulator.report.updated
    assert accumulator.report.noise is None


def test_a_window_that_was_loaded_open_has_no_noise():
    """Its first micro-batches were not looked at: no number is better than a wrong one."""
    x = np.random.default_rng(0).standard_normal((4, 3))

    def start():
        model = Line(3, np.float64)
        optimizer = mg.SGD(model.parameters(), lr=0.1)
        return model, mg.Accumulator(model, optimizer, accumulation_steps=4, noise="parts")

    def feed(model, accumulator, rows):
        for row in rows:
            with accumulator.micro_batch(1):
                accumulator.backward(output(model(mg.Tensor(row[None]))))

    model, first = start()
    first.__enter__()
    feed(model, first, x[:2])
    model, second = start()
    second.load_state_dict(first.state_dict())
    with second:
        feed(model, second, x[2:])
    assert second.report.updated
    assert second.report.noise is None


# ------------------------------------------------------------------------- on digits


@pytest.fixture(scope="module")
def trained():
    """A small net in its 20th update, the gradient of each training sample, and the samples."""
    (x, y), _ = digits(np.float64)
    model = mg.MLP(64, 8, 10, rng=np.random.default_rng(0), dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.1)
    for start in range(0, 20 * 64, 64):
        batch = x[start : start + 64], y[start : start + 64]
        mg.train_step(model, mg.cross_entropy, optimizer, batch, 64)
    rows = []
    for i in range(len(x)):
        mg.accumulate(model, mg.cross_entropy, (x[i : i + 1], y[i : i + 1]), 1)
        rows.append(np.concatenate([p.grad.ravel() for p in model.parameters()]))
    return model, np.stack(rows), (x, y)


def test_on_digits_the_estimates_match_a_direct_computation(trained):
    """300 windows of 8 x 16 samples, drawn with replacement: within 4 standard errors of the
    direct sums over all samples; and "sums" spreads more than "parts", as its docstring says."""
    model, gradients, (x, y) = trained
    whole = gradients.mean(axis=0)
    direct = whole @ whole, mg.batch_noise(gradients, 1)
    rng, spread = np.random.default_rng(0), {}
    picks = rng.integers(0, len(x), (300, 128))
    for way in ("parts", "sums"):
        found = np.array(
            [
                mg.accumulate(model, mg.cross_entropy, (x[i], y[i]), 16, noise=way).noise
                for i in picks
            ]
        )
        mean, spread[way] = found.mean(axis=0), found.std(axis=0, ddof=1)
        assert (np.abs(mean - direct) < 4 * spread[way] / math.sqrt(len(picks))).all()
    assert (spread["sums"] > spread["parts"]).all()
    assert spread["sums"][1] > 2 * spread["parts"][1]


def test_on_digits_drawn_batches_are_as_far_off_as_predicted(trained):
    """E|g_B - G|^2 without replacement, for B = 16, 64 and 256, from 400 batches each."""
    _, gradients, _ = trained
    rng, whole = np.random.default_rng(0), gradients.mean(axis=0)
    for size in (16, 64, 256):
        apart = []
        for _ in range(400):
            drawn = gradients[rng.choice(len(gradients), size, replace=False)].mean(axis=0)
            apart.append(((drawn - whole) ** 2).sum())
        error = np.std(apart, ddof=1) / math.sqrt(len(apart))
        assert abs(np.mean(apart) - mg.batch_noise(gradients, size)) < 4 * error


def test_the_square_of_a_batchs_gradient_is_too_large_by_its_noise(trained):
    """E|g_B|^2 = |G|^2 + noise: a batch seems to have more signal than there is."""
    _, gradients, _ = trained
    rng, whole = np.random.default_rng(0), gradients.mean(axis=0)
    drawn = gradients[rng.integers(0, len(gradients), (400, 8))].mean(axis=1)
    squares = (drawn * drawn).sum(axis=1)
    expected = whole @ whole + mg.batch_noise(gradients, 8, replace=True)
    assert abs(squares.mean() - expected) < 4 * squares.std(ddof=1) / math.sqrt(400)
    assert squares.mean() > 2 * (whole @ whole)


# ---------------------------------------------------------------------- memory and waits


def test_sums_needs_no_buffer_and_parts_needs_one():
    """Peak of a window beyond that of the same window unmeasured, in sizes of the gradient."""
    model = mg.MLP(256, 256, 10, rng=np.random.default_rng(0))
    size = sum(p.data.nbytes for p in model.parameters())
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((16, 256)).astype(np.float32), rng.integers(0, 10, 16)
    peaks = {}
    for way in (None, "sums", "parts"):
        mg.accumulate(model, mg.cross_entropy, batch, 4, noise=way)
        for p in model.parameters():
            p.grad = None
        with mg.measure_memory() as memory:
            mg.accumulate(model, mg.cross_entropy, batch, 4, noise=way)
        peaks[way] = memory.peak / size
    assert peaks["sums"] - peaks[None] < 0.05
    assert 1 <= peaks["parts"] - peaks[None] < 2.05  # the buffer, and the difference of one layer


# --------------------------------------------------------------------- what has no noise


def two_samples():
    return mg.fractions([[1], [2]])


def test_a_way_that_is_none_is_refused():
    with pytest.raises(ValueError, match="noise is 'part', expected 'parts', 'sums' or None"):
        noise(two_samples(), 1, "part")
    model = Line(1, np.float64)
    with pytest.raises(ValueError, match="noise is 'part'"):
        mg.Accumulator(model, mg.SGD(model.parameters(), 0.1), accumulation_steps=2, noise="part")


def test_one_micro_batch_is_no_window_to_measure():
    with pytest.raises(ValueError, match="1 micro-batch, expected 2 or more; give a smaller"):
        noise(two_samples(), 2, "parts")


def test_coupled_samples_have_no_noise_of_their_own():
    x, labels = np.random.default_rng(0).standard_normal((4, 3)), np.array([0, 1, 0, 1])
    model = mg.MLP(3, 4, 2, norm=mg.BatchNorm, dtype=np.float64)
    with pytest.raises(ValueError, match="samples of a batch depend on each other"):
        mg.accumulate(model, mg.cross_entropy, (x, labels), 2, noise="parts")


def test_a_loss_of_several_units_is_refused_by_name():
    model = Line(1, np.float64)

    def loss(outputs):
        return output(outputs) + mg.penalty((model.w * model.w).sum())

    with pytest.raises(ValueError, match="units 'sample', 'window', expected one of data"):
        mg.accumulate(model, loss, (np.ones((2, 1)),), 1, noise="sums")
    with pytest.raises(ValueError, match="units 'window'"):
        mg.accumulate(
            model,
            lambda o: mg.penalty((model.w * model.w).sum()),
            (np.ones((2, 1)),),
            1,
            noise="sums",
        )


def test_parts_whose_weights_are_no_counts_of_samples_are_refused():
    """Two sentences, of which one word is masked: what is one draw there, is not known."""
    rng = np.random.default_rng(0)
    model = mg.MLP(3, 4, 2, dtype=np.float64, rng=rng)
    x, labels = rng.standard_normal((4, 3)), np.array([0, 1, 0, 1])
    masked = np.array([0, 1, 0, -100])

    def loss(outputs, targets):
        return mg.cross_entropy(outputs, targets, ignore_index=-100)

    assert mg.accumulate(model, loss, (x, labels), 2, noise="parts").noise is not None
    with pytest.raises(
        ValueError, match="weigh 2, 1 for 2, 2 samples, expected the same weight for"
    ):
        mg.accumulate(model, loss, (x, masked), 2, noise="parts")
    optimizer = mg.SGD(model.parameters(), lr=0.1)
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(ValueError, match="weigh 2, 1"):
        mg.train_step(model, loss, optimizer, (x, masked), 2, noise="parts")
    assert optimizer.updates == 0
    assert all((p.data == b).all() for p, b in zip(model.parameters(), before, strict=True))


def test_a_window_of_no_weight_has_no_noise():
    model = mg.MLP(3, 2, dtype=np.float64, rng=np.random.default_rng(0))
    optimizer = mg.SGD(model.parameters(), lr=0.1)

    def loss(outputs, targets):
        return mg.cross_entropy(outputs, targets, ignore_index=-100)

    batch = np.ones((4, 3)), np.full(4, -100)
    report = mg.train_step(model, loss, optimizer, batch, 2, noise="parts")
    assert not report.updated
    assert report.noise is None


def test_the_meter_names_the_many_weights_that_differ_by_the_first_four():
    meter = NoiseMeter("sums", [])
    meter.squares, meter.weights, meter.samples = [0] * 5, [2, 3, 5, 6, 8], [1, 2, 3, 4, 5]
    with pytest.raises(
        ValueError, match=r"weigh 2, 1, 2, 1, \.\.\. for 1, 1, 1, 1, \.\.\. samples"
    ):
        meter.read([0, 0, 0, 0, 0, 0, 2, 3, 5, 6, 8])


@pytest.mark.parametrize("way", ["parts", "sums"])
@pytest.mark.parametrize("weight", [2.0, 0.1])
def test_what_each_sample_weighs_does_not_count(way, weight):
    """The gradient is a mean over the weight, so its noise is the same; uneven parts too."""
    x = np.random.default_rng(0).standard_normal((11, 3))

    def weighted(outputs):
        return mg.per_sample(outputs.sum(axis=1), sample_weights=np.full(len(outputs), weight))

    found = mg.accumulate(Line(3, np.float64), weighted, (x,), 3, noise=way).noise
    assert found == pytest.approx(noise(x, 3, way), rel=1e-9)


def test_the_noise_is_that_of_the_parameters_that_are_trained():
    x, labels = np.random.default_rng(0).standard_normal((8, 3)), np.arange(8) % 2
    squares = {}
    for way in ("parts", "sums"):
        model = mg.MLP(3, 4, 2, dtype=np.float64, rng=np.random.default_rng(0))
        last = model.layers[-1].parameters()
        report = mg.train_step(
            model, mg.cross_entropy, mg.SGD(last, 0.1), (x, labels), 2, noise=way
        )
        if way == "parts":  # |g_B|^2 = signal + noise/B is what it solved for
            assert report.noise.signal + report.noise.noise / 8 == pytest.approx(
                report.grad_norm**2, rel=1e-12
            )
        squares[way] = report.noise
    model = mg.MLP(3, 4, 2, dtype=np.float64, rng=np.random.default_rng(0))
    for p in model.layers[0].parameters():
        p.requires_grad = False
    frozen = mg.accumulate(model, mg.cross_entropy, (x, labels), 2, noise="sums").noise
    assert squares["sums"] == pytest.approx(frozen, rel=1e-12)


def test_a_square_that_overflows_is_no_number():
    x = np.full((4, 2), 3e19, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        found = noise(x, 1, "parts")
    assert math.isnan(found.scale)
    assert mg.SmoothedNoise().update(found) is None


# ----------------------------------------------------------------------------- smoothing


def test_signal_and_noise_are_smoothed_apart_and_corrected_for_the_start():
    smoothed = mg.SmoothedNoise(decay=0.5)
    assert smoothed.value is None
    assert smoothed.update(mg.GradientNoise(1.0, 6.0)) == (1.0, 6.0)
    found = smoothed.update(mg.GradientNoise(4.0, 3.0))
    assert found == (3.0, 4.0)  # weights 1/3 and 2/3
    assert found.scale == pytest.approx(4 / 3)
    assert smoothed.update(None) == (3.0, 4.0)  # a window without noise changes nothing
    assert smoothed.update(mg.GradientNoise(math.nan, 1.0)) == (3.0, 4.0)
    assert smoothed.windows == 2


def test_the_ratio_of_averages_is_not_the_average_of_ratios():
    """Two windows with signals 1 and 4 and noise 6: 6 / 2.5 against (6 + 1.5) / 2."""
    pair = [mg.GradientNoise(1.0, 6.0), mg.GradientNoise(4.0, 6.0)]
    smoothed = mg.SmoothedNoise(decay=0.999999)
    for one in pair:
        smoothed.update(one)
    assert smoothed.value.scale == pytest.approx(2.4, rel=1e-5)
    assert sum(one.scale for one in pair) / 2 == 3.75


def test_no_signal_is_an_infinite_scale():
    assert mg.GradientNoise(-0.1, 2.0).scale == math.inf
    assert mg.GradientNoise(0.5, 2.0).scale == 4
    for wrong in (1, -0.1):
        with pytest.raises(ValueError, match=f"decay = {wrong}, expected 0 or more, below 1"):
            mg.SmoothedNoise(wrong)


# ------------------------------------------------------------------------ what it costs


def test_at_the_noise_scale_both_costs_are_twice_the_least():
    assert mg.trade_off(Fraction(32), Fraction(32)) == (2, 2)
    for size in (1, 5, 64, 1000):
        updates, samples = mg.trade_off(Fraction(size), Fraction(32))
        assert (updates - 1) * (samples - 1) == 1
        assert updates / samples == Fraction(32, size)  # samples = updates x size, in these units


@pytest.mark.parametrize(("ratio", "share"), [(0.222041, 0.181697), (1.0, 0.5), (10.0, 0.909091)])
def test_on_a_quadratic_the_best_step_gains_the_share_that_is_told(ratio, share):
    """L(w) = w'Hw/2, gradient noise of covariance C/B. E of L(w - s g) falls most, over all s, by
    1/(1 + scale/B) times what it falls by without noise, with scale = tr(HC)/G'HG."""
    rng = np.random.default_rng(0)
    h, w, c = np.diag([1.0, 3.0, 7.0]), rng.standard_normal(3), np.diag([2.0, 1.0, 0.5])
    gradient = h @ w
    along, noisy = gradient @ h @ gradient, np.trace(h @ c)
    scale = noisy / along
    size = ratio * scale

    def best(noise):
        """max over s of s |G|^2 - s^2/2 (G'HG + noise)."""
        return (gradient @ gradient) ** 2 / (2 * (along + noise))

    found = best(noisy / size) / best(0)
    assert found == pytest.approx(1 / mg.trade_off(size, scale).updates, rel=1e-12)
    assert found == pytest.approx(share, abs=1e-6)


def test_a_batch_or_a_scale_that_is_none_is_refused():
    for arguments, name in [((0, 8), "batch_size = 0"), ((8, math.inf), "noise_scale = inf")]:
        with pytest.raises(ValueError, match=f"{name}, expected a number above 0"):
            mg.trade_off(*arguments)
