# %% [markdown]
# # Exercises 03: one update, and the loop around it
#
# They train counting updates, writing a loss's gradient and an optimizer, and finding the fault of
# a loop that runs without an error. They belong to lesson [03](../03_training_loop.ipynb). They
# take about 50 minutes, and give 12 points.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises, then run the check below it: it
# says why an answer is wrong.

# %%
import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import check, chosen, corrected, forbid, grade, predicted
from minigrad.data import digits

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
samples = 1000  # exercise 1: in the data
batch_size = 96  # of exercise 1
micro_batch_size = 20  # of exercise 1
epochs = 3  # of exercise 1
last = "used"  # exercise 1: a last batch that is not full is "used" or "left out"
rows = 4  # exercise 2: samples
classes = 3  # exercise 2
seed = 0  # of the numbers in exercises 2 to 4
rate = 0.5  # exercise 3: the learning rate
mu = 0.75  # exercise 3: the momentum
width = 48  # exercise 4: hidden numbers of the net
size = 64  # exercise 4: samples of a batch
### BEGIN PLANTED
fault = "C"  # exercise 4: which loop stands there
### END PLANTED
n = 7  # exercise 5: samples
b = 3  # exercise 5: samples of a batch


# %% tags=["draw"]
def draw(rng):
    size, micro = int(rng.integers(40, 130)), int(rng.integers(10, 30))
    rows, classes = (int(m) for m in rng.permutation(range(3, 8))[:2])
    n, b = [(5, 3), (7, 3), (7, 4), (8, 3), (9, 4)][rng.integers(5)]
    return {
        "samples": size * int(rng.integers(5, 12)) + int(rng.integers(1, size)),
        "batch_size": size,
        "micro_batch_size": micro,
        "epochs": int(rng.integers(2, 6)),
        "last": str(rng.choice(["used", "left out"])),
        "rows": rows,
        "classes": classes,
        "seed": int(rng.integers(1, 10_000)),
        "rate": float(rng.choice([0.125, 0.5])),  # rate, mu and 1 - mu differ
        "mu": float(rng.choice([0.625, 0.75])),
        "width": int(rng.choice([32, 48, 64])),
        "size": int(rng.choice([48, 64, 96])),
        "fault": str(rng.choice(["A", "B", "C", "D", "E"])),
        "n": n,
        "b": b,
    }


# %% [markdown]
# ## 1. Predict: how many updates? (1 point + 1)
#
# The data holds {{samples}} samples. A loop runs over it for {{epochs}} epochs, in batches of
# {{batch_size}}, each of which goes through the net in micro-batches of {{micro_batch_size}}. A
# last batch of an epoch that is not full is {{last}}.
#
# How many updates does the loop make? Run the cell with your answer before you go on. It is not
# held against you if it is wrong.

# %% answer="03-updates"
# Assign a number to `prediction`.
### BEGIN SOLUTION
full, rest = divmod(samples, batch_size)
prediction = epochs * (full + (1 if rest and last == "used" else 0))
### END SOLUTION

# %% check="03-updates"
predicted(prediction)

# %% test="03-updates" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="nothing" of="03-updates" earns=0 because="there is no prediction yet"
prediction = None

# %%
predicted(prediction)
count = {"epochs": 0, "updates": 0, "micro-batches": 0}
for _ in range(epochs):
    for start in range(0, samples, batch_size):
        here = min(batch_size, samples - start)  # samples in this batch
        if here < batch_size and last == "left out":
            continue
        count["micro-batches"] += len(mg.micro_batches(here, micro_batch_size))
        count["updates"] += 1
    count["epochs"] += 1
print(f"you said {prediction}; counted: {count}")

# %% [markdown]
# Now write one sentence: what did you count that was not to be counted, or the other way round? If
# you were right, say why the number of micro-batches does not matter.

# %% answer="03-updates-why"
# Assign a sentence, in quotes, to `correction`.
### BEGIN SOLUTION
correction = "Every batch makes one update, however many micro-batches it is cut into."
### END SOLUTION

# %% check="03-updates-why"
corrected(correction)

# %% test="03-updates-why" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="nothing" of="03-updates-why" earns=0 because="expected 6 or more"
correction = None

# %% [markdown]
# ## 2. Write: the gradient of softmax cross-entropy (2 points)
#
# In NumPy, without `mg`. The docstring says in loops what it is; write it without loops over
# samples and classes. It must also be right for logits of 1000, where $e^z$ is no number any more.
#
# The picture shows one row: above the probabilities, below the gradient, for the label 1.

# %%
z = mg.parameter(np.array([[1.0, 0.0, 0.5, -1.0]]))
mg.cross_entropy(z, np.array([1])).sum().backward()
p = np.exp(z.data[0]) / np.exp(z.data[0]).sum()
figure, (above, below) = plotting.subplots(2, 1, height=2.8, sharex=True)
above.bar(range(4), p, color=plotting.BLUE, width=0.6)
below.bar(range(4), z.grad[0], color=plotting.ORANGE, width=0.6, hatch="//", edgecolor="white")
below.axhline(0, color=plotting.DARK, lw=0.8, ls="-")
above.set(ylabel="probability", ylim=(0, 1))
below.set(ylabel="gradient", ylim=(-1, 1))
below.set(xlabel="class", xticks=range(4))
plotting.show(
    figure,
    "03-exercise",
    "Probabilities of four classes, and the gradient of the loss by their logits: positive for "
    f"classes 0, 2 and 3, negative, {z.grad[0, 1]:.2f}, for the label 1; they sum to 0.",
)


# %% answer="03-gradient"
def cross_entropy_gradient(logits, labels):
    """The gradient of the mean cross-entropy by the logits.

    logits: (n, classes). labels: (n,) integers. Returns an array g of the logits' shape:

        for i in range(n):
            for j in range(classes):
                p = exp(logits[i, j]) / sum(exp(logits[i, m]) for m in range(classes))
                g[i, j] = (p - (1 if j == labels[i] else 0)) / n
    """
    ### BEGIN SOLUTION
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    g = e / e.sum(axis=1, keepdims=True)
    g[np.arange(len(labels)), labels] -= 1
    return g / len(labels)
    ### END SOLUTION


# %% check="03-gradient"
def gradient_check(logits, labels, name):
    """Is it the gradient that minigrad's tape gives?"""
    z = mg.parameter(logits.copy())
    mg.cross_entropy(z, labels).mean().backward()
    onehot = np.eye(logits.shape[1])[labels]
    turned = mg.exp(logits - mg.logsumexp(logits, axis=0, keepdims=True)).data
    everything = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    mistakes = {
        "only p": (
            z.grad + onehot / len(labels),
            "these are the probabilities; the label's class has 1 taken off",
        ),
        "over samples": (
            (turned - onehot) / len(labels),
            "the probabilities sum to 1 over the samples; they must over the classes, axis 1",
        ),
        "over all": (
            (everything - onehot) / len(labels),
            "the probabilities of all samples together sum to 1; those of each sample must",
        ),
        "all labels": (
            z.grad + (onehot - onehot.max(axis=0)) / len(labels),
            "1 is taken off at the labels of all samples in each row: each row has one label",
        ),
    }
    with np.errstate(all="ignore"):
        found = cross_entropy_gradient(logits.copy(), labels.copy())
    check(z.grad, found, name, sizes=[len(labels)], also=mistakes)


forbid(cross_entropy_gradient, "cross_entropy", "backward", "log_softmax", "logsumexp")
rng = np.random.default_rng(seed)
logits, labels = rng.normal(size=(rows, classes)), rng.integers(0, classes, rows)
gradient_check(logits, labels, "the gradient")
gradient_check(1000 * logits, labels, "the gradient of large logits")

# %% test="03-gradient" points=2
### BEGIN HIDDEN TESTS
rng = np.random.default_rng(seed + 1)
more = rng.normal(size=(9, 5)), rng.integers(0, 5, 9)
grade(
    2,
    lambda: forbid(cross_entropy_gradient, "cross_entropy", "backward", "log_softmax", "logsumexp"),
    lambda: gradient_check(*more, "the gradient of 9 samples"),
    lambda: gradient_check(more[0] - 2000, more[1], "the gradient of logits near -2000"),
    lambda: gradient_check(900 * more[0], more[1], "the gradient of large logits"),
    partial={"N times": 1, "not finite": 1},
)
### END HIDDEN TESTS


# %% wrong="the sum" of="03-gradient" earns=1 because="it is a sum, not a mean"
def cross_entropy_gradient(logits, labels):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    g = e / e.sum(axis=1, keepdims=True)
    g[np.arange(len(labels)), labels] -= 1
    return g


# %% wrong="overflow" of="03-gradient" earns=1 because="look for a division by 0, or a log or exp"
def cross_entropy_gradient(logits, labels):
    e = np.exp(logits)
    g = e / e.sum(axis=1, keepdims=True)
    g[np.arange(len(labels)), labels] -= 1
    return g / len(labels)


# %% wrong="over samples" of="03-gradient" earns=0 because="they must over the classes"
def cross_entropy_gradient(logits, labels):
    e = np.exp(logits - logits.max(axis=0))
    g = e / e.sum(axis=0)
    g[np.arange(len(labels)), labels] -= 1
    return g / len(labels)


# %% [markdown]
# ## 3. Write: SGD with momentum (2 points)
#
# One update for several parameters, by the rule in section 4 of the lesson. Each v comes in as the
# update before left it.
#
# ```
#  g1 ──┐           g2 ──┐           g3 ──┐
#       ▼                ▼                ▼
#  0 ─► v ────── mu ───► v ────── mu ───► v       v: kept from update to update
#       │                │                │
#       ▼ - lr           ▼ - lr           ▼ - lr
#  p ──────────────► p ──────────────► p ─────►   p: changed in place
# ```


# %% answer="03-momentum"
def momentum_step(pairs, velocities, lr, momentum):
    """One update of SGD with momentum, in place; returns nothing.

    pairs: a list of (p, g), arrays of parameters and of their gradients. velocities: a list with
    one array for each p, of zeros before the first update. For each p, its g and its v:

        for each element e:
            v[e] = momentum * v[e] + g[e]
            p[e] = p[e] - lr * v[e]

    The arrays p and v that were given hold the new numbers afterwards; g is not changed.
    """
    ### BEGIN SOLUTION
    for (p, g), v in zip(pairs, velocities):
        v *= momentum
        v += g
        p -= lr * v
    ### END SOLUTION


# %% check="03-momentum"
def by_minigrad(starts, updates, lr, momentum):
    """What mg.SGD makes of the parameters, side by side."""
    ps = [mg.parameter(start.copy()) for start in starts]
    optimizer = mg.SGD(ps, lr=lr, momentum=momentum)
    for gradients in updates:
        for p, g in zip(ps, gradients):
            p.grad = g.copy()
        optimizer.step()
    return np.concatenate([p.data.ravel() for p in ps])


def momentum_check(starts, updates, lr, momentum):
    """Does momentum_step give the same, and which mistake is it if not?"""
    ps = [start.copy() for start in starts]
    velocities = [np.zeros_like(p) for p in ps]
    given = [[g.copy() for g in gradients] for gradients in updates]
    for gradients in given:
        momentum_step(list(zip(ps, gradients)), [*velocities], lr, momentum)
    late = [[0 * g for g in updates[0]], *updates[:-1]]
    mistakes = {
        "unchanged": (
            np.concatenate([start.ravel() for start in starts]),
            "the parameters are as before: p = ... binds a new array; write into the one that "
            "was given, as p -= ... does",
        ),
        "forgotten": (
            by_minigrad(starts, updates, lr, 0.0),
            "each update began with a velocity of 0: v = ... binds a new array; write into the "
            "one that was given, as v *= ... and v += ... do",
        ),
        "averaged": (
            by_minigrad(starts, updates, lr * (1 - momentum), momentum),
            "g was weighted by 1 - momentum, as Adam does it; here it is added as it is",
        ),
        "late": (
            by_minigrad(starts, late, lr, momentum),
            "the step was made with the velocity as it was before this gradient came in",
        ),
        "damped": (
            by_minigrad(starts, updates, lr * momentum, momentum),
            "the new g was multiplied by momentum, too: only the old v is",
        ),
        "rate twice": (
            by_minigrad(starts, updates, lr**2, momentum),
            "lr counts twice, in v and in the step: it stands in the step alone",
        ),
        "uphill": (
            by_minigrad(starts, [[-g for g in gradients] for gradients in updates], lr, momentum),
            "the step goes up the gradient: its sign is wrong",
        ),
    }
    expected = by_minigrad(starts, updates, lr, momentum)
    found = np.concatenate([p.ravel() for p in ps])
    check(expected, found, f"the parameters after {len(updates)} updates", also=mistakes)
    fading = 0.0
    for gradients in updates:
        fading = momentum * fading + np.concatenate([g.ravel() for g in gradients])
    also = {"rate in v": (lr * fading, "v holds lr times its number: lr stands in the step alone")}
    check(fading, np.concatenate([v.ravel() for v in velocities]), "the velocities", also=also)
    before, after = (np.concatenate([g.ravel() for gs in u for g in gs]) for u in (updates, given))
    check(before, after, "the gradients, which are not to be changed")


rng = np.random.default_rng(seed)
starts = [rng.integers(-8, 9, 3) / 4, rng.integers(-8, 9, (2, 2)) / 4]
updates = [[rng.integers(1, 5, p.shape) / 4 for p in starts] for _ in range(3)]
forbid(momentum_step, "SGD", "step")
momentum_check(starts, updates, rate, mu)

# %% test="03-momentum" points=2
### BEGIN HIDDEN TESTS
rng = np.random.default_rng(seed + 2)
other_starts = [rng.normal(size=(4, 3)), rng.normal(size=5), rng.normal(size=1)]
other_updates = [[rng.normal(size=p.shape) for p in other_starts] for _ in range(6)]
grade(
    2,
    lambda: forbid(momentum_step, "SGD", "step"),
    lambda: momentum_check(starts, updates, rate, mu),
    lambda: momentum_check(other_starts, other_updates, 0.01, 0.9),
    partial={"forgotten": 1, "averaged": 1},
)
### END HIDDEN TESTS


# %% wrong="forgotten" of="03-momentum" earns=1 because="began with a velocity of 0"
def momentum_step(pairs, velocities, lr, momentum):
    for (p, g), v in zip(pairs, velocities):
        v = momentum * v + g
        p -= lr * v


# %% wrong="unchanged" of="03-momentum" earns=0 because="the parameters are as before"
def momentum_step(pairs, velocities, lr, momentum):
    for (p, g), v in zip(pairs, velocities):
        v *= momentum
        v += g
        p = p - lr * v


# %% wrong="averaged" of="03-momentum" earns=1 because="weighted by 1 - momentum"
def momentum_step(pairs, velocities, lr, momentum):
    for (p, g), v in zip(pairs, velocities):
        v *= momentum
        v += (1 - momentum) * g
        p -= lr * v


# %% [markdown]
# ## 4. Find the fault (1 point)
#
# This loop runs without an error. One thing in it is wrong. Read it, run it, look at the numbers.

# %%
(x_train, y_train), (x_test, y_test) = digits(np.float64)
mg.manual_seed(0)
rng = np.random.default_rng(0)
model = mg.MLP(64, width, 10, dropout=0.5, dtype=np.float64)
optimizer = mg.SGD(model.parameters(), lr=0.1, momentum=0.5)


def accuracy():
    """In per cent, on the test set."""
    with mg.no_grad():
        return 100 * np.mean(model(x_test).data.argmax(axis=1) == y_test)


# %% when="fault == 'A'"
for epoch in range(1, 5):
    order = rng.permutation(len(x_train))
    x, y, total = x_train[order], y_train[order], 0.0
    model.train()
    for start in range(0, len(x), size):
        inputs, labels = x[start : start + size], y[start : start + size]
        loss = mg.cross_entropy(model(inputs), labels).mean()
        optimizer.step()
        optimizer.zero_grad()
        loss.backward()
        total += loss.item() * len(labels)
    model.eval()
    print(f"epoch {epoch}: loss {total / len(x):.3f}, test accuracy {accuracy():.1f} %")

# %% when="fault == 'B'"
for epoch in range(1, 5):
    order = rng.permutation(len(x_train))
    x, y, total = x_train[order], y_train[order], 0.0
    model.train()
    for start in range(0, len(x), size):
        inputs, labels = x[start : start + size], y[start : start + size]
        loss = mg.cross_entropy(model(inputs), labels).mean()
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        total += loss.item() * len(labels)
    model.eval()
    print(f"epoch {epoch}: loss {total / len(x):.3f}, test accuracy {accuracy():.1f} %")

# %% when="fault == 'C'"
model.train()
for epoch in range(1, 5):
    order = rng.permutation(len(x_train))
    x, y, total = x_train[order], y_train[order], 0.0
    for start in range(0, len(x), size):
        inputs, labels = x[start : start + size], y[start : start + size]
        loss = mg.cross_entropy(model(inputs), labels).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    model.eval()
    print(f"epoch {epoch}: loss {total / len(x):.3f}, test accuracy {accuracy():.1f} %")

# %% when="fault == 'D'"
for epoch in range(1, 5):
    x, y, total = rng.permutation(x_train), rng.permutation(y_train), 0.0
    model.train()
    for start in range(0, len(x), size):
        inputs, labels = x[start : start + size], y[start : start + size]
        loss = mg.cross_entropy(model(inputs), labels).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    model.eval()
    print(f"epoch {epoch}: loss {total / len(x):.3f}, test accuracy {accuracy():.1f} %")

# %% when="fault == 'E'"
for epoch in range(1, 5):
    order = rng.permutation(len(x_train))
    x, y, total = x_train[order], y_train[order], 0.0
    optimizer.zero_grad()
    model.train()
    for start in range(0, len(x), size):
        inputs, labels = x[start : start + size], y[start : start + size]
        loss = mg.cross_entropy(model(inputs), labels).mean()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    model.eval()
    print(f"epoch {epoch}: loss {total / len(x):.3f}, test accuracy {accuracy():.1f} %")

# %% [markdown]
# What is wrong? Choose one, and write it as it stands here:
#
# - `"gradients add up"`: those of different updates are added
# - `"gradients are lost"`: they are cleared before they are used
# - `"one step late"`: each step goes by the gradient of the batch before
# - `"eval mode stays"`: from the second epoch on, the net is trained in eval mode
# - `"labels apart"`: inputs do not stand beside their own labels
# - `"softmax twice"`: the loss is given probabilities
# - `"last batch"`: the loss that is printed is that of the last batch

# %% answer="03-fault"
# Assign one of the words above, in quotes, to `fault_found`.
### BEGIN SOLUTION
fault_found = {
    "A": "one step late",
    "B": "gradients are lost",
    "C": "eval mode stays",
    "D": "labels apart",
    "E": "gradients add up",
}[fault]
### END SOLUTION

# %% check="03-fault"
CHOICES = [
    "gradients add up",
    "gradients are lost",
    "one step late",
    "eval mode stays",
    "labels apart",
    "softmax twice",
    "last batch",
]
predicted(fault_found, among=CHOICES)

# %% test="03-fault" points=1
### BEGIN HIDDEN TESTS
right = {
    "A": "one step late",
    "B": "gradients are lost",
    "C": "eval mode stays",
    "D": "labels apart",
    "E": "gradients add up",
}[fault]
because = {
    "gradients add up": "zero_grad() is called once for each batch: no gradient meets an older one",
    "gradients are lost": "look at what stands between backward() and step(): nothing clears there",
    "one step late": "follow one batch: the step that comes after its backward() is its own",
    "eval mode stays": "model.train() is called in each epoch, before its first batch",
    "labels apart": "inputs and labels are taken by the same rows of the same order",
    "softmax twice": "the model ends in a linear layer: its outputs are logits, as the loss wants",
    "last batch": "each batch's loss is added, times its size, and divided by all samples",
}
grade(1, lambda: chosen(right, fault_found, because))
### END HIDDEN TESTS

# %% wrong="softmax twice" of="03-fault" earns=0 because="its outputs are logits"
fault_found = "softmax twice"

# %% wrong="last batch" of="03-fault" earns=0 because="added, times its size"
fault_found = "last batch"

# %% [markdown]
# ## 5. Mend it: a loop without these faults (3 points)
#
# Write the loop as a function. Mind the mode, what is cleared when, and the last batch, which may
# be short. The check lets it train one weight on numbers for which everything can be computed by
# hand.


# %% answer="03-mended"
def train(model, loss, optimizer, x, y, orders, batch_size, after_epoch):
    """Train for one epoch an order; return a list with the mean loss of each epoch.

    orders: a list of permutations of the rows of x and y. For each order:

        for each batch, the next batch_size rows of the order (the last one perhaps fewer):
            one update by the gradient of loss(model(inputs), targets).mean(), in train mode
        after_epoch(model)  # tests the model: it calls model.eval() and leaves it at that

    The mean loss of an epoch is that of all its samples, each taken before its update.
    """
    ### BEGIN SOLUTION
    means = []
    for order in orders:
        model.train()
        total = 0.0
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            optimizer.zero_grad()
            mean = loss(model(x[rows]), y[rows]).mean()
            mean.backward()
            optimizer.step()
            total += mean.item() * len(rows)
        means.append(total / len(order))
        after_epoch(model)
    return means
    ### END SOLUTION


# %% check="03-mended"
class Line(mg.Module):
    """y = w x, which notes in which mode it is called."""

    def __init__(self, w):
        self.w, self.modes = mg.parameter(np.array([[w]])), []

    def forward(self, x):
        self.modes.append(self.training)
        return x * self.w


def on_paper(w, x, y, orders, batch_size, lr, used=lambda now, before, total: now):
    """The weight at the end and the losses of all batches, with sizes, in plain numbers.

    used: by which gradient a step goes: that of the batch now, or before, or the sum of all.
    """
    now, total, losses = 0.0, 0.0, []
    for order in orders:
        losses.append([])
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            errors = w * x[rows] - y[rows]
            before, now = now, np.mean(2 * errors * x[rows])
            total += now
            losses[-1].append((np.mean(errors**2), len(rows)))
            w = w - lr * used(now, before, total)
    return w, losses


def mended_check(n, batch_size, epochs, seed):
    """Does train() end at the weight that comes out on paper, and report the right losses?"""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(1, 5, (n, 1)) / 2, rng.integers(-8, 9, (n, 1)) / 2
    orders = [rng.permutation(n) for _ in range(epochs)]
    paper, lr = (0.5, x, y, orders, batch_size), 0.03125
    w, losses = on_paper(*paper, lr)
    batches = len(losses[0])

    tested = []

    def after_epoch(model):
        tested.append(optimizer.updates)
        model.eval()
        model(x)

    model = Line(0.5)
    optimizer = mg.SGD(model.parameters(), lr=lr)
    found = train(model, mg.squared_error, optimizer, x, y, orders, batch_size, after_epoch)
    count = f"updates in {epochs} epochs of {batches} batches"
    left_out = "the last, shorter batch is left out: its samples never count"
    also = {"left out": (epochs * (n // batch_size), left_out)}
    check(epochs * batches, optimizer.updates, count, also=also)
    mistakes = {
        "add up": (
            on_paper(*paper, lr, lambda now, before, total: total)[0],
            "the gradients of all updates so far were added: clear once an update",
        ),
        "lost": (0.5, "it did not move: the gradient is cleared between backward() and step()"),
        "late": (
            on_paper(*paper, lr, lambda now, before, total: before)[0],
            "each step went by the gradient of the batch before: first backward(), then step()",
        ),
    }
    check(w, model.w.data.item(), "the weight", also=mistakes)
    stays = "after the first epoch the net stays in eval mode: model.train() for each epoch"
    due = [batches * (i + 1) for i in range(epochs)]
    check(epochs, len(tested), "calls of after_epoch()")
    check(due, tested, "updates made when after_epoch() was called")
    trained = sum(model.modes)
    check(epochs * batches, trained, "batches in train mode", also={"stays": (batches, stays)})
    check(
        [sum(loss * m for loss, m in epoch) / n for epoch in losses],
        found,
        "the losses of the epochs",
        also={
            "mean of batches": (
                [np.mean([loss for loss, _ in epoch]) for epoch in losses],
                "a short batch counts as much as a full one: weigh each loss by its samples",
            ),
            "last batch": (
                [epoch[-1][0] for epoch in losses],
                "these are the last batches' losses",
            ),
            "divided twice": (
                [sum(loss for loss, _ in epoch) / n for epoch in losses],
                "means were added, and divided by n once more: weigh each mean by its samples",
            ),
            "all full": (
                [sum(loss for loss, _ in epoch) * batch_size / n for epoch in losses],
                "a short batch was counted as a full one: weigh each loss by its own samples",
            ),
        },
    )


forbid(train, "train_step", "accumulate")
mended_check(n, b, epochs=3, seed=seed)

# %% test="03-mended" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(train, "train_step", "accumulate"),
    lambda: mended_check(n, b, epochs=3, seed=seed),
    lambda: mended_check(11, 4, epochs=4, seed=seed + 1),
    lambda: mended_check(6, 6, epochs=2, seed=seed + 2),
    partial={"stays": 2, "mean of batches": 2, "last batch": 2, "add up": 1},
)
### END HIDDEN TESTS


# %% wrong="add up" of="03-mended" earns=1 because="clear once an update"
def train(model, loss, optimizer, x, y, orders, batch_size, after_epoch):
    means = []
    for order in orders:
        model.train()
        total = 0.0
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            mean = loss(model(x[rows]), y[rows]).mean()
            mean.backward()
            optimizer.step()
            total += mean.item() * len(rows)
        means.append(total / len(order))
        after_epoch(model)
    return means


# %% wrong="eval mode stays" of="03-mended" earns=2 because="stays in eval mode"
def train(model, loss, optimizer, x, y, orders, batch_size, after_epoch):
    means = []
    model.train()
    for order in orders:
        total = 0.0
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            optimizer.zero_grad()
            mean = loss(model(x[rows]), y[rows]).mean()
            mean.backward()
            optimizer.step()
            total += mean.item() * len(rows)
        means.append(total / len(order))
        after_epoch(model)
    return means


# %% wrong="mean of batches" of="03-mended" earns=2 because="a short batch counts as much"
def train(model, loss, optimizer, x, y, orders, batch_size, after_epoch):
    means = []
    for order in orders:
        model.train()
        losses = []
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            optimizer.zero_grad()
            mean = loss(model(x[rows]), y[rows]).mean()
            mean.backward()
            optimizer.step()
            losses.append(mean.item())
        means.append(np.mean(losses))
        after_epoch(model)
    return means


# %% [markdown]
# ## 6. Explain (2 points; a person reads it)
#
# A classmate shows a loop. After each epoch it prints `loss.item()`, the loss of the batch that
# came last, still in train mode. The numbers get smaller from epoch to epoch. "So the loop is
# right," says the classmate. Answer in four or five sentences: what do these numbers not show, what
# should be printed in their place, and how would you find out whether the loop computes the right
# gradients?
#
# - 2 points: two reasons why these numbers prove little, one of them with an example; a better
#   number; a way to find out that would catch a wrong gradient.
# - 1 point: one of the two reasons, and either the better number or the way.
# - 0 points: neither.

# %% [markdown] manual="03-explain" points=2
# The loss of the last batch is the loss of a few samples, and scatters around that of the epoch; in
# train mode dropout makes it larger besides. Better: the mean over all samples of the epoch, and
# the loss and accuracy on the test set in eval mode. But a falling loss proves little: a loop that
# never clears its gradients goes down, too, for a while, and so does one whose steps come one batch
# late. To know, I would take one batch, let the loop make one update without clipping, and compare
# its gradient with one that I trust, such as central differences or mg.train_step, up to rounding.
