# %% [markdown]
# # 01 · How do you find a root when every look is noisy?
#
# **You will be able to**
#
# 1. walk to a root by noisy looks, and say which steps get there and which do not;
# 2. predict how far from the root a walk will be, and hold the prediction against random walks;
# 3. say what SGD has from 1951 and what it has not, and what the mean of $k$ looks buys.
#
# **Needs:** lesson [00](00_start_here.ipynb); expectation and variance (questions 6 and 7 of
# [the page of background](before.md)). **Reading:** 45 minutes; **exercises:** 40 minutes
# ([01_stochastic_approximation](exercises/01_stochastic_approximation.ipynb)). **Code:**
# [`minigrad/stochastic.py`](../minigrad/stochastic.py).

# %% [markdown]
# ## A hall with a thermostat
#
# A hall has 11 degrees in the morning, and you set its thermostat. Each visitor who passes is asked
# once: *warm or cold?* You want the setting $x$ at which half of all people would say "warm". Let
# $M(x)$ be the share who find $x$ degrees warm. It grows with $x$, and nobody knows it. All you get
# is one answer at a time, 1 or 0. Its expectation is $M(x)$; alone it is hardly worth anything. We
# call it a **look** at $M(x)$.
#
# There are 600 visitors, and two plans. Both move the setting by
# $\frac8n \big(\frac12 - \text{what was said}\big)$: up if few say "warm", down if many do. $n$
# counts the moves. (Why 8? Later.)
#
# - **Average, then move:** ask 50 visitors at one setting, take the mean, move; then the next 50.
# - **Move after each look:** ask one, move; ask the next.
#
# **Before you run the next cell,** write down: which plan ends nearer to the right setting? In
# which of them do more visitors sit in a hall that is off by more than 4 degrees?
#
# One walk proves nothing. So 400 halls try each plan, all with visitors of their own.

# %%
import itertools
import math
import textwrap
from fractions import Fraction

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.reading import show_source

visitors, halls, k, level = 600, 400, 50, 0.5
right, morning = 21.0, 11.0  # that 21 is right is known to us alone


def share(x):
    """M(x): how many of all people find x degrees warm."""
    return 1 / (1 + np.exp((right - x) / 2))


def ask(x, k=1):
    """A look in each hall: how many of k visitors say warm at x, as a share. x: (halls,)."""
    return (rng.random((k, *x.shape)) < share(x)).mean(axis=0)


def settings(k):
    """x_0, x_1, ..., with a move after every k visitors: (1 + moves, halls)."""
    x = np.full(halls, morning)
    path = [x]
    for n in range(1, visitors // k + 1):
        x = x + 8 / n * (level - ask(x, k))
        path.append(x)
    return np.array(path)


def rms(errors):
    """The root of the mean square: how far off one is, typically."""
    return np.sqrt(np.mean(np.square(errors)))


def in_a_wrong_hall(path, k):
    """How many of the visitors of a hall, on average over the halls."""
    return k * (abs(path[:-1] - right) > 4).mean(axis=1).sum()


rng = np.random.default_rng(0)
each_look, averaged = settings(1), settings(k)
ends = rms(each_look[-1] - right), rms(averaged[-1] - right)
wrong = in_a_wrong_hall(each_look, 1), in_a_wrong_hall(averaged, k)
assert ends[0] < ends[1]
assert 2 * wrong[0] < wrong[1]

figure, (curve, walks) = plotting.subplots(1, 2, height=3.6, width_ratios=(1, 1.5), sharey=True)
degrees = np.linspace(9, 27, 100)
curve.plot(share(degrees), degrees, color=plotting.DARK)
curve.plot([level, level], [9, right], color=plotting.GREY, ls=":")
curve.plot(level, right, "o", color=plotting.VIOLET, ms=7)
curve.annotate("the root", (level, right), (12, -12), textcoords="offset points")
curve.set(xlabel="$M(x)$, the share who say warm", ylabel="setting $x$, in degrees", ylim=(9, 27))
curve.set_xticks([0, 0.25, 0.5, 0.75])
curve.set_title("unknown")
walks.axhline(right, color=plotting.VIOLET, lw=1)
walks.plot(each_look[:, 0], color=plotting.BLUE, lw=1.4, label="move after each look")
asked, style = k * np.arange(len(averaged)), {"where": "post", "color": plotting.ORANGE}
walks.step(asked, averaged[:, 0], ls="--", label=f"average {k}, then move", **style)
walks.set(xlabel="visitors asked", xlim=(0, visitors))
walks.set_title("the first hall")
walks.legend(loc="lower right")
plotting.show(
    figure,
    "01-hall",
    f"Left: what nobody knows, the share (across) who find a setting (upwards) warm; the dot is "
    f"where half do. Right: the setting in the first hall under each plan; the line across is the "
    f"right one. Over {halls} halls, moving after each look ends {ends[0]:.2f} degrees from it, "
    f"averaging {k} looks {ends[1]:.2f} degrees; {wrong[0]:.0f} and {wrong[1]:.0f} of {visitors} "
    f"visitors sit in a hall that is off by more than 4 degrees.",
)

# %% [markdown]
# The hasty plan wins. Far from the root even a bad look tells the direction, and the sharp mean of
# 50 looks is sharp at the wrong place. Close to the root, where single answers point anywhere, the
# steps have become short, and the walk itself averages the answers. (Change `k` to 10, then to
# 100.)
#
# ## The rule of 1951
#
# H. Robbins and S. Monro asked it like this. $M$ is a function that cannot be seen. Wanted is its
# **root**, the $x$ at which it has a given **level**: on the left of it $M$ is below the level, on
# the right above. At the point $x_{n-1}$ where you stand, you may take a noisy look $Y_n$, whose
# expectation is $M(x_{n-1})$. Move to
#
# $$x_n = x_{n-1} + a_n\, (\text{level} - Y_n),$$
#
# with **steps** $a_n > 0$ that are fixed beforehand. If too much is seen, $x$ goes down, else up.
# (If $M$ falls through the root, turn the signs of look and level.) Nothing else: no formula of
# $M$, no derivative of it, no memory of earlier looks. This is **stochastic approximation**. In the
# package it is this loop (`real`, `plain` and `constant` make arrays with one kind of numbers out
# of what is given), and the cell asserts that it walks as ours did.

# %%
show_source(mg.robbins_monro)

rng = np.random.default_rng(0)
steps = mg.StepRule(8).first(visitors)  # 8 / n for n = 1, 2, ...
path = mg.robbins_monro(ask, np.full(halls, morning), steps, level)
assert np.array_equal(path, each_look)  # exact: our loop, line by line
print(f"{len(steps)} moves in {halls} halls: the same path, bit for bit")

# %% [markdown]
# ## A walk that is a mean
#
# The simplest $M$ is a line. Let $Z_1, Z_2, \dots$ be measurements of an unknown number $t$, which
# is their expectation. Take as a look the point where you stand, less the next of them:
# $Y_n = x_{n-1} - Z_n$. Its expectation is $M(x) = x - t$ at $x = x_{n-1}$, a line of slope 1 whose
# root (level 0) is $t$. The steps are $1/n$, the start is 100.
#
# **Before you run the next cell:** the measurements are 3, 1, 4. Find $x_1, x_2, x_3$ on paper.
# (`mg.fractions` makes exact fractions out of numbers, so that "equal" can mean equal.)

# %%
Z = mg.fractions([3, 1, 4, 1, 5, 9, 2, 6])
means = np.cumsum(Z) / np.arange(1, len(Z) + 1)


def from_measurements(Z, slope=1):
    """Looks slope (x - Z_1), slope (x - Z_2), ...: one after the other, whatever x is."""
    rest = iter(Z)
    return lambda x: slope * (x - next(rest))


for slope, first in ((1, 100), (1, -7), (Fraction(2, 3), 100)):
    steps = mg.StepRule(Fraction(1, slope)).first(len(Z))
    path = mg.robbins_monro(from_measurements(Z, slope), Fraction(first), steps)
    assert np.all(path[1:] == means)  # exact, for any start
    print(f"steps 1 / ({slope} n), start {first:4}:", *path[1:4], "...", path[-1])

Z_many = np.random.default_rng(0).standard_normal(10_000)
path = mg.robbins_monro(from_measurements(Z_many), 100.0, mg.StepRule(1).first(len(Z_many)))
assert abs(path[-1] - Z_many.mean()) < 1e-13  # rounding
print(f"{len(Z_many):,} measurements in float64: equal to their mean, to 1e-13")

# %% [markdown]
# The walk *is* the mean of the measurements, of all of them at any time, and the start is forgotten
# after one move. Why? Let $e_n = x_n - \text{root}$ be the error, and
# $\varepsilon_n = Y_n - M(x_{n-1})$ the noise of look $n$. On a line with a slope above 0, a look
# shows $\text{slope} \cdot e_{n-1} + \varepsilon_n$ more than the level, and so **a move** is
#
# $$e_n = (1 - a_n\, \text{slope})\, e_{n-1} - a_n\, \varepsilon_n .$$
#
# With the steps $a_n = 1/(\text{slope} \cdot n)$, and multiplied by $n$, it becomes
#
# $$n\, e_n = (n - 1)\, e_{n-1} - \frac{\varepsilon_n}{\text{slope}}
# \qquad\text{and so}\qquad e_n = -\frac{1}{\text{slope}} \cdot \text{mean}(\varepsilon_1, \dots,
# \varepsilon_n).$$
#
# If the noises are independent and each has variance $s^2$, the variance of $x_n$ is
# $s^2 / (\text{slope}^2\, n)$: that of a mean. This is why nothing was lost in the hall by moving
# at once: close to its root a smooth $M$ is nearly a line.
#
# ## Two conditions, each broken once
#
# Which steps do it? Look at a move again: two things must happen.
#
# - **The start must be forgotten:** $\sum a_n = \infty$. Otherwise the walk may stop short: if
#   looks are never more than 1 off the level, it comes at most $\sum a_n$ far.
# - **The noise must be averaged out.** $\sum a_n^2 < \infty$ is enough for that.
#
# Under mild conditions on $M$ and the noise, Robbins and Monro proved that $x_n$ then goes to the
# root in mean square ($E[e_n^2]$ goes to 0), and J. R. Blum (1954) that it does so with probability
# one. **Before you run the next cell:** let $M(x) = x$, so that the root is 0.
#
# 1. Start at 1, look *without* noise, take the steps $\frac14, \frac19, \frac1{16}, \dots$: where
#    does the walk end?
# 2. Take the step $\frac12$ each time, and noise of variance 1. To what does the variance of $x_n$
#    go: 0, $\frac13$, 1, or $\infty$? And with the step $\frac32$? (By a move with the step $a$, a
#    variance $V$ becomes $(1 - a)^2\, V + a^2$. Which $V$ stays as it is?)
#
# In the cell, `conditions` says what the two sums can be at most. `linear_moments` goes from move
# to move with the mean of $e_n$, called `bias`, and with the `variance` of $x_n$: it computes what
# is to be expected, without random numbers.

# %%
rules = {
    "1/n": mg.StepRule(1),
    "n^-0.7": mg.StepRule(1, power=0.7),
    "1/2": mg.StepRule(0.5, power=0),
    "1/(n+1)^2": mg.StepRule(1, power=2, shift=1),
}
for name, rule in rules.items():
    print(textwrap.fill(f"{name}: {rule.conditions()}", 88, subsequent_indent="    "))
assert [rule.conditions().hold for rule in rules.values()] == [True, True, False, False]

# The first condition broken. A walk without noise is what is left of the start.
short = mg.StepRule(Fraction(1), power=2, shift=1).first(1000)
left = mg.linear_moments(short, slope=1, noise_variance=0, start=1).bias
assert all(left[n] == Fraction(n + 2, 2 * (n + 1)) for n in range(1001))  # exact
print(f"\n1. of the start is left: {left[1]}, {left[2]}, {left[3]}, ..., {left[1000]}: half of it")

# The second one broken: equal steps a.
balls = {}
for a in (Fraction(1, 10), Fraction(1, 2), Fraction(3, 2)):
    balls[a] = V = mg.stationary_variance(a, 1, 1)
    assert (1 - a) ** 2 * V + a**2 == V  # exact: it stays
    reached = mg.linear_moments([float(a)] * 200, 1, 1).variance[-1]
    assert math.isclose(reached, V, rel_tol=1e-12)
    print(f"2. equal steps {a!s:5} the variance goes to {V}")
assert list(balls.values()) == [Fraction(1, 19), Fraction(1, 3), 3]
for a in (2, Fraction(5, 2)):
    variance = mg.linear_moments([a] * 50, 1, 1).variance
    assert variance[50] >= 4 * 50  # it grows without end
    try:
        mg.stationary_variance(a, 1, 1)
    except ValueError as error:
        print(f"   equal steps {a!s:5} {error}")

# The squares need not have a finite sum: n^-0.4 comes to the root, too, only slowly.
slow = mg.StepRule(1, power=0.4)
variance = mg.linear_moments(slow.first(10_000), 1, 1).variance
assert not slow.conditions().hold
assert variance[100] > 2 * variance[1000] > 4 * variance[10_000]

# %% [markdown]
# Too short: the walk stops half way, since
# $\prod_{i=1}^{n} \big(1 - \frac1{(i+1)^2}\big) = \frac{n + 2}{2(n + 1)}$. Equal steps: the walk
# forgets its start quickly, but never settles. It scatters around the root, in the end with the
# variance $a s^2 / \big(\text{slope}\,(2 - a\,\text{slope})\big)$, which is small for small $a$. We
# call this scatter its **ball**. From $a \cdot \text{slope} = 2$ on, the variance grows without
# end. The second condition is sufficient, not necessary: the last lines of the cell have steps
# $n^{-0.4}$, whose squares add up to infinity, and the variance falls all the same.
#
# ## The picture
#
# The next cell shows `linear_moments`, and checks it against all 256 ways in which 8 looks with the
# noise $+1$ or $-1$ can turn out. Then it makes 2000 random walks under each of the four rules,
# from $x_0 = 4$ to the root 0, and multiplies the mean square of the error by $n$. A flat line then
# means "it falls like that of a mean of $n$ measurements".
#
# **Before you run it,** sketch these curves of the four rules. (For $n^{-0.7}$: where steps change
# slowly, a walk scatters about as one with equal steps of the present length.) A fifth curve is for
# the average of all points $x_1, \dots, x_n$ of the walk with $n^{-0.7}$: a guess is enough, a
# later section explains it. (Afterwards change `first` to 40: which of the five curves on the right
# do not move, and why?)


# %%
show_source(mg.linear_moments)


def on_a_line(noise, slope=1):
    """Looks at M(x) = slope x, with the next row of the noise each time: the root is 0."""
    rest = iter(noise)
    return lambda x: slope * x + next(rest)


def exactly(values):
    """The mean and the variance over all cases, in Fractions. values: (n, cases)."""
    mean = values.mean(axis=1)
    return mean, ((values - mean[:, None]) ** 2).mean(axis=1)


noise = mg.fractions(list(itertools.product([-1, 1], repeat=8))).T  # (8 looks, 256 cases)
slope, n = Fraction(2, 3), np.arange(1, 9)
for rule in (mg.StepRule(1 / slope), mg.StepRule(Fraction(1, 4), power=0)):
    steps, four = rule.first(8), mg.fractions([4] * 256)
    path = mg.robbins_monro(on_a_line(noise, slope), four, steps)
    told = mg.linear_moments(steps, slope, noise_variance=1, start=4)
    mean, variance = exactly(path)
    assert np.all(mean == told.bias)  # exact
    assert np.all(variance == told.variance)
    assert np.all(exactly(mg.polyak_ruppert(path))[1] == told.average_variance[1:])
    assert np.all(slope**2 * n * variance[1:] == 1) == (rule.power == 1)  # that of a mean, or not

moves, many, first = 1000, 2000, 4.0
n = np.arange(1, moves + 1)
noise = np.random.default_rng(0).standard_normal((moves, many))
drawn, theory, one_walk = {}, {}, {}
for name, rule in rules.items():
    steps = rule.first(moves)
    path = mg.robbins_monro(on_a_line(noise), np.full(many, first), steps)
    told = mg.linear_moments(steps, 1, 1, start=first)
    assert (told.bias[1] == 0) == (steps[0] == 1)  # forgotten by one move, or not
    points = {name: (path[1:], told.bias[1:], told.variance[1:])}
    if name == "n^-0.7":
        of_mean = np.cumsum(told.bias[1:]) / n
        points[f"{name}, averaged"] = mg.polyak_ruppert(path), of_mean, told.average_variance[1:]
    for each, (x, bias, variance) in points.items():
        one_walk[each], drawn[each] = [first, *x[:, 0]], n * np.mean(x**2, axis=1)
        theory[each] = n * (bias**2 + variance)
        assert np.allclose(drawn[each], theory[each], rtol=0.2)  # six times what is usual
assert np.allclose(theory["1/n"], 1, rtol=1e-12)

styles = {
    "1/n": (plotting.BLUE, "solid", "o"),
    "n^-0.7": (plotting.ORANGE, (0, (5, 1.5)), "s"),
    "n^-0.7, averaged": (plotting.PURPLE, "dashdot", "D"),
    "1/2": (plotting.RED, (0, (1, 1.2)), "^"),
    "1/(n+1)^2": (plotting.GREY, (0, (8, 2)), "v"),
}
titles = {
    "1/n": "$1/n$",
    "n^-0.7": "$n^{-0.7}$",
    "n^-0.7, averaged": "$n^{-0.7}$, averaged",
    "1/2": "$1/2$ each time",
    "1/(n+1)^2": "$1/(n+1)^2$",
}
shown = 100
marked = np.unique(np.geomspace(1, moves, 13).astype(int)) - 1
figure, (paths, errors) = plotting.subplots(1, 2, height=4.2)
for name, (colour, line, mark) in styles.items():
    style = {"color": colour, "ls": line, "lw": 1.3 if name == "1/2" else 1.8}
    begins = 1 if name.endswith("averaged") else 0  # the start is no part of the average
    walked = one_walk[name][begins : shown + 1]
    paths.plot(range(begins, shown + 1), walked, label=titles[name], **style)
    errors.plot(n, theory[name], color=colour, ls=line)
    errors.plot(n[marked], drawn[name][marked], mark, color=colour, ms=4.5)
paths.axhline(0, color=plotting.VIOLET, lw=1)
paths.plot(0, first, "s", color=plotting.DARK, ms=5)
paths.annotate("start", (0, first), (9, -4), textcoords="offset points")
paths.set(xlabel="looks $n$", xlim=(-2, shown), ylim=(-0.5 * first, 1.1 * first))
paths.set_ylabel("$x_n$; the root is 0")
paths.set_yticks(first * np.array([-0.5, 0, 0.5, 1]))
paths.set_title("one walk, the same noise for all rules")
paths.legend(loc="upper right")
errors.set(xscale="log", yscale="log", xlabel="looks $n$", xlim=(0.9, 1.15 * moves))
errors.set_ylabel("$n$ · mean square of the error")
errors.set_title(f"theory (lines), and {many} walks (marks)")
ends = {name: f"{last[-1]:.{0 if last[-1] > 10 else 2}f}" for name, last in theory.items()}
plotting.show(
    figure,
    "01-paths",
    f"Left: one walk from {first:g} under each rule, with the same noise. Right: n times the mean "
    f"square of the error; marks of {many} random walks lie on the lines that were computed. After "
    f"{moves} looks it is {ends['1/n']} for 1/n, flat from the first look on; {ends['n^-0.7']} "
    f"for n^-0.7, and {ends['n^-0.7, averaged']} for its average, which comes down to 1 as well; "
    f"{ends['1/2']} for equal steps of 1/2, in their ball; and {ends['1/(n+1)^2']} for 1/(n+1)^2, "
    f"which stop about half way, at {first / 2:g}.",
)

# %% [markdown]
# (With another start three curves stay: the first step of $1/n$ and $n^{-0.7}$ is 1, and on a line
# of slope 1 one move by such a step forgets any start.)
#
# ## How fast?
#
# The rule $1/n$ was made for the slope 1. In practice the slope is unknown. For steps $a_n = c/n$
# all depends on $c \cdot \text{slope}$. If it is above $\frac12$,
#
# $$n\, \mathrm{Var}[x_n] \;\to\; L = \frac{c^2 s^2}{2\, c\, \text{slope} - 1} .$$
#
# (Put $L/n$ for the variance into a move, and compare what goes with $1/n^2$.) This is least at
# $c = 1/\text{slope}$, and there $s^2/\text{slope}^2$, as for the mean above. K. L. Chung (1954)
# and J. Sacks (1958) proved the like for curves, where the slope at the root counts. If
# $c \cdot \text{slope}$ is *below* $\frac12$, the start and the early noise are forgotten too
# slowly: what is left of them, $\prod_{i=1}^{n} \big(1 - \frac{c\, \text{slope}}{i}\big)$, falls
# only like $n^{-c\, \text{slope}}$.
#
# **Before you run the next cell:** the slope is 1, the start is 1 away from the root, and the noise
# has the variance 1. Steps twice as long as the best, or a quarter of it: which is worse after
# $10^5$ looks, and by about which factor is the error larger than the best one?

# %%
last = 10**5
n = np.arange(1, last + 1)
limits, moments = {}, {}
for c in (1, 2, 4, Fraction(1, 4)):
    steps = mg.StepRule(float(c)).first(last)
    moments[c] = mg.linear_moments(steps, slope=1, noise_variance=1, start=1)
    if 2 * c > 1:
        limits[c] = mg.asymptotic_variance(Fraction(c), 1, 1)
        found = last * moments[c].variance[-1]
        assert math.isclose(found, limits[c], rel_tol=1e-4)
        print(f"c slope = {c!s:4} n Var = {found:.4f}, and the theory says {limits[c]}")
assert [*limits.values()] == [1, Fraction(4, 3), Fraction(16, 7)]

squares = {c: m.bias[1:] ** 2 + m.variance[1:] for c, m in moments.items()}
times = {c: math.sqrt(square[-1] / squares[1][-1]) for c, square in squares.items()}


def exponent(values, since):
    """How fast values fall: r, if they fall like n^-r from look `since` to the last."""
    return -math.log(values[-1] / values[since - 1]) / math.log(last / since)


for c in (1, 2, Fraction(1, 4)):
    found, told = exponent(np.sqrt(squares[c]), 1000), mg.StepRule(c).exponent(slope=1)
    assert math.isclose(found, told, rel_tol=0.02)
    print(f"c slope = {c!s:4} error {times[c]:5.2f} times the best; it falls like n^-{found:.3f}")
start_left = moments[Fraction(1, 4)].bias[1:]
assert math.isclose(exponent(start_left, 1000), 1 / 4, rel_tol=1e-3)

h = 1e-4
slope_there = (share(right + h) - share(right - h)) / (2 * h)
assert math.isclose(slope_there, 1 / 8, rel_tol=1e-6)
in_halls = math.sqrt(mg.asymptotic_variance(8, slope=1 / 8, noise_variance=1 / 4) / visitors)
assert math.isclose(rms(each_look[-1] - right), in_halls, rel_tol=0.1)
print(f"in the halls: {in_halls:.3f} degrees off by theory, {rms(each_look[-1] - right):.3f} found")

figure, (best, falling) = plotting.subplots(1, 2, height=3.6)
ratio = np.linspace(0.53, 5, 300)
best.plot(ratio, ratio**2 / (2 * ratio - 1), color=plotting.BLUE)
best.axvspan(0, 0.5, color=plotting.RED, alpha=0.12, lw=0)
best.text(0.25, 2.9, "slower than $1/\\sqrt{n}$", rotation=90, ha="center", va="top")
for c, limit in limits.items():
    best.plot(float(c), float(limit), "o", color=plotting.BLUE, ms=7)
    place = (float(c), float(limit))
    best.annotate(f"{limit}", place, (6, -15), textcoords="offset points")
best.set(xlabel="$c$ · slope", ylabel="$n$ Var / the best", xlim=(0, 5), ylim=(0, 4))
best.set_title("too long costs a factor")
shown = np.unique(np.geomspace(1, last, 200).astype(int)) - 1
for c, colour, line in (
    (Fraction(1, 4), plotting.RED, "dashdot"),
    (4, plotting.ORANGE, (0, (5, 1.5))),
    (1, plotting.BLUE, "solid"),
):
    error = np.sqrt(squares[c])[shown]
    falling.plot(n[shown], error, color=colour, ls=line, label=f"$c$ · slope = {c}")
falling.set(xscale="log", yscale="log", xlabel="looks $n$", ylabel="error, root mean square")
falling.set_title("too short costs the rate")
falling.legend(loc="lower left")
assert times[Fraction(1, 4)] > 10
plotting.show(
    figure,
    "01-rate",
    f"Left: the limit of n Var for steps c/n, as a multiple of the best one: 1, 4/3, 16/7 at c "
    f"slope = 1, 2, 4; below 1/2 there is no limit. Right: at c slope = 1/4 the error falls like "
    f"n^-1/4 and is {times[Fraction(1, 4)]:.0f} times the best after {last:,} looks; at 4 it jumps "
    f"first, then is {math.sqrt(limits[4]):.2f} times the best for good.",
)

# %% [markdown]
# Steps that are too long cost a factor; steps that are too short cost the *rate* at which the error
# falls, so that their factor grows without end. The formula also foretells the halls: there the
# slope at the root is $\frac18$, the variance of a look $\frac14$. So $c = 8$ was the best choice,
# made by somebody who knew.
#
# ## Without knowing the slope
#
# B. T. Polyak (1990) and D. Ruppert (1988) found, independently: take *longer* steps, $c\, n^{-p}$
# with $\frac12 < p < 1$, like $n^{-0.7}$, and use the **average of all points** so far. The walk
# alone settles more slowly, but the average takes the scatter out. Why so well? A move says
# $\text{slope} \cdot e_{n-1} = (e_{n-1} - e_n)/a_n - \varepsilon_n$. Take the mean of both sides
# over all moves: of $(e_{n-1} - e_n)/a_n$ nearly all cancels, for each error comes twice, with
# opposite signs and nearly equal $a_n$. What stays is $-\text{mean}(\varepsilon)/\text{slope}$, the
# error of the best walk. So $n$ times the variance of the average goes to $s^2/\text{slope}^2$, for
# every $c$.
#
# **Before you run the next cell:** the halls again, with 4000 visitors, and a $c$ that is four
# times too small, right, and four times too large. What do you expect of $c/n$, of $c\, n^{-0.7}$,
# and of the average of its points?

# %%
print("a line: n Var for steps c n^-0.7, where the best is 1")
print("          of x_n       of the average x_1, ..., x_n")
print("   c  n = 10,000       n = 100    1000   10,000")
for c in (0.5, 1, 3):
    steps = mg.StepRule(c, power=0.7).first(10_000)
    told = mg.linear_moments(steps, slope=1, noise_variance=1)
    average = [n * told.average_variance[n] for n in (100, 1000, 10_000)]
    assert average[0] > average[1] > average[2]  # comes down to 1
    assert average[2] < 1.1
    in_steps = told.variance[-1] / steps[-1]  # of x_n: half of the present step, as in a ball
    assert math.isclose(in_steps, 0.5, rel_tol=0.05)
    print(f"{c:4} {10_000 * told.variance[-1]:11.2f}    ", *(f"{v:8.3f}" for v in average))

longer = 4000
least = math.sqrt(1 / 4) / (1 / 8) / math.sqrt(longer)
print(f"\nthe halls, {longer} visitors: degrees off at the end, where {least:.3f} is the best")
print("   c     steps c/n   steps c n^-0.7    their average")
for c in (2, 8, 32):
    found = []
    for power in (1, 0.7):
        rng = np.random.default_rng(0)
        steps = mg.StepRule(c, power).first(longer)
        path = mg.robbins_monro(ask, np.full(halls, morning), steps, level)
        found.append(rms(path[-1] - right))
    found.append(rms(mg.polyak_ruppert(path, skip=longer // 10)[-1] - right))
    assert found[2] < 1.15 * min(found)
    assert c == 2 or found[2] < 1.15 * least
    print(f"{c:4} {found[0]:11.3f} {found[1]:15.3f} {found[2]:16.3f}")

# %% [markdown]
# The steps $c/n$ need the right $c$; the average hardly cares. (`skip` leaves out the first tenth
# of the points, on the way to the root.) Note what is averaged here: **points**. Accumulation
# averages **looks**, at one point.
#
# ## Is it SGD? Least squares by hand
#
# One can read: **"SGD was introduced by Robbins and Monro."** Let us see. Lesson 00 had eight
# samples with inputs $x_i$ and right answers $t_i$, the model $w \cdot x$, and the loss
# $\frac12 (w \cdot x_i - t_i)^2$, whose gradient is $(w \cdot x_i - t_i)\, x_i$ by the chain rule.
# Now the two weights $w$ are the point that walks. Draw one of the $N = 8$ samples, each as likely,
# and call its gradient a **look**. Its expectation is the mean gradient,
#
# $$M(w) = \frac1N \sum_i (w \cdot x_i - t_i)\, x_i = \frac1N \big(X^\top X\, w - X^\top t\big),$$
#
# and the root of $M$, at level 0, solves the *normal equations* $X^\top X\, w = X^\top t$: it is
# the *least squares fit*, the weights with the smallest mean loss. The rule of 1951 becomes
# $w \leftarrow w - a_n\, (w \cdot x_i - t_i)\, x_i$, which is **stochastic gradient descent**
# (SGD), one sample a look; a step is then called a *learning rate* (the rate above was that of the
# error). In 1951 $x$ was one number. For several, "below the level on the left of the root, above
# on the right" becomes $M(w) \cdot (w - \text{root}) > 0$: on average a move goes towards the root.
#
# So SGD *is* Robbins-Monro. Is Robbins-Monro SGD? **Before you run the next cell:** let
# $M(x, y) = (x + 2y,\; y - 2x)$, with the root $(0, 0)$. Walk round a square, from $(0, 0)$ by
# $(1, 0)$, $(1, 1)$ and $(0, 1)$ back, and add up $M \cdot (\text{way})$ along its sides. If $M$ is
# the gradient of a loss, each side gives what the loss grows by, and the sum is 0. Here?

# %% claim="h"
X = np.array([[2, -1], [1, 3], [1, -2], [2, -1], [2, -1], [3, 2], [0, -2], [-1, 2]], float)
t = np.array([-3, 3, -3, -3, 0, 3, 3, -1], float)

# The expectation of a look, and the root: exact, in Fractions.
exact_X, exact_t = mg.fractions(X), mg.fractions(t)
A, v = exact_X.T @ exact_X / len(t), exact_X.T @ exact_t / len(t)  # M(w) = A w - v
determinant = A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0]
fit = np.array([A[1, 1] * v[0] - A[0, 1] * v[1], A[0, 0] * v[1] - A[1, 0] * v[0]]) / determinant


def mean_gradient(w):
    """M(w): the expectation of a look."""
    return ((exact_X @ w - exact_t)[:, None] * exact_X).mean(axis=0)


def swirl(p):
    """Another field, with the root (0, 0)."""
    return np.array([p[0] + 2 * p[1], p[1] - 2 * p[0]])


def round_a_square(M):
    """M times the way, along the sides of a square: exact for a linear M, taken at the middles."""
    corners = mg.fractions([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    sides = itertools.pairwise(corners)
    return sum(M((p + q) / 2) @ (q - p) for p, q in sides)


for w in mg.fractions([[1, 1], [-2, 3]]):
    assert np.all(mean_gradient(w) == A @ w - v)
    assert mean_gradient(w) @ (w - fit) > 0  # away from the root, so that a move goes nearer
    assert swirl(w) @ w > 0
assert np.all(mean_gradient(fit) == 0)
assert round_a_square(mean_gradient) == 0  # a gradient
assert round_a_square(swirl) == -4  # no gradient, of no loss
print("the root of the mean gradient:", *fit, "- the solution of the normal equations")
print("round a square:", round_a_square(mean_gradient), "and", round_a_square(swirl))

# Both walks. The one on the left is a loop of SGD, line by line.
moves = 3000
steps = mg.StepRule(1 / 3, shift=2).first(moves)  # A, the slope here, is about 3 each way
rng = np.random.default_rng(0)
w = np.array([2.0, -2.0])
by_hand = [w]
for a, i in zip(steps, rng.integers(len(t), size=moves)):
    gradient = (X[i] @ w - t[i]) * X[i]
    w = w - a * gradient
    by_hand.append(w)

drawn = iter(np.random.default_rng(0).integers(len(t), size=moves))


def look(w):
    i = next(drawn)
    return (X[i] @ w - t[i]) * X[i]


sgd = mg.robbins_monro(look, [2.0, -2.0], steps)
assert np.array_equal(sgd, by_hand)  # exact: SGD is the case M = gradient
rng = np.random.default_rng(1)
swirl_steps = mg.StepRule(1, shift=6).first(moves)
swirled = mg.robbins_monro(
    lambda p: swirl(p) + rng.standard_normal(2) / 2, [2.0, -2.0], swirl_steps
)
assert np.linalg.norm(sgd[-1] - fit.astype(float)) < 0.1
assert np.linalg.norm(swirled[-1]) < 0.1

side = np.linspace(-2.5, 2.5, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1)
losses = ((grid @ X.T - t) ** 2).mean(axis=-1) / 2
coarse = grid[3::6, 3::6]
figure, panels = plotting.subplots(1, 2, height=4.4)
panels[0].contour(side, side, losses, levels=12, colors=plotting.GREY, linewidths=0.7)
places = coarse.reshape(-1, 2).T
arrows = {"color": plotting.GREY, "width": 0.004, "angles": "xy", "pivot": "mid"}
panels[1].quiver(*places, *-swirl(places), **arrows)
for panel, walked, root in ((panels[0], sgd, fit), (panels[1], swirled, [0, 0])):
    panel.plot(*walked.T, color=plotting.BLUE, lw=1)
    panel.plot(*walked[0], "s", color=plotting.BLUE, ms=6)
    panel.plot(*map(float, root), "o", color=plotting.VIOLET, ms=8, mec="white")
    panel.set(xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal")
    panel.grid(False)
panels[0].set(xlabel="first weight", ylabel="second weight")
panels[0].set_title("$M$ is a gradient: SGD")
panels[1].set(xlabel="first number $x$", ylabel="second number $y$")
panels[1].set_title("$M$ is no gradient, and has a root")
plotting.show(
    figure,
    "01-fields",
    f"Two walks of {moves} looks from the square to the root, the dot. Left, over lines of equal "
    f"loss: one sample a look, and the root is the least squares fit, ({float(fit[0]):.3f}, "
    f"{float(fit[1]):.3f}). Right: arrows show where a move goes on average, a spiral inwards; no "
    f"loss has this M as its gradient, as the sum round a square, {round_a_square(swirl)}, shows.",
)

# %% [markdown]
# The claim is half right. Robbins and Monro look for *roots*; SGD is the case in which $M$ is a
# gradient, and the rule does not need that. L. Bottou, F. Curtis and J. Nocedal (2018) say of the
# paper of 1951 that SGD was first proposed there "not as a gradient method, but as a Markov chain"
# (a walk that knows no more than where it stands). (In 1952 J. Kiefer and J. Wolfowitz did look for
# the maximum of a function: by *differences* of its noisy values.)
#
# ## The mean of k looks
#
# Now the question of this course. Let the mean gradient of each micro-batch of a window be a look,
# all micro-batches being of one size. Then accumulation is: look $k$ times *at one point*, add up,
# divide once, and only then move. The mean of $k$ independent looks has the expectation $M(x)$ and
# the variance $s^2 / k$. So it is the rule of 1951 with less noise, and with $k$ times fewer moves
# from the same looks.
#
# **Before you run the next cell:** 256 looks, a line with slope 1, the start 1 away from the root,
# noise of variance 1, equal steps of $\frac1{10}$. Which $k$ of 1, 4, 16, 64 ends nearest? And with
# steps $1/m$, where $m$ counts the moves?

# %%
w = mg.fractions([1, 1])
gradients = (exact_X @ w - exact_t)[:, None] * exact_X  # eight looks, each as likely
apart = []
for k in (1, 2, 3):  # all ways to draw k of them, one after the other
    looks_of_k = np.array([sum(drawn) / k for drawn in itertools.product(gradients, repeat=k)])
    assert np.all(looks_of_k.mean(axis=0) == mean_gradient(w))  # exact
    apart.append(((looks_of_k - mean_gradient(w)) ** 2).sum(axis=1).mean())
    assert apart[-1] == apart[0] / k  # exact: the noise of k looks is that of one over k
print("variance of both weights together, for the mean of 1, 2, 3 looks:", *apart, "\n")

looks, a, many = 256, 0.1, 2000
noise = np.random.default_rng(0).standard_normal((looks, many))
Z = mg.fractions(np.random.default_rng(0).integers(-9, 10, looks))
errors = {}
print(f"{looks} looks  moves   left of    variance      error, root mean square")
print("   k              the start  of the ball      theory    2000 walks")
for k in (1, 4, 16, 64):
    moves = looks // k
    means = noise.reshape(moves, k, many).mean(axis=1)  # k looks, one point
    path = mg.robbins_monro(on_a_line(means), np.ones(many), [a] * moves)
    told = mg.linear_moments([a] * moves, slope=1, noise_variance=1 / k, start=1)
    left = told.bias[-1]
    errors[k] = math.sqrt(left**2 + told.variance[-1])
    assert math.isclose(left, (1 - a) ** moves, rel_tol=1e-12)
    assert math.isclose(rms(path[-1]), errors[k], rel_tol=0.1)
    ball = mg.stationary_variance(a, 1, 1 / k)
    assert math.isclose(ball, mg.stationary_variance(a, 1, 1) / k)
    print(f"{k:4} {moves:9} {left:12.4f} {ball:12.4f} {errors[k]:11.3f} {rms(path[-1]):11.3f}")

    grouped = Z.reshape(moves, k).mean(axis=1)  # and with steps 1/m, m = 1, 2, ...
    steps = mg.StepRule(Fraction(1)).first(moves)
    end = mg.robbins_monro(from_measurements(grouped), Fraction(100), steps)[-1]
    assert end == Z.mean()  # exact, for each k
best = min(errors, key=errors.get)
assert best == 4 or a != 0.1
print(f"nearest: k = {best}. With steps 1/m each k ends at the mean of all measurements.")

# %% [markdown]
# With equal steps the mean of $k$ looks makes the variance of the ball $k$ times smaller, and the
# way to it longer: there is a best $k$ between. With steps $1/m$ on a line it makes no difference
# at all: all end at the mean of the 256 measurements, exactly. In the hall, which was far from its
# root, it was a loss. (Change `a` to `0.5`: which $k$ is the best now?)
#
# That is what accumulation buys: **a look with the noise of a large batch, for the memory of a
# small one.** It is paid for in moves. Whether less noise is worth fewer moves is a question about
# the large batch; accumulation answers only how to have it.
#
# ## What is documented
#
# One can read of accumulation: **"It has its roots in a bunch-mode back-propagation algorithm of
# the 1980s."** (*Back-propagation* computes gradients of networks; lesson [02](02_autograd.ipynb)
# writes it.) The oldest *bunch mode* that we found is of 1996, and its motive is the opposite one:
# a whole bunch of samples goes through *one* product of matrices, which is fast, and is held in
# memory as a whole. Adding up gradients before the weights change *is* from the 1980s: it is in the
# paper that made back-propagation known (D. Rumelhart, G. Hinton, R. Williams, 1986). $E$ is the
# loss, a case is a sample.
#
# > One way of using ∂E/∂w is to change the weights after every input-output case. This has the
# > advantage that no separate memory is required for the derivatives. An alternative scheme, which
# > we used in the research reported here, is to accumulate ∂E/∂w over all the input-output cases
# > before changing the weights.
#
# The first way moves after each look. The other is accumulation over all the data, and its price is
# named too: memory for the sum. In its present sense, a batch larger than what fits into memory,
# the oldest record in a program for networks that we found is that of Caffe. When the words
# "gradient accumulation" were first used is not established. The cell puts the dates in order, and
# a bunch beside the same cases accumulated.

# %% claim="a"
documented = [  # year, who, the kind of source, what; the references below say where
    (1951, "Robbins, Monro", "paper", "roots by noisy looks"),
    (1952, "Kiefer, Wolfowitz", "paper", "a maximum, by differences of noisy values"),
    (1986, "Rumelhart, Hinton, Williams", "paper", "accumulate dE/dw over all cases, then change"),
    (1996, "QuickNet", "program", "bunch mode, in a file with this date"),
    (1997, "Bilmes and others", "paper", "bunch mode: several patterns an update, for speed"),
    (2014, "Caffe, proposed", "program", "accumulate gradients: iter_size, for memory"),
    (2015, "Caffe, merged", "program", "accumulate gradients: iter_size, for memory"),
]
for year, who, kind, what in documented:
    print(f"{year}  {who:28} {kind:8} {what}")
years = [year for year, *_ in documented]
of_bunches = [year for year, *_, what in documented if what.startswith("bunch")]
of_sums = [year for year, *_, what in documented if what.startswith("accumulate")]
assert years == sorted(years)
assert min(of_bunches) >= 1990  # not in the 1980s,
assert 1980 <= of_sums[0] < 1990  # in which there was something else

w = np.array([1.0, 1.0])
in_a_bunch = X @ w - t  # the errors of all cases
bunch = X.T @ in_a_bunch  # one product
total = np.zeros(2)
for row, target in zip(X, t):  # case by case
    error = row @ w - target
    total += error * row
assert np.array_equal(bunch, total)  # exact: small whole numbers
print(f"\nthe sum of 8 gradients: {bunch} from one bunch, {total} case by case")
print(f"errors held at the same time: {np.size(in_a_bunch)}, and {np.size(error)}")

# %% [markdown]
# **"It is used at this or that named laboratory."** For this we have no source at hand. Public
# programs show that the technique is built in; what runs inside a laboratory they do not show. A
# claim without a source is neither right nor wrong: it is open.

# %% claim="r"
in_laboratories = [who for _, who, kind, _ in documented if kind == "record of use"]
assert not in_laboratories
print(f"of {len(documented)} sources {len(in_laboratories)} record use in a laboratory: no source")

# %% [markdown]
# ## Usual mistakes
#
# - *"Robbins-Monro is SGD."* It finds roots. SGD is the case in which $M$ is a gradient.
# - *"Steps $1/n$ always give an error like $1/\sqrt n$."* Only if $c \cdot \text{slope}$ is above
#   one half. At one quarter it falls like $n^{-1/4}$.
# - *"A constant learning rate converges."* To a ball. Its variance is about
#   $\frac{a}{2} \cdot s^2/\text{slope}$ for a small step $a$.
# - *"$\sum a_n^2 < \infty$ is needed."* It is enough. $n^{-0.4}$ breaks it and arrives.
# - *"Averaging is accumulation."* Polyak and Ruppert average *points*, after the moves;
#   accumulation averages *looks* at one point, before the move.
# - *"$k$ looks a move, so the step rule counts looks."* It counts moves: $c/(k m)$ in place of
#   $c/m$ is a $c$ that is $k$ times too small.
#
# ## In short
#
# To find a root by noisy looks, move after each, by steps that add up to infinity and whose squares
# do not. With $1/(\text{slope} \cdot n)$ the walk is a mean. Steps that are too long cost a factor,
# too short ones the rate at which the error falls; the average of the points needs no slope. SGD is
# the case of a gradient. The mean of $k$ looks has a $k$-th of the variance, for $k$ times fewer
# moves.
#
# ## References
#
# - H. Robbins, S. Monro (1951). A stochastic approximation method. *Annals of Mathematical
#   Statistics* 22, 400-407.
# - J. Kiefer, J. Wolfowitz (1952). Stochastic estimation of the maximum of a regression function.
#   *Annals of Mathematical Statistics* 23, 462-466.
# - J. R. Blum (1954). Approximation methods which converge with probability one. K. L. Chung
#   (1954). On a stochastic approximation method. *Annals of Mathematical Statistics* 25. J. Sacks
#   (1958). Asymptotic distribution of stochastic approximation procedures. The same, 29.
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986). Learning representations by
#   back-propagating errors. *Nature* 323, 533-536.
# - D. Ruppert (1988). Efficient estimations from a slowly convergent Robbins-Monro process.
#   *Technical report*, Cornell University. B. T. Polyak (1990). New method of stochastic
#   approximation type. *Automation and Remote Control* 51. B. T. Polyak, A. B. Juditsky (1992).
#   Acceleration of stochastic approximation by averaging. *SIAM Journal on Control and
#   Optimization* 30, 838-855.
# - J. Bilmes, K. Asanovic, C. Chin, J. Demmel (1997). Using PHiPAC to speed error back-propagation
#   learning. *ICASSP*. The file of 1996: QN_MLP_BunchFl3.h in QuickNet.
# - J. Long and others (2014, 2015). Caffe, pull requests 1663 and 1977: "Decouple the computational
#   batch size and minibatch size by accumulating gradients".
# - L. Bottou, F. E. Curtis, J. Nocedal (2018). Optimization methods for large-scale machine
#   learning. *SIAM Review* 60, 223-311.
