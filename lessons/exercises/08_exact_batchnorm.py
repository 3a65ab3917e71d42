# %% [markdown]
# # Exercises 08: exact, by passes
#
# You count passes, find an adjoint for a layer of your own, and mend a loop for a loss that looks
# at a whole batch. They belong to [lesson 08](../08_exact_batchnorm.ipynb). Minutes: 40; points:
# 12.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises an error, and run the check below
# it: it says why.

# %%
import weakref

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
norms = [3, 1]  # exercise 1: BatchNorm layers in each of two towers
loss = "contrastive"  # exercise 1: which loss, of two
sizes = [4, 2, 5]  # exercise 2: samples of each micro-batch
pairs_in_batch = 10  # exercise 3: pairs of a batch
micro_batch_size = 4  # exercise 3: pairs of a micro-batch; the last holds fewer
### BEGIN PLANTED
fault = "B"  # exercise 3: which loop, of five
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    size, full = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    return {
        "norms": rng.permutation(np.arange(5))[:2].tolist(),
        "loss": str(rng.choice(["contrastive", "squared error"])),
        "sizes": rng.permutation(np.arange(1, 8))[:3].tolist(),
        "pairs_in_batch": full * size + int(rng.integers(2, size)),
        "micro_batch_size": size,
        "fault": str(rng.choice([*"ABCDE"])),
    }


# %% [markdown]
# ## 1. Predict: how many passes? (1 point + 1)
#
# Two towers look at the same samples. One has {{norms[0]}} BatchNorm layers in a chain, the other
# has {{norms[1]}}; the outputs of both go into one loss. The loss is: {{loss}}. (The contrastive
# loss compares the outputs of all samples of the batch. The squared error is of the sum of both
# outputs, sample by sample.)
#
# How often does minigrad go over the micro-batches to find the gradient of the batch?


# %%
class Towers(mg.Module):
    """Two chains side by side, with so many BatchNorm layers."""

    def __init__(self, norms):
        rng = np.random.default_rng(0)
        sides = [[4] * (count + 2) for count in norms]
        self.towers = [
            mg.MLP(*side, norm=mg.BatchNorm, rng=rng, dtype=np.float64) for side in sides
        ]

    def forward(self, x):
        return tuple(tower(x) for tower in self.towers)


def squared_error_of_sum(outputs, targets):
    return mg.squared_error(outputs[0] + outputs[1], targets)


def passes_made():
    """How often minigrad looks at each sample."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 12, 4))
    if loss == "contrastive":
        return mg.accumulate(Towers(norms), mg.contrastive, (x,), 3).passes
    return mg.accumulate(Towers(norms), squared_error_of_sum, (x, y), 3).passes


# %% answer="08-passes"
# Assign a whole number to `prediction`.
### BEGIN SOLUTION
prediction = 2 * max(norms) + 1 + (loss == "contrastive")
### END SOLUTION

# %% check="08-passes"
predicted(prediction)

# %% test="08-passes" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="none" of="08-passes" earns=0 because="there is no prediction yet"
prediction = None

# %% [markdown]
# Now it runs.

# %%
predicted(prediction)
print(f"your prediction {prediction}, minigrad made {passes_made()}")

# %% [markdown]
# What happened, and why? One sentence; if you were right, say why it had to be so.

# %% answer="08-passes-why"
# Assign one sentence to `correction`.
### BEGIN SOLUTION
correction = (
    "The longest chain counts, once forward and once back, because layers of two towers do not "
    "wait for each other; then comes the pass for the parameters, and one for cached outputs."
)
### END SOLUTION

# %% check="08-passes-why"
corrected(correction)

# %% test="08-passes-why" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="08-passes-why" earns=0 because="expected 6 or more"
correction = "I forgot one."

# %% [markdown]
# ## 2. Write: an adjoint of your own (4 points)
#
# A layer divides by the root mean square of the *whole* batch. It subtracts nothing. With one
# channel, $h_i = x_i \cdot W$,
#
# $$q = \frac1N \sum_i h_i^2, \qquad y_i = \frac{h_i}{\sqrt{q + \varepsilon}}, \qquad
# S = \sum_i (y_i - t_i)^2 .$$
#
# Find $dS/dW$ from micro-batches of {{sizes}} samples. `read(j)` gives micro-batch $j$, and counts.
# Two costs are shown: how often micro-batches were read, and how many of them were held at once.
# (Two are, for a moment, where `x, t = read(j)` puts a new one in the place of an old one.)
#
# ```text
# read(0) ... read(k-1)   ->   q
# read(0) ... read(k-1)   ->   a = dS/dq
# read(0) ... read(k-1)   ->   dS/dW
# ```


# %%
class Reader:
    """Hands out copies of micro-batches, counts them, and knows how many are still held."""

    def __init__(self, x, t, sizes):
        ends = np.cumsum(sizes)
        self.parts = [(x[end - n : end], t[end - n : end]) for n, end in zip(sizes, ends)]
        self.reads, self.held, self.most = 0, [], 0

    def __call__(self, j):
        x, t = (array.copy() for array in self.parts[j])
        self.reads += 1
        self.held = [one for one in self.held if one() is not None] + [weakref.ref(x)]
        self.most = max(self.most, len(self.held))
        return x, t


def rms_data(sizes, inputs, seed):
    """W, x, t of a batch."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    return rng.standard_normal(inputs), rng.standard_normal((n, inputs)), rng.standard_normal(n)


def by_engine(W, x, t, eps, sizes=None, constant=False, of_all=False):
    """dS/dW by the tape. sizes: each part by its own q, or, of_all, by that of all samples, where
    the other parts are constants; constant: q is not differentiated at all."""
    squares, W = np.sum((x @ W) ** 2), mg.Tensor(W, requires_grad=True)
    ends = np.cumsum(sizes or [len(x)])
    for n, end in zip(sizes or [len(x)], ends):
        h = mg.Tensor(x[end - n : end]) @ W
        own = (h * h).sum()
        q = (own - own.detach() + squares) / len(x) if of_all else own / n
        error = h / mg.sqrt((q.detach() if constant else q) + eps) - t[end - n : end]
        (error * error).sum().backward()
    return W.grad


def slope_of_q(W, x, sizes):
    """The gradient by W of the mean squares of these parts, added up."""
    W, start = mg.Tensor(W, requires_grad=True), 0
    for n in sizes:
        h = mg.Tensor(x[start : start + n]) @ W
        (h * h).mean().backward()
        start += n
    return W.grad


def picture():
    W, x, _ = rms_data(sizes, 3, variant or 0)
    h, N, ends = x @ W, sum(sizes), np.cumsum(sizes)
    own = [np.sqrt(np.mean(h[end - n : end] ** 2)) for n, end in zip(sizes, ends)]
    root = np.sqrt(np.mean(h**2))
    figure, axes = plotting.subplots(height=2.6)
    axes.axhspan(
        -root, root, color=plotting.GREY, alpha=0.25, lw=0, label="root of q, of all samples"
    )
    starts, stops = ends - sizes - 0.4, ends - 0.6
    for sign in (1, -1):
        label = "root of a part's own mean square" if sign == 1 else None
        heights = sign * np.array(own)
        axes.hlines(heights, starts, stops, color=plotting.ORANGE, ls="--", lw=2, label=label)
    axes.plot(range(N), h, "o", color=plotting.BLUE, ms=6, label="h, sample by sample")
    for edge in ends[:-1]:
        axes.axvline(edge - 0.5, color=plotting.DARK, ls=":", lw=1.2)
    axes.set(xticks=range(N), xlabel="sample", ylabel="h")
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    plotting.show(
        figure,
        "08-exercise-rms",
        f"{N} samples in micro-batches of {sizes}, with lines between. The band reaches to the "
        f"root of q, {root:.2f}, by which all are divided; dashed: what the parts would take for "
        f"it, {', '.join(f'{one:.2f}' for one in own)}.",
    )


picture()


# %% answer="08-rms"
def rms_gradient(W, read, k, eps):
    """dS/dW, an array of W's shape (d,).

    read(j): micro-batch j of 0, ..., k - 1, as (x, t) of shapes (n_j, d) and (n_j,). Read each at
    most three times, and keep none while the next ones are read. S is, in plain loops over all
    N samples (N is to be counted),

        q = S = 0
        for each sample i of all micro-batches:
            q += (x[i] @ W) ** 2 / N
        for each sample i of all micro-batches:
            S += (x[i] @ W / sqrt(q + eps) - t[i]) ** 2
    """
    ### BEGIN SOLUTION
    total, n = 0, 0
    for j in range(k):
        x, t = read(j)
        total, n = total + np.sum((x @ W) ** 2), n + len(x)
    r = 1 / np.sqrt(total / n + eps)
    a = 0
    for j in range(k):
        x, t = read(j)
        h = x @ W
        a += np.sum(2 * (h * r - t) * h) * -(r**3) / 2
    gradient = np.zeros_like(W)
    for j in range(k):
        x, t = read(j)
        h = x @ W
        gradient += (2 * (h * r - t) * r + a * 2 * h / n) @ x
    return gradient
    ### END SOLUTION


# %% check="08-rms"
def look_at_rms(sizes, inputs, seed, eps=0.25):
    """Compare rms_gradient() with the engine, and look at what it cost."""
    W, x, t = rms_data(sizes, inputs, seed)
    k, n, read = len(sizes), sum(sizes), Reader(x, t, sizes)
    right, half = by_engine(W, x, t, eps), by_engine(W, x, t, eps, constant=True)
    slope = slope_of_q(W, x, [n])
    a = (right - half) @ slope / (slope @ slope)
    also = {
        "no adjoint": (
            half,
            "q is held constant: what S changes by q, and q by W, is missing",
        ),
        "own statistics": (
            by_engine(W, x, t, eps, sizes),
            "each micro-batch is divided by its own root mean square, not by that of the batch",
        ),
        "not over N": (
            half + n * (right - half),
            "q is a mean: what a sample adds to it is divided by N",
        ),
        "no factor 2": (
            half + (right - half) / 2,
            "the term with the adjoint is half of what it should be: the derivative of h^2 is 2 h, "
            "and that of the squared error has a 2, too",
        ),
        "factor 2": (
            2 * right - half,
            "the term with the adjoint is twice what it should be: the derivative of "
            "(q + eps)^(-1/2) by q has the factor -1/2",
        ),
        "wrong sign": (2 * half - right, "the term with the adjoint has the wrong sign"),
        "adjoint alone": (right - half, "what W changes by itself, with q constant, is missing"),
        "a mean": (right / n, "S is the sum over the samples, and not their mean"),
        "no eps": (by_engine(W, x, t, 0), "eps is missing, which is added to q in the root"),
        "adjoints of parts": (
            by_engine(W, x, t, eps, sizes, of_all=True),
            "each micro-batch takes the adjoint of its own samples: a is the sum over all, and "
            "known only when a pass has seen all of them",
        ),
        "over n_j": (
            half + a * slope_of_q(W, x, sizes),
            "what a sample adds to q is divided by N, and not by the size of its micro-batch",
        ),
    }
    check(right, rms_gradient(W.copy(), read, k, eps), "dS/dW", also=also)
    score("micro-batches read", read.reads, 3 * k)
    score("held at once", read.most, 2)
    if read.most > 3:
        what = f"{read.most} micro-batches were held at once"
        raise WrongAnswer("memory", f"{what}: read them again, and keep only sums")
    if read.reads > 3 * k:
        what = f"{read.reads} reads for {k} micro-batches"
        raise WrongAnswer("reads", f"{what}: three passes are enough")


forbid(rms_gradient, "accumulate", "train_step", "by_engine", "slope_of_q")
look_at_rms(sizes, 3, variant or 0)
look_at_rms([*sizes, 1, 6], 2, 1, eps=1.0)

# %% test="08-rms" points=4
### BEGIN HIDDEN TESTS
grade(
    4,
    lambda: forbid(rms_gradient, "accumulate", "train_step", "by_engine", "slope_of_q"),
    lambda: look_at_rms(sizes, 3, variant or 0),
    lambda: look_at_rms([*sizes, 1, 6], 2, 1, eps=1.0),
    lambda: look_at_rms([1] * 7, 4, 2),
    lambda: look_at_rms([9], 3, 3),
    partial={
        "no adjoint": 1,
        "adjoints of parts": 1,
        "not over N": 2,
        "over n_j": 2,
        "no factor 2": 2,
        "factor 2": 2,
        "wrong sign": 2,
        "no eps": 2,
        "memory": 2,
        "reads": 3,
    },
)
### END HIDDEN TESTS


# %% wrong="no adjoint" of="08-rms" earns=1 because="q is held constant"
def rms_gradient(W, read, k, eps):
    total, n, gradient = 0, 0, 0
    for j in range(k):
        x, t = read(j)
        total, n = total + np.sum((x @ W) ** 2), n + len(x)
    r = 1 / np.sqrt(total / n + eps)
    for j in range(k):
        x, t = read(j)
        gradient = gradient + (2 * (x @ W * r - t) * r) @ x
    return gradient


# %% wrong="own statistics" of="08-rms" earns=0 because="by its own root mean square"
def rms_gradient(W, read, k, eps):
    gradient = 0
    for j in range(k):
        x, t = read(j)
        h = x @ W
        r = 1 / np.sqrt(np.mean(h**2) + eps)
        a = np.sum(2 * (h * r - t) * h) * -(r**3) / 2
        gradient = gradient + (2 * (h * r - t) * r + a * 2 * h / len(x)) @ x
    return gradient


# %% wrong="adjoints of parts" of="08-rms" earns=1 because="the adjoint of its own samples"
def rms_gradient(W, read, k, eps):
    total, n, gradient = 0, 0, 0
    for j in range(k):
        x, t = read(j)
        total, n = total + np.sum((x @ W) ** 2), n + len(x)
    r = 1 / np.sqrt(total / n + eps)
    for j in range(k):
        x, t = read(j)
        h = x @ W
        a = np.sum(2 * (h * r - t) * h) * -(r**3) / 2
        gradient = gradient + (2 * (h * r - t) * r + a * 2 * h / n) @ x
    return gradient


# %% wrong="over n_j" of="08-rms" earns=2 because="not by the size of its micro-batch"
def rms_gradient(W, read, k, eps):
    total, n, a, gradient = 0, 0, 0, 0
    for j in range(k):
        x, t = read(j)
        total, n = total + np.sum((x @ W) ** 2), n + len(x)
    r = 1 / np.sqrt(total / n + eps)
    for j in range(k):
        x, t = read(j)
        h = x @ W
        a += np.sum(2 * (h * r - t) * h) * -(r**3) / 2
    for j in range(k):
        x, t = read(j)
        h = x @ W
        gradient = gradient + (2 * (h * r - t) * r + a * 2 * h / len(x)) @ x
    return gradient


# %% wrong="holds all" of="08-rms" earns=2 because="were held at once"
def rms_gradient(W, read, k, eps):
    parts = [read(j) for j in range(k)]
    x, t = (np.concatenate(side) for side in zip(*parts))
    h = x @ W
    r = 1 / np.sqrt(np.mean(h**2) + eps)
    a = np.sum(2 * (h * r - t) * h) * -(r**3) / 2
    return (2 * (h * r - t) * r + a * 2 * h / len(x)) @ x


# %% [markdown]
# ## 3. Find the fault, and mend it (1 point + 3)
#
# The loop below, `window`, is to find the gradient of the contrastive loss of {{pairs_in_batch}}
# pairs, with the tape of {{micro_batch_size}} pairs at a time; the last micro-batch holds what is
# left. It is wrong in one way.


# %%
class TwoEncoders(mg.Module):
    """Two layers, side by side. It notes how many pairs each call on the tape has seen."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.f, self.g = (
            mg.Sequential(mg.Linear(d, 3, rng=rng, dtype=np.float64), mg.Tanh()) for d in (4, 5)
        )
        self.seen = []

    def forward(self, inputs):
        x, y = inputs
        p, q = self.f(x), self.g(y)
        if p.requires_grad:
            self.seen.append(len(x))
        return p, q


def some_pairs(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 4)), rng.standard_normal((n, 5))


def parts_of(pairs, b):
    """The micro-batches, and where they lie in the batch."""
    slices = [slice(start, start + b) for start in range(0, len(pairs[0]), b)]
    return [tuple(side[part] for side in pairs) for part in slices], slices


def gradient_of(model):
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


# %% when="fault == 'A'"
def window(model, pairs, b):
    parts, _ = parts_of(pairs, b)
    model.zero_grad()
    for part in parts:
        (mg.contrastive(model(part)).sum() / len(pairs[0])).backward()


# %% when="fault == 'B'"
def window(model, pairs, b):
    parts, _ = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part in parts:
        n = len(part[0])
        sum((z * w.grad[:n]).sum() for z, w in zip(model(part), whole)).backward()


# %% when="fault == 'C'"
def window(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    for part, here in zip(parts, slices):
        model.zero_grad()
        sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole)).backward()


# %% when="fault == 'D'"
def window(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        dot = sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole))
        (dot / len(parts)).backward()


# %% when="fault == 'E'"
def window(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    a, other = (mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs))
    mg.contrastive((a, other)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        mine, its = model(part)
        ((mine * a.grad[here]).sum() + (its.detach() * other.grad[here]).sum()).backward()
    for p in model.parameters():
        p.grad = np.zeros_like(p.data) if p.grad is None else p.grad


# %%
def found_by(way, pairs, b):
    """The gradient that a loop leaves in a new model."""
    model = TwoEncoders()
    way(model, pairs, b)
    return gradient_of(model), model.seen


pairs = some_pairs(pairs_in_batch)
of_batch, _ = found_by(lambda m, p, b: mg.accumulate(m, mg.contrastive, (p,), b), pairs, 99)
found, _ = found_by(window, pairs, micro_batch_size)
off = np.linalg.norm(found - of_batch) / np.linalg.norm(of_batch)
print(f"the loop is off by {100 * off:.0f} % of the gradient of one batch")

# %% [markdown]
# Which fault is it?
#
# - `"own negatives"`: each micro-batch is compared with itself only;
# - `"wrong rows"`: the cached gradients of other pairs are used;
# - `"cleared inside"`: each micro-batch forgets what those before it have added;
# - `"divided again"`: a mean is divided by the number of micro-batches;
# - `"one side"`: the gradient of one of the two encoders is missing;
# - `"no tape"`: the second pass records nothing.

# %% answer="08-fault"
# Assign one of the names above to `fault_found`.
### BEGIN SOLUTION
choices = ["own negatives", "wrong rows", "cleared inside", "divided again", "one side"]
fault_found = dict(zip("ABCDE", choices))[fault]
### END SOLUTION

# %% check="08-fault"
NAMES = [
    "own negatives",
    "wrong rows",
    "cleared inside",
    "divided again",
    "one side",
    "no tape",
]
predicted(fault_found, among=NAMES)

# %% test="08-fault" points=1
### BEGIN HIDDEN TESTS
because = {
    "own negatives": "the loss is taken of the outputs of all pairs together",
    "wrong rows": "each micro-batch is multiplied by the cached gradient of its own rows",
    "cleared inside": "the gradients are cleared once, before the micro-batches",
    "divided again": "the mean was taken in the loss, and nothing is divided afterwards",
    "one side": "both outputs are multiplied by their cached gradient, and both are on the tape",
    "no tape": "in the second pass model(part) is called outside of no_grad()",
}
if fault == "A":
    said = "there are no cached gradients in this loop: look at what the loss is computed from"
    because |= {name: said for name in ("wrong rows", "divided again", "one side")}
planted = dict(zip("ABCDE", NAMES))[fault]
del because[planted]
grade(1, lambda: chosen(planted, fault_found, because=because))
### END HIDDEN TESTS

# %% wrong="no tape" of="08-fault" earns=0 because="outside of no_grad()"
fault_found = "no tape"

# %% [markdown]
# Now mend it, under the name `mended`: in `.grad` of each parameter is to stand the gradient of the
# mean contrastive loss of all pairs, as if they were one batch. No call on the tape may see more
# than `b` pairs, and what `.grad` held before does not count.


# %% answer="08-mended"
def mended(model, pairs, b):
    """Fill .grad with the gradient of mg.contrastive(model(pairs)).mean().

    model: takes a tuple (x, y), and gives a tuple of two Tensors, a row a pair. pairs: (x, y).
    b: pairs of a micro-batch. In a plain loop over the parameters and their elements:

        p.grad[i] = derivative of mg.contrastive(model(pairs)).mean() by p.data[i]
    """
    ### BEGIN SOLUTION
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole)).backward()
    ### END SOLUTION


# %% check="08-mended"
def look_at_mended(n, b, seed=0):
    """Compare mended() with one batch, and look at what was on the tape."""
    pairs, model, alone = some_pairs(n, seed), TwoEncoders(), TwoEncoders()
    one = TwoEncoders()
    mg.contrastive(one(pairs)).mean().backward()
    right = gradient_of(one)
    parts, last = parts_of(pairs, b)[0], TwoEncoders()
    for part in parts:
        (mg.contrastive(alone(part)).sum() / n).backward()
    outputs = [last(part) for part in parts]
    outputs[:-1] = [[side.detach() for side in both] for both in outputs[:-1]]  # as constants
    mg.contrastive(tuple(mg.concatenate(side) for side in zip(*outputs))).mean().backward()
    for p in model.parameters():
        p.grad = np.ones_like(p.data)  # left over from something else
    mended(model, pairs, b)
    also = {
        "own negatives": (
            gradient_of(alone),
            "each micro-batch is compared with its own pairs only: the loss needs all outputs",
        ),
        "last only": (
            gradient_of(last),
            "this is what the last micro-batch alone gives: .grad is cleared in between",
        ),
        "stale": (right + 1, "what .grad held before was added to: clear it before"),
        "N times": (
            n * right,
            f"it is N = {n} times too large: it is that of a sum over the pairs",
        ),
    }
    if any(p.grad is None for p in model.parameters()):
        what = "there are parameters whose .grad is None"
        raise WrongAnswer("one side", f"{what}: does each of the two encoders get its gradient?")
    case = f"{n} pairs, {b} at a time"
    check(right, gradient_of(model), case, k=len(parts), also=also)
    score("pairs on the tape at once", max(model.seen), min(n, b))
    score("pairs on the tape in all", sum(model.seen), n)
    if max(model.seen) > b:
        what = f"a call on the tape saw {max(model.seen)} pairs, expected {b} at most"
        raise WrongAnswer("whole batch", f"{what}: the first pass goes without a tape")
    if sum(model.seen) > n:
        what = f"in all {sum(model.seen)} pairs were on the tape, expected {n}"
        raise WrongAnswer("two tapes", f"{what}: the first pass goes without a tape, by no_grad()")


forbid(mended, "accumulate", "train_step")
look_at_mended(pairs_in_batch, micro_batch_size)

# %% test="08-mended" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(mended, "accumulate", "train_step"),
    lambda: look_at_mended(pairs_in_batch, micro_batch_size),
    lambda: look_at_mended(7, 1, seed=1),
    lambda: look_at_mended(6, 6, seed=2),
    partial={"1/k": 1, "N times": 1, "stale": 2, "whole batch": 1, "two tapes": 2},
)
### END HIDDEN TESTS


# %% wrong="own negatives" of="08-mended" earns=0 because="the loss needs all outputs"
def mended(model, pairs, b):
    parts, _ = parts_of(pairs, b)
    model.zero_grad()
    for part in parts:
        (mg.contrastive(model(part)).sum() / len(pairs[0])).backward()


# %% wrong="whole batch" of="08-mended" earns=1 because="goes without a tape"
def mended(model, pairs, b):
    model.zero_grad()
    mg.contrastive(model(pairs)).mean().backward()


# %% wrong="two tapes" of="08-mended" earns=2 because="by no_grad()"
def mended(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole)).backward()


# %% wrong="one side" of="08-mended" earns=0 because="each of the two encoders"
def mended(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        (model(part)[0] * whole[0].grad[here]).sum().backward()


# %% wrong="cleared inside" of="08-mended" earns=0 because="the last micro-batch alone"
def mended(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    for part, here in zip(parts, slices):
        model.zero_grad()
        sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole)).backward()


# %% wrong="divided again" of="08-mended" earns=1 because="divided by k twice"
def mended(model, pairs, b):
    parts, slices = parts_of(pairs, b)
    with mg.no_grad():
        outputs = [model(part) for part in parts]
    whole = [mg.Tensor(np.concatenate([o.data for o in side]), True) for side in zip(*outputs)]
    mg.contrastive(tuple(whole)).mean().backward()
    model.zero_grad()
    for part, here in zip(parts, slices):
        dot = sum((z * w.grad[here]).sum() for z, w in zip(model(part), whole))
        (dot / len(parts)).backward()


# %% [markdown]
# ## 4. In your own words (2 points, read by a person)
#
# A colleague writes: "My net has BatchNorm layers. In a first pass without a tape I find mean and
# variance of the whole window for each layer, in a second one I train with them as constants. The
# loss is equal to that of one batch in twelve digits, so it is exact." In three to five sentences:
# what is right, what is wrong and why, which measurement would have shown it, and what must be
# added? May all layers' statistics be found in *one* pass?
#
# *2 points:* what is right and what is wrong, with the reason; a measurement that would have shown
# it; *and* the last question is answered rightly, with its reason. *1 point:* one of the two. *0
# points:* otherwise.

# %% [markdown] manual="08-why" points=2
# The outputs and the loss are right, for they need only the values of the statistics. The gradient
# is not: the statistics depend on the parameters, and with constants the terms $a\, ds/d\theta$ are
# missing. To compare gradients at the same parameters would have shown it; equal losses show
# nothing about them. What must be added is a pass for the adjoints $a = dS/ds$ of each layer, the
# last layer first, and their terms in the loss of the last pass. One pass for all statistics is not
# enough: the input of the second layer is known only when the first one's statistics are.
