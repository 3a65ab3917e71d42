# %% [markdown]
# # 07 · Why are k micro-batches not one batch for BatchNorm?
#
# **You will be able to**
#
# 1. compute by hand what BatchNorm gives for a batch, and what for its micro-batches: outputs,
#    gradients and running statistics;
# 2. predict how the error of the gradient depends on $b$, and say why no $k$ mends it;
# 3. say of each repair that people use what it makes equal, and what it does not.
#
# **Needs:** lessons [04](04_accumulation.ipynb) (the theorem and its conditions) and
# [06](06_once_per_update.ipynb) (mean and variance: [a page of background](before.md)).
# **Reading:** 45 minutes; **exercises:** 45 minutes
# ([07_batchnorm_diverges](exercises/07_batchnorm_diverges.ipynb)). **Code:**
# [`minigrad/batchnorm.py`](../minigrad/batchnorm.py),
# [`minigrad/normalization.py`](../minigrad/normalization.py).

# %% [markdown]
# ## What it computes
#
# The output of a layer is an array with a row for each of $N$ samples. A column of it is a
# **channel**: one number that the layer computes, for all samples. BatchNorm *standardizes* each
# channel over the batch: it subtracts the mean and divides by the standard deviation,
#
# $$\mu = \frac1N \sum_i x_i, \qquad v = \frac1N \sum_i (x_i - \mu)^2, \qquad
# \hat x_i = \frac{x_i - \mu}{\sqrt{v + \varepsilon}}, \qquad y_i = \gamma \hat x_i + \beta .$$
#
# ($\mu$ was a momentum and $v$ a velocity in lesson 03; here they are the mean and the variance.)
# $\gamma$ and $\beta$ are learnt, one of each a channel: in the code `weight`, which begins at 1,
# and `bias`, which begins at 0. $\varepsilon$ is tiny, so that nothing is divided by 0; in this
# lesson it is 0 where that makes numbers simpler. $\mu$ and $v$ are the **statistics** of the
# batch. When the trained net is used, an answer must not depend on who else asks: then *running
# statistics*, averages that training has kept, take their place.
#
# **Before you run the next cell:** one channel, four samples, 0, 2, 10, 12. What are $\mu$, $v$ and
# the four outputs? Now memory allows two samples at a time: 0, 2 and then 10, 12. What comes out?

# %%
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.data import digits
from minigrad.reading import show_source

x4 = np.array([[0.0], [2.0], [10.0], [12.0]])  # change the 10 and the 12 to 100 and 102


def standardized(x):
    """Each column, with the statistics of these rows: what BatchNorm computes, with eps = 0."""
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0))


norm = mg.BatchNorm(1, eps=0.0, dtype=np.float64)  # called by itself: the rows that it is given
whole = norm(x4).data
cut = np.concatenate([norm(x4[:2]).data, norm(x4[2:]).data])
for by_minigrad, rows in ((whole, [x4]), (cut, [x4[:2], x4[2:]])):
    by_hand = np.concatenate([standardized(part) for part in rows])
    assert np.allclose(by_minigrad, by_hand, rtol=1e-14, atol=0)  # rounding

print(f"mean {x4.mean():g}, variance {x4.var():g}")
print("input:            ", *(f"{value:7g}" for value in x4[:, 0]))
print("one batch:        ", *(f"{value:7.4f}" for value in whole[:, 0]))
print("two micro-batches:", *(f"{value:7.4f}" for value in cut[:, 0]))
assert np.allclose(whole * np.sqrt(x4.var()), x4 - x4.mean(), rtol=1e-14)
assert cut[:, 0].tolist() == [-1, 1, -1, 1]  # exact, whatever the numbers were
assert x4[1] < x4[2]
assert whole[1] < whole[2]
assert cut[1] > cut[2]  # the order of the second and the third sample has turned round

# %% [markdown]
# Already the outputs differ, before any gradient: `2` and `12` have become the same number, and `2`
# is now more than `10`. How far the two micro-batches are apart is lost. (Change the 10 and the 12
# to 100 and 102: which row of outputs does not move at all?)
#
# ## Why anyone wants it
#
# Whatever a channel is multiplied by (above 0) and shifted by, standardizing takes it away again.
# So a layer with a BatchNorm behind it
#
# - needs no bias: its gradient is 0 (see below why it is better left out);
# - can have weights of any scale: those $a$ times as large give the same output, and have a
#   gradient $1/a$ times as large, since a step must be $a$ times as long to have the same effect.
#
# In a deep net without it each layer multiplies the scale. **Before you run the next cell:** a net
# of four hidden layers and a last one, with ReLUs between them, starts with weights a quarter as
# large as they should be, in all five layers. How much smaller are its logits? Will it learn, with
# BatchNorm behind each hidden layer, and without? And with weights four times too large?

# %%
(x_train, y_train), _ = digits(np.float64)


def gradient(model):
    """All gradients of the model, side by side in one array."""
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


def gap(found, expected):
    """How far apart two gradients are, as a share of the expected one."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def deep(norm, scale, hidden=4):
    """A net of four hidden layers, whose weights are `scale` times the usual ones."""
    rng = np.random.default_rng(0)
    layers, sizes = [], [64, *[24] * hidden]
    for inputs, outputs in pairwise(sizes):
        layers.append(mg.Linear(inputs, outputs, rng=rng, dtype=np.float64))
        layers += [] if norm is None else [norm(outputs, dtype=np.float64)]
        layers.append(mg.ReLU())
    net = mg.Sequential(*layers, mg.Linear(24, 10, rng=rng, dtype=np.float64))
    for layer in net.layers:
        if isinstance(layer, mg.Linear):
            layer.weight.data *= scale
    return net


def biases_after_one_update(b, lr=0.01):
    """In float32 with Adam: the biases of a Linear that stands directly before a BatchNorm."""
    rng, (x, y) = np.random.default_rng(0), first
    linear, last = mg.Linear(64, 24, rng=rng), mg.Linear(24, 10, rng=rng)
    net = mg.Sequential(linear, mg.BatchNorm(24), mg.ReLU(), last)
    adam = mg.Adam(net.parameters(), lr=lr)
    mg.train_step(net, mg.cross_entropy, adam, (x.astype(np.float32), y), b, reduction="sum")
    return linear.bias.data


first = x_train[:128], y_train[:128]
net, larger = deep(mg.BatchNorm, 1), deep(mg.BatchNorm, 4)
for one in (net, larger):
    for layer in one.layers[1::3]:  # the layers are Linear, BatchNorm, ReLU, and so on
        layer.eps = 0.0
    mg.accumulate(one, mg.cross_entropy, first, 128)
assert np.linalg.norm(net.layers[0].bias.grad) < 1e-12 < np.linalg.norm(net.layers[0].weight.grad)
larger.layers[-1].weight.data /= 4  # the last layer has no BatchNorm behind it
mg.accumulate(larger, mg.cross_entropy, first, 128)
assert gap(4 * larger.layers[0].weight.grad, net.layers[0].weight.grad) < 1e-12
print("a bias before BatchNorm: gradient 0 (< 1e-12); weights 4 times as large: gradient 1/4")
moved = [biases_after_one_update(b, lr=0.01) for b in (128, 16)]  # all of them began at 0
assert np.allclose(np.abs(moved).max(axis=1), 0.01, rtol=0.1)
assert np.abs(moved[0] - moved[1]).max() > 0.003
print("such biases in float32, after one update by Adam with lr 0.01: rounding has moved the")
print("farthest by 0.01, and in micro-batches of 16 to other places than in one batch")

final, nets = {}, {}
print("\nloss after 40 updates    weights / 4   as usual   times 4")
for name, norm in {"without BatchNorm": None, "with BatchNorm": mg.BatchNorm}.items():
    for scale in (1 / 4, 1, 4):
        net = deep(norm, scale)
        optimizer = mg.SGD(net.parameters(), lr=0.1)
        for update in range(40):
            rows = slice(128 * update % 1536, 128 * update % 1536 + 128)
            batch = x_train[rows], y_train[rows]
            report = mg.train_step(net, mg.cross_entropy, optimizer, batch, 128)
        final[name, scale], nets[name, scale] = report.loss, net
    print(f"{name:20}", *(f"{final[name, scale]:12.2f}" for scale in (1 / 4, 1, 4)))

plain, normed = (
    [final[name, scale] for scale in (1 / 4, 1, 4)]
    for name in ("without BatchNorm", "with BatchNorm")
)
faint, usual, loud = (deep(None, scale)(x_train[:9]).data for scale in (1 / 4, 1, 4))
assert np.array_equal(faint, usual / 4**5)  # exact: a power of 2, and biases start at 0
assert np.array_equal(loud, usual * 4**5)
hidden = x_train
for layer in nets["without BatchNorm", 4].layers[:-1]:
    hidden = layer(hidden)
assert not hidden.data.any()  # at the end its last ReLUs are 0 for every sample
assert min(plain[0], plain[2]) > np.log(10) - 0.1  # log 10: nothing learnt
assert max(normed) < np.log(10) - 0.6
assert normed == sorted(normed)  # the smaller the weights, the larger their gradient

# %% [markdown]
# Five layers at a quarter of the scale leave $1/4^5$ of the logits: too little to learn from. At
# four times the scale the logits are $4^5$ times as large, and so are the first steps: they throw
# the weights so far that in the end the ReLUs are 0 for every sample. No gradient passes them, and
# a last bias alone can do no better than log 10. With BatchNorm all three nets learn, the one with
# the smaller weights sooner, since its gradient is larger. That much is certain; what else it does
# for the training of deep nets, and why, is still discussed (Santurkar et al. 2018).
#
# Why leave out a bias whose gradient is 0? Because in floats it is 0 but for rounding, and Adam
# divides a gradient by its own size: it makes of rounding a step of full length (second and third
# line). No output in training sees it; but two runs that should be equal to rounding then have
# biases, and running means, that are not.
#
# ## Not a sum over samples
#
# Lesson 04 named five conditions under which micro-batches are one batch. The third was *alone*:
# the loss of sample $i$ looks at sample $i$ only. Here $\mu$ and $v$ contain all samples, and so
# every output depends on every input. Let $s = \sqrt{v}$ be the standard deviation (the
# *deviation*, for short), $n$ the number of rows, and $[i = j]$ be 1 if $i = j$ and 0 if not. At
# $\varepsilon = 0$,
#
# $$\frac{\partial \hat x_i}{\partial x_j} =
# \frac1s \Big( [i = j] - \frac1n - \frac{\hat x_i \hat x_j}{n} \Big).$$
#
# *Derivation, which may be skipped.* $\partial \mu / \partial x_j = 1/n$, and
# $\partial v / \partial x_j = \frac2n (x_j - \mu)$, since what $\mu$ adds to it,
# $-\frac2n \sum_i (x_i - \mu)\, \frac1n$, is 0. So
# $\partial s / \partial x_j = \frac{1}{2s} \frac2n (x_j - \mu) = \hat x_j / n$, and the
# derivative of $(x_i - \mu)/s$ is
# $\frac1s([i = j] - \frac1n) - \frac{x_i - \mu}{s^2} \frac{\hat x_j}{n}$. ∎
#
# Neither a shift of all inputs nor a stretch is seen in the output: the matrix of these derivatives
# times $(1, \dots, 1)$ is 0, and so is the matrix times $\hat x$. Of the $n$ directions in which
# the inputs can move, $n - 2$ are left that move an output (the *rank* of the matrix).
#
# **Before you run the next cell:** six samples are cut into 3 and 3, and then into 2, 2 and 2.
# Which of the 36 derivatives are then 0? How many directions are left for $n = 2$?


# %%
def derivatives(x, b):
    """d output i / d input j of one channel x (n,), standardized in micro-batches of b: (n, n)."""
    matrix = np.zeros((len(x), len(x)))
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        for i in range(len(x[part])):
            column = mg.parameter(x[part][:, None])
            norm = mg.BatchNorm(1, eps=0.0, affine=False, dtype=np.float64)  # no weight, no bias
            norm(column)[i, 0].backward()  # outside of a window: the statistics of these rows
            matrix[start + i, part] = column.grad[:, 0]
    return matrix


six = np.array([0.0, 1.0, 3.0, 4.0, 7.0, 9.0])  # change them, but keep two neighbours different
n, s = len(six), six.std()
normal = (six - six.mean()) / s
formula = (np.eye(n) - 1 / n - np.outer(normal, normal) / n) / s
matrices = {b: derivatives(six, b) for b in (6, 3, 2)}
assert np.abs(matrices[6] - formula).max() < 1e-12
for direction in (np.ones(n), normal):
    assert np.abs(matrices[6] @ direction).max() < 1e-12
assert np.linalg.matrix_rank(matrices[6], tol=1e-9) == n - 2
assert np.linalg.matrix_rank(matrices[3], tol=1e-9) == 2 * (3 - 2)
assert np.abs(matrices[2]).max() < 1e-12  # nothing is left

figure, axes = plotting.subplots(1, 3, height=3.1)
largest = max(np.abs(matrix).max() for matrix in matrices.values())
for panel, (b, matrix) in zip(axes, matrices.items()):
    matrix = np.where(np.abs(matrix) < 1e-12, 0, matrix) * s
    panel.imshow(matrix, cmap="RdBu", vmin=-largest * s, vmax=largest * s)
    for (i, j), value in np.ndenumerate(matrix):
        inside = i // b == j // b
        text = f"{value:.2f}".replace("-", "−") if inside and value else "0" if inside else ""
        colour = "white" if abs(value) > 0.6 * largest * s else "black"
        panel.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)
    for edge in range(b, n, b):
        panel.axhline(edge - 0.5, color=plotting.DARK, lw=1)
        panel.axvline(edge - 0.5, color=plotting.DARK, lw=1)
    panel.set_title("one batch of 6" if b == n else f"{n // b} micro-batches of {b}")
    panel.set_xticks(range(n), range(1, n + 1))
    panel.set_yticks(range(n), range(1, n + 1))
    panel.tick_params(length=0)
    panel.grid(False)
    panel.set_xlabel("input of sample")
axes[0].set_ylabel("output of sample")
seen = {b: int((np.abs(matrix) > 1e-9).sum()) for b, matrix in matrices.items()}
plotting.show(
    figure,
    "07-derivatives",
    f"Derivative of each output by each input, times the deviation s = {s:.3g} of all. In one "
    f"batch {seen[6]} of {n * n} are there: each sample sees all. In micro-batches of 3, {seen[3]} "
    f"are left, inside the two blocks; and they are other numbers. In micro-batches of 2, "
    f"{seen[2]}.",
)

# %% [markdown]
# ## What b samples can say
#
# The first three points below come from two sums. For *any* $b$ inputs that are not all equal, at
# $\varepsilon = 0$, $\sum_i \hat x_i = 0$ and $\sum_i \hat x_i^2 = b$. (Of equal inputs the
# formula makes $0/0$. With $\varepsilon > 0$ the second sum is $b\, v/(v + \varepsilon)$: less
# than $b$, and 0 for equal inputs.)
#
# - **No output is larger than** $\sqrt{b - 1}$. *Proof, which may be skipped:* the other $b - 1$
#   outputs sum to $-\hat x_i$. The mean of squares is never below the square of the mean, so their
#   squares sum to $\hat x_i^2/(b-1)$ or more; together with $\hat x_i^2$ this is at most $b$. ∎
# - $b = 2$: two different inputs become $-1$ and $1$, and have no gradient. In the layer's code,
#   where $\varepsilon > 0$, a little is left: $\varepsilon/(v + \varepsilon)^{3/2}$ times half the
#   difference of the two output gradients. ($b$ counts all values of a channel; in a layer for
#   images that is the samples times their pixels.)
# - $b = 1$: the output is $\beta$, whatever the input was. minigrad refuses it.
# - **The variance comes out too small.** If $b$ values are drawn at random, each from all of a set
#   with the variance $s^2$, their variance $v_b$ is on average $E[v_b] = (1 - \frac1b)\, s^2$.
#   About the mean of the set their squared deviations would be $s^2$ on average; about their own
#   mean they are less, by the square of the distance of the two means, on average $s^2/b$.
# - **Where it has gone** (the law of total variance): with parts of $n_j$ samples,
#   $v_N = \sum_j \frac{n_j}{N} \big( v_j + (\mu_j - \mu)^2 \big)$. The mean of the $v_j$ lacks how
#   far the parts' means are apart.
#
# **Before you run the next cell:** one sample in a micro-batch of five is a million, the others are
# 0. What is its output? And what are the two terms of the last point, inside the parts and between
# them, for the first example, 0, 2 and 10, 12, whose variance was 26?

# %%
far = np.zeros((5, 1))
far[0] = 1e6
print(
    f"0, 0, 0, 0 and a million become {standardized(far).min():g} and {standardized(far).max():g}"
)
assert np.isclose(standardized(far).max(), np.sqrt(5 - 1), rtol=1e-14)
for b in range(2, 30):
    any_inputs = standardized(np.random.default_rng(b).standard_normal((b, 50)) ** 3)
    assert np.abs(any_inputs).max() <= np.sqrt(b - 1) * (1 + 1e-14)
    assert np.allclose((any_inputs**2).sum(axis=0), b, rtol=1e-12)

# with the eps of the layer
(p, q), (g_p, g_q), eps = (0.3, 1.7), (1.0, 0.0), 1e-5
squares = (mg.BatchNorm(1, eps=eps, dtype=np.float64)(x4).data ** 2).sum()
assert np.isclose(squares, 4 * x4.var() / (x4.var() + eps), rtol=1e-12)
assert not mg.BatchNorm(1, eps=eps, dtype=np.float64)(np.full((4, 1), 7.0)).data.any()  # equal

# b = 2
pair = mg.parameter([[p], [q]])
mg.BatchNorm(1, eps=eps, dtype=np.float64)(pair).backward(np.array([[g_p], [g_q]]))
left = (g_p - g_q) / 2 * eps / (((p - q) / 2) ** 2 + eps) ** 1.5
assert np.allclose(pair.grad[:, 0], [left, -left], rtol=1e-5)  # rounding: it is a difference
print(f"b = 2: of an output gradient of 1, {left:.3g} arrives at the input")


def refused(norm):
    try:
        norm(x4[:1])
    except ValueError as error:
        return str(error)
    raise AssertionError("it was not refused")


norm = mg.BatchNorm(1, dtype=np.float64)
print("b = 1:", refused(norm))
assert (norm.running_mean, norm.running_var) == (0, 1)  # nothing has moved


def variance(values):
    """The mean squared deviation, exact for Fractions."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


numbers = mg.fractions(x4[:, 0])
print("\n b    draws    mean of their variances")
for b in range(1, 6):
    draws = [variance(draw) for draw in product(numbers, repeat=b)]  # all that can happen
    mean = sum(draws) / len(draws)
    print(f"{b:2} {len(draws):8} {mean!s:>14} = (1 - 1/{b}) times {variance(numbers)}")
    assert mean == (1 - Fraction(1, b)) * variance(numbers)  # exact

for values, sizes in (([0, 2, 10, 12], [2, 2]), ([1, 4, -2, 7, 3, 3, 0, 5], [3, 2, 3])):
    values, ends = mg.fractions(values), np.cumsum([0, *sizes])
    parts = [values[start:end] for start, end in pairwise(ends)]
    shares = [Fraction(len(part), len(values)) for part in parts]
    within = sum(share * variance(part) for share, part in zip(shares, parts))
    between = sum(share * (part.mean() - values.mean()) ** 2 for share, part in zip(shares, parts))
    print(f"parts of {sizes}: {within} inside + {between} between = {variance(values)}")
    assert within + between == variance(values)  # exact
assert (within, variance(values)) == (Fraction(29, 6), Fraction(463, 64))

# %% [markdown]
# ## The gradient, measured
#
# Now the question of lesson 04: how far is the accumulated gradient from that of one batch? A small
# net on 128 digits, cut at random into micro-batches of $b$. There are two answers, and they must
# not be mixed up:
#
# - the **error of one cut**: what an update suffers;
# - the **bias**: the error of the *mean* over all cuts. Luck has been averaged out of it, and no
#   number of updates averages it away. (It has nothing to do with the bias of a layer.)
#
# The bias has a law. Draw a part of $b$ from the $N$ samples, none twice. Its mean misses that of
# the batch by chance, and the square of the miss is on average $v_N \frac{N}{N - 1}$ times
# $\frac1b - \frac1N$; by as much its variance is on average too small. To first order the misses of
# the means cancel over all cuts; what stays, their squares and what the variance lacks, is
# proportional to the same bracket:
#
# $$\text{bias} \approx C \Big( \frac1b - \frac1N \Big),$$
#
# where $C$ depends on the net and the data. $k$ does not occur. If accumulating made the statistics
# those of the $kb = N$ samples of the window, there would be $\frac1{kb} - \frac1N = 0$ in its
# place.
#
# **Before you run the next cell:** in a plot with two logarithmic axes, which slope has the bias
# against $\frac1b - \frac1N$? A single miss is about as large as the *root* of its mean square:
# does the error of one cut fall faster than the bias, or more slowly? At which $b$ are both 0?
#
# `micro_batches_at_once` computes all micro-batches of many cuts in one pass, by standardizing
# along the middle axis of a three-dimensional array: to save time. The cell asserts that it is what
# `mg.accumulate` gives with `mg.BatchNorm(..., statistics="micro")`. (Change `N` to 256: does $C$
# move?)

# %%
N, channels, cuts, at_once = 128, 8, 800, 20


def small_net(norm, hidden=channels):
    """Linear, norm, tanh, Linear; the same weights each time."""
    rng = np.random.default_rng(0)
    return mg.Sequential(
        mg.Linear(64, hidden, bias=False, rng=rng, dtype=np.float64),
        norm,
        mg.Tanh(),
        mg.Linear(hidden, 10, rng=rng, dtype=np.float64),
    )


def batch_norm(statistics):
    return mg.BatchNorm(channels, statistics=statistics, dtype=np.float64)


def accumulated(model, batch, b):
    """The gradient that minigrad accumulates over micro-batches of b, and its report."""
    report = mg.accumulate(model, mg.cross_entropy, batch, micro_batch_size=b)
    return gradient(model), report


def micro_batches_at_once(model, rows, b):
    """The mean gradient over these rows in micro-batches of b, each with its own statistics."""
    first, norm, activation, last = model.layers
    hidden = first(x_train[rows]).reshape(-1, b, channels)
    normal = mg.functions.standardize(hidden, 1, norm.eps).reshape(-1, channels)
    model.zero_grad()
    logits = last(activation(normal * norm.weight + norm.bias))
    mg.cross_entropy(logits, y_train[rows]).mean().backward()
    return gradient(model)


for b in range(1, 5):  # both averages, over all ways to draw b of four numbers; exact
    draws = [mg.fractions(draw) for draw in combinations([0, 2, 10, 12], b)]
    miss = sum((draw.mean() - 6) ** 2 for draw in draws) / len(draws)
    lacking = 26 - sum(variance(draw) for draw in draws) / len(draws)
    assert miss == lacking == 26 * Fraction(4, 3) * (Fraction(1, b) - Fraction(1, 4))

net = small_net(batch_norm("micro"))
batch = x_train[:N], y_train[:N]
one_batch, _ = accumulated(net, batch, N)
assert gap(micro_batches_at_once(net, np.arange(N), 8), accumulated(net, batch, 8)[0]) < 1e-12

sizes, one_cut, bias = (4, 8, 16, 32, 64), [], []
for b in sizes:
    rng, total = np.random.default_rng(1), 0
    for _ in range(cuts // at_once):
        orders = np.concatenate([rng.permutation(N) for _ in range(at_once)])
        total = total + micro_batches_at_once(net, orders, b)
    few = [micro_batches_at_once(net, rng.permutation(N), b) for _ in range(15)]
    one_cut.append(np.median([gap(g, one_batch) for g in few]))
    bias.append(gap(total / (cuts // at_once), one_batch))
by_law = 1 / np.array(sizes) - 1 / N
slope = np.polyfit(np.log(by_law), np.log(bias), 1)[0]
slope_of_one_cut = np.polyfit(np.log(sizes), np.log(one_cut), 1)[0]
C = np.exp(np.mean(np.log(bias / by_law)))
print("   b   error of one cut       bias     predicted, C (1/b - 1/N)")
for b, error, found, predicted in zip(sizes, one_cut, bias, C * by_law):
    print(f"{b:4} {error:17.3f} {found:11.4f} {predicted:15.4f}")
print(f"slope of the bias {slope:.2f}, predicted 1; C = {C:.2f}")
assert abs(slope - 1) < 0.1
assert np.allclose(bias, C * by_law, rtol=0.2)
assert -0.95 < slope_of_one_cut < -0.6  # more slowly than 1/b
assert np.all(np.array(one_cut) > 2 * np.array(bias))
assert min(bias) > 0.003  # different: rounding is smaller by 12 powers of 10
assert gap(micro_batches_at_once(net, np.arange(N), N), one_batch) < 1e-12  # b = N

figure, axes = plotting.subplots(1, 2, height=3.6)
axes[0].loglog(sizes, one_cut, "^--", color=plotting.ORANGE, ms=6, label="of one cut")
axes[0].loglog(sizes, bias, "o-", color=plotting.BLUE, ms=6, label="of the mean of all cuts: bias")
fine = np.geomspace(3.6, 110, 100)
axes[0].loglog(fine, C * (1 / fine - 1 / N), ":", color=plotting.DARK, lw=1.2, label="the law")
axes[0].axvline(N, color=plotting.GREY, lw=1)
axes[0].text(N * 0.93, 0.3, "b = N:\nno error", ha="right", va="center")
axes[0].set_xticks([*sizes, N], [*sizes, N])
axes[0].minorticks_off()
axes[0].set_xlabel("samples in a micro-batch, b")
axes[0].set_ylabel("error / length of the gradient")
axes[0].set_title("Error of the gradient")
axes[0].legend(loc="lower left", fontsize=8.5)
axes[1].loglog(by_law, bias, "o", color=plotting.BLUE, ms=6)
axes[1].loglog(by_law, C * by_law, ":", color=plotting.DARK, lw=1.2)
for b, x, y in zip(sizes, by_law, bias):
    axes[1].annotate(f"b = {b}", (x, y), (9, -12), textcoords="offset points")
axes[1].set_xlim(0.006, 0.5)
axes[1].set_ylim(bottom=0.003)
axes[1].minorticks_off()
axes[1].set_xlabel("1/b − 1/N")
axes[1].set_title(f"The bias: slope {slope:.2f}, predicted 1")
plotting.show(
    figure,
    "07-gradient-error",
    f"{N} digits, {cuts} random cuts for each b. The error of one cut falls from {one_cut[0]:.0%} "
    f"of the gradient at b = {sizes[0]} to {one_cut[-1]:.1%} at b = {sizes[-1]}. The bias falls "
    f"from {bias[0]:.0%} to {bias[-1]:.1%}, as {C:.2f} (1/b − 1/N): a line of slope {slope:.2f}.",
)

# %% [markdown]
# Memory allows eight samples at a time. Somebody wants the statistics of a large batch and says:
# then I accumulate more. **Before you run the next cell:** $b = 8$ stays, and $k$ grows, so that
# the batch to be imitated grows with it, in the end to all of the digits. Where does the error of
# one cut go? And what does the law say for a very large $N$?

# %%
b = 8
print("  k      N    error of one cut")
errors_at_b = []
for k in (1, 2, 4, 16, 64, 192):
    rng, found, errors = np.random.default_rng(2), [], []
    for _ in range(12):
        rows = rng.permutation(len(x_train))[: k * b]
        expected = micro_batches_at_once(net, rows, k * b)
        found.append(micro_batches_at_once(net, rows, b))
        errors.append(gap(found[-1], expected))
    errors_at_b.append(np.mean(errors))
    print(f"{k:3} {k * b:6} " + (f"{errors_at_b[-1]:14.2f}" if k > 1 else f"{'none':>14}"))
assert k * b == len(x_train)  # these last twelve are cuts of one batch: all of the digits
bias_at_b = gap(np.mean(found, axis=0), expected)
print(f"the mean of the last {len(found)} cuts: {bias_at_b:.2f}; the law, C / b: {C / b:.2f}")
assert errors_at_b[0] < 1e-12  # k = 1: the micro-batch is the batch
assert errors_at_b[2] > errors_at_b[1]
assert errors_at_b[-1] < errors_at_b[1] / 2  # luck averages out
assert abs(bias_at_b - C / b) < 0.2 * C / b  # the bias does not

# %% [markdown]
# The error goes up first, since a micro-batch is the whole batch at $k = 1$, half of it at $k = 2$,
# and misses the less the larger its share: $\frac1b - \frac1N = \frac1b (1 - \frac1k)$. What then
# falls with $k$ is luck, for more misses are averaged. What stays is $C/b$:
# all micro-batches are wrong in the same direction, and adding them up adds that up too.
# Accumulation computes another function here, exactly: the loss of a net whose samples see $b - 1$
# others. With intent that is *Ghost BatchNorm* (Hoffer et al. 2017), whose noise may even help;
# then $b$ is a choice of the model, and must not follow from memory.
#
# ## The running statistics
#
# In training BatchNorm also moves its running statistics, the mean and the variance:
# $\text{running} \leftarrow (1 - m)\, \text{running} + m\, \text{seen}$. The share $m$ of what it
# saw (here $1/10$) is called *momentum*, and is not that of SGD. The variance that goes in has the
# divisor $n - 1$ in place of $n$, so that it is right on average. Then lesson 06 asks: once an
# update, or $k$ times? Two faults are in $k$ times:
#
# - **horizon**: after $k$ moves the old value has the share $(1 - m)^k$ in place of $1 - m$, as if
#   the momentum were $1 - (1 - m)^k$: the average forgets sooner, and is noisier;
# - **between**: each move takes a variance *inside* a micro-batch; what lies between them is lost.
#
# A known repair is another momentum $m'$ with $(1 - m')^k = 1 - m$.
#
# **Before you run the next cell:** 0, 2 and 10, 12 again, $m = 1/10$; running mean 0, running
# variance 1. Work out both after one update, moved once, and moved after each micro-batch. Which
# of the two faults does $m'$ mend?

# %%
half = x4[:2], x4[2:]


def moved_by_calls(parts, momentum):
    """Running mean and variance of a loop that calls the layer once a micro-batch."""
    norm = mg.BatchNorm(1, momentum=momentum, statistics="micro", dtype=np.float64)
    for part in parts:
        norm(part)
    return norm.running_mean.item(), norm.running_var.item()


def moved_by_train_step(x, b, statistics="batch"):
    """Those after one update of minigrad with the rate 0: nothing else moves."""
    norm = mg.BatchNorm(1, statistics=statistics, dtype=np.float64)
    sgd = mg.SGD(norm.parameters(), lr=0)
    mg.train_step(norm, lambda outputs, _: mg.per_sample(outputs.sum(axis=1)), sgd, (x, x), b)
    return norm.running_mean.item(), norm.running_var.item()


mild = mg.momentum_per_micro_batch(0.1, k=2)
rows = {
    "one batch": moved_by_calls([x4], 0.1),
    "after each micro-batch": moved_by_calls(half, 0.1),
    f"the same, m' = {mild:.4f}": moved_by_calls(half, mild),
    "the same, other order": moved_by_calls(half[::-1], mild),
    "mg.train_step": moved_by_train_step(x4, b=2),
}
print("                         running mean   running variance")
for name, (mean, var) in rows.items():
    print(f"{name:24} {mean:12.5f} {var:18.5f}")
right, each, milder, turned, ours = np.array([*rows.values()])
assert np.allclose(right, [0.1 * x4.mean(), 0.9 + 0.1 * x4.var(ddof=1)], rtol=1e-14)
mean, var = 0.0, 1.0  # by hand, after each micro-batch
for part in half:
    mean, var = 0.9 * mean + 0.1 * part.mean(), 0.9 * var + 0.1 * part.var(ddof=1)
assert np.allclose(each, [mean, var], rtol=1e-14)
assert np.allclose(ours, right, rtol=1e-14)  # rounding
assert milder[0] > right[0] > turned[0]  # the mean depends on the order, and is near
assert max(abs(np.array([milder[0], turned[0]]) / right[0] - 1)) < 0.03
assert right[1] > 3 * milder[1]  # the variance between the micro-batches is lost all the same
assert np.isclose((1 - mild) ** 2, 0.9, rtol=1e-14)
far_on = [moved_by_calls(half * 100, momentum)[1] for momentum in (0.1, 0.5)]
inside, of_all = x4[:2].var(ddof=1), x4.var(ddof=1)
assert np.allclose(far_on, inside, rtol=1e-6)  # with any momentum
print(f"moved on and on: running variance {far_on[0]:.4g}, in place of {of_all:.4g}")
norm = mg.BatchNorm(1, eps=0.0, dtype=np.float64)
norm.running_mean += 100
assert np.allclose(norm(x4).data, standardized(x4), rtol=1e-14)  # training does not look at it
for k in (2, 4, 8):
    print(f"k = {k}: as if the momentum were {1 - 0.9**k:.4f}")
for statistics in ("batch", "micro", "running"):  # minigrad: one move, by the merged statistics
    assert np.allclose(moved_by_train_step(x4, 2, statistics), right, rtol=1e-14)

# %% [markdown]
# What is needed is one move an update, by the statistics of the whole window. They can be put
# together from those of the parts, by the law of total variance: `Statistics.merge` (the first
# function below) does it, whatever the sizes. It keeps $n$, the mean and the sum of the squared
# deviations, and takes two parts at a time: what lies between them is then
# $\sum_j n_j (\mu_j - \mu)^2 = \frac{n_a n_b}{n} (\mu_b - \mu_a)^2$.
#
# The next picture follows 40 updates with $k = 8$, in two cases that happen. Left: at one
# moment the data shifts. Right: the digits of each window come sorted by their label, so that a
# micro-batch holds digits of one kind. **Before you run it:** in which case does $m'$ help?

# %%
show_source(mg.Statistics.merge, mg.BatchNorm.moved)

k, b, m, updates, jump = 8, 8, 0.1, 40, 12
values = x_train @ np.random.default_rng(3).standard_normal(64)  # one channel of a linear layer
values = (values - values.mean()) / values.std()


def windows(shifted, sorted_by_label):
    """The values of each window, (k b,)."""
    rng = np.random.default_rng(4)
    for update in range(updates):
        rows = rng.choice(len(values), k * b, replace=False)
        if sorted_by_label:
            rows = rows[np.argsort(y_train[rows], kind="stable")]
        yield values[rows] + (2 if shifted and update >= jump else 0)


def follow(kind, **case):
    """The running mean and variance after each update: (updates, 2)."""
    momentum = mg.momentum_per_micro_batch(m, k) if kind == "mild" else m
    norm, path = mg.BatchNorm(1, momentum=momentum, dtype=np.float64), []
    for window in windows(**case):
        parts = [mg.Statistics.of(part) for part in window.reshape(k, b, 1)]
        if kind == "once":
            whole = parts[0]
            for part in parts[1:]:
                whole = whole.merge(part)
            parts = [whole]
        for part in parts:
            norm.running_mean, norm.running_var = norm.moved(part)
        path.append((norm.running_mean.item(), norm.running_var.item()))
    return np.array(path)


kinds = {
    "once": ("once an update, merged", "-", plotting.BLUE, 3),
    "each": (f"{k} times", "--", plotting.RED, 1.6),
    "mild": (f"{k} times, with m'", ":", plotting.VIOLET, 2),
}
shift = {kind: follow(kind, shifted=True, sorted_by_label=False)[:, 0] for kind in kinds}
by_label = {kind: follow(kind, shifted=False, sorted_by_label=True)[:, 1] for kind in kinds}
settled = {kind: path[updates // 2 :].mean() for kind, path in by_label.items()}
rough = {kind: np.abs(np.diff(path[updates // 2 :])).mean() for kind, path in shift.items()}
first_step = {kind: path[jump] / 2 for kind, path in shift.items()}  # of the way, in one update
assert abs(settled["once"] - 1) < 0.05
assert max(settled["each"], settled["mild"]) < 0.7
assert first_step["each"] > 0.5 > 0.15 > first_step["once"]
assert abs(first_step["mild"] - first_step["once"]) < 0.01
assert rough["each"] > 1.8 * max(rough["mild"], rough["once"])

figure, axes = plotting.subplots(1, 2, height=3.5)
steps = np.arange(1, updates + 1)
for kind, (name, line, colour, width) in kinds.items():
    axes[0].plot(steps, shift[kind], ls=line, color=colour, lw=width)
    axes[1].plot(steps, by_label[kind], ls=line, color=colour, lw=width, label=name)
axes[0].plot([1, jump + 0.5, jump + 0.5, updates], [0, 0, 2, 2], ls="-", color=plotting.GREY, lw=1)
axes[1].axhline(1, color=plotting.GREY, lw=1)
axes[0].text(1, 0.3, "the data", color="#6c6c72")
axes[1].text(updates, 1.06, "the data", color="#6c6c72", ha="right")
axes[0].set_title("Running mean; the data shifts by 2")
axes[1].set_title("Running variance; windows sorted by label")
axes[1].set_ylim(0, 1.2)
axes[1].legend(loc="lower right")
for panel in axes:
    panel.set_xlabel("update")
plotting.show(
    figure,
    "07-running-statistics",
    f"k = {k}, momentum {m:g}. Left: in the first update after the shift, {k} moves go "
    f"{first_step['each']:.0%} of the way and one move {first_step['once']:.0%}; with m' it is as "
    f"with one move, and the two curves lie on each other. Right: the variance inside the sorted "
    f"micro-batches alone is {settled['each']:.2f} ({k} moves) or {settled['mild']:.2f} (with m') "
    f"of the data's; merged before one move it is {settled['once']:.2f}.",
)

# %% [markdown]
# $m'$ mends the horizon only: left it lies on the right curve, right it ends where the $k$ moves
# end. A *larger* momentum makes the first fault worse and does not touch the second.
#
# And mind what running statistics are for: they serve in evaluation. However well they are kept, no
# output and no gradient of *training* changes.
#
# ## The repairs that people use
#
# **Synchronized BatchNorm.** $D$ devices hold $b$ samples each at the same moment, and exchange
# their sums in the layer: the statistics are those of $D b$ samples, as on one device that holds
# them all. It is sometimes said that "some frameworks handle BatchNorm automatically, by
# synchronized BatchNorm across devices". Two words of that are misleading. Not *automatically*: it
# is to be asked for (Keras: `synchronized=False` is the default; PyTorch: another class,
# `SyncBatchNorm`), and TensorFlow's manual says of its own: "Without `tf.distribute` strategy, this
# layer behaves as a regular BatchNormalization layer". And *across devices* is not *across time*:
# micro-batches come one after the other, and when the second one arrives the first has long been
# standardized, and its tape is gone.
#
# **Before you run the next cell:** 4 devices with 8 samples each, 4 micro-batches one after the
# other, then one update. From how many samples does each statistic come, without and with
# synchronization? How many would it be in one batch?


# %% claim="f"
class Counting(mg.BatchNorm):
    """BatchNorm that notes how many samples its statistics come from."""

    def rows(self, x):
        self.seen.append(len(x))
        return super().rows(x)


D, b, k = 4, 8, 4
together = x_train[: D * b * k], y_train[: D * b * k]
counted, gradients = {}, {}
for name, at_a_time in {
    "each device for itself": b,
    "synchronized over devices": D * b,  # the sums that are exchanged are those of D b samples
    "one batch": D * b * k,
}.items():
    norm = Counting(channels, statistics="micro", dtype=np.float64)
    norm.seen = []
    model = small_net(norm)
    gradients[name], _ = accumulated(model, together, at_a_time)
    counted[name] = set(norm.seen)
print(f"{D} devices, b = {b}, k = {k}: statistics from")
for name, g in gradients.items():
    (samples,) = counted[name]
    off = gap(g, gradients["one batch"])
    end = "" if name == "one batch" else f"; the gradient is off by {off:.0%}"
    print(f"{name:26} {samples:4} samples{end}")
assert [*counted.values()] == [{b}, {D * b}, {D * b * k}]
assert gap(gradients["synchronized over devices"], gradients["one batch"]) > 0.02  # different

# %% [markdown]
# So it raises $b$ to $D b$, which is worth having, and leaves $k$ where it was. The others need no
# second device:
#
# - **Batch Renormalization** (Ioffe 2017; `statistics="running"`): standardize by the micro-batch,
#   then multiply by $r = s / s_\text{run}$ and add $d = (\mu - \mu_\text{run}) / s_\text{run}$.
#   Since $\frac{x - \mu}{s}\, r + d = \frac{x - \mu_\text{run}}{s_\text{run}}$, the *output* is
#   what the running statistics give, as far as $r$ and $d$ are within limits, at which they are cut
#   off. Backward, $r$ and $d$ count as constants, and $\mu$ and $s$ do not.
# - **Frozen statistics**: evaluation mode while training. The statistics are constants, and all is
#   a sum over samples again, of another function.
# - **LayerNorm and GroupNorm** standardize each sample by itself, over its channels, or groups of
#   them. Condition 3 holds; any cut is equal, to rounding. They are other layers: to be chosen
#   before a net is trained, not after.
#
# **Before you run the next cell,** the best idea of all: measure the statistics of the *whole*
# batch first, in a pass without gradients, then hold them constant in a second pass with
# micro-batches. All outputs, and the loss, are then those of one batch, to rounding. And the
# gradient?

# %%
trained = small_net(batch_norm("batch"))
sgd = mg.SGD(trained.parameters(), lr=0.1, momentum=0.9)
for update in range(48):
    rows = slice(update * N % len(x_train), update * N % len(x_train) + N)
    mg.train_step(trained, mg.cross_entropy, sgd, (x_train[rows], y_train[rows]), N)
one_batch, of_one_batch = accumulated(trained, batch, N)


def like_trained(statistics):
    """The trained net with another answer to what its statistics are."""
    model = small_net(batch_norm(statistics))
    model.load_state_dict(trained.state_dict())
    return model


measured = like_trained("micro").eval()
hidden = measured.layers[0](batch[0]).data
measured.layers[1].running_mean, measured.layers[1].running_var = hidden.mean(0), hidden.var(0)
repairs = {
    "none: micro-batch statistics": like_trained("micro"),
    "Batch Renormalization": like_trained("running"),
    "frozen running statistics": like_trained("micro").eval(),
    "frozen, of the whole batch": measured,
    "LayerNorm": small_net(mg.LayerNorm(channels, dtype=np.float64)),
    "GroupNorm, 2 groups": small_net(mg.GroupNorm(2, channels, dtype=np.float64)),
}
print("                              gradient against that of       against its own")
print("                              one batch with BatchNorm       gradient at b = N")
print("                              b = 4   b = 16   b = 64        b = 4    b = 64")
against, own = {}, {}
for name, model in repairs.items():
    at = {b: accumulated(model, batch, b)[0] for b in (4, 16, 64, N)}
    against[name] = [gap(at[b], one_batch) for b in (4, 16, 64)]
    own[name] = [gap(at[b], at[N]) for b in (4, 64)]
    left = [f"{off:8.2f}" for off in against[name]] if "Norm" not in name else ["  another layer"]
    right = [f"{off:9.2f}" if off > 1e-12 else "    equal" for off in own[name]]
    print(f"{name:28}{''.join(left):24}    {''.join(right)}")
few = batch[0][:8]  # Renormalization: within its limits, the outputs of evaluation
assert np.allclose(like_trained("running")(few).data, like_trained("running").eval()(few).data)
loss = accumulated(measured, batch, 8)[1].loss
assert np.isclose(loss, of_one_batch.loss, rtol=1e-12)  # the loss is right,
off = against["frozen, of the whole batch"][0]
print(f"frozen, of the whole batch: loss equal, gradient off by {off:.0%}")
assert min(against["frozen, of the whole batch"]) > 0.3  # the gradient is not


def loss_after(step):
    """The loss of one batch, with its own statistics, of the trained net moved by `step`."""
    model, done = like_trained("batch"), 0
    for p in model.parameters():
        p.data += step[done : done + p.data.size].reshape(p.data.shape)
        done += p.data.size
    return mg.cross_entropy(model(batch[0]), batch[1]).mean().item()


frozen, _ = accumulated(measured, batch, 8)
direction, h = frozen / np.linalg.norm(frozen), 1e-4
quotient = (loss_after(h * direction) - loss_after(-h * direction)) / (2 * h)
slopes = one_batch @ direction, frozen @ direction  # what the two gradients say of it
by_both = f"by the gradient of one batch {slopes[0]:.3g}, by the frozen one {slopes[1]:.3g}"
print(f"slope of the loss along the frozen gradient: {quotient:.3g}; {by_both}")
assert np.isclose(quotient, slopes[0], rtol=1e-4)
assert abs(quotient / slopes[1] - 1) > 0.1
for name in ("frozen running statistics", "frozen, of the whole batch", "LayerNorm"):
    assert max(own[name]) < 1e-12  # rounding: a sum over samples
assert max(own["GroupNorm, 2 groups"]) < 1e-12
renorm, none = "Batch Renormalization", "none: micro-batch statistics"
assert against["frozen, of the whole batch"][1] > against[none][1]
assert own[renorm][0] < own[none][0] / 2  # less dependent on b
assert own[renorm][1] > 0.02  # but dependent
assert against[renorm][0] < against[none][0]
assert against[renorm][2] > against[none][2]  # better for small b, and worse for large b

# %% [markdown]
# The loss is right, to rounding, and the gradient is worse than that of micro-batches of 16 with no
# repair. $\mu$ and $v$ depend on the weights; who holds them constant leaves out two of the three
# terms in the bracket of the derivative above: the ways back through $\mu$ and through $v$.
#
# The loss as such does not show the fault, for it is the right one at any weights. How it *changes*
# does: a difference quotient (lesson [02](02_autograd.ipynb)), with the statistics measured anew at
# both of its points, agrees with the gradient of one batch, and not with this one (last line).
#
# The table in words: freezing makes the gradient independent of $b$ and gives that of another
# function; Renormalization makes it depend less on $b$, better than nothing where $b$ is small,
# worse where it is large; LayerNorm and GroupNorm remove the question.
#
# ## What minigrad does
#
# `mg.BatchNorm()` has `statistics="batch"`, unless told otherwise: those of the whole batch, *and*
# the way back through them. **Before you run the next cell:** a micro-batch of one sample was
# refused above. What can it do here?

# %%
exact = like_trained("batch")  # the default: mg.BatchNorm(channels)
assert mg.BatchNorm(channels).statistics == "batch"
for b in (1, 2, 5, 8, 32, N):  # put in any size
    found, report = accumulated(exact, batch, b)
    assert gap(found, one_batch) < 1e-12  # rounding
    assert report.passes == (1 if b == N else 3)
    parts, passes = report.micro_batches, report.passes
    print(f"b = {b:3}: equal (< 1e-12), {parts:3} micro-batches, {passes} passes")


def run(b, updates=12):
    """Weights and running statistics after some updates with batches of N."""
    model = small_net(batch_norm("batch"))
    sgd = mg.SGD(model.parameters(), lr=0.1)
    for update in range(updates):
        rows = slice(update * N % len(x_train), update * N % len(x_train) + N)
        mg.train_step(model, mg.cross_entropy, sgd, (x_train[rows], y_train[rows]), b)
    return np.concatenate([np.ravel(value) for value in model.state_dict().values()])


assert gap(run(b=3), run(N)) < 1e-10
print("12 updates with b = 3 and with one batch: weights and running statistics equal (< 1e-10)\n")
show_source(mg.BatchNorm.rows, mg.BatchNorm._by_own)

# %% [markdown]
# Three passes over the data in place of one. In the code above `samples` is what minigrad knows of
# the window (None where the layer is called by itself), and `coupling.of` is where mean and
# variance of the whole batch come from, as variables that have gradients of their own. How that
# works, and what it costs in passes and memory with more than one BatchNorm, is lesson
# [08](08_exact_batchnorm.ipynb). `_by_own` holds the two ways in which each micro-batch has its
# own.
#
# ## Usual mistakes
#
# - "More micro-batches make the statistics better." $k$ averages luck; the bias, $C(1/b - 1/N)$,
#   stays.
# - "Two passes do: statistics first, then train with them." The outputs are right, the gradient is
#   not.
# - "Evaluation mode during accumulation is the same thing." It is another function, and no gradient
#   goes through its statistics.
# - "With the running statistics kept properly BatchNorm is exact." They serve in evaluation; in
#   training nothing has changed.
# - "A larger momentum makes up for small micro-batches." It shortens the memory; a smaller one,
#   $m'$, mends the horizon and nothing else.
# - "Synchronized BatchNorm solves accumulation." It makes $b$ into $D b$, at one moment.
# - "The loss agrees, so the gradient does." Compare gradients, or difference quotients.
#
# ## In short
#
# - BatchNorm couples the samples: each output depends on every input of its (micro-)batch.
# - In micro-batches it is another function: bias $C(1/b - 1/N)$, whatever $k$; nothing is left at
#   $b = 2$.
# - Running statistics move once an update, merged: within plus between.
# - Repairs change $b$ (synchronized), the function (frozen, Renormalization) or the layer
#   (LayerNorm, GroupNorm).
# - Exact takes the statistics of the batch and the way back through them.
#
# ## References
#
# - S. Ioffe, C. Szegedy (2015). *Batch Normalization: Accelerating Deep Network Training by
#   Reducing Internal Covariate Shift.* ICML. arXiv:1502.03167.
# - S. Santurkar, D. Tsipras, A. Ilyas, A. Madry (2018). *How Does Batch Normalization Help
#   Optimization?* NeurIPS.
# - E. Hoffer, I. Hubara, D. Soudry (2017). *Train longer, generalize better.* arXiv:1705.08741
#   (Ghost BatchNorm).
# - S. Ioffe (2017). *Batch Renormalization: Towards Reducing Minibatch Dependence in
#   Batch-Normalized Models.* arXiv:1702.03275.
# - J. L. Ba, J. R. Kiros, G. E. Hinton (2016). *Layer Normalization.* arXiv:1607.06450.
# - Y. Wu, K. He (2018). *Group Normalization.* arXiv:1803.08494.
# - T. F. Chan, G. H. Golub, R. J. LeVeque (1979). *Updating Formulae and a Pairwise Algorithm for
#   Computing Sample Variances.*
# - PyTorch, 2020: issue 46516 (BatchNorm under gradient accumulation).
# - The manuals of TensorFlow (`SyncBatchNormalization`) and Keras (`BatchNormalization`).
