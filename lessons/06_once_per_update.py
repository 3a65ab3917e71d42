# %% [markdown]
# # 06 · What must not happen k times?
#
# **You will be able to**
#
# 1. say of a line in a training loop whether it belongs to the micro-batch, to the update, or to
#    the sample;
# 2. compute by hand what a loop gives that clips, decays, counts or averages k times;
# 3. put the lines at the end of a window in order, and say which order is a must.
#
# **Needs:** lessons [03](03_training_loop.ipynb), [04](04_accumulation.ipynb) and
# [05](05_sum_or_mean.ipynb). **Reading:** 35 minutes; **exercises:** 45 minutes
# ([06_once_per_update](exercises/06_once_per_update.ipynb)). **Code:**
# [`minigrad/training.py`](../minigrad/training.py),
# [`minigrad/optimizers.py`](../minigrad/optimizers.py),
# [`minigrad/schedules.py`](../minigrad/schedules.py),
# [`minigrad/samples.py`](../minigrad/samples.py),
# [`minigrad/randomness.py`](../minigrad/randomness.py).

# %% [markdown]
# ## One level of indentation
#
# A window is the k micro-batches that make one update. Its gradient is a sum, so each micro-batch
# may add its part. But a training loop does more than add: it clips, decays, counts, averages,
# draws, logs and saves. Each of these is a line, and the line stands either *inside* the loop over
# micro-batches, where it runs k times, or *after* it, where it runs once. Most faults of this
# lesson are one level of indentation. minigrad has a test against nearly every one of them
# ([test_faults_die.py](../tests/test_faults_die.py)).
#
# To check every number by hand, we choose the gradients. The toy model multiplies its input by
# the weight, and its loss is its output: so the gradient of a sample is the sample itself. It is
# added to `.grad`, the *buffer*. A micro-batch is one sample where nothing else is said.
#
# `by_minigrad` hands the same samples to `mg.train_step` as one batch. `note` keeps a line for the
# table at the end, and asserts that minigrad gives what the right loop gives, and that the wrong
# loop gives something else, if k > 1.

# %%
import itertools
import warnings

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.reading import show_source


class Toy(mg.Module):
    """outputs = x w: the gradient of a sample is the sample itself."""

    def __init__(self, w):
        self.w = mg.parameter(np.array(w, float))

    def forward(self, x):
        return x @ self.w if self.w.shape else x * self.w


def as_it_is(outputs, *_):
    """The loss of a sample is its output."""
    return mg.per_sample(outputs)


def by_minigrad(toy, optimizer, gradients, **options):
    """One update: the gradients as one batch, in micro-batches of one sample."""
    x = np.array(gradients, float)
    return mg.train_step(toy, as_it_is, optimizer, (x, x), micro_batch_size=1, **options)


table = {}


def note(item, k, wrong, right, minigrad):
    """A line of the table. minigrad must equal the right loop, and the wrong one only at k = 1.

    Equal is exact here, ==: the gradients are chosen so that adding them rounds nothing. The wrong
    one must be off by more than a thousandth.
    """
    wrong, right, minigrad = (np.array(value, float) for value in (wrong, right, minigrad))
    assert np.array_equal(minigrad, right), f"{item}: minigrad {minigrad}, right {right}"
    assert (np.max(abs(wrong - right)) > 1e-3) == (k > 1), f"{item}: k = {k}, {wrong}, {right}"
    table[item] = k, wrong, right, minigrad


toy = Toy([1.0, 1.0])
toy(np.array([3.0, 4.0])).backward()
toy(np.array([4.0, -3.0])).backward()
assert toy.w.grad.tolist() == [7, 1]  # backward adds
print("(3, 4) and (4, -3) add up to", toy.w.grad)

# %% [markdown]
# ## Clipping
#
# To *clip* a gradient by its norm: if it is longer than a limit, shorten it to the limit and keep
# its direction. A rare, huge gradient then cannot throw the weights far away.
#
# Two micro-batches have the gradients $(3, 4)$ and $(4, -3)$, each of length 5. The limit is 1.
# People write two loops that clip inside: one shortens the gradient of each micro-batch and
# averages what is left; the other calls `clip_grad_norm` after each `backward`, on the buffer,
# which already holds the earlier micro-batches.
#
# **Before you run the next cell:** draw both arrows and their mean. Into which quadrant does the
# clipped mean point? And what does each of the two loops give: another length, or another
# direction?

# %%
gradients = np.array([[3.0, 4.0], [4.0, -3.0]])
max_norm = 1.0


def clip_each(gradients):  # wrong: each micro-batch's own gradient
    toy, mean = Toy([0.0, 0.0]), np.zeros(2)
    for g in gradients:
        toy.zero_grad()
        toy(g).backward()
        mg.clip_grad_norm([toy.w], max_norm)
        mean += toy.w.grad / len(gradients)
    return mean


def clip_the_buffer(gradients, divisor=1):  # wrong: all that was added so far
    toy = Toy([0.0, 0.0])
    for g in gradients:
        (toy(g) / divisor).backward()
        mg.clip_grad_norm([toy.w], max_norm)
    return toy.w.grad


def clip_once(gradients):  # right: the finished gradient
    toy = Toy([0.0, 0.0])
    for g in gradients:
        toy(g).backward()
    toy.w.grad /= len(gradients)
    mg.clip_grad_norm([toy.w], max_norm)
    return toy.w.grad


toy = Toy([0.0, 0.0])
report = by_minigrad(toy, mg.SGD([toy.w], lr=1.0), gradients, clip_norm=max_norm)
ours = -toy.w.data  # lr is 1 and the weight was 0
each, buffer, once = clip_each(gradients), clip_the_buffer(gradients), clip_once(gradients)
note("clip each micro-batch", 2, each, once, ours)
note("clip the buffer", 2, buffer, once, ours)

# By hand: a micro-batch shrinks by 5; the buffer is c1 = (3, 4)/5, then (4, -3) + c1, clipped.
assert np.allclose(each, max_norm * np.array([7, 1]) / 10, rtol=1e-14, atol=0)
assert np.allclose(once, max_norm * np.array([7, 1]) / np.sqrt(50), rtol=1e-14, atol=0)
second = gradients[1] + max_norm * gradients[0] / 5
assert np.allclose(buffer, max_norm * second / np.sqrt(second @ second), rtol=1e-14, atol=0)
assert once[1] > 0 > buffer[1]  # the sign of the second component flips
assert clip_the_buffer(gradients, divisor=2)[1] < 0  # and does so if the loss is divided by k

# The two gradients have one length, so that clipping each keeps the direction. If the first one is
# twice as long, the right result turns towards it, and clipping each does not notice.
longer = gradients * [[2], [1]]
assert np.allclose(clip_each(longer), each, rtol=1e-14, atol=0)
assert clip_once(longer)[1] > 2 * once[1]

swapped = clip_the_buffer(gradients[::-1])
assert np.array_equal(clip_once(gradients[::-1]), once)  # the right one knows no order
assert not np.allclose(swapped, buffer, atol=0.1)
np.set_printoptions(precision=4, suppress=True)
print("clip the finished gradient ", once, f" norm before: {report.grad_norm:.4g}")
print("clip each micro-batch      ", each)
print("clip the running buffer    ", buffer)
print("the same, order swapped    ", swapped)
print("twice (3, 4), then (4, -3): ", "once", clip_once(longer), "  each", clip_each(longer))
# Change max_norm to 0.5, or to 0.25.

# %%
figure, (steps, results) = plotting.subplots(1, 2, height=4.2, width_ratios=[1, 1.17])


def arrow(axes, start, end, colour, style="solid", width=2.4):
    start, end = np.array(start), np.array(end)
    neck = start + 0.94 * (end - start)
    axes.plot(*zip(start, neck), color=colour, linestyle=style, linewidth=width)
    head = {"arrowstyle": "-|>,head_width=0.28,head_length=0.55", "color": colour}
    more = {"linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=neck, arrowprops={**head, **more})


angles = np.linspace(0, 2 * np.pi, 200)
for axes in (steps, results):
    axes.plot(max_norm * np.cos(angles), max_norm * np.sin(angles), color=plotting.GREY, ls=":")
    axes.axhline(0, color=plotting.GREY, linewidth=1)
    axes.axvline(0, color=plotting.GREY, linewidth=1)
    axes.set_aspect("equal")
    axes.grid(False)
    axes.set_xlabel("first component")

shortened = max_norm * gradients[0] / 5
arrow(steps, (0, 0), gradients[0], plotting.GREY)
arrow(steps, (0, 0), gradients.mean(axis=0), plotting.BLUE)
arrow(steps, (0, 0), shortened, plotting.RED)
arrow(steps, shortened, second, plotting.RED, "dashed", 1.4)
arrow(steps, (0, 0), buffer, plotting.RED)
steps.plot(*second, "o", color=plotting.RED)
steps.text(2.9, 4.05, "(3, 4)", ha="right")
steps.text(3.4, 0.8, "mean", color=plotting.BLUE, ha="center")
steps.text(-0.15, 1.2, "1. clipped", color=plotting.RED, ha="right")
steps.text(2.75, -0.6, "2. plus (4, −3)", color=plotting.RED)
steps.text(0.95, -1.1, "3. clipped", color=plotting.RED)
steps.set(xlim=(-2.1, 5.6), ylim=(-3.1, 4.8), ylabel="second component")
steps.set_title("The buffer, clipped twice", loc="left", fontsize=10)

for end, colour, style, label, place in (
    (once, plotting.BLUE, "solid", "once, at the end (right)", (0.72, 0.21)),
    (each, plotting.ORANGE, (0, (4, 1.5)), "each micro-batch", (0.36, 0.15)),
    (buffer, plotting.RED, (0, (1.5, 1)), "the running buffer", (0.33, -0.31)),
):
    arrow(results, (0, 0), end, colour, style)
    results.text(*(max_norm * np.array(place)), label, color=colour, va="center", ha="center")
results.set(xlim=max_norm * np.array([-0.08, 1.12]), ylim=max_norm * np.array([-0.6, 0.45]))
results.set_title("Three results, near 0", loc="left", fontsize=10)
plotting.show(
    figure,
    "06-clip",
    f"Left: the loop that clips its buffer shortens the first gradient from 5 to {max_norm:g}; the "
    "second, at its full length, then decides the direction. Right: the right update is "
    f"({once[0]:.3f}, {once[1]:.3f}), of length {max_norm:g}. Clipping each micro-batch gives "
    f"({each[0]:.3f}, {each[1]:.3f}): too short, in the right direction as both were equally long. "
    f"Clipping the running buffer gives ({buffer[0]:.3f}, {buffer[1]:.3f}): the sign of the second "
    "component flips. The dotted arcs are the circle of the limit.",
)

# %% [markdown]
# ## Three questions to ask of a line
#
# **Is it linear in the gradient?** A line $f$ may be done in each micro-batch only if
# $f(\frac1k\sum_j g_j) = \frac1k\sum_j f(g_j)$ for all gradients. Among continuous $f$ these are
# the linear ones, up to a constant. Clipping divides by a norm, Adam squares, a sign is a sign:
# none of them is.
#
# *Proof, which may be skipped.* Take away the constant: $h(g) = f(g) - f(0)$. Two micro-batches
# $2a$ and $0$ give $h(a) = \frac12 h(2a)$; then $2a$ and $2b$ give
# $h(a + b) = \frac12 h(2a) + \frac12 h(2b) = h(a) + h(b)$. A continuous $h$ that adds is linear.
#
# **Does it remember?** A line that moves what it will read again (a weight, a velocity, a counter,
# an average) moves it at each call. k calls are k moves.
#
# **Whose is it?** The update's, the micro-batch's, or a single sample's, as a random mask is.

# %%
g = np.array([3.0, -1.0, -1.0])  # of three micro-batches, for one weight; change the 3 to 4, or 5
functions = {
    "2 g + 3": lambda g: 2 * g + 3,
    "clip to 1": lambda g: np.clip(g, -1, 1),  # of one number, the norm is its absolute value
    "sign": np.sign,
    "square": np.square,
}
print("             of the mean   mean of each")
for name, f in functions.items():
    of_the_mean, mean_of_each = f(g.mean()), f(g).mean()
    print(f"{name:12} {of_the_mean:11.4g} {mean_of_each:14.4g}")
    same = np.isclose(of_the_mean, mean_of_each, rtol=1e-14, atol=0)  # rounding
    assert same == (name == "2 g + 3")

# %% [markdown]
# ## The step itself
#
# **Before you run the next cell:** someone calls `step` in every micro-batch, on a k-th of its
# gradient: "k times a k-th is one". For which optimizer is it one?
#
# - Plain SGD: $w \leftarrow w - \text{lr}\, g$.
# - *Weight decay* adds $\text{decay}\cdot w$ to the gradient: at each step the weight shrinks by
#   the factor $1 - \text{lr}\cdot\text{decay}$, too.
# - *Momentum* $\mu$ moves by a velocity, $v \leftarrow \mu v + g$.
# - Adam divides an average of the gradient by the root of an average of its square: while the
#   gradients agree, a step is about lr long, however long they are.
#
# Here the gradients are given, so they do not notice that the weight moves in between. In a real
# model they do, and plain SGD in parts is k small steps (lesson 04), not one large one.

# %%
k = 3  # change it, also to 1: then no fault shows


def step_in_the_loop(toy, optimizer, gradients):  # wrong
    for g in gradients:
        optimizer.zero_grad()
        (toy(g) / len(gradients)).backward()
        optimizer.step()
    return toy.w.data


def step_after_the_loop(toy, optimizer, gradients):  # right
    optimizer.zero_grad()
    for g in gradients:
        toy(g).backward()
    toy.w.grad /= len(gradients)
    optimizer.step()
    return toy.w.data


lr = decay = 0.1
optimizers = {  # name: the optimizer of a weight, where the weight starts, the gradients
    "weight decay": (lambda w: mg.SGD([w], lr, weight_decay=decay), 1.0, [0.0] * k),
    "momentum": (lambda w: mg.SGD([w], lr=1.0, momentum=0.5), 0.0, [1.0] * k),
    "Adam's averages": (lambda w: mg.Adam([w], lr), 0.0, [1.0, 2.0, 3.0, 6.0][:k]),
}
for name, (make, start, given) in optimizers.items():
    toys = [Toy(start) for _ in range(3)]
    wrong = step_in_the_loop(toys[0], make(toys[0].w), given)
    right = step_after_the_loop(toys[1], make(toys[1].w), given)
    by_minigrad(toys[2], make(toys[2].w), given)
    note(name, len(given), wrong, right, toys[2].w.data)
    print(f"{name:16} wrong {table[name][1]:8.4g}   right {table[name][2]:8.4g}")

toys = Toy(0.0), Toy(0.0)
apart = step_in_the_loop(toys[0], mg.SGD([toys[0].w], lr), given)
together = step_after_the_loop(toys[1], mg.SGD([toys[1].w], lr), given)
assert np.isclose(apart, together, rtol=1e-14, atol=0)  # plain SGD is linear in the gradient
print(f"{'plain SGD':16} parts {apart:8.4g}   whole {together:8.4g}")

# By hand: k decays are a power; the velocity of a j-th part has had j micro-batches to build up.
assert np.isclose(table["weight decay"][1], (1 - lr * decay) ** k, rtol=1e-14, atol=0)
velocity = np.cumsum(0.5 ** np.arange(k)) / k
assert np.isclose(table["momentum"][1], -velocity.sum(), rtol=1e-14, atol=0)
of_adam = table["Adam's averages"]
assert abs(of_adam[2] + lr) < 1e-9  # Adam's first step has the length lr
assert abs(of_adam[1] + len(given) * lr) < 0.1 * len(given) * lr  # k steps are about k lr long

# %% [markdown]
# ## What counts, and what follows
#
# Three more things remember, even where the step itself is made once:
#
# - **Adam's counter** t. Adam's averages start at 0 and are divided by $1 - \beta^t$ to make up for
#   it (lesson 03). If t counts micro-batches, this is done as if they were k times older.
# - **The schedule.** The learning rate may be a function of time, and time is the number of
#   *updates*. minigrad leaves no choice: `lr` may be a function, and the optimizer calls it with
#   the number of updates that it made itself. There is no `scheduler.step()` to put into the wrong
#   line.
# - **The weight average.** `mg.WeightAverage` keeps $a \leftarrow d\,a + (1-d)\,w$, a slow copy of
#   the weights (often called EMA, for exponential moving average). Called k times an update, it
#   keeps $d^k$ of its old value in place of $d$.
#
# **Before you run the next cell:** a wrong counter makes Adam's first step too short. Will the
# hundredth be too short as well?

# %%
k = 4  # change it
toy = Toy(0.0)
adam = mg.Adam([toy.w], lr=0.1)
iterations = 0
for g in [1.0] * k:  # wrong
    toy(g).backward()
    iterations += 1
toy.w.grad /= k
adam.updates = iterations - 1  # step() counts one more
adam.step()

right = Toy(0.0)
adam = mg.Adam([right.w], lr=0.1)
for g in [1.0] * k:  # right: step() counts, and is called once
    right(g).backward()
right.w.grad /= k
adam.step()

ours = Toy(0.0)
by_minigrad(ours, mg.Adam([ours.w], lr=0.1), [1.0] * k)
note("Adam's counter", k, toy.w.data, right.w.data, ours.w.data)


def correction(t, b1=0.9, b2=0.999):
    return np.sqrt(1 - b2**t) / (1 - b1**t)


# Predicted: a constant gradient is divided out, and the two corrections remain.
first = correction(k) / correction(1)
assert np.isclose(toy.w.data, first * right.w.data, rtol=1e-6, atol=0)
print(f"first update: wrong {toy.w.data:.4g}, right {right.w.data:.4g}")


def length_of_step(u, k):
    """How far update u goes, if the counter moves by k an update."""
    adam = mg.Adam([mg.parameter(0.0)], lr=0.1)
    (w,) = adam.parameters
    for update in range(1, u + 1):
        before, w.grad = w.data.item(), np.array(1.0)
        adam.updates = k * update - 1
        adam.step()
    return before - w.data.item()


# Too short at first: the average is corrected too little. Then too long: that of the square is.
ratios = {u: correction(k * u) / correction(u) for u in (1, 10, 100, 1000, 10_000)}
for update, ratio in ratios.items():
    if update <= 100:  # measured, too
        measured = length_of_step(update, k) / length_of_step(update, 1)
        assert np.isclose(measured, ratio, rtol=1e-6, atol=0)
    print(f"update {update:6,}: the wrong step is {ratio:.4f} times the right one")
if k > 1:
    assert ratios[1] < 1 < ratios[10] < ratios[100] > ratios[1000]  # too short, then too long
assert abs(ratios[10_000] - 1) < 1e-4  # then it is gone: a late look finds nothing

# %%
k = 4  # change it, also to 1


class Scheduler:
    """What a library gives: its rate is that of time t, and step() moves t by one."""

    def __init__(self, rate):
        self.rate, self.t = rate, 0

    def step(self):
        self.t += 1


def rates_in_the_loop(rate, k, updates):  # wrong
    scheduler, used = Scheduler(rate), []
    for i in range(k * updates):
        if (i + 1) % k == 0:
            used.append(scheduler.rate(scheduler.t))  # optimizer.step()
        scheduler.step()
    return used


def rates_after_the_loop(rate, k, updates):  # right
    scheduler, used = Scheduler(rate), []
    for i in range(k * updates):
        if (i + 1) % k == 0:
            used.append(scheduler.rate(scheduler.t))  # optimizer.step()
            scheduler.step()
    return used


def rates_of_minigrad(rate, k, updates):
    toy = Toy(0.0)
    sgd = mg.SGD([toy.w], lr=rate)
    weights = [toy.w.data.item()]
    for _ in range(updates):
        by_minigrad(toy, sgd, [1.0] * k)
        weights.append(toy.w.data.item())
    return [before - after for before, after in itertools.pairwise(weights)]  # the gradient is 1


loops = rates_in_the_loop, rates_after_the_loop, rates_of_minigrad
note("schedule, two updates", k, *(loop(lambda t: 1 - t / 8, k, 2) for loop in loops))
print("rates of 1 - t/8:  wrong", *table["schedule, two updates"][1], end="   ")
print("right", *table["schedule, two updates"][2])


def average_in_the_loop(k, d):  # wrong
    w = average = 0.0
    for i in range(2 * k - 1):  # to the last call that sees the weight of update 1
        if (i + 1) % k == 0:
            w = 1.0  # optimizer.step()
        average = d * average + (1 - d) * w  # average.update()
    return average


def average_after_the_loop(k, d):  # right
    w = average = 0.0
    for i in range(2 * k - 1):
        if (i + 1) % k == 0:
            w = 1.0
            average = d * average + (1 - d) * w
    return average


toy = Toy(0.0)
slow = mg.WeightAverage([toy.w], decay=0.5)
by_minigrad(toy, mg.SGD([toy.w], lr=1.0), [-1.0] * k, average=slow)
wrong, right = average_in_the_loop(k, 0.5), average_after_the_loop(k, 0.5)
note("weight average", k, wrong, right, slow.values[0])
assert (wrong, right) == (1 - 0.5**k, 1 - 0.5)  # predicted
print(f"weight average:  wrong {wrong:.4g}   right {right:.4g}")

# %% [markdown]
# ## What belongs to the sample: dropout
#
# *Dropout* sets random elements to 0 in training: here each with probability one half. The *mask*
# says which ones. One batch of N samples has N masks. If the split is to change nothing, a sample
# must get the same mask whatever k is.
#
# Two loops are common. One starts a generator from the update's seed in every micro-batch. The
# other draws from one generator, in sequence. **Before you run the next cell:** four samples, and
# two dropout layers. With k = 4, how many different masks does the first loop give? Does the second
# give the masks of k = 1?
#
# The right loop makes a generator from (seed, update, sample, layer). minigrad's draws are a
# function of these, and of how often the layer was called for this sample: see `mg.Dropout` and
# `uniform_words` in [`minigrad/randomness.py`](../minigrad/randomness.py).

# %%
N, width, seed = 4, 8, 1


def two_layers(rng, b, layers=2):
    """Masks of b samples for each layer: True is kept."""
    return np.hstack([rng.random((b, width)) < 0.5 for _ in range(layers)])


def seed_in_the_loop(k):  # wrong: every micro-batch starts anew
    masks = []
    for part in np.array_split(np.arange(N), k):
        rng = np.random.default_rng(seed)
        masks.append(two_layers(rng, len(part)))
    return np.vstack(masks)


def one_generator(k, layers=2):  # wrong: layer 2 of a part is drawn before layer 1 of the next
    rng = np.random.default_rng(seed)
    return np.vstack([two_layers(rng, len(p), layers) for p in np.array_split(np.arange(N), k)])


def by_sample(k, update=0):  # right: a generator for each sample and layer
    masks = []
    for part in np.array_split(np.arange(N), k):
        for i in part:
            rngs = [np.random.default_rng([seed, update, i, layer]) for layer in range(2)]
            masks.append(np.hstack([rng.random(width) < 0.5 for rng in rngs]))
    return np.vstack(masks)


class TwoMasks(mg.Module):
    """Ones through two dropout layers side by side: what is not 0 was kept."""

    def __init__(self):
        self.w, self.layers = mg.parameter(np.ones(width)), [mg.Dropout(0.5), mg.Dropout(0.5)]

    def forward(self, x):
        return mg.concatenate([layer(x * self.w) for layer in self.layers], axis=1)


def of_minigrad(k, update=0):
    mg.manual_seed(seed)
    rows, x = [], np.ones((N, width))

    def keep(outputs, _):
        rows.append(outputs.data != 0)
        return mg.per_sample(outputs.sum(axis=1))

    mg.accumulate(TwoMasks(), keep, (x, x), accumulation_steps=k, update=update)
    return np.vstack(rows)


def distinct(masks):
    return len(np.unique(masks, axis=0))


def changed(draw, k):
    """Samples whose mask is not that of k = 1."""
    return int((draw(1) != draw(k)).any(axis=1).sum())


k = N
note("distinct masks of four", k, distinct(seed_in_the_loop(k)), N, distinct(of_minigrad(k)))
assert distinct(by_sample(k)) == N
note("masks the split changes", k, changed(one_generator, k), 0, changed(of_minigrad, k))
assert all(changed(by_sample, k) == changed(of_minigrad, k) == 0 for k in (1, 2, 3, 4))
# With one layer alone the draws come in the order of the samples, and a test would find nothing.
assert (one_generator(1, layers=1) == one_generator(k, layers=1)).all()
for draw in (by_sample, of_minigrad):
    assert (draw(1, update=0) != draw(1, update=1)).any(axis=1).all()  # a new update, new masks

loops = {
    "Seeded in every micro-batch": seed_in_the_loop,
    "One generator, in sequence": one_generator,
    "By sample (minigrad)": of_minigrad,
}
figure, panels = plotting.subplots(3, 3, height=4.2)
for column, (title, draw) in enumerate(loops.items()):
    for row, k in enumerate((1, 2, 4)):
        axes, masks = panels[row, column], draw(k)
        same = (masks == draw(1)).all(axis=1)
        for rows, colour, marker in ((same, plotting.BLUE, "s"), (~same, plotting.ORANGE, "D")):
            for kept, size, shade in ((True, 5.5, colour), (False, 1.5, plotting.GREY)):
                i, j = np.nonzero((masks == kept) & rows[:, None])
                axes.plot(j + (j >= width) + 0.5, i + 0.5, marker, color=shade, ms=size)
        for edge in range(0, N + 1, N // k):  # the micro-batches
            axes.axhline(edge, color=plotting.GREY, linewidth=1.2)
        axes.set(xlim=(0, 2 * width + 1), ylim=(N + 0.05, -0.05), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if row == 0:
            axes.set_title(f"{title}\n", loc="left", fontsize=10, fontweight="bold")
            axes.text(4, -0.3, "layer 1", ha="center")
            axes.text(13, -0.3, "layer 2", ha="center")
        if column == 0:
            axes.set_ylabel(f"k = {k}  ", rotation=0, ha="right", va="center")
        axes.set_xlabel(f"{distinct(masks)} of {N} distinct, {changed(draw, k)} changed")
plotting.show(
    figure,
    "06-masks",
    f"Masks of {N} samples (rows) in two dropout layers of width {width}; a large mark is an "
    "element that is kept, lines separate the micro-batches, orange diamonds are masks that are "
    f"not those of k = 1. Seeded in every micro-batch, the {N} samples of k = 4 share "
    f"{distinct(seed_in_the_loop(4))} mask. One generator in sequence gives "
    f"{changed(one_generator, 4)} of {N} samples another mask at k = 4. By sample, "
    f"{changed(of_minigrad, 4)} change.",
)

# %% [markdown]
# ## The books: the log, the save, the count
#
# What is logged should be what was differentiated: the loss of the whole window. Two micro-batches
# of 1 and 3 samples have the mean losses 1 and 3. **Before you run the next cell:** what is the
# loss of the window? Which of the four loggers below, all of which people write, says so?
#
# The toy has a check of its own: its loss is proportional to the weight, so at $w = 1$ the gradient
# *is* the loss.
#
# "Save every 2 updates", inside the loop over micro-batches, saves again and again while the count
# stands at 2. And a count of micro-batches divided by k is no count of updates: it misses the short
# window at the end of each epoch. `mg.Accumulator`, for micro-batches that come one by one, keeps
# both counts. With `mg.train_step` there is no inner loop to put a line into.

# %%
parts = [np.array([1.0]), np.array([3.0, 3.0, 3.0])]  # the losses of the samples, at w = 1
n = sum(len(x) for x in parts)


def log_in_the_loop(parts):  # the gradient is right, the four logs are wrong
    toy, running = Toy(1.0), 0.0
    for x in parts:
        loss = as_it_is(toy(x)).mean()
        (loss * (len(x) / n)).backward()
        running += loss.item()
    logs = running, running / len(parts), loss.item(), loss.item() / len(parts)
    return dict(zip(("sum of means", "mean of means", "last", "last / k"), logs)), toy.w.grad


def log_the_window(parts):  # right: add up what is differentiated, divide once
    toy, total, count = Toy(1.0), 0.0, 0
    for x in parts:
        loss = as_it_is(toy(x)).sum()
        loss.backward()
        total, count = total + loss.item(), count + len(x)
    return total / count


toy = Toy(1.0)
with mg.Accumulator(toy, mg.SGD([toy.w], lr=1.0), accumulation_steps=2) as accumulator:
    for x in parts:
        with accumulator.micro_batch(len(x)):
            accumulator.backward(as_it_is(toy(x)))

(logs, gradient), right = log_in_the_loop(parts), log_the_window(parts)
for name, wrong in logs.items():
    note(f"log: {name}", 2, wrong, right, accumulator.report.loss)
assert gradient == right  # at w = 1 the gradient is the loss
print("wrong:", logs)
print("right:", right, "  minigrad:", accumulator.report.loss, "  the gradient at w = 1:", gradient)

# %%
k = 4  # change it, to 1, 2 or 8


def save_in_the_loop(k):  # wrong
    updates, saved = 0, []
    for i in range(16):
        if (i + 1) % k == 0:
            updates += 1  # optimizer.step()
        if updates and updates % 2 == 0:
            saved.append(i + 1)
    return saved


def save_after_the_update(k):  # right
    updates, saved = 0, []
    for i in range(16):
        if (i + 1) % k == 0:
            updates += 1  # optimizer.step()
            if updates % 2 == 0:
                saved.append(i + 1)
    return saved


toy, saved = Toy(0.0), []
sgd = mg.SGD([toy.w], lr=1.0)
for _ in range(16 // k):  # no inner loop
    by_minigrad(toy, sgd, [1.0] * k)
    if sgd.updates % 2 == 0:
        saved.append(sgd.updates * k)
assert saved == save_after_the_update(k)
print("saved after micro-batches: wrong", save_in_the_loop(k), "  right", saved)
if k < 8:  # two windows of 8 end with the data, and hide the fault
    note("files saved", k, len(save_in_the_loop(k)), len(save_after_the_update(k)), len(saved))

toy = Toy(0.0)
accumulator = mg.Accumulator(toy, mg.SGD([toy.w], lr=1.0), accumulation_steps=2)
for _epoch in range(2):
    with accumulator:  # leaving it ends a window that is not full
        for x in np.ones((5, 1)):
            with accumulator.micro_batch(1):
                accumulator.backward(as_it_is(toy(x)))
seen_in_all, windows = 2 * 5, 2 * len([(1, 2), (3, 4), (5,)])
assert accumulator.micro_batches == seen_in_all
note("count of updates", 2, seen_in_all // 2, windows, accumulator.updates)
print(f"2 epochs of 5 micro-batches, k = 2: {seen_in_all} // 2 is {seen_in_all // 2},", end=" ")
print(f"updates made: {accumulator.updates}")

# %% [markdown]
# ## The buffer: who clears it, and what a NaN does
#
# `zero_grad` belongs to the update too. A buffer that is cleared in every micro-batch holds the
# last one alone.
#
# A NaN (not a number, as from $0/0$) in one micro-batch makes the sum NaN, and one step would make
# all weights NaN. People clear the buffer and go on; but the window ends where it would have ended,
# and the division is still by k. Two ways are honest: leave out the one micro-batch and divide by
# those that were counted, or skip the window whole. minigrad skips: no weight moves, no counter, no
# average; it warns, and `report.reason` says why. Multiplying the bad gradient by 0 does not help.


# %%
def clear_in_the_loop(gradients):  # wrong
    toy = Toy(0.0)
    for g in gradients:
        toy.zero_grad()
        (toy(g) / len(gradients)).backward()
    return toy.w.grad.item()


def clear_once(gradients):  # right: before the window, or after the step
    toy = Toy(0.0)
    toy.zero_grad()
    for g in gradients:
        (toy(g) / len(gradients)).backward()
    return toy.w.grad.item()


def clear_and_go_on(gradients):  # wrong
    toy = Toy(0.0)
    for g in gradients:
        loss = toy(g) / len(gradients)
        if not np.isfinite(loss.item()):
            toy.zero_grad()
            continue
        loss.backward()
    return toy.w.grad.item()


def skip_the_window(gradients):  # right: looks once, at the end
    gradient = clear_once(gradients)
    return gradient if np.isfinite(gradient) else 0.0


g = [1.0, 2.0, 3.0, 4.0]
toy = Toy(0.0)
by_minigrad(toy, mg.SGD([toy.w], lr=1.0), g)
note("zero_grad", 4, clear_in_the_loop(g), clear_once(g), -toy.w.data)
print(f"zero_grad:  wrong {clear_in_the_loop(g)}, right {clear_once(g)}")

g = [1.0, np.nan, 3.0, 4.0]  # put the NaN first: the wrong loop gives another number
toy = Toy(1.0)
adam, slow = mg.Adam([toy.w], lr=1.0), mg.WeightAverage([toy.w], decay=0.5)
slow.values[0][...] = 8.0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report = by_minigrad(toy, adam, g, average=slow)
assert [w.category for w in caught] == [mg.NonFiniteWarning]
assert (report.updated, adam.updates, toy.w.data, slow.values[0]) == (False, 0, 1, 8)
assert "expected finite numbers" in report.reason
note("a NaN in the window", 4, clear_and_go_on(g), skip_the_window(g), 1 - toy.w.data)
counted = [x for x in g if np.isfinite(x)]
print(f"a NaN:  wrong {clear_and_go_on(g)}, the one left out {np.mean(counted):.4g}, skipped 0")
assert np.isnan(0 * np.nan)

# %% [markdown]
# ## The order
#
# What is left for the end of a window has an order. Take three actions on the sum of the
# micro-batches' means: divide by k, clip to 1, add the weight's decay. **Before you run the next
# cell:** which two of the six orders do not depend on k, and what is wrong with the other four?
#
# Which of the two is *right* is a definition and no theorem. minigrad, like PyTorch's
# `clip_grad_norm_` before `step`, clips what comes from the data and lets the optimizer add the
# decay: a clip guards against rare data, and the decay is not data.
#
# Below the six orders stands the function that does all this in minigrad, as it runs. From top to
# bottom: divide and look (`window.finish`), skip if there is a reason, clip. Then everything that
# may still fail: the schedule's rate, memory. Then only writes: step, average, statistics.
# (Statistics are kept by layers that look at a whole batch; the models of this lesson have none.)
#
# The last picture is drawn from one such window: the toy, its loss, the rate, the optimizer and the
# average are replaced by ones that also write down when they ran and what they saw.

# %%
mean, start, weight_decay = np.array([2.0, 0.0]), np.array([0.0, 1.0]), 0.5


def clipped(g, limit=1.0):
    return g * min(1, limit / np.sqrt(g @ g))


def in_order(order, k):
    """What three actions make of the sum of k micro-batches' means."""
    g = k * mean
    for action in order:
        if action == "divide":
            g = g / k
        elif action == "clip":
            g = clipped(g)
        else:
            g = g + weight_decay * start
    return g


print("                             k = 1            k = 2            k = 4")
for order in itertools.permutations(["divide", "clip", "decay"]):
    results = [in_order(order, k) for k in (1, 2, 4)]
    cells = "".join(f"   ({g[0]:.3f}, {g[1]:.3f})" for g in results)
    print(f"{', '.join(order):20} {cells}")
    assert np.allclose(results, results[0], rtol=1e-12) == (order[0] == "divide")

# What comes before the division meets a sum that is k times as long as the mean, and is divided
# with it: a limit is then k times too strict, a decay k times too weak.
for k in (1, 2, 4):
    toy = Toy(start)
    by_minigrad(toy, mg.SGD([toy.w], 1.0, weight_decay=0.5), [mean] * k, clip_norm=1.0)
    assert np.array_equal(start - toy.w.data, in_order(["divide", "clip", "decay"], k))  # exact

pair = np.array([[3.0, 4.0], [4.0, -3.0]])  # from the beginning of this lesson
toy = Toy([0.0, 0.0])
by_minigrad(toy, mg.SGD([toy.w], lr=1.0), pair, clip_norm=1.0)
wrong, right = clipped(pair.sum(axis=0)) / 2, clipped(pair.sum(axis=0) / 2)
assert np.allclose(right, 2 * wrong, rtol=1e-14, atol=0)
note("clip, then divide", 2, wrong, right, -toy.w.data)
print("(3, 4) and (4, -3): clip, then divide", wrong, "  divide, then clip", right, end="\n\n")
show_source(mg.training.finish_update)

# %%
k = 4  # change it, to 2 or 6
log = []  # (what ran, the gradient in the buffer, the weight, its average)


def seen(name):
    buffer = 0.0 if watched.w.grad is None else watched.w.grad.item()
    log.append((name, buffer, watched.w.data.item(), average.values[0].item()))


class Watched(Toy):
    """The toy, with a node on the tape that changes nothing but sees `backward` pass."""

    def forward(self, x):
        seen("forward")
        outputs = super().forward(x)

        def pullback(g):
            seen("backward")
            return (g,)

        return mg.tensor.record(outputs.data, (outputs,), pullback)


def watched_loss(outputs, *_):
    seen("loss")
    return mg.per_sample(outputs)


def watched_rate(update):
    seen("rate")
    return 1.0


class WatchedSGD(mg.SGD):
    def update(self, p, g, *others):
        seen("step")
        super().update(p, g, *others)


class WatchedAverage(mg.WeightAverage):
    def write(self, scratch):
        seen("average")
        super().write(scratch)


watched = Watched(0.0)
average, sgd = WatchedAverage([watched.w], decay=0.5), WatchedSGD([watched.w], lr=watched_rate)
x = np.array([1.0, 2.0, 3.0, 6.0, 2.0, 4.0])[:k]
limit = 1.0
report = mg.train_step(
    watched, watched_loss, sgd, (x, x), accumulation_steps=k, clip_norm=limit, average=average
)
seen("end")
names, buffers, weights, averages = zip(*log)
assert list(names) == ["forward", "loss", "backward"] * k + ["rate", "step", "average", "end"]
assert set(weights[: 3 * k + 2]) == {0.0}  # the weight stands still until the step
assert (weights[-1], averages[-2:]) == (-1, (0, -0.5))
assert (report.grad_norm, buffers[3 * k]) == (x.mean(), limit)  # divided, and then clipped

figure, (lane, values) = plotting.subplots(2, 1, height=4.6, sharex=True, height_ratios=[1, 1.3])
once = ["divide", "look", "clip", "rate", "step", "average"]
for i, name in enumerate([*names[: 3 * k], *once]):
    colour, hatch = (plotting.BLUE, None) if i < 3 * k else (plotting.ORANGE, "//")
    lane.bar(i, 1, 0.86, color=colour, alpha=0.35, hatch=hatch, edgecolor="white")
    lane.text(i, 0.5, name, rotation=90, ha="center", va="center")
for j in range(k):
    lane.text(3 * j + 1, 1.08, f"micro-batch {j + 1}" if k < 6 else f"{j + 1}", ha="center")
lane.text(3 * k + 2.5, 1.08, "once per update", ha="center", fontweight="bold")
lane.set(yticks=[], ylim=(0, 1.3))
lane.spines[:].set_visible(False)
lane.grid(False)
lane.tick_params(bottom=False)

# Each value as it is after the box above it. What lies between backward and rate was not seen: it
# stands in the report.
buffer = [*np.append(0, np.cumsum(x)).repeat(3)[1 : 3 * k + 1]]
buffer[-1] = x.sum()
buffer += [report.grad_norm, report.grad_norm, limit, limit, limit, limit]
weight = [0] * (3 * k + 4) + [weights[-1]] * 2
ends = np.arange(len(buffer) + 1) - 0.5
for line, colour, style, name in (
    (buffer, plotting.BLUE, "solid", "gradient in the buffer"),
    (weight, plotting.ORANGE, (0, (5, 1.5)), "weight"),
):
    values.stairs(line, ends, baseline=None, color=colour, ls=style, linewidth=2, label=name)
for j, total in enumerate(np.cumsum(x)):
    values.text(3 * j + 2, total + 0.3, f"{total:g}", ha="center", color=plotting.BLUE)
values.text(3 * k + 0.6, report.grad_norm + 0.3, f"mean {report.grad_norm:g}", color=plotting.BLUE)
values.text(3 * k + 2.6, limit + 0.3, f"limit {limit:g}", color=plotting.BLUE)
values.text(3 * k + 4.5, weights[-1] + 0.25, f"weight −{-weights[-1]:g}", ha="center")
top = 1.15 * sum(x) + 0.5
values.set(xlim=(-0.6, len(buffer) - 0.4), ylim=(-1.6, top), xticks=[], ylabel="value")
values.legend(loc="upper left")
plotting.show(
    figure,
    "06-window",
    f"One window of k = {k}. Forward, loss and backward run {names.count('backward')} times, and "
    f"only the buffer grows, to {x.sum():g}. Then, once: the division leaves {report.grad_norm:g}, "
    f"the clip {limit:g}, the rate is asked for, and the weight, which stood still at 0, moves to "
    f"{weights[-1]:g}.",
)


# %%
# All of it in one table. Set the k of the cells above to 1, where they invite you to change it, and
# run all again: those faults are gone.
def shown(value):
    return ", ".join(f"{v:.4g}" for v in np.atleast_1d(value))


print(f"{'item':24} {'k':>2}   {'wrong':16} {'right':16} {'minigrad':16}")
for item, (k, wrong, right, minigrad) in table.items():
    assert np.array_equal(minigrad, right)  # grade: exact
    assert (np.max(abs(wrong - right)) > 1e-3) == (k > 1)  # grade: different
    print(f"{item:24} {k:2}   {shown(wrong):16} {shown(right):16} {shown(minigrad):16}")
print(f"{len(table)} lines: minigrad equals the right loop exactly, the wrong loops differ")

# %% [markdown]
# ## Usual mistakes
#
# - "I clip every gradient, so I am safe." Safe from length, not from direction: clipping each one
#   forgets which was longer, and the running buffer can flip a sign. Clip once, after the
#   division: before it, the limit is k times too strict.
# - "It ran well with k = 1." All faults here are invisible at k = 1. Test with k = 2, and with
#   parts that differ.
# - "The loss goes down, so it is right." A clip that never acts, a counter of Adam that is
#   thousands of updates old, a schedule that is constant: the faults sleep.
# - "Step in each micro-batch with a k-th of the rate": k small updates are another method, and
#   decay, momentum and Adam say so.
# - "Dropout is random anyway." A repeated mask is less random than you pay for; a mask that depends
#   on k makes two runs that should be equal differ.
# - "Updates are micro-batches divided by k." Not where an epoch ends in a short window.
#
# ## In short
#
# - Per micro-batch: forward, loss, backward, and adding (gradient, loss, weight). Nothing else.
# - Once per update: divide, look, clip, rate, decay, step, count, average, save, log, clear.
# - By sample: random masks.
# - Ask: is it linear in the gradient, does it remember, whose is it?
# - Divide before you clip.
#
# ## References
#
# - D. P. Kingma, J. Ba (2015). Adam: a method for stochastic optimization. *ICLR*. Sections 2, 3.
# - R. Pascanu, T. Mikolov, Y. Bengio (2013). On the difficulty of training recurrent neural
#   networks. *ICML*. On clipping by the norm.
# - N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever, R. Salakhutdinov (2014). Dropout: a
#   simple way to prevent neural networks from overfitting. *Journal of Machine Learning Research*
#   15.
# - B. T. Polyak, A. B. Juditsky (1992). Acceleration of stochastic approximation by averaging.
#   *SIAM Journal on Control and Optimization* 30. On averages of weights.
# - J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw (2011). Parallel random numbers: as easy as
#   1, 2, 3. *SC11*. On Philox, the generator of minigrad's masks.
