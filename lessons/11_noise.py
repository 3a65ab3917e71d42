# %% [markdown]
# # 11 · What does a batch of b know about the whole?
#
# **You will be able to**
#
# 1. predict how far the gradient of b samples lies from that of all samples, drawn with and without
#    replacement, and how much longer it is;
# 2. find signal, noise and noise scale from the micro-batches of one window, in two ways, and say
#    what spoils the estimate;
# 3. say what a larger batch buys and what it costs, and read SGD as Robbins and Monro's walk.
#
# **Needs:** lessons [01](01_stochastic_approximation.ipynb) (looks at a function) and
# [04](04_accumulation.ipynb) (the window, and its theorem); expectation and variance
# ([a page of background](before.md)). **Reading:** 40 minutes; **exercises:** 45 minutes
# ([11_noise](exercises/11_noise.ipynb)). **Code:** [`minigrad/noise.py`](../minigrad/noise.py),
# [`minigrad/stochastic.py`](../minigrad/stochastic.py).

# %% [markdown]
# ## A batch is a guess
#
# Lesson 04 asked when $k$ micro-batches are one batch. This lesson asks what that batch is worth.
# Its gradient stands for another one, that of *all* samples there are, and it is a guess: other
# samples, another gradient. Letters: $N$ samples are all there are (lesson 04 had one batch in view
# and called it $N$). A window is now $B = kb$ of them, in micro-batches of $b$. Sample $i$ has the
# gradient $g_i$, and then
#
# $$G = \frac1N \sum_i g_i, \qquad S = \frac1N \sum_i |g_i - G|^2, \qquad g_b = \text{the mean of }
# b \text{ gradients, drawn at random.}$$
#
# $|G|^2$ is called the **signal**, $S$ the **noise**: the variance of one sample's gradient, over
# all parameters together ($s^2$ of a look in lesson 01). In lessons 04 and 08 $S$ was a sum of
# losses, in 03 and 08 $G$ a gradient by outputs. A draw is *with replacement* if a sample may come
# again, and *without* if each comes once at most, as in an epoch.
#
# **Before you run the next cell:** eight samples, one weight, so that a gradient is a number. A
# batch of 1 is off by so and so much. Is a batch of 4 off by half of that, or by a quarter? And a
# batch of 8, with and without replacement? The cell tries *all* draws, in Fractions.

# %%
import math
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.data import digits
from minigrad.reading import show_source

eight = mg.fractions([3, -1, 4, 1, -5, 9, -2, 6])  # change some; keep two of them different


def average(values):
    """Their mean, exact for Fractions."""
    values = list(values)
    return sum(values) / len(values)


def signal_and_noise(gradients):
    """|G|^2 and S of the gradients (N, p) of single samples, or of N numbers."""
    middle = np.sum(gradients, axis=0) / len(gradients)
    apart = gradients - middle
    return np.vdot(middle, middle), np.vdot(apart, apart) / len(gradients)


G = average(eight)
signal, noise = signal_and_noise(eight)
assert signal == G**2
print(f"G = {G}, noise S = {noise}\n")
print("  with replacement                     without")
print("b    draws  E|g_b - G|^2  its root     draws  E|g_b - G|^2  its root")
for b in range(1, 9):
    drawn = [average(draw) for draw in combinations(eight, b)]
    off = average((one - G) ** 2 for one in drawn)
    assert off == mg.batch_noise(eight, b)  # exact: the theorem below
    left = f"{len(eight) ** b:8}"
    if b < 5:  # beyond, there are too many draws
        again = average((average(draw) - G) ** 2 for draw in product(eight, repeat=b))
        assert again == noise / b == mg.batch_noise(eight, b, replace=True)  # exact
        left += f"  {again!s:12} {math.sqrt(again):9.3f}"
    print(f"{b} {left:32} {len(drawn):9}  {off!s:12} {math.sqrt(off):9.3f}")
assert mg.batch_noise(eight, 8) == 0 < mg.batch_noise(eight, 8, replace=True)

# %% [markdown]
# Both guesses in the question were about the distance, and the distance is the root: of 4 samples
# it is *half* that of 1, if they are drawn with replacement, and less if without.
#
# **Theorem.** $E|g_b - G|^2 = \dfrac{S}{b}$ with replacement, and
# $\dfrac{S}{b} \cdot \dfrac{N - b}{N - 1}$ without.
#
# *Proof, which may be skipped.* $g_b - G$ is the mean of $b$ deviations $d = g_i - G$. Its square
# holds $b$ terms $|d|^2 / b^2$, on average $S/b^2$ each, and $b(b - 1)$ products of two different
# draws, divided by $b^2$ too. Two independent draws have $E[d \cdot d'] = 0$. Without replacement,
# $d'$ is one of the $N - 1$ others; all $N$ deviations add up to 0, so these add up to $-d$, their
# mean is $-d/(N - 1)$, and $E[d \cdot d'] = -\frac{S}{N - 1}$. Then
# $\frac{S}{b} - \frac{b - 1}{b} \frac{S}{N - 1} = \frac{S}{b} \frac{N - b}{N - 1}$. ∎
#
# That one number, $-S/(N - 1)$, says something about an epoch too. Two of its batches share no
# sample, so this is the covariance of their gradients, whatever their sizes: **the batches of an
# epoch are negatively correlated**. What one has seen the others cannot see. The last batch is no
# surprise at all: it is what the others left over.
#
# **Before you run the next cell:** an epoch of two batches of 4. The first is off by 2, upwards.
# Where is the second?


# %%
def pairs(size, next_size):
    """The means of two batches of these sizes from one epoch: every two that can happen."""
    for first in combinations(range(8), size):
        rest = [i for i in range(8) if i not in first]
        for second in combinations(rest, next_size):
            yield average(eight[[*first]]), average(eight[[*second]])


print("two batches of one epoch: covariance, correlation")
for size, other_size in ((1, 1), (2, 2), (3, 3), (4, 4), (1, 5), (2, 3)):
    together = average((one - G) * (other - G) for one, other in pairs(size, other_size))
    assert together == -noise / 7  # exact, and the same for all sizes
    line = f"sizes {size} and {other_size}: {together}"
    if size == other_size:
        correlation = together / mg.batch_noise(eight, size)
        assert correlation == Fraction(-size, 8 - size)
        line += f", {correlation}"
    print(line)
assert all(other - G == -(one - G) for one, other in pairs(4, 4))  # the second half is no surprise

# %% [markdown]
# Where the weights stand still, the noise of an epoch adds up to 0: each sample comes once. In
# training they move between the batches, each $g_b - G$ is then taken at another point, and nothing
# makes them cancel.
#
# ## On digits
#
# Now the gradients of a net, on 512 digits, which are all there are. `mg.accumulate` on a batch of
# one sample gives that sample's gradient; 512 calls give them all. (It is not a fast way, but it
# takes the engine as it is.) The random batches are then means of rows of this table.
#
# **Before you run the next cell:** on two logarithmic axes, which slope has $E|g_b - G|^2$ against
# $b$? Where do the two ways of drawing part?

# %%
N = 512
(images, labels), _ = digits(np.float64)
images, labels = images[:N], labels[:N]


def small_net():
    """The same weights each time."""
    return mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)


def gradient(model):
    """All gradients of the model, side by side in one array."""
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


def batch_of(rows):
    return images[rows], labels[rows]


def gradients_of_samples(model):
    """The gradient of each sample alone: (N, p)."""
    table = []
    for i in range(N):
        mg.accumulate(model, mg.cross_entropy, batch_of(slice(i, i + 1)), 1)
        table.append(gradient(model))
    return np.array(table)


def draws(size, count, replace=True):
    """Random batches, a row each: how often each of the N samples is in it, divided by the size."""
    rng = np.random.default_rng([7, size])
    if replace:
        return rng.multinomial(size, np.full(N, 1 / N), count) / size
    return rng.permuted(np.tile(np.arange(N) < size, (count, 1)), axis=1) / size


net, rng = small_net(), np.random.default_rng(1)
sgd = mg.SGD(net.parameters(), lr=0.1)
for _ in range(30):  # change it to 20 or 50: other gradients, the same laws
    mg.train_step(net, mg.cross_entropy, sgd, batch_of(rng.integers(0, N, 128)), 16)

table = gradients_of_samples(net)
whole = table.mean(axis=0)
mg.accumulate(net, mg.cross_entropy, batch_of(slice(None)), 64)
assert np.linalg.norm(gradient(net) - whole) < 1e-12 * np.linalg.norm(whole)  # rounding
signal, noise = signal_and_noise(table)

sizes = [2**i for i in range(9)]
far = {True: [], False: []}
squares = []
for b in sizes:
    for replace in (True, False):
        means = draws(b, 200, replace) @ table
        far[replace].append(np.sum((means - whole) ** 2, axis=1).mean())
        if replace:
            squares.append(np.sum(means**2, axis=1).mean())
slope = np.polyfit(np.log(sizes), np.log(far[True]), 1)[0]
theory = {replace: [mg.batch_noise(table, b, replace) for b in sizes] for replace in (True, False)}
for replace in (True, False):
    assert np.allclose(far[replace], theory[replace], rtol=0.15)
assert abs(slope + 1) < 0.05
assert np.max(np.abs(draws(N, 3, replace=False) @ table - whole)) < 1e-12  # nothing is left to draw

figure, axes = plotting.subplots(1, 2, height=3.9)
fine = np.linspace(1, 8, 200)
spread = float(signal_and_noise(eight)[1]) ** 0.5
for b in range(1, 9):
    heights = np.array([float(average(draw)) for draw in combinations(eight, b)])
    axes[0].plot(np.full(len(heights), b), heights, "o", ms=3.2, color=plotting.BLUE, alpha=0.35)
for sign in (1, -1):
    for width, colour, line, name in (
        (np.sqrt(np.maximum(8 - fine, 0) / 7 / fine), plotting.BLUE, "-", "without replacement"),
        (1 / np.sqrt(fine), plotting.ORANGE, "--", "with replacement"),
        (1 / fine, plotting.GREY, ":", "if it fell as 1/b"),
    ):
        curve = float(G) + sign * spread * width
        axes[0].plot(fine, curve, ls=line, color=colour, lw=1.8, label=name if sign > 0 else None)
axes[0].set_xlabel("samples in the batch, b")
axes[0].set_ylabel("gradient of the batch")
axes[0].set_title("Eight numbers: all batches without replacement")
axes[0].legend(loc="upper right", title="G ± root of E|g − G|²", fontsize=8.5)
ends = np.unique(np.geomspace(1, N - 1, 60).astype(int))
for replace, colour, line, marker, name in (
    (True, plotting.ORANGE, "--", "^", "with replacement"),
    (False, plotting.BLUE, "-", "o", "without"),
):
    law = [mg.batch_noise(table, int(b), replace) for b in ends]
    axes[1].loglog(ends, law, ls=line, color=colour, lw=1.6)
    size, fill = (9, "none") if replace else (4.5, colour)
    axes[1].loglog(sizes, far[replace], marker, color=colour, ms=size, mfc=fill, label=name)
axes[1].axvline(N, color=plotting.GREY, lw=1)
axes[1].text(N * 0.85, 8, "b = N", ha="right", color="#6c6c72")
axes[1].set_xticks([1, 8, 64, 512], [1, 8, 64, 512])
axes[1].minorticks_off()
axes[1].set_ylim(0.004, 40)
axes[1].set_xlabel("samples in the batch, b")
axes[1].set_ylabel("mean of |g − G|²")
axes[1].set_title(f"{N} digits, {table.shape[1]:,} weights: 200 draws a dot")
axes[1].legend(loc="lower left")
plotting.show(
    figure,
    "11-variance",
    f"Left: the gradients of all batches of eight numbers, and the root of their mean square "
    f"distance from G = {float(G)}: {spread:.2f} for one sample, {spread / 2:.2f} for four with "
    f"replacement. Right: a net on digits, theory as lines. With slope {slope:.2f} the mean square "
    f"falls from {far[True][0]:.1f} at b = 1 to {far[True][-1]:.3f} at b = {sizes[-1]}; without "
    f"replacement it is {far[False][-1]:.3f} there, and 0 at b = {N}.",
)

# %% [markdown]
# A line of slope $-1$ for the square, so $-1/2$ for the distance: to halve the distance takes four
# times the samples, and a hundred times the samples bring one more digit. That is all that
# accumulating over $k$ micro-batches does to the noise: it divides its variance by $k$.
#
# ## A batch's gradient is too long
#
# Noise does not only turn a gradient, it makes it longer. In
# $|g_b|^2 = |G|^2 + 2\, G \cdot (g_b - G) + |g_b - G|^2$ the term in the middle is 0 on average:
#
# $$E|g_b|^2 = |G|^2 + \frac{S}{b}.$$
#
# So the norm of the gradient that a report shows (lesson 03) depends on the size of the batch.
# **Before you run the next cell:** the lines of the last picture begin at $S$, on the left. Is that
# much beside $|G|^2$? How many times too long is the gradient of one digit?

# %%
exact_signal, exact_noise = signal_and_noise(eight)
for b in range(1, 5):
    mean_square = average(average(draw) ** 2 for draw in product(eight, repeat=b))
    assert mean_square == exact_signal + exact_noise / b  # exact

print(f"|G|^2 = {signal:.4f}, S / |G|^2 = {noise / signal:.0f}\n")
print("  b    mean of |g_b|^2    |G|^2 + S/b    times too long    S / (|G|^2 + S/b)")
for b, square in zip(sizes, squares):
    predicted, long = signal + noise / b, math.sqrt(square / signal)
    print(f"{b:3} {square:15.4f} {predicted:16.4f} {long:14.2f} {noise / predicted:17.1f}")
    assert abs(square / predicted - 1) < 0.15
    assert noise / predicted < min(b, noise / signal)  # S / (|G|^2 + S/b), whatever |G|^2 is
assert squares[0] > 50 * signal  # different: the gradient of one sample is nearly all noise

# %% [markdown]
# The two terms are equal at $b = S / |G|^2$. This is the **noise scale**, in samples: there a batch
# is half signal, half noise. The last column shows what comes out if somebody averages $|g_b|^2$
# over many batches and takes that for $|G|^2$: less than $b$, whatever the noise scale is.
#
# To find $S$ and $|G|^2$ nobody will compute the gradient of each of a million samples. It is not
# needed.
#
# ## The noise scale from one window
#
# A window has gradients of two sizes in it: those of its $k$ micro-batches of $b$, and its own, of
# $B = kb$. That makes two equations for the two unknowns:
#
# $$E\,\tfrac1k \textstyle\sum_j |g_j|^2 = |G|^2 + \dfrac{S}{b}, \qquad
# E\,|g_B|^2 = |G|^2 + \dfrac{S}{B}.$$
#
# (McCandlish et al. 2018, appendix A.) `train_step(..., noise="parts")` solves them and puts
# `report.noise` into its report. It looks at what each micro-batch adds to `.grad`, for which it
# keeps one more buffer of the size of the gradient.
#
# **Before you run the next cell,** by hand: four samples have the gradients 0, 2 and 2, 4. The
# micro-batches of 2 have the means 1 and 3. What are signal, noise and scale? And if somebody takes
# the *sum* of the two, as it stands in `.grad` before the division, for the window's mean?


# %%
class Toy(mg.Module):
    """outputs = x w: the gradient of a sample is the sample itself."""

    def __init__(self):
        self.w = mg.parameter(mg.fractions(0), object)

    def forward(self, x):
        return x * self.w


def as_it_is(outputs, *_):
    """The loss of a sample is its output."""
    return mg.per_sample(outputs)


def noise_of(samples, b, way="parts"):
    """What a window of these samples, in micro-batches of b, reports of its noise: exact."""
    x = mg.fractions(samples)
    return mg.accumulate(Toy(), as_it_is, (x, x), micro_batch_size=b, noise=way).noise


four, b, B = [0, 2, 2, 4], 2, 4
found = noise_of(four, b)
print(f"signal {found.signal}, noise {found.noise}, noise scale {found.scale}")
mean_square, square = Fraction(1**2 + 3**2, 2), Fraction(2**2)  # of the parts, of the whole
assert found.noise == (mean_square - square) / (Fraction(1, b) - Fraction(1, B)) == 4
assert found.signal == square - found.noise / B == 3
assert found.scale == Fraction(4, 3)

squares = mg.fractions([1**2, 3**2])
summed = mg.noise.from_parts(squares, [b, b], (1 + 3) ** 2)  # wrong: 1 + 3 is no mean
print(f"the sum taken for the mean: signal {summed.signal}, noise {summed.noise}")
assert summed.noise == -44
miscounted = mg.noise.from_parts(squares, [1, 1], square)  # wrong: 1 and k in place of b and B
print(f"counted in micro-batches: noise {miscounted.noise}, noise scale {miscounted.scale}")
assert miscounted.scale == found.scale / b
try:
    noise_of(four, B)  # one micro-batch: one size
except ValueError as error:
    print(error, end="\n\n")
else:
    raise AssertionError("it was not refused")
show_source(mg.noise.from_parts)

# %% [markdown]
# A negative variance: this fault shows, for the mean of the squares is never below the square of
# the mean. The other one does not: whoever counts micro-batches in place of samples finds a scale
# that is $b$ times too small, and nothing looks odd. So say of each gradient whether it is a sum or
# a mean, and of how many samples; what lies in `.grad` inside a window is a sum. (In a library it
# was not clear which of the two was meant: fairscale, issue 1062.)
#
# The code above takes parts of different sizes too. But is the estimate right? One window is again
# a guess. What can be asked is that it be **unbiased**: right on average over all windows that can
# be drawn. **Before you run the next cell:** signal and noise are. Is their ratio?

# %%
world = [3, -1, 4]
true_signal, true_noise = signal_and_noise(mg.fractions(world))
scale = true_noise / true_signal
print(f"three samples: signal {true_signal}, noise {true_noise}, scale {float(scale):.3f}\n")
print("all windows of                   signal    noise    signal 0 or less   mean of other ratios")
for samples, b in ((4, 2), (3, 1), (3, 2)):
    for way in ("parts", "sums"):
        every = [noise_of(draw, b, way) for draw in product(world, repeat=samples)]
        means = average(one.signal for one in every), average(one.noise for one in every)
        assert means == (true_signal, true_noise)  # exact: both ways are unbiased
        ratios = [one.scale for one in every if one.signal > 0]
        lost = f"{len(every) - len(ratios)} of {len(every)}"
        cut = f"{samples} samples, parts of {b}" + (" and 1" if samples % b else "")
        shown = f"{means[0]!s:>6} {means[1]!s:>8} {lost:>17} {float(average(ratios)):18.3f}"
        print(f"{cut:25} {way:6} {shown}")
        assert abs(average(ratios) - scale) > scale / 3  # different
        assert len(ratios) < len(every)

# Drawn as in an epoch, none twice, the window speaks of the world that the N came from.
five_signal, five_noise = signal_and_noise(eight[:5])
for way in ("parts", "sums"):
    every = [noise_of(draw, 1, way) for draw in permutations(eight[:5].tolist(), 3)]
    assert average(one.noise for one in every) == five_noise * Fraction(5, 4)  # exact
    assert average(one.signal for one in every) == five_signal - five_noise / 4
sets = [signal_and_noise(mg.fractions(drawn)) for drawn in product(world, repeat=3)]  # N = 3
assert average(one * Fraction(3, 2) for _, one in sets) == true_noise  # exact: N / (N - 1)
assert average(square - one / 2 for square, one in sets) == true_signal

# %% [markdown]
# Signal and noise come out right on average, exactly, in both ways (the second is next). Their
# ratio does not, and where the signal was estimated below 0 it means nothing. So the rule is:
# **average signal and noise, each by itself, over many windows; divide last.**
#
# The last lines of the cell: drawn without replacement, as in an epoch, the estimates are right for
# $\frac{N}{N - 1} S$ and $|G|^2 - \frac{S}{N - 1}$. That is no fault: if the $N$ samples were drawn
# from an endless world themselves, these are unbiased for the $S$ and $|G|^2$ of that world. Of the
# signal the share $\text{scale}/(N - 1)$ is missing. Nobody sees it where $N$ is far above the
# noise scale; with 512 digits it will soon be half. Below, windows are drawn with replacement.
#
# ## Without the buffer: a straight line
#
# Call $A_j$ what lies in `.grad` after $j$ micro-batches: the sum over $W_j = jb$ samples (its
# weight, lesson 05), not divided. $A_j / W_j$ is a mean of $W_j$ gradients, so that
# $E|A_j|^2 / W_j^2 = |G|^2 + S / W_j$, or
#
# $$E\,\frac{|A_j|^2}{W_j} = |G|^2\, W_j + S .$$
#
# That is a straight line in $W_j$. Its slope is the signal; where it meets the axis, there is the
# noise. `noise="sums"` lays the least-squares line through the $k$ points of the window, and needs
# nothing but the norm of what is there anyway. And `"parts"` is a line in the same picture: through
# *two* points, one at $b$ (the mean over the $k$ micro-batches, each by itself) and one at $B$.
#
# **Before you run the next cell:** which of the two lines will jump about more from window to
# window? How steep is the mean of many?

# %%
k, b, windows = 16, 8, 150
shown = 4  # the window to draw, 0 to 100
B = k * b
rows = np.random.default_rng(3).integers(0, N, (windows, B))
parts = np.array([table[row].reshape(k, b, -1).sum(axis=1) for row in rows])  # a sum each
weights = b * np.arange(1, k + 1)
heights = np.sum(np.cumsum(parts, axis=1) ** 2, axis=2) / weights  # |A_j|^2 / W_j
alone = np.sum(parts**2, axis=2).mean(axis=1) / b  # the same of a micro-batch, on average
fits = np.array([np.polyfit(weights, height, 1) for height in heights])  # slope, intercept
slopes = (heights[:, -1] - alone) / (B - b)
chords = np.stack([slopes, alone - slopes * b], axis=1)
for way, lines in (("sums", fits), ("parts", chords)):  # the lines are what minigrad reports
    for row, line in zip(rows[:3], lines):
        report = mg.accumulate(net, mg.cross_entropy, batch_of(row), b, noise=way)
        assert np.allclose(report.noise, line, rtol=1e-9)  # rounding

figure, axes = plotting.subplots(1, 2, height=4.2, sharey=True)
ends = np.array([0, B * 1.04])
for panel, lines, title in (
    (axes[0], fits, f'"sums": a line through {k} points'),
    (axes[1], chords, '"parts": a line through two points'),
):
    for line in lines[-40:]:
        panel.plot(ends, np.polyval(line, ends), "-", color=plotting.GREY, lw=0.7, alpha=0.45)
    law, fit = signal * ends + noise, np.polyval(lines[shown], ends)
    panel.plot(ends, law, "-", color=plotting.BLUE, lw=2.6, label="the law, |G|² W + S")
    panel.plot(ends, fit, "--", color=plotting.RED, lw=2, label="line of one window")
    panel.plot([], [], "-", color=plotting.GREY, lw=1, label="lines of 40 more")
    panel.set_title(title)
    panel.set_xlabel("samples so far, W")
    panel.set_xlim(0, ends[1])
axes[0].plot(weights, heights[shown], "o", ms=5, color=plotting.RED)
axes[0].plot(weights, heights.mean(axis=0), "s", ms=4.5, color=plotting.BLUE)
axes[0].plot([], [], "s", ms=4.5, color=plotting.BLUE, label=f"mean of {windows} windows")
axes[1].plot([b, B], [alone[shown], heights[shown, -1]], "o", ms=6, color=plotting.RED)
axes[1].plot([b, B], [alone.mean(), heights[:, -1].mean()], "s", ms=5, color=plotting.BLUE)
axes[0].set_ylabel("|A|² / W")
axes[0].set_ylim(0, 1.55 * law[-1])
for panel in axes:
    arrow = {"arrowstyle": "->", "color": plotting.BLUE}
    panel.annotate("S, the noise", (0, noise), (14, 4), color=plotting.BLUE, arrowprops=arrow)
axes[0].legend(loc="upper left", fontsize=8.5)
spread = {way: lines.std(axis=0) for way, lines in (("sums", fits), ("parts", chords))}
for way, lines in (("sums", fits), ("parts", chords)):  # four standard errors
    assert np.all(np.abs(lines.mean(axis=0) - [signal, noise]) < 4 * spread[way] / windows**0.5)
assert np.all(spread["sums"] > 1.05 * spread["parts"])
plotting.show(
    figure,
    "11-line",
    f"Windows of {k} micro-batches of {b} digits. The law has the slope |G|² = {signal:.3f} and "
    f"meets the axis at S = {noise:.1f}. The mean of {windows} windows lies on it; the lines of "
    f"single windows do not. Their slopes have a standard deviation of {spread['sums'][0]:.3f} by "
    f"sums and {spread['parts'][0]:.3f} by parts, their intercepts one of {spread['sums'][1]:.1f} "
    f"and {spread['parts'][1]:.1f}.",
)

# %% [markdown]
# Why do the sums jump about more? The running sum depends on the *order* of the micro-batches, and
# the order says nothing about the samples. Average the estimate over all orders of equal
# micro-batches, and what is left is the other one: the next cell shows that in Fractions. The
# buffer buys the mean over all orders. Where memory is short the sums are free, and unbiased all
# the same.
#
# In practice one takes many windows, and smooths: `mg.SmoothedNoise` keeps an exponential average
# of the signal and one of the noise, and divides last. The net stands still in the next cell, and
# windows of 64 come, one after the other. **Before you run it:** the true scale of this net,
# $S/|G|^2$ over all digits, is larger than 64. How useful is the estimate of a single window?

# %%
three = (0, 2), (2, 4), (7, -1)  # micro-batches
orders = [noise_of(np.concatenate(order), 2, "sums") for order in permutations(three)]
by_parts = noise_of([0, 2, 2, 4, 7, -1], 2)
assert average(one.signal for one in orders) == by_parts.signal  # exact
assert average(one.noise for one in orders) == by_parts.noise

k, b, windows, ways = 8, 8, 150, ("parts", "sums")
rows = np.random.default_rng(4).integers(0, N, (windows, k * b))
found = {way: [] for way in ways}
smooth = {way: mg.SmoothedNoise(decay=0.98) for way in ways}
curves = {way: [] for way in ways}
for row in rows:
    for way in ways:
        report = mg.accumulate(net, mg.cross_entropy, batch_of(row), b, noise=way)
        found[way].append(report.noise)
        curves[way].append(smooth[way].update(report.noise).scale)
scale = noise / signal
single = np.array([one.scale for one in found["parts"]])
useless = ~np.isfinite(single)
naive = np.cumsum(np.where(useless, 0, single)) / np.maximum(np.cumsum(~useless), 1)
print(f"over all {N} digits: signal {signal:.4f}, noise {noise:.2f}, scale {scale:.0f}")
for way in ways:
    signals, noises = np.array(found[way]).T
    value = smooth[way].value
    print(
        f"{way:6} one window: signal {signals.mean():.3f} ± {signals.std():.3f}, noise "
        f"{noises.mean():.1f} ± {noises.std():.1f}; smoothed: {value.signal:.3f}, "
        f"{value.noise:.1f}, scale {value.scale:.0f}"
    )
    assert abs(noises.mean() - noise) < 4 * noises.std() / windows**0.5
    assert abs(signals.mean() - signal) < 4 * signals.std() / windows**0.5
    assert 0.6 < value.scale / scale < 1.6

figure, panel = plotting.subplots(1, 1, height=3.8)
steps, top = np.arange(1, windows + 1), 6e3
panel.semilogy(steps, np.where(useless, np.nan, single), "o", ms=3.5, color=plotting.GREY)
panel.semilogy(steps[useless], np.full(useless.sum(), top), "|", ms=9, color=plotting.GREY)
for values, colour, line, name in (
    (naive, plotting.RED, "-.", "mean of the ratios"),
    (curves["sums"], plotting.ORANGE, "--", 'smoothed, "sums"'),
    (curves["parts"], plotting.BLUE, "-", 'smoothed, "parts"'),
):
    panel.semilogy(steps, values, ls=line, color=colour, lw=2, label=name)
panel.plot([], [], "o", ms=4, color=plotting.GREY, label='one window, "parts"')
panel.plot([], [], "|", ms=9, color=plotting.GREY, label="one window, signal 0 or less")
panel.axhline(scale, color=plotting.DARK, lw=1.4, ls=":", label=f"over all {N} digits")
panel.set_xlabel("windows so far")
panel.set_ylabel("noise scale, in samples")
panel.set_xlim(0, windows + 2)
panel.set_ylim(15, 1e5)
panel.legend(loc="upper right", ncols=2, fontsize=8.5)
assert naive[-1] > 1.5 * scale
assert useless.any()
assert scale > k * b
plotting.show(
    figure,
    "11-smoothed",
    f"Windows of {k} micro-batches of {b} digits; the true scale is {scale:.0f}. Nine of ten "
    f"single windows say {np.percentile(single, 5):.0f} to {np.percentile(single, 95):.0f}, and "
    f"{useless.sum()} of {windows} saw no signal at all. The mean of the ratios ends at "
    f"{naive[-1]:.0f}. Smoothed first, it is {curves['parts'][-1]:.0f} by parts and "
    f"{curves['sums'][-1]:.0f} by sums.",
)

# %% [markdown]
# ## What a larger batch buys
#
# How far does one update get? Let the loss be a parabola with the same second derivative $h$, its
# *curvature*, in each direction. An update by $g_B$ with the learning rate $a$ (a step in lesson
# 01) lowers the loss by $a\, G \cdot g_B - \frac{h}{2} a^2 |g_B|^2$, on average by
# $a |G|^2 - \frac{h}{2} a^2 (|G|^2 + S/B)$. The best rate makes of that
#
# $$\frac{|G|^2}{2h} \cdot \frac{1}{1 + \frac{S / |G|^2}{B}} :$$
#
# the share $1 / (1 + \text{scale} / B)$ of what an endless batch would gain. So, to get equally
# far, and as long as the scale stays as it is, a batch of $B$ needs $1 + \text{scale} / B$ times
# the updates of an endless batch, which are the fewest. The samples are $B$ times that, which makes
# $B + \text{scale}$ for each of the fewest updates. However small $B$ is, there are more than
# $\text{scale}$: call these the fewest samples, and a batch of $B$ needs $1 + B / \text{scale}$
# times as many. `mg.trade_off` gives both.
#
# **Before you run the next cell:** which share of the best gain has a batch at the noise scale? One
# of ten times the scale? And what do twice as many samples save from there?


# %%
def gain(B):
    """What the best rate gains on the loss w^2 / 2 at w = 1, on average over all batches of B.

    Half of the samples that there are have the gradient w + 3, half w - 3. Of the 2^B batches,
    those with equally many of each kind are alike.
    """
    shares = [Fraction(math.comb(B, i), 2**B) for i in range(B + 1)]
    batches = [1 + Fraction(3 * (2 * i - B), B) for i in range(B + 1)]
    at_0, at_1, at_2 = (
        sum(share * (1 - a * g) ** 2 / 2 for share, g in zip(shares, batches)) for a in range(3)
    )
    bend, fall = at_0 - 2 * at_1 + at_2, (3 * at_0 - 4 * at_1 + at_2) / 2  # a parabola in the rate
    return fall * fall / (2 * bend)


toy_scale, costs = Fraction(9), {}  # S / |G|^2 = 3^2 / 1^2
print(f"a parabola, noise scale {toy_scale}\n  B   share of the best gain   updates x   samples x")
for B in (1, 2, 9, 18, 90, 180):
    share, costs[B] = gain(B) / Fraction(1, 2), mg.trade_off(B, toy_scale)  # 1/2: all there is
    assert share == 1 / costs[B].updates == 1 / (1 + toy_scale / B)  # exact
    assert (costs[B].updates - 1) * (costs[B].samples - 1) == 1  # exact
    row = f"{float(costs[B].updates):15.3f} {float(costs[B].samples):11.3f}"
    print(f"{B:3} {share!s:>10} = {float(share):.4f} {row}")
assert costs[9] == (2, 2)
for B in (1, 90):  # twice the batch, far below the noise scale and far above it
    fewer = 1 - costs[2 * B].updates / costs[B].updates
    more = costs[2 * B].samples / costs[B].samples - 1
    print(f"from {B} to {2 * B}: {float(fewer):.1%} fewer updates, {float(more):.1%} more samples")
    if B == 1:
        assert fewer > Fraction(2, 5)
        assert more == Fraction(1, 10)
    else:
        assert fewer < Fraction(1, 20)
        assert more > Fraction(9, 10)


def put(model, flat):
    """Set the weights of the model, from one array."""
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.data.size].reshape(p.data.shape)
        start += p.data.size


def trained(updates):
    """The net after so many updates by batches of 128."""
    net, rng = small_net(), np.random.default_rng(1)
    sgd = mg.SGD(net.parameters(), lr=0.1)
    for _ in range(updates):
        mg.train_step(net, mg.cross_entropy, sgd, batch_of(rng.integers(0, N, 128)), 16)
    return net


def measured_shares(model, sizes):
    """What batches of these sizes gain, as a share of the best gain on all digits. Before it, the
    noise scale and the one that counts each direction by its curvature.
    """
    table = gradients_of_samples(model)
    whole = table.mean(axis=0)
    weights = np.concatenate([p.data.ravel() for p in model.parameters()])

    def loss_after(step):
        put(model, weights - step)
        return mg.cross_entropy(model(images), labels).mean().item()

    def best(steps):
        rates = np.geomspace(0.02, 20, 14)
        return max(np.mean([before - loss_after(a * step) for step in steps]) for a in rates)

    def bend(d):
        """d^T H d: the second derivative of the loss along d, by differences."""
        little = 1e-3 / np.linalg.norm(d)
        return (loss_after(little * d) - 2 * before + loss_after(-little * d)) / little**2

    with mg.no_grad():
        before = loss_after(0)
        most = best([whole])
        shares = [best(draws(size, 12) @ table) / most for size in sizes]
        curved = np.mean([bend(one - whole) for one in table]) / bend(whole)
    signal, noise = signal_and_noise(table)
    return noise / signal, curved, np.array(shares)


sizes = np.array([16, 64, 256, 1024])
measured, times = {}, {}
print("\ndigits    half of the best gain at   S / |G|^2   counted by curvature")
for updates in (0, 30, 100):
    measured[updates] = at_scale, curved, shares = measured_shares(trained(updates), sizes)
    half = np.median(sizes * (1 / shares - 1))  # where 1 / (1 + half / B) would be 1/2
    times[updates] = half / at_scale
    print(f"after {updates:3} {'B =':>15} {half:4.0f} {at_scale:15.0f} {curved:16.0f}")
    assert 1 / 2.5 < half / curved < 2.5
assert 1 / 1.5 < times[0] < 1.5
assert times[30] > 5  # different: more than one curvature
assert times[100] > 2

figure, axes = plotting.subplots(1, 2, height=3.9)
ratios = np.geomspace(0.05, 30, 200)  # B / scale
axes[0].loglog(1 + ratios, 1 + 1 / ratios, "-", color=plotting.BLUE)
for B, cost in costs.items():
    middle = toy_scale == B
    marker, colour = ("s", plotting.RED) if middle else ("o", plotting.DARK)
    axes[0].plot(cost.samples, cost.updates, marker, ms=7 if middle else 5, color=colour)
    words = f"B = {B}, the noise scale" if middle else f"B = {B}"
    axes[0].annotate(words, cost[::-1], (7, 4), textcoords="offset points", color=colour)
axes[0].set_xlabel("samples, times the fewest")
axes[0].set_ylabel("updates, times the fewest")
axes[0].set_title(f"The trade: a parabola of noise scale {toy_scale}")
model = 1 / (1 + 1 / ratios)
axes[1].semilogx(ratios, model, "-", color=plotting.BLUE, label="1 / (1 + scale / B)")
for updates, marker, line, colour in (
    (0, "o", "--", plotting.ORANGE),
    (30, "s", "-.", plotting.PURPLE),
    (100, "^", ":", plotting.RED),
):
    at_scale, _, shares = measured[updates]
    name = f"digits, after {updates} updates" if updates else "digits, at the start"
    style = {"ls": line, "color": colour, "ms": 6, "lw": 1.4}
    axes[1].semilogx(sizes / at_scale, shares, marker, label=name, **style)
axes[1].axvline(1, color=plotting.GREY, lw=1)
axes[1].set_xlabel("B / noise scale")
axes[1].set_ylabel("share of the best gain")
axes[1].set_title("One update with the best rate")
axes[1].legend(loc="upper left", fontsize=8.5)
axes[1].set_ylim(0, 1.1)
ticks = [1, 2, 5, 10, 20]
axes[0].set_xticks(ticks, ticks)
axes[0].set_yticks(ticks, ticks)
axes[0].set_xlim(0.9, 45)
axes[1].set_xticks([0.1, 1, 10], ["1/10", "1", "10"])
for panel in axes:
    panel.minorticks_off()
plotting.show(
    figure,
    "11-trade-off",
    f"Left: from B = 1 to {toy_scale} the updates fall from {float(costs[1].updates):g} to 2 times "
    f"the fewest, and the samples rise from {float(costs[1].samples):.2g} to 2 times; from 90 to "
    f"180 the updates hardly move, and the samples nearly double. Right: at the start digits "
    f"follow the model; after 30 updates half of the best gain takes about {times[30]:.0f} times "
    f"the noise scale, after 100 updates {times[100]:.0f} times.",
)

# %% [markdown]
# Far past the noise scale, then, accumulating more buys almost nothing: from ten times the scale
# on, a doubling saves less than one update in twenty and costs nearly twice the samples. Far below
# it the larger batch is nearly free in samples. The batch at which both costs are twice the least
# is called the **critical batch size**; in this model it is the noise scale.
#
# It is a model and no theorem, and the right picture says how good it is here. At the start it
# fits. Later the batch that gains half is several times the noise scale, for a net has more than
# one curvature. Each direction then counts by its own, and the scale becomes
# $E[d^\top H d] / G^\top H G$, with $d = g_i - G$ and $H$ the matrix of second derivatives
# (McCandlish et al. 2018, section 2, where it is $\mathrm{tr}(H \Sigma) / G^\top H G$). The cell
# measured this one too, along each $d$, and it is never off by more than a small factor. But a
# window does not tell it. $S/|G|^2$ is what is to be had for nothing: a rough guide, here too small
# by up to ten times. What larger batches bought in many real trainings was measured by Shallue et
# al. (2019).
#
# And mind which cost is yours. On one device micro-batches run one after the other, and time goes
# with the *samples*: there a larger $k$ saves no more than the updates' own cost. It is many
# devices side by side that turn fewer updates into less time.
#
# ## The scale grows
#
# **Before you run the next cell:** a net learns its digits better and better. What becomes of the
# signal, what of the noise, and what of their ratio?

# %%
k, b, updates = 4, 32, 300
marks = (0, 30, 100, 200, 300)
net, rng = small_net(), np.random.default_rng(1)
sgd, smooth = mg.SGD(net.parameters(), lr=0.1), mg.SmoothedNoise()
direct, estimates = {}, []
print("update    loss    signal     noise    scale")
for update in range(updates + 1):
    if update in marks:
        direct[update] = signal_and_noise(gradients_of_samples(net))
        signal, noise = direct[update]
        loss = mg.cross_entropy(net(images), labels).mean().item()
        print(f"{update:6} {loss:7.3f} {signal:9.4f} {noise:9.2f} {noise / signal:8.0f}")
    batch = batch_of(rng.integers(0, N, k * b))
    report = mg.train_step(net, mg.cross_entropy, sgd, batch, b, noise="parts")
    estimates.append(smooth.update(report.noise))
signals, noises = np.array([direct[mark] for mark in marks]).T
scales = noises / signals
assert 8 * scales[0] < 2 * scales[2] < scales[-1]  # start, middle, end
assert scales[-1] > (N - 1) / 2  # an epoch's windows would miss half of the signal
assert signals[-1] < signals[0] / 10
assert noises[-1] > noises[0] / 3

figure, axes = plotting.subplots(1, 2, height=3.7)
steps = np.arange(len(estimates))
axes[0].semilogy(marks, noises, "o", ms=6, color=plotting.ORANGE, label="noise S")
axes[0].semilogy(steps, [one.noise for one in estimates], "--", lw=1.6, color=plotting.ORANGE)
axes[0].semilogy(marks, signals, "^", ms=6, color=plotting.BLUE, label="signal |G|²")
axes[0].semilogy(steps, [one.signal for one in estimates], "-", lw=1.6, color=plotting.BLUE)
axes[0].set_title("Signal and noise")
axes[0].legend(loc="center right")
axes[1].semilogy(marks, scales, "s", ms=6, color=plotting.RED, label=f"over all {N} digits")
of_windows = [one.scale for one in estimates]
axes[1].semilogy(steps, of_windows, "-", lw=1.6, color=plotting.DARK, label="from the windows")
axes[1].axhline(k * b, color=plotting.GREY, lw=1, ls=":")
axes[1].text(updates, k * b * 0.9, f"the batch, {k * b}", ha="right", va="top", color="#6c6c72")
axes[1].set_title("Noise scale")
axes[1].legend(loc="upper left")
axes[1].set_yticks([30, 100, 300], ["30", "100", "300"])
for panel in axes:
    panel.minorticks_off()
    panel.set_xlabel("update")
plotting.show(
    figure,
    "11-growth",
    f"Marks: over all digits. Lines: smoothed, from the windows of training alone. From the start "
    f"to update {updates} the signal falls {signals[0] / signals[-1]:.0f} times, the noise "
    f"{noises[0] / noises[-1]:.1f} times; so the noise scale grows from {scales[0]:.0f} over "
    f"{scales[2]:.0f} at update {marks[2]} to {scales[-1]:.0f}. The batch has {k * b} samples.",
)

# %% [markdown]
# The signal falls, for the mean gradient goes to 0 where the loss has its minimum; the single
# samples still pull in all directions, and the noise hardly falls. So the batch that is worth its
# samples is small at first, and grows.
#
# ## SGD is Robbins and Monro's walk
#
# Lesson 01 walked to the root of $M$ by noisy looks: at level 0, $x_n = x_{n-1} - a_n Y_n$, where
# $Y_n$ is a look at $M(x_{n-1})$, right on average (Robbins and Monro 1951). Let $x$ be all weights
# of a net in one array, $M$ the gradient over all samples and $Y$ that of a batch: this *is* SGD
# with the rates $a_n$. And $k$ looks at one point, averaged, are one look with a $k$-th of the
# variance: one accumulated update.
#
# **Before you run the next cell:** `mg.robbins_monro` knows nothing of nets, and `mg.train_step`
# nothing of stochastic approximation. Equal to how many digits, after 20 updates?

# %%
b, k, updates = 16, 8, 20  # powers of two: then dividing a sum and adding quotients are one
batches = [np.random.default_rng(n).integers(0, N, k * b) for n in range(updates)]
rates = mg.StepRule(c=0.5, power=0.75).first(updates)

net = small_net()
start = np.concatenate([p.data.ravel() for p in net.parameters()])
sgd = mg.SGD(net.parameters(), lr=lambda update: rates[update])
weights = []
for rows in batches:
    mg.train_step(net, mg.cross_entropy, sgd, batch_of(rows), b)
    weights.append(np.concatenate([p.data.ravel() for p in net.parameters()]))


def look(x, rows):
    """A noisy look at M(x): the gradient of a batch, as one array."""
    put(walker, x)
    mg.accumulate(walker, mg.cross_entropy, batch_of(rows), b)
    return gradient(walker)


walker, coming = small_net(), iter(batches)
path = mg.robbins_monro(lambda x: look(x, next(coming)), start, rates)
assert np.array_equal(path[1:], weights)  # exact, bit for bit
print(f"robbins_monro and train_step: {start.size:,} weights, {updates} updates, the same bits")

looks = [look(path[3], part) for part in batches[3].reshape(k, b)]  # k looks from one point
averaged = sum(looks) / k
assert np.array_equal(averaged, look(path[3], batches[3]))  # exact
assert np.array_equal(path[4], path[3] - rates[3] * averaged)
print(f"{k} looks at one point, averaged: one accumulated update, the same bits\n")

show_source(mg.robbins_monro)

# %% [markdown]
# An average of looks from *one* point is not the average of *points* in lesson 01: accumulation
# averages gradients while the weights stand still.
#
# ## Usual mistakes
#
# - "Four times the batch, a quarter of the error." The variance is a quarter, the distance half.
# - "$|g_B|^2$ is the signal." On average it is too large by $S/B$, and the noise scale that comes
#   of that average is below $B$, whatever the true one is.
# - "I average the noise scale over my windows." Average signal and noise, and divide last.
# - "`.grad` is the gradient." Inside a window it is a sum, and after clipping it is shortened. The
#   estimate takes means, before the clip, and $b$ and $B$ in samples, not in micro-batches.
# - "My net has a noise scale of 500." At this update. It grows while the net learns.
# - "A larger batch has a better gradient, so it learns better." Per update. Far past the noise
#   scale hardly that, and per sample never, in this model.
# - "In an epoch every sample comes once, so there is no noise." The noises of its batches cancel
#   where the weights stand still, and they do not.
#
# ## In short
#
# - The mean square by which the gradient of $b$ samples is off is $S/b$: half as far takes four
#   times the samples. Without replacement it is $S/b \cdot (N - b)/(N - 1)$.
# - It is too long: $E|g_b|^2 = |G|^2 + S/b$.
# - A window holds two sizes of batch, so it tells signal and noise; smooth both, then divide.
# - At the noise scale $S/|G|^2$ a batch costs twice the fewest updates and samples, where all
#   curvatures are equal; elsewhere it is a rough guide.
# - SGD is Robbins and Monro's walk; $k$ accumulated micro-batches are the mean of $k$ looks.
#
# ## References
#
# - S. McCandlish, J. Kaplan, D. Amodei, OpenAI Dota Team (2018). *An Empirical Model of Large-Batch
#   Training.* arXiv:1812.06162. The noise scale, its estimate, the model of the trade.
# - H. Robbins, S. Monro (1951). *A Stochastic Approximation Method.* Annals of Mathematical
#   Statistics 22.
# - W. G. Cochran (1977). *Sampling Techniques.* Wiley. Draws without replacement.
# - C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig, G. E. Dahl (2019).
#   *Measuring the Effects of Data Parallelism on Neural Network Training.* JMLR 20.
#   arXiv:1811.03600.
# - fairscale (2022). *Issue 1062:* is the gradient of a window a sum or a mean?
