# %% [markdown]
# # 05 · Who divides, by what, and when?
#
# **You will be able to**
#
# 1. say for a sum, a mean, tokens, class weights, two units and a penalty what the gradient of a
#    window must be divided by, and when;
# 2. predict by how much a mean of means is wrong, from the counts and the means alone;
# 3. tell which optimizer hides a wrong divisor, and test the gradient instead of the loss curve.
#
# **Needs:** lessons [03](03_training_loop.ipynb) and [04](04_accumulation.ipynb) (means:
# [a page of background](before.md)). **Reading:** 40 minutes; **exercises:** 45 minutes
# ([05_sum_or_mean](exercises/05_sum_or_mean.ipynb)). **Code:**
# [`minigrad/losses.py`](../minigrad/losses.py),
# [`minigrad/accumulation.py`](../minigrad/accumulation.py),
# [`minigrad/streaming.py`](../minigrad/streaming.py).

# %% [markdown]
# ## A sum needs no scaling. Or does it?
#
# Lesson 04 showed that $k$ micro-batches can give the gradient of one batch. `backward` adds by
# itself; what is left to decide is the *division*. Here is the smallest case: one weight $w = 0$,
# the output $w x$, the target $2x$, the squared error. Sample $i$ has the gradient $-4 x_i^2$, so
# that we pick $x$ and thereby pick the gradients: 1, 2, 3, 4 give $-4, -16, -36, -64$. All numbers
# are fractions, and every equality of this part is *exact*.
#
# **Before you run the next cell:** cut the four samples into two micro-batches of two, call
# `backward()` once for each, and let `.grad` add. What stands in `.grad` if each micro-batch gives
# its sum, its mean, its mean divided by $k$, or (because the loop divides, and so does the library
# that it calls) its mean divided by $k$ twice?

# %% claim="m"
from fractions import Fraction
from itertools import pairwise

import numpy as np

import minigrad as mg
from minigrad import data, plotting
from minigrad.reading import show_source


class Toy(mg.Module):
    """outputs = w x, with one weight w, in fractions."""

    def __init__(self, w=0):
        self.w = mg.parameter(w, object)

    def forward(self, x):
        return x * self.w


def by_hand(x, sizes, number):
    """What .grad holds after backward() of number(loss) in each micro-batch of these sizes."""
    toy = Toy()
    for part in np.split(x, np.cumsum(sizes)[:-1]):
        number(mg.squared_error(toy(part), 2 * part)).backward()
    return toy.w.grad.item()


def one_batch(x, reduction):
    """The gradient of the whole batch at once: of the mean, or of the sum."""
    toy = Toy()
    mg.accumulate(toy, mg.squared_error, (x, 2 * x), len(x), reduction=reduction)
    return toy.w.grad.item()


x, sizes = mg.fractions([1, 2, 3, 4]), [2, 2]
N, k = len(x), len(sizes)
mean_batch, sum_batch = one_batch(x, "mean"), one_batch(x, "sum")
found = {
    "sum": by_hand(x, sizes, lambda loss: loss.sum()),
    "mean": by_hand(x, sizes, lambda loss: loss.mean()),
    "mean / k": by_hand(x, sizes, lambda loss: loss.mean() / k),
    "mean / k / k": by_hand(x, sizes, lambda loss: loss.mean() / k / k),
}
print(f"one batch of {N}: the mean has gradient {mean_batch}, the sum {sum_batch}\n")
for each, gradient in found.items():
    print(f"{k} micro-batches, each gives its {each:<12} -> {gradient}")

assert found["sum"] == sum_batch == N * mean_batch
assert found["mean"] == k * mean_batch
assert found["mean / k"] == mean_batch
assert found["mean / k / k"] == mean_batch / k

# the sum: right for every cut, and it doubles with the data, which the mean does not
for cut in ([1, N - 1], [N], [1] * N):
    assert by_hand(x, cut, lambda loss: loss.sum()) == sum_batch
twice = np.concatenate([x, x])
assert one_batch(twice, "sum") == 2 * sum_batch
assert one_batch(twice, "mean") == mean_batch

# %% [markdown]
# "A sum loss needs no scaling" is half of the truth. Sums may be added under every cut, and the
# result is the *sum batch*, whose gradient is $N$ times that of the mean batch. With SGD that is a
# learning rate $N$ times as large, and one that changes with every $N$: twice the data, twice the
# step. Whoever wants the mean must divide by $N$ once; the sum only says that the division was
# left out, not that it was not needed.
#
# And with means there are two faults that nobody sees in the code of one function: nobody divides
# by $k$ ($k$ times too large), or two owners of the division do ($k$ times too small).
#
# ## Uneven parts: the mean of means
#
# Now five samples, $x = 1, \ldots, 5$, in micro-batches of $b = 2$: the last one holds one sample.
# The micro-batches' mean gradients are $-10, -50, -100$. **Before you run the next cell:** is the
# gradient of the batch the mean of these three? If not, which of them counts too much?
#
# Change `sizes` to `[1, 4]` or `[3, 2]`: which part counts too much now?

# %%
x, sizes = mg.fractions([1, 2, 3, 4, 5]), [2, 2, 1]
N, k = sum(sizes), len(sizes)
g = [np.mean(-4 * part * part) for part in np.split(x, np.cumsum(sizes)[:-1])]  # mean gradients
right = one_batch(x, "mean")

mean_of_means = sum(g) / k
weighted = sum(Fraction(n, N) * g_j for n, g_j in zip(sizes, g, strict=True))
sums = by_hand(x, sizes, lambda loss: loss.sum()) / N

running, seen = Fraction(0), 0  # a mean that never needs to know N beforehand
for n, g_j in zip(sizes, g, strict=True):
    seen += n
    running += Fraction(n, seen) * (g_j - running)

print("mean gradients of the micro-batches:", *g)
print(f"one batch {right}; mean of means {mean_of_means}, as if each micro-batch were as large")
print(f"weights n_j / N: {weighted}; sums divided once by N: {sums}; running mean: {running}")

assert weighted == sums == running == right
assert mean_of_means != right

# %% [markdown]
# Three right ways, one number: weights $n_j/N$ in place of $1/k$, for which $N$ must be known
# beforehand; sums, divided once when all has been counted; a running mean. The second is the
# shortest, and what minigrad does.
#
# ## Real text: what is counted is the token
#
# The data set is 186 sentences of Python's language reference. A small model reads the last four
# characters (each looked up in a table, an *embedding*) and gives logits for the next one; a
# *token* is one thing to predict, here a character. What a loss counts is its *unit*: the sample so
# far, the token from here on. A batch is a rectangle, so that short sentences are filled up:
# *padding*. The label of padding is `PAD`, and `mg.cross_entropy` ignores it (`ignore_index`): it
# is added to neither the sum nor the count. Such labels are *masked*.
#
# The next cell prepares the text and trains the model a little. **Before you run it:** sentences
# have from 20 to 237 characters. How much of the rectangle is padding, and by how much would
# `loss.sum() / labels.size` be wrong?

# %%
CONTEXT, PAD = 4, -100
text = data.sentences()
alphabet = sorted(set("".join(text)))
place = {character: i for i, character in enumerate(alphabet, start=1)}  # 0: before the beginning


def encode(sentences):
    """inputs (n, width, CONTEXT): the characters before each; labels (n, width), padded."""
    labels = np.full((len(sentences), max(map(len, sentences))), PAD)
    for row, sentence in zip(labels, sentences, strict=True):
        row[: len(sentence)] = [place[character] for character in sentence]
    before = np.pad(np.where(labels == PAD, 0, labels), ((0, 0), (CONTEXT, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(before, CONTEXT, axis=1)
    return windows[:, :-1], labels


class NextCharacter(mg.Module):
    """Logits for the next character, from the last few: (n, width, CONTEXT) -> (n, width, V)."""

    def __init__(self, characters, rng):
        self.table = mg.Embedding(characters, 8, rng=rng, dtype=np.float64)
        self.mlp = mg.MLP(8 * CONTEXT, 32, characters, rng=rng, dtype=np.float64)

    def forward(self, inputs):
        return self.mlp(self.table(inputs).reshape(*inputs.shape[:2], -1))


inputs, labels = encode(text)
rng = np.random.default_rng(0)
model = NextCharacter(len(alphabet) + 1, rng)
adam = mg.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(60):
    rows = rng.choice(len(text), 16, replace=False)
    width = max(len(text[row]) for row in rows)  # the rectangle is as wide as its longest sentence
    batch = inputs[rows, :width], labels[rows, :width]
    report = mg.train_step(model, mg.cross_entropy, adam, batch, micro_batch_size=4)
    losses.append(report.loss)

tokens = int((labels != PAD).sum())
print(f"{len(text)} sentences, a rectangle of {labels.size} places, {tokens} of them tokens")
padding = 1 - tokens / labels.size
print(f"{padding:.0%} is padding: a loss sum over {labels.size} is that much too small")
print(f"loss per token: {losses[0]:.3f} at first, {losses[-1]:.3f} after {adam.updates} updates")
print(f"what the last window was divided by: {report.weights}")

assert report.weights["token"] == (batch[1] != PAD).sum() < batch[1].size
assert tokens == sum(map(len, text))
assert (min(map(len, text)), max(map(len, text))) == (20, 237)
assert losses[-1] < losses[0] / 2

# %% [markdown]
# ## By how much is the mean of means wrong?
#
# Let part $j$ of a window hold $T_j$ tokens with the mean loss $m_j$. Right is
# $\sum T_j m_j / \sum T_j$; naive is the mean of the $m_j$.
#
# **Theorem.** $\;\text{naive} - \text{right} = -\dfrac{\mathrm{Cov}(T, m)}{\mathrm{mean}(T)}$, with
# the covariance over the $k$ parts, $\mathrm{Cov}(T, m) = \mathrm{mean}(T m) - \mathrm{mean}(T)\,
# \mathrm{mean}(m)$. The same holds for the gradient, with the mean gradient of part $j$ in place
# of $m_j$.
#
# *Proof, which may be skipped.* Right is $\mathrm{mean}(Tm)/\mathrm{mean}(T)$: divide numerator and
# denominator by $k$. So naive minus right is
# $\big(\mathrm{mean}(m)\,\mathrm{mean}(T) - \mathrm{mean}(Tm)\big)/\mathrm{mean}(T)$. ∎
#
# It is 0 exactly if counts and means are uncorrelated: in particular if all counts are equal, or
# all means. If short parts have the larger loss, the naive value is too large. **Before you run
# the next cell:** $T = (1, 3, 8)$ and $m = (4, 1, \tfrac12)$; work out both by hand. Then find, in
# place of the `[5, 1, 5]` in the cell, another `m` for `T = (1, 2, 3)` whose error is 0.


# %%
def naive_and_right(T, m):
    """Mean of means, and mean over all tokens. T (k,): counts; m (k, ...): means."""
    T = T.reshape(len(T), *[1] * (m.ndim - 1))
    return m.mean(axis=0), (T * m).sum(axis=0) / T.sum()


def predicted_error(T, m):
    """-Cov(T, m) / mean(T), over the parts."""
    T = T.reshape(len(T), *[1] * (m.ndim - 1))
    return -((T * m).mean(axis=0) - T.mean() * m.mean(axis=0)) / T.mean()


for T, m in (([1, 3, 8], [4, 1, Fraction(1, 2)]), ([1, 2, 3], [5, 1, 5]), ([4, 4, 4], [1, 2, 9])):
    T, m = mg.fractions(T), mg.fractions(m)
    naive, right = naive_and_right(T, m)
    print("T =", *T, " m =", *m, f" naive {naive}, right {right}, error {naive - right}")
    assert naive - right == predicted_error(T, m)  # exact

T, m = mg.fractions([1, 3, 8]), mg.fractions([4, 1, Fraction(1, 2)])
assert naive_and_right(T, m) == (Fraction(11, 6), Fraction(11, 12))

# %% [markdown]
# Now the text. We take the loss sum, the count and the gradient of each sentence, all at the same
# weights, and put windows together from them: 32 sentences drawn at random, cut into micro-batches
# of $b$.
#
# **Before you run the next cell,** predict two numbers for $b = 4$: by how many percent is the loss
# of the mean of means wrong, and by how many percent its gradient (the length of the difference
# over the length of the right one)?


# %%
def gradient_of(model):
    """All gradients of the model, side by side in one array."""
    return np.concatenate([p.grad.ravel() for p in model.parameters()])


def sentence_by_sentence(model, inputs, labels):
    """Of each sentence: tokens (n,), loss sums (n,), gradients of the sums (n, parameters)."""
    counts, totals, gradients = [], [], []
    for x, y in zip(inputs[:, None], labels[:, None], strict=True):  # one row each: (1, width, ..)
        T = int((y != PAD).sum())
        report = mg.accumulate(model, mg.cross_entropy, (x[:, :T], y[:, :T]), 1, reduction="sum")
        counts.append(T)
        totals.append(report.loss)
        gradients.append(gradient_of(model))
    return np.array(counts), np.array(totals), np.array(gradients)


def relative(found, right):
    return np.linalg.norm(found - right) / np.linalg.norm(right)


def window(rows, b):
    """Counts, mean losses and mean gradients of the micro-batches of b of these sentences."""
    rows = rows.reshape(-1, b)
    T = counts[rows].sum(axis=1)
    return T, totals[rows].sum(axis=1) / T, gradients[rows].sum(axis=1) / T[:, None]


counts, totals, gradients = sentence_by_sentence(model, inputs, labels)
N, sizes, shown = 32, (1, 2, 4, 8, 16, 32), 4
rng = np.random.default_rng(1)
draws = [rng.choice(len(text), N, replace=False) for _ in range(120)]
measured, predicted, loss_error, gradient_error = ({b: [] for b in sizes} for _ in range(4))
for b in sizes:
    for rows in draws:
        T, m, g = window(rows, b)
        naive, right = naive_and_right(T, m)
        measured[b].append(naive - right)
        predicted[b].append(predicted_error(T, m))
        loss_error[b].append(relative(naive, right))
        naive_g, right_g = naive_and_right(T, g)
        gradient_error[b].append(relative(naive_g, right_g))
        assert np.allclose(naive - right, predicted[b][-1], rtol=0, atol=1e-12)  # rounding
        assert relative(right_g + predicted_error(T, g), naive_g) < 1e-12  # rounding


# the same sentences, cut after 20 characters: all counts are equal, and both errors are 0
T, loss_sums, g = sentence_by_sentence(model, inputs[draws[0], :20], labels[draws[0], :20])
for means in (loss_sums / T, g / T[:, None]):
    assert relative(*naive_and_right(T, means)) < 1e-12


def percent(errors, b):
    return 100 * np.median(errors[b])


def spread(means):
    """How far the means of single sentences lie from their mean, relative to it."""
    centre = means.mean(axis=0)
    return np.linalg.norm(means - centre) / np.linalg.norm(centre) / np.sqrt(len(means))


T, m, g = window(np.arange(len(text)), 1)
print(f"spread over the {len(text)} sentences: {spread(T):.2f} of the mean for their counts,")
print(f"{spread(m):.2f} for their mean losses, {spread(g):.1f} for their mean gradients")
print(f"correlation of counts and mean losses: {np.corrcoef(T, m)[0, 1]:.2f}")
assert np.corrcoef(T, m)[0, 1] < -0.1  # short sentences have more loss per character
assert spread(m) < 0.3 < 2 < spread(g)

too_large = np.mean(np.array(measured[1]) > 0)
assert too_large > 0.6
assert percent(loss_error, shown) < 2  # hardly to be seen in a log
assert percent(gradient_error, shown) > 8  # different
assert max(gradient_error[N]) < 1e-12  # one part: nothing to weigh
medians = [percent(gradient_error, b) for b in sizes]
assert medians == sorted(medians, reverse=True)  # the smaller b, the worse

# one of these windows as a loop would run it, and as minigrad does
T, _, g = window(draws[0], shown)
naive_g, right_g = naive_and_right(T, g)
model.zero_grad()
for rows in draws[0].reshape(-1, shown):
    (mg.cross_entropy(model(inputs[rows]), labels[rows]).mean() / len(T)).backward()
assert relative(gradient_of(model), naive_g) < 1e-12  # rounding
mg.accumulate(model, mg.cross_entropy, (inputs[draws[0]], labels[draws[0]]), shown)
assert relative(gradient_of(model), right_g) < 1e-12  # rounding

figure, axes = plotting.subplots(1, 2, height=3.6)
for b, marker, colour in ((1, "o", plotting.BLUE), (shown, "^", plotting.RED)):
    axes[0].plot(
        predicted[b],
        measured[b],
        marker,
        color=colour,
        ms=5,
        mec="white",
        mew=0.4,
        label=f"b = {b}",
    )
axes[0].axline((0, 0), slope=1, color=plotting.GREY, lw=1, zorder=0)
axes[0].axvline(0, ymax=0.75, color=plotting.GREY, lw=0.8, ls=":", zorder=0)
axes[0].text(0.97, 0.05, "right of 0: too large", ha="right", transform=axes[0].transAxes)
axes[0].set_title("Loss: the error is what the theorem says")
axes[0].set_xlabel("predicted: $-\\mathrm{Cov}(T, m)\\,/\\,\\mathrm{mean}(T)$")
axes[0].set_ylabel("measured: mean of means $-$ right")
axes[0].legend(loc="upper left")
places = np.arange(len(sizes))
for errors, marker, line, colour, name in (
    (gradient_error, "o", "-", plotting.PURPLE, "gradient"),
    (loss_error, "s", "--", plotting.ORANGE, "loss"),
):
    low, middle, high = (
        100 * np.array([np.quantile(errors[b], q) for b in sizes]) for q in (0.05, 0.5, 0.95)
    )
    axes[1].fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
    axes[1].plot(places, middle, marker, ls=line, color=colour, label=name)
axes[1].set_xticks(places, sizes)
axes[1].set_ylim(0)
axes[1].set_title(f"Relative error of a window of {N} sentences")
axes[1].set_xlabel("sentences in a micro-batch, $b$")
axes[1].set_ylabel("error, percent")
axes[1].legend(loc="upper right")
plotting.show(
    figure,
    "05-mean-of-means",
    f"{len(draws)} random windows of {N} sentences. Left: each point is a window; all lie on the "
    f"diagonal: predicted equals measured, to rounding. At b = 1 the mean of means is too large "
    f"in {too_large:.0%} of them. Right: median and middle 90 percent. At b = {shown} the loss is "
    f"wrong by {percent(loss_error, shown):.1f} percent, its gradient by "
    f"{percent(gradient_error, shown):.0f}; at b = 1 by {percent(loss_error, 1):.1f} and "
    f"{percent(gradient_error, 1):.0f}; at b = {N}, where the window is one part, by 0.",
)

# %% [markdown]
# The loss that is logged looks right; the gradient is not. The mean losses of the sentences are
# much alike; their mean gradients are not, so that these need hardly be correlated with the counts
# for a large covariance. Larger micro-batches hold more even counts: the fault is smallest where
# memory is plenty, and grows when memory forces $b$ down.
#
# A mean over sentences, each counting once whatever its length, would be a legitimate aim too: its
# unit is the sentence, and at $b = 1$ the mean of means is just that. At every other $b$ it is
# neither that nor the mean over tokens: it changes with the cut, and the cut was to be a matter of
# memory. The table at the end of the next cell shows it.
#
# ## Nothing to count
#
# In practice labels are masked for other reasons too (a question whose answer alone is to be
# learnt), and then a micro-batch may have no label that counts at all: $0/0$. The usual guard,
# `total / max(count, 1)`, makes it 0, and the mean of means then counts that 0 as one of $k$.
#
# **Before you run the next cell:** token gradients 1, 2, 3, 4 in one micro-batch, four masked in
# another. What do the right way, no guard and the guard give?

# %%
masks = np.array([[0, 0, 0, 0], [1, 1, 1, 1]])
values = np.array([[9.0, 9, 9, 9], [1, 2, 3, 4]])  # the gradient of each token
total, count = (values * masks).sum(axis=1), masks.sum(axis=1)
with np.errstate(invalid="ignore"):
    unguarded = np.mean(total / count)
guarded = np.mean(total / np.maximum(count, 1))
right = total.sum() / count.sum()
print(f"right {right}; mean of means {unguarded}, and with the guard {guarded}")
assert np.isnan(unguarded)
assert guarded == right / 2

rows = np.arange(6)
some, none = labels[rows].copy(), np.full_like(labels[rows], PAD)
some[2:4] = PAD  # the middle one of three micro-batches of two has nothing to count
report = mg.accumulate(model, mg.cross_entropy, (inputs[rows], some), micro_batch_size=2)
masked = model.mlp.layers[0].weight.grad.copy()
kept = [0, 1, 4, 5]
without = mg.accumulate(model, mg.cross_entropy, (inputs[kept], labels[kept]), micro_batch_size=4)
assert report.weights == without.weights
assert np.isclose(report.loss, without.loss, rtol=1e-12, atol=0)
assert relative(masked, model.mlp.layers[0].weight.grad) < 1e-12
print("text: a micro-batch of masked labels changes nothing (to rounding)")

report = mg.train_step(model, mg.cross_entropy, adam, (inputs[rows], none), micro_batch_size=2)
print(f"a window of them: updated = {report.updated}, {report.reason}")
assert not report.updated
assert np.isfinite(report.loss)

print("\n b   mean of means   right    spread of the counts")
spreads = []
for b in (1, 2, 4, 8, 16):
    T, m, _ = window(draws[0], b)
    naive, right = naive_and_right(T, m)
    batch = inputs[draws[0]], labels[draws[0]]
    report = mg.accumulate(model, mg.cross_entropy, batch, micro_batch_size=b)
    spreads.append(spread(T))
    print(f"{b:2}   {naive:13.4f}   {report.loss:.4f}   {spreads[-1]:.2f}")
    assert np.isclose(report.loss, right, rtol=1e-12, atol=0)
    assert abs(naive - right) > 1e-5  # different
assert spreads == sorted(spreads, reverse=True)

# %% [markdown]
# ## Class weights: the unit is a weight
#
# If some classes are rare, their losses are often weighted:
# $\sum_i w_{y_i} \ell_i \big/ \sum_i w_{y_i}$, with $w_c$ the weight of class $c$. The divisor is a
# sum of weights, and a loss function that returns the mean divides by the weights *of the
# micro-batch*. So micro-batches of equal size are uneven too.
#
# Two samples, of classes with weights 1 and 3, with losses 1 and 2, one in each micro-batch.
# **Before you run the next cell:** what is the loss of the two together? And what does it become if
# each micro-batch divides by its own weight: does the 3 matter at all?

# %%
weights, losses = mg.fractions([1, 3]), mg.fractions([1, 2])
right = (weights * losses).sum() / weights.sum()
own = (weights * losses / weights).mean()  # each divided by its own weight: the weights cancel
print(f"together {right}, mean of means {own}")
assert (right, own) == (Fraction(7, 4), Fraction(3, 2))

# the same through cross-entropy: logits of two classes that give the losses 1 and 2
logits = np.log([[1, np.e - 1], [np.e**2 - 1, 1]])
classes, class_weights = np.array([0, 1]), np.array([1.0, 3.0])


class Shift(mg.Module):
    """outputs = inputs + shift: logits for which something can be learnt."""

    def __init__(self):
        self.shift = mg.parameter(np.zeros(2))

    def forward(self, x):
        return x + self.shift


def weighted_loss(outputs, labels):
    return mg.cross_entropy(outputs, labels, class_weights=class_weights)


report = mg.accumulate(Shift(), weighted_loss, (logits, classes), micro_batch_size=1)
print(f"minigrad, in micro-batches of one: {report.loss:.4f}, divided by {report.weights}")
assert np.isclose(report.loss, float(right), rtol=1e-14, atol=0)

# %% [markdown]
# ## Two units in one loss, and one without data
#
# A main loss per token, and `0.1` times an *auxiliary* loss (a second aim that helps the first)
# per sample. Three samples, small enough for paper:
#
# | sample | losses of its tokens | auxiliary loss |
# |---|---|---|
# | A | 6 | 10 |
# | B | 1, 2 | 20 |
# | C | 1, 1, 1 | 30 |
#
# **Before you run the next cell,** work it out: the main part is the sum over tokens divided by
# their number, the auxiliary part `0.1` times the sum over samples divided by theirs. Then divide
# everything by one number, first that of the tokens, then that of the samples: which part is wrong
# each time, and by which factor?
#
# A *penalty* such as $\tfrac{\lambda}{2} w^2$ keeps weights small. It depends on no data and is no
# mean of anything: it belongs to the window, once. Written into the loss of each micro-batch it
# is there $k$ times, while the main loss, divided by $N$, is there once. With $w = 2$,
# $\lambda = \tfrac18$, data of gradient 0 and $k = 4$ micro-batches of one: which gradient is
# right, and which comes out of such a loop? (Then change the number of samples to 16.)
#
# In minigrad such losses are written as they are said: `per_sample(token_losses, mask,
# unit="token") + coefficient * per_sample(auxiliary)`, and `+ penalty(...)`.

# %%
tokens = mg.fractions([[6, 0, 0], [1, 2, 0], [1, 1, 1]])
mask = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
auxiliary, coefficient = mg.fractions([10, 20, 30]), Fraction(1, 10)
main_sum, aux_sum = (tokens * mask).sum(), coefficient * auxiliary.sum()
n_tokens, n_samples = int(mask.sum()), len(mask)

right = main_sum / n_tokens + aux_sum / n_samples
all_by_tokens = (main_sum + aux_sum) / n_tokens
all_by_samples = (main_sum + aux_sum) / n_samples
print(f"main {main_sum}/{n_tokens} + auxiliary {aux_sum}/{n_samples} = {right}")
print(f"all by {n_tokens} tokens: {all_by_tokens}; all by {n_samples} samples: {all_by_samples}")
assert right == 4
assert all_by_tokens == main_sum / n_tokens + aux_sum / n_samples / 2  # the auxiliary part halved
assert all_by_samples == 2 * main_sum / n_tokens + aux_sum / n_samples  # the main part doubled


class Both(Toy):
    """w times the token losses, and w times the auxiliary losses: at w = 1 they are the losses."""

    def forward(self, pair):
        return tuple(values * self.w for values in pair)


def two_units(outputs, mask):
    token_losses, auxiliary_losses = outputs
    main = mg.per_sample(token_losses, mask, unit="token")
    return main + coefficient * mg.per_sample(auxiliary_losses)


for b in (1, 2, 3):
    both = Both(w=1)
    report = mg.accumulate(both, two_units, ((tokens, auxiliary), mask), micro_batch_size=b)
    assert report.loss == both.w.grad == right  # exact; linear in w, so that loss = gradient
    assert report.weights == {"token": n_tokens, "sample": n_samples}
print("minigrad: the same for micro-batches of 1, 2 and 3; loss and gradient exactly", right)

# and the penalty
strength, w, samples = Fraction(1, 8), 2, mg.fractions([0] * 4)  # of gradient 0


def size_of(model):
    return strength / 2 * (model.w * model.w)


toy, wrong = Toy(w), Toy(w)
mg.accumulate(
    toy, lambda outputs, _: mg.per_sample(outputs) + mg.penalty(size_of(toy)), (samples, samples), 1
)
for sample in samples:
    (wrong(mg.fractions([sample])).sum() / len(samples) + size_of(wrong)).backward()

print(f"once a window: {toy.w.grad}, in each micro-batch: {wrong.w.grad}")
assert toy.w.grad == strength * w
assert wrong.w.grad == len(samples) * strength * w

# %% [markdown]
# ## The last window of an epoch
#
# An epoch of five micro-batches with $k = 4$ ends with one that is left over, the *tail*. To see
# the gradients alone, the loss of a sample is $g_i w$, linear in $w$, with the gradients
# $g_i = -4 x_i^2$ from above, and $x = 1, \ldots, 5$. The learning rate is 1.
#
# **Before you run the next cell:** what does the second update do, if the tail is dropped, divided
# by $k$ as a full window, or divided by what was seen? Change `k` to 3: the tail then has two.
#
# Beside the loops by hand stands `mg.Accumulator`, for a loop of your own to which micro-batches
# come one by one: it counts them (here each holds 1 sample), and makes an update after each $k$.


# %%
def epoch(g, k, step_the_tail, divisor_of):
    """The updates of one epoch, as loops by hand make them."""
    updates, total, seen = [], Fraction(0), 0
    for i, g_i in enumerate(g):
        total, seen = total + g_i, seen + 1
        if seen == k or (step_the_tail and i == len(g) - 1):
            updates.append(-total / divisor_of(seen))
            total, seen = Fraction(0), 0
    return updates


k, x = 4, mg.fractions([1, 2, 3, 4, 5])
g = -4 * x * x
dropped = epoch(g, k, False, lambda seen: k)
by_k = epoch(g, k, True, lambda seen: k)
by_seen = epoch(g, k, True, lambda seen: seen)

toy, path = Toy(), [0]
sgd = mg.SGD(toy.parameters(), lr=1)
with mg.Accumulator(toy, sgd, accumulation_steps=k) as accumulator:
    for g_i in g:
        with accumulator.micro_batch(1):
            accumulator.backward(mg.per_sample(toy(mg.fractions([g_i]))))
        path.append(toy.w.data.item())
path.append(toy.w.data.item())  # leaving the block: the end of the data, and of the last window
flushed = [after - before for before, after in pairwise(path) if after != before]

for name, updates in {
    "tail dropped": dropped,
    f"tail divided by k = {k}": by_k,
    "divided by what was seen": by_seen,
    "mg.Accumulator": flushed,
}.items():
    print(f"{name:<25}", *updates)
assert flushed == by_seen
assert accumulator.updates == len(by_seen) == len(dropped) + 1
left = len(g) % k
assert by_seen[-1] == -np.mean(g[-left:])
assert by_k[-1] == by_seen[-1] * Fraction(left, k)
assert epoch(g[: k - 1], k, False, lambda seen: k) == []  # short data, tail dropped: no update

# %% [markdown]
# A data set of fewer than $k$ micro-batches whose tail is dropped never trains at all. A division
# by $k$ that is made before the length of the tail is known makes the last update too small. A
# division at the end of the window knows what was seen. `mg.Accumulator` ends the last window when
# its outer block is left; `mg.train_step` gets the whole batch and has no tail.
#
# ## Who hides the fault, and who shows it?
#
# Back to the plainest fault: nobody divides, and the gradient is $k = 8$ times too large. SGD
# moves by the gradient. Adam moves by the averaged gradient over the root of its averaged
# square ([03](03_training_loop.ipynb)); eight times the one over eight times the other is the same,
# but for `eps` in the denominator.
#
# **Before you run the next cell,** rank them: SGD, Adam, and Adam with `weight_decay` (which adds
# $\lambda w$, the gradient of the penalty above, to the finished gradient: once, whatever the
# division did). In which do the right and the wrong run end far apart? And in the SGD pair, which
# run has the lower loss?

# %%
(images, digits), _ = data.digits(np.float64)
k, b, updates = 8, 16, 50


def vector(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def train(make_optimizer, divide):
    """The loop by hand. Returns losses, weights after each update, and the first gradient."""
    net = mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64)
    optimizer = make_optimizer(net.parameters())
    losses, path, first = [], [], None
    for update in range(updates):
        optimizer.zero_grad()
        window_loss = 0
        for j in range(k):
            rows = (np.arange(b) + b * (k * update + j)) % len(images)
            loss = mg.cross_entropy(net(images[rows]), digits[rows]).mean()
            (loss / k if divide else loss).backward()
            window_loss += loss.item() / k
        first = vector(p.grad for p in net.parameters()) if first is None else first
        optimizer.step()
        losses.append(window_loss)
        path.append(vector(p.data for p in net.parameters()))
    return losses, path, first


makers = {
    "SGD": lambda parameters: mg.SGD(parameters, lr=0.1),
    "Adam + decay": lambda parameters: mg.Adam(parameters, lr=0.01, weight_decay=0.01),
    "Adam": lambda parameters: mg.Adam(parameters, lr=0.01),
}
right = {name: train(make, divide=True) for name, make in makers.items()}
wrong = {name: train(make, divide=False) for name, make in makers.items()}
apart = {
    name: [relative(a, c) for a, c in zip(wrong[name][1], right[name][1], strict=True)]
    for name in makers
}
first_gradient = {name: relative(wrong[name][2], right[name][2]) for name in makers}

assert all(np.isclose(error, k - 1, rtol=1e-12, atol=0) for error in first_gradient.values())
assert apart["SGD"][-1] > 0.5
assert apart["Adam + decay"][-1] > 0.1
assert apart["Adam"][-1] < 1e-4
assert wrong["SGD"][0][-1] < right["SGD"][0][-1]  # the run with the fault looks better
assert np.allclose(wrong["Adam"][0], right["Adam"][0], rtol=1e-4)


def adam_without_eps(factor):
    """Weights after five updates by given gradients, each times the factor."""
    p = mg.parameter(np.zeros(3))
    optimizer = mg.Adam([p], lr=0.1, eps=0)
    for gradient in np.random.default_rng(0).standard_normal((5, 3)):
        p.grad = factor * gradient
        optimizer.step()
    return p.data


assert np.array_equal(adam_without_eps(1), adam_without_eps(8))  # exact: 8 is a power of 2

figure, axes = plotting.subplots(1, 2, height=3.5)
steps = np.arange(1, updates + 1)
axes[0].plot(steps, right["SGD"][0], color=plotting.BLUE, ls="-", label="SGD, divided")
axes[0].plot(steps, wrong["SGD"][0], color=plotting.RED, ls="--", label="SGD, not divided")
axes[0].plot(steps, right["Adam"][0], color=plotting.GREY, lw=4, label="Adam, divided")
axes[0].plot(steps, wrong["Adam"][0], color=plotting.VIOLET, ls=":", label="Adam, not divided")
axes[0].set_title("What the log shows")
axes[0].set_xlabel("update")
axes[0].set_ylabel("loss of the window")
axes[0].set_ylim(0)
axes[0].legend(loc="lower left", fontsize=8.5)
for (name, distance), line, colour in zip(
    apart.items(), ("-", "--", ":"), (plotting.BLUE, plotting.ORANGE, plotting.VIOLET), strict=True
):
    axes[1].semilogy(steps, distance, ls=line, color=colour, label=name)
axes[1].set_title("How far the weights are apart")
axes[1].set_xlabel("update")
axes[1].set_ylabel("relative difference")
axes[1].set_ylim(1e-6, 10)
axes[1].legend(loc="center right")
plotting.show(
    figure,
    "05-who-hides",
    f"Nobody divided by k = {k}. Left: after {updates} updates SGD's loss is "
    f"{right['SGD'][0][-1]:.2f} with the division and {wrong['SGD'][0][-1]:.2f} without it, "
    f"lower; Adam's two curves lie on each other. Right: the weights of the pair differ by "
    f"{apart['SGD'][-1]:.0%} with SGD, {apart['Adam + decay'][-1]:.0%} with Adam and decay, and "
    f"less than 0.01% with Adam. The gradient of the first update is wrong by "
    f"{first_gradient['Adam']:.0%} in all three.",
)

# %% [markdown]
# Of three pairs of runs one hides the fault, and one looks *better* with it: for SGD it is a
# learning rate eight times as large, which here happens to be faster. No loss curve can be
# trusted to show a wrong divisor. One comparison does: the gradient of the window against the
# gradient of one batch, at the same weights, in float64. It is wrong by the same factor in all
# three, already at the first update.
#
# ## minigrad's answer: a sum with its weight, divided once
#
# A `mg.Loss` is no number but a list of terms: a unit, a coefficient, a sum, and what it weighs.
# The window adds sums and weights; `Window.finish` divides, at the end and nowhere else. There is
# no $1/k$ that anybody could own. **Before you run the next cell:** what should happen if a loop
# divides on its own? Then find the one line with `/=` in the code that it shows. (`self.sums` holds
# a sum and a weight for each unit. The gradients of the first unit add up in `.grad`, where the
# optimizer collects them; those of the others lie apart until they are divided.)

# %%
from minigrad.accumulation import Window

show_source(mg.losses.Term, Window.finish, Window._divide)

toy, x = Toy(), mg.fractions([1, 2, 3])
loss = mg.squared_error(toy(x), 2 * x)
print(loss, "\n")


def refused(attempt):
    """The message of the TypeError that the attempt must raise."""
    try:
        attempt()
    except TypeError as error:
        return str(error)
    raise AssertionError("it was not refused")


def divided(outputs, targets):
    return mg.squared_error(outputs, targets).mean() / 2


first = refused(lambda: loss / 2)
second = refused(lambda: mg.accumulate(toy, divided, (x, 2 * x), micro_batch_size=1))
print("loss / 2:        ", first)
print("loss.mean() / 2: ", second)
assert "the window divides, once" in first
assert "expected a Loss" in second
assert loss.terms[0].weight == len(x)
assert loss.sum().item() == len(x) * loss.mean().item()

# %% [markdown]
# ## Usual mistakes
#
# - "Divide by $k$, always." Right for means of equal parts. For uneven parts the weight is $n_j/N$.
# - "The micro-batches hold $b$ sentences each, so they are equal." The unit is the token: counts
#   of tokens are uneven where counts of sentences are not.
# - Dividing by the size of the rectangle. Padding counts for nothing; divide by the tokens.
# - Dividing in the loop *and* in the library that it calls. One object owns the division.
# - "The sum needs no scaling." Then it is a sum batch, and the learning rate must be divided by
#   $N$.
# - Guarding a count with `max(count, 1)` inside a mean of means. It removes the NaN and leaves the
#   wrong weight: a part with nothing to count is still one of $k$.
# - "Both loss curves agree, so the gradient is right", or "the loss went down faster, so it is
#   better". Compare gradients at the same weights.
#
# ## In short
#
# - Add sums, add what they weigh, and divide once, at the end, each unit by its own weight.
# - A mean of means is wrong by $-\mathrm{Cov}(T, m)/\mathrm{mean}(T)$: here the gradient far more
#   than the loss.
# - A sum loss gives the sum batch: $N$ times the gradient of the mean.
# - The tail is divided by what was seen; a penalty counts once; what is masked adds nothing.
# - Adam hides a missing division, SGD shows it as another learning rate: test the gradient.
#
# ## References
#
# - Y. Bengio, R. Ducharme, P. Vincent, C. Jauvin (2003). A neural probabilistic language model.
#   *Journal of Machine Learning Research* 3. The kind of model that is used here, for words.
# - D. P. Kingma, J. Ba (2015). Adam: a method for stochastic optimization. *ICLR*.
# - Unsloth (2024). Bugs in LLM training: gradient accumulation fix. The mean of means over tokens.
# - Hugging Face (2024). Fixing gradient accumulation.
# - PyTorch (2022). Issue 72047. Class-weighted means do not accumulate.
# - Python Software Foundation (2023). *The Python Language Reference*. The text.
