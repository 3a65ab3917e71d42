"""Robbins and Monro: the walk, its two conditions, and how far it is from the root after n moves.

M(x) = slope (x - root) has closed forms for all of it, so that nothing here is drawn but where a
drawn walk is compared with them.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg

N = 100_000


def noisy_line(slope, root, noises):
    """Looks at slope (x - root), each with the next of the noises."""
    noise = iter(noises)
    return lambda x: slope * (x - root) + next(noise)


# ------------------------------------------------------------------------------ the walk


def test_the_walk_with_steps_1_over_n_slope_is_the_mean_of_what_was_seen_exactly():
    """x_n - root = -mean(noise) / slope, whatever the start: in Fractions, `==`."""
    rng = np.random.default_rng(0)
    noises = [Fraction(int(i), 8) for i in rng.integers(-40, 40, 30)]
    slope, root = Fraction(3, 2), Fraction(-5, 7)
    for start in (Fraction(100), Fraction(-1, 3)):
        rule = mg.StepRule(1 / slope)
        path = mg.robbins_monro(noisy_line(slope, root, noises), start, rule.first(len(noises)))
        for n in range(1, len(noises) + 1):
            assert path[n] - root == -sum(noises[:n]) / n / slope


def test_in_floats_it_is_the_mean_to_rounding():
    noises = np.random.default_rng(1).standard_normal(1000)
    path = mg.robbins_monro(noisy_line(2.0, 3.0, noises), 9.0, mg.StepRule(0.5).first(1000))
    means = np.cumsum(noises) / np.arange(1, 1001)
    assert np.abs(path[1:] - 3.0 + means / 2.0).max() < 1e-13


def test_the_walk_finds_any_level_in_any_dimension():
    """M(x) = A x with A positive definite: the root of A x = level, without noise."""
    a, level = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([3.0, -1.0])
    path = mg.robbins_monro(lambda x: a @ x, np.zeros(2), [0.5] * 200, level)
    assert path.shape == (201, 2)
    np.testing.assert_allclose(a @ path[-1], level, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_path_keeps_the_dtype_of_its_start(dtype):
    path = mg.robbins_monro(lambda x: x, np.ones((2, 3), dtype), [0.5, np.float64(0.25)])
    assert path.dtype == dtype
    assert path.shape == (3, 2, 3)
    assert path[2, 0, 0] == 0.375


def test_no_steps_leave_the_start():
    assert mg.robbins_monro(lambda x: x, 4.0, []).tolist() == [4.0]


def test_a_look_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"got shape \(3,\), expected that of x, \(2,\)"):
        mg.robbins_monro(lambda x: np.ones(3), np.zeros(2), [1.0])


def test_descent_by_gradients_is_this_walk_bit_for_bit():
    """SGD on a model: observe(x) is the gradient of the next mini-batch at x; the same floats."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 3)), rng.standard_normal((24, 2))
    batches = [(x[i : i + 8], y[i : i + 8]) for i in (0, 8, 16)]
    rates = mg.StepRule(0.25, 0.7).first(len(batches))

    def model():
        return mg.MLP(3, 4, 2, rng=np.random.default_rng(1), dtype=np.float64)

    trained = model()
    optimizer = mg.SGD(trained.parameters(), lr=lambda update: rates[update])
    for batch in batches:
        mg.train_step(trained, mg.squared_error, optimizer, batch, micro_batch_size=2)
    walker, upcoming = model(), iter(batches)

    def observe(weights):
        start = 0
        for p in walker.parameters():
            p.data[...] = weights[start : start + p.data.size].reshape(p.shape)
            start += p.data.size
        mg.accumulate(walker, mg.squared_error, next(upcoming), micro_batch_size=2)
        return flat(p.grad for p in walker.parameters())

    path = mg.robbins_monro(observe, flat(p.data for p in model().parameters()), rates)
    assert np.array_equal(path[-1], flat(p.data for p in trained.parameters()))
    assert not np.array_equal(path[-1], path[0])


def flat(arrays):
    return np.concatenate([a.ravel() for a in arrays])


# ------------------------------------------------------------------------ the conditions


@pytest.mark.parametrize(
    ("rule", "travel", "squares", "hold"),
    [
        (mg.StepRule(1.0), math.inf, 2.0, True),
        (mg.StepRule(2.0, 0.75), math.inf, 4 * (1 + 1 / 0.5), True),
        (mg.StepRule(1.0, 0.5), math.inf, math.inf, False),
        (mg.StepRule(0.1, 0), math.inf, math.inf, False),
        (mg.StepRule(1.0, 2), 2.0, 1 + 1 / 3, False),
        (mg.StepRule(Fraction(1), 2, shift=1), 3 / 4, 1 / 16 + 1 / 24, False),
    ],
    ids=str,
)
def test_the_conditions_are_the_two_of_1951_with_bounds_that_the_sums_keep(
    rule, travel, squares, hold
):
    found = rule.conditions()
    assert found.hold == hold
    assert (found.travel, found.squares) == pytest.approx((travel, squares), rel=1e-14)
    steps = np.array(rule.first(N), float)
    for bound, total in ((found.travel, steps.sum()), (found.squares, (steps**2).sum())):
        assert total <= bound
        assert math.isinf(bound) or total > bound / 2  # no idle bound


def test_each_report_says_which_condition_fails_and_what_to_do():
    assert "at most 2, so that the noise dies out: x comes" in str(mg.StepRule(1).conditions())
    assert "sum a_n is at most 0.75" in str(mg.StepRule(1, 2, shift=1).conditions())
    assert "take a power above 1/2" in str(mg.StepRule(1, 0).conditions())


def test_steps_of_finite_sum_stop_half_way():
    """a_n = 1/(n+1)^2, slope 1: the share of the error that remains is prod(1 - a_n) -> 1/2."""
    steps = mg.StepRule(Fraction(1), 2, shift=1).first(200)
    bias = mg.linear_moments(steps, Fraction(1), Fraction(0), start=Fraction(1)).bias
    for n in range(1, 201):
        assert bias[n] == Fraction(n + 2, 2 * (n + 1))  # the product telescopes: exact
    far = mg.linear_moments(mg.StepRule(1.0, 2, shift=1).first(N), 1.0, 0.0, 1.0).bias[-1]
    assert far == pytest.approx(0.500005, abs=1e-8)


@pytest.mark.parametrize(("step", "limit"), [("1/10", "1/19"), ("1/2", "1/3"), ("3/2", "3")])
def test_equal_steps_end_in_a_ball_of_a_known_size(step, limit):
    """Variance a s^2 / (slope (2 - a slope)), exactly a fixed point of the recursion."""
    step, limit = Fraction(step), Fraction(limit)
    assert mg.stationary_variance(step, 1, 1) == limit
    keep = (1 - step) ** 2
    assert keep * limit + step * step == limit
    found = mg.linear_moments(mg.StepRule(float(step), 0).first(400), 1.0, 1.0).variance[-1]
    assert found == pytest.approx(float(limit), rel=1e-12)


def test_equal_steps_of_2_over_slope_or_more_never_settle():
    variance = mg.linear_moments(mg.StepRule(2.0, 0).first(100), 1.0, 1.0).variance
    np.testing.assert_allclose(np.diff(variance), 4.0)  # it grows by a^2 s^2 at each step
    for step in (2, 3, 0):
        with pytest.raises(ValueError, match="step x slope between 0 and 2"):
            mg.stationary_variance(step, 1, 1)


# --------------------------------------------------------------------------- how fast


@pytest.mark.parametrize(
    ("c", "measured", "limit"), [(1, 1.0, 1), (2, 1.333340, 4 / 3), (4, 2.285749, 16 / 7)]
)
def test_n_times_the_variance_tends_to_its_limit(c, measured, limit):
    found = N * mg.linear_moments(mg.StepRule(c).first(N), 1.0, 1.0).variance[-1]
    assert found == pytest.approx(measured, rel=1e-6)
    assert found == pytest.approx(limit, rel=1e-4)
    assert mg.asymptotic_variance(Fraction(c), 1, 1) == Fraction(c * c, 2 * c - 1)


def test_the_best_c_is_1_over_the_slope():
    least = mg.asymptotic_variance(Fraction(1, 3), 3, 5)
    assert least == Fraction(5, 9)  # s^2 / slope^2
    others = [Fraction(1, 4), Fraction(2, 7), Fraction(2, 5), Fraction(2)]
    assert all(mg.asymptotic_variance(c, 3, 5) > least for c in others)


def test_steps_that_are_too_short_forget_the_start_slowly():
    """c slope = 1/4: the bias falls like n^(-1/4) / Gamma(3/4), and no asymptotic variance is."""
    bias = mg.linear_moments(mg.StepRule(0.25).first(N), 1.0, 0.0, start=1.0).bias
    assert bias[-1] == pytest.approx(N**-0.25 / math.gamma(0.75), rel=1e-4)
    assert bias[-1] == pytest.approx(4.589e-2, rel=1e-3)
    slope = np.log(bias[N] / bias[N // 10]) / math.log(10)
    assert slope == pytest.approx(-0.25, abs=1e-4)
    assert mg.StepRule(0.25).exponent(1.0) == 0.25
    for c in (0.25, 0.5):
        with pytest.raises(ValueError, match=r"expected 2 c slope above 1; take c above 0.5"):
            mg.asymptotic_variance(c, 1, 1)


def test_the_error_falls_with_the_exponent_that_is_told():
    for rule, slope, tolerance in [
        (mg.StepRule(1.0), 1.0, 1e-12),
        (mg.StepRule(2.0), 1.0, 1e-4),
        (mg.StepRule(1.0, 0.7), 1.0, 1e-2),
        (mg.StepRule(1.0, 0.4), 1.0, 1e-2),
        (mg.StepRule(0.5, 0), 1.0, 1e-12),
    ]:
        moments = mg.linear_moments(rule.first(20_000), slope, 1.0, start=1.0)
        error = np.sqrt(moments.bias**2 + moments.variance)
        fall = -math.log10(error[20_000] / error[2_000])
        assert fall == pytest.approx(rule.exponent(slope), abs=tolerance), rule
    assert mg.StepRule(1.0, 2).exponent(1.0) == 0


def test_at_c_slope_one_half_the_variance_is_a_logarithm_behind():
    """n Var / log n -> c^2, so slowly that only its fall towards 1/4 is asserted."""
    counts = [10**3, 10**4, 10**5]
    variance = mg.linear_moments(mg.StepRule(0.5).first(N), 1.0, 1.0).variance
    shares = [n * variance[n] / math.log(n) for n in counts]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.272, abs=1e-3)
    scaled = [n * variance[n] for n in counts]
    assert scaled == sorted(scaled)  # there is no finite limit


@pytest.mark.parametrize(("c", "scaled"), [(0.5, 1.0766), (1.0, 1.0346), (3.0, 1.0109)])
def test_the_average_of_a_restless_walk_is_as_good_as_the_best_steps(c, scaled):
    """Polyak and Ruppert, power 0.7: n Var(average) -> s^2 / slope^2 whatever c."""
    n = 10_000
    steps = mg.StepRule(c, 0.7).first(n)
    moments = mg.linear_moments(steps, 1.0, 1.0)
    assert n * moments.average_variance[-1] == pytest.approx(scaled, abs=1e-4)
    assert n * moments.average_variance[-1] < 1.1
    earlier = n // 10 * moments.average_variance[n // 10]
    assert n * moments.average_variance[-1] < earlier
    last = moments.variance[-1] / steps[-1]  # Var(x_n) / a_n -> s^2 / (2 slope)
    assert last == pytest.approx(0.5, rel=0.1)


def test_moments_of_the_average_are_those_of_the_average_exactly():
    """Against the covariance matrix of all moves, written out: in Fractions, `==`."""
    steps, slope, variance = mg.StepRule(Fraction(2, 3)).first(6), Fraction(5, 4), Fraction(3)
    moments = mg.linear_moments(steps, slope, variance, start=Fraction(2))
    n = len(steps)
    factor = np.zeros((n, n), dtype=object)  # x_i - root = ... - sum_j factor[i, j] noise_j
    for i, j in itertools.product(range(n), repeat=2):
        if j <= i:
            factor[i, j] = steps[j] * math.prod(1 - a * slope for a in steps[j + 1 : i + 1])
    average = factor.sum(axis=0) / n
    assert moments.variance[n] == variance * sum(f * f for f in factor[-1])
    assert moments.average_variance[n] == variance * sum(f * f for f in average)
    assert moments.bias[n] == 2 * math.prod(1 - a * slope for a in steps)


def test_drawn_walks_have_the_moments_that_are_told():
    """2,000 walks side by side, one an element: within 5 standard errors of the closed forms."""
    rng, walks, rule = np.random.default_rng(0), 2000, mg.StepRule(1.0, 0.7)
    path = mg.robbins_monro(
        lambda x: x - 2.0 + rng.standard_normal(walks), np.zeros(walks), rule.first(50)
    )
    moments = mg.linear_moments(rule.first(50), 1.0, 1.0, start=-2.0)
    averages = mg.polyak_ruppert(path)
    for found, expected in [
        (path[-1], moments.variance[-1]),
        (averages[-1], moments.average_variance[-1]),
    ]:
        assert abs(found.var() / expected - 1) < 5 * math.sqrt(2 / walks)
    mean = path[-1].mean() - 2.0
    assert abs(mean - moments.bias[-1]) < 5 * math.sqrt(moments.variance[-1] / walks)


def test_k_looks_at_one_point_are_one_look_of_k_times_less_variance():
    """The walk of 12 averages of 8 looks; 96 moves, a look each, are as near: in Fractions, `==`.

    With steps 1/(n slope) it is the mean of all looks either way. With equal steps it is not.
    """
    one, eighth = Fraction(1), Fraction(1, 8)
    many = mg.linear_moments(mg.StepRule(one).first(96), one, one).variance[-1]
    few = mg.linear_moments(mg.StepRule(one).first(12), one, eighth).variance[-1]
    assert many == few == Fraction(1, 96)
    many = mg.stationary_variance(Fraction(1, 10), 1, one)
    few = mg.stationary_variance(Fraction(1, 10), 1, eighth)
    assert few == many / 8


# ---------------------------------------------------------------------------- averages


def test_the_averages_are_those_of_the_moves_made_so_far():
    path = mg.fractions([7, 1, 3, -1])
    assert mg.polyak_ruppert(path).tolist() == [1, 2, 1]
    assert mg.polyak_ruppert(path, skip=1).tolist() == [3, 1]
    points = np.arange(8.0).reshape(4, 2)
    assert mg.polyak_ruppert(points).tolist() == [[2, 3], [3, 4], [4, 5]]


def test_what_cannot_be_averaged_or_stepped_is_refused_in_a_sentence():
    for length, skip, points in (
        (2, 1, 2),
        (1, 0, 1),
        (0, 0, 1),
        (4, -1, 1),
        (4, 3, 4),
        (4, 9, 10),
    ):
        with pytest.raises(
            ValueError,
            match=f"a path of {length} points and skip = {skip}, .* from 0 "
            f"and more than {points} points",
        ):
            mg.polyak_ruppert(np.zeros(length), skip=skip)
    for wrong, sentence in [
        ({"c": 0}, "c = 0, expected a number above 0"),
        ({"c": math.inf}, "c = inf"),
        ({"c": 1, "power": -1}, "power = -1, expected a number 0 or more"),
        ({"c": 1, "shift": -1}, "shift = -1"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            mg.StepRule(**wrong)
    with pytest.raises(ValueError, match="count is 0, expected an integer of 1 or more"):
        mg.StepRule(1).first(0)
