"""What b samples can say: the closed forms of a micro-batch's own statistics, at eps = 0.

Held on the layer that runs, with statistics="micro"; each of its many channels is an experiment of
its own. What is an average over draws is *exact* where all draws can be listed. Else it is measured
from a seed, and holds within 4 standard errors (of the measured mean, from the measured spread),
which are so small that what one might think instead lies outside of them.

Elsewhere: rank of the Jacobian, b = 2 and its eps, the law of total variance, running statistics, a
bias before BatchNorm (test_batchnorm_exact.py); the error of one cut (lesson 07).
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import minigrad as mg

F8 = {"dtype": np.float64}
DRAWS = 100_000
ERRORS = 4  # standard errors: by chance, one test of 16,000 fails


def look(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of BatchNorm for x (b, channels), and the deviation by which it divided."""
    b, channels = x.shape
    norm = mg.BatchNorm(channels, statistics="micro", eps=0.0, momentum=1.0, **F8)
    y = norm(x).data
    return y, np.sqrt(norm.running_var * (b - 1) / b)  # kept unbiased, used biased


def gaussian(b: int, channels: int = DRAWS) -> np.ndarray:
    """A micro-batch of b standard normal values for each channel."""
    return np.random.default_rng(b).standard_normal((b, channels))


def hold(values: np.ndarray, expected: float, wrong: float) -> None:
    """Their mean is what is expected, and not what one might think."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - expected) < ERRORS * error
    assert abs(values.mean() - wrong) > ERRORS * error


def mean_deviation(b: int) -> float:
    """E[s_b] of b standard normal values."""
    return math.sqrt(2 / b) * math.gamma(b / 2) / math.gamma((b - 1) / 2)


# ------------------------------------------------------------------- variance and deviation


@pytest.mark.parametrize("b", [1, 2, 3, 4])
def test_the_variance_of_b_draws_is_too_small_by_1_over_b_exactly(b):
    """All draws of b from five numbers, in Fractions: for any distribution."""
    numbers = mg.fractions([0, 2, 10, 12, Fraction(1, 3)])
    of_all = sum((value - numbers.mean()) ** 2 for value in numbers) / 5
    draws = [mg.Statistics.of(mg.fractions(draw)[:, None]) for draw in product(numbers, repeat=b)]
    assert sum(s.variance[0] for s in draws) / len(draws) == (1 - Fraction(1, b)) * of_all
    if b > 1:  # what running statistics keep is right on average
        assert sum(s.squares[0] / (b - 1) for s in draws) / len(draws) == of_all


@pytest.mark.parametrize(("b", "value"), [(2, 0.5642), (4, 0.7979), (8, 0.9027)])
def test_the_deviation_is_smaller_still(b, value):
    assert mean_deviation(b) == pytest.approx(value, abs=5e-5)
    _, s = look(gaussian(b))
    hold(s, mean_deviation(b), wrong=math.sqrt(1 - 1 / b))
    hold(s * s, 1 - 1 / b, wrong=1)


@pytest.mark.parametrize(("b", "value"), [(4, 1.5958), (8, 1.2036), (16, 1.0883)])
def test_its_inverse_by_which_the_layer_scales_is_too_large(b, value):
    expected = math.sqrt(b / 2) * math.gamma((b - 2) / 2) / math.gamma((b - 1) / 2)
    assert expected == pytest.approx(value, abs=5e-5)
    _, s = look(gaussian(b))
    hold(1 / s, expected, wrong=1 / mean_deviation(b))


def test_for_two_values_the_inverse_has_no_mean():
    """P(1/s > t) falls as 1/t: erf(1/t) = 2/sqrt(pi) / t. The integral of that diverges."""
    _, s = look(gaussian(2))
    for t in (10, 100, 1000):
        hold(1.0 * (1 / s > t), math.erf(1 / t), wrong=1 / t**2)
        assert t * math.erf(1 / t) == pytest.approx(2 / math.sqrt(math.pi), rel=1 / t)


# ------------------------------------------------------------------------------- the outputs


def test_under_micro_each_micro_batch_of_a_window_is_standardized_by_itself():
    """Sum 0 and squares b in each part; under "batch" in the whole alone."""
    x, k = 3 * gaussian(12, 50) + 1, 3
    found = {}
    for statistics in ("micro", "batch"):
        norm, outputs = mg.BatchNorm(50, statistics=statistics, eps=0.0, **F8), []

        def loss(y):
            outputs.append(y.data)  # noqa: B023
            return mg.per_sample(y)

        mg.accumulate(norm, loss, (x,), accumulation_steps=k)
        found[statistics] = outputs[-k:]  # of the last pass
    for y in (*found["micro"], np.concatenate(found["batch"])):
        np.testing.assert_allclose(y.sum(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose((y * y).sum(axis=0), len(y), rtol=1e-13)
        assert np.all(np.abs(y) <= math.sqrt(len(y) - 1) * (1 + 1e-14))
    for y in found["batch"]:
        assert np.all(np.abs(y.sum(axis=0)) > 1e-4)


@pytest.mark.parametrize("b", [2, 4, 8])
def test_two_outputs_are_correlated_by_minus_1_over_b_minus_1(b):
    y, _ = look(gaussian(b))
    others = (y.sum(axis=0) ** 2 - (y * y).sum(axis=0)) / (b * (b - 1))  # the mean over all pairs
    np.testing.assert_allclose(others, -1 / (b - 1), rtol=1e-13)  # of any values
    if b > 2:  # else it is -1 each time
        hold(y[0] * y[1], -1 / (b - 1), wrong=-1 / b)


@pytest.mark.parametrize(("b", "value"), [(2, 1), (3, 1.5), (4, 1.8), (8, 2.3333)])
def test_the_fourth_moment_is_3_times_b_minus_1_over_b_plus_1(b, value):
    """Not the 3 of a normal distribution: the tails are cut off at sqrt(b - 1)."""
    expected = 3 * (b - 1) / (b + 1)
    assert expected == pytest.approx(value, abs=5e-5)
    y, _ = look(gaussian(b))
    if b < 4:
        np.testing.assert_allclose((y**4).mean(axis=0), expected, rtol=1e-9)  # of any values
    else:
        hold(y[0] ** 4, expected, wrong=3)


BETA = {  # the distribution function of Beta(1/2, (b - 2)/2)
    3: lambda u: 2 / math.pi * np.arcsin(np.sqrt(u)),
    4: lambda u: np.sqrt(u),  # so that four values give outputs that are spread evenly
    6: lambda u: (3 * np.sqrt(u) - u * np.sqrt(u)) / 2,
    8: lambda u: (15 * np.sqrt(u) - 10 * u * np.sqrt(u) + 3 * u**2 * np.sqrt(u)) / 8,
}


def apart(u: np.ndarray, distribution) -> float:
    """How far the distribution of these values is from another at most (Kolmogorov)."""
    u = np.sort(u)
    steps = np.arange(len(u) + 1) / len(u)
    at = distribution(np.clip(u, 0, 1))
    return max(np.abs(steps[1:] - at).max(), np.abs(steps[:-1] - at).max())


@pytest.mark.parametrize("b", BETA)
def test_a_squared_output_over_b_minus_1_is_distributed_as_beta(b):
    y, _ = look(gaussian(b))
    error = 1 / (2 * math.sqrt(DRAWS))  # the largest of a share, at 1/2
    for other, distribution in BETA.items():
        far = apart(y[0] ** 2 / (b - 1), distribution)
        assert (far < ERRORS * error) == (other == b)


# ---------------------------------------------------------- an output, given its own sample


@pytest.mark.parametrize("b", [16, 64])
@pytest.mark.parametrize("z", [0.5, 1, 2])
def test_an_output_given_its_sample_is_z_times_1_plus_a_term_in_1_over_b(b, z):
    """E[y | z] = z (1 + (3/4 - z^2/2) / b) + O(1/b^2): small z are enlarged, large ones shrunk."""
    others = np.random.default_rng(b).standard_normal((b - 1, DRAWS * 10 // b))
    # -x is as likely as x: the mean over both loses what is odd. The squares of the others have a
    # known mean: what goes with them can be taken out.
    y = [
        look(np.concatenate([np.full((1, others.shape[1]), z), s * others]))[0][0] for s in (1, -1)
    ]
    ratio, known = (y[0] + y[1]) / (2 * z), (others * others).sum(axis=0) - (b - 1)
    slope = np.cov(ratio, known)[0, 1] / known.var(ddof=1)
    found = b * (ratio - 1 - slope * known)
    error = found.std(ddof=1) / math.sqrt(len(found))
    rest = 3 / b
    assert abs(found.mean() - (3 / 4 - z * z / 2)) < rest + ERRORS * error
    assert ERRORS * error < 0.1
    if b == 64:
        assert abs(found.mean()) > rest + ERRORS * error  # it is there


@pytest.mark.parametrize("b", [4, 8, 16, 32, 64])
def test_a_sample_times_its_output_is_on_average_1_minus_3_over_4b(b):
    """For any values the mean of x y is the deviation s_b, whose mean is known."""
    x = gaussian(b, 100) ** 3
    y, s = look(x)
    np.testing.assert_allclose((x * y).mean(axis=0), s, rtol=1e-12)
    assert abs(mean_deviation(b) - (1 - 3 / (4 * b))) < 1 / (4 * b * b)


# ------------------------------------------------------------- the bias of the gradient

N, CHANNELS, SIZES = 256, 4, (8, 16, 32, 64)
GROUPS, CUTS = 40, 40  # of 40 cuts each


class Net:
    """Linear, BatchNorm, tanh, Linear, and data from a net of one layer."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((N, 6))
        self.t = np.tanh(self.x @ rng.standard_normal((6, 1)))
        self.first = mg.Linear(6, CHANNELS, bias=False, rng=rng, **F8)
        self.last = mg.Linear(CHANNELS, 1, rng=rng, **F8)

    def gradient(self, model: mg.Module) -> np.ndarray:
        return np.concatenate([p.grad.ravel() for p in model.parameters()])

    def accumulated(self, b: int) -> tuple[np.ndarray, float]:
        """Gradient and loss of one cut, as minigrad accumulates them."""
        norm = mg.BatchNorm(CHANNELS, statistics="micro", affine=False, **F8)
        model = mg.Sequential(self.first, norm, mg.Tanh(), self.last)
        report = mg.accumulate(model, mg.squared_error, (self.x, self.t), b)
        return self.gradient(model), report.loss

    def of_cuts(self, orders: np.ndarray, b: int) -> tuple[np.ndarray, float]:
        """The mean of both over cuts, whose micro-batches lie side by side as channels."""
        rows, parts = orders.ravel(), orders.size // b
        norm = mg.BatchNorm(parts * CHANNELS, statistics="micro", affine=False, **F8)
        h = self.first(self.x[rows]).reshape(parts, b, CHANNELS).transpose(1, 0, 2)
        y = mg.tanh(norm(h.reshape(b, -1))).reshape(b, parts, CHANNELS).transpose(1, 0, 2)
        model = mg.Sequential(self.first, self.last)
        model.zero_grad()
        loss = mg.squared_error(self.last(y.reshape(-1, CHANNELS)), self.t[rows]).mean()
        loss.backward()
        return self.gradient(model), loss.item()


@pytest.fixture(scope="module")
def errors() -> tuple[np.ndarray, np.ndarray]:
    """(sizes, groups, ...): how far gradient and loss of a group of cuts are from one batch's."""
    net = Net()
    one, loss = net.accumulated(N)
    both = net.of_cuts(np.arange(N)[None], 8)
    np.testing.assert_allclose(both[0], net.accumulated(8)[0], rtol=1e-10, atol=1e-13)
    found = []
    for b in SIZES:
        rng = np.random.default_rng(b)
        groups = [[rng.permutation(N) for _ in range(CUTS)] for _ in range(GROUPS)]
        found.append([net.of_cuts(np.stack(orders), b) for orders in groups])
    gradients = np.array([[g - one for g, _ in groups] for groups in found])
    return gradients, np.array([[value - loss for _, value in groups] for groups in found])


def length(d: np.ndarray) -> float:
    """The length of the mean of these vectors (groups, n), without what their scatter adds."""
    n, total = len(d), d.sum(axis=0)
    return math.sqrt((total @ total - (d * d).sum()) / (n * (n - 1)))


def slope_with_error(errors: np.ndarray, size) -> tuple[float, float]:
    """The slope of log size(...) against log(1/b - 1/N), and its error (jackknife over groups)."""
    law = np.log([1 / b - 1 / N for b in SIZES])
    slope = lambda kept: np.polyfit(law, np.log([size(d[kept]) for d in errors]), 1)[0]  # noqa: E731
    every = np.arange(GROUPS)
    without = np.array([slope(every != group) for group in every])
    return slope(every >= 0), math.sqrt((GROUPS - 1) * without.var())


def test_the_bias_of_the_gradient_is_proportional_to_1_over_b_minus_1_over_n(errors):
    slope, error = slope_with_error(errors[0], length)
    assert ERRORS * error < 0.1
    assert abs(slope - 1) < 0.1


def test_so_is_that_of_the_loss(errors):
    slope, error = slope_with_error(errors[1], lambda d: abs(d.mean()))
    assert ERRORS * error < 0.1
    assert abs(slope - 1) < 0.1
