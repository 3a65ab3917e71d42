# %% [markdown]
# # 12 · A larger batch: now what?
#
# **You will be able to**
#
# 1. say beforehand how far a rate in proportion to the batch carries, and where it must fail;
# 2. change the rate, its warm-up, Adam's betas and the batch itself by a rule, and say what each
#    rule keeps;
# 3. read a comparison of batches, by updates and by samples, and say when accumulation is a waste.
#
# **Needs:** lessons [04](04_accumulation.ipynb) (compared with what?),
# [06](06_once_per_update.ipynb) (schedules) and [11](11_noise.ipynb) (noise, and the critical
# batch). **Reading:** 45 minutes; **exercises:** 45 minutes
# ([12_learning_rate](exercises/12_learning_rate.ipynb)). **Code:**
# [`minigrad/schedules.py`](../minigrad/schedules.py),
# [`minigrad/layerwise.py`](../minigrad/layerwise.py).

# %% [markdown]
# ## Two questions in one
#
# You accumulate. The batch is now $k$ times as large: $N = kb$ samples, $b$ at a time. ($N$ is a
# batch again, as in lesson 04; lesson 11 called it $B$.) What about the learning rate? And the
# number of updates? As in lesson 04, first ask: compared with what?
#
# **With the true batch of $N$:** nothing changes, under the conditions of lesson 04. With $k = N/b$
# the same rate, the same schedule and the same betas give the same run. There is nothing to tune,
# and nothing to match. Lesson 04 settled it for SGD; the next cell does it again, with a schedule,
# for SGD, Adam and the two optimizers that end this lesson, LARS and LAMB.
#
# **With the small batch of $b$** that you had before: now it is another algorithm. It is not
# accumulation that makes it so: who buys a machine with memory for $N$ meets the same question. It
# is the question of this lesson, and from here on $k$ is the factor by which the batch grows.
#
# One answer needs no theory: at equal samples, $k$ times fewer updates are made.
#
# **Before you run the next cell:** 8 epochs of 1536 digits. How many updates are made by a batch of
# 8, and by one of 1024? How many of them in the first epoch?

# %%
import math
import warnings
from fractions import Fraction

import numpy as np

import minigrad as mg
from minigrad import plotting, rates
from minigrad.data import digits, measured
from minigrad.reading import show_source

(images, labels), _ = digits(np.float64)
epochs, epoch = 8, len(images)


def weights_after(make, micro_batch_size, N=256, updates=18):
    """All weights after some updates with batches of N digits."""
    model = mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)
    optimizer = make(model.parameters(), mg.warmup(mg.cosine(0.1, updates), 3))
    for update in range(updates):
        rows = np.arange(update * N, (update + 1) * N) % epoch
        batch = images[rows], labels[rows]
        mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
    return np.concatenate([p.data.ravel() for p in model.parameters()])


print("18 updates of batches of 256: as they are, and as k = 8 micro-batches of 32")
for make in (mg.SGD, mg.Adam, mg.LARS, mg.LAMB):
    whole, parts = weights_after(make, 256), weights_after(make, 32)
    assert np.linalg.norm(parts - whole) < 1e-12 * np.linalg.norm(whole)  # rounding
    print(f"  {make.__name__:5} the same rate: equal (< 1e-12)")

print(f"\n{epochs} epochs of {epoch} digits\nbatch      k    updates    in the first epoch")
for batch in rates.BATCHES:
    k, updates = batch // 8, epochs * epoch // batch
    assert updates * k == epochs * epoch // 8  # k times fewer than with 8
    print(f"{batch:5} {k:6} {updates:10} {epoch / batch:14g}")

# %% [markdown]
# ## One long step, or k short ones
#
# The loss $\frac{h}{2} w^2$ of lesson 04 has the gradient $h w$ and the second derivative $h$, its
# **curvature**. One update with the rate $\mathrm{lr}$ multiplies $w$ by $1 - \mathrm{lr}\, h$. So
# $k$ small batches make it $(1 - \mathrm{lr}\, h)^k$, and one large batch, with the rate in
# proportion, $1 - k\, \mathrm{lr}\, h$. To first order they are the same. This is **linear
# scaling**: the rate grows as the batch does (Krizhevsky 2014; Goyal et al. 2017). It is no theorem
# but a first order, good while $k\, \mathrm{lr}\, h$ is small. Beyond $k\, \mathrm{lr}\, h = 2$
# each update leads away from the minimum.
#
# Now the noise. The gradient of a batch of $b$ is $h w$ plus noise of mean 0 and variance $s^2/b$,
# new in each update. Over many runs $w$ has a variance, and an update takes it from $v$ to
# $(1 - \mathrm{lr}\, h)^2 v + \mathrm{lr}^2 s^2 / b$. It comes to rest where the two are equal:
#
# $$v = \frac{\mathrm{lr}}{b} \cdot \frac{s^2}{h\,(2 - \mathrm{lr}\, h)} .$$
#
# Linear scaling keeps the first factor, $\mathrm{lr}/b$, and with it the noise. Only the bracket
# notices: the variance grows by the factor $\frac{2 - \mathrm{lr}\, h}{2 - k\, \mathrm{lr}\, h}$,
# nearly 1 at first, and endless at $k\, \mathrm{lr}\, h = 2$.
#
# **Before you run the next cell:** let $\mathrm{lr}\, h = 1/100$. For $k = 8$, 64 and 200: does the
# long step end near the $k$ short ones? By which factor does the variance grow?

# %%
h, s2, b = 1, 1, 1
lr = Fraction(1, 100)  # change it to 1/50: which rows stay good?
factors = (1, 2, 4, 8, 16, 64, 128, 190, 200, 256)


class Line(mg.Module):
    """outputs = w + x: half of its square has the curvature h = 1."""

    def __init__(self, w):
        self.w = mg.parameter(mg.fractions([w]))

    def forward(self, x):
        return self.w + x


def half_square(outputs, *_):
    return mg.per_sample(outputs * outputs * Fraction(1, 2))


def one_update(rate, k):
    """w after one update from 1, by a batch of k samples without noise; exact."""
    model, x = Line(1), mg.fractions(np.zeros(k))
    mg.train_step(model, half_square, mg.SGD(model.parameters(), rate), (x, x), 1)
    return model.w.data[0]


def spread_at_rest(rate, batch, walkers=4000, updates=400):
    """The variance of w over many walks, long after the start."""
    rng, w = np.random.default_rng(0), np.zeros(walkers)
    for _ in range(updates):
        w -= float(rate) * (h * w + rng.standard_normal(walkers) * (s2 / batch) ** 0.5)
    return w.var()


quiet = mg.stationary_variance(lr, h, Fraction(s2, b))
assert quiet == lr / b * s2 / (h * (2 - lr * h))  # the formula
ratios, walked = {}, {}
print("   k   k lr h   k short steps   one long step   noise, predicted   walked")
for k in factors:
    rate = mg.linear_scaling(lr, b, k * b)
    long, short = one_update(rate, k), (1 - lr * h) ** k
    assert long == 1 - k * lr * h  # exact
    assert long <= short  # the long step always goes farther
    row = f"{k:4} {float(k * lr * h):8.2f} {float(short):15.4f} {float(long):15.4f}"
    if rate * h < 2:
        ratios[k] = mg.stationary_variance(rate, h, Fraction(s2, k * b)) / quiet
        assert ratios[k] == (2 - lr * h) / (2 - k * lr * h)  # exact
        walked[k] = spread_at_rest(rate, k * b) / float(quiet)
        assert abs(walked[k] / ratios[k] - 1) < 0.12  # 4000 walks
        print(f"{row} {float(ratios[k]):18.4f} {walked[k]:8.2f}")
    else:
        assert abs(long) >= 1  # no nearer than at the start
        print(f"{row}      it does not come to rest")

figure, (left, right) = plotting.subplots(1, 2, height=3.6)
reach = np.linspace(0, 2.5, 300)  # k lr h
far = {k: float(k * lr * h) for k in factors}
left.plot(reach, 1 - reach, color=plotting.BLUE, label="one long step")
left.plot(list(far.values()), [1 - x for x in far.values()], "o", color=plotting.BLUE, ms=5)
short = (1 - float(lr * h)) ** (reach / float(lr * h))
left.plot(reach, short, color=plotting.ORANGE, ls=plotting.LINES[1], label="k short steps")
for k, x in far.items():
    if 0.5 < x < 2:
        left.text(x - 0.06, 0.9 - x, f"k = {k}", color=plotting.BLUE, ha="right")
left.axhline(0, color=plotting.DARK, lw=0.8)
left.set(ylabel="w, from 1", title="Where it ends", ylim=(-1.7, 1.1))
left.legend(loc="lower left")
below = reach[reach < 1.99]
right.plot(below, (2 - float(lr * h)) / (2 - below), color=plotting.BLUE, label="predicted")
dots = [far[k] for k in walked], list(walked.values())
right.plot(*dots, "o", color=plotting.ORANGE, ms=5, label="4000 walks")
right.set(yscale="log", ylim=(0.7, 60), title="Variance of w at rest, over that of k = 1")
right.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
right.minorticks_off()
right.legend(loc="upper left")
for panel, height in ((left, 0.8), (right, 6)):
    panel.axvspan(2, 2.5, color=plotting.RED, alpha=0.12, lw=0)
    panel.set(xlabel="k · lr · h", xlim=(0, 2.5))
    panel.text(2.25, height, "diverges", color=plotting.RED, rotation=90, ha="center", va="center")
loudest = max(ratios)
plotting.show(
    figure,
    "12-long-step",
    f"A rate in proportion to the batch, lr h = {lr}. Left: at k = 8 one long step ends at "
    f"{1 - far[8]:.3f}, eight short ones at {(1 - far[1]) ** 8:.3f}; at k = 64 at "
    f"{1 - far[64]:.2f} and {(1 - far[1]) ** 64:.2f}. Right: the noise grows by "
    f"{100 * float(ratios[8] - 1):.1f} percent at k = 8, by {100 * float(ratios[64] - 1):.0f} at "
    f"64, and {float(ratios[loudest]):.1f} times at {loudest}. Both fail at one place, k lr h = 2.",
)

# %% [markdown]
# A loss has many curvatures, one for each direction, and one rate for all. The flat directions
# would like it larger and larger, and the steepest decides: $k\, \mathrm{lr}$ must stay below
# $2/h$ with the largest $h$. That number does not know the batch.
#
# ## The same question, on digits
#
# `minigrad rates` ([rates.py](../minigrad/rates.py)) trains a net with one hidden layer on the
# digits, by SGD without momentum, for 8 epochs, with batches of 8 up to 1024. Let 32 be what fits:
# larger batches are accumulated. All of them see the same samples in the same order. There are two
# rules:
#
# - **the same rate**, 1/32, for every batch: one accumulates and leaves the rest as it is;
# - **in proportion**: 1/32 for 8, 1/16 for 16 and so on, after a warm-up over the first epoch (of
#   which below).
#
# Ten seeds of each, in float32, are on record. The next cell looks at it, and runs some of it
# again, in float64. It is one small net with numbers of its own; what carries over is how to ask.
#
# **Before you run the next two cells:** each rule is drawn twice, the loss against updates and the
# loss against samples. In which two of the four panels do the batches share one curve?

# %%
record = measured("rates")
drawn = {8: plotting.BLUE, 32: plotting.ORANGE, 128: plotting.PURPLE, 512: plotting.RED}
RULES = {
    "kept": lambda batch: rates.RATE,
    "linear": lambda batch: mg.warmup(rates.scaled(batch), max(1, epoch // batch)),
}


def train(make, batch_at, seed=0, samples=epochs * epoch, micro_batch_size=rates.MICRO):
    """The net, and (samples, updates, loss) at each 1024th sample and at the end.

    make(parameters) is the optimizer, batch_at(updates) the size of the next batch.
    """
    rng = np.random.default_rng(seed)
    model = mg.MLP(*rates.SIZES, rng=rng, dtype=np.float64)
    optimizer, seen, looks = make(model.parameters()), 0, []
    order = np.concatenate([rng.permutation(epoch) for _ in range(epochs)])[:samples]
    while seen < samples:
        rows = order[seen : seen + batch_at(optimizer.updates)]
        batch = images[rows], labels[rows]
        mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
        seen += len(rows)
        if seen % 1024 == 0 or seen == samples:
            looks.append((seen, optimizer.updates, rates.loss(model, images, labels)))
    return model, np.array(looks)


def sgd(rate):
    return lambda parameters: mg.SGD(parameters, rate)


def always(batch):
    return lambda updates: batch


again = {}  # (rule, batch): (model, looks)
for rule, batches in (("kept", (128, 512)), ("linear", (32, 128, 512))):
    for batch in batches:
        again[rule, batch] = train(sgd(RULES[rule](batch)), always(batch))
        end, recorded = again[rule, batch][1][-1, 2], rates.of(record[rule], batch)["end"][0]
        assert abs(end / recorded - 1) < 0.01  # float64 here, float32 there
        print(f"{rule:6} batch {batch:3}: loss at the end {end:.3f}, on record {recorded:.3f}")

kept, linear = ({one["batch"]: one for one in record[rule]} for rule in ("kept", "linear"))
made = rates.SAMPLES // 128  # updates of a batch of 128
alike = kept[128]["mean"][-1], kept[8]["mean"][kept[8]["samples"].index(8 * made)]
assert abs(alike[0] - alike[1]) < 0.1  # at one rate: alike after as many updates,
assert kept[128]["mean"][-1] > 8 * kept[8]["mean"][-1]  # and far apart after as many samples
assert abs(linear[128]["mean"][-1] - linear[8]["mean"][-1]) < 0.02  # in proportion: alike
assert linear[512]["mean"][-1] > 1

# %%
figure, panels = plotting.subplots(2, 2, height=6.4, sharey=True)
titles = f"The same rate, 1/{1 / rates.RATE:g}", "In proportion to the batch"
for rule, title, (by_updates, by_samples) in zip(RULES, titles, panels):
    for (batch, colour), style in zip(drawn.items(), plotting.LINES):
        one = rates.of(record[rule], batch)
        mean, spread = np.array(one["mean"]), np.array(one["spread"])
        for panel, unit in ((by_updates, batch), (by_samples, 1)):
            x = np.array(one["samples"]) / unit
            panel.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
            panel.plot(x, mean, color=colour, ls=style, label=f"{batch}")
            if (rule, batch) in again:
                looks = again[rule, batch][1]
                panel.plot(looks[:, 0] / unit, looks[:, 2], "o", mfc="white", mec=colour, ms=4.5)
    by_updates.set(title=f"{title}: against updates", ylabel="training loss", xlabel="updates")
    by_samples.set(title="against samples", xlabel="samples")
for by_updates, by_samples in panels:
    by_updates.set(xscale="log", xlim=(0.4, 2000))
    by_updates.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    by_samples.set_xlim(0, rates.SAMPLES * 1.02)
    by_samples.set_xticks([0, 4000, 8000, 12000])
for panel in panels.flat:
    panel.set(yscale="log", ylim=(0.14, 3.2))
    panel.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    panel.minorticks_off()
panels[0, 0].legend(title="batch", loc="lower left")
plotting.show(
    figure,
    "12-two-rules",
    f"Mean of ten seeds (band: their standard deviation); circles: run again, seed 0. Above: at "
    f"one rate the batches share the curve against updates. After {made} updates 128 is at "
    f"{alike[0]:.2f} and 8 at {alike[1]:.2f}; with all samples 8 comes to "
    f"{kept[8]['mean'][-1]:.2f}. Below: in proportion they share the curve against samples, 8 ends "
    f"at {linear[8]['mean'][-1]:.2f} and 128 at {linear[128]['mean'][-1]:.2f}, except that 512 "
    f"fails, at {linear[512]['mean'][-1]:.2f}.",
)

# %% [markdown]
# At one rate, an update is worth about the same here, whatever its batch, and each update of the
# larger batch costs $k$ times the samples. Who accumulates and keeps rate and epochs ends where the
# small batch was after a $k$-th of its updates. In proportion, a *sample* is worth the same, as
# long as the rule holds. So always say which of the two is equal.
#
# And then the rule fails. The theory says where: not at a batch, but at a rate, $2/h$. The largest
# curvature of a net can be measured, from differences of gradients: `rates.sharpness` does it. But
# a net is no parabola, and $h$ changes while it learns. The record has it for the ends of the ten
# runs of batch 8.
#
# **Before you run the next cell:** in proportion, 512 has the rate 2, and fails. Does a batch of 8
# survive this rate? Does 512 fail at half of it?

# %%
h_net = np.mean(record["sharpness"])
limit = 2 / h_net
holds = rates.held(record["linear"])
fails = rates.BATCHES[len(holds)]
last, first = rates.scaled(holds[-1]), rates.scaled(fails)
print(f"largest curvature {h_net:.2g}: predicted limit of the rate {limit:.2g}")
print(f"in proportion holds up to batch {holds[-1]}, rate {last:g}; not at {fails}, rate {first:g}")
assert last < 1.2 * limit
assert first > 1.5 * limit
curvature = rates.sharpness(again["linear", 32][0])  # here and now, where batch 32 has ended
assert min(record["sharpness"]) < curvature < max(record["sharpness"])

wild = rates.scaled(512)
small = train(sgd(wild), always(8), samples=epoch)[1][-1, 2]
tame = train(sgd(wild / 2), always(512), micro_batch_size=512)[1][-1, 2]
assert small > 1.5  # it is the rate that fails, whatever the batch
assert tame < 1.2
print(f"rate {wild:g}, batch 8, one epoch:  the loss is above 1.5 (guessing: {math.log(10):.2f})")
print(f"rate {wild / 2:g}, batch 512, 8 epochs: the loss is below 1.2")

beyond, looks = train(sgd(wild / 2), always(128), micro_batch_size=128)
wide = rates.sharpness(beyond)
assert wild / 2 > 1.5 * limit
assert looks[-1, 2] < min(linear[128]["end"])  # beyond the limit, and lower than in proportion:
assert wide < min(record["sharpness"])  # it has gone where the loss is less curved
bounds = f"below {min(linear[128]['end']):.2f}, the curvature below {min(record['sharpness']):.1f}"
print(f"rate {wild / 2:g}, batch 128, 8 epochs: the loss is {bounds}")

figure, axis = plotting.subplots(height=3.3)
reference = linear[8]["end"]
low, high = np.mean(reference) + 2 * np.std(reference, ddof=1) * np.array([-1, 1])
axis.axhspan(low, high, color=plotting.BLUE, alpha=0.15, lw=0)
for rule, colour, look, name in (
    ("kept", plotting.GREY, "s--", "the same rate"),
    ("linear", plotting.BLUE, "o-", "in proportion"),
):
    ends = np.array([one["end"] for one in record[rule]])
    means, spread = ends.mean(axis=1), ends.std(axis=1, ddof=1)
    axis.errorbar(rates.BATCHES, means, spread, color=colour, fmt=look, ms=5, label=name)
line = 8 * limit / rates.RATE
axis.axvline(line, color=plotting.RED, ls=":")
axis.text(line / 1.06, 0.4, "predicted end: k lr h = 2", color=plotting.RED, ha="right")
axis.set(xscale="log", yscale="log", ylim=(0.14, 3.2), xlabel="batch", ylabel="loss at the end")
axis.set_xticks(rates.BATCHES, rates.BATCHES)
axis.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
axis.minorticks_off()
axis.legend(loc="upper left")
plotting.show(
    figure,
    "12-where-it-ends",
    f"The loss after {rates.SAMPLES} samples, mean and standard deviation of ten seeds. In "
    f"proportion it stays within two standard deviations of that of 8 (band) up to {holds[-1]}. "
    f"The curvature at the ends of the runs of 8, {h_net:.1f}, predicts the end of the rule at a "
    f"rate of {limit:.2f}, which is a batch of {line:.0f} (dotted).",
)

# %% [markdown]
# The rule had room here because the small batch began far below the limit. Who trains the small
# batch near $2/h$ already has none.
#
# And the limit is no wall. At twice the rate, nearly twice the limit, batch 128 ended *lower* than
# in proportion, at a place where the loss is less curved than where 8 ends: thrown out of a narrow
# valley, a net may find a wider one, whose own $2/h$ is larger. (Cohen et al. 2021 saw nets,
# trained with all samples in each batch, end where $2/h$ is about the rate.) At about four times
# the limit it no longer does. So $2/h$ says where *the rule* ends, to a factor of about 2, and not
# which rate is best.
#
# ## Warm-up, counted in updates; and a rule used twice
#
# At the start of training the gradient changes fast, and linear scaling asks for the contrary.
# **Warm-up** grows the rate over the first updates. Goyal et al. (2017) needed it for their large
# batches: from the small batch's rate to $k$ times that, over 5 epochs. (`mg.warmup` over $n$
# updates begins at an $n$-th of the full rate.) On our small net it does not help: without it the
# rule holds up to the same batch. The cell asks the record.
#
# A warm-up is meant in *epochs* and written in *updates*, of which a larger batch has $k$ times
# fewer in an epoch. Who moves the schedule once a micro-batch reaches the full rate as many
# times too soon as an update has micro-batches; minigrad's optimizers count their own updates
# (lesson 06).
#
# And the rule is for the *mean* of the batch. The gradient of the batch's **sum** has grown $k$
# times already, and so the rate for it must not.
#
# **Before you run the next cell:** a rate of $1/256$ was right for the *sum* over 8 samples. Now 64
# samples are accumulated, with the sum loss again. Which rate is linear scaling?

# %%
cold = rates.held(record["cold"])
print(f"in proportion holds up to batch {holds[-1]} with warm-up, and up to {cold[-1]} without")
assert cold[-1] == holds[-1]

b, k, small_rate = 32, 4, 1 / 8
full, updates = mg.linear_scaling(small_rate, b, k * b), epoch // (k * b)
rate = mg.warmup(full, updates)
print(f"\nbatch {b}, rate {small_rate:g} -> batch {k * b}, rate {full:g} after {updates} updates")
shown = (0, 1, 2, 3, 5, 8, updates - 1)
print(f"{'update':20}" + "".join(f"{update:7}" for update in shown))
for name, counts in (("once per update", 1), ("once per micro-batch", k)):
    print(f"{name:20}" + "".join(f"{rate(update * counts):7.3f}" for update in shown))
assert rate(updates - 2) < rate(updates - 1) == full  # reached with the epoch
assert rate(3 * k) == full  # counted in micro-batches, with the fourth update


def layer_after(rate, reduction):
    """A layer after one update by 64 digits, from zero weights."""
    layer = mg.Linear(64, 10, dtype=np.float64)
    layer.weight.data[...] = 0
    batch = images[:64], labels[:64]
    optimizer = mg.SGD(layer.parameters(), rate)
    mg.train_step(layer, mg.cross_entropy, optimizer, batch, 8, reduction=reduction)
    return layer.weight.data


right = layer_after(mg.linear_scaling(1 / 32, 8, 64), "mean")  # 1/32 for the mean of 8
as_it_is = layer_after(1 / 256, "sum")  # is 1/256 for their sum
twice = layer_after(mg.linear_scaling(1 / 256, 8, 64), "sum")
assert np.allclose(as_it_is, right, rtol=1e-12, atol=1e-15)
assert np.allclose(twice, 8 * right, rtol=1e-12, atol=1e-15)
print("\nsum loss: the rate as it is goes as far as linear scaling; scaled too, k = 8 times as far")

# %% [markdown]
# ## Adam: the square root
#
# Adam divides by the gradient's usual size. Where gradients are mostly noise, that size shrinks as
# $1/\sqrt{N}$, so that a larger batch makes Adam's step longer *by itself*. Take the extreme, the
# sign of the gradient, which is Adam's step with betas and `eps` of 0. With mean $\mu$, and normal
# noise of variance $s^2$ a sample, a batch of $N$ has
#
# $$E[\operatorname{sign} g] = \operatorname{erf}\!\left(\frac{\mu \sqrt{N}}{s \sqrt{2}}\right),$$
#
# where $\operatorname{erf}$ (`math.erf`) is the curve from $-1$ to 1 that belongs to the normal
# distribution, near 0 a line. So the mean sign grows as $\sqrt{N}$ until about $N = s^2/\mu^2$, the
# noise scale of lesson 11, and then levels off at 1. SGD's mean step is $\mu$, whatever the batch.
#
# A rule for the rate should keep two things *per sample*: the drift (the mean step over $N$) and
# the noise (its variance over $N$). For SGD both stay if the rate grows as $k$. For the sign, far
# below the noise scale, both stay if it grows as $\sqrt{k}$: the **square-root rule**, which
# Malladi et al. (2022) derive for Adam, where noise outweighs the gradient.
#
# Adam's averages must follow. A beta forgets by updates, of which there are now fewer. Malladi's
# rule takes $1 - k(1 - \beta)$; to hold the half-life *in samples* (after how many of them an
# average has forgotten half of what it held), which Marek et al. (2025) propose for the second
# beta, takes $\beta^k$. They agree to first order.
#
# **Before you run the next cell:** $\beta = 999/1000$ and $k = 8$. By how much do the two differ?
# And at $k = 1000$?

# %%
mu = 1 / 100  # over s: the noise scale is 10,000


def mean_sign(N):
    return math.erf(mu * math.sqrt(N / 2))


rng = np.random.default_rng(0)
print("samples    E sign g    counted")
for N in (1, 4, 16, 64, 1024, 16384, 262144):
    draws = np.sign(mu + rng.standard_normal(400_000) / math.sqrt(N))
    assert abs(draws.mean() - mean_sign(N)) < 0.01
    print(f"{N:7} {mean_sign(N):11.5f} {draws.mean():10.3f}")
for N in (1, 4, 16):
    assert abs(mean_sign(4 * N) / mean_sign(N) - 2) < 0.01  # the square-root law

k, N = 16, 4
grown = mean_sign(k * N) / mean_sign(N)  # the mean step
shrunk = (1 - mean_sign(k * N) ** 2) / (1 - mean_sign(N) ** 2)  # its variance
print(f"\nk = {k}; per sample, against the small batch:    drift     noise")
per_sample = {}
for name, drift, noise in (("SGD", 1, 1 / k), ("sign", grown, shrunk)):
    for rule, factor in (("k", k), ("sqrt(k)", math.sqrt(k))):
        per_sample[name, rule] = found = factor * drift / k, factor**2 * noise / k
        print(f"  {name:5} rate times {rule:24}{found[0]:9.3f} {found[1]:9.3f}")
for name, rule, other in (("SGD", "k", "sqrt(k)"), ("sign", "sqrt(k)", "k")):
    assert np.allclose(per_sample[name, rule], 1, atol=0.01)  # kept
    assert not np.allclose(per_sample[name, other], 1, atol=0.5)

print("\n   k    1 - k (1 - beta)    beta^k")
for k in (2, 8, 64, 256, 1000):
    straight, half_life = 1 - k * (1 - 0.999), mg.constant_half_life(0.999, 1, k)
    assert half_life > straight
    print(f"{k:4} {max(straight, 0):19.6f} {half_life:9.6f}")
adam = mg.square_root_scaling(1e-3, 32, 256)  # betas 0.9 and 0.999
assert np.allclose([adam["lr"], *adam["betas"]], [1e-3 * math.sqrt(8), 0.2, 0.992])
assert abs(mg.constant_half_life(0.999, 32, 256) - 0.992) < 3e-5
assert abs(mg.constant_half_life(0.95, 512, 1) - 0.9999) < 1e-5  # the examples of Marek et al.
assert abs(mg.constant_half_life(0.95, 16, 1) - 0.997) < 5e-4

print("\nAdam on digits: loss at the end, mean of two seeds")
powers, best = (-6, -5, -4, -3), {}
print("batch" + "".join(f"{f'2^{power}':>8}" for power in powers))
for batch in (64, 1024):
    ends = []
    for power in powers:
        make = lambda parameters, lr=2.0**power: mg.Adam(parameters, lr)  # noqa: E731
        runs = [train(make, always(batch), seed, micro_batch_size=batch)[1] for seed in (0, 1)]
        ends.append(np.mean([looks[-1, 2] for looks in runs]))
    best[batch] = 2.0 ** powers[int(np.argmin(ends))]
    print(f"{batch:5}" + "".join(f"{end:8.3f}" for end in ends))
print(f"the best rate grows {best[1024] / best[64]:g} times, by the rule {math.sqrt(1024 / 64):g}")
assert best[1024] / best[64] < math.sqrt(1024 / 64)

# %% [markdown]
# The square root is the law of *noise*. Where the signal rules, the sign has its full length at any
# batch, and the rate would have to grow as $k$. Real training has some of both, and a limit above:
# on our digits the best of four rates, a factor of 2 apart, grew less than either law says. Marek
# et al. (2025) found a factor of 3 where the batch grew a thousandfold. Shallue et al. (2019) tuned
# SGD with and without momentum at each batch, for many nets: the best rate followed neither law
# reliably. A rule says where to begin the search, and what must move together. It does not replace
# the search.
#
# ## Grow the batch in place of decaying the rate
#
# The noise at rest goes with $\mathrm{lr}/b$. Training often ends with a decaying rate, to let it
# settle. But that ratio can fall in two ways. Smith et al. (2018) grow the batch instead, and find
# the same curve against samples, in fewer updates. With accumulation this takes no more memory: the
# micro-batch stays as it is, and the number of micro-batches grows.
#
# `mg.step_growth` is a schedule for the batch. The cell runs it beside `mg.step_decay`, both by a
# factor of 2 after each two epochs, on two seeds. **Before you run it:** which fraction of the
# updates is left? Which of the two ends lower?

# %%
b, lr, stage = 32, 1, 2 * epoch  # change b to 16 and lr to 1/2
grow = mg.step_growth(b, 2, stage, largest=8 * b)
ways = {  # name: (rate, batch)
    "neither": (lr, always(b)),
    "the rate decays": (mg.step_decay(lr, 1 / 2, stage // b), always(b)),
    "the batch grows": (lr, grow),
}
curves = {
    name: [train(sgd(rate), batch_at, seed, micro_batch_size=b)[1] for seed in (0, 1)]
    for name, (rate, batch_at) in ways.items()
}
made = {name: int(seeds[0][-1, 1]) for name, seeds in curves.items()}
ends = {name: np.array([looks[-1, 2] for looks in seeds]) for name, seeds in curves.items()}
for name in ways:
    print(f"{name:16} {made[name]:4} updates, loss at the end, two seeds: {ends[name].round(4)}")
sizes = [b * 2**i for i in range(epochs // 2)]
starts = np.cumsum([0, *(stage // size for size in sizes[:-1])])
assert [grow(int(update)) for update in starts] == sizes
assert made["the batch grows"] == sum(stage // size for size in sizes)
assert np.all(abs(ends["the batch grows"] / ends["the rate decays"] - 1) < 0.03)
assert made["the batch grows"] < made["the rate decays"] / 2
for decayed, grown, jumping in zip(*(curves[name] for name in list(ways)[1:] + list(ways)[:1])):
    assert np.allclose(grown[:, 2], decayed[:, 2], rtol=0.3)  # at each look: about the same curve
    assert max(jumping[1:, 2] / jumping[:-1, 2]) > 1.5  # neither: up again by half and more
    assert max(decayed[1:, 2] / decayed[:-1, 2]) < 1.1

figure, panels = plotting.subplots(1, 2, height=3.6, sharey=True)
looks_of = zip(curves.items(), (plotting.GREY, plotting.ORANGE, plotting.BLUE), "s^o")
for ((name, seeds), colour, marker), style in zip(looks_of, plotting.LINES[2::-1]):
    for seed, looks in enumerate(seeds):
        samples, updates, losses = looks.T
        for panel, x in zip(panels, (samples, updates)):
            label = name if seed == 0 else None
            panel.plot(x, losses, color=colour, ls=style, lw=1.5, marker=marker, label=label)
for panel, unit in zip(panels, ("samples", "updates")):
    panel.set(yscale="log", xlabel=unit, title=f"against {unit}", ylim=(0.03, 3))
    panel.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
    panel.minorticks_off()
panels[0].set_ylabel("training loss")
panels[0].legend(loc="upper right")
caption = (
    f"SGD from a rate of {lr:g} and a batch of {b}, two seeds. After each two epochs the rate is "
    f"halved, or the batch doubled. Against samples the two lie on each other, and end at "
    f"{ends['the rate decays'].mean():.3f} and {ends['the batch grows'].mean():.3f}; but the "
    f"growing batch makes {made['the batch grows']} updates in place of "
    f"{made['the rate decays']}. With neither, the loss keeps jumping: where it ends is luck."
)
plotting.show(figure, "12-growing-batch", caption)

# %% [markdown]
# ## When accumulation is a waste
#
# So a good rule makes a larger batch *as good* per sample. Can it be better? To be fair, give each
# batch the rate that is best for it. The record has, for each, the number of samples until the
# training loss is at a target, at the fastest of five rates, a factor of 2 apart, that were tried
# on other seeds (the loss is looked at each 256 samples). Lesson 11 says what to expect, with the
# critical batch $N_c$: samples grow as $1 + N/N_c$, updates fall as $1 + N_c/N$. By this law a
# larger batch never needs fewer samples. It needs fewer updates.
#
# So look at what they cost. Let an update cost as much as $c$ samples: if several devices must
# first add up their gradients, say, or the optimizer's averages lie in a slower memory.
#
# **Before you run the next cell:** 32 samples fit. Is it worth while to accumulate for $c = 0$? And
# for $c = 1000$?

# %%
tuned, costs = record["best"], (0, 10, 100, 1000)
batches = np.array([one["batch"] for one in tuned])
needed = np.array([np.mean(one["reached"]) for one in tuned])  # samples
made = needed / batches  # updates
assert np.all(np.diff(needed) > 0)  # the larger the batch, the more samples
assert np.all(np.diff(made) < 0)  # and the fewer updates

# needed = least (1 + N / N_c) is a straight line in N; fitted to relative errors.
rows = np.stack([1 / needed, batches / needed], axis=1)
least, slope = np.linalg.lstsq(rows, np.ones(len(batches)), rcond=None)[0]
critical = least / slope
fitted = np.array([least * mg.trade_off(batch, critical).samples for batch in batches])
assert np.allclose(needed, fitted, rtol=0.2)

cost = np.array([[np.mean(rates.cost(one, c)) for c in costs] for one in tuned])
assert np.allclose(cost, needed[:, None] + np.outer(made, costs))  # samples + c updates
cheapest = dict(zip(costs, batches[cost.argmin(axis=0)].tolist()))
print(f"to a training loss of {rates.TARGET}, at the best rate; a critical batch of {critical:.0f}")
print("batch   rate   samples   by the law   updates" + "".join(f"{f'c = {c}':>11}" for c in costs))
for i, one in enumerate(tuned):
    print(f"{batches[i]:5} {one['rate']:6g} {needed[i]:9.0f} {fitted[i]:12.0f}", end="")
    stars = ["*" if batches[i] == cheapest[c] else " " for c in costs]
    print(f" {made[i]:9.0f}" + "".join(f"{all_:10.0f}{star}" for all_, star in zip(cost[i], stars)))
assert cheapest[0] == batches[0]  # updates for nothing: the smallest batch
assert cheapest[1000] > rates.MICRO  # dear updates: accumulate

own, four = (rates.of(tuned, batch) for batch in (rates.MICRO, 4 * rates.MICRO))
worse, error = rates.paired(own["end"], four["end"])
assert worse > error > 0  # with all samples it ends higher, by more than two standard errors
i, j = (list(batches).index(one["batch"]) for one in (own, four))
even = (needed[j] - needed[i]) / (made[i] - made[j])
print(f"\n4 x 32 accumulated, with all samples and at these rates, ends {worse:.3f} higher than 32")
print(f"to the target it pays where an update costs more than {even:.0f} samples")

figure, (left, right) = plotting.subplots(1, 2, height=3.7)
fine = np.geomspace(batches[0], batches[-1], 100)
law = np.array([least * mg.trade_off(batch, critical).samples for batch in fine])
for values, curve, colour, style, marker, name in (
    (needed, law, plotting.BLUE, plotting.LINES[0], "o", "samples"),
    (made, law / fine, plotting.ORANGE, plotting.LINES[1], "s", "updates"),
):
    left.plot(fine, curve, color=colour, ls=style, lw=1.6)
    left.plot(batches, values, marker, color=colour, ms=6)
    left.text(batches[2], values[2] * 1.35, name, color=colour, ha="right")
left.set(title=f"Needed for a loss of {rates.TARGET}; lines: the law", ylim=(20, 20000))
for c, row, colour, style, marker in zip(costs, cost.T, plotting.COLOURS, plotting.LINES, "osD^"):
    right.plot(batches, row / row.min(), color=colour, ls=style, marker=marker, label=f"c = {c}")
    right.plot(batches[row.argmin()], 1, marker, color=colour, ms=12, mfc="none")
right.set(title="Cost, over that of the best batch (ringed)", ylim=(0.9, 13))
right.legend(loc="upper center", ncols=2)
for panel in (left, right):
    panel.set(xscale="log", yscale="log", xlabel="batch")
    panel.set_xticks(batches, batches)
    panel.minorticks_off()
left.set_yticks([100, 1000, 10000], ["100", "1000", "10000"])
right.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
plotting.show(
    figure,
    "12-waste",
    f"Left: what it takes to the target; lines: the law of lesson 11 with a critical batch of "
    f"{critical:.0f}. From {batches[0]} to {batches[-1]} the samples grow "
    f"{needed[-1] / needed[0]:.1f} times and the updates fall {made[0] / made[-1]:.1f} times. "
    f"Right: what it costs, if an update costs c samples: the best batch is {cheapest[0]} for "
    f"c = 0, {cheapest[10]} for 10 and {cheapest[1000]} for 1000; for 100, {cheapest[100]} is best "
    f"and 32 within {100 * (cost[i, 2] / cost[:, 2].min() - 1):.0f} percent of it.",
)

# %% [markdown]
# **Accumulation is a waste** where an update costs little beside its samples: one device, an
# optimizer in its memory, a loss that is a sum over samples. Then the same samples go farther in
# more, smaller updates. Wilson and Martinez said so in 2003 of batches of a whole epoch, Marek et
# al. in 2025 of language models: take the smallest batch that keeps the machine busy. (That is a
# matter of $b$: below some size, a machine gains nothing from a smaller one.)
#
# **It pays** where
#
# - an update is dear: gradients must travel between devices, which is the exception that Marek et
#   al. make, or the optimizer's averages must;
# - the method wants a large batch: a published recipe that is to be repeated, or a contrastive loss
#   or BatchNorm, whose samples look at each other. For these two plain accumulation is not enough;
#   it takes the exact ways of lesson 08;
# - what is left is noise: late in training, when the critical batch has grown above $b$.
#
# ## "Small batches make training unstable"
#
# This is often given as the reason to accumulate. A small batch is *noisier*; by how much, lesson
# 11 says. The record has batches of 1, 8 and 64 after one epoch, with rates in proportion, 1 at two
# larger rates, and the *scatter*: how far the losses of single updates lie from their trend (one
# standard deviation).
#
# **Before you run the next cell:** with rates in proportion, how much more do the losses of a batch
# of 1 scatter than those of 8? How much higher does it end?

# %% claim="i"
print("batch       rate    loss after an epoch    scatter")
for one in record["small"]:
    end, scatter = np.array(one["end"]), np.mean(one["scatter"])
    print(f"{one['batch']:5} {one['rate']:10g} {end.mean():12.3f} ± {end.std(ddof=1):.3f}", end="")
    print(f"{scatter:13.2f}")
single, eight, larger, faster, wild = record["small"]
for one in (single, larger):  # in proportion, they end alike
    assert abs(np.mean(one["end"]) - np.mean(eight["end"])) < np.std(eight["end"], ddof=1)
noisier = np.mean(single["scatter"]) / np.mean(eight["scatter"])
print(f"\n1 against 8: {noisier:.1f} times as noisy; predicted, the root of 8: {math.sqrt(8):.1f}")
assert abs(noisier / math.sqrt(8) - 1) < 0.2

assert faster["rate"] == 8 * single["rate"]
assert max(faster["end"]) < 0.4 < min(single["end"])  # no trouble, on each of ten seeds
_, looks = train(sgd(faster["rate"]), always(1), samples=epoch)  # here: 1536 updates of one digit
assert abs(looks[-1, 2] / faster["end"][0] - 1) < 0.05
assert wild["rate"] == rates.of(tuned, 32)["rate"]  # the best rate of 32 is too much for 1,
assert min(wild["end"]) > 2.2
assert wild["rate"] < limit  # though it is below 2/h,
assert min(linear[512]["end"]) > 1  # as four times that rate is too much for 512
print(f"8 times that rate: each seed below {max(faster['end']):.2f}; 128 times: each above 2.2")

# %% [markdown]
# Noisier: yes. Unstable: not in itself. With the rate that belongs to it a batch of one ends where
# 8 and 64 do, and it bears eight times that rate. What fails is the rate of a larger batch that was
# not lowered, just as a large batch fails above its own limit. The limit of a batch of one lies
# below $2/h$: a single digit has a curvature of its own, which may be larger than that of all
# together. Marek et al. (2025) train language models with a batch of one, and find small batches
# *less* sensitive to their settings.
#
# ## LARS and LAMB: a step in proportion to the weight
#
# One rate serves all layers, and the one that bears least decides for all. **LARS** (You et al.
# 2017) gives each parameter its own rate, by the **trust ratio** of its norm to that of its
# gradient:
#
# $$w \leftarrow w - \mathrm{lr}\; \tau\, \frac{|w|}{|g| + \lambda |w|}\,(g + \lambda w),$$
#
# with a small constant $\tau$ (`trust_coefficient`), the weight decay $\lambda$, and momentum
# besides. **LAMB** (You et al. 2020) takes Adam's step $r$ in place of $g$, the norm of the whole,
# $|r + \lambda w|$, below the line, and no $\tau$. Without decay and momentum, an update of LARS
# has the length $\mathrm{lr}\, \tau\, |w|$ whatever the length of $g$; one of LAMB always has
# $\mathrm{lr}\, |w|$. Four things to know:
#
# - it hides a wrong scale: $8g$ gives the same update. With LARS the decay notices, and the
#   exceptions below do; with LAMB only `eps`, for Adam's step hides the scale by itself;
# - the ratio must be taken **once per update**, of the finished gradient: norms do not add up;
# - the norm of a bias, or of the scales of a normalization, says little: many start at 0. minigrad
#   leaves parameters with fewer than two axes at ratio 1 and without decay, as is usual;
# - the paper has lr *inside* the velocity of momentum, PyTorch's SGD *outside*: the same until the
#   rate changes. Inside agrees again if the momentum is *corrected* by the ratio of the two rates
#   (Goyal et al. 2017).
#
# **Before you run the next cell:** a loop forgets to divide by its 8 samples. By which factor does
# it lengthen the update of a weight matrix, and that of the bias, with SGD, LARS and LAMB?

# %%
show_source(mg.LARS.ratio, mg.LARS.update)
STEP = 1 / 16  # lr tau


def moved(make, reduction="mean"):
    """What one update by 8 digits does to a layer's weight and bias, and the weight before."""
    layer = mg.Linear(64, 10, rng=np.random.default_rng(0), dtype=np.float64)
    before = [p.data.copy() for p in layer.parameters()]
    batch, optimizer = (images[:8], labels[:8]), make(layer.parameters())
    mg.train_step(layer, mg.cross_entropy, optimizer, batch, 2, reduction=reduction)
    return *(p.data - old for p, old in zip(layer.parameters(), before)), before[0]


def lars(**options):
    return lambda p: mg.LARS(p, 1 / 2, momentum=0.0, trust_coefficient=2 * STEP, **options)


def lamb(weight_decay=0.0, **options):
    return lambda p: mg.LAMB(p, STEP, weight_decay=weight_decay, **options)


def path_of(form):
    """A layer's weight after each of six updates, by LARS; after three, the rate is halved."""
    layer = mg.Linear(64, 10, rng=np.random.default_rng(0), dtype=np.float64)
    rate, path = mg.step_decay(1 / 2, 1 / 2, every=3), []
    optimizer = mg.LARS(layer.parameters(), rate, trust_coefficient=2 * STEP, form=form)
    for _ in range(6):
        mg.train_step(layer, mg.cross_entropy, optimizer, (images[:8], labels[:8]), 2)
        path.append(layer.weight.data.copy())
    return np.array(path)


def turned(a, b):
    """The angle between two steps, in degrees."""
    return math.degrees(math.acos(min(1.0, np.vdot(a, b) / norm(a) / norm(b))))


norm, off = np.linalg.norm, {}
print("the sum over 8 samples in place of the mean, and the update:")
print("                    of the weight                 of the bias")
for name, make in {
    "SGD": sgd(1 / 2),
    "LARS": lars(),
    "LARS with decay": lars(weight_decay=1.0),
    "LAMB": lamb(),
    "LAMB with decay": lamb(weight_decay=1.0),
    "LAMB with eps = 1": lamb(eps=1.0),
}.items():
    (weight, bias, start), (weight_8, bias_8, _) = moved(make), moved(make, "sum")
    off[name] = norm(weight_8 - weight) / norm(weight)
    angle, ratios = turned(weight, weight_8), [norm(weight_8) / norm(weight)]
    ratios.append(norm(bias_8) / norm(bias))
    print(f"{name:18} x {ratios[0]:5.2f}, turned by {angle:2.0f} degrees    x {ratios[1]:5.2f}")
    if name == "LARS":
        assert np.array_equal(weight_8, weight)  # exact: 8 is a power of two
        assert np.array_equal(bias_8, 8 * bias)  # ratio 1
    if name in ("LAMB", "LAMB with decay"):
        assert abs(ratios[1] - 1) < 1e-3  # Adam's step hides the scale, also for a bias
    if name in ("LARS", "LAMB", "LAMB with decay"):
        assert abs(norm(weight) / (STEP * norm(start)) - 1) < 1e-12  # |dw| = lr tau |w|
assert max(off["LAMB"], off["LAMB with decay"]) < 1e-3
assert min(off["LARS with decay"], off["LAMB with eps = 1"]) > 0.1

w = np.array([[3.0, 4.0]])
parts = np.array([[[8.0, 0.0]], [[0.0, 1.0]]])  # the mean gradients of two micro-batches


def step_of(g):
    return STEP * norm(w) / norm(g) * g


once, each = step_of(parts.mean(axis=0)), np.mean([step_of(g) for g in parts], axis=0)
print(f"\na ratio for each micro-batch, and the update: x {norm(each) / norm(once):.2f},", end=" ")
print(f"turned by {turned(once, each):.0f} degrees")
assert turned(once, each) > 30
assert norm(each) < 0.8 * norm(once)

inside, outside, corrected = (path_of(form) for form in ("inside", "outside", "corrected"))
assert np.allclose(inside[:3], outside[:3], rtol=1e-12, atol=1e-14)  # rounding
assert not np.allclose(inside[3], outside[3], rtol=1e-2, atol=1e-3)  # different
assert np.allclose(corrected, outside, rtol=1e-12, atol=1e-14)
print(
    "lr inside or outside: equal for 3 updates, different after the rate changes; corrected: equal"
)

# %% [markdown]
# **"LARS and LAMB reduce the need for accumulation."** The direction is wrong. They were made to
# train *larger* batches, and a batch that does not fit is accumulated: the better large batches
# train, the more is accumulated. Graphcore's recipe for the language model BERT-large, with LAMB,
# has a batch of 16384 in micro-batches of 2, of which 2048 are accumulated; that leaves 4 copies of
# the model, side by side.
#
# Nor are they needed for it. Nado et al. (2021) tuned Adam and Nesterov's kind of momentum, and
# matched LARS and LAMB at their batches. In the next cell five optimizers take 12 updates of 1024
# digits, each at three rates, on three seeds. **Before you run it:** who fails at this batch? And
# does LAMB, with the same samples, do better with 1024 or with 32?

# %% claim="e"
assert 2 * 2048 * 4 == 16384  # samples a device, micro-batches, replicas
optimizers = {  # name: (an optimizer with a rate, the powers of 2 that are tried as rates)
    "SGD": (mg.SGD, (-1, 0, 1)),
    "momentum": (lambda p, lr: mg.SGD(p, lr, momentum=0.9), (-2, -1, 0)),
    "Adam": (mg.Adam, (-5, -4, -3)),
    "LARS": (lambda p, lr: mg.LARS(p, lr, trust_coefficient=2 * STEP), (-3, -2, -1)),
    "LAMB": (lambda p, lr: mg.LAMB(p, lr, weight_decay=0.0), (-4, -3, -2)),
}


def end_of(optimizer, power, batch, seeds=(0, 1, 2)):
    """The mean training loss after 8 epochs, with a warm-up of an epoch and at least 2 updates."""
    rate = mg.warmup(2.0**power, max(2, epoch // batch))
    ends = []
    for seed in seeds:
        _, looks = train(lambda p: optimizer(p, rate), always(batch), seed, micro_batch_size=batch)
        ends.append(looks[-1, 2])
    return np.mean(ends)


print("batch 1024, 12 updates: mean loss at the end, at each rate")
lowest = {}
for name, (optimizer, powers) in optimizers.items():
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # some rates diverge
        ends = [end_of(optimizer, power, 1024) for power in powers]
    lowest[name] = min(ends)
    assert ends[1] == min(ends)  # not at the edge of what was tried
    cells = [f"   2^{power:<2} {end:5.2f}" for power, end in zip(powers, ends)]
    print(f"  {name:9}" + "".join(cells) + f"   best: 2^{powers[1]}")
assert max(end for name, end in lowest.items() if name != "SGD") < lowest["SGD"] / 2
assert min(lowest["momentum"], lowest["Adam"]) < 1.3 * min(lowest["LARS"], lowest["LAMB"])
small = end_of(optimizers["LAMB"][0], -7, 32, seeds=(0,))
assert small < lowest["LAMB"] / 2
print(f"LAMB with the same samples in batches of 32: {small:.2f}")
print(f"micro-batches of {rates.MICRO} in a batch of 1024: {1024 // rates.MICRO}; in one of 32: 1")

# %% [markdown]
# Of the five only SGD without momentum fails at this batch. LARS, which has momentum, makes it
# trainable; so does momentum by itself, and Adam does as well as LAMB. (One net, three rates and
# three seeds make no ranking of the four.) And with the same samples LAMB goes farther in batches
# of 32: it makes a large batch trainable, which is not to make it better.
#
# ## Usual mistakes
#
# - *"I accumulate, so I must tune the rate to match the large batch."* With $k = N/b$ the same rate
#   is the same run. A new rate belongs to a new batch, however that is computed.
# - *"I accumulate, and keep rate and epochs."* Then $k$ times fewer updates are made at the same
#   rate. Say which is equal: updates or samples.
# - *"Linear scaling is a theorem."* It is a first order, and ends at $k\, \mathrm{lr}\, h = 2$.
#   *"So $2/h$ is the best rate."* It is where the rule ends. Which rate is best, a search says.
# - *"The loss is a sum, and larger now; so the rate grows too."* That scales twice.
# - *"Warm-up of 500 steps."* Of updates, or of micro-batches? A schedule counts updates.
# - *"The root for SGD, the line for Adam."* The other way round, and neither near the limit.
# - *"LAMB in place of accumulation."* LAMB is for batches that are accumulated. *"It is free of
#   scale, so the division by k does not matter."* `eps` notices; in LARS decay and biases do.
# - *"A larger batch is better."* In updates. In samples it was as good at best.
#
# ## In short
#
# - Against the true large batch nothing changes; against the small one, updates fall $k$ times.
# - SGD: the rate grows as $k$, up to about $2/h$. Adam: as $\sqrt{k}$ where noise rules, betas by
#   half-life.
# - Schedules count updates. Noise goes with rate over batch: decay the one, or grow the other.
# - A larger batch saves updates and costs samples: accumulate where updates are dear.
# - Small batches are noisier, and stable at rates of their own. LARS and LAMB make large ones
#   trainable.
#
# ## References
#
# - D. R. Wilson, T. R. Martinez (2003). The general inefficiency of batch training for gradient
#   descent learning. *Neural Networks* 16.
# - A. Krizhevsky (2014). One weird trick for parallelizing convolutional neural networks. arXiv
#   1404.5997. On linear and square-root scaling.
# - P. Goyal et al. (2017). Accurate, large minibatch SGD: training ImageNet in 1 hour. arXiv
#   1706.02677. Section 2, on linear scaling and warm-up.
# - Y. You, I. Gitman, B. Ginsburg (2017). Large batch training of convolutional networks. arXiv
#   1708.03888. On LARS.
# - S. L. Smith, P.-J. Kindermans, C. Ying, Q. V. Le (2018). Don't decay the learning rate, increase
#   the batch size. *ICLR*.
# - S. McCandlish, J. Kaplan, D. Amodei et al. (2018). An empirical model of large-batch training.
#   arXiv 1812.06162.
# - C. J. Shallue et al. (2019). Measuring the effects of data parallelism on neural network
#   training. *JMLR* 20. On the best rate at each batch.
# - Y. You et al. (2020). Large batch optimization for deep learning: training BERT in 76 minutes.
#   *ICLR*. On LAMB.
# - Z. Nado, J. M. Gilmer, C. J. Shallue, R. Anil, G. E. Dahl (2021). A large batch optimizer
#   reality check: traditional, generic optimizers suffice across batch sizes. arXiv 2102.06356.
# - J. M. Cohen, S. Kaur, Y. Li, J. Z. Kolter, A. Talwalkar (2021). Gradient descent on neural
#   networks typically occurs at the edge of stability. *ICLR*.
# - S. Malladi, K. Lyu, A. Panigrahi, S. Arora (2022). On the SDEs and scaling rules for adaptive
#   gradient algorithms. *NeurIPS*.
# - M. Marek, S. Lotfi, A. Somasundaram, A. G. Wilson, M. Goldblum (2025). Small batch size training
#   for language models: when vanilla SGD works, and why gradient accumulation is wasteful.
#   *NeurIPS*.
# - Graphcore. BERT-large, trained on IPUs with LAMB: the model `Graphcore/bert-large-uncased` on
#   the Hugging Face hub, and its configuration.
