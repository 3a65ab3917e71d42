# %% [markdown]
# # 04 · When are k micro-batches one batch?
#
# **You will be able to**
#
# 1. say what gradient accumulation is compared with, and what it changes: samples per update,
#    updates per epoch, memory;
# 2. state the theorem with its five conditions, and break each of them;
# 3. tell three grades of "equal" apart: exact, rounding, different.
#
# **Needs:** lessons [02](02_autograd.ipynb) (why gradients are added) and
# [03](03_training_loop.ipynb) (what an update is). **Reading:** 40 minutes;
# **exercises:** 45 minutes ([04_accumulation](exercises/04_accumulation.ipynb)).
# **Code:** [`minigrad/accumulation.py`](../minigrad/accumulation.py),
# [`minigrad/batches.py`](../minigrad/batches.py).

# %% [markdown]
# ## Compared with what?
#
# A large batch of $N$ samples does not fit into memory. So it is cut into $k$ **micro-batches** of
# $b$ samples that do fit, $N = kb$. The gradient of each is computed, one after the other, and
# added to what is there; after the last one comes one update. The $k$ micro-batches of one update
# are a **window**. This is gradient accumulation.
#
# Much of what is said about it goes wrong at one question: compared with what? There are four ways
# to walk through the data:
#
# - one small batch of $b$, then an update;
# - $k$ small steps: the same loop, looked at for as long as it takes to see $N$ samples;
# - one large batch of $N$, then an update;
# - $k$ micro-batches of $b$ accumulated, then an update.
#
# It is often said that accumulation "does not change the number of samples seen per weight update".
# **Before you run the next cell:** which of the four ways agree in samples per update? Which agree
# in memory?

# %% claim="b"
import math
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.data import digits
from minigrad.reading import show_source

(x_train, y_train), _ = digits(np.float64)
b, k, lr = 32, 8, 0.1
N, samples = k * b, len(x_train)


def numbers_held(n):
    """How many numbers the operations of n samples leave on the tape; each sample has as many."""
    loss = mg.cross_entropy(mg.MLP(64, 64, 10, dtype=np.float64)(x_train[:n]), y_train[:n])
    nodes, stack = set(), [loss.sum().node]
    while stack:
        node = stack.pop()
        nodes.add(node)
        stack += [p for p in node.parents if isinstance(p, mg.tensor.Node) and p not in nodes]
    return sum(math.prod(node.shape) for node in nodes if node.shape)


# An epoch is a list of updates, an update a list of micro-batches, a micro-batch its size.
small = [[b]] * (samples // b)
large = [[N]] * (samples // N)
accumulated_epoch = [[b] * k] * (samples // N)
ways = {  # name: (epoch, updates looked at, rate)
    "one small batch of b": (small, 1, f"about {lr / k:g}"),
    "k small steps of b": (small, k, f"about {lr / k:g}"),
    "one large batch of N": (large, 1, f"{lr:g}"),
    "k of b, accumulated": (accumulated_epoch, 1, f"{lr:g}"),
}
print(f"b = {b}, k = {k}, N = {N}; an epoch has {samples:,} samples\n")
print("                       samples  updates   samples      updates    numbers   rate to go")
print("                        read     made    per update   per epoch    held     about as far")
for name, (epoch, updates, rate) in ways.items():
    read = sum(sum(window) for window in epoch[:updates])
    held = numbers_held(max(epoch[0]))
    row = f"{read:6} {updates:7} {sum(epoch[0]):10} {len(epoch):12} {held:13,}"
    print(f"{name:22}{row}     {rate}")

# The claim is wrong as it is written: against the small batch the number is k times as large.
assert sum(accumulated_epoch[0]) == k * sum(small[0]) == sum(large[0])
assert len(small) == k * len(accumulated_epoch) == k * len(large)
assert max(accumulated_epoch[0]) == b  # what stays is the number per forward pass
assert numbers_held(N) == k * numbers_held(b)

# %% [markdown]
# So the claim is wrong as it is written. Accumulation multiplies the samples per update by $k$ and
# divides the updates per epoch by $k$. What it keeps is the number of samples in one forward pass,
# and with it the memory of the tape. The sentence is true only beside the large batch that is
# imitated. (Change `b` to 64 and `k` to 4: which columns move, and which do not?)
#
# The last column, the learning rate with which each way goes about as far, is a promise to be kept
# below: the rate of the large batch serves the accumulated one as it is, and small steps need
# `lr / k`. And the last two rows look alike but for the memory. Is it the same gradient?
#
# ## The theorem
#
# The loss of a batch of $N$ samples, with parameters $\theta$, is
# $L(\theta) = \frac{1}{W}\sum_{i=1}^{N} w_i\, \ell_i(\theta)$. Five conditions:
#
# 1. **sum**: it is this, a sum of one term a sample, over a weight $W$ (often $w_i = 1$, $W = N$;
#    no weight of the model, and not the matrix $W$ of lesson 03);
# 2. **weight**: $w_i$ and $W$ come from the data, never from the parameters;
# 3. **alone**: $\ell_i$ looks at sample $i$ only: nothing couples the samples;
# 4. **draws**: what is random in $\ell_i$ is drawn the same, however the batch is cut;
# 5. **still**: $\theta$ does not move inside the window.
#
# Then for *every* cut of the batch into parts $P_1, \dots, P_k$, of any sizes, in any order,
#
# $$\nabla L = \frac{1}{W} \sum_{j=1}^{k} \nabla S_j, \qquad S_j = \sum_{i \in P_j} w_i\, \ell_i .$$
#
# *Proof, which may be skipped.* The derivative of a sum is the sum of the derivatives, and $W$ is a
# constant (2): $\nabla L = \frac1W \sum_i w_i \nabla \ell_i$ (1). Each term is the same computed in
# company or in a part, now or later (3, 4, 5). Addition may be grouped: by parts, it is
# $\frac1W \sum_j \nabla S_j$. ∎
#
# In code: add the gradients of the **sums**, add the weights, and divide **once**, at the end. A
# loss in minigrad keeps both apart: `loss.sum()` is $S_j$, and `loss.terms[0].weight` what it
# weighs: the number of samples for `mg.cross_entropy`, that of all elements of the output for
# `mg.squared_error`. `backward` does the adding, because `.grad` is added to (lesson 02).
#
# **Before you run the next cell:** 8 samples are cut into 5 and 3. Somebody takes the mean gradient
# of each part and averages the two. Is that the gradient of the batch?


# %%
def parts_of(sizes):
    """The micro-batches of these sizes, as slices of the batch."""
    return [slice(start, end) for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]


def gradient(model):
    """All gradients of the model, side by side in one array."""
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


def accumulated(model, loss, batch, sizes):
    """The gradient of the batch from micro-batches of these sizes."""
    model.zero_grad()
    weight = 0
    for part in parts_of(sizes):
        x, y = (array[part] for array in batch)
        found = loss(model(x), y)
        found.sum().backward()  # adds to .grad
        weight += found.terms[0].weight
    return gradient(model) / weight  # the one division


def mean_of_means(model, loss, batch, sizes):
    """What many loops do instead: each micro-batch its own mean, and those averaged."""
    model.zero_grad()
    for part in parts_of(sizes):
        x, y = (array[part] for array in batch)
        (loss(model(x), y).mean() / len(sizes)).backward()
    return gradient(model)


def quarters(rng, *shape):
    """Random multiples of 1/4 from -1 to 1: small numbers whose sums and products are exact."""
    return rng.integers(-4, 5, shape) / 4


def small_net(dtype, *between):
    """Linear, what is given (or ReLU), Linear; its parameters are multiples of 1/4."""
    model = mg.Sequential(mg.Linear(3, 4), *(between or [mg.ReLU()]), mg.Linear(4, 2))
    rng = np.random.default_rng(4)
    for p in model.parameters():
        p.data = quarters(rng, *p.shape)
    return model.astype(dtype)


n = 8
rng = np.random.default_rng(0)
x8, y8 = quarters(rng, n, 3), quarters(rng, n, 2)
batch = mg.fractions(x8), mg.fractions(y8)  # fractions.Fraction: arithmetic without any rounding
net = small_net(object)  # object: an array of such Fractions

whole = accumulated(net, mg.squared_error, batch, [n])
largest = max(range(len(whole)), key=lambda i: abs(whole[i]))  # the weight to look at
print(f"the gradient of one weight of {len(whole)}, {n} samples cut into {n - 3} and 3")
print("  one batch:     ", whole[largest])
for name, way in {"accumulated": accumulated, "mean of means": mean_of_means}.items():
    found = way(net, mg.squared_error, batch, [n - 3, 3])
    same = bool(np.all(found == whole))
    print(f"  {name + ':':14}  {found[largest]}  {'equal' if same else 'not equal'}")
    assert same or way is not accumulated  # exact
assert np.count_nonzero(whole) > len(whole) / 2  # gradients of 0 would prove nothing

# %% [markdown]
# ## Every cut of one batch
#
# One cut proves nothing. Eight samples in a row can be cut, or not, at each of seven places: that
# is $2^{n-1}$ cuts, from "not at all" to eight parts of one sample. The next cell tries all of
# them, in Fractions, and asks for `==` in every gradient of the net. Beside it stands the mean of
# means on the same cuts. **Before you run it:** on how many cuts will the mean of means be right?


# %%
def all_cuts(n):
    """The sizes of the parts in every way to cut n samples in a row, the fewest parts first."""
    cuts = []
    for here in product([False, True], repeat=n - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(here) if cut), n]
        cuts.append([end - start for start, end in pairwise(ends)])
    return sorted(cuts, key=len)


cuts = all_cuts(n)
by_sums = [accumulated(net, mg.squared_error, batch, sizes) for sizes in cuts]
by_means = [mean_of_means(net, mg.squared_error, batch, sizes) for sizes in cuts]
assert len(cuts) == 2 ** (n - 1)
assert all(np.all(g == whole) for g in by_sums)  # exact
right = [bool(np.all(g == whole)) for g in by_means]
even = [len(set(sizes)) == 1 for sizes in cuts]
assert right == even  # the mean of means is right for parts of one size, and here for no other

# Why: a sample is 1 / n_j of the mean of its part, and the part 1 / k of the mean of means.
singles = [accumulated(net, mg.squared_error, [a[i : i + 1] for a in batch], [1]) for i in range(n)]
for sizes, g in zip(cuts, by_means):
    shares = np.repeat([Fraction(1, len(sizes) * n_j) for n_j in sizes], sizes)
    assert np.all(shares @ np.array(singles) == g)  # exact

ratios = np.array([[g[largest] / whole[largest] for g in way] for way in (by_sums, by_means)])
ratios, even, rows = ratios.astype(float), np.array(even), np.arange(len(cuts))
widths = {"width_ratios": [1, 1.05, 1.6]}
figure, axes = plotting.subplots(1, 3, height=4.8, sharey=True, gridspec_kw=widths)
axes[0].set_title(f"all {len(cuts)} cuts")
axes[0].set_facecolor("#dfe9fd")
places = [(place, row) for row, sizes in enumerate(cuts) for place in np.cumsum(sizes)[:-1]]
across, down = np.array(places).T
axes[0].vlines(across, down - 0.5, down + 0.5, color=plotting.DARK, lw=2)
axes[0].set_xlim(0, n)
axes[0].set_xticks(np.arange(n) + 0.5, range(1, n + 1))
axes[0].set_xlabel("sample")
counts = [len(sizes) for sizes in cuts]
firsts = [counts.index(parts) for parts in range(1, n + 1)]
middles = [(start + end - 1) / 2 for start, end in pairwise([*firsts, len(cuts)])]
axes[0].set_yticks(middles, range(1, n + 1), fontsize=8)
axes[0].set_ylabel("number of parts k")
axes[0].set_ylim(len(cuts) + 1.5, -2.5)

axes[1].plot(ratios[0], rows, ls="", marker="o", ms=3, color=plotting.BLUE)
axes[1].set_title("sums added, divided once")
axes[2].axvline(1, color=plotting.BLUE, lw=1.2)
for name, chosen, marker, colour in (
    ("uneven parts", ~even, "x", plotting.RED),
    ("equal parts", even, "D", plotting.VIOLET),
):
    axes[2].plot(ratios[1][chosen], rows[chosen], ls="", marker=marker, color=colour, label=name)
axes[2].legend(loc="lower right")
axes[2].set_title("mean of means")
for panel in axes[1:]:
    panel.set_xlabel("gradient / the batch's")
    panel.set_xlim(0.4, 2)
    panel.set_xticks([0.5, 1, 1.5, 2])
for panel in axes:
    panel.grid(False)
    panel.tick_params(axis="y", length=0)
    panel.hlines(np.array(firsts[1:]) - 0.5, *panel.get_xlim(), color="#c4c4cc", lw=0.6)
low, high = min(ratios[1]), max(ratios[1])
assert np.all(ratios[1][~even] != 1)
caption = (
    f"One batch of {n} samples, cut in all {len(cuts)} ways, a row each (a dark mark: cut here), "
    f"and the gradient of one weight. Sums added and divided once: the same {len(cuts)} times, "
    f"exactly. Mean of means: right for the {sum(right)} cuts into equal parts; for the other "
    f"{len(cuts) - sum(right)} never exactly, but {low:.2f} to {high:.2f} times the right value."
)
plotting.show(figure, "04-every-cut", caption)

# %% [markdown]
# Cuts are a choice of memory, and the gradient does not see them. The mean of means does, unless
# all parts have one size: a sample in a part of $n_j$ has the share $1/(k n_j)$ in it, in place of
# $1/N$. (Change `n` to 7: on how many of the 64 cuts is the mean of means right, and why?)
#
# ## Three grades of "equal"
#
# With numbers that a computer rounds, say which equality is meant. There are three, and each claim
# about accumulation has one of them:
#
# - **exact**: `==`. In Fractions; and bit for bit in floats, if no sum needs rounding. Quarters are
#   such data: a float holds each of the sums and products here, so that the order of adding leaves
#   no trace.
#   Linear layers, ReLU and squared error only add, multiply and compare: they are exact.
# - **rounding**: the same number, computed in another order. The gap is bounded by a formula.
# - **different**: the gap would be there in exact arithmetic too: no precision closes it.
#
# The last grade needs an example. BatchNorm subtracts from each value the mean over its
# *micro-batch*, and divides by the spread there: sample $i$ then looks at its neighbours, against
# condition 3. In a loop like the one above it is of this grade. (minigrad's own steps pass over the
# batch several times for it: lessons [07](07_batchnorm_diverges.ipynb) and
# [08](08_exact_batchnorm.ipynb).)

# %%
for dtype in (np.float32, np.float64):
    in_floats = small_net(dtype), mg.squared_error, (x8.astype(dtype), y8.astype(dtype))
    for sizes in cuts:
        found = accumulated(*in_floats, sizes)
        assert found.dtype == dtype
        assert np.array_equal(found, accumulated(*in_floats, [n]))  # bit for bit
    assert np.array_equal(accumulated(*in_floats, [n]), whole.astype(dtype))  # nothing was rounded
print(f"exact:     Linear, ReLU, squared error: {len(cuts)} of {len(cuts)} cuts, bit for bit")


def gap(found, expected):
    """How far apart two gradients are, as a share of the expected one."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


rng = np.random.default_rng(0)
real_batch = rng.standard_normal((n, 3)), rng.standard_normal((n, 2))
normed = small_net(np.float64, mg.BatchNorm(4)), mg.squared_error, real_batch
of_one_batch = accumulated(*normed, [n])
gaps = [gap(accumulated(*normed, sizes), of_one_batch) for sizes in cuts[1:] if min(sizes) > 1]
assert min(gaps) > 1e-2  # different (one sample alone has no spread: left out)
print(
    f"different: BatchNorm between: on all {len(gaps)} cuts into parts of 2 or more, by "
    f"{100 * min(gaps):.0f} to {100 * max(gaps):.0f} % of the gradient"
)

# %% [markdown]
# ## Rounding, and how much of it
#
# Cross-entropy and tanh need numbers that no float holds. Then the order of adding shows. How
# much may it? A sum of $N$ numbers takes $N - 1$ additions; each is off by at most a share $u$ of a
# partial sum ($u$ is the **unit roundoff**, $2^{-24}$ in float32, $2^{-53}$ in float64), and no
# partial sum is larger than the sum of the absolute values. With $k$ more additions for the parts,
# and $g_i = w_i \nabla \ell_i$ the gradient of sample $i$ alone, element by element:
#
# $$|g_\text{accumulated} - g_\text{batch}| \le c\,u\,(N + k)\,\frac{1}{W}\sum_{i=1}^{N} |g_i| .$$
#
# Both gradients are such sums. The constant $c = 8$ for each layer leaves room for that, and for
# what the layers round on their way; this part is a rule that the tests hold minigrad to, and no
# theorem. The absolute values stand *inside* the sum over samples. It is tempting to use the
# gradients $\nabla S_j$ of the micro-batches instead, since those are there: $\sum_j |\nabla S_j|$.
# That is wrong. Samples may cancel inside a micro-batch, and then $\nabla S_j$ is small while its
# rounding is that of large numbers. The second half of the cell makes such a case: each sample has
# a twin with the same input and almost the opposite error.


# %%
def bound(terms, n, k, dtype, layers):
    """The bound on rounding, from gradients whose absolute values are added up."""
    u = np.finfo(dtype).eps / 2
    return 8 * layers * u * (n + k) * sum(abs(g) for g in terms) / n


def separately(model, loss, batch, sizes):
    """The gradient of each part's sum, not divided."""
    parts = [tuple(array[part] for array in batch) for part in parts_of(sizes)]
    return [n * accumulated(model, loss, part, [n]) for n, part in zip(sizes, parts)]


n_many = 64
for dtype in (np.float64, np.float32):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n_many, 6)).astype(dtype), rng.integers(0, 3, n_many)
    model = mg.MLP(6, 8, 3, activation=mg.Tanh, rng=rng, dtype=dtype)
    case = model, mg.cross_entropy, (x, y)
    one = accumulated(*case, [n_many])
    of_samples = separately(*case, [1] * n_many)
    differ = 0
    for sizes in ([32, 32], [16] * 4, [1] * n_many, [40, 20, 4], [63, 1], [7] * 9 + [1]):
        off = abs(accumulated(*case, sizes) - one)
        assert np.all(off <= bound(of_samples, n_many, len(sizes), dtype, layers=2))
        differ += np.count_nonzero(off)
    assert differ > 0  # not bit for bit
    print(
        f"rounding:  tanh, cross-entropy, {np.dtype(dtype)}: 6 of 6 cuts within the bound, "
        "not bit for bit"
    )

b, k, inputs = 16, 4, 20
rng = np.random.default_rng(0)
model = mg.Linear(inputs, 1, bias=False, rng=rng, dtype=np.float64)
x, y = np.empty((k * b, inputs)), np.empty((k * b, 1))
for part in parts_of([b] * k):
    half, errors = rng.standard_normal((b // 2, inputs)), rng.standard_normal((b // 2, 1))
    order = rng.permutation(b // 2)
    x[part] = np.concatenate([half, half[order]])
    y[part] = x[part] @ model.weight.data
    y[part] -= np.concatenate([errors, -(1 + 2**-30) * errors[order]])  # almost the opposite

case = model, mg.squared_error, (x, y)
off = abs(accumulated(*case, [b] * k) - accumulated(*case, [k * b]))
right_bound = bound(separately(*case, [1] * (k * b)), k * b, k, np.float64, layers=1)
wrong_bound = bound(separately(*case, [b] * k), k * b, k, np.float64, layers=1)
assert np.all(off <= right_bound)
assert np.any(off > 1000 * wrong_bound)
print("\ntwins:     the bound in the samples' gradients holds; the bound in the micro-batches'")
print("           gradients is more than 1000 times too small")

# %% [markdown]
# ## k accumulated is not k small steps
#
# The first table had another pair that looks alike: $N$ samples accumulated, and the same $N$
# samples in $k$ small steps. Take the simplest loss with a minimum, $\frac{h}{2} w^2$, the same for
# each sample. Its gradient is $h w$. One update multiplies $w$ by $1 - \mathrm{lr}\, h$, so that
#
# - $k$ small steps make it $(1 - \mathrm{lr}\, h)^k\, w$: each step looks again;
# - $k$ accumulated, then one update, make it $(1 - \mathrm{lr}\, h)\, w$;
# - the same with the rate $k\, \mathrm{lr}$, to go about as far: $(1 - k\, \mathrm{lr}\, h)\, w$.
#
# **Before you run the next cell:** let $k = 8$ and $\mathrm{lr}\, h = 5/16$. Where does each way
# end, from $w = 1$? One of the three ends farther from the minimum than it began.

# %%
k = 8


def walk(micro_batches_per_update, rate):
    """w after k micro-batches of one sample each, in Fractions, from w = 1."""
    model = mg.Linear(1, 1, bias=False, dtype=object)
    model.weight.data[...] = Fraction(1)
    optimizer = mg.SGD(model.parameters(), lr=rate)
    m = micro_batches_per_update
    x, y = mg.fractions([[1]] * m), mg.fractions([[0]] * m)  # the loss is w * w: h = 2
    for _ in range(k // m):
        mg.train_step(model, mg.squared_error, optimizer, (x, y), micro_batch_size=1)
    return model.weight.data.item()


h, measured = 2, {}
for far in (Fraction(1, 16), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(5, 2)):
    lr = far / (k * h)
    measured[far] = walk(1, lr), walk(k, lr), walk(k, k * lr)
    assert measured[far] == ((1 - lr * h) ** k, 1 - lr * h, 1 - far)  # exact
print("k lr h    k small steps    accumulated, lr    accumulated, k lr")
for far, ends in measured.items():
    print(
        f"{float(far):6.4g}  {float(ends[0]):12.4f} {float(ends[1]):17.4f} {float(ends[2]):19.4f}"
    )

figure, axis = plotting.subplots(height=3.4)
a = np.linspace(0, 2.6, 200)
curves = (1 - a / k) ** k, 1 - a / k, 1 - a
names = f"{k} small steps", f"{k} accumulated, rate lr", f"{k} accumulated, rate {k} lr"
colours = plotting.ORANGE, plotting.GREY, plotting.BLUE
for i, (curve, name, colour) in enumerate(zip(curves, names, colours)):
    axis.plot(a, curve, color=colour, ls=plotting.LINES[i])
    axis.text(1.5, np.interp(1.5, a, curve) + 0.08, name)
    ends = [float(w[i]) for w in measured.values()]
    axis.plot([float(far) for far in measured], ends, ls="", marker="osD"[i], color=colour)
axis.axhspan(-1.8, -1, color=plotting.RED, alpha=0.12, lw=0)
axis.text(0.05, -1.4, "farther from the minimum than before", color=plotting.RED, va="center")
axis.set_ylim(-1.8, 1.1)
axis.set_xlabel("k · lr · h")
axis.set_ylabel("w after N samples, from 1")
far, ends = next(iter(measured.items()))
caption = (
    f"Lines: predicted; marks: measured, exactly on them. Where k lr h is small, as at "
    f"{float(far):g}, one update with the rate k lr ends about where {k} small steps end: "
    f"{float(ends[2]):.4f} and {float(ends[0]):.4f}. Above k lr h = 2 it ends farther from the "
    f"minimum than it began, while the small steps come closer."
)
plotting.show(figure, "04-small-steps", caption)

# %% [markdown]
# So the large batch is another algorithm than $k$ small steps. They go about as far at $1/k$ of its
# rate, as the first table says, but only where $k\, \mathrm{lr}\, h$ is small. Accumulation
# computes the large batch; whether the large batch is a good idea is another question, that of
# lesson [12](12_learning_rate.ipynb). (Change `k` to 32: which of the three lines does not move?)
#
# ## Four claims, settled
#
# **"Accumulation approximates a large batch."** An approximation has an error that shrinks with the
# effort. One micro-batch alone *is* an approximation of the batch: its gradient gets better with
# $b$. The accumulated gradient has nothing to shrink: it is the batch's, to rounding, for $b = 1$
# as for $b = 128$. Under the five conditions the word is "equals".
#
# **"It equals a batch of kb when the loss is a sum or mean over samples, provided that batch
# normalization is handled."** Right in exact arithmetic, and two things are missing. First, who
# divides: a sum over samples is never divided, a mean is divided once, by the whole weight; the
# mean of the parts' means is a third thing. Second, BatchNorm is not the only way to break a
# condition: the last experiment of this lesson breaks all five. The two cells below take the two
# claims in turn.

# %% claim="g"
N = 256
first = x_train[:N], y_train[:N]
model = mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)
one = accumulated(model, mg.cross_entropy, first, [N])
errors = []
print("  b    error of one micro-batch alone    error of N / b accumulated")
for size in (1, 4, 16, 64, 128):
    alone = accumulated(model, mg.cross_entropy, first, [size])
    together = accumulated(model, mg.cross_entropy, first, [size] * (N // size))
    errors.append(gap(alone, one))
    assert gap(together, one) < 1e-12
    print(f"{size:4} {100 * errors[-1]:22.0f} %                     < 1e-12")
assert errors == sorted(errors, reverse=True)
assert errors[-1] > 1e-2

# %% claim="c"
for reduction in ("sum", "mean"):
    report = mg.accumulate(net, mg.squared_error, batch, n, reduction=reduction)
    expected = gradient(net)
    weight = report.weights["element"]  # the squared error counts elements: 2 outputs a sample
    assert np.all(expected == whole * (weight if reduction == "sum" else 1))
    for size in range(1, n + 1):  # also those that do not divide n
        mg.accumulate(net, mg.squared_error, batch, size, reduction=reduction)
        assert np.all(gradient(net) == expected)  # exact
    print(f"{reduction + ':':15} equal to the {reduction} of the batch for every b from 1 to {n}")
print(f"mean of means:  equal on {sum(right)} of {len(cuts)} cuts")
print(f"sum against mean: {weight} times as large, the weight of the batch")
assert weight == batch[1].size

# %% [markdown]
# **"Tune the rate and k, to match the results of the true large batch."** There is nothing to
# match: with $k = N/b$ the same rate gives the same run. A tuned rate gives another one. (What may
# need a new rate is the change from a batch of $b$ to one of $N$, by whatever means.)

# %% claim="k"
updates, k = 20, 8


def weights_after(rate, micro_batch_size):
    """All weights after 20 updates with batches of 256 digits."""
    model = mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), lr=rate, momentum=0.9)
    for update in range(updates):
        start = update * N % len(x_train)
        batch = x_train[start : start + N], y_train[start : start + N]
        mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
    return np.concatenate([p.data.ravel() for p in model.parameters()])


lr = 0.05
of_large_batches = weights_after(lr, N)
print(f"weights after {updates} updates, against those of batches of {N} with the rate lr")
for name, rate in {"lr": lr, "lr / k": lr / k, "lr sqrt(k)": lr * k**0.5, "lr k": lr * k}.items():
    apart = gap(weights_after(rate, N // k), of_large_batches)
    assert apart < 1e-12 if rate == lr else apart > 1e-2
    print(f"  k = {k}, rate {name:11}", "equal (< 1e-12)" if rate == lr else f"{apart:.2g} apart")

# %% [markdown]
# **"Shuffling makes the accumulated run differ."** Two things are called shuffling. The order of
# the samples *inside* a window is irrelevant: addition commutes (in floats: to rounding). *Which*
# samples share a window matters, as it does for batches: the first update then uses another
# gradient, and the second starts elsewhere. The cell makes two updates on 8 samples, 4 in each
# window, in Fractions.

# %% claim="o"


half = n // 2


def two_updates(order, b=half):
    """The weights after two windows of `half` samples each, taken in this order; exact."""
    model = small_net(object)
    optimizer = mg.SGD(model.parameters(), lr=Fraction(1, 8))
    for window in (list(order[:half]), list(order[half:])):
        shuffled = tuple(array[window] for array in batch)
        mg.train_step(model, mg.squared_error, optimizer, shuffled, micro_batch_size=b)
    return tuple(value for p in model.parameters() for value in p.data.flat)


orders, windows = permutations(range(half)), combinations(range(n), half)
inside = {two_updates([*order, *range(half, n)], b) for order in orders for b in (half, half - 1)}
shared = {two_updates([*window, *(i for i in range(n) if i not in window)]) for window in windows}
print(
    f"orders inside a window: {math.factorial(half)}, in 1 and in 2 parts; results: {len(inside)}"
)
print(f"which {half} share a window: {math.comb(n, half)}; results: {len(shared)}")
assert len(inside) == 1  # exact
assert len(shared) == math.comb(n, half)

# %% [markdown]
# ## Where it fails
#
# Each condition of the theorem, broken alone, on 8 samples cut into 5 and 3. The loop adds the
# gradients of the sums and divides once, by the weight that it saw. That is not enough if
#
# 1. **sum**: the loss is the *root* of the mean squared error: a root of a sum is no sum;
# 2. **weight**: samples have the weights $w_i = e^{-\ell_i(\theta)}$, so that those that fit badly
#    count less. Then $W = \sum_i w_i$ moves with the parameters, and
#    $\nabla \frac{S}{W} = \frac{\nabla S}{W} - \frac{S}{W^2}\nabla W$: the loop computes the first
#    term alone. The cell checks that the gap is the second;
# 3. **alone**: the loss is the *variance* of the samples' errors: each is compared with the mean of
#    those that are beside it;
# 4. **draws**: dropout (it sets random values to zero) draws its mask anew for each micro-batch;
# 5. **still**: an update is made after each micro-batch, inside the window.


# %%
def errors_of(model, x, y):
    """The squared error of each sample, shape (n,)."""
    difference = model(x) - y
    return (difference * difference).sum(axis=1)


def root(e):
    return mg.sqrt(e.mean()) * len(e), len(e)


def learned(e):
    w = mg.exp(-e)
    return (w * e).sum(), w.sum()


def variance(e):
    apart = e - e.mean()
    return (apart * apart).sum(), len(e)


def plain(e):
    return e.sum(), len(e)


def by_hand(sum_and_weight, sizes, layer=None, moved=0):
    """Add the gradients of the sums, divide once by the weight seen."""
    mg.manual_seed(0)  # each time the same draws, until a layer is called again
    model = small_net(np.float64, layer or mg.Tanh())
    weight = 0
    for part in parts_of(sizes):
        S, W = sum_and_weight(errors_of(model, real_batch[0][part], real_batch[1][part]))
        S.backward()
        weight += W.item() if isinstance(W, mg.Tensor) else W
        for p in model.parameters():
            p.data = p.data - moved * p.grad
    return gradient(model) / weight


def of_batch(sum_and_weight):
    """The gradient of S / W of the whole batch, with W differentiated too."""
    model = small_net(np.float64, mg.Tanh())
    S, W = sum_and_weight(errors_of(model, *real_batch))
    (S / W).backward()
    return gradient(model), S, W


cut = [n - 3, 3]
assert gap(by_hand(plain, cut), of_batch(plain)[0]) < 1e-12
print(f"all five hold:         equal (< 1e-12), cut {cut}")
dropout = mg.Dropout(0.5)
assert gap(by_hand(plain, [n], dropout), by_hand(plain, [n], dropout)) == 0  # not cut: the same
broken = {
    "1 sum: root": (by_hand(root, cut), of_batch(root)[0]),
    "2 weight: learned": (by_hand(learned, cut), of_batch(learned)[0]),
    "3 alone: variance": (by_hand(variance, cut), of_batch(variance)[0]),
    "4 draws: anew": (by_hand(plain, cut, dropout), by_hand(plain, [n], dropout)),
    "5 still: moved": (by_hand(plain, cut, moved=1 / 32), of_batch(plain)[0]),
}
for name, (found, expected) in broken.items():
    print(f"{name + ':':22} {gap(found, expected):.2g} of the gradient")
    assert gap(found, expected) > 1e-2

found, (expected, S, W) = by_hand(learned, cut), of_batch(learned)
of_weight = by_hand(lambda e: (mg.exp(-e).sum(), 1), cut) * len(cut)  # grad W, accumulated
assert gap(found - S.item() / W.item() ** 2 * of_weight, expected) < 1e-12
print("2, with the missing term: equal (< 1e-12)")

dropped = small_net(object, mg.Dropout(0.5)), mg.squared_error, batch
masks_of_samples = []
for size in (n, 5, 1):
    mg.accumulate(*dropped, size)
    masks_of_samples.append(gradient(dropped[0]))
assert all(np.all(g == masks_of_samples[0]) for g in masks_of_samples)
print("4, with masks that belong to the samples, as in minigrad: exact (==)")

# %% [markdown]
# Two of the five can be mended, and the cell has done it. The missing term of 2 is accumulated like
# the rest: $\nabla W$ is a sum over samples too, and needs a second buffer. The masks of 4 are
# drawn by sample, not by call: minigrad's own Dropout does that inside `accumulate` and
# `train_step`. Against 1 and 3 it is not enough to add: the loop must know what is made of the sums
# afterwards. Against 5 it must wait.
#
# ## The lines that do it
#
# Our `accumulated` is, with reports and several weights, what runs in the package. `run` is the
# loop; inside `drawing(...)` condition 4 is kept; `window.add` calls `backward`, and adds up sums
# and weights; `window.finish` divides, once, as lesson 05 reads. Find the one line with all three
# stages of a micro-batch: forward, loss, backward.

# %%
show_source(mg.accumulate, mg.accumulation.run)

# %% [markdown]
# ## Usual mistakes
#
# - *"Accumulation does not change the samples per update."* It multiplies them by $k$. It does not
#   change the samples per forward pass.
# - *"Equal epochs, so a fair comparison."* With $k$ accumulated an epoch holds $k$ times fewer
#   updates. Say which is held equal: epochs or updates.
# - *"Divide each micro-batch by its size, then by k."* That is the mean of means: right for equal
#   parts only. Add sums, add weights, divide once.
# - *"$k$ accumulated is $k$ small steps."* It is one step of the large batch.
# - *"Not the same bits, so there is a bug"*, and *"the loss went down, so there is none"*. Compare
#   gradients, at the same parameters, with the bound; or use Fractions and `==`.
#
# ## In short
#
# A loss that is a sum over samples, divided by a weight from the data, has the same gradient
# however its batch is cut. Add the gradients of the sums; divide once, by the weight that was seen.
# Nothing may couple the samples, redraw, or move inside the window. Exact where no sum is rounded,
# else to rounding; BatchNorm in such a loop is different. It is the large batch, not $k$ steps.
#
# ## References
#
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986). Learning representations by
#   back-propagating errors. *Nature* 323, 533-536. They accumulate the derivatives over all cases
#   before the weights are changed.
# - N. J. Higham (1993). The accuracy of floating point summation. *SIAM Journal on Scientific
#   Computing* 14, 783-799. The bound on a rounded sum.
# - S. Ioffe, C. Szegedy (2015). Batch normalization: accelerating deep network training by
#   reducing internal covariate shift. *ICML*.
# - P. Goyal and others (2017). Accurate, large minibatch SGD: training ImageNet in 1 hour.
#   arXiv:1706.02677. One large step against k small ones.
