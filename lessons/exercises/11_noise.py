# %% [markdown]
# # Exercises 11: what does a batch of b know about the whole?
#
# You predict how fast the noise of a gradient falls, write its law for both ways of drawing, write
# the estimate that a window makes of it, and find and mend the fault of a loop that reports it.
# They belong to the lesson [11_noise](../11_noise.ipynb). About 45 minutes.
# {{practice}}
#
# Write your answers below `# YOUR CODE HERE` (delete the line that raises), then run the cell below
# each answer: it says at once whether it is right, and if not, why.

# %%
from itertools import combinations, product

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import check, chosen, corrected, forbid, grade, predicted
from minigrad.data import digits

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
b1 = 4  # exercise 1: samples of a batch
b2 = 64  # exercise 1: of a larger one
gradients = [[3, 1], [-1, 0], [4, 2], [1, -3], [-5, 1], [2, 5]]  # exercise 2: of single samples
size = 3  # exercise 2: of a batch
g1 = 1  # exercise 3: the mean gradient of the first of two micro-batches
g2 = 3  # exercise 3: of the second
b = 2  # exercise 3: samples of each
seed = 0  # exercise 3: of further windows
b4 = 2  # exercise 4: samples of a micro-batch; below: three windows, and what is left, 2 weights
windows = [
    [[[4, 0], [2, 2]], [[5, 1], [1, 3]], [[3, -1], [6, 2]]],
    [[[1, 2], [3, 0]], [[4, 4], [2, 1]]],
    [[[0, 1], [2, 2]], [[6, 0], [4, 3]], [[3, 3], [5, -1]]],
    [[[2, 0], [7, 1]]],
]
### BEGIN PLANTED
fault = "A"  # exercise 4: which of five loops stands there
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    b1, b2 = [(4, 16), (4, 36), (4, 64), (8, 72), (8, 128), (2, 32), (2, 50)][rng.integers(7)]
    while True:  # two columns that vary, and a mean that is not 0
        gradients = rng.integers(-5, 6, (int(rng.integers(6, 8)), 2))
        if gradients.std(axis=0).min() > 1 and abs(gradients.mean(axis=0)).min() > 0.2:
            break
    size = [[3, 4], [3, 5]][len(gradients) - 6][rng.integers(2)]  # never 2, nor (N-b)/(N-1) = 1/2
    g1, g2 = (int(g) for g in rng.choice(np.arange(1, 8), 2, replace=False))

    def numbers(windows, limit=1.0):
        """Signal, noise and scale of the loop, right and with each fault."""

        def solve(squares, whole, b, B):
            noise = (np.mean(squares) - whole) / (1 / b - 1 / B)
            return [whole - noise / B, noise]

        rows = {name: [] for name in ("right", "A", "B", "D")}
        for parts in windows:
            sums = parts.sum(axis=1)
            k, b, B = len(parts), parts.shape[1], parts.shape[0] * parts.shape[1]
            squares, whole = ((sums / b) ** 2).sum(axis=1), (sums.sum(axis=0) / B) ** 2
            if k > 1:
                running = ((np.cumsum(sums, axis=0) / b) ** 2).sum(axis=1)
                rows["right"].append(solve(squares, whole.sum(), b, B))
                rows["A"].append(solve(squares, whole.sum() * B**2, b, B))
                rows["B"].append(solve(squares, min(whole.sum(), limit**2), b, B))
                rows["D"].append(solve(running, whole.sum(), b, B))
        rows["E"] = [*rows["right"], [whole.sum(), 0.0]]  # the last window has one micro-batch
        means, each = {name: np.mean(row, axis=0) for name, row in rows.items()}, rows["right"]
        if min(signal for signal, _ in each) < 0.5 or min(abs(m[0]) for m in means.values()) < 0.1:
            return None
        found = {name: [*mean, mean[1] / mean[0]] for name, mean in means.items()}
        found["C"] = [*means["right"], np.mean([noise / signal for signal, noise in each])]
        return {name: np.array(values) for name, values in found.items()}, np.array(each)

    b4 = int(rng.integers(2, 4))
    while True:  # signals above 0, and every fault far from the right numbers and from each other
        ks = [*rng.permutation([2, 3, 3]), 1]
        drawn = [rng.integers(-2, 8, (k, b4, 2)) for k in ks]
        made = numbers(drawn)
        if made is None:
            continue
        found, each = made
        sums = [abs(parts.sum(axis=(0, 1))).min() for parts in drawn]
        pairs = [(x, y) for x in found for y in found if x < y]
        apart = min(abs(found[x] - found[y]).max() for x, y in pairs)
        if each.min() > 0.5 and min(sums) > 0 and apart > 0.3 and found["right"][2] > 0.2:
            break
    return {
        "b1": b1,
        "b2": b2,
        "gradients": gradients.tolist(),
        "size": size,
        "g1": g1,
        "g2": g2,
        "b": int(rng.integers(2, 5)),
        "seed": int(rng.integers(1, 1000)),
        "b4": b4,
        "windows": [parts.tolist() for parts in drawn],
        "fault": str(rng.choice([*"ABCDE"])),
    }


# %% [markdown]
# ## 1. Predict: how much nearer? (1 point, and 1 for the correction)
#
# The gradient of {{b1}} digits, drawn at random with replacement, lies at some distance from the
# gradient of all of them (the root of the mean square over many draws).
#
# How many times smaller is that distance for {{b2}} digits? Write a number. Your prediction need
# not be right: it needs to be there before you run the experiment.

# %% answer="11-predict"
# Assign a number to `prediction`.
### BEGIN SOLUTION
prediction = (b2 / b1) ** 0.5
### END SOLUTION

# %% check="11-predict"
predicted(prediction)

# %% test="11-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="none" of="11-predict" earns=0 because="there is no prediction yet"
prediction = None

# %% check="11-predict-experiment"
predicted(prediction)
(images, labels), _ = digits(np.float64)
layer, table = mg.Linear(64, 10, rng=np.random.default_rng(0), dtype=np.float64), []
for i in range(200):
    mg.accumulate(layer, mg.cross_entropy, (images[i : i + 1], labels[i : i + 1]), 1)
    table.append(np.concatenate([p.grad.ravel() for p in layer.parameters()]))
table, rng, distances = np.array(table), np.random.default_rng(1), {}
for b_now in (b1, b2):
    means = rng.multinomial(b_now, np.full(200, 1 / 200), 1000) / b_now @ table
    square = np.sum((means - table.mean(axis=0)) ** 2, axis=1).mean()
    distances[b_now] = np.sqrt(square)
    print(f"b = {b_now:3}: distance {distances[b_now]:.4f}, its square {square:.5f}")
nearer = distances[b1] / distances[b2]
print(f"{nearer:.2f} times smaller, its square {nearer**2:.1f} times; you said {prediction:.2f}")

# %% [markdown]
# One sentence: what happened, and why? If you were right: why did it have to be so? (1000 draws are
# not all; expect a few percent of luck.)

# %% answer="11-correct"
# Assign a sentence to `correction`.
### BEGIN SOLUTION
correction = "The variance of a mean falls as 1/b, so the distance, its root, as one over root b."
### END SOLUTION

# %% check="11-correct"
corrected(correction)

# %% test="11-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="11-correct" earns=0 because="expected 6 or more"
correction = "Variance falls as 1/b."

# %% [markdown]
# ## 2. Write: the noise of a batch, with and without replacement (2 points)
#
# There are $N$ samples, each with a gradient of $p$ numbers. In plain loops:
#
# ```
# for each way to draw `size` of the samples (with replacement: a sample may come again):
#     g = the mean of the drawn gradients
#     add |g - mean of all gradients|^2 to the total
# return total / number of ways
# ```
#
# Write it without going through the ways to draw: with {{size}} of {{gradients}} there are few, and
# with 30 of 1000 more than the Earth has atoms. The lesson has the law.


# %% answer="11-draws"
def mean_square_off(gradients, size, replace):
    """The mean of |g - G|^2 over all draws of `size` samples; gradients is an array (N, p)."""
    ### BEGIN SOLUTION
    N = len(gradients)
    apart = gradients - gradients.mean(axis=0)
    off = np.sum(apart**2) / N / size
    return off if replace else off * (N - size) / (N - 1)
    ### END SOLUTION


# %% check="11-draws"
def by_ways(gradients, size, replace):
    """As it stands above."""
    ways = product(gradients, repeat=size) if replace else combinations(gradients, size)
    return np.mean([np.sum((np.mean(way, axis=0) - gradients.mean(axis=0)) ** 2) for way in ways])


def check_draws(gradients, size, replace, few=True):
    N, right = len(gradients), mg.batch_noise(gradients, size, replace)
    expected = by_ways(gradients, size, replace) if few else right
    with_it = mg.batch_noise(gradients, size, True)
    also = {
        "b squared": (
            right / size,
            "it is divided by the size twice: the mean square falls as 1/b, the distance as one "
            "over its root",
        ),
        "root": (right**0.5, "this is the root: the mean square is asked for"),
        "one weight": (
            right / gradients.shape[1],
            "this is the mean over the numbers of a gradient; |g|^2 is their sum",
        ),
        "not divided": (right * size, "this is as much as one sample is off, not the mean of some"),
        "N - 1 in S": (
            right * N / (N - 1),
            "the noise S is divided by N - 1; these N samples are all there are: divide by N",
        ),
    }
    if replace:
        also["swapped"] = (
            mg.batch_noise(gradients, size, False),
            "this is the law for draws without replacement, where it is asked for those with it",
        )
    else:
        also["replaced"] = (
            with_it,
            "without replacement it is the same as with it: but what was drawn is gone, and "
            "of all samples nothing is left to chance",
        )
        also["N for N - 1"] = (
            with_it * (N - size) / N,
            "the factor is (N - b)/N; two different draws are correlated by -1/(N - 1), which "
            "makes it (N - b)/(N - 1)",
        )
    kind = "with replacement" if replace else "without"
    check(expected, mean_square_off(gradients, size, replace), f"{size} of {N}, {kind}", also=also)


forbid(mean_square_off, "batch_noise", "combinations", "product", "by_ways", "random")
table2 = np.array(gradients, float)
check_draws(table2, size, True)
check_draws(table2, size, False)
check_draws(table2, len(table2), False)

# %% test="11-draws" points=2
### BEGIN HIDDEN TESTS
many = np.random.default_rng(9).standard_normal((1000, 7)) + 1
grade(
    2,
    lambda: forbid(mean_square_off, "batch_noise", "combinations", "product", "by_ways", "random"),
    lambda: check_draws(table2, size, True),
    lambda: check_draws(table2, 1, True),
    lambda: check_draws(many, 30, True, few=False),
    lambda: check_draws(table2, size, False),
    lambda: check_draws(table2, len(table2), False),
    lambda: check_draws(many, 30, False, few=False),
    partial={"replaced": 1, "N for N - 1": 1},
)
### END HIDDEN TESTS


# %% wrong="replaced" of="11-draws" earns=1 because="what was drawn is gone"
def mean_square_off(gradients, size, replace):
    apart = gradients - gradients.mean(axis=0)
    return np.sum(apart**2) / len(gradients) / size


# %% wrong="N for N - 1" of="11-draws" earns=1 because="makes it (N - b)/(N - 1)"
def mean_square_off(gradients, size, replace):
    N = len(gradients)
    off = np.sum((gradients - gradients.mean(axis=0)) ** 2) / N / size
    return off if replace else off * (1 - size / N)


# %% wrong="swapped" of="11-draws" earns=0 because="the law for draws without replacement"
def mean_square_off(gradients, size, replace):
    N = len(gradients)
    off = np.sum((gradients - gradients.mean(axis=0)) ** 2) / N / size
    return off * (N - size) / (N - 1) if replace else off


# %% wrong="b squared" of="11-draws" earns=0 because="divided by the size twice"
def mean_square_off(gradients, size, replace):
    N = len(gradients)
    off = np.sum((gradients - gradients.mean(axis=0)) ** 2) / N / size**2
    return off if replace else off * (N - size) / (N - 1)


# %% [markdown]
# ## 3. Write: the noise scale from windows (3 points)
#
# A window has $k$ micro-batches of $b$ samples, and you are given their *mean* gradients. What they
# tell of the signal $|G|^2$ and of the noise $S$ of one sample:
#
# ```
# for each window:
#     parts = the mean over its micro-batches of |g_j|^2        on average  |G|^2 + S / b
#     whole = |mean gradient of the whole window|^2             on average  |G|^2 + S / (k b)
#     solve these two equations for the window's signal and its noise
# signal = the mean of the windows' signals
# noise  = the mean of the windows' noises
# scale  = noise / signal
# ```
#
# The picture is one window with the gradients {{g1}} and {{g2}} of one weight, $b$ = {{b}}. Both
# equations times the samples are a line: it meets the axis at the noise, its slope is the signal.

# %%
heights = np.array([b * (g1**2 + g2**2) / 2, b * (g1 + g2) ** 2 / 2])
figure, panel = plotting.subplots(1, 1, height=2.8)
panel.plot([b, 2 * b], heights, "o-", ms=7, color=plotting.BLUE)
panel.plot([0, b], [2 * heights[0] - heights[1], heights[0]], "--", color=plotting.BLUE)
axis, place = (0, 2 * heights[0] - heights[1]), (0.15 * b, heights.max())
panel.annotate("noise = ?", axis, place, arrowprops={"arrowstyle": "->"})
middle = (1.5 * b, heights.mean())
panel.annotate("slope = signal = ?", middle, (10, -16), textcoords="offset points")
panel.set_xlim(0, 2.2 * b)
panel.set_ylim(0, 1.2 * heights.max())
panel.set_xticks([0, b, 2 * b], ["0", f"b = {b}", f"kb = {2 * b}"])
panel.set_yticks([])
panel.set_xlabel("samples")
panel.set_ylabel("samples times |gradient|²")
plotting.show(
    figure,
    "11-exercise-line",
    f"A line through two points: at b = {b}, samples times the mean |gradient|² of the "
    f"micro-batches; at kb = {2 * b}, samples times |gradient|² of the window.",
)


# %% answer="11-parts"
def noise_of_windows(windows, b):
    """(signal, noise, scale) of some windows, three numbers.

    windows: an array (n, k, p), of each of n windows the mean gradients of its k micro-batches of b
    samples each. Use plain NumPy.
    """
    ### BEGIN SOLUTION
    parts = np.sum(windows**2, axis=2).mean(axis=1)
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    B = windows.shape[1] * b
    noise = (parts - whole) / (1 / b - 1 / B)
    signal = whole - noise / B
    return signal.mean(), noise.mean(), noise.mean() / signal.mean()
    ### END SOLUTION


# %% check="11-parts"
LIBRARY = "from_parts", "from_sums", "NoiseMeter", "GradientNoise", "accumulate", "train_step"


def estimates(windows, b, whole_of=lambda g: g.mean(axis=0), sizes=lambda k, b: [b] * k):
    """The library's estimate of each window: (n, 2)."""
    rows = []
    for g in windows:
        squares, whole = np.sum(g**2, axis=1), np.sum(whole_of(g) ** 2)
        rows.append(mg.noise.from_parts(squares, sizes(len(g), b), whole))
    return np.array(rows, float)


def summary(rows):
    signal, noise = rows.mean(axis=0)
    return np.array([signal, noise, noise / signal])


def check_windows(windows, b, name):
    windows = np.array(windows, float)
    rows = estimates(windows, b)
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    biased = np.stack([whole, rows[:, 1]], axis=1)
    of_b = np.stack([whole - rows[:, 1] / b, rows[:, 1]], axis=1)
    also = {
        "sum for mean": (
            summary(estimates(windows, b, lambda g: g.sum(axis=0))),
            "the sum of the micro-batches' gradients is taken for the window's mean gradient",
        ),
        "counted in micro-batches": (
            summary(estimates(windows, b, sizes=lambda k, b: [1] * k)),
            "the noise is that of a micro-batch: count in samples, b and k b, not 1 and k",
        ),
        "biased": (
            summary(biased),
            "the signal is too large: |g|^2 of the window holds S / (k b) too; take it away",
        ),
        "b for B": (
            summary(of_b),
            "S / b is taken away from the window's |g|^2; in the window's mean are k b samples",
        ),
    }
    right = summary(rows)
    k, smaller = windows.shape[1], rows[:, 1] * (1 - 1 / windows.shape[1])
    also["k for k - 1"] = (
        summary(np.stack([whole - smaller / (k * b), smaller], axis=1)),
        "the noise is (k - 1)/k of what it should be: the difference of the two equations is "
        "S / b - S / (k b), not S / b",
    )
    also["upside down"] = (
        [*right[:2], right[0] / right[1]],
        "the scale is upside down: it is the noise divided by the signal",
    )
    also["order"] = ([right[1], right[0], right[2]], "signal comes first, then the noise")
    also["sign"] = (
        [2 * whole.mean() - right[0], -right[1], -right[1] / (2 * whole.mean() - right[0])],
        "the noise has the wrong sign: the mean over the micro-batches is the larger one",
    )
    if len(windows) > 1:
        also["sums over windows"] = (
            [*(len(windows) * right[:2]), right[2]],
            "signal and noise are added up over the windows: their means are asked for",
        )
    ratios = np.mean(rows[:, 1] / rows[:, 0])
    if len(windows) > 1:
        also["mean of ratios"] = (
            [*right[:2], ratios],
            "the ratios of the windows are averaged: average signal and noise first, then divide",
        )
    check(right, noise_of_windows(windows, b), name, also=also)


def drawn_windows(n, k, p, b, seed):
    """Windows of normal gradients around 1, of one sample's noise 9 in each of p weights."""
    rng = np.random.default_rng(seed)
    return 1 + 3 * rng.standard_normal((n, k, b, p)).mean(axis=2)


forbid(noise_of_windows, *LIBRARY)
check_windows([[[g1], [g2]]], b, "the window of the picture")
check_windows(drawn_windows(5, 4, 3, 2, seed), 2, "five windows of four micro-batches")

# %% test="11-parts" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(noise_of_windows, *LIBRARY),
    lambda: check_windows([[[g1], [g2]]], b, "the window of the picture"),
    lambda: check_windows([[[2, 0], [1, 1], [4, 2]]], 5, "three micro-batches"),
    lambda: check_windows(drawn_windows(5, 4, 3, 2, seed), 2, "five windows"),
    lambda: check_windows(drawn_windows(40, 2, 6, 1, seed + 1), 1, "micro-batches of one"),
    partial={"sum for mean": 1, "counted in micro-batches": 1, "b for B": 1, "mean of ratios": 2},
)
### END HIDDEN TESTS


# %% wrong="sum for mean" of="11-parts" earns=1 because="is taken for the window's mean"
def noise_of_windows(windows, b):
    parts = np.sum(windows**2, axis=2).mean(axis=1)
    whole = np.sum(windows.sum(axis=1) ** 2, axis=1)
    B = windows.shape[1] * b
    noise = ((parts - whole) / (1 / b - 1 / B)).mean()
    signal = whole.mean() - noise / B
    return signal, noise, noise / signal


# %% wrong="mean of ratios" of="11-parts" earns=2 because="then divide"
def noise_of_windows(windows, b):
    parts = np.sum(windows**2, axis=2).mean(axis=1)
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    B = windows.shape[1] * b
    noise = (parts - whole) / (1 / b - 1 / B)
    signal = whole - noise / B
    return signal.mean(), noise.mean(), np.mean(noise / signal)


# %% wrong="k for k - 1" of="11-parts" earns=0 because="not S / b"
def noise_of_windows(windows, b):
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    noise = b * windows.var(axis=1).sum(axis=1)
    signal = (whole - noise / (windows.shape[1] * b)).mean()
    return signal, noise.mean(), noise.mean() / signal


# %% wrong="b for B" of="11-parts" earns=1 because="in the window's mean are k b samples"
def noise_of_windows(windows, b):
    parts = np.sum(windows**2, axis=2).mean(axis=1)
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    noise = (parts - whole) / (1 / b - 1 / (windows.shape[1] * b))
    signal = (whole - noise / b).mean()
    return signal, noise.mean(), noise.mean() / signal


# %% wrong="biased" of="11-parts" earns=0 because="the signal is too large"
def noise_of_windows(windows, b):
    parts = np.sum(windows**2, axis=2).mean(axis=1)
    whole = np.sum(windows.mean(axis=1) ** 2, axis=1)
    noise = ((parts - whole) / (1 / b - 1 / (windows.shape[1] * b))).mean()
    return whole.mean(), noise, noise / whole.mean()


# %% [markdown]
# ## 4. Find the fault (1 point), and mend it (2 points)
#
# A training loop that reports signal, noise and noise scale of its run. Its micro-batches have
# {{b4}} samples; a window has two or three of them, but the last window holds what is left of the
# data: one. That one has no two sizes in it and is to say nothing. After the measurement the
# gradient is clipped to the norm 1, and the weights move. The toy is that of the lesson: the
# gradient of a sample is the sample.
#
# It runs, the numbers look like numbers, and something is wrong with them.


# %%
class Toy(mg.Module):
    """outputs = x w: the gradient of a sample is the sample itself."""

    def __init__(self):
        self.w = mg.parameter(np.zeros(2), np.float64)

    def forward(self, x):
        return x @ self.w


def summed(toy, x):
    """The sum of the losses of some samples: a loss is the output."""
    return toy(np.array(x, float)).sum()


# %% when="fault == 'A'"
def measured(windows):
    """(signal, noise, scale). windows: for each update its micro-batches, arrays (b, 2)."""
    toy, signals, noises = Toy(), [], []
    sgd = mg.SGD(toy.parameters(), lr=0.1)
    for parts in windows:
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad.copy()
        b, B = len(parts[0]), sum(len(x) for x in parts)
        whole = np.sum(toy.w.grad**2)
        if len(parts) > 1:
            noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
            signals.append(whole - noises[-1] / B)
        toy.w.grad /= B
        mg.clip_grad_norm([toy.w], 1.0)
        sgd.step()
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% when="fault == 'B'"
def measured(windows):
    """(signal, noise, scale). windows: for each update its micro-batches, arrays (b, 2)."""
    toy, signals, noises = Toy(), [], []
    sgd = mg.SGD(toy.parameters(), lr=0.1)
    for parts in windows:
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad.copy()
        b, B = len(parts[0]), sum(len(x) for x in parts)
        toy.w.grad /= B
        mg.clip_grad_norm([toy.w], 1.0)
        whole = np.sum(toy.w.grad**2)
        if len(parts) > 1:
            noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
            signals.append(whole - noises[-1] / B)
        sgd.step()
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% when="fault == 'C'"
def measured(windows):
    """(signal, noise, scale). windows: for each update its micro-batches, arrays (b, 2)."""
    toy, signals, noises = Toy(), [], []
    sgd = mg.SGD(toy.parameters(), lr=0.1)
    for parts in windows:
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad.copy()
        b, B = len(parts[0]), sum(len(x) for x in parts)
        toy.w.grad /= B
        whole = np.sum(toy.w.grad**2)
        if len(parts) > 1:
            noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
            signals.append(whole - noises[-1] / B)
        mg.clip_grad_norm([toy.w], 1.0)
        sgd.step()
    scale = np.mean(np.divide(noises, signals))
    return np.array([np.mean(signals), np.mean(noises), scale])


# %% when="fault == 'D'"
def measured(windows):
    """(signal, noise, scale). windows: for each update its micro-batches, arrays (b, 2)."""
    toy, signals, noises = Toy(), [], []
    sgd = mg.SGD(toy.parameters(), lr=0.1)
    for parts in windows:
        toy.zero_grad()
        squares = []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum(toy.w.grad**2) / len(x) ** 2)
        b, B = len(parts[0]), sum(len(x) for x in parts)
        toy.w.grad /= B
        whole = np.sum(toy.w.grad**2)
        if len(parts) > 1:
            noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
            signals.append(whole - noises[-1] / B)
        mg.clip_grad_norm([toy.w], 1.0)
        sgd.step()
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% when="fault == 'E'"
def measured(windows):
    """(signal, noise, scale). windows: for each update its micro-batches, arrays (b, 2)."""
    toy, signals, noises = Toy(), [], []
    sgd = mg.SGD(toy.parameters(), lr=0.1)
    for parts in windows:
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad.copy()
        b, B = len(parts[0]), sum(len(x) for x in parts)
        toy.w.grad /= B
        whole = np.sum(toy.w.grad**2)
        apart = 1 / b - 1 / B
        noises.append((np.mean(squares) - whole) / apart if apart else 0.0)
        signals.append(whole - noises[-1] / B)
        mg.clip_grad_norm([toy.w], 1.0)
        sgd.step()
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% [markdown]
# What minigrad says of each window, and what the loop makes of all.


# %%
def of_minigrad(windows):
    """The noise of each window that has one, by mg.accumulate: (n, 2)."""
    rows = []
    for parts in windows:
        x = np.concatenate([np.array(part, float) for part in parts])
        if len(parts) > 1:
            loss = lambda outputs, _: mg.per_sample(outputs)  # noqa: E731
            rows.append(mg.accumulate(Toy(), loss, (x, x), len(parts[0]), noise="parts").noise)
    return np.array(rows, float)


print("window   micro-batches   signal    noise    scale")
for i, (parts, row) in enumerate(zip(windows, of_minigrad(windows)), 1):
    print(f"{i:6} {len(parts):15} {row[0]:8.3f} {row[1]:8.3f} {row[1] / row[0]:8.3f}")
print(f"{len(windows):6} {1:15}     it says nothing")
for name, row in (("right", summary(of_minigrad(windows))), ("the loop", measured(windows))):
    print(f"{name:22} {row[0]:8.3f} {row[1]:8.3f} {row[2]:8.3f}")
choices = ["sum for mean", "clipped", "mean of ratios", "running sum", "one part"]

# %% [markdown]
# Which fault is it?
#
# - `"sum for mean"`: the window's gradient is still a sum when its length is taken;
# - `"clipped"`: the window's gradient is clipped already when its length is taken;
# - `"mean of ratios"`: the ratios of the windows are averaged;
# - `"running sum"`: what has added up so far is taken for the gradient of one micro-batch;
# - `"one part"`: the window of one micro-batch is counted, with the noise 0.

# %% answer="11-name"
# Assign one of the five `choices` to `fault_found`.
### BEGIN SOLUTION
fault_found = dict(zip("ABCDE", choices))[fault]
### END SOLUTION

# %% check="11-name"
predicted(fault_found, among=choices)

# %% test="11-name" points=1
### BEGIN HIDDEN TESTS
planted = dict(zip("ABCDE", choices))[fault]
because = {
    "sum for mean": "not it: a sum makes the window's |g|^2 larger by B squared, and the noise "
    "negative; is the noise negative here?",
    "clipped": "not it: a clipped gradient has the length 1 at most, so the signal comes out below "
    "1; look at the signal, and at where clip_grad_norm stands",
    "mean of ratios": "not it: averaged ratios leave signal and noise as they should be; compare "
    "these two with the right ones",
    "running sum": "not it: running sums grow, and the noise comes out far too large; which "
    "number is added to squares here?",
    "one part": "not it: one window more with the noise 0 makes the mean noise smaller, by the "
    "number of windows; compare the noises",
}
others = {name: because[name] for name in because if name != planted}
grade(1, lambda: chosen(planted, fault_found, others))
### END HIDDEN TESTS

# %% wrong="another" of="11-name" earns=0 because="is the noise negative" when="fault != 'A'"
fault_found = "sum for mean"

# %% wrong="ratios" of="11-name" earns=0 because="compare these two" when="fault != 'C'"
fault_found = "mean of ratios"

# %% [markdown]
# Write the measurement as it should be. (It need not move the weights.)


# %% answer="11-mend"
def mended(windows):
    """(signal, noise, scale), as an array (3,), from windows of micro-batches, arrays (b, 2).

    The gradients are those that `summed(toy, x).backward()` adds to toy.w.grad; micro-batches of a
    window have the same size, windows of one micro-batch say nothing.
    """
    ### BEGIN SOLUTION
    toy, signals, noises = Toy(), [], []
    for parts in windows:
        if len(parts) < 2:
            continue
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad.copy()
        b, B = len(parts[0]), sum(len(x) for x in parts)
        whole = np.sum((toy.w.grad / B) ** 2)
        noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
        signals.append(whole - noises[-1] / B)
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])
    ### END SOLUTION


# %% check="11-mend"
def with_fault(windows, name):
    """What signal, noise and scale come out as, with one of the faults."""
    rows = []
    for parts in windows:
        sums = np.array([np.sum(part, axis=0) for part in parts], float)
        sizes, whole = [len(part) for part in parts], np.sum(sums, axis=0)
        counted = np.cumsum(sums, axis=0) if name == "running sum" else sums
        square = np.sum((whole / sum(sizes)) ** 2)
        if name == "sum for mean":
            square = np.sum(whole**2)
        if name == "clipped":
            square = min(square, 1.0)
        squares = [np.sum((g / n) ** 2) for g, n in zip(counted, sizes)]
        if name == "no copy":
            squares[1:] = [0.0] * (len(parts) - 1)
        if name == "divided once":
            squares = [one * n for one, n in zip(squares, sizes)]
        if len(parts) > 1:
            rows.append(mg.noise.from_parts(squares, sizes, square))
        elif name == "one part":
            rows.append((square, 0.0))
    return summary(np.array(rows, float))


def check_mended(windows, name):
    rows = of_minigrad(windows)
    right = summary(rows)
    sentences = {
        "sum for mean": "the window's gradient is still a sum: divide by the samples first",
        "clipped": "the window's gradient is clipped before its length is taken",
        "running sum": "what has added up so far is taken for one micro-batch: subtract what was "
        "there before",
        "one part": "a window of one micro-batch is counted, with the noise 0: leave it out",
        "no copy": "what was there before is the same array as .grad, which goes on growing, so "
        "that nothing is left of their difference: keep a copy",
        "divided once": "the sum of a micro-batch is divided by b, its square by b squared",
    }
    also = {fault: (with_fault(windows, fault), said) for fault, said in sentences.items()}
    also["mean of ratios"] = (
        [*right[:2], np.mean(rows[:, 1] / rows[:, 0])],
        "the ratios of the windows are averaged: average signal and noise, then divide",
    )
    check(right, mended(windows), name, also=also)


REFUSED = (*LIBRARY, "measured", "of_minigrad", "with_fault", "noise_of_windows", "estimates")
forbid(mended, *REFUSED)
check_mended(windows, "signal, noise and scale")

# %% test="11-mend" points=2
### BEGIN HIDDEN TESTS
rng = np.random.default_rng(11)
more = [rng.normal([2, -1], 1, (k, n, 2)) for k, n in ((4, 3), (1, 3), (2, 5), (6, 1))]
grade(
    2,
    lambda: forbid(mended, *REFUSED),
    lambda: check_mended(windows, "signal, noise and scale"),
    lambda: check_mended(windows[-2:], "two windows"),
    lambda: check_mended(more, "other windows"),
    partial={"mean of ratios": 1, "one part": 1},
)
### END HIDDEN TESTS


# %% wrong="sum for mean" of="11-mend" earns=0 because="divide by the samples first"
def mended(windows):
    signals, noises = [], []
    for parts in windows:
        if len(parts) < 2:
            continue
        sums = np.array([np.sum(x, axis=0) for x in parts], float)
        b, B = len(parts[0]), sum(len(x) for x in parts)
        whole = np.sum(sums.sum(axis=0) ** 2)
        noises.append((np.sum(sums**2) / len(parts) / b**2 - whole) / (1 / b - 1 / B))
        signals.append(whole - noises[-1] / B)
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% wrong="no copy" of="11-mend" earns=0 because="keep a copy"
def mended(windows):
    toy, signals, noises = Toy(), [], []
    for parts in windows:
        if len(parts) < 2:
            continue
        toy.zero_grad()
        before, squares = 0, []
        for x in parts:
            summed(toy, x).backward()
            squares.append(np.sum((toy.w.grad - before) ** 2) / len(x) ** 2)
            before = toy.w.grad
        b, B = len(parts[0]), sum(len(x) for x in parts)
        whole = np.sum((toy.w.grad / B) ** 2)
        noises.append((np.mean(squares) - whole) / (1 / b - 1 / B))
        signals.append(whole - noises[-1] / B)
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% wrong="one part" of="11-mend" earns=1 because="leave it out"
def mended(windows):
    signals, noises = [], []
    for parts in windows:
        sums = np.array([np.sum(x, axis=0) for x in parts], float)
        b, B = len(parts[0]), sum(len(x) for x in parts)
        whole = np.sum((sums.sum(axis=0) / B) ** 2)
        apart = 1 / b - 1 / B
        square = np.sum(sums**2) / len(parts) / b**2
        noises.append((square - whole) / apart if apart else 0.0)
        signals.append(whole - noises[-1] / B)
    signal, noise = np.mean(signals), np.mean(noises)
    return np.array([signal, noise, noise / signal])


# %% wrong="mean of ratios" of="11-mend" earns=1 because="then divide"
def mended(windows):
    signals, noises = [], []
    for parts in windows:
        if len(parts) > 1:
            sums = np.array([np.sum(x, axis=0) for x in parts], float)
            b, B = len(parts[0]), sum(len(x) for x in parts)
            whole = np.sum((sums.sum(axis=0) / B) ** 2)
            square = np.sum(sums**2) / len(parts) / b**2
            noises.append((square - whole) / (1 / b - 1 / B))
            signals.append(whole - noises[-1] / B)
    return np.array([np.mean(signals), np.mean(noises), np.mean(np.divide(noises, signals))])


# %% [markdown]
# ## 5. In your own words (2 points, given by a person)
#
# A team trains on one GPU, with 8 micro-batches of 64. In the first hundred updates it measured a
# noise scale of 500, which is about its batch of 512, and concluded: "Our batch is the critical
# one, for the whole run. If we accumulate 64 micro-batches in place of 8, the gradient has eight
# times less error, so we need eight times fewer updates, and are done sooner."
#
# Say in four or five sentences what is wrong with each of these conclusions, and put numbers to
# the last two, by the model of the lesson, for a noise scale of 500 and batches of 512 and 4096.
#
# Four conclusions: the batch for the whole run, the error, the updates, the time. *2 points:* all
# four are judged rightly, with the reason, and the last two with numbers. *1 point:* two or three
# of them. *0 points:* otherwise.

# %% [markdown] manual="11-why" points=2
# The noise scale belongs to this net at these updates: the signal falls while the net learns, and
# the scale grows, so it has to be measured on the way. Eight times the batch divides the *square*
# of the error by eight, the error by less than three. By the model a batch of 512 at a scale of 500
# needs 1 + 500/512, about 2 times the fewest updates, and one of 4096 needs 1 + 500/4096, about 1.1
# times: fewer by the factor 1.8, not 8. The samples rise from 1 + 512/500, about 2, to
# 1 + 4096/500, about 9 times the fewest. On one GPU the micro-batches come one after the other, so
# the run would take about four and a half times as long.
