# %% [markdown]
# # Exercises 04: one batch from many
#
# You add up what can be added, divide once, and find out what a loop does that goes another way.
# They belong to [lesson 04](../04_accumulation.ipynb). Minutes: 45; points: 12.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises an error, and run the check below
# it: it says why.

# %%
import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score
from minigrad.data import digits

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
loop_sizes = [5, 3, 1]  # exercise 1: samples of each micro-batch
sizes = [6, 3, 1]  # exercise 2: samples of each micro-batch
means = [1.5, -2.0, 4.0]  # exercise 2: the mean of each micro-batch
window_sizes = [120, 105, 130, 110, 140, 100, 125, 115]  # exercise 3: samples of each micro-batch
batch_size = 43  # exercise 4: samples of the batch
micro_batch_size = 12  # exercise 4: samples of a micro-batch; the last holds fewer
### BEGIN PLANTED
fault = "C"  # exercise 4: which loop, of five
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    even = bool(rng.integers(2))
    few = rng.permutation(np.arange(1, 9))[:3]
    while True:
        sizes = rng.permutation(np.arange(1, 10))[:3]
        means = rng.permutation(np.arange(-8, 9))[:3] / 2
        total = sizes @ means
        N, all_full = sizes.sum(), 3 * sizes.max()
        answers = [total, total / 3, total / N, total / all_full, means.mean(), means.sum()]
        answers = np.array([*answers, means[0], means[-1], means[-1] / 3])
        apart = abs(answers - answers[:, None])[np.triu_indices(len(answers), 1)]
        if N != 9 and min(apart) > 0.05 and min(abs(answers)) > 0.05:
            break
    size, full = int(rng.integers(8, 16)), int(rng.integers(2, 5))
    return {
        "loop_sizes": [int(few[0]) + 1] * 3 if even else few.tolist(),
        "sizes": sizes.tolist(),
        "means": means.tolist(),
        "window_sizes": (5 * rng.permutation(np.arange(20, 29))[:8]).tolist(),
        "batch_size": full * size + int(rng.integers(2, size - 2)),
        "micro_batch_size": size,
        "fault": str(rng.choice(["A", "B", "C", "D", "E"])),
    }


# %% [markdown]
# ## 1. Predict: how many of four loops give the gradient of the batch? (1 point + 1)
#
# A batch of digits comes in three micro-batches of {{loop_sizes[0]}}, {{loop_sizes[1]}} and
# {{loop_sizes[2]}} samples. Each loop below fills `.grad`, which is empty before. How many of the
# four leave there the gradient of the mean loss of the whole batch (equal to rounding)?


# %%
(images, labels), _ = digits(np.float64)


def new_model():
    """The same small net each time."""
    return mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)


def flat(gradients):
    """A list of gradients side by side in one array."""
    return None if gradients is None else np.concatenate([np.ravel(g) for g in gradients])


def gradient_of(model):
    """What stands in .grad, in one array."""
    return flat([p.grad for p in model.parameters()])


def parts_of(sizes):
    """Micro-batches of these sizes, of the first digits."""
    ends = np.cumsum(sizes)
    return [(images[end - n : end], labels[end - n : end]) for n, end in zip(sizes, ends)]


def batch_gradient(n):
    """The gradient of the mean loss of the first n digits, at once."""
    model = new_model()
    mg.cross_entropy(model(images[:n]), labels[:n]).mean().backward()
    return gradient_of(model)


def divide(model, by):
    """Divide all gradients of the model."""
    for p in model.parameters():
        p.grad /= by


def loop_a(model, parts):
    """Sums, divided once by the number of samples."""
    for x, y in parts:
        mg.cross_entropy(model(x), y).sum().backward()
    divide(model, sum(len(x) for x, y in parts))


def loop_b(model, parts):
    """Means, divided once by the number of micro-batches."""
    for x, y in parts:
        mg.cross_entropy(model(x), y).mean().backward()
    divide(model, len(parts))


def loop_c(model, parts):
    """Means, each times its share of the samples."""
    for x, y in parts:
        share = len(x) / sum(len(other) for other, _ in parts)
        (mg.cross_entropy(model(x), y).mean() * share).backward()


def loop_d(model, parts):
    """Sums, divided once by the number of micro-batches."""
    for x, y in parts:
        mg.cross_entropy(model(x), y).sum().backward()
    divide(model, len(parts))


# %% [markdown]
# The check below your answer saves it, and then runs the four loops.

# %% answer="04-predict"
# Assign to `prediction` how many of the four loops are right: 0, 1, 2, 3 or 4.
### BEGIN SOLUTION
prediction = 3 if len(set(loop_sizes)) == 1 else 2
### END SOLUTION


# %% check="04-predict"
predicted(prediction, among=[0, 1, 2, 3, 4])

of_batch, right_loops = batch_gradient(sum(loop_sizes)), 0
for loop in (loop_a, loop_b, loop_c, loop_d):
    model = new_model()
    loop(model, parts_of(loop_sizes))
    off = np.linalg.norm(gradient_of(model) - of_batch) / np.linalg.norm(of_batch)
    right_loops += off < 1e-12
    print(f"{loop.__name__}: {'equal' if off < 1e-12 else f'off by {100 * off:.0f} %'}")
print(f"{right_loops} of 4 are right; you said {prediction}")

# %% test="04-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction, among=[0, 1, 2, 3, 4]))
### END HIDDEN TESTS

# %% wrong="none" of="04-predict" earns=0 because="there is no prediction yet"
prediction = None

# %% answer="04-correct"
# Assign to `correction` one sentence: what happened, and why? If you were right: why had it to be?
### BEGIN SOLUTION
correction = "Loops a and c weigh every sample by 1/N; b does so only if all parts have one size."
### END SOLUTION

# %% check="04-correct"
corrected(correction)

# %% test="04-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="04-correct" earns=0 because="expected 6 or more"
correction = "I was wrong."

# %% [markdown]
# ## 2. Write: the mean of the batch from the means of its parts (2 points)
#
# Often only means are to be had, of micro-batches of {{sizes[0]}}, {{sizes[1]}} and {{sizes[2]}}
# samples, say. In the picture each is a bar, as wide as it has samples and as high as its mean. Its
# area is its sum. What you want is the height of *one* bar of the same area over all samples.

# %%
figure, axis = plotting.subplots(height=2.8)
lefts = np.cumsum([0, *sizes[:-1]])
axis.bar(lefts, means, sizes, align="edge", color=plotting.BLUE, edgecolor="white", lw=2)
for left, n, m in zip(lefts, sizes, means):
    axis.annotate(
        f"{m:g}",
        (left + n / 2, m),
        (0, 4 if m >= 0 else -4),
        textcoords="offset points",
        ha="center",
        va="bottom" if m >= 0 else "top",
    )
axis.axhline(0, color=plotting.DARK, lw=0.8)
axis.set_xticks(range(sum(sizes) + 1))
axis.margins(x=0.01, y=0.2)
axis.set_xlabel("samples")
axis.set_ylabel("mean of the part")
bars = ", ".join(f"{n} wide and {m:g} high" for n, m in zip(sizes, means))
plotting.show(figure, "04-bars", f"A bar a micro-batch: {bars}. A bar's area is its sum.")


# %% answer="04-means"
def batch_mean(means, sizes):
    """The mean over all samples, from the mean of each micro-batch and the number of its samples.

    means: a list of k numbers, or of k arrays of one shape. sizes: a list of k positive integers.
    In plain loops, over the samples g[j][i] of each micro-batch j, which you do not have:

        total, count = 0, 0
        for j in range(k):
            for i in range(sizes[j]):
                total += g[j][i]
                count += 1
        return total / count
    """
    ### BEGIN SOLUTION
    return sum(n * m for n, m in zip(sizes, means)) / sum(sizes)
    ### END SOLUTION


# %% check="04-means"
def check_mean(expected, means, sizes, name):
    """Is it the mean over all samples?"""
    over_k = np.multiply(expected, sum(sizes) / len(sizes))
    said = "the sum over the samples was divided by the number of parts: by what is it to be?"
    also = {"over k": (over_k, said)} if len(sizes) > 1 else {}
    check(expected, batch_mean(means, sizes), name, parts=means, sizes=sizes, also=also)


samples = [m for n, m in zip(sizes, means) for _ in range(n)]  # some samples with these means
check_mean(np.mean(samples), means, sizes, "the mean")
check_mean([2.0, 5.0], [np.array([1.0, 2.0]), np.array([4.0, 11.0])], [2, 1], "with arrays")

# %% test="04-means" points=2
### BEGIN HIDDEN TESTS
tables = [np.array([[1.0, 2.0], [3.0, 5.0]]) * m for m in means]
by_hand = np.repeat(tables, sizes, axis=0).mean(axis=0)
grade(
    2,
    lambda: check_mean(np.mean(samples), means, sizes, "the mean"),
    lambda: check_mean(by_hand, tables, sizes, "with arrays"),
    lambda: check_mean(3.0, [3.0], [7], "one part"),
    partial={"mean of means": 1},
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="04-means" earns=1 because="counts a short one as much"
def batch_mean(means, sizes):
    return sum(means) / len(means)


# %% wrong="full divisor" of="04-means" earns=0 because="counts the short micro-batch as a full one"
def batch_mean(means, sizes):
    return sum(n * m for n, m in zip(sizes, means)) / (len(sizes) * max(sizes))


# %% wrong="not divided" of="04-means" earns=0 because="never divided"
def batch_mean(means, sizes):
    return sum(n * m for n, m in zip(sizes, means))


# %% wrong="over k" of="04-means" earns=0 because="divided by the number of parts"
def batch_mean(means, sizes):
    return sum(n * m for n, m in zip(sizes, means)) / len(sizes)


# %% [markdown]
# ## 3. Write: the window, with a cost (3 points)
#
# The gradient of the mean cross-entropy of a batch, from micro-batches of any sizes, with the raw
# `backward()`. The library's `accumulate`, `train_step` and `Accumulator` are refused. Two costs
# are measured beside those of the library: the backward passes, which are to be one a micro-batch,
# and the peak memory, which is to be that of *one* micro-batch. The sizes are {{window_sizes}}.
#
# ```text
# .grad   (empty)   + S_1   + S_2   + ...   + S_k      then divided, once
# tape              [ 1 ]   [ 2 ]   [ . ]   [ k ]      one at a time
# ```


# %%
class Counted(mg.Module):
    """A net that counts: the samples of each forward pass, and the backward passes."""

    def __init__(self, net):
        self.net, self.forwards, self.backwards = net, [], 0

    def forward(self, x):
        y = self.net(x)
        self.forwards.append(len(x))
        return mg.tensor.record(y.data, (y,), self.back)

    def back(self, g):
        self.backwards += 1
        return (g,)


def trial(function, sizes):
    """(gradient, samples of each forward, backward passes, peak bytes) of a function."""
    n = sum(sizes)
    function(new_model(), images[:n], labels[:n], sizes)  # once to warm up
    model = Counted(new_model())
    for p in model.parameters():
        p.grad = np.ones_like(p.data)  # left over from something else
    with mg.measure_memory() as memory:
        gradients = function(model, images[:n], labels[:n], sizes)
    return flat(gradients), model.forwards, model.backwards, memory.peak


def library(model, x, y, sizes):
    """What the cost is compared with: the library, with micro-batches of the largest size."""
    mg.accumulate(model, mg.cross_entropy, (x, y), max(sizes))
    return [p.grad for p in model.parameters()]


def check_window(function, sizes):
    """Is it the gradient of the batch, and at the right price?"""
    n = sum(sizes)
    part_means = []
    for x, y in parts_of(sizes):
        model = new_model()
        mg.cross_entropy(model(x), y).mean().backward()
        part_means.append(gradient_of(model))
    expected = batch_gradient(n)
    found, forwards, backwards, peak = trial(function, sizes)
    left = "what .grad held before was added to: clear it before the window"
    also = {f"stale {i}": (expected + by, left) for i, by in enumerate((1 / n, 1, 1 / len(sizes)))}
    if len(sizes) > 1:
        alone = "the last micro-batch alone: the gradient is cleared inside the window"
        also["cleared inside"] = (part_means[-1] * sizes[-1] / n, alone)
    check(expected, found, "the gradient", parts=part_means, sizes=sizes, also=also)
    reference = trial(library, sizes)[3]
    score("backward passes", backwards, len(sizes))
    score("peak memory", peak, reference, " bytes")
    if max(forwards) > max(sizes):
        what = f"a forward pass saw {max(forwards)} samples, the largest part has {max(sizes)}"
        raise WrongAnswer("whole batch", f"{what}: go through the parts one by one")
    if backwards > len(sizes):
        what = f"{backwards} backward passes for {len(sizes)} micro-batches"
        raise WrongAnswer("passes", f"{what}: one for each is enough, the tape adds up its samples")
    if peak > 2 * reference:
        what = f"the peak memory is {peak / reference:.1f} times that of the library"
        raise WrongAnswer(
            "memory", f"{what}: call backward() in the loop, or the tapes of all parts are kept"
        )


# %% answer="04-window"
def window_gradient(model, x, y, sizes):
    """The gradient of the mean cross-entropy of the batch (x, y), cut into parts of these sizes.

    model: an mg.Module. x: (N, 64), y: (N,) with N = sum(sizes): the first sizes[0] samples are the
    first part, and so on. Returns a list of arrays, one a parameter, in the order of
    model.parameters(). What .grad held before does not count. By the samples, as a plain loop:

        for each sample i of the batch:
            for each parameter p:
                total[p] += derivative of mg.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum()
        return [total[p] / N for each parameter p]
    """
    ### BEGIN SOLUTION
    model.zero_grad()
    start = 0
    for n in sizes:
        part = slice(start, start + n)
        mg.cross_entropy(model(x[part]), y[part]).sum().backward()
        start += n
    return [p.grad / len(x) for p in model.parameters()]
    ### END SOLUTION


# %% check="04-window"
LIBRARY = "accumulate", "train_step", "Accumulator", "batch_gradient"
forbid(window_gradient, *LIBRARY)
check_window(window_gradient, window_sizes)

# %% test="04-window" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(window_gradient, *LIBRARY),
    lambda: check_window(window_gradient, window_sizes),
    lambda: check_window(window_gradient, window_sizes[::-1]),
    lambda: check_window(window_gradient, [200]),
    partial={"mean of means": 1, "memory": 2, "passes": 2, "stale 0": 2, "stale 1": 2},
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="04-window" earns=1 because="counts a short one as much"
def window_gradient(model, x, y, sizes):
    model.zero_grad()
    start = 0
    for n in sizes:
        loss = mg.cross_entropy(model(x[start : start + n]), y[start : start + n]).mean()
        (loss / len(sizes)).backward()
        start += n
    return [p.grad for p in model.parameters()]


# %% wrong="tapes kept" of="04-window" earns=2 because="the tapes of all parts are kept"
def window_gradient(model, x, y, sizes):
    model.zero_grad()
    total, start = 0, 0
    for n in sizes:
        total = total + mg.cross_entropy(model(x[start : start + n]), y[start : start + n]).sum()
        start += n
    (total / len(x)).backward()
    return [p.grad for p in model.parameters()]


# %% wrong="not cleared" of="04-window" earns=2 because="what .grad held before"
def window_gradient(model, x, y, sizes):
    start = 0
    for n in sizes:
        mg.cross_entropy(model(x[start : start + n]), y[start : start + n]).sum().backward()
        start += n
    return [p.grad / len(x) for p in model.parameters()]


# %% wrong="cleared inside" of="04-window" earns=0 because="cleared inside the window"
def window_gradient(model, x, y, sizes):
    start = 0
    for n in sizes:
        model.zero_grad()
        mg.cross_entropy(model(x[start : start + n]), y[start : start + n]).sum().backward()
        start += n
    return [p.grad / len(x) for p in model.parameters()]


# %% wrong="library" of="04-window" earns=0 because="uses accumulate"
def window_gradient(model, x, y, sizes):
    mg.accumulate(model, mg.cross_entropy, (x, y), sizes[0])
    return [p.grad for p in model.parameters()]


# %% [markdown]
# ## 4. Find the fault, and mend it (1 point + 2)
#
# The loop below is to compute the gradient of the mean loss of {{batch_size}} digits, in
# micro-batches of {{micro_batch_size}}; the last holds what is left. It runs, the loss may even go
# down, and it is wrong in one way.


# %% when="fault == 'A'"
def window(model, x, y, b):
    model.zero_grad()
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        loss = mg.cross_entropy(model(x[part]), y[part]).sum()
        loss.backward()
    return [p.grad.copy() for p in model.parameters()]


# %% when="fault == 'B'"
def window(model, x, y, b):
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        model.zero_grad()
        loss = mg.cross_entropy(model(x[part]), y[part]).sum()
        (loss / len(x)).backward()
    return [p.grad.copy() for p in model.parameters()]


# %% when="fault == 'C'"
def window(model, x, y, b):
    model.zero_grad()
    steps = -(-len(x) // b)
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        loss = mg.cross_entropy(model(x[part]), y[part]).mean()
        (loss / steps).backward()
    return [p.grad.copy() for p in model.parameters()]


# %% when="fault == 'D'"
def window(model, x, y, b):
    model.zero_grad()
    steps = len(x) // b
    for j in range(steps):
        part = slice(j * b, (j + 1) * b)
        loss = mg.cross_entropy(model(x[part]), y[part]).sum()
        (loss / (steps * b)).backward()
    return [p.grad.copy() for p in model.parameters()]


# %% when="fault == 'E'"
def window(model, x, y, b):
    total = None
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        for p in model.parameters():
            if p.grad is not None:
                p.grad[...] = 0
        mg.cross_entropy(model(x[part]), y[part]).sum().backward()
        found = [p.grad for p in model.parameters()]
        total = found if total is None else [np.add(t, g, out=t) for t, g in zip(total, found)]
    return [t / len(x) for t in total]


# %% [markdown]
# What it does: the gradient of one weight, beside those of the parts and of the batch.

# %%
full, tail = divmod(batch_size, micro_batch_size)
parts = parts_of([micro_batch_size] * full + [tail])
sums = []
for x, y in parts:
    model = new_model()
    mg.cross_entropy(model(x), y).sum().backward()
    sums.append(gradient_of(model))
expected = batch_gradient(batch_size)
at = np.argmax(abs(expected))
returned = flat(window(new_model(), images[:batch_size], labels[:batch_size], micro_batch_size))
for j, ((x, _), s) in enumerate(zip(parts, sums), 1):
    print(f"micro-batch {j}: {len(x):3} samples, sum of their gradients {s[at]:9.4f}")
print(f"the batch:     {batch_size:3} samples, mean {expected[at]:9.4f}")
print(f"the loop returns:            {returned[at]:9.4f}")

choices = ["never divided", "cleared inside", "mean of means", "tail dropped", "alias"]

# %% [markdown]
# The choices: the sum is **never divided**; `.grad` is **cleared inside** the window; each
# micro-batch is divided by its own size, and by their number (**mean of means**); the tail, that is
# the short micro-batch at the end, is left out (**tail dropped**); or two names hold one array, of
# which one should be a copy (**alias**).

# %% answer="04-fault"
# Assign to `fault_found` one of the five `choices`.
### BEGIN SOLUTION
fault_found = dict(zip("ABCDE", choices))[fault]
### END SOLUTION

# %% check="04-fault"
predicted(fault_found, among=choices)

# %% test="04-fault" points=1
### BEGIN HIDDEN TESTS
would = {
    "never divided": sum(sums),
    "cleared inside": sums[-1] / batch_size,
    "mean of means": sum(s / len(x) for s, (x, _) in zip(sums, parts)) / len(parts),
    "tail dropped": sum(sums[:-1]) / (full * micro_batch_size),
    "alias": 2 * sums[-1] / batch_size,
}
planted = dict(zip("ABCDE", would))[fault]
because = {
    name: f"{name!r} would give {value[at]:.4g} for this weight; the loop gives {returned[at]:.4g}"
    for name, value in would.items()
    if name != planted
}
grade(1, lambda: chosen(planted, fault_found, because))
### END HIDDEN TESTS

# %% wrong="another" of="04-fault" when="fault != 'D'" earns=0 because="would give"
fault_found = "tail dropped"

# %% wrong="another" of="04-fault" when="fault == 'D'" earns=0 because="would give"
fault_found = "mean of means"


# %% answer="04-mend"
def mended(model, x, y, b):
    """The gradient of the mean cross-entropy of (x, y), from micro-batches of b; the last is short.

    Returns a list of arrays, one a parameter, in the order of model.parameters().
    """
    ### BEGIN SOLUTION
    model.zero_grad()
    for start in range(0, len(x), b):
        part = slice(start, start + b)
        mg.cross_entropy(model(x[part]), y[part]).sum().backward()
    return [p.grad / len(x) for p in model.parameters()]
    ### END SOLUTION


# %% check="04-mend"
def check_mended(n, b):
    """Is it the gradient of the batch of n digits?"""
    cut = [len(images[start : min(start + b, n)]) for start in range(0, n, b)]
    means_of_parts = []
    for x, y in parts_of(cut):
        model = new_model()
        mg.cross_entropy(model(x), y).mean().backward()
        means_of_parts.append(gradient_of(model))
    last = cut[-1] * means_of_parts[-1] / n
    alone = "the last micro-batch alone: the gradient is cleared inside the window"
    alias = "the last micro-batch twice: two names hold one array; copy it, or let .grad add"
    expected, also = batch_gradient(n), {}
    if len(cut) > 1:
        missing = "the last micro-batch is missing, but its samples are counted: look at the range"
        also = {"cleared inside": (last, alone), "alias": (2 * last, alias)}
        also["not reached"] = (expected - last, missing)
    model = Counted(new_model())
    found = flat(mended(model, images[:n], labels[:n], b))
    check(expected, found, f"N = {n}, b = {b}", parts=means_of_parts, sizes=cut, also=also)
    if max(model.forwards) > b:
        what = f"a forward pass saw {max(model.forwards)} samples, expected {b} at most"
        raise WrongAnswer("whole batch", f"{what}: go through the batch in parts")


forbid(mended, "accumulate", "train_step", "Accumulator", "batch_gradient", "window")
check_mended(batch_size, micro_batch_size)

# %% test="04-mend" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: forbid(mended, "accumulate", "train_step", "Accumulator", "batch_gradient", "window"),
    lambda: check_mended(batch_size, micro_batch_size),
    lambda: check_mended(batch_size, batch_size + 1),
    lambda: check_mended(batch_size, 1),
    lambda: check_mended(2 * micro_batch_size, micro_batch_size),
    partial={"mean of means": 1, "tail dropped": 1},
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="04-mend" earns=1 because="counts a short one as much"
def mended(model, x, y, b):
    model.zero_grad()
    starts = range(0, len(x), b)
    for start in starts:
        loss = mg.cross_entropy(model(x[start : start + b]), y[start : start + b]).mean()
        (loss / len(starts)).backward()
    return [p.grad for p in model.parameters()]


# %% wrong="cleared inside" of="04-mend" earns=0 because="cleared inside the window"
def mended(model, x, y, b):
    for start in range(0, len(x), b):
        model.zero_grad()
        loss = mg.cross_entropy(model(x[start : start + b]), y[start : start + b]).sum()
        (loss / len(x)).backward()
    return [p.grad for p in model.parameters()]


# %% wrong="not reached" of="04-mend" earns=0 because="look at the range"
def mended(model, x, y, b):
    model.zero_grad()
    for start in range(0, len(x) - b, b):
        mg.cross_entropy(model(x[start : start + b]), y[start : start + b]).sum().backward()
    return [p.grad / len(x) for p in model.parameters()]


# %% wrong="tail dropped" of="04-mend" earns=1 because="the last micro-batch is missing"
def mended(model, x, y, b):
    model.zero_grad()
    seen = 0
    for start in range(0, len(x) - b + 1, b):
        mg.cross_entropy(model(x[start : start + b]), y[start : start + b]).sum().backward()
        seen += b
    return [p.grad / max(seen, 1) for p in model.parameters()]


# %% [markdown]
# ## 5. In your words (2 points, read by a person)
#
# A colleague writes: "We went from batches of 32 to eight accumulated micro-batches of 32. That
# does not change the number of samples per update, it only approximates a larger batch. Our loss
# goes down, so the loop is right. The run is not bit for bit that of a batch of 256, so it has an
# error."
#
# Four claims. Judge each of them, with its reason, and describe the one measurement by which you
# would find out whether the loop is right. At most ten sentences.
#
# - **2:** all four are judged rightly and with the reason; the measurement would find a wrong
#   gradient, says what is held equal on both sides, and how large a difference is allowed.
# - **1:** two or three are judged rightly; or all, but the measurement could miss a wrong gradient.
# - **0:** otherwise.

# %% [markdown] manual="04-why" points=2
# The samples per update are multiplied by 8, from 32 to 256; what stays at 32 is one forward pass.
# If the loss is a sum over samples, nothing couples them (no BatchNorm), and the parameters stand
# still in the window, eight micro-batches *equal* one batch of 256; they do not approximate it. A
# loss that goes down shows nothing: a gradient of half the size, or of one micro-batch, goes down
# too. Not the same bits is no error: the sums are rounded in another order. I would take one batch
# of 256 and one set of weights, compute its gradient at once and from eight parts, in float64, and
# compare the two, element by element, with the rounding bound; and again with uneven parts, since
# equal parts hide a mean of means.
