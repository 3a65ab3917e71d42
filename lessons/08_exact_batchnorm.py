# %% [markdown]
# # 08 · Can BatchNorm be exact without the memory?
#
# **You will be able to**
#
# 1. turn a loss whose samples are coupled by statistics into a sum over samples, and accumulate
#    it;
# 2. find the gradient of one batch through $L$ BatchNorm layers in $2L + 1$ passes over its
#    micro-batches, and say what each pass needs, keeps and costs;
# 3. do the same for a loss that looks at a whole batch, and say where the method ends.
#
# **Needs:** lessons [02](02_autograd.ipynb) (the chain rule as a sum over paths),
# [04](04_accumulation.ipynb) (the theorem) and [07](07_batchnorm_diverges.ipynb) (BatchNorm).
# This lesson is \*: optional, and no other lesson needs it. **Reading:** 50 minutes;
# **exercises:** 40 minutes ([08_exact_batchnorm](exercises/08_exact_batchnorm.ipynb)). **Code:**
# [`minigrad/coupling.py`](../minigrad/coupling.py), [`minigrad/losses.py`](../minigrad/losses.py).

# %% [markdown]
# ## One layer, six samples
#
# BatchNorm breaks condition 3 of the theorem of lesson 04: it compares each sample with the
# others. The repairs of lesson 07 were another layer, or to live with another gradient. At its end
# minigrad found the gradient of *one batch* all the same, from micro-batches, with BatchNorm as it
# is. How?
#
# The smallest case has one channel. Sample $i$ gives $h_i = x_i W$, where $W$ is a matrix again, as
# in lesson 03; the layer subtracts the mean $\mu$ and multiplies by $r = 1/\sqrt{v + \varepsilon}$,
# where $v$ is the variance; its weight $\gamma$ follows, and the loss is a squared error:
#
# $$y_i = (h_i - \mu)\, r, \qquad \ell_i = (\gamma\, y_i - t_i)^2, \qquad S = \sum_i \ell_i .$$
#
# We write $r = (v + \varepsilon)^{-p}$ in place of the root. BatchNorm has $p = 1/2$. With $p = 1$
# all numbers stay fractions, nothing is rounded, and one may ask for `==`; the method is the same.
# ($\varepsilon = 1$ here, so that it can be seen. The $r$ of Renormalization, in lesson 07, was
# another one.)
#
# **Before you run the next cell:** six samples are cut into 2 and 4, each part is standardized by
# its own mean and variance, and the gradients of $W$ and $\gamma$ are added. How far from the
# gradient of one batch will they be: a few percent, or is a wrong sign possible?

# %%
import math
from collections import Counter
from functools import reduce
from itertools import pairwise, product

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.reading import show_source

N, eps = 6, 1
rng = np.random.default_rng(0)
x, t = rng.integers(-4, 5, (N, 2)), rng.integers(-4, 5, (N, 1))
W, gamma = np.array([[2], [-1]]), np.array([3])
INVERSE = {1: lambda v: 1 / (v + eps), 0.5: lambda v: 1 / mg.sqrt(v + eps)}  # by p


def numbers(p):
    """x, t, W, gamma: as Fractions for p = 1, as float64 for p = 1/2."""
    return [mg.fractions(a) if p == 1 else a.astype(float) for a in (x, t, W, gamma)]


def parts_of(sizes):
    """The micro-batches of these sizes, as slices of the batch."""
    return [slice(start, end) for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]


def by_tape(p, part=slice(None)):
    """The gradients by W and gamma of the loss of these samples, as one batch: by the engine."""
    x, t, *parameters = numbers(p)
    W, gamma = (mg.Tensor(a, requires_grad=True) for a in parameters)
    h = mg.Tensor(x[part]) @ W
    centred = h - h.mean(axis=0)
    y = centred * INVERSE[p]((centred * centred).mean(axis=0))
    error = y * gamma - t[part]
    (error * error).sum().backward()
    return np.concatenate([W.grad.ravel(), gamma.grad])


def row(name, values):
    print(f"{name:34}", *(f"{float(value):10.4f}" for value in values))


cut = [2, 4]
whole = by_tape(p=1)
micro = sum(by_tape(1, part) for part in parts_of(cut))
print(f"{'gradient by':34} {'W[0]':>10} {'W[1]':>10} {'gamma':>10}")
row("one batch", whole)
row(f"micro-batches {cut}, own statistics", micro)
assert np.all(micro != whole)
assert np.any(np.sign(micro) != np.sign(whole))

# %% [markdown]
# ## The statistics as variables
#
# Why is $S$ no sum over samples? Because $\mu$ and $v$ inside of each $\ell_i$ depend on all
# samples. But *given* $\mu$ and $v$, as two numbers on the blackboard, $\ell_i$ looks at sample
# $i$ alone, and $S(W, \gamma, \mu, v)$ is a sum. And $\mu$ and $v$ are sums over samples too:
# $\mu = \frac1N \sum_i h_i$ and $v = \frac1N \sum_i (h_i - \mu)^2$. All coupling goes through
# these two numbers. So treat them as variables of their own: in a $\partial$ below, the other
# variables stand still. $W$ reaches $S$ in three ways, straight, through $\mu$ and through $v$, and
# by the chain rule
#
# $$\frac{dS}{dW} = \sum_i \frac{\partial \ell_i}{\partial W}
# + a_\mu \frac{d\mu}{dW} + a_v \frac{dv}{dW}, \qquad
# a_\mu = \sum_i \frac{\partial \ell_i}{\partial \mu}, \quad
# a_v = \sum_i \frac{\partial \ell_i}{\partial v} .$$
#
# The two numbers $a$ say how the loss changes if the statistics are moved: they are the
# **adjoints** of the statistics. They are sums over samples as well. And since $\mu$ and $v$ are
# sums, so are $\frac{d\mu}{dW} = \sum_i \frac1N \frac{dh_i}{dW}$ and
# $\frac{dv}{dW} = \sum_i \frac2N (h_i - \mu) \frac{dh_i}{dW}$ (what $\mu$ adds to the latter is 0,
# see below). Put in, all three ways together are the gradient by $W$ of
#
# $$J = \sum_i J_i, \qquad J_i = \ell_i + a_\mu \frac{h_i}{N} + a_v \frac{(h_i - \mu)^2}{N},
# \qquad \mu,\ v,\ a_\mu,\ a_v \text{ held constant.}$$
#
# $J$ stands in for $S$: it is a **surrogate**, with another value and the same gradient $dS/dW$. It
# is a sum over samples, so the theorem of lesson 04 holds for it. Three passes over the
# micro-batches:
#
# 1. the statistics $\mu$ and $v$;
# 2. their adjoints $a_\mu$ and $a_v$;
# 3. the gradient of $J$.
#
# From pass to pass four numbers are kept, for any $N$. The next cell writes it down in NumPy,
# with the derivatives by hand. Since $y_i = (h_i - \mu)\, r$, with
# $g_i = \partial \ell_i / \partial y_i = 2 \gamma (\gamma\, y_i - t_i)$ and $r' = dr/dv$ they are
# $\partial\ell_i/\partial \mu = -r g_i$, $\partial\ell_i/\partial v = r' (h_i - \mu) g_i$ and
# $\partial\ell_i/\partial h_i = r g_i$.
#
# **Before you run it:** there are 32 ways to cut six samples in a row. On how many will the
# result be that of one batch, exactly? And may a micro-batch hold one sample?


# %%
def three_passes(p, sizes, adjoints=True):
    """The gradients by W and gamma of one batch, and by a shift of all h, from micro-batches."""
    x, t, W, gamma = numbers(p)
    parts = parts_of(sizes)

    found = [mg.Statistics.of(x[part] @ W) for part in parts]  # pass 1
    n, mean, squares = reduce(mg.Statistics.merge, found)  # as one set of n values
    v = squares / n
    r, slope = (v + eps) ** -p, -p * (v + eps) ** (-p - 1)  # slope: r' = dr/dv

    a_mean = a_var = 0
    for part in parts if adjoints else []:  # pass 2
        centred = x[part] @ W - mean
        g = 2 * gamma * (gamma * centred * r - t[part])
        a_mean -= (r * g).sum(axis=0)
        a_var += (slope * centred * g).sum(axis=0)

    dW = dgamma = shift = 0
    for part in parts:  # pass 3
        centred = x[part] @ W - mean
        error = gamma * centred * r - t[part]
        dh = r * 2 * gamma * error + a_mean / n + 2 * a_var * centred / n  # of J
        dW += x[part].T @ dh
        dgamma += (2 * error * centred * r).sum(axis=0)
        shift += dh.sum(axis=0)
    return np.concatenate([dW.ravel(), dgamma]), shift


def all_cuts(n):
    """The sizes of the parts in every way to cut n samples in a row."""
    cuts = []
    for here in product([False, True], repeat=n - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(here) if cut), n]
        cuts.append([end - start for start, end in pairwise(ends)])
    return cuts


def gap(found, expected):
    """How far apart two gradients are, as a share of the expected one."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


cuts = all_cuts(N)
equal = [bool(np.all(three_passes(1, sizes)[0] == whole)) for sizes in cuts]
assert all(equal)  # exact
assert max(gap(three_passes(0.5, sizes)[0], by_tape(0.5)) for sizes in cuts) < 1e-12
print(f"p = 1, Fractions: equal (==) on {sum(equal)} of {len(cuts)} cuts")
print(f"p = 1/2, float64: equal (< 1e-12) on {len(cuts)} of {len(cuts)} cuts")
assert [1] * N in cuts  # a micro-batch of one sample, too

h = (numbers(1)[0] @ numbers(1)[2]).ravel()
deviations = [(h[part] - h.sum() / N).sum() for part in parts_of(cut)]
print(f"sum of h - mean over the parts {cut}:", " and ".join(map(str, deviations)))
assert sum(deviations) == 0 != deviations[0]

# %% [markdown]
# **A term that is missing, rightly.** $v$ depends on $\mu$, and $\mu$ on $W$. Is there no
# $a_v \frac{\partial v}{\partial \mu} \frac{d\mu}{dW}$? There is, and it is 0:
# $\frac{\partial v}{\partial \mu} = -\frac2N \sum_i (h_i - \mu) = 0$, since $\mu$ is the mean.
# (The variance is least about the mean, so it does not change when the mean is moved a little.)
# Over one part the sum is not 0, as the last line shows; over all parts it is. With the other
# formula, $v = \frac1N \sum h_i^2 - \mu^2$, the derivative would be $-2\mu$, and the term would be
# needed; and in floats, where $\mu$ is large, a small difference of two large numbers would lose
# its digits.
#
# ## What the adjoints are for
#
# It is often proposed to stop half-way: a first pass for the mean and variance of the whole batch,
# a second one that trains with these two as constants. Forward, that is exactly the large batch:
# same outputs, same loss. (Lesson 07 measured its gradient on digits; here is the reason.) **Before
# you run the next cell:** is its gradient better than that of micro-batch statistics? And move all
# $h_i$ by the same small number, as a bias before the layer would do: what is the derivative of $S$
# by that number, and what does the half-way loop say?

# %%
right, shift = three_passes(1, cut)
half_way, wrong_shift = three_passes(1, cut, adjoints=False)
print(f"{'gradient by':34} {'W[0]':>10} {'W[1]':>10} {'gamma':>10} {'a shift':>10}")
row("one batch, and three passes", [*right, *shift])
row("micro-batches, own statistics", micro)
row("statistics of all, no adjoints", [*half_way, *wrong_shift])
assert np.all(right == whole)
assert half_way[2] == whole[2]  # gamma comes after the layer
assert np.all(half_way[:2] != whole[:2])
assert shift == 0 != wrong_shift
off_half_way, off_micro = (gap(g.astype(float), whole.astype(float)) for g in (half_way, micro))
assert off_half_way > 0.5
print(f"\noff by {100 * off_half_way:.0f} % without adjoints, {100 * off_micro:.0f} % with micro")

# %% [markdown]
# A shift of all $h_i$ is subtracted again by the layer: the loss does not see it, and its
# derivative is 0. The term $a_\mu h_i / N$ is what makes it so: the straight way gives
# $\sum_i r g_i$, and $a_\mu$ is just minus that. It takes out of the gradient what would only move
# the mean. The term with $a_v$ does the same for the spread. (Lesson 07: standardized values show
# no shift of the input, and at $\varepsilon = 0$ no stretch.) Without adjoints the gradient pushes
# at the mean and the spread, which the next forward pass undoes. So the right outputs do not make a
# right gradient. (Change `cut` in the first cell to `[3, 3]` and run all: which rows move?)
#
# ## Two layers: the last one first
#
# Let BatchNorm layers 1, ..., $L$ stand in a chain, with statistics $s_l = (\mu_l, v_l)$ for each
# channel. ($s$ was the deviation in lesson 07; here it is a pair of mean and variance, and $a_l$ is
# the pair of their adjoints.) The input of layer 2 depends on $s_1$. So
#
# - the statistics are found first to last: $s_2$ needs a forward pass that uses $s_1$;
# - the adjoint of $s_1$ has two parts: $s_1$ moves the loss, and it moves $s_2$, which moves the
#   loss:
#
# $$a_l = \sum_i \frac{\partial}{\partial s_l}
# \Big[\, \ell_i + \sum_{j > l} a_j \cdot s_j(x_i) \,\Big],
# \qquad \frac{dS}{d\theta} = \sum_i \frac{\partial}{\partial \theta}
# \Big[\, \ell_i + \sum_{j} a_j \cdot s_j(x_i) \,\Big],$$
#
# where $s_j(x_i) = \frac1N \big(h_{j,i},\, (h_{j,i} - \mu_j)^2\big)$ is what sample $i$ adds to
# $s_j$, with $h_{j,i}$ the input of norm $j$. In $\partial / \partial s_l$ all other statistics
# stand still, as before; $h_{j,i}$ moves with $s_l$ for each $j > l$. ($\theta$: all parameters.)
# This is a linear system for the adjoints, and a triangular one: $a_L$ needs no other, $a_{L-1}$
# needs $a_L$, and so on. So it is solved from the last to the first, a pass for each. With $L$
# passes before and one after, that makes $2L + 1$.
#
# `by_passes` does it for a chain of any length, on the tape of lesson 02: in each pass statistics
# are leaves, and `backward` adds up their adjoints in `.grad`. Its last argument says which
# adjoints each pass finds, so that other plans can be tried. **Before you run the next cell:** with
# two layers, one pass could collect both adjoints at once, and save a pass. Which of the two will
# be wrong? And if layer 1 is done first, then layer 2?


# %%
class Chain(mg.Module):
    """L times Linear, standardize, ReLU; then Linear. The statistics are handed in."""

    def __init__(self, L, width, inputs, outputs, dtype=np.float64, seed=0, **options):
        rng, sizes = np.random.default_rng(seed), [inputs, *[width] * L, outputs]
        self.layers = [mg.Linear(a, b, bias=False, rng=rng) for a, b in pairwise(sizes)]
        self.inverse = options.get("inverse", lambda v: 1 / mg.sqrt(v + 1e-5))
        self.activation = options.get("activation", mg.ReLU)()
        self.astype(dtype)

    def forward(self, x, statistics):
        """As far as the statistics go: the next layer's result, and what each norm was given."""
        given = []
        for layer, (mean, var) in zip(self.layers, statistics):
            given.append(layer(x))
            x = self.activation((given[-1] - mean) * self.inverse(var))
        return self.layers[len(statistics)](x), given


def gradient(net):
    """All gradients of the net, side by side in one array."""
    return np.concatenate([p.grad.ravel() for p in net.parameters()])


def leaves(pair, requires_grad=False):
    return tuple(mg.Tensor(value, requires_grad) for value in pair)


def by_passes(net, batch, sizes, adjoint_passes):
    """The gradient of the summed squared error. adjoint_passes: lists of layers, from 0."""
    x, t = batch
    L, N, parts = len(net.layers) - 1, len(x), parts_of(sizes)

    s = []
    for _ in range(L):  # the statistics, first to last
        with mg.no_grad():
            given = [net(x[part], [leaves(pair) for pair in s])[0] for part in parts]
        seen = reduce(mg.Statistics.merge, [mg.Statistics.of(h.data) for h in given])
        s.append((seen.mean, seen.squares / N))

    a = [(0 * mean, 0 * var) for mean, var in s]

    def surrogate(part, variables):
        outputs, given = net(x[part], variables)
        J = mg.squared_error(outputs, t[part]).sum()
        for h, (mean, _), (a_mean, a_var) in zip(given, s, a):
            J = J + (h * a_mean + (h - mean) * (h - mean) * a_var).sum() / N
        return J

    for chosen in adjoint_passes:
        variables = [leaves(pair, requires_grad=True) for pair in s]
        for part in parts:
            surrogate(part, variables).backward()
        for layer in chosen:
            a[layer] = tuple(leaf.grad for leaf in variables[layer])

    net.zero_grad()  # the passes before have left something there
    for part in parts:
        surrogate(part, [leaves(pair) for pair in s]).backward()
    return gradient(net), s


def at_once(net, batch):
    """The same by the engine, through the statistics of the whole batch."""
    x, t = batch
    s = []
    for _ in net.layers[1:]:
        h = net(x, s)[0]
        centred = h - h.mean(axis=0)
        s.append((h.mean(axis=0), (centred * centred).mean(axis=0)))
    net.zero_grad()
    mg.squared_error(net(x, s)[0], t).sum().backward()
    return gradient(net)


def last_first(L):
    return [[layer] for layer in reversed(range(L))]


rng = np.random.default_rng(0)
exact_batch = [mg.fractions(rng.integers(-4, 5, (N, columns))) for columns in (2, 1)]
for L in (1, 2, 3):
    net = Chain(L, 2, 2, 1, object, inverse=INVERSE[1])  # p = 1, in Fractions
    expected = at_once(net, exact_batch)
    for sizes in ([6], [1, 5], [2, 1, 3], [1] * 6):
        found, _ = by_passes(net, exact_batch, sizes, last_first(L))
        assert np.all(found == expected)  # exact
    assert np.all(expected != 0)  # so that equality says something
    print(f"L = {L}, {2 * L + 1} passes: all {expected.size} derivatives equal (==), on 4 cuts")

L, net = 2, Chain(2, 2, 2, 1, object, inverse=INVERSE[1])
expected = at_once(net, exact_batch)
plans = {
    "layer 2, then 1": [[1], [0]],
    "both at once": [[0, 1]],
    "layer 1, then 2": [[0], [1]],
    "both, and both again": [[0, 1], [0, 1]],
    "none": [],
}
results = {name: by_passes(net, exact_batch, [2, 4], plan)[0] for name, plan in plans.items()}
print("\nL = 2, cut into 2 and 4; the adjoints of")
for name, found in results.items():
    same = bool(np.all(found == expected))
    off = gap(found.astype(float), expected.astype(float))
    passes = L + len(plans[name]) + 1
    print(f"  {name:22} {passes} passes  ", "equal (==)" if same else f"{100 * off:.0f} % off")
    assert same == (name in ("layer 2, then 1", "both, and both again"))
assert np.all(results["both at once"] == results["layer 1, then 2"])

# %% [markdown]
# The two wrong orders give the same wrong gradient: $a_2$ is right, and $a_1$ lacks what goes
# through $s_2$. To repeat the pass for both mends it, because then $a_2$ is known. In general,
# $R$ passes that update *all* adjoints make the last $R$ of them right: $R = L$ is enough, and it
# is not fewer passes than last to first, only more work in each.
#
# One may hope that fewer do nearly. **Before you run the next cell:** a chain of $L$ layers, and
# $R$ of these passes, from 0 to $L$; once with ReLU between the layers, once with tanh. How does
# the error go down?

# %%
n, b = 64, 8


def errors_by_passes(L, activation):
    """The error of the gradient after 0, 1, ..., L passes that update all adjoints."""
    net, rng = Chain(L, 16, 8, 4, activation=activation), np.random.default_rng(1)
    batch = rng.standard_normal((n, 8)), rng.standard_normal((n, 4))
    expected, found_off = at_once(net, batch), []
    for R in range(L + 1):
        found, _ = by_passes(net, batch, [b] * (n // b), [range(L)] * R)
        found_off.append(gap(found, expected))
        above = sum(layer.weight.data.size for layer in net.layers[L - R :])
        assert gap(found[-above:], expected[-above:]) < 1e-12  # these layers need the last R alone
    return found_off


sweeps = {
    (name, L): errors_by_passes(L, activation)
    for name, activation in {"ReLU": mg.ReLU, "tanh": mg.Tanh}.items()
    for L in (2, 3, 8)
}
print("error of the gradient in % after R = 0, 1, ..., L passes for all adjoints")
for (name, L), off in sweeps.items():
    print(f"{name}, L = {L}: ", *(f"{100 * e:5.3g}" for e in off[:-1]), "  equal (< 1e-12)")
    assert off[L] < 1e-12 < 1e-3 < min(off[:L])
half_done = sweeps["ReLU", 8]
assert max(half_done) > 2 * half_done[0]  # worse than not begun
for L in (2, 3):
    assert all(after < before / 2 for before, after in pairwise(sweeps["tanh", L]))

# %% [markdown]
# It depends on the net. In the ReLU net with eight layers the error goes *up* first: here an
# adjoint of which parts are missing is no approximation of it. In the short nets with tanh each
# pass takes away more than half of the error: there fewer passes are an approximation, and one may
# stop early with it. Nothing tells beforehand of which kind a net is. What holds for every net:
# $L$ such passes are enough, and the gradient is then that of one batch to rounding.
#
# ## Four methods
#
# How wrong are the methods that do without? We compare with one batch of 64 samples, in
# micro-batches of 8, in nets of 1 to 8 BatchNorm layers:
#
# - *micro*: each micro-batch by its own statistics (`statistics="micro"`);
# - *no adjoints*: the statistics of all, held constant;
# - *running*: Batch Renormalization (`statistics="running"`, lesson 07) at its best: we make its
#   running statistics those of this very batch, so that its outputs are right too;
# - *batch*: minigrad's exact way (`statistics="batch"`, the default).
#
# **Before you run the next cell:** put the first three in order. Is it worth a pass to know the
# statistics of all?


# %%
def with_batchnorm(net, statistics, known=None):
    """The same net with minigrad's BatchNorm. known: running statistics."""
    modules = []
    for i, layer in enumerate(net.layers[:-1]):
        channels = layer.weight.shape[1]
        norm = mg.BatchNorm(channels, affine=False, statistics=statistics, dtype=np.float64)
        if known is not None:
            norm.running_mean, norm.running_var = known[i]
        modules += [layer, norm, net.activation]
    return mg.Sequential(*modules, net.layers[-1])


def by_minigrad(net, batch, b, statistics, known=None):
    """(gradient, passes) of mg.accumulate."""
    model = with_batchnorm(net, statistics, known)
    report = mg.accumulate(model, mg.squared_error, batch, b, reduction="sum")
    return gradient(net), report.passes


depths, seeds = (1, 2, 3, 8), 4
errors = {name: [] for name in ("no adjoints", "micro", "running", "batch")}
for L in depths:
    of_seeds = []
    for seed in range(seeds):
        rng = np.random.default_rng(100 + seed)
        net = Chain(L, 16, 8, 4, seed=seed)
        batch = rng.standard_normal((n, 8)), rng.standard_normal((n, 4))
        expected, _ = by_minigrad(net, batch, n, "batch")
        no_adjoints, known = by_passes(net, batch, [b] * (n // b), [])
        exact_one, passes = by_minigrad(net, batch, b, "batch")
        assert passes == 2 * L + 1
        found = (
            no_adjoints,
            by_minigrad(net, batch, b, "micro")[0],
            by_minigrad(net, batch, b, "running", known)[0],
            exact_one,
        )
        of_seeds.append([gap(g, expected) for g in found])
        assert of_seeds[-1][-1] < 1e-12
        assert min(of_seeds[-1][:-1]) > 1e-2
    for name, off in zip(errors, np.mean(of_seeds, axis=0)):
        errors[name].append(off)
    assert errors["no adjoints"][-1] > errors["micro"][-1] > errors["running"][-1]

for off in (errors["no adjoints"], errors["micro"], errors["running"]):
    assert off == sorted(off)  # worse with each layer

net = Chain(2, 16, 8, 4, activation=mg.Tanh)
expected, _ = by_minigrad(net, batch, n, "batch")
with_tanh = [
    gap(found, expected)
    for found, _ in (by_passes(net, batch, [b] * (n // b), []), by_minigrad(net, batch, b, "micro"))
]
print("tanh in place of ReLU, L = 2: no adjoints {:.0%}, micro {:.0%}".format(*with_tanh))
assert 1e-2 < with_tanh[0] < with_tanh[1]  # the other way round

figure, axes = plotting.subplots(height=3.6)
styles = {
    "no adjoints": ("statistics of all, no adjoints", plotting.RED, "s", "//"),
    "micro": ("micro-batch statistics", plotting.ORANGE, "o", ""),
    "running": ("running statistics, at their best", plotting.PURPLE, "^", ".."),
    "batch": ("exact, by 2L + 1 passes: equal", plotting.BLUE, "D", ""),
}
places = np.arange(len(depths))
for i, (name, (label, colour, _, hatch)) in enumerate(styles.items()):
    at = places + 0.2 * (i - 1.5)
    if name == "batch":
        axes.plot(at, [0] * len(depths), "D", color=colour, ms=7, label=label, clip_on=False)
        continue
    shares = [100 * off for off in errors[name]]
    axes.bar(at, shares, 0.18, color=colour, hatch=hatch, edgecolor="white", lw=0, label=label)
    for place, share in zip(at, shares):
        axes.text(place, share + 4, f"{share:.0f}", ha="center", fontsize=9)
axes.set_xticks(places, [f"L = {L}" for L in depths])
axes.set_ylabel("error, % of the gradient")
axes.set_ylim(0, 100 * max(map(max, errors.values())) * 1.12)
handles, labels = axes.get_legend_handles_labels()
axes.legend([*handles[1:], handles[0]], [*labels[1:], labels[0]], loc="upper left")
lists = {
    name: ", ".join(f"{100 * off:.0f}" for off in errors[name])
    for name in ("no adjoints", "micro", "running")
}
caption = (
    f"Error of the gradient of a batch of {n} in micro-batches of {b}, with L = 1, 2, 3 and 8 "
    f"BatchNorm layers, the mean of {seeds} nets, in percent. Statistics of all but no adjoints: "
    f"{lists['no adjoints']}; micro-batch statistics: {lists['micro']}; running statistics at "
    f"their best: {lists['running']}; exact: equal to rounding, each time."
)
plotting.show(figure, "08-four-methods", caption)

# %% [markdown]
# So in these nets a first pass for the statistics of all, without adjoints, makes the gradient
# *worse* than leaving that pass out. That is no theorem: with tanh in place of ReLU it is the other
# way round, as the first line shows. Neither is the gradient, and both get worse with each layer.
# Running statistics at their best are ahead: their outputs are right, and backward each micro-batch
# uses its own sums as a guess of the adjoints. The exact method has no place in this order.
#
# ## Passes, products and memory
#
# **Memory.** On the tape there is one micro-batch at a time. What must be kept from pass to pass
# are four numbers a channel, mean, variance and their adjoints, if the loss has one unit (lesson
# [05](05_sum_or_mean.ipynb)): each further unit is divided by a weight of its own, and so has
# adjoints of its own, two numbers more. minigrad keeps another few, with which it works or checks
# that a pass repeats what another has computed. Nothing of this grows with $N$.
#
# **Passes.** $L$ counts the norms of the longest chain, not all that there are: norms beside each
# other do not need each other's statistics, and share their passes.
#
# **Work.** Let the norms cut the net into $L + 1$ segments of equal size. For a matrix layer the
# forward pass is one product of matrices, the backward pass two: one for the gradient by its
# input, one for that by its weights. An ordinary update makes $3(L + 1)$ products (or one less: no
# gradient by the data is wanted). The statistics of layer $l$ need $l$ segments forward, together
# $L(L + 1)/2$. Each adjoint pass goes forward through all $L + 1$, together $L(L + 1)$, and
# backward only as far as its layer: through $L + 1 - l$ segments, together $L(L + 1)/2$. The last
# pass is an ordinary one. If a segment backward is always two products, all passes but the last
# make $L(L + 1) \big(\frac12 + 1 + 2 \cdot \frac12\big)$ products; divided by $3(L + 1)$, and with
# the last pass, that is
#
# $$1 + \frac{5 L}{6}.$$
#
# But adjoint passes want no gradient by weights. minigrad leaves these products out, so that a
# segment backward is one, the bracket is 2, and the sum becomes $1 + 2L/3$. **Before you run the
# next cell:** $L = 2$. Draw five rows, one a pass, and mark in each what is computed of the three
# segments.


# %%
class Counted(mg.Module):
    """A matrix layer that notes each product: (pass, segment, kind) and for how many samples."""

    trace, calls, k = Counter(), 0, 1

    def __init__(self, width, segment, seed):
        self.weight = mg.parameter(np.random.default_rng(seed).standard_normal((width, width)))
        self.segment = segment

    def forward(self, x):
        x, W = mg.functions.as_tensor(x, like=self.weight), self.weight
        Counted.calls += self.segment == 0
        this_pass = (Counted.calls - 1) // Counted.k

        def note(kind, computed=True):
            if computed:
                Counted.trace[this_pass, self.segment, kind] += len(x)

        def pullback(g):
            note("by input", x.requires_grad)
            note("by weights", W.requires_grad)
            return g @ W.data.T, x.data.T @ g

        note("forward")
        return mg.tensor.record(x.data @ W.data, (x, W), pullback)


def counted(L, b, width=8):
    """(trace, passes) of one window of n samples in micro-batches of b."""
    modules = []
    for i in range(L):
        modules += [Counted(width, i, i), mg.BatchNorm(width, dtype=np.float64), mg.ReLU()]
    model = mg.Sequential(*modules, Counted(width, L, L))
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((n, width)), rng.standard_normal((n, width))
    Counted.trace, Counted.calls, Counted.k = Counter(), 0, n // b
    report = mg.accumulate(model, mg.squared_error, batch, b)
    return Counted.trace, report.passes


costs = {}
for L in depths:
    ordinary, _ = counted(L, n)
    trace, passes = counted(L, b)
    assert passes == 2 * L + 1 == 1 + max(row for row, _, _ in trace)
    assert ordinary.total() == n * (3 * (L + 1) - 1)  # the data want no gradient: one less
    more = L * (L + 1) / 2 + L * (L + 1) + L * (L + 1) / 2  # statistics, adjoints: there and back
    look = L * b  # the first micro-batch goes to the end once: which norms are there?
    assert trace.total() == ordinary.total() + n * more + look
    costs[L] = trace.total() / ordinary.total()
    print(f"L = {L}: {passes:2} passes, {costs[L]:.2f} times the products of an ordinary update")


class Branches(mg.Module):
    """Two norms in a row, and one beside them: a chain of 2."""

    def __init__(self):
        self.linears = [mg.Linear(3, 3) for _ in range(3)]
        self.norms = [mg.BatchNorm(3) for _ in range(3)]

    def forward(self, x):
        one, two, beside = (lambda x, i=i: self.norms[i](self.linears[i](x)) for i in range(3))
        return mg.relu(two(mg.relu(one(x))) + beside(x))


some = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
assert mg.accumulate(Branches(), mg.squared_error, (some, some), 4).passes == 2 * 2 + 1
print("three norms, the longest chain of 2: 5 passes")
print(f"by 1 + 2L/3, a net with 50 norms in a chain: {1 + 2 * 50 / 3:.0f} times")

L = 2
trace, passes = counted(L, b)
figure, axes = plotting.subplots(height=4.0)
kinds = {
    "forward": (0, plotting.BLUE, ""),
    "by input": (1, plotting.ORANGE, "//"),
    "by weights": (2, plotting.RED, "xx"),
}
for (this_pass, segment, kind), samples in trace.items():
    slot, colour, hatch = kinds[kind]
    left = 4 * segment + slot
    axes.barh(
        this_pass, 0.94 * samples / n, 0.62, left=left, color=colour, hatch=hatch, ec="white", lw=0
    )
for kind, (_, colour, hatch) in kinds.items():
    label = {"forward": "forward", "by input": "backward, by the input"}.get(kind)
    label = label or "backward, by the weights"
    axes.barh(0, 0, color=colour, hatch=hatch, ec="white", lw=0, label=label)
for norm in range(L):
    axes.vlines(4 * norm + 3.5, -0.65, passes - 0.5, color=plotting.DARK, ls=(0, (1, 1.5)), lw=1.2)
    for this_pass, name in ((norm, "statistics"), (2 * L - 1 - norm, "adjoints")):
        style = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": plotting.DARK}
        axes.text(4 * norm + 3.5, this_pass, name, ha="center", va="center", fontsize=8, bbox=style)
for this_pass in range(passes):
    total = sum(samples for (row, _, _), samples in trace.items() if row == this_pass) / n
    axes.text(11.6, this_pass, f"{total:.3g}", ha="right", va="center")
axes.text(11.6, -0.62, "products", ha="right", va="center", fontsize=9)
axes.set(xlim=(-0.2, 11.7), ylim=(passes - 0.5, -1.0))
axes.set_yticks(range(passes), [f"pass {i + 1}" for i in range(passes)])
axes.set_xticks([4 * i + 1.5 for i in range(L + 1)], [f"segment {i + 1}" for i in range(L + 1)])
for norm in range(L):
    axes.text(4 * norm + 3.5, -0.85, f"norm {norm + 1}", ha="center", va="center", fontsize=9)
axes.tick_params(length=0)
axes.grid(False)
axes.spines[:].set_visible(False)
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)
in_all = trace.total() / n
caption = (
    f"The {passes} passes for L = {L}, as minigrad made them: a bar is a product of matrices, its "
    f"length the share of the {n} samples. Passes 1 and 2 go forward to a norm and find its "
    f"statistics (thin bars: the first micro-batch went to the end, to find the norms), 3 and 4 "
    f"come back to a norm and find its adjoints, the last first, and pass 5 is an ordinary one, "
    f"without a gradient by the data. {in_all:.3g} products in all, against {3 * (L + 1) - 1} of "
    f"an ordinary update."
)
plotting.show(figure, "08-passes", caption)

# %% [markdown]
# The statistics of the last norm cost most, and its adjoints least; for the first norm it is the
# other way round. The picture counts products, it does not measure time. (Put `b = 4` at the head
# of the cell: what becomes of the thin bars?)
#
# Now memory: all numbers that the operations leave on the tape when `backward` begins, counted as
# in lesson 04, and with them what is kept between passes: all arrays that can be reached from
# the object in which minigrad keeps it (`Coupling`, below). **Before you run the next cell:** one
# batch of 64, or the same in parts of 8. What happens to each of the two numbers if the batch is
# twice as large? And if the net has twice as many norms?


# %%
from minigrad.coupling import Coupling
from minigrad.samples import current_samples


def on_tape(root):
    """How many numbers the operations below this Tensor have left."""
    nodes, stack = set(), [root.node]
    while stack:
        node = stack.pop()
        nodes.add(node)
        stack += [p for p in node.parents if isinstance(p, mg.tensor.Node) and p not in nodes]
    return sum(math.prod(node.shape) for node in nodes)


def reached(thing, seen):
    """How many numbers the arrays hold that can be reached from here, each array once."""
    if id(thing) in seen:
        return 0
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray):
        return thing.size
    if isinstance(thing, dict):
        inside = [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set):
        inside = thing
    elif isinstance(thing, mg.Tensor):
        inside = [thing.data, thing.grad]
    else:  # what else coupling.py makes, but not the model
        inside = vars(thing).values() if type(thing).__module__ == Coupling.__module__ else []
    return sum(reached(part, seen) for part in inside)


def numbers_held(L, n, b, width=16, units=1):
    """The most that is on the tape at once, and the most that is kept from pass to pass."""
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((n, 8)), rng.standard_normal((n, 4))
    tape, kept = [], []

    def loss(outputs, targets):
        each = [mg.squared_error(outputs, targets, unit=f"unit {i}") for i in range(units)]
        tape.append(on_tape(each[0].sum()))
        kept.append(reached(current_samples().coupling, {}))
        return sum(each)

    model = with_batchnorm(Chain(L, width, 8, 4), "batch")
    mg.accumulate(model, loss, batch, b)
    return max(tape), max(kept)


one, cut_up = ([numbers_held(L, n, size) for L in depths] for size in (n, b))
in_parts = [tape + kept for tape, kept in cut_up]
for L, (whole, _), parts, (_, kept) in zip(depths, one, in_parts, cut_up):
    channels = 16 * L
    per_channel = kept // channels
    in_words = f"in parts {parts:5,}, of which kept {kept}, {per_channel} a channel"
    print(f"L = {L}: one batch {whole:6,} numbers; {in_words}")
    assert numbers_held(L, 2 * n, 2 * n)[0] > 1.9 * whole
    assert numbers_held(L, 2 * n, b) == numbers_held(L, n, b)  # N does not occur
    assert parts < whole / 4
    two_units = numbers_held(L, n, b, units=2)[1]
    assert 4 <= per_channel <= 12
    assert (two_units - kept) // channels == 2  # the adjoints of the second unit

figure, (left, right) = plotting.subplots(1, 2, height=3.4)
memory = {
    f"one batch of {2 * n}": (
        [numbers_held(L, 2 * n, 2 * n)[0] for L in depths],
        plotting.RED,
        "s",
    ),
    f"one batch of {n}": ([whole for whole, _ in one], plotting.ORANGE, "o"),
    f"either, in parts of {b}": (in_parts, plotting.BLUE, "D"),
}
for i, (name, (values, colour, marker)) in enumerate(memory.items()):
    left.plot(depths, values, color=colour, ls=plotting.LINES[i], marker=marker, ms=6, label=name)
left.set_ylim(0)
left.set_ylabel("numbers held")
left.set_title("memory")
left.legend()
at = np.array([0, 8])
right.plot(at, 1 + 2 * at, color=plotting.GREY, ls=plotting.LINES[3], label="passes, 2L + 1")
right.plot(at, 1 + 5 * at / 6, color=plotting.PURPLE, ls=plotting.LINES[1], label="1 + 5L/6")
right.plot(at, 1 + 2 * at / 3, color=plotting.BLUE, label="1 + 2L/3")
right.plot([*costs], [*costs.values()], "D", color=plotting.BLUE, ms=6, label="counted")
right.set_ylim(0, 12)
right.set_ylabel("times an ordinary update")
right.set_title("work: products of matrices")
right.legend(loc="upper left")
for panel in (left, right):
    panel.set_xticks(depths)
    panel.set_xlabel("BatchNorm layers L")
caption = (
    f"Left: numbers held for L = {depths[-1]}: {memory[f'one batch of {2 * n}'][0][-1]:,} for one "
    f"batch of {2 * n}, {one[-1][0]:,} for {n}, and {in_parts[-1]:,} in parts of {b}, whatever the "
    f"batch. Right: products of matrices, for equal segments; counted for L = 1, 2, 3, 8: "
    f"{', '.join(f'{cost:.2f}' for cost in costs.values())}. The line 1 + 2L/3 lies just below, "
    f"1 + 5L/6 is with gradients by weights in each pass. Passes grow faster than work, for most "
    f"of them go only a part of the way."
)
plotting.show(figure, "08-memory-and-work", caption)

# %% [markdown]
# So memory is bought with work: for one BatchNorm layer less than twice an ordinary update, for
# eight more than six times. It pays where few layers are BatchNorm, or where one must know: is it
# BatchNorm that makes my accumulated run differ?
#
# The thoughts are old: adjoints, and recomputing instead of storing (Griewank and Walther 2008).
# Devices that work *at once* exchange the same sums, in one pass (synchronized BatchNorm). Others
# came near with approximations (Lian and Liu 2019; Ioffe 2021). We know of no publication of the
# exact passes for BatchNorm; that does not mean that there is none.
#
# ## The lines that do it
#
# `exact` makes the passes, for any model of minigrad. The *level* of a norm is its place in the
# longest chain that leads to it: above, layer $l$ had the level $l$. `walk` goes once over the
# micro-batches, and `_frozen` says that no gradient by weights is wanted. `Coupling` holds
# the statistics and adjoints. In each pass BatchNorm asks `Coupling.of` for the mean and variance
# to standardize by. Find in `of` the three answers: a statistics pass, an adjoint pass of this
# layer's level, and the others, which carry the term $a \cdot s(x_i)$ along.

# %%
from minigrad.coupling import exact

show_source(exact, Coupling.of)

# %% [markdown]
# ## The same trick for a loss of the whole batch
#
# Some losses couple the samples as well. A **contrastive** loss has pairs, say of a picture and its
# title. Two nets, the *towers*, make vectors $p_i$ and $q_i$ of the two sides ($p$ is no exponent
# any more), and each $p_i$ is to find its own $q_i$ among *all* $q_j$ of the batch. With the scores
# $p_i \cdot q_j$ as logits, it is a cross-entropy whose classes are the samples of the batch: the
# right one is $i$ itself, the others are the *negatives*. (`mg.contrastive` takes the mean of this
# and of the same with the sides exchanged.)
#
# Four pairs, each score 1 for its own and 0 for another: the loss of each $p_i$ is
# $-\log \frac{e}{e + 3} = \log(1 + 3/e)$. **Before you run the next cell:** somebody computes it
# on micro-batches of $b = 2$ and of $b = 1$ and takes the mean. What are the three losses? What
# is the gradient for $b = 1$?
#
# The way out: here it is the *outputs* that couple. Make them variables. Pass 1 computes all
# outputs $z_i = (p_i, q_i)$, without a tape; the loss is differentiated by them, which gives an
# adjoint $G_i$ for each; pass 2 accumulates the gradient of $\sum_i G_i \cdot z_i$, with $G_i$
# constant: a sum over samples. This is GradCache (Gao et al. 2021). A loss that is marked with
# `@mg.coupled`, as `mg.contrastive` is, is treated so in `mg.accumulate` and `mg.train_step`.
#
# What does it save? The tape of the towers: there is that of one micro-batch at a time. Kept are
# $N d$ numbers for outputs of $d$ numbers, and as many for their gradients, where BatchNorm keeps a
# few a channel. And what it does not save is what the loss itself needs: it is computed once, on
# all outputs, whatever $b$ is. For the contrastive loss that is $N \times N$ scores, and what their
# `backward` needs. For a loss that sums over the batch first, as Dice (`mg.dice`: the overlap of a
# predicted mask and the true one), it is a few numbers a sample. The end of the next cell measures
# both, with $N = 1024$ and the same net: guess which of the two is worth a pass.


# %%
class Pairs(mg.Module):
    """Two towers: p = f(x), q = g(y)."""

    def __init__(self, f, g):
        self.f, self.g = f, g

    def forward(self, inputs):
        x, y = inputs
        return self.f(x), self.g(y)


def identity(d):
    layer = mg.Linear(d, d, bias=False, dtype=np.float64)
    layer.weight.data = np.eye(d)
    return layer


def on_micro_batches(model, pairs, b):
    """Wrong: each micro-batch has its own negatives."""
    model.zero_grad()
    n, total = len(pairs[0]), 0
    for start in range(0, n, b):
        part = slice(start, start + b)
        S = mg.contrastive(model(tuple(side[part] for side in pairs))).sum() / n
        S.backward()
        total += S.item()
    return total, gradient(model)


def cached(model, pairs, b):
    """Right: two passes."""
    n = len(pairs[0])
    parts = [tuple(side[start : start + b] for side in pairs) for start in range(0, n, b)]
    with mg.no_grad():
        outputs = [model(part) for part in parts]  # pass 1
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    S = mg.contrastive(tuple(whole)).mean()
    S.backward()  # the outputs are leaves: what stands in their .grad is G
    model.zero_grad()
    for j, part in enumerate(parts):  # pass 2
        here = slice(j * b, j * b + b)
        sum((z * leaf.grad[here]).sum() for z, leaf in zip(model(part), whole)).backward()
    return S.item(), gradient(model)


score = 1  # of the two sides of a pair; that of any others is 0
pairs, four = (score * np.eye(4), np.eye(4)), Pairs(identity(4), identity(4))
expected = on_micro_batches(four, pairs, 4)[1]
print(" b    own negatives    two passes")
for size in (4, 2, 1):
    (alone, alone_gradient), (loss, found) = (
        way(four, pairs, size) for way in (on_micro_batches, cached)
    )
    print(f"{size:2} {alone:13.4f} {loss:15.4f}")
    assert math.isclose(alone, math.log(1 + (size - 1) / math.exp(score)), abs_tol=1e-12)
    assert math.isclose(loss, math.log(1 + 3 / math.exp(score)))
    assert gap(found, expected) < 1e-12
    report = mg.accumulate(four, mg.contrastive, (pairs,), size)
    assert report.passes == (1 if size == 4 else 2)
    assert gap(gradient(four), expected) < 1e-12
    assert size == 4 or gap(alone_gradient, expected) > 0.1
assert not np.any(alone_gradient)  # one pair alone: there is nothing to tell it from

rng = np.random.default_rng(0)
pairs = rng.standard_normal((12, 5)), rng.standard_normal((12, 6))
towers = Pairs(*(mg.MLP(d, 8, 8, 4, norm=mg.BatchNorm, dtype=np.float64) for d in (5, 6)))
mg.accumulate(towers, mg.contrastive, (pairs,), 12)
expected = gradient(towers)
report = mg.accumulate(towers, mg.contrastive, (pairs,), 3)
assert gap(gradient(towers), expected) < 1e-12
assert report.passes == 2 * 2 + 2
print(f"\nboth: two towers with BatchNorm, L = 2, contrastive: equal, in {report.passes} passes")


def peak(model, loss, batch, b):
    """Bytes that one window takes at most, beyond what is there before."""
    mg.accumulate(model, loss, batch, b)  # the gradients get their places
    with mg.measure_memory() as memory:
        mg.accumulate(model, loss, batch, b)
    return memory.peak


many = 1024
images = rng.standard_normal((many, 16))
nets = [mg.MLP(16, 64, 64, outputs, dtype=np.float64) for outputs in (8, 8, 1)]
cases = {
    "contrastive": (Pairs(*nets[:2]), mg.contrastive, ((images, images),)),
    "Dice": (mg.Sequential(nets[2], mg.Sigmoid()), mg.dice, (images, 1.0 * (images[:, :1] > 0))),
}
peaks = {name: [peak(*case, size) for size in (many, 16)] for name, case in cases.items()}
for name, sizes in peaks.items():
    print(f"{name:12} one batch {sizes[0] / 1e6:4.2g} MB, parts of 16 {sizes[1] / 1e6:4.2g} MB")
    assert (sizes[1] > 4 * 8 * many**2) == (name == "contrastive")  # several times N x N float64
assert peaks["contrastive"][1] > 0.9 * peaks["contrastive"][0]
assert peaks["Dice"][1] < 0.1 * peaks["Dice"][0]

# %% [markdown]
# The mean of the naive losses is lower, not because the model is better, but because the question
# is easier: with one pair there is no wrong answer to choose, the loss is 0, and nothing is
# learned. (Change `score` to 3: which of the losses does not move?) Both together cost one pass
# more than BatchNorm alone, $2L + 2$.
#
# With Dice nearly all memory was the tape of the net, and is saved. With the contrastive loss at
# this $N$ nearly all is what the loss holds of the $N \times N$ scores, and the pass more has
# bought next to nothing. It pays where the towers' tape is the larger: with towers that hold many
# more than $N$ numbers a sample.
#
# ## Where it ends
#
# A pass repeats what another has computed. So
#
# - **the same draws in each pass**: dropout whose masks belong to the samples (lesson 06) is
#   drawn the same again; a layer that draws anew at each call makes the statistics those of
#   another net. minigrad compares what the passes see, and refuses what differs; what neither a
#   BatchNorm nor the loss sees is not seen;
# - **the same layers in the same order**, for each micro-batch: minigrad looks, and refuses;
# - **each norm once in a forward pass**: a Siamese net, which sends two views of a sample through
#   one norm, is refused by name. Take a norm for each view; their weight and bias may be shared
#   (in other libraries, too, each call standardizes by its own rows; but there both calls move one
#   pair of running statistics);
# - **all coupling through the statistics that are known**: a layer that compares samples in its
#   own way is not noticed, and its gradient is that of micro-batches.
#
# The sums are merged in floating point: the result is equal to *rounding*, not bit for bit.
#
# Two things that are said (and that lesson 07 met) belong here. *"Synchronized BatchNorm solves
# accumulation."* It merges the statistics of $D$ devices that work at the same moment: of $D b$
# samples, not of $D b k$. And *"move the running statistics properly, once an update, and it is
# exact."* They serve in evaluation. In training the layer standardizes by the batch (Batch
# Renormalization looks at both, and is in the picture above). The second cell measures both claims.
#
# **Before you run the next two cells:** in the first, six layers stand in turn between two norms:
# dropout by sample; dropout that draws anew at each call; one that subtracts the mean over its
# rows; a norm that is left out at every second call; one norm for two views; two norms for two
# views, with one weight and bias. Which of the six nets have the right gradient, which fail loudly,
# and which silently? And three devices take micro-batches of 2 each from a batch of 24: by how many
# samples does synchronized BatchNorm standardize?


# %%
class DrawnAnew(mg.Module):
    """Dropout whose masks belong to no sample."""

    def forward(self, x):
        return x * np.random.default_rng().integers(0, 2, x.shape) * 2.0


class Centred(mg.Module):
    """Couples the samples in its own way."""

    def forward(self, x):
        return x - x.mean(axis=0)


class EveryOther(mg.Module):
    """Leaves out its layer at every second call."""

    def __init__(self, layer):
        self.layer, self.calls = layer, 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) if self.calls % 2 else x


class TwoViews(mg.Module):
    """Two views of its input, each through a norm."""

    def __init__(self, norm, other):
        self.norm, self.other = norm, other

    def forward(self, x):
        return self.norm(x) + self.other(mg.tanh(x))


def norm_of_view(like=None):
    norm = mg.BatchNorm(8, dtype=np.float64)
    if like is not None:
        norm.weight, norm.bias = like.weight, like.bias
    return norm


def with_layer(between):
    rng = np.random.default_rng(0)
    first, last = (mg.Linear(8, 8, rng=rng, dtype=np.float64) for _ in range(2))
    norms = [mg.BatchNorm(8, dtype=np.float64) for _ in range(2)]
    return mg.Sequential(first, norms[0], mg.ReLU(), between, norms[1], last)


batch = tuple(np.random.default_rng(0).standard_normal((2, 24, 8)))
of_a_view, off = norm_of_view(), {}
for name, between in {
    "dropout by sample": mg.Dropout(0.5),
    "dropout drawn anew": DrawnAnew(),
    "centred by itself": Centred(),
    "leaves out a layer": EveryOther(mg.BatchNorm(8, dtype=np.float64)),
    "a norm, two views": TwoViews(of_a_view, of_a_view),
    "a norm for each view": TwoViews(of_a_view, norm_of_view(like=of_a_view)),
}.items():
    model, found = with_layer(between), []
    try:
        for size in (24, 6):
            mg.accumulate(model, mg.squared_error, batch, size)
            found.append(gradient(model))
        off[name] = gap(found[1], found[0])
        right = off[name] < 1e-12
        print(f"{name:20}", "equal (< 1e-12)" if right else "different, and nothing is said")
    except ValueError as error:
        print(f"{name:20} refused: {error}")
assert max(off["dropout by sample"], off["a norm for each view"]) < 1e-12
assert off.pop("centred by itself") > 1e-2
assert off.keys() == {"dropout by sample", "a norm for each view"}  # the others were refused

# %%
net, devices, size = Chain(1, 16, 8, 8), 3, 2
expected, _ = by_minigrad(net, batch, 24, "batch")
for together in (size, devices * size, 24):  # samples whose statistics are taken together
    off = gap(by_minigrad(net, batch, together, "micro")[0], expected)
    print(
        f"statistics of {together:2} samples:", "equal" if off < 1e-12 else f"{100 * off:.0f} % off"
    )
    assert (off < 1e-12) == (together == 24)

after = []  # one update, of one batch and of micro-batches
for statistics, size in (("batch", 24), ("micro", 6)):
    model = with_batchnorm(Chain(1, 16, 8, 8), statistics)
    optimizer = mg.SGD(model.parameters(), lr=1.0)  # so that the weight moves by the gradient
    before = np.concatenate([p.data.ravel() for p in model.parameters()])
    mg.train_step(model, mg.squared_error, optimizer, batch, size)
    (norm,) = (m for m in model.modules() if isinstance(m, mg.BatchNorm))
    step = before - np.concatenate([p.data.ravel() for p in model.parameters()])
    after.append((norm.running_mean, norm.running_var, step))
(mean, var, right), (same_mean, same_var, wrong) = after
assert max(gap(same_mean, mean), gap(same_var, var)) < 1e-12
assert gap(wrong, right) > 1e-2
print(f"running statistics moved properly: equal; the step {100 * gap(wrong, right):.0f} % off")

# %% [markdown]
# ## Usual mistakes
#
# - *"Two passes suffice."* $2L + 1$, and the adjoints are most of the matter. Right outputs do
#   not make a right gradient.
# - *"A few of the passes are a good approximation."* In some nets; in others half-done is worse
#   than not begun.
# - *"The adjoints of all layers in one pass."* The last one first: the others contain it.
# - *"Synchronized BatchNorm solves accumulation"*, and *"proper running statistics make it
#   exact"*: the last cell.
# - *"The contrastive loss went down when $b$ did."* So did the number of wrong answers.
# - *"Exact is always worth it."* It is paid with passes. LayerNorm and GroupNorm cost nothing
#   extra.
#
# ## In short
#
# Given the statistics, a loss with BatchNorm is a sum over samples; the statistics are sums too.
# Their adjoints $a = dS/ds$, found last first, complete the gradient: $2L + 1$ passes, the tape
# of one micro-batch, a few numbers a channel. It is that of one batch, to rounding. A loss of a
# whole batch gives way to the same trick, with its outputs as the variables: that saves the tape of
# the net, not what the loss itself holds.
#
# ## References
#
# - T. F. Chan, G. H. Golub, R. J. LeVeque (1979). *Updating formulae and a pairwise algorithm for
#   computing sample variances.* Technical report STAN-CS-79-773, Stanford: how statistics merge.
# - L. Gao, Y. Zhang, J. Han, J. Callan (2021). *Scaling deep contrastive learning batch size
#   under memory limited setup.* RepL4NLP, arXiv:2101.06983: GradCache.
# - A. Griewank, A. Walther (2008). *Evaluating Derivatives*, second edition. SIAM.
# - S. Ioffe, C. Szegedy (2015). *Batch Normalization: accelerating deep network training by
#   reducing internal covariate shift.* ICML, arXiv:1502.03167.
# - S. Ioffe (2017). *Batch Renormalization.* arXiv:1702.03275.
# - S. Ioffe (2021). *Extreme normalization: approximating full-data batch normalization with
#   single examples.* OpenReview wzJnpBhRILm.
# - X. Lian, J. Liu (2019). *Revisit Batch Normalization: new understanding and refinement via
#   composition optimization.* AISTATS, arXiv:1810.06177.
# - A. van den Oord, Y. Li, O. Vinyals (2018). *Representation learning with contrastive
#   predictive coding.* arXiv:1807.03748.
