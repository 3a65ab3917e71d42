# %% [markdown]
# # Exercises 06: What must not happen k times?
#
# They train telling apart what belongs to the micro-batch, to the update and to the sample. They
# belong to [lesson 06](../06_once_per_update.ipynb), and take about 45 minutes.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises. Then run the check below it: it
# says whether your answer is right, and if not, why.

# %%
import warnings
from itertools import pairwise

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import check, chosen, corrected, forbid, grade, predicted, score

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
g1 = [-12, 5]  # the gradient of the first micro-batch of exercise 1
g2 = [3, 4]  # that of the second
total = [6, 8]  # exercise 2: the sum of the gradients of all samples of a window
count = 4  # how many samples these are
N = 6  # exercise 3: samples of a batch
p = 0.25  # the share of elements that dropout sets to 0
windows = [[[3, 1], [-1, 4]], [[4, 0], [2, -3]], [[-2, 2], [3, 4]]]  # exercise 4: gradients
### BEGIN PLANTED
fault = "A"  # which of five loops stands there
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    def clipped(g):
        return g / max(1, np.hypot(*g))

    triples = [[3, 4], [6, 8], [5, 12], [8, 15], [7, 24]]
    while True:  # the running buffer must point into another quadrant than the mean
        a, b = (
            np.array(triples[i])[rng.permutation(2)] * rng.choice([-1, 1], 2)
            for i in rng.choice(len(triples), 2, replace=False)
        )
        buffer, mean = clipped(clipped(a) + b), clipped((a + b) / 2)
        apart = abs(a[0] * b[1] - a[1] * b[0]) > 0 and (np.sign(buffer) != np.sign(mean)).any()
        if apart and min(*abs(buffer), *abs(mean)) > 0.05:
            break
    k = int(rng.integers(2, 5))
    while True:  # each of the five loops must give something else than the right one
        drawn = rng.integers(-5, 6, (3, k, 2))
        apart = []
        for window in drawn:
            buffer = np.zeros(2)
            for g in window:
                buffer = clipped(buffer + g / k)
            mean, last = window.mean(axis=0), window[-1] / k
            apart += [abs(clipped(mean) - wrong).max() for wrong in (buffer, clipped(last), mean)]
        if min(apart) > 0.1:
            break
    return {
        "g1": a.tolist(),
        "g2": b.tolist(),
        "total": (np.array(triples[rng.integers(3)]) * rng.choice([-1, 1], 2)).tolist(),
        "count": int(rng.choice([2, 3, 4])),
        "N": int(rng.integers(5, 10)),
        "p": float(rng.choice([0.125, 0.25, 0.375])),
        "windows": drawn.tolist(),
        "fault": str(rng.choice([*"ABCDE"])),
    }


# %% [markdown]
# The toy of the lesson: its output is the input times the weight, its loss is the output. So the
# gradient of a sample is the sample itself.


# %%
class Toy(mg.Module):
    """outputs = x w: the gradient of a sample is the sample itself."""

    def __init__(self, w):
        self.w = mg.parameter(np.array(w, float))

    def forward(self, x):
        return x @ self.w


def as_it_is(outputs, *_):
    """The loss of a sample is its output."""
    return mg.per_sample(outputs)


# %% [markdown]
# ## 1. Predict: into which quadrant? (1 point + 1)
#
# Two micro-batches have the gradients ({{g1[0]}}, {{g1[1]}}) and ({{g2[0]}}, {{g2[1]}}). A loop
# calls `backward` for each, and after each call clips all that is in the buffer to a norm of 1.
#
# Which signs do the two components of the buffer have at the end? Write `"++"`, `"+-"`, `"-+"` or
# `"--"`: first the sign of the first component. A sketch is enough; do not run the loop.

# %% answer="06-quadrant"
# Assign the two signs, as a string, to `prediction`.
### BEGIN SOLUTION
prediction = "".join("+" if x > 0 else "-" for x in np.array(g1) / np.hypot(*g1) + g2)
### END SOLUTION

# %% check="06-quadrant"
predicted(prediction, among=["++", "+-", "-+", "--"])

# %% test="06-quadrant" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction, among=["++", "+-", "-+", "--"]))
### END HIDDEN TESTS

# %% wrong="no prediction" of="06-quadrant" earns=0 because="there is no prediction yet"
prediction = None

# %% [markdown]
# Now the loop runs, with the right one beside it.

# %%
predicted(prediction, among=["++", "+-", "-+", "--"])
buffer, once = Toy([0, 0]), Toy([0, 0])
for g in (g1, g2):
    buffer(np.array(g, float)).backward()
    mg.clip_grad_norm([buffer.w], 1.0)
    once(np.array(g, float)).backward()
once.w.grad /= 2
mg.clip_grad_norm([once.w], 1.0)


def signs(gradient):
    return "".join("+" if x > 0 else "-" for x in gradient)


print(f"your prediction {prediction}, the buffer {signs(buffer.w.grad)} {buffer.w.grad.round(4)}")
print(f"clipped once, at the end: {signs(once.w.grad)} {once.w.grad.round(4)}")

# %% [markdown]
# What happened, and why? One sentence; if you were right, say why it had to be so.

# %% answer="06-quadrant-why"
# Assign one sentence to `correction`.
### BEGIN SOLUTION
correction = (
    "The first gradient was shortened to 1 before the second came in at its full length, so that "
    "the second alone decides the direction of the buffer."
)
### END SOLUTION

# %% check="06-quadrant-why"
corrected(correction)

# %% test="06-quadrant-why" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="06-quadrant-why" earns=0 because="your sentence has 2 words"
correction = "It flipped."

# %% [markdown]
# ## 2. Write: the end of a window (3 points)
#
# `backward` has run k times, and its sums lie there. Write what happens then, once:
#
# ```text
#  backward  backward  ...  backward              once per update
#      \         |             /         +------------------------------+
#       total of all samples  ---------> | finish(total, count,         | --> weight, average
#       count of all samples  ---------> |        weight, average, ...) |
#                                        +------------------------------+
# ```
#
# In words, in no particular order:
#
# - the decay adds `weight_decay` times the weight to the gradient; it is no data, and not clipped;
# - the average becomes `d` times itself plus `1 - d` times the weight after the update;
# - the gradient of the window is the mean over its samples;
# - a window whose gradient is not finite is skipped whole: weight and average stay as they are;
# - the weight moves by `lr` times the gradient, downwards;
# - the gradient of the data is clipped to the norm `max_norm`.
#
# Plain NumPy; nothing that is given may be changed in place.


# %% answer="06-finish"
def finish(total, count, weight, average, *, lr, max_norm, weight_decay, d):
    """Return (weight, average) after the update.

    total: the sum of the gradients of `count` samples. total, weight, average: arrays (n,).
    """
    ### BEGIN SOLUTION
    gradient = total / count
    norm = np.sqrt(np.sum(gradient * gradient))
    if not np.isfinite(norm):
        return weight, average
    if norm > max_norm:
        gradient = gradient * (max_norm / norm)
    weight = weight - lr * (gradient + weight_decay * weight)
    return weight, d * average + (1 - d) * weight
    ### END SOLUTION


# %% check="06-finish"
LIBRARY = "train_step", "Accumulator", "SGD", "WeightAverage", "clip_grad_norm", "training"
options = {"lr": 0.5, "max_norm": 1.0, "weight_decay": 0.25, "d": 0.75}


def by_minigrad(total, count, weight, average, *, lr, max_norm, weight_decay, d, inside=False):
    """What minigrad makes of it. inside: the decay is a part of the loss instead."""
    toy = Toy(weight)
    follow = mg.WeightAverage([toy.w], d)
    follow.values[0][...] = average

    def loss(outputs, *_):
        square = mg.penalty(weight_decay / 2 * (toy.w * toy.w).sum())
        return as_it_is(outputs) + square if inside else as_it_is(outputs)

    x = np.zeros((count, len(total)))
    x[0] = total  # the other samples have the gradient 0
    sgd = mg.SGD([toy.w], lr, weight_decay=0 if inside else weight_decay)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mg.NonFiniteWarning)
        mg.train_step(toy, loss, sgd, (x, x), 1, clip_norm=max_norm, average=follow)
    return np.array([toy.w.data, follow.values[0]])


def look_at(total, count, weight, average, name="weight and average", **options):
    """Compare finish() with minigrad."""
    given = [np.array(total, float), count, np.array(weight, float), np.array(average, float)]
    right, limit = by_minigrad(*given, **options), options["max_norm"]
    early = options["d"] * given[3] + (1 - options["d"]) * given[2]
    also = {
        "clip before dividing": (
            by_minigrad(*given, **{**options, "max_norm": limit / count}),
            "the sum is clipped and then divided: the limit is as many times too strict",
        ),
        "decay clipped": (
            by_minigrad(*given, **options, inside=True),
            "the decay is clipped together with the gradient; only what comes from data is",
        ),
        "average before the step": (
            [right[0], early],
            "the average moves towards the old weight; it follows the weight after the update",
        ),
        "not divided": (
            by_minigrad(given[0], 1, *given[2:], **options),
            "the gradient is the sum over the samples; it is to be their mean",
        ),
        "not clipped": (
            by_minigrad(*given, **{**options, "max_norm": None}),
            "the gradient is longer than max_norm, and was not clipped",
        ),
        "d swapped": (
            by_minigrad(*given, **{**options, "d": 1 - options["d"]}),
            "d belongs to the average as it was, 1 - d to the weight",
        ),
        "no decay": (
            by_minigrad(*given, **{**options, "weight_decay": 0.0}),
            "the weight did not decay",
        ),
    }
    if not np.all(np.isfinite(given[0])):
        moved = "a window that is skipped moves nothing, and the average neither"
        also = {"average moved": ([right[0], early], moved)}
    with np.errstate(invalid="ignore"):
        check(right, finish(*(np.copy(a) for a in given), **options), name, also=also)


def untouched():
    """Is what finish() is given the same afterwards?"""
    given = [np.array(total, float), np.array([1.0, -2.0]), np.array([0.0, 4.0])]
    copies = [a.copy() for a in given]
    finish(given[0], count, given[1], given[2], **options)
    check(np.stack(copies), np.stack(given), "what was given, which finish() may not change")


forbid(finish, *LIBRARY)
look_at(total, count, [1.0, -2.0], [0.0, 4.0], **options)
look_at(
    total,
    count,
    [1.0, -2.0],
    [0.0, 4.0],
    "not longer than max_norm",
    **{**options, "max_norm": 99.0},
)
look_at([np.nan, 1.0], count, [1.0, -2.0], [0.0, 4.0], "a gradient that is not a number", **options)
untouched()

# %% test="06-finish" points=3
### BEGIN HIDDEN TESTS
other = {"lr": 0.125, "max_norm": 0.5, "weight_decay": 0.5, "d": 0.5}
start = np.array([2.0, -1.0, 0.5])
grade(
    3,
    lambda: forbid(finish, *LIBRARY),
    lambda: look_at(total, count, [1.0, -2.0], [0.0, 4.0], **options),
    lambda: look_at([7, -4, 4], 5, start, -start, "three weights", **other),
    lambda: look_at([0.25, 0, 0.5], 5, start, -start, "a short gradient", **other),
    lambda: look_at([7, -4, 4], 5, start, start, "no decay", **{**other, "weight_decay": 0.0}),
    lambda: look_at([np.inf, 1, 1], 5, start, -start, "an infinite gradient", **other),
    lambda: look_at([np.nan, 1, 1], 5, start, -start, "not a number", **other),
    untouched,
    partial={
        "clip before dividing": 1,
        "decay clipped": 1,
        "average before the step": 2,
        "average moved": 2,
        "not finite": 2,
    },
)
### END HIDDEN TESTS


# %% wrong="clip before dividing" of="06-finish" earns=1 because="times too strict"
def finish(total, count, weight, average, *, lr, max_norm, weight_decay, d):
    norm = np.sqrt(np.sum(total * total))
    if not np.isfinite(norm):
        return weight, average
    if norm > max_norm:
        total = total * (max_norm / norm)
    weight = weight - lr * (total / count + weight_decay * weight)
    return weight, d * average + (1 - d) * weight


# %% wrong="average before the step" of="06-finish" earns=2 because="towards the old weight"
def finish(total, count, weight, average, *, lr, max_norm, weight_decay, d):
    gradient = total / count
    norm = np.sqrt(np.sum(gradient * gradient))
    if not np.isfinite(norm):
        return weight, average
    if norm > max_norm:
        gradient = gradient * (max_norm / norm)
    average = d * average + (1 - d) * weight
    return weight - lr * (gradient + weight_decay * weight), average


# %% wrong="no look" of="06-finish" earns=2 because="not a number"
def finish(total, count, weight, average, *, lr, max_norm, weight_decay, d):
    gradient = total / count
    norm = np.sqrt(np.sum(gradient * gradient))
    if norm > max_norm:
        gradient = gradient * (max_norm / norm)
    weight = weight - lr * (gradient + weight_decay * weight)
    return weight, d * average + (1 - d) * weight


# %% [markdown]
# ## 3. Write: a mask that belongs to the sample (2 points)
#
# A dropout layer asks for the mask of one micro-batch: a row for each of its samples. `samples` are
# the places of these samples in the batch of the update. The rows must not depend on the split, nor
# on how often they are asked for; two samples, two layers, or two updates must not share them.
#
# `uniform(key, n)` is all the randomness there is: n numbers from 0 to below 1 that depend on the
# whole numbers in `key` and on nothing else. It counts what it draws: the score shows your numbers
# beside those of the reference.

# %%
drawn_so_far = 0


def uniform(key, n):
    """n random numbers, from 0 to below 1, that depend on `key`, a tuple of whole numbers."""
    global drawn_so_far
    drawn_so_far += n
    return np.random.default_rng([*key]).random(n)


print("the same key:   ", uniform((7, 0), 4).round(3), uniform((7, 0), 4).round(3))
print("two other keys: ", uniform((7, 1), 4).round(3), uniform((8, 0), 4).round(3))

figure, axes = plotting.subplots(1, 2, height=1.9)
for panel, parts, title in zip(
    axes, ([N], [N // 2, N - N // 2]), ("one batch", "two micro-batches")
):
    mask = np.random.default_rng(0).random((N, 24)) < 1 - p  # for the picture only
    row, column = np.nonzero(mask)
    panel.plot(column, row, "s", color=plotting.BLUE)
    for edge in np.cumsum([0, *parts]):
        panel.axhline(edge - 0.5, color=plotting.GREY)
    panel.set(yticks=range(N), xticks=[], ylim=(N - 0.4, -0.6), ylabel="sample")
    panel.grid(False)
    panel.set_title(title, fontsize=10)
plotting.show(
    figure,
    "06-exercise-masks",
    f"The masks of {N} samples, a row each, in one batch and in two micro-batches: a line between "
    "them, and the same rows.",
)


# %% answer="06-mask"
def dropout_mask(seed, update, samples, layer, width, p):
    """The mask of a micro-batch: an array (len(samples), width), True where an element is kept.

    samples: the places of its samples in the batch, for instance range(4, 8). An element is False,
    that is set to 0, with probability p.
    """
    ### BEGIN SOLUTION
    rows = [uniform((seed, update, sample, layer), width) for sample in samples]
    return np.stack(rows) >= p
    ### END SOLUTION


# %% check="06-mask"
def masks(sizes, seed=7, update=0, layer=0, width=96, p=p):
    """The masks of a batch that comes in parts of these sizes, below each other."""
    ends = np.cumsum([0, *sizes])
    parts = [range(start, end) for start, end in pairwise(ends)]
    rows = [np.asarray(dropout_mask(seed, update, part, layer, width, p)) for part in parts]
    for part, found in zip(parts, rows):
        if found.shape != (len(part), width):
            check([len(part), width], [*found.shape], "the shape of a mask")
    return np.vstack(rows)


def alike(a, b):
    """In how many rows two tables of masks are equal."""
    return int((a == b).all(axis=1).sum())


def look_at_masks(n, seed, p=p):
    """One claim after the other."""
    ones = masks([1] * n, seed)
    check(
        n,
        len(np.unique(ones, axis=0)),
        "different masks of all samples",
        also={
            "repeated": (1, "each micro-batch gets the same mask: the key does not know samples")
        },
    )
    check(
        n,
        alike(ones, masks([n - 2, 2], seed)),
        "masks that stay when the batch is split otherwise",
        also={
            "split": (1, "only the first sample keeps its mask: the others depend on the split"),
            "first of part": (2, "only the first sample of each micro-batch keeps its mask"),
        },
    )
    check(n, alike(ones, masks([1] * n, seed)), "masks that stay when they are asked for again")
    check(
        0,
        alike(ones, masks([1] * n, seed, layer=1)),
        "masks that two layers share",
        also={"layers alike": (n, "two layers have the same masks: the key does not know layers")},
    )
    check(
        0,
        alike(ones, masks([1] * n, seed, update=1)),
        "masks that two updates share",
        also={
            "updates alike": (n, "each update has the same masks: the key does not know updates")
        },
    )
    check(0, alike(ones, masks([1] * n, seed + 1)), "masks that two seeds share")
    four = np.vstack([masks([n], seed, update=i, layer=j) for i in range(2) for j in range(2)])
    different = len(np.unique(four, axis=0))
    shared = "two samples, in other layers or updates, share a mask: their keys must not meet"
    also = {"keys meet": (different, shared)}
    check(4 * n, different, "different masks in two layers and two updates", also=also)
    share = masks([n], seed, width=4000, p=p).mean()
    near = next((x for x in (1 - p, p) if abs(share - x) < 0.05), share)
    inverted = "it is the share p that is kept: True is for elements that stay"
    check(1 - p, near, "the share that is kept", also={"inverted": (p, inverted)})


forbid(dropout_mask, "Dropout", "uniform_words")
look_at_masks(N, seed=7)
drawn_so_far = 0
masks([2, N - 2])
score("random numbers drawn", drawn_so_far, N * 96)

# %% test="06-mask" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: forbid(dropout_mask, "Dropout", "uniform_words"),
    lambda: look_at_masks(N, seed=7),
    lambda: look_at_masks(N + 3, seed=123, p=p / 2),
    partial={"layers alike": 1, "updates alike": 1, "inverted": 1},
)
### END HIDDEN TESTS


# %% wrong="repeated" of="06-mask" earns=0 because="the key does not know samples"
def dropout_mask(seed, update, samples, layer, width, p):
    numbers = uniform((seed, update, layer), len(samples) * width)
    return numbers.reshape(len(samples), width) >= p


# %% wrong="layers alike" of="06-mask" earns=1 because="the key does not know layers"
def dropout_mask(seed, update, samples, layer, width, p):
    return np.stack([uniform((seed, update, sample), width) >= p for sample in samples])


# %% wrong="inverted" of="06-mask" earns=1 because="True is for elements that stay"
def dropout_mask(seed, update, samples, layer, width, p):
    return np.stack([uniform((seed, update, sample, layer), width) < p for sample in samples])


# %% [markdown]
# ## 4. Find the fault (1 point + 2)
#
# A colleague's loop. Each window holds the gradients of its micro-batches, all of one size. Once an
# update, the mean gradient is to be clipped to `max_norm`; the weight decays and moves, with the
# rate of the schedule, which counts updates; the buffer is cleared, and the average moves.
#
# One line stands where it must not stand.

# %%
max_norm, weight_decay, d = 1.0, 0.25, 0.5


class Schedule:
    """The learning rate after t calls of step()."""

    def __init__(self):
        self.t = 0

    def rate(self):
        return 0.5 / (1 + self.t)

    def step(self):
        self.t += 1


# %% when="fault == 'A'"
def train(windows, w):
    """The weight after each update, and the average after the last."""
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        for i, g in enumerate(window, 1):
            (toy(np.array(g, float)) / len(window)).backward()
            mg.clip_grad_norm([toy.w], max_norm)
            if i == len(window):
                toy.w.data *= 1 - schedule.rate() * weight_decay
                toy.w.data -= schedule.rate() * toy.w.grad
                schedule.step()
                toy.zero_grad()
                average = d * average + (1 - d) * toy.w.data
                path.append(toy.w.data.copy())
    return np.array([*path, average])


# %% when="fault == 'B'"
def train(windows, w):
    """The weight after each update, and the average after the last."""
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        for i, g in enumerate(window, 1):
            (toy(np.array(g, float)) / len(window)).backward()
            toy.w.data *= 1 - schedule.rate() * weight_decay
            if i == len(window):
                mg.clip_grad_norm([toy.w], max_norm)
                toy.w.data -= schedule.rate() * toy.w.grad
                schedule.step()
                toy.zero_grad()
                average = d * average + (1 - d) * toy.w.data
                path.append(toy.w.data.copy())
    return np.array([*path, average])


# %% when="fault == 'C'"
def train(windows, w):
    """The weight after each update, and the average after the last."""
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        for i, g in enumerate(window, 1):
            (toy(np.array(g, float)) / len(window)).backward()
            if i == len(window):
                mg.clip_grad_norm([toy.w], max_norm)
                toy.w.data *= 1 - schedule.rate() * weight_decay
                toy.w.data -= schedule.rate() * toy.w.grad
                toy.zero_grad()
                average = d * average + (1 - d) * toy.w.data
                path.append(toy.w.data.copy())
            schedule.step()
    return np.array([*path, average])


# %% when="fault == 'D'"
def train(windows, w):
    """The weight after each update, and the average after the last."""
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        for i, g in enumerate(window, 1):
            (toy(np.array(g, float)) / len(window)).backward()
            if i == len(window):
                mg.clip_grad_norm([toy.w], max_norm)
                toy.w.data *= 1 - schedule.rate() * weight_decay
                toy.w.data -= schedule.rate() * toy.w.grad
                schedule.step()
                average = d * average + (1 - d) * toy.w.data
                path.append(toy.w.data.copy())
            toy.zero_grad()
    return np.array([*path, average])


# %% when="fault == 'E'"
def train(windows, w):
    """The weight after each update, and the average after the last."""
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        for i, g in enumerate(window, 1):
            (toy(np.array(g, float)) / len(window)).backward()
            if i == len(window):
                mg.clip_grad_norm([toy.w], max_norm)
                toy.w.data *= 1 - schedule.rate() * weight_decay
                toy.w.data -= schedule.rate() * toy.w.grad
                schedule.step()
                toy.zero_grad()
                path.append(toy.w.data.copy())
            average = d * average + (1 - d) * toy.w.data
    return np.array([*path, average])


# %% [markdown]
# Here is what it gives, with what minigrad makes of the same windows beside it.


# %%
def of_minigrad(windows, w, max_norm=max_norm):
    """The same windows by train_step, as train() returns them."""
    toy, path = Toy(w), []
    follow = mg.WeightAverage([toy.w], d)
    sgd = mg.SGD([toy.w], lr=lambda t: 0.5 / (1 + t), weight_decay=weight_decay)
    for window in windows:
        x = np.array(window, float)
        mg.train_step(toy, as_it_is, sgd, (x, x), 1, clip_norm=max_norm, average=follow)
        path.append(toy.w.data.copy())
    return np.array([*path, follow.values[0]])


begin = [2.0, -1.0]
print("             loop                minigrad")
names = [f"update {i + 1}" for i in range(len(windows))]
for name, a, b in zip([*names, "average"], train(windows, begin), of_minigrad(windows, begin)):
    print(f"{name:9} ({a[0]:7.4f}, {a[1]:7.4f})  ({b[0]:7.4f}, {b[1]:7.4f})")

# %% [markdown]
# Which line stands in the wrong place? `"clip"`, `"decay"`, `"schedule"`, `"clear"` (that is
# `zero_grad`) or `"average"`?

# %% answer="06-fault"
# Assign one of the five words to `fault_found`.
### BEGIN SOLUTION
fault_found = {"A": "clip", "B": "decay", "C": "schedule", "D": "clear", "E": "average"}[fault]
### END SOLUTION

# %% check="06-fault"
predicted(fault_found, among=["average", "clear", "clip", "decay", "schedule"])

# %% test="06-fault" points=1
### BEGIN HIDDEN TESTS
because = {
    "clip": "the clip stands below `if i == len(window)`: it acts once an update",
    "decay": "the weight shrinks below `if i == len(window)`, once an update",
    "schedule": "the schedule moves below `if i == len(window)`, once an update",
    "clear": "the buffer is cleared below `if i == len(window)`, once an update",
    "average": "the average moves below `if i == len(window)`, once an update",
}
planted = dict(zip("ABCDE", because))[fault]
del because[planted]
grade(1, lambda: chosen(planted, fault_found, because))
### END HIDDEN TESTS

# %% wrong="another line" of="06-fault" earns=0 because="once an update"
fault_found = "clear" if fault != "D" else "clip"

# %% [markdown]
# Now mend it: write the whole loop, with that line in its place.


# %% answer="06-mended"
def mended(windows, w):
    """The weight after each update, and the average after the last: an array (updates + 1, 2).

    windows: for each update the gradients of its micro-batches. w: the weight at the start; the
    average starts there too.
    """
    ### BEGIN SOLUTION
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        toy.zero_grad()
        for g in window:
            (toy(np.array(g, float)) / len(window)).backward()
        mg.clip_grad_norm([toy.w], max_norm)
        toy.w.data *= 1 - schedule.rate() * weight_decay
        toy.w.data -= schedule.rate() * toy.w.grad
        schedule.step()
        average = d * average + (1 - d) * toy.w.data
        path.append(toy.w.data.copy())
    return np.array([*path, average])
    ### END SOLUTION


# %% check="06-mended"
def look_at_loop(windows, w):
    """Compare mended() with minigrad."""
    removed = "nothing is clipped: the line was to be moved, not to be removed"
    also = {
        "not mended": (train(windows, w), "this is what the loop gave before it was mended"),
        "line removed": (of_minigrad(windows, w, max_norm=None), removed),
    }
    right = of_minigrad(windows, w)
    also["one array"] = (
        [*[right[-2]] * len(windows), right[-1]],
        "every update shows the weight of the last one: keep a copy, `toy.w.data` is one array",
    )
    check(right, mended(windows, w), "weights and average", also=also)


forbid(mended, "train_step", "Accumulator", "of_minigrad")
look_at_loop(windows, begin)

# %% test="06-mended" points=2
### BEGIN HIDDEN TESTS
others = [[[5, 1], [0, -4], [2, 2]], [[1, 6], [3, 3], [-8, 0]]]
grade(
    2,
    lambda: forbid(mended, "train_step", "Accumulator", "of_minigrad"),
    lambda: look_at_loop(windows, begin),
    lambda: look_at_loop(others, [-1.0, 3.0]),
    lambda: look_at_loop([window[:2] for window in others], [0.5, 0.5]),
    partial={"line removed": 1},
)
### END HIDDEN TESTS


# %% wrong="not mended" of="06-mended" earns=0 because="before it was mended"
def mended(windows, w):
    return train(windows, w)


# %% wrong="line removed" of="06-mended" earns=1 because="moved, not to be removed"
def mended(windows, w):
    toy, average, schedule, path = Toy(w), np.array(w, float), Schedule(), []
    for window in windows:
        toy.zero_grad()
        for g in window:
            (toy(np.array(g, float)) / len(window)).backward()
        toy.w.data *= 1 - schedule.rate() * weight_decay
        toy.w.data -= schedule.rate() * toy.w.grad
        schedule.step()
        average = d * average + (1 - d) * toy.w.data
        path.append(toy.w.data.copy())
    return np.array([*path, average])


# %% [markdown]
# ## 5. In your words (2 points, read by a person)
#
# A loop runs a line k times an update, and its owner does not want to move the line. "I change a
# constant instead." Take the weight decay (a factor on the weight), the average, and the clip. For
# which of them is there such a constant, which one, and for which not? What happens in a short last
# window?
#
# - **2:** all three are judged rightly, each with its reason; where there is a constant, it is
#   named; and it is said what a short last window does.
# - **1:** some of the three are judged rightly, with the reason; or all, without the short window.
# - **0:** otherwise.

# %% [markdown] manual="06-why" points=2
# The decay multiplies the weight by f = 1 - lr decay. Done k times with the k-th root of f, it is
# done once with f, as long as no step comes between. (Even so, the later micro-batches see a weight
# that has decayed in part, which only a toy like ours does not notice.) The root serves the average
# too: its distance to the weight shrinks by d at each call, so d to the power 1/k does it, if the
# weight stands still during the k calls. The clip has no such constant, because it is not linear: a
# small limit changes the direction, and one so large that no part is cut leaves the length as it
# was. And a last window of fewer micro-batches would need other roots. Moving the line is shorter.
