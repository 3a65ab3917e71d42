# %% [markdown]
# # Exercises 12: A larger batch: now what?
#
# They train what changes with the batch: the number of updates, the rate and its warm-up, the trust
# ratio. They belong to [lesson 12](../12_learning_rate.ipynb), and take about 45 minutes.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises. Then run the check below it: it
# says whether your answer is right, and if not, why.

# %%
import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import check, chosen, corrected, forbid, grade, predicted
from minigrad.data import digits

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
k1 = 4  # exercise 1: micro-batches of an update
epochs1 = 4  # epochs of both runs
b = 16  # exercise 2: samples of the small batch, and of a micro-batch
k = 4  # micro-batches of an update
samples = 128  # of an epoch
rate = 0.125  # that was right for the small batch
w = [[3.0, -1.0], [2.0, 2.0]]  # exercise 3: a weight matrix
parts = [[[4.0, 1.0], [0.0, -2.0]], [[-1.0, 1.0], [1.0, 3.0]]]  # sums over two micro-batches
counts = [3, 2]  # of so many samples
k4 = 4  # exercise 4: micro-batches of an update
rate4 = 0.25  # that was right for batches of 2
warm4 = 7  # updates of the new warm-up
seed4 = 3  # of the gradients
### BEGIN PLANTED
fault = "B"  # which of five loops stands there
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    k4, seed4 = int(rng.choice([2, 4])), int(rng.integers(1000))
    while True:  # the parts' ratios must give another step than the ratio of the whole
        w = rng.integers(-4, 5, (2, 2))
        parts = rng.integers(-4, 5, (2, 2, 2))
        counts = rng.choice([2, 3, 4, 5], 2, replace=False)
        means = parts / counts[:, None, None]
        lengths = [np.linalg.norm(g) for g in (w, *means, parts.sum(axis=0))]
        unit = [g / np.linalg.norm(g) if g.any() else g for g in means]
        straight = parts.sum(axis=0) / counts.sum()
        turned = np.vdot(sum(unit), straight) / np.linalg.norm(sum(unit) + 1e-9) / lengths[-1]
        if min(lengths) > 1 and turned * counts.sum() < 0.95:
            break
    return {
        "k1": int(rng.choice([2, 4, 8])),
        "epochs1": int(rng.choice([2, 3, 4])),
        "b": int(rng.choice([8, 16])),
        "k": int(rng.choice([2, 4])),
        "samples": int(rng.choice([128, 192, 256])),
        "rate": float(rng.choice([0.0625, 0.125, 0.25])),
        "w": w.astype(float).tolist(),
        "parts": parts.astype(float).tolist(),
        "counts": counts.tolist(),
        "k4": k4,
        "rate4": float(rng.choice([0.125, 0.25])),
        "warm4": int(rng.integers(5, 9)),
        "seed4": seed4,
        "fault": str(rng.choice([*"ABCDE"])),
    }


# %% [markdown]
# ## 1. Predict: where does the accumulated run end? (1 point + 1)
#
# A layer learns 512 digits by SGD with batches of 8 for {{epochs1}} epochs, and its loss is written
# down after each update. Somebody accumulates {{k1}} micro-batches of 8 for each update, and keeps
# everything else: the rate, the mean of the batch, and the number of epochs.
#
# The new run ends at some loss. After about *how many of its updates* was the old run there?

# %% answer="12-updates"
# Assign a number of updates to `prediction`.
### BEGIN SOLUTION
prediction = epochs1 * 512 // 8 // k1
### END SOLUTION

# %% check="12-updates"
predicted(prediction)

# %% test="12-updates" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="no prediction" of="12-updates" earns=0 because="there is no prediction yet"
prediction = None

# %% [markdown]
# Now both run.

# %%
predicted(prediction)
(images, labels), _ = digits(np.float64)
images, labels = images[:512], labels[:512]


def losses_of(batch, micro_batch):
    """The loss of all 512 digits before the first update, and after each."""
    layer = mg.Linear(64, 10, rng=np.random.default_rng(0), dtype=np.float64)
    optimizer, found = mg.SGD(layer.parameters(), 1 / 32), []
    for start in range(0, epochs1 * 512 + 1, batch):
        with mg.no_grad():
            found.append(mg.cross_entropy(layer(images), labels).mean().item())
        rows = np.arange(start, start + batch) % 512
        mg.train_step(layer, mg.cross_entropy, optimizer, (images[rows], labels[rows]), micro_batch)
    return np.array(found)


old, new = losses_of(8, 8), losses_of(8 * k1, 8)
nearest = int(np.argmin(abs(old - new[-1])))
print(f"the new run makes {len(new) - 1} updates, and ends at a loss of {new[-1]:.3f}")
print(
    f"the old one was there after {nearest} of its {len(old) - 1} updates; it ends at {old[-1]:.3f}"
)
print(f"your prediction: {prediction}")

figure, axis = plotting.subplots(height=2.6)
axis.plot(old, color=plotting.BLUE, label="batch 8")
axis.plot(new, color=plotting.ORANGE, ls="--", label=f"{k1} x 8, accumulated")
axis.plot(len(new) - 1, new[-1], "o", color=plotting.ORANGE, ms=7)
axis.set(xlabel="updates", ylabel="loss")
axis.legend()
plotting.show(
    figure,
    "12-exercise-updates",
    f"The loss against updates: the accumulated run stops at update {len(new) - 1}, at "
    f"{new[-1]:.3f}, and the run of batch 8 at update {len(old) - 1}, at {old[-1]:.3f}.",
)

# %% [markdown]
# What happened, and why? One sentence; if you were right, say why it had to be so.

# %% answer="12-updates-why"
# Assign one sentence to `correction`.
### BEGIN SOLUTION
correction = (
    "At one rate an update goes about as far whatever its batch, and the accumulated run makes k "
    "times fewer of them in the same epochs."
)
### END SOLUTION

# %% check="12-updates-why"
corrected(correction)

# %% test="12-updates-why" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="12-updates-why" earns=0 because="your sentence has 3 words"
correction = "It was slower."

# %% [markdown]
# ## 2. Write: the rates of the new run (3 points)
#
# SGD with batches of b samples had the right rate. Now each update gets k micro-batches of b. Write
# the rates of all updates of the new run, in order, as a list:
#
# - an epoch has `samples` samples, a multiple of k b, and makes an update for each k b of them;
# - the full rate is that of linear scaling for the *mean* of the batch. Where the gradient is the
#   *sum* over the batch (`reduction == "sum"`), `rate` was right for the sum, and the update must
#   go as far as in the other case;
# - over the first `warm_epochs` epochs the rate grows in equal steps: with W updates in them, the
#   first update has 1/W of the full rate and the last one of them the full rate, which then stays.
#
# ```text
#  full rate                      . o o o o o o o o
#                             o
#                       o
#                 o
#           o
#  update   0     1     2     3     4     ...
#           '---- warm_epochs -----'
# ```


# %% answer="12-rates"
def rates_of(rate, b, k, samples, epochs, warm_epochs, reduction):
    """The rates of all updates of the new run, a list."""
    ### BEGIN SOLUTION
    an_epoch = samples // (k * b)
    warm = warm_epochs * an_epoch
    full = rate * k if reduction == "mean" else rate
    return [full * min(1, (update + 1) / warm) for update in range(epochs * an_epoch)]
    ### END SOLUTION


# %% check="12-rates"
LIBRARY = "warmup", "linear_scaling", "square_root_scaling", "by_minigrad"


def by_minigrad(rate, b, batch, samples, epochs, warm, reduction):
    """What minigrad's rules give, for warm updates of warm-up."""
    full = mg.linear_scaling(rate, b, batch) if reduction == "mean" else rate
    schedule = mg.warmup(full, warm)
    return np.array([schedule(update) for update in range(epochs * samples // batch)])


def look_at_rates(rate, b, k, samples, epochs, warm_epochs, reduction):
    """Compare rates_of() with minigrad."""
    updates = epochs * samples // (k * b)
    found = rates_of(rate, b, k, samples, epochs, warm_epochs, reduction)
    per_micro = "there is one rate for each micro-batch; only an update has a rate"
    try:
        count = len(found)
    except TypeError:
        check(np.zeros(updates), found, "the list of rates")
    also = {
        "micro-batches": (k * updates, per_micro),
        "one epoch": (updates // epochs, "there are the rates of one epoch; the run has more"),
    }
    check(updates, count, "how many rates", also=also)
    options = rate, b, k * b, samples, epochs
    warm = warm_epochs * samples // (k * b)
    right = by_minigrad(*options, warm, reduction)
    grown = np.minimum(1, np.arange(1, updates + 1) / warm)
    also = {
        "warm-up in micro-batches": (
            by_minigrad(*options, k * warm, reduction),
            "the warm-up is k times too long: it is counted in micro-batches, not in updates",
        ),
        "starts at 0": (
            np.append(0, right[:-1]),
            "all rates come one update too late: the first update has 1/W of the full rate, not 0",
        ),
        "one too few": (
            np.minimum(1, np.arange(updates) / (warm - 1)) * right[-1],
            "the warm-up grows from 0 in W - 1 steps; the first update has 1/W of the full rate",
        ),
        "from the small rate": (
            rate + grown * (right[-1] - rate),
            "the warm-up begins at the rate of the small batch, as Goyal's does; here the "
            "first update has 1/W of the full rate",
        ),
        "no warm-up": (
            np.full(updates, right[-1]),
            "there is no warm-up; or does yours count epochs, and not updates?",
        ),
    }
    if reduction == "mean":
        also["not scaled"] = right / k, "the rate is that of the small batch: it was not scaled"
        also["square root"] = (
            right / np.sqrt(k),
            "the rate grew by the square root of k, which is Adam's rule; this is SGD",
        )
    else:
        also["scaled twice"] = (
            k * right,
            "the gradient of a sum has grown k times already: a rate that grows too scales twice",
        )
        also["divided"] = (
            right / k,
            "the sum was divided by k; it may grow, for the update is to go k times as far",
        )
    check(right, found, f"the rates for the {reduction}", also=also)


forbid(rates_of, *LIBRARY)
look_at_rates(rate, b, k, samples, 3, 1, "mean")
look_at_rates(rate, b, k, samples, 3, 1, "sum")

# %% test="12-rates" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(rates_of, *LIBRARY),
    lambda: look_at_rates(rate, b, k, samples, 3, 1, "mean"),
    lambda: look_at_rates(rate, b, k, samples, 6, 2, "mean"),
    lambda: look_at_rates(0.5, 10, 3, 120, 4, 2, "mean"),
    lambda: look_at_rates(rate, b, k, samples, 5, 2, "sum"),
    lambda: look_at_rates(0.5, 10, 3, 120, 4, 2, "sum"),
    partial={
        "warm-up in micro-batches": 1,
        "square root": 1,
        "starts at 0": 2,
        "one too few": 2,
        "from the small rate": 2,
        "scaled twice": 2,
        "divided": 2,
    },
)
### END HIDDEN TESTS


# %% wrong="warm-up in micro-batches" of="12-rates" earns=1 because="k times too long"
def rates_of(rate, b, k, samples, epochs, warm_epochs, reduction):
    warm = warm_epochs * samples // b
    full = rate * k if reduction == "mean" else rate
    return [full * min(1, (i + 1) / warm) for i in range(epochs * samples // (k * b))]


# %% wrong="scaled twice" of="12-rates" earns=2 because="scales twice"
def rates_of(rate, b, k, samples, epochs, warm_epochs, reduction):
    an_epoch = samples // (k * b)
    warm = warm_epochs * an_epoch
    return [rate * k * min(1, (i + 1) / warm) for i in range(epochs * an_epoch)]


# %% wrong="from the small rate" of="12-rates" earns=2 because="as Goyal's does"
def rates_of(rate, b, k, samples, epochs, warm_epochs, reduction):
    an_epoch = samples // (k * b)
    warm = warm_epochs * an_epoch
    full = rate * k if reduction == "mean" else rate
    grown = [min(1, (i + 1) / warm) for i in range(epochs * an_epoch)]
    return [rate + (full - rate) * share for share in grown]


# %% wrong="square root" of="12-rates" earns=1 because="Adam's rule"
def rates_of(rate, b, k, samples, epochs, warm_epochs, reduction):
    an_epoch = samples // (k * b)
    warm = warm_epochs * an_epoch
    full = rate * k**0.5 if reduction == "mean" else rate
    return [full * min(1, (i + 1) / warm) for i in range(epochs * an_epoch)]


# %% [markdown]
# ## 3. Write: one step of LARS (2 points)
#
# A window has been accumulated: `parts` are the gradients of the *sums* over its micro-batches,
# `counts` how many samples each has. Write the update of one parameter, without momentum:
#
# - $g$ is the mean gradient of the window;
# - the ratio is $\tau\, |w| / (|g| + \lambda |w|)$, with $\tau$ = `trust` and $\lambda$ =
#   `weight_decay`; it is 1 if $w$ or $g$ is all 0;
# - $w$ moves by `lr` times the ratio times $g + \lambda w$, downwards;
# - a parameter with fewer than two axes, such as a bias, moves by `lr` times $g$, without ratio and
#   decay.
#
# $|a|$ is the root of the sum of the squares. Plain NumPy; `w` may not be changed in place.


# %% answer="12-lars"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    """The parameter after one update of LARS: an array of w's shape."""
    ### BEGIN SOLUTION
    g = sum(parts) / sum(counts)
    if w.ndim < 2:
        return w - lr * g
    length, slope = np.sqrt((w * w).sum()), np.sqrt((g * g).sum())
    ratio = 1.0
    if length > 0 and slope > 0:
        ratio = trust * length / (slope + weight_decay * length)
    return w - lr * ratio * (g + weight_decay * w)
    ### END SOLUTION


# %% check="12-lars"
class Given(mg.Module):
    """outputs = the sum over x w: the gradient of a sample is the sample itself."""

    def __init__(self, w):
        self.w = mg.parameter(np.array(w, float))

    def forward(self, x):
        return (x * self.w).reshape(len(x), -1).sum(axis=1)


def by_lars(w, g, *, lr, trust, weight_decay):
    """minigrad's LARS, for one sample with the gradient g."""
    model, x = Given(w), np.array([g], float)
    optimizer = mg.LARS([model.w], lr, 0.0, weight_decay, trust)
    mg.train_step(model, lambda outputs, *_: mg.per_sample(outputs), optimizer, (x, x), 1)
    return model.w.data


def norm(a):
    return np.sqrt(np.sum(np.square(a)))


def by_ratio(w, g, trust, decay):
    return trust * norm(w) / (norm(g) + decay * norm(w))


def look_at_lars(w, parts, counts, name="the parameter", **options):
    """Compare lars_step() with minigrad."""
    given = np.array(w, float), [np.array(part, float) for part in parts], list(counts)
    w, parts, counts = given
    g = sum(parts) / sum(counts)
    lr, trust, decay = options["lr"], options["trust"], options["weight_decay"]
    right, moving = by_lars(w, g, **options), g + decay * w
    means = [part / n for part, n in zip(parts, counts)]
    steps = [by_lars(w, mean, **options) for mean in means]
    also = {
        "ratio of each part": (
            sum(steps) / len(steps),
            "the ratio was taken of each micro-batch; it belongs to the finished gradient, once",
        ),
        "mean of means": (
            by_lars(w, sum(means) / len(means), **options),
            "g is a mean of means; add up the sums, and divide once, by all samples",
        ),
        "divided by the parts": (
            by_lars(w, sum(parts) / len(parts), **options),
            "the sum was divided by the number of micro-batches; a mean is over samples",
        ),
        "not divided": (
            by_lars(w, sum(parts), **options),
            "g is the sum over the samples; it is to be their mean",
        ),
    }
    if w.ndim > 1 and norm(g) * norm(w) > 0:
        also["norm of the sum"] = (
            w - lr * trust * norm(w) / norm(moving) * moving,
            "below the line stands |g + decay w|; LARS has |g| + decay |w|, the sum of two norms",
        )
        also["no decay"] = (
            by_lars(w, g, **{**options, "weight_decay": 0.0}),
            "the weight did not decay",
        )
        also["decay outside"] = (
            by_lars(w, g, **options) + lr * (by_ratio(w, g, trust, decay) - 1) * decay * w,
            "the decay stands outside the ratio; in LARS the ratio multiplies both",
        )
        also["decay above only"] = (
            w - lr * by_ratio(w, g, trust, 0.0) * moving,
            "the decay is missing below the line: there stands |g| + decay |w|",
        )
        also["no trust"] = by_lars(w, g, **{**options, "trust": 1.0}), "the factor trust is missing"
        also["no rate"] = by_lars(w, g, **{**options, "lr": 1.0}), "the factor lr is missing"
        also["upwards"] = 2 * w - right, "the weight moves upwards"
    elif w.ndim == 2 and not w.any():
        also["stands still"] = w, "it does not move: where w is all 0, the ratio is 1"
    elif w.ndim == 1:
        also["bias decays"] = (
            w - lr * moving,
            "a bias decayed; with fewer than two axes it gets neither ratio nor decay",
        )
        also["bias"] = (
            by_lars(w[None], g[None], **options)[0],
            "a bias got a ratio, or a decay; with fewer than two axes it gets neither",
        )
    with np.errstate(all="ignore"):
        found = lars_step(w.copy(), parts, counts, **options)
    check(right, found, name, also=also)


def untouched():
    """Is w the same afterwards?"""
    given = np.array(w)
    after = lars_step(given, [np.array(part) for part in parts], counts, **usual)
    also = {"in place": (after, "w itself was changed (by -= ?); return a new array")}
    check(np.array(w), given, "w, which may not be changed", also=also)


usual = {"lr": 0.5, "trust": 0.25, "weight_decay": 0.5}
forbid(lars_step, "LARS", "LARC", "by_lars", "by_ratio", "look_at_lars")
look_at_lars(w, parts, counts, **usual)
look_at_lars(w[0], np.array(parts)[:, 0], counts, "a bias", **usual)
look_at_lars(np.zeros((2, 2)), parts, counts, "a parameter that is all 0", **usual)
untouched()

# %% test="12-lars" points=2
### BEGIN HIDDEN TESTS
rng = np.random.default_rng(0)
big, more = rng.standard_normal((4, 3)), rng.standard_normal((3, 4, 3))
other = {"lr": 2.0, "trust": 0.001, "weight_decay": 0.125}
grade(
    2,
    lambda: forbid(lars_step, "LARS", "LARC", "by_lars", "by_ratio", "look_at_lars"),
    lambda: look_at_lars(w, parts, counts, **usual),
    lambda: look_at_lars(w, parts, counts, **{**usual, "weight_decay": 0.0}),
    lambda: look_at_lars(big, more, [1, 5, 2], "another", **other),
    lambda: look_at_lars(big[0], more[:, 0], [1, 5, 2], "a bias", **other),
    lambda: look_at_lars(0 * big, more, [1, 5, 2], "a parameter that is all 0", **other),
    lambda: look_at_lars(big, 0 * more, [1, 5, 2], "a gradient that is all 0", **usual),
    untouched,
    partial={
        "norm of the sum": 1,
        "decay above only": 1,
        "bias": 1,
        "bias decays": 1,
        "stands still": 1,
        "in place": 1,
        "not finite": 1,
    },
)
### END HIDDEN TESTS


# %% wrong="ratio of each part" of="12-lars" earns=0 because="taken of each micro-batch"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    moved = np.zeros_like(w)
    for part, count in zip(parts, counts):
        g = part / count
        ratio = trust * norm(w) / (norm(g) + weight_decay * norm(w))
        if w.ndim < 2:
            ratio, weight_decay = 1.0, 0.0
        moved = moved + ratio * (g + weight_decay * w) / len(parts)
    return w - lr * moved


# %% wrong="norm of the sum" of="12-lars" earns=1 because="the sum of two norms"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    g = sum(parts) / sum(counts)
    if w.ndim < 2:
        return w - lr * g
    g = g + weight_decay * w
    ratio = trust * norm(w) / norm(g) if norm(w) > 0 and norm(g) > 0 else 1.0
    return w - lr * ratio * g


# %% wrong="decay outside the ratio" of="12-lars" earns=0 because="the ratio multiplies both"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    g = sum(parts) / sum(counts)
    if w.ndim < 2:
        return w - lr * g
    ratio = 1.0
    if norm(w) > 0 and norm(g) > 0:
        ratio = trust * norm(w) / (norm(g) + weight_decay * norm(w))
    return w - lr * ratio * g - lr * weight_decay * w


# %% wrong="in place" of="12-lars" earns=1 because="return a new array"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    g, ratio = sum(parts) / sum(counts), 1.0
    if w.ndim < 2:
        weight_decay = 0.0
    elif norm(w) > 0 and norm(g) > 0:
        ratio = trust * norm(w) / (norm(g) + weight_decay * norm(w))
    w -= lr * ratio * (g + weight_decay * w)
    return w


# %% wrong="a bias like all others" of="12-lars" earns=1 because="it gets neither"
def lars_step(w, parts, counts, *, lr, trust, weight_decay):
    g, ratio = sum(parts) / sum(counts), 1.0
    if norm(w) > 0 and norm(g) > 0:
        ratio = trust * norm(w) / (norm(g) + weight_decay * norm(w))
    return w - lr * ratio * (g + weight_decay * w)


# %% [markdown]
# ## 4. Find the fault (1 point + 2)
#
# A run with batches of 2 had the right rate, {{rate4}}, for SGD and the mean of the batch, and a
# warm-up over {{k4}} x {{warm4}} updates. A colleague now accumulates {{k4}} micro-batches of 2 for
# each update. The new run is to be the old one, as linear scaling has it: the full rate of the
# larger batch, and a warm-up over as many *samples* as before, which is {{warm4}} updates.
#
# The toy's gradient of a sample is the sample itself. One thing is wrong.


# %%
class Toy(mg.Module):
    """outputs = x w: the gradient of a sample is the sample itself."""

    def __init__(self, w):
        self.w = mg.parameter(np.array(w, float))

    def forward(self, x):
        return x * self.w


x4 = np.random.default_rng(seed4).integers(1, 9, (warm4 + 3) * k4 * 2).astype(float)


# %% when="fault == 'A'"
def train(x, w):
    """The weight after each update."""
    toy, path = Toy(w), []
    for t, window in enumerate(np.reshape(x, (-1, k4, 2))):
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
        now = rate4 * min(1, (t + 1) / warm4)
        toy.w.data -= now * toy.w.grad
        toy.zero_grad()
        path.append(toy.w.data.item())
    return np.array(path)


# %% when="fault == 'B'"
def train(x, w):
    """The weight after each update."""
    toy, path, t = Toy(w), [], 0
    for window in np.reshape(x, (-1, k4, 2)):
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
            now = k4 * rate4 * min(1, (t + 1) / warm4)
            t += 1
        toy.w.data -= now * toy.w.grad
        toy.zero_grad()
        path.append(toy.w.data.item())
    return np.array(path)


# %% when="fault == 'C'"
def train(x, w):
    """The weight after each update."""
    toy, path = Toy(w), []
    for t, window in enumerate(np.reshape(x, (-1, k4, 2))):
        for part in window:
            (toy(part).sum() / 2).backward()
        now = k4 * rate4 * min(1, (t + 1) / warm4)
        toy.w.data -= now * toy.w.grad
        toy.zero_grad()
        path.append(toy.w.data.item())
    return np.array(path)


# %% when="fault == 'D'"
def train(x, w):
    """The weight after each update."""
    toy, path = Toy(w), []
    for t, window in enumerate(np.reshape(x, (-1, k4, 2))):
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
        now = k4**0.5 * rate4 * min(1, (t + 1) / warm4)
        toy.w.data -= now * toy.w.grad
        toy.zero_grad()
        path.append(toy.w.data.item())
    return np.array(path)


# %% when="fault == 'E'"
def train(x, w):
    """The weight after each update."""
    toy, path = Toy(w), []
    for t, window in enumerate(np.reshape(x, (-1, k4, 2))):
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
        now = k4 * rate4 * min(1, (t + 1) / (warm4 * k4))
        toy.w.data -= now * toy.w.grad
        toy.zero_grad()
        path.append(toy.w.data.item())
    return np.array(path)


# %% [markdown]
# Here is what it gives, beside what minigrad makes of the same samples.


# %%
def of_minigrad(x, w, full=None, warm=warm4):
    """The weight after each update by train_step, as train() returns it."""
    full = mg.linear_scaling(rate4, 2, 2 * k4) if full is None else full
    toy, path = Toy(w), []
    optimizer = mg.SGD([toy.w], lr=mg.warmup(full, warm))
    for window in np.reshape(np.array(x, float), (-1, 2 * k4)):
        batch = window, window
        mg.train_step(toy, lambda outputs, *_: mg.per_sample(outputs), optimizer, batch, 2)
        path.append(toy.w.data.item())
    return np.array(path)


begin = 1.0
print("update         loop     minigrad")
for i, (mine, right) in enumerate(zip(train(x4, begin), of_minigrad(x4, begin))):
    print(f"{i:6} {mine:12.4f} {right:12.4f}")

# %% [markdown]
# What is wrong?
#
# - `"kept"`: the full rate is that of the small batch;
# - `"micro-batches"`: the schedule moves in each micro-batch;
# - `"root"`: the rate grows by the square root of k;
# - `"twice"`: rate and gradient both grow k times;
# - `"old warm-up"`: the warm-up has as many updates as with the small batch.

# %% answer="12-fault"
# Assign one of the five to `fault_found`.
### BEGIN SOLUTION
names = dict(A="kept", B="micro-batches", C="twice", D="root", E="old warm-up")
fault_found = names[fault]
### END SOLUTION

# %% check="12-fault"
CHOICES = ["kept", "micro-batches", "old warm-up", "root", "twice"]
predicted(fault_found, among=CHOICES)

# %% test="12-fault" points=1
### BEGIN HIDDEN TESTS
because = {
    "kept": "the full rate has grown with the batch: look at its factor k4",
    "micro-batches": "the count t moves once for each window, which is once an update",
    "twice": "each part is divided by all samples of the window: the gradient is their mean",
    "root": "the rate has no root in it",
    "old warm-up": "the count t is divided by the updates of the new warm-up, not of the old one",
}
planted = dict(zip("ABCDE", because))[fault]
del because[planted]
grade(1, lambda: chosen(planted, fault_found, because))
### END HIDDEN TESTS

# %% wrong="another" of="12-fault" earns=0 because="the count t"
fault_found = "old warm-up" if fault != "E" else "micro-batches"

# %% [markdown]
# Now mend it: write the whole loop. It must serve for any number of windows.


# %% answer="12-mended"
def mended(x, w):
    """The weight after each update: an array (updates,). x: 2 k4 samples for each update."""
    ### BEGIN SOLUTION
    toy, path = Toy(w), []
    for t, window in enumerate(np.reshape(x, (-1, k4, 2))):
        toy.zero_grad()
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
        now = k4 * rate4 * min(1, (t + 1) / warm4)
        toy.w.data -= now * toy.w.grad
        path.append(toy.w.data.item())
    return np.array(path)
    ### END SOLUTION


# %% check="12-mended"
def look_at_loop(x, w):
    """Compare mended() with minigrad."""
    also = {
        "not mended": (train(x, w), "this is what the loop gave before it was mended"),
        "no warm-up": (
            of_minigrad(x, w, warm=1),
            "the warm-up is gone: the line was to be mended, not removed",
        ),
        "kept": (of_minigrad(x, w, full=rate4), "the full rate is that of the small batch"),
        "root": (
            of_minigrad(x, w, full=rate4 * k4**0.5),
            "the rate grows by the square root, which is Adam's rule; this is SGD",
        ),
        "twice": (
            of_minigrad(x, w, full=rate4 * k4 * k4),
            "rate and gradient both grow k times: the rule is for the mean of the batch",
        ),
        "old warm-up": (
            of_minigrad(x, w, warm=warm4 * k4),
            "the warm-up is over as many updates as with the small batch: k times too long",
        ),
    }
    right, g = of_minigrad(x, w), np.reshape(x, (-1, 2 * k4)).mean(axis=1)
    rates = k4 * rate4 * np.minimum(1, np.arange(1, len(g) + 1) / warm4)
    also["not emptied"] = (
        w - np.cumsum(rates * np.cumsum(g)),
        "the gradient is not emptied after an update: the next window is added to it",
    )
    also["starts at 0"] = (
        w - np.cumsum(np.append(0, rates[:-1])[: len(g)] * g),
        "all rates come one update too late: the first update has 1/W of the full rate, not 0",
    )
    also["one array"] = (
        np.full(len(g), right[-1]),
        "each is the last weight: the same array, which goes on changing; append its .item()",
    )
    check(right, mended(np.array(x, float), w), "the weights", also=also)


forbid(mended, "train_step", "Accumulator", "of_minigrad")
look_at_loop(x4, begin)

# %% test="12-mended" points=2
### BEGIN HIDDEN TESTS
others = np.random.default_rng(1).integers(-4, 9, 2 * k4 * 9).astype(float)
grade(
    2,
    lambda: forbid(mended, "train_step", "Accumulator", "of_minigrad"),
    lambda: look_at_loop(x4, begin),
    lambda: look_at_loop(others, -3.0),
    lambda: look_at_loop(others[: 2 * k4 * 5], 0.5),
    partial={"no warm-up": 1, "starts at 0": 1},
)
### END HIDDEN TESTS


# %% wrong="not mended" of="12-mended" earns=0 because="before it was mended"
def mended(x, w):
    return train(x, w)


# %% wrong="no warm-up" of="12-mended" earns=1 because="not removed"
def mended(x, w):
    toy, path = Toy(w), []
    for window in np.reshape(x, (-1, k4, 2)):
        toy.zero_grad()
        for part in window:
            (toy(part).sum() / (2 * k4)).backward()
        toy.w.data -= k4 * rate4 * toy.w.grad
        path.append(toy.w.data.item())
    return np.array(path)


# %% [markdown]
# ## 5. In your words (2 points, read by a person)
#
# A colleague trains a language model on one card, with LayerNorm and AdamW (Adam, with a weight
# decay apart from its averages). {{b}} texts fit, and keep the card busy. The settings are from a
# paper that used {{k}} x {{b}} texts on {{k}} cards. "I accumulate {{k}} micro-batches: small
# batches are unstable. And I tune the rate, to match the paper's large batch."
#
# Is accumulation a waste here? What is right and wrong in the colleague's two reasons, what would
# you do instead, with which settings, and for whom would it not be a waste?
#
# - **2:** the first question and both reasons of the colleague are judged rightly, with the reason;
#   the alternative names every setting that changes; and one case of the last question.
# - **1:** the first question is answered rightly, with the reason, and one of the colleague's two.
# - **0:** otherwise.

# %% [markdown] manual="12-why" points=2
# On one card an update costs little beside its forward and backward passes, so that samples are
# what counts. The fewest are needed by the smallest batch that keeps the card busy: to accumulate
# here is to make fewer updates of the same samples, a waste. Small batches are noisier, and not
# unstable if the rate belongs to them. And nothing needs tuning to match the paper: with as many
# samples in an update, and the paper's settings, it is the paper's run, since LayerNorm looks at
# each sample alone. Instead I would update after each micro-batch, begin the search at a rate
# smaller by the root of k, and take the k-th root of the second beta, so that its half-life in
# samples stays. It is no waste for who must repeat the paper's run, nor on the paper's cards, where
# each update waits until all have added up their gradients, nor, in the exact way of lesson 08,
# with a contrastive loss that wants its negatives in one batch.
