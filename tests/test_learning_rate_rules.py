"""What the rules for another batch size claim, in exact fractions on one quadratic, where they end,
and how two of them agree.

The loss of a sample is (w + x)^2 with x = +1 or -1, each half of the time: the gradient is 2 w, of
curvature h = 2, plus noise 2 x, of variance s2 = 4. Means over the noise are taken over all of its
patterns, so that they are exact.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

import minigrad as mg

H, S2 = 2, 4


class Shift(mg.Module):
    """outputs = x + w."""

    def __init__(self, w):
        self.w = mg.parameter(mg.fractions([w]))

    def forward(self, x):
        return x + self.w


def after(w, rate, noise, micro_batch_size=1, **options):
    """The weight after one update from w by the batch of these x."""
    model = Shift(w)
    batch = mg.fractions(noise), mg.fractions(np.zeros(len(noise)))
    optimizer = mg.SGD(model.parameters(), rate)
    mg.train_step(model, mg.squared_error, optimizer, batch, micro_batch_size, **options)
    return model.w.data[0]


def without_noise(w, rates):
    """The weight after an update at each of the rates."""
    for rate in rates:
        w = after(w, rate, [0])
    return w


def stationary(rate, batch_size):
    """rate s2 / (B h (2 - rate h)), the variance at which the weight settles around 0."""
    return rate * S2 / (batch_size * H * (2 - rate * H))


# ---------------------------------------------------------------------- the noise of SGD


@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
@pytest.mark.parametrize("w", [0, Fraction(3, 7)])
def test_one_update_moves_the_mean_square_as_the_recursion_says(w, batch_size, micro_batch_size):
    """E w'^2 = (1 - rate h)^2 w^2 + rate^2 s2 / B: exact."""
    rate = Fraction(1, 5)
    patterns = list(itertools.product((-1, 1), repeat=batch_size))
    squares = [after(w, rate, x, micro_batch_size) ** 2 for x in patterns]
    mean = sum(squares) / len(patterns)
    assert mean == (1 - rate * H) ** 2 * w * w + rate * rate * S2 / batch_size


@pytest.mark.parametrize("rate", [Fraction(1, 200), Fraction(1, 5), Fraction(9, 10)])
@pytest.mark.parametrize("batch_size", [1, 8, 1024])
def test_the_recursion_leaves_the_stationary_variance_where_it_is(rate, batch_size):
    v = stationary(rate, batch_size)
    assert (1 - rate * H) ** 2 * v + rate * rate * S2 / batch_size == v


def test_at_a_fixed_rate_the_noise_falls_as_one_over_the_batch():
    rate = Fraction(1, 5)
    assert stationary(rate, 64) == stationary(rate, 8) / 8


# ----------------------------------------------------------------------- linear scaling

RATE = Fraction(1, 200)  # rate h = 0.01


@pytest.mark.parametrize(
    ("k", "ratio"), [(2, 1.0051), (4, 1.0153), (8, 1.0365), (16, 1.0815), (64, 1.4632)]
)
def test_linear_scaling_keeps_the_noise_to_first_order_in_the_rate(k, ratio):
    """The ratio of the variances is (2 - rate h) / (2 - k rate h): exact, and above 1."""
    scaled = mg.linear_scaling(RATE, 8, 8 * k)
    assert scaled == k * RATE
    found = stationary(scaled, 8 * k) / stationary(RATE, 8)
    assert found == (2 - RATE * H) / (2 - k * RATE * H)
    assert round(float(found), 4) == ratio


@pytest.mark.parametrize(("k", "small", "one"), [(8, 0.92274, 0.92), (64, 0.5256, 0.36)])
def test_one_scaled_update_goes_nearly_as_far_as_k_small_ones(k, small, one):
    """(1 - rate h)^k against 1 - k rate h: different, and more so the larger k rate h is."""
    many = without_noise(Fraction(1), [RATE] * k)
    once = without_noise(Fraction(1), [mg.linear_scaling(RATE, 1, k)])
    assert many == (1 - RATE * H) ** k
    assert once == 1 - k * RATE * H
    assert (round(float(many), 5), round(float(once), 5)) == (round(small, 5), one)
    assert 0 < many - once < (k * RATE * H) ** 2 / 2


def test_linear_scaling_ends_where_k_times_the_rate_meets_the_curvature():
    """From k rate h = 2 on, the weight no longer shrinks, whatever the noise."""
    updates = 5
    for k, end in ((199, Fraction(99, 100) ** updates), (200, 1), (201, Fraction(101, 100) ** 5)):
        rate = mg.linear_scaling(RATE, 1, k)
        assert abs(without_noise(Fraction(1), [rate] * updates)) == end


@pytest.mark.parametrize("B", [2, 5])
def test_for_a_sum_the_gradient_has_grown_already_and_scaling_the_rate_scales_twice(B):
    w, noise = Fraction(3, 7), [1, -1, 1, 1, -1][:B]
    scaled = mg.linear_scaling(RATE, 1, B)
    mean = after(w, scaled, noise)
    assert after(w, RATE, noise, reduction="sum") == mean
    assert after(w, scaled, noise, reduction="sum") - w == B * (mean - w)


def test_equal_samples_are_k_times_fewer_updates():
    """Accumulating at an unchanged rate leaves undone all that those updates would have done."""
    samples, b = 24, 2
    for k in (1, 2, 4, 12):
        model = Shift(1)
        optimizer = mg.SGD(model.parameters(), RATE)
        for first in range(0, samples, k * b):
            x = mg.fractions(np.zeros(samples))[first : first + k * b]
            report = mg.train_step(model, mg.squared_error, optimizer, (x, x), micro_batch_size=b)
            assert report.micro_batches == k
        assert optimizer.updates == samples // (k * b)
        assert model.w.data[0] == (1 - RATE * H) ** optimizer.updates


def test_warm_up_ends_at_the_scaled_rate():
    rate = mg.warmup(mg.linear_scaling(0.125, 8, 64), 4)
    assert [rate(update) for update in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


# --------------------------------------------------------------------------- Adam's rules


def mean_sign(signal, batch_size, n=20_000):
    """The mean first move of Adam without memory, over its rate, and with it that of every sign
    method: for a gradient of mean `signal` and Gaussian noise of 1, at n even steps of its law."""
    noise = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    w = mg.parameter(np.zeros(n))
    w.grad = -(signal + noise / math.sqrt(batch_size))
    mg.Adam([w], lr=0.5, betas=(0, 0), eps=0).step()
    assert set(np.abs(w.data)) == {0.5}
    return w.data.mean() / 0.5


def erf_law(signal, batch_size):
    """E sign of the mean of a batch = erf(mu sqrt(B) / (s sqrt(2)))."""
    return math.erf(signal * math.sqrt(batch_size / 2))


@pytest.mark.parametrize("batch_size", [1, 4, 16, 64])
def test_adam_in_noise_moves_with_the_square_root_of_the_batch(batch_size):
    assert abs(mean_sign(0.01, batch_size) - erf_law(0.01, batch_size)) <= 1 / 20_000


def test_four_times_the_batch_is_twice_the_move():
    moves = [erf_law(0.01, batch_size) for batch_size in (1, 4, 16, 64)]
    assert [round(move, 5) for move in moves] == [0.00798, 0.01596, 0.03191, 0.06376]
    assert erf_law(3, 4) / erf_law(3, 1) < 1.01  # without noise a larger batch moves no further


@pytest.mark.parametrize("kappa", [2, 4, 8])
def test_square_root_scaling_keeps_drift_and_diffusion_over_equal_samples(kappa):
    """kappa updates against one. Squares of moves add up where signs are noise: to rounding; means
    add up, which the law of signs makes equal to first order in the signal."""
    lr = 1e-3
    scaled = mg.square_root_scaling(lr, 32, 32 * kappa)["lr"]
    assert math.isclose(scaled**2, kappa * lr**2, rel_tol=1e-15)
    drift = scaled * erf_law(0.001, kappa) / (kappa * lr * erf_law(0.001, 1))
    assert abs(drift - 1) < 1e-5
    linear = mg.linear_scaling(lr, 32, 32 * kappa) * erf_law(0.001, kappa)
    assert linear / (kappa * lr * erf_law(0.001, 1)) > 0.999 * math.sqrt(kappa)  # too far


@pytest.mark.parametrize("kappa", [Fraction(1, 8), Fraction(1, 2), 1, 2, 8])
def test_square_root_scaling_forgets_within_the_same_samples(kappa):
    """B / (1 - beta) is kept: exact."""
    betas = Fraction(9, 10), Fraction(999, 1000)
    new = int(64 * kappa)
    scaled = mg.square_root_scaling(1, 64, new, betas)["betas"]
    assert [new / (1 - beta) for beta in scaled] == [64 / (1 - beta) for beta in betas]


def test_square_root_scaling_gives_what_adam_takes():
    options = mg.square_root_scaling(1e-3, 32, 128)
    assert options["lr"] == 2e-3
    assert options["eps"] == 5e-9
    np.testing.assert_allclose(options["betas"], (0.6, 0.996), rtol=1e-14)
    optimizer = mg.Adam([mg.parameter(np.ones(2))], **options)
    assert (optimizer.lr, optimizer.eps) == (2e-3, 5e-9)


def test_square_root_scaling_ends_where_a_beta_is_0():
    assert mg.square_root_scaling(1e-3, 1, 20, (0.95, 0.999))["betas"][0] == 0
    with pytest.raises(ValueError, match="beta 0.95 into -0.05"):
        mg.square_root_scaling(1e-3, 1, 21, (0.95, 0.999))


def test_a_constant_half_life_keeps_what_the_samples_kept():
    """One update with the new beta keeps what kappa updates kept: exact."""
    beta = Fraction(9, 10)
    assert mg.constant_half_life(beta, 4, 12) == beta**3
    half = lambda beta, batch_size: batch_size * math.log(0.5) / math.log(beta)  # noqa: E731
    for old, new in ((512, 1), (16, 1), (1, 512)):
        scaled = mg.constant_half_life(0.95, old, new)
        assert math.isclose(half(scaled, new), half(0.95, old), rel_tol=1e-11)
    assert round(mg.constant_half_life(0.95, 512, 1), 4) == 0.9999  # the paper's own examples
    assert round(mg.constant_half_life(0.95, 16, 1), 3) == 0.997


@pytest.mark.parametrize("kappa", [2, 8])
def test_the_two_rules_for_beta_agree_to_first_order(kappa):
    """Different: by at most (kappa (1 - beta))^2 / 2, and by something."""
    beta = Fraction(999, 1000)
    half_life = mg.constant_half_life(beta, 1, kappa)
    straight = mg.square_root_scaling(1, 1, kappa, (beta,))["betas"][0]
    assert 0 < half_life - straight < (kappa * (1 - beta)) ** 2 / 2
    if kappa == 8:
        assert (float(straight), round(float(half_life), 6)) == (0.992, 0.992028)


# ---------------------------------------------------- growing the batch, decaying the rate


def train(rate, sizes, samples):
    """(updates, micro-batches in each) of a loop that looks up the size of each batch."""
    model = Shift(1)
    optimizer = mg.SGD(model.parameters(), rate)
    seen, parts = 0, []
    while seen < samples:
        x = mg.fractions(np.zeros(sizes(optimizer.updates)))
        report = mg.train_step(model, mg.squared_error, optimizer, (x, x), micro_batch_size=8)
        parts.append(report.micro_batches)
        seen += len(x)
    assert seen == samples
    return optimizer.updates, parts


def test_a_growing_batch_sees_the_same_samples_in_fewer_updates():
    """Three stages of 64 samples, of 8, 16 and 32 a batch: 8 + 4 + 2 updates against 24, each of
    the micro-batches that the size needs."""
    grown = mg.step_growth(8, 2, 64, 32)
    updates, parts = train(RATE, grown, 192)
    assert (updates, parts) == (14, [1] * 8 + [2] * 4 + [4] * 2)
    decayed = mg.step_decay(RATE, Fraction(1, 2), 64 // 8)
    updates, parts = train(decayed, lambda update: 8, 192)
    assert (updates, parts) == (24, [1] * 24)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage_has_the_noise_of_the_decayed_rate_to_first_order(stage):
    """rate, f B against rate / f, B. The ratio of the variances is (2 - rate h / f) / (2 - rate h):
    exact; the variance falls f-fold a stage, and the difference is first order in the rate."""
    f, samples = 2, 64
    grown, decayed = mg.step_growth(8, f, samples, 8 * f**3), mg.step_decay(RATE, Fraction(1, f), 8)
    update = sum(samples // (8 * f**i) for i in range(stage))  # the first of the stage
    size, rate = grown(update), decayed(8 * stage)
    assert (size, rate) == (8 * f**stage, RATE / f**stage)
    found = stationary(RATE, size) / stationary(rate, 8)
    assert found == (2 - rate * H) / (2 - RATE * H)
    assert 0 <= found - 1 < RATE * H


def test_a_batch_stops_growing_where_it_must():
    grown = mg.step_growth(8, 2, 64, 31)
    assert [grown(update) for update in (0, 7, 8, 11, 12, 10**6)] == [8, 8, 16, 16, 16, 16]
    assert mg.step_growth(8, 2, 64, 4)(10**6) == 8


def test_a_stage_that_is_no_whole_number_of_batches_ends_with_a_whole_one():
    grown = mg.step_growth(8, 2, 20, 64)  # 3 updates of 8 for 20 samples, 2 of 16, 1 of 32
    assert [grown(update) for update in range(8)] == [8, 8, 8, 16, 16, 32, 64, 64]
