# %% [markdown]
# # 00 · Can eight small batches be one large one?
#
# **You will be able to**
#
# 1. say in two sentences what gradient accumulation computes, and what it saves;
# 2. tell rounding from a fault when two training runs are compared;
# 3. work with the lessons of this course, and know what each of them answers.
#
# **Needs:** calculus, matrix products, NumPy; if you are not sure of them,
# [a page of background](before.md) with a self-test. **Reading:** 25 minutes, with the
# experiments; **exercises:** 25 minutes ([00_start_here](exercises/00_start_here.ipynb)).
# **Code:** [`minigrad/demo.py`](../minigrad/demo.py), which is this lesson as a command, and the
# meter in [`minigrad/memory.py`](../minigrad/memory.py).

# %% [markdown]
# ## The idea
#
# A *model* is a function with numbers in it that can be changed, its *weights*. A *sample* is one
# input together with its right answer. The *loss* of a sample says how wrong the model is there,
# and its *gradient* holds the derivatives of the loss by (with respect to) all weights. An *update*
# moves the weights a little way against the mean gradient of $N$ samples, the *batch*.
#
# A large batch may need more memory than there is. But a mean is a sum that is divided once, and a
# sum can be added up in parts. So take only $b$ samples at a time, a *micro-batch*, and **add**
# their gradients to those that came before. When all $k$ micro-batches are in, **divide** once by
# $N$, and make the one update. This is **gradient accumulation**; the micro-batches of one update
# are its *window*.
#
# First by hand. The model is $w \cdot x$ with two weights, the loss $(w \cdot x - t)^2 / 2$, and so
# by the chain rule the gradient of a sample is $(w \cdot x - t)\, x$. Eight samples give eight
# gradients.

# %%
from functools import partial
from itertools import pairwise

import numpy as np

import minigrad as mg
from minigrad import plotting

x = np.array([[2, -1], [1, 3], [1, -2], [2, -1], [2, -1], [3, 2], [0, -2], [-1, 2]], float)
t = np.array([-3, 3, -3, -3, 0, 3, 3, -1], float)
w = np.array([1.0, 1.0])
gradients = (x @ w - t)[:, None] * x  # one row a sample

sizes = [2, 2, 2, 2]  # of the micro-batches

accumulated, first = np.zeros(2), 0
sums = [accumulated.copy()]
for b in sizes:
    accumulated += gradients[first : first + b].sum(axis=0)  # add
    first += b
    sums.append(accumulated.copy())
mean = accumulated / first  # divide, once

assert first == len(x), f"sizes add up to {first}, expected {len(x)}"  # all samples are in
assert np.array_equal(mean, gradients.mean(axis=0))  # exact: these are small whole numbers
print("mean gradient of the batch:", mean)

# %% [markdown]
# Below, each gradient is an arrow that begins where the one before it ended: to add is to walk.
# Change `sizes` above to `[5, 3]` or to `[1, 7]`, and run both cells again: the stops move, the end
# does not. (How a picture is drawn is no part of a lesson: look at it, and skip its code.)


# %%
def walk(axes, stops, number, title, **style):
    """Arrows from stop to stop, and at the end their sum and its division by a number."""
    for start, end in pairwise(stops):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "lw": 1.8, **style})
    axes.plot(*np.transpose(stops), ls="", marker="o", ms=4, color=plotting.DARK)
    axes.plot(*np.transpose([stops[0], stops[-1]]), color=plotting.GREY, ls=":")
    thick = {"arrowstyle": "-|>", "lw": 3.5, "color": plotting.VIOLET, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", stops[-1] / number, stops[0], arrowprops=thick)
    text = {"ha": "center", "va": "bottom", "color": plotting.VIOLET}
    axes.annotate(f"divided\nby {number}", (3, 1.5), **text)
    axes.annotate("sum", (14, 5.5), ha="center", color=plotting.DARK)
    axes.set_title(title, loc="left")
    axes.set(xlabel="derivative by the first weight", aspect="equal", xticks=range(0, 30, 5))
    axes.set(yticks=range(-10, 10, 5))
    axes.grid(False)


one_by_one = np.vstack([np.zeros(2), gradients.cumsum(axis=0)])
figure, (left, right) = plotting.subplots(1, 2, height=3.4, sharex=True, sharey=True)
walk(left, one_by_one, len(x), "8 gradients, a sample each", color=plotting.BLUE)
title = f"{len(sizes)} sums, a micro-batch each"
walk(right, np.array(sums), first, title, color=plotting.ORANGE, ls="--")
ends = [tuple(map(int, stops[-1])) for stops in (one_by_one, sums)]
means = [tuple(map(float, m.round(3))) for m in (gradients.mean(axis=0), mean)]
both = f"On the right it is {means[1]}, too: the walks end at the same point."
if first != len(x):
    both = f"On the right the sizes add up to {first}: the sum divided by {first} is {means[1]}."
left.set_ylabel("derivative by the second weight")
plotting.show(
    figure,
    "00-idea",
    f"Two walks from (0, 0): on the left by 8 arrows, one a sample, to {ends[0]}; on the right by "
    f"{len(sizes)}, one a micro-batch, of {sizes} samples, to {ends[1]}. The short thick arrow on "
    f"the left is the sum divided by 8, the gradient of the batch: {means[0]}. {both}",
)

# %% [markdown]
# ## The question
#
# Is it the same for a real model, update after update? We let a small *network* read handwritten
# digits. It is a model of two matrix products (`mg.MLP` below; lesson
# [03](03_training_loop.ipynb) builds it): 64 pixels go in, 256 numbers lie in between, 10 come out,
# one for each digit. It makes 30 updates, each with a batch of 256 samples, in three ways from the
# same start:
#
# - **one batch** of 256;
# - **8 micro-batches** of 32, added up, divided once;
# - **the loop that forgets to divide**, as it is easily written by hand: it takes the *mean* of
#   each micro-batch, adds up the 8 gradients, and makes the update.
#
# **Before you run the next cells, write down three predictions.**
#
# 1. How far apart are the losses of the first two after 30 updates: not at all, hardly, or plainly?
# 2. The loss of the third: does it fall faster, fall more slowly, or not settle?
# 3. How many times less memory do 8 micro-batches need: 8 times, more, or less?

# %%
from minigrad.data import digits

(images, labels), _ = digits(np.float64)
N, updates = 256, 30


def start(norm=None):  # norm: one layer more, for the section "Where it fails"
    """The network and its optimizer, which makes the updates: the same each time."""
    mg.manual_seed(0)
    model = mg.MLP(64, 256, 10, norm=norm, dtype=np.float64)
    return model, mg.SGD(model.parameters(), lr=0.2, momentum=0.9)


def batches():
    """30 batches of 256 samples, in an order that is the same each time."""
    rng = np.random.default_rng(0)
    for _ in range(updates * N // len(images)):
        order = rng.permutation(len(images))
        for rows in order.reshape(-1, N):
            yield images[rows], labels[rows]


def weights(model):
    """All weights side by side."""
    return np.concatenate([p.data.ravel() for p in model.parameters()])


def train(micro_batch_size):
    """The loss of each batch before its update, and the weights at the end."""
    model, optimizer = start()
    losses = []
    for batch in batches():
        report = mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
        losses.append(report.loss)
    return np.array(losses), weights(model)


assert len(list(batches())) == updates

# %% [markdown]
# `mg.train_step` makes one update: it cuts the batch, adds, divides once, and lets the optimizer
# move the weights. The optimizer is SGD with momentum. It adds up the gradients of all updates so
# far, of which the older ones count less and less, and steps against this sum. So for each weight
# it keeps one number more. The loss is `mg.cross_entropy`: it is large where the network gives the
# right digit little probability. All three are the subject of lesson [03](03_training_loop.ipynb).
# Now the loop by hand: `zero_grad` empties the gradient, `backward` computes one and adds it to
# what is there, `step` makes the update. Each line looks right.


# %%
def train_without_dividing(micro_batch_size):
    """The same with the usual fault."""
    model, optimizer = start()
    losses = []
    for inputs, targets in batches():
        model.zero_grad()
        total = 0.0
        for part in mg.micro_batches(N, micro_batch_size):
            loss = mg.cross_entropy(model(inputs[part]), targets[part])
            loss.mean().backward()  # adds the gradient of this mean to what is there
            total += loss.sum().item()
        optimizer.step()
        losses.append(total / N)
    return np.array(losses), weights(model)


# %% [markdown]
# To compare the runs we need a measure. A number in float64 has 53 binary digits, so that rounding
# moves the result of one operation by at most $2^{-53}$ of it. This is our **unit of rounding**, in
# books the *unit roundoff* $u$. Add the same numbers in two orders, and each sum is rounded at
# other places. Both are right, and yet they may be a few units apart, or more where large numbers
# of either sign nearly cancel. The measure is a function of the package; `show_source` prints it,
# with its file and lines.

# %%
from minigrad.demo import ROUNDING, UNIT, units
from minigrad.reading import show_source

show_source(units)

# %% [markdown]
# The experiment. Change `micro_batch_size` to 7 (then the last part holds 4 samples), to 1, to 64,
# and to 256, and run this cell and the next: for the first two runs the result stays. The third
# depends on the number of parts. With 64 there are four, and it settles all the same.

# %%
micro_batch_size = 32

whole, whole_weights = train(N)
split, split_weights = train(micro_batch_size)
forgot, forgot_weights = train_without_dividing(micro_batch_size)

k = len(mg.micro_batches(N, micro_batch_size))
split_apart = np.array([units(a, b) for a, b in zip(whole, split)])
forgot_apart = np.array([units(a, b) for a, b in zip(whole, forgot)])

assert split_apart.max() < ROUNDING  # 1000 units
assert units(whole_weights, split_weights) < ROUNDING
assert k == 1 or forgot_apart.max() > 1e12 * ROUNDING
assert micro_batch_size != 32 or forgot.min() > 10 * whole[-1]  # it does not settle anywhere near
assert whole[-1] < whole[0] / 10  # it learns
parts = f"{k} part" if k == 1 else f"{k} parts"
print(f"loss of the last batch: {whole[-1]:.4f} at once, {split[-1]:.4f} in {parts}")
print(f"                        {forgot[-1]:.4f} in the loop that forgets to divide")
print(f"the first two differ by less than {ROUNDING} units, {ROUNDING * UNIT:.0e} of the loss")

# %% [markdown]
# The picture of this course. Its bars are drawn from a recorded measurement,
# [`memory.json`](../figures/data/memory.json). Grey is what is always there, the weights, their
# gradient and the optimizer's own numbers; on top is what one update takes beside them.

# %% tags=["rounding"]
from minigrad.data import measured

memory = measured("memory")  # in bytes
peaks = np.array(list(memory["peak"].values()))
stays = 3 * whole_weights.nbytes  # weights, gradient, and SGD's momentum: as many numbers each
assert peaks[0] > 3 * peaks[1]
assert 1 <= memory["stays"] / stays < 1.05
beside, in_all = peaks[0] / peaks[1], (stays + peaks[0]) / (stays + peaks[1])  # times less

many = f"{k} micro-batches" if k > 1 else "1 micro-batch"
most = forgot_apart.max() * UNIT  # of the loss
far = "soon differs by more than the loss itself"
if most <= 1:
    far = f"differs by up to {most:.0%} of the loss"
if k == 1:
    far = "lies there, too, because the mean of one part is that of the batch"


def draw_losses(axes):
    axes.set_title("loss of each batch, before its update")
    axes.plot(update, whole, color=plotting.BLUE, lw=5, label=f"one batch of {N}")
    axes.plot(update, split, color=plotting.ORANGE, ls=(0, (3, 2)), label=many)
    style = {"color": plotting.RED, "lw": 1.2, "ls": ":", "marker": "o"}
    axes.plot(update, forgot, **style, label="the loop that forgets to divide")
    axes.set(yscale="log", ylim=(0.05, None))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()


def draw_differences(axes):
    axes.set_title("how far from one batch, in units of rounding ($2^{-53}$ of the loss)")
    axes.axhline(1 / UNIT, color=plotting.GREY, lw=1.2)
    axes.text(updates, 0.1 / UNIT, "as large as the loss itself", ha="right", va="top")
    axes.plot(update, forgot_apart, color=plotting.RED, lw=1.2, ls=":", marker="o")
    axes.plot(update, split_apart, color=plotting.ORANGE, ls="", marker="s")
    axes.set_yscale("symlog", linthresh=10, linscale=1.5)  # plain up to 10, logarithms above
    axes.set_yticks([0, 10, 1e4, 1e8, 1e12, 1e16])
    axes.set_yticklabels(["0", "10", "$10^4$", "$10^8$", "$10^{12}$", "$10^{16}$"])
    axes.set(xlabel="update", ylim=(-3, None))
    axes.minorticks_off()


def draw_memory(axes):
    axes.set_title("memory of\none update")
    axes.bar(memory["peak"].keys(), stays / 1e6, width=0.75, color="#dcdce0")
    style = {"color": [plotting.BLUE, plotting.ORANGE], "hatch": ["", "//"], "edgecolor": "white"}
    bars = axes.bar(memory["peak"].keys(), peaks / 1e6, width=0.75, bottom=stays / 1e6, **style)
    axes.bar_label(bars, [f"+ {peak / 1e6:.2f} MB" for peak in peaks], padding=3)
    for i in range(2):
        axes.text(i, stays / 2e6, f"stays:\n{stays / 1e6:.2f} MB", ha="center", va="center")
    axes.set(yticks=[])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=0)


update = np.arange(1, updates + 1)
shape = {"width_ratios": (3.4, 1), "height_ratios": (1.5, 1)}
figure, axes = plotting.subplots(2, 2, height=5.2, sharex="col", **shape)
axes[0, 1].remove()
axes[1, 1].remove()
with plotting.style():
    draw_losses(axes[0, 0])
    draw_differences(axes[1, 0])
    draw_memory(figure.add_subplot(axes[0, 1].get_gridspec()[:, 1]))
plotting.show(
    figure,
    "00-two-runs",
    f"The loss of one batch of {N} falls from {whole[0]:.2f} to {whole[-1]:.2f} in {updates} "
    f"updates. That of {many} lies on it: they differ by less than {ROUNDING} units of rounding, "
    f"as the lower plot shows. The loop that forgets to divide ends at {forgot[-1]:.2f}: it "
    f"{far}. On the right, the memory of one update, as recorded: {stays / 1e6:.2f} MB stay; "
    f"beside them one batch takes {peaks[0] / 1e6:.2f} MB, 8 micro-batches of 32 take "
    f"{peaks[1] / 1e6:.2f} MB. Beside what stays this is {beside:.1f} times less; with it, "
    f"{in_all:.1f} times.",
)

# %% [markdown]
# ## Why it had to be so
#
# Compare your predictions: hardly apart; not settled; less than 8 times, by either count.
#
# The gradient of a sum is the sum of the gradients. Let part $j$ of the batch be any micro-batch
# and $\ell_i$ the loss of sample $i$; then
#
# $$\nabla \frac{1}{N} \sum_{i=1}^{N} \ell_i
#   = \frac{1}{N} \sum_{j=1}^{k} \, \sum_{i \text{ in part } j} \nabla \ell_i .$$
#
# On the right stand $k$ sums of gradients, added up, divided once. It holds for any cut, as
# long as all gradients are taken at the same weights, and as long as $\ell_i$ depends on sample $i$
# alone. Equal means equal in exact arithmetic: on a computer it holds **to rounding**.
#
# The loop that forgets to divide adds up $k$ means of $b$ samples. For even parts this is $k$ times
# the gradient of the batch, so that each update is $k$ times too long. The next cell compares this
# prediction with the gradient of the first update. Where $k$ is small, training may bear it: the
# last line of the cell trains with four parts. There the loss falls as it should, and nothing in
# the curve tells of the fault.


# %%
def gradient(micro_batch_size, norm=None):
    """Of the first batch, as one long vector. `mg.accumulate` is `train_step` without the step."""
    model, _ = start(norm)
    mg.accumulate(model, mg.cross_entropy, next(batches()), micro_batch_size)
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


def gradient_without_dividing(micro_batch_size):
    """The same as `train_without_dividing` makes it."""
    model, _ = start()
    inputs, targets = next(batches())
    for part in mg.micro_batches(N, micro_batch_size):
        mg.cross_entropy(model(inputs[part]), targets[part]).mean().backward()
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


right = gradient(N)
print("   b    k   length of the gradient   of the one that is not divided   ratio")
for size in (256, 128, 32, 8, 1):
    parts = N // size
    g, wrong = gradient(size), gradient_without_dividing(size)
    assert units(right, g) < ROUNDING  # equal to rounding
    assert units(parts * right, wrong) < ROUNDING  # k times as long, in the same direction
    length, wrong_length = np.linalg.norm(g), np.linalg.norm(wrong)
    row = f"{size:4} {parts:4} {length:18.3f} {wrong_length:26.3f}"
    print(f"{row} {wrong_length / length:15.2f}")
assert units(right, gradient(7)) < ROUNDING  # parts that are not even, too

few, _ = train_without_dividing(64)
assert few[-1] < few[0] / 10  # it settles
print(f"4 parts, not divided: the loss falls from {few[0]:.2f} to {few[-1]:.2f}")

# %% [markdown]
# ## What it saves, and what it does not
#
# To compute a gradient, the intermediate results of each sample must be kept until they have been
# used: here mostly 256 numbers between the layers, a few times over, for each of the samples that
# are worked on together. They grow with $b$, not with $N$, and they are all that accumulation
# saves. The weights, their gradient and the optimizer's momentum are as many numbers as ever. What
# a layer's gradient on its way and the optimizer need for a moment does not shrink either. The
# larger of the two, here the optimizer's, is nearly all that is left of the second bar.
#
# Measure it on your machine. `mg.measure_memory` counts bytes: `live` are those that are there at
# its end, `peak` is the most at any moment. In place of 8, let `small` be 4 or 2: nothing more is
# saved.


# %% tags=["volatile"]
def memory_of_an_update(micro_batch_size):
    """Bytes that are there when all is set up; the most that an update takes beside them, and the
    most that its last part takes, the optimizer's.
    """
    with mg.measure_memory() as setup:
        model, optimizer = start()
    batch = next(batches())
    with mg.measure_memory() as step:
        mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
    mg.accumulate(model, mg.cross_entropy, batch, micro_batch_size)  # a gradient to step by
    with mg.measure_memory() as last:
        optimizer.step()
    return setup.live, step.peak, last.peak


small = 8
there, at_once, _ = memory_of_an_update(N)
_, in_parts, _ = memory_of_an_update(32)
_, in_small_parts, by_the_optimizer = memory_of_an_update(small)
print(f"one update takes {at_once:,} bytes at once, {in_parts:,} in micro-batches of 32")
print(f"and {in_small_parts:,} in micro-batches of {small}; the optimizer alone takes")
print(f"{by_the_optimizer:,} for a moment. Accumulation does not save {there:,} bytes:")
print(f"weights, gradient and momentum of {whole_weights.nbytes:,} each, and some objects.")
assert at_once > 3 * in_parts
assert in_small_parts > 0.9 * in_parts
assert by_the_optimizer > 0.8 * in_small_parts
assert 1 <= there / stays < 1.05

# %% [markdown]
# ## Where it fails
#
# Where the loss of a sample depends on the other samples beside it, the batch is no sum over
# samples, and the micro-batches have another gradient. The best known case is BatchNorm, a layer
# that standardizes each of the 256 numbers by its mean and variance over the samples that are
# worked on together. With micro-batches, as in other libraries, this makes a difference that is not
# rounding. minigrad does so if it is asked for `statistics="micro"`; else it takes the statistics
# of the whole batch, by several passes over it, and the two gradients are equal again.

# %%
for statistics in ("micro", "batch"):
    norm = partial(mg.BatchNorm, statistics=statistics)  # BatchNorm, with this choice made
    apart = units(gradient(N, norm=norm), gradient(32, norm=norm))
    if statistics == "micro":
        assert apart * UNIT > 0.05  # different
        print(f"micro: the two gradients are {apart * UNIT:.2f} of their length apart")
    else:
        assert apart < ROUNDING
        print("batch: equal to rounding")

# %% [markdown]
# ## Usual mistakes
#
# - *"The loss went down, so the loop is right."* With four parts it went down in the loop that
#   forgets to divide; lesson [03](03_training_loop.ipynb) shows another. Compare **gradients** with
#   those of one batch.
# - *"The curves differ in the last digit, so something is wrong."* A few units of rounding are the
#   price of adding in another order. Most faults are many powers of ten larger, as in the picture.
# - *"Accumulation approximates the large batch."* It computes its gradient. Where more than
#   rounding is between the two, there is a layer like BatchNorm, or a fault.
# - *"Eight times smaller micro-batches need an eighth of the memory."* Only what grows with $b$
#   shrinks.
# - *"Micro-batches are small batches."* A small batch ends in an update, a micro-batch in an
#   addition. Here there are 30 updates, however small the parts.

# %% [markdown]
# ## What you will be able to do
#
# | lesson | after it you can |
# |---|---|
# | [01 noisy roots](01_stochastic_approximation.ipynb) | find a root by noisy looks |
# | [02 autograd](02_autograd.ipynb) | write an engine for gradients, and say why it adds them |
# | [03 a training loop](03_training_loop.ipynb) | train a small network and explain every line |
# | [04 accumulation](04_accumulation.ipynb) | prove when micro-batches are one batch |
# | [05 sum or mean](05_sum_or_mean.ipynb) | divide by the right number, for uneven parts too |
# | [06 once per update](06_once_per_update.ipynb) | do once what must happen once a window |
# | [07 BatchNorm diverges](07_batchnorm_diverges.ipynb) | say why its parts are no batch |
# | [08 exact BatchNorm](08_exact_batchnorm.ipynb) | make them one, and say the price |
# | [11 noise](11_noise.ipynb) | estimate from windows how large a batch is worth its samples |
# | [12 learning rate](12_learning_rate.ipynb) | choose the rate, and say when not to accumulate |
#
# In each of them: read a cell, **predict** what it prints, run it, and only then read on.
# **Change** what the text suggests, and more; a cell that asserts something will tell you when it
# no longer holds. Then do the [exercises](exercises/00_start_here.ipynb): they say why an answer is
# wrong.
#
# ## In short
#
# - Gradient accumulation: add the gradients of $k$ micro-batches, divide once, make one update.
# - The result is the gradient of the one batch, to rounding, whatever the cut.
# - The loop that forgets to divide has a gradient $k$ times too long.
# - Memory that grows with the micro-batch shrinks; weights, gradient and momentum stay.
# - The micro-batch size is a memory knob, not a maths knob; BatchNorm needs more passes for it.
#
# ## References
#
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986). Learning representations by
#   back-propagating errors. *Nature* 323, 533-536. They accumulate the gradient over all cases.
# - D. Goldberg (1991). What every computer scientist should know about floating-point arithmetic.
#   *ACM Computing Surveys* 23, 5-48. On the unit of rounding.
# - E. Alpaydin, C. Kaynak (1998). *Optical Recognition of Handwritten Digits*. UCI Machine Learning
#   Repository. The digits.
