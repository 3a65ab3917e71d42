# %% [markdown]
# # Exercises 05: who divides, by what, and when?
#
# You predict the error of a mean of means, write the one division of a window, and find and mend
# the wrong divisor of a loop over real text.
# They belong to the lesson [05_sum_or_mean](../05_sum_or_mean.ipynb). About 45 minutes.
# {{practice}}
#
# Write your answers below `# YOUR CODE HERE` (delete the line that raises), then run the cell below
# each answer: it says at once whether it is right, and if not, why.

# %%
import numpy as np

import minigrad as mg
from minigrad import data
from minigrad.checking import check, chosen, corrected, forbid, grade, predicted

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
counts = [2, 8, 5]  # exercise 1: tokens of each micro-batch
means = [4.0, 0.5, 2.0]  # exercise 1: their mean losses
tokens = [5, 9, 0, 2]  # exercise 2: tokens of each micro-batch; in one of them nothing counts
seed = 0  # exercise 2: of the gradients
token_sums = [12, 3, 9]  # exercise 3: sums of the main losses of three micro-batches
token_counts = [4, 2, 6]  # exercise 3: over how many tokens
extra_sums = [5, 8, 2]  # exercise 3: sums of the auxiliary losses
sample_counts = [2, 2, 1]  # exercise 3: over how many samples
coefficient = 0.25  # exercise 3: of the auxiliary loss
k = 3  # exercise 4: micro-batches of a window
b = 2  # exercise 4: sentences of a micro-batch
rows = [3, 60, 17, 101, 44, 9, 150, 71, 28, 122, 5, 90, 33, 180]  # exercise 4: which sentences
### BEGIN PLANTED
fault = "rectangle"  # exercise 4
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    def differ(*values):
        return min(abs(a - c) for i, a in enumerate(values) for c in values[:i]) > 0.01

    def mean(values, weights):
        return sum(v * w for v, w in zip(values, weights)) / sum(weights)

    while True:
        counts = rng.choice(np.arange(1, 13), 3, replace=False).tolist()
        means = (rng.choice(np.arange(1, 13), 3, replace=False) / 2).tolist()
        if abs(mean(means, counts) - sum(means) / 3) > 0.1:
            break
    tokens = rng.choice(np.arange(1, 13), 4, replace=False).tolist()
    tokens[int(rng.integers(0, 3))] = 0
    while True:
        main, extra = rng.integers(2, 15, 3).tolist(), rng.integers(2, 15, 3).tolist()
        T = rng.choice(np.arange(2, 9), 3, replace=False).tolist()
        n = rng.permutation([1, 2, 2]).tolist()
        c = float(rng.choice([0.125, 0.25, 0.5]))
        right = sum(main) / sum(T) + c * sum(extra) / sum(n)
        each = sum(m / t + c * a / s for m, t, a, s in zip(main, T, extra, n)) / 3
        both = sum(main) + c * sum(extra)
        one, bare = sum(main) / sum(T), sum(extra) / sum(n)
        wrong = each, 3 * each, one + bare, c * (one + bare), both, both / sum(T), both / sum(n)
        if differ(right, *wrong, -right, right / 3, 3 * right):
            break

    from minigrad import data

    lengths = np.array([len(sentence) for sentence in data.sentences()])
    k, b = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    micro_batches = 2 * k + int(rng.integers(1, k))
    while True:  # padding in every micro-batch, and uneven counts in every window
        rows = rng.choice(len(lengths), (micro_batches, b), replace=False)
        held = lengths[rows].sum(axis=1)
        uneven = [np.ptp(held[j : j + k]) for j in (0, k)]
        if np.ptp(lengths[rows], axis=1).min() > 5 and min(uneven) > 20:
            break
    return {
        "counts": counts,
        "means": means,
        "tokens": tokens,
        "seed": int(rng.integers(1, 1000)),
        "token_sums": main,
        "token_counts": T,
        "extra_sums": extra,
        "sample_counts": n,
        "coefficient": c,
        "k": k,
        "b": b,
        "rows": rows.ravel().tolist(),
        "fault": str(rng.choice(["mean of means", "rectangle", "two owners", "tail"])),
    }


# %% [markdown]
# ## 1. Predict: by how much is the mean of means wrong? (1 point, and 1 for the correction)
#
# Three micro-batches hold {{counts}} tokens. Their mean losses are {{means}}. Somebody takes the
# mean of the three means in place of the mean over all tokens.
#
# By how much is it too large? Write a number, negative if it is too small. Your prediction need
# not be right: it needs to be there before you run the experiment.

# %% answer="05-predict"
# Assign a number to `prediction`.
### BEGIN SOLUTION
T, m = np.array(counts), np.array(means)
prediction = float(-((T * m).mean() - T.mean() * m.mean()) / T.mean())
### END SOLUTION

# %% check="05-predict"
predicted(prediction)

# %% test="05-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="none" of="05-predict" earns=0 because="there is no prediction yet"
prediction = None

# %% check="05-predict-experiment"
predicted(prediction)
parts = [mg.per_sample(mg.Tensor(np.full(n, loss))) for n, loss in zip(counts, means)]
naive = sum(part.mean().item() for part in parts) / len(parts)
right = sum(part.sum().item() for part in parts) / sum(counts)
print(f"mean of means {naive:.4f}, mean over all tokens {right:.4f}")
print(f"too large by {naive - right:.4f}; you predicted {prediction:.4f}")

# %% [markdown]
# One sentence: what happened, and why? If you were right: why did it have to be so?

# %% answer="05-correct"
# Assign a sentence to `correction`.
### BEGIN SOLUTION
correction = "The error is minus the covariance of counts and means, divided by the mean count."
### END SOLUTION

# %% check="05-correct"
corrected(correction)

# %% test="05-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="05-correct" earns=0 because="expected 6 or more"
correction = "I was wrong."

# %% [markdown]
# ## 2. Write: the gradient of a window, from means and counts (3 points)
#
# A library gives you, for each micro-batch, the *mean* gradient over its tokens and the number of
# tokens. You want the mean gradient over all tokens of the window. In plain loops:
#
# ```
# for each element of the gradient:
#     add, over all micro-batches, (its mean gradient) times (its number of tokens)
#     divide by the number of tokens of the whole window
# ```
#
# A micro-batch in which no token counts has a mean gradient of 0/0, that is, NaN everywhere. It
# must change nothing. If no token of the whole window counts, the gradient is 0.

# %%
print("Tokens that count (#) and padding (.) of each micro-batch:")
for n in tokens:
    print("  " + "#" * n + "." * (max(tokens) - n), n)


# %% answer="05-window"
def window_gradient(means, counts):
    """The mean gradient over all tokens of a window.

    means: a list of arrays of one shape, the mean gradient of each micro-batch; NaN where no token
    counts. counts: a list of integers, the tokens of each. Returns an array of that shape.
    """
    ### BEGIN SOLUTION
    total, seen = np.zeros_like(means[0]), 0
    for mean, n in zip(means, counts, strict=True):
        if n:
            total += n * mean
            seen += n
    return total / max(seen, 1)
    ### END SOLUTION


# %% check="05-window"
def means_for(counts, shape=(2, 3)):
    """Mean gradients as the library gives them."""
    rng = np.random.default_rng([seed, *counts])
    return [rng.integers(-8, 9, shape) / 4 if n else np.full(shape, np.nan) for n in counts]


def token_by_token(means, counts):
    """The slow way: one gradient for each token, and their mean."""
    each = [mean for mean, n in zip(means, counts) for _ in range(n)]
    return np.mean(each, axis=0) if each else np.zeros(means[0].shape)


def check_window(counts, name):
    means = means_for(counts)
    right, found = token_by_token(means, counts), window_gradient(means, counts)
    parts, sizes = [mean for mean, n in zip(means, counts) if n], [n for n in counts if n]
    if not parts:
        return check(right, found, name)
    total = sum(n * mean for mean, n in zip(parts, sizes))
    also = {
        "rectangle": (
            total / (len(counts) * max(counts)),
            "the divisor counts every micro-batch as a full one, padding too; divide by what "
            "counts",
        )
    }
    if 0 in counts:
        also["masked as a part"] = (
            sum(parts) / len(counts),
            "a micro-batch with nothing to count was counted as one of k; it must change nothing",
        )
    check(right, found, name, parts=parts, sizes=sizes, also=also)


def check_masked(counts):
    """Is there no NaN where a micro-batch has nothing to count?"""
    found = window_gradient(means_for(counts), counts)
    what = "there is a NaN: 0 times NaN is NaN, so leave out what has nothing to count"
    finite = float(np.all(np.isfinite(np.asarray(found, float))))
    check(1, finite, "a micro-batch with nothing to count", also={"masked": (0, what)})


REFUSED = "average", "accumulate", "train_step", "nansum", "nanmean", "nan_to_num", "token_by_token"
forbid(window_gradient, *REFUSED)
check_window([1, 3, 8], "three micro-batches")
check_masked(tokens)
check_window(tokens, "one of them masked")
check_window([0, 0], "nothing to count")

# %% test="05-window" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(window_gradient, *REFUSED),
    lambda: check_window([1, 3, 8], "three micro-batches"),
    lambda: check_window([n + 2 for n in tokens], "four micro-batches"),
    lambda: check_masked(tokens),
    lambda: check_window(tokens, "one of them masked"),
    lambda: check_window([0, *tokens], "the first one masked"),
    lambda: check_masked([0, 0]),
    lambda: check_window([0, 0], "nothing to count"),
    partial={"mean of means": 1, "masked": 2},
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="05-window" earns=1 because="counts a short one as much"
def window_gradient(means, counts):
    kept = [mean for mean, n in zip(means, counts) if n]
    return sum(kept, np.zeros_like(means[0])) / max(len(kept), 1)


# %% wrong="masked" of="05-window" earns=2 because="0 times NaN is NaN"
def window_gradient(means, counts):
    return sum(n * mean for mean, n in zip(means, counts)) / sum(counts)


# %% wrong="full divisor" of="05-window" earns=0 because="as a full one"
def window_gradient(means, counts):
    total = sum(n * mean for mean, n in zip(means, counts) if n)
    return total / (len(counts) * max(counts))


# %% [markdown]
# ## 3. Write: two units in one loss (2 points)
#
# The loss of a window is its main loss *per token*, plus {{coefficient}} times its auxiliary loss
# *per sample*. Three micro-batches have brought:
#
# | | micro-batches |
# |---|---|
# | sums of the main losses | {{token_sums}} |
# | tokens | {{token_counts}} |
# | sums of the auxiliary losses | {{extra_sums}} |
# | samples | {{sample_counts}} |
#
# Work it out by hand first, then write the function.


# %% answer="05-units"
def two_units(token_sums, token_counts, extra_sums, sample_counts, coefficient):
    """The loss of a window from the sums and counts of its micro-batches, each a list of k numbers.

    It is what one large micro-batch would give: the mean over all tokens, plus coefficient times
    the mean over all samples.
    """
    ### BEGIN SOLUTION
    main = sum(token_sums) / sum(token_counts)
    return main + coefficient * sum(extra_sums) / sum(sample_counts)
    ### END SOLUTION


# %% check="05-units"
def check_units(*lists):
    """Against one micro-batch that holds every token and every sample."""
    main, tokens_of, extra, samples_of, c = lists
    one = np.full(sum(tokens_of), sum(main) / sum(tokens_of))
    other = np.full(sum(samples_of), sum(extra) / sum(samples_of))
    loss = mg.per_sample(mg.Tensor(one), unit="token") + c * mg.per_sample(mg.Tensor(other))
    both = sum(main) + c * sum(extra)
    each = [m / t + c * a / s for m, t, a, s in zip(main, tokens_of, extra, samples_of)]
    also = {
        "all by tokens": (
            both / sum(tokens_of),
            "all of it was divided by the tokens; the auxiliary loss counts samples, so that the "
            "two parts need a divisor each",
        ),
        "all by samples": (
            both / sum(samples_of),
            "all of it was divided by the samples; the main loss counts tokens, so that the two "
            "parts need a divisor each",
        ),
        "mean of means": (
            sum(each) / len(each),
            "this is the mean of the micro-batches' losses, each divided by its own counts; add "
            "sums and counts over the window first, and divide once",
        ),
        "sum of losses": (
            sum(each),
            "this is the sum of the micro-batches' losses, each divided by its own counts; add "
            "sums and counts over the window first, and divide once",
        ),
        "no coefficient": (one[0] + other[0], "the coefficient of the auxiliary loss is missing"),
        "coefficient of all": (
            c * (one[0] + other[0]),
            "the coefficient belongs to the auxiliary loss alone",
        ),
        "not divided": (both, "nothing was divided: the loss is one per token and one per sample"),
    }
    check(loss.mean().item(), two_units(*lists), "the loss", also=also, k=len(main))


check_units(token_sums, token_counts, extra_sums, sample_counts, coefficient)

# %% test="05-units" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: check_units(token_sums, token_counts, extra_sums, sample_counts, coefficient),
    lambda: check_units([3, 8], [1, 7], [4, 1], [1, 2], 0.5),
    lambda: check_units([5], [4], [2], [3], 0.25),
    partial={"mean of means": 1},
)
### END HIDDEN TESTS


# %% wrong="all by tokens" of="05-units" earns=0 because="need a divisor each"
def two_units(token_sums, token_counts, extra_sums, sample_counts, coefficient):
    return (sum(token_sums) + coefficient * sum(extra_sums)) / sum(token_counts)


# %% wrong="all by samples" of="05-units" earns=0 because="the main loss counts tokens"
def two_units(token_sums, token_counts, extra_sums, sample_counts, coefficient):
    return (sum(token_sums) + coefficient * sum(extra_sums)) / sum(sample_counts)


# %% wrong="no coefficient" of="05-units" earns=0 because="the coefficient"
def two_units(token_sums, token_counts, extra_sums, sample_counts, coefficient):
    return sum(token_sums) / sum(token_counts) + sum(extra_sums) / sum(sample_counts)


# %% wrong="mean of means" of="05-units" earns=1 because="add sums and counts over the window first"
def two_units(token_sums, token_counts, extra_sums, sample_counts, coefficient):
    each = zip(token_sums, token_counts, extra_sums, sample_counts)
    return sum(m / t + coefficient * a / s for m, t, a, s in each) / len(token_sums)


# %% [markdown]
# ## 4. Find the fault (1 point), and mend it (2 points)
#
# Real sentences, in micro-batches of {{b}}, and a model that is a table: row $c$ holds the logits
# of the character after $c$. The loop below goes through an epoch in windows of $k = {{k}}$
# micro-batches and returns the gradient of each window; the last one is shorter. The weights stand
# still, so that all windows can be compared with their right gradients. It runs without an error
# and looks like many loops, and it divides wrongly.

# %%
PAD = -100
text = data.sentences()
alphabet = sorted(set("".join(text)))
place = {character: i for i, character in enumerate(alphabet, start=1)}


def encode(sentences):
    """inputs (n, width): the character before each; labels (n, width): each, then padding."""
    labels = np.full((len(sentences), max(map(len, sentences))), PAD)
    for row, sentence in zip(labels, sentences):
        row[: len(sentence)] = [place[character] for character in sentence]
    before = np.where(labels == PAD, 0, labels)
    return np.pad(before, ((0, 0), (1, 0)))[:, :-1], labels


def pairs(inputs, labels, size):
    """How often each character (column) came after each (row), where it counts."""
    found = np.zeros((size, size))
    np.add.at(found, (inputs[labels != PAD], labels[labels != PAD]), 1)
    return found


def new_model():
    """The table: log(1 + how often) over all of the text, as good as a trained one."""
    size = len(alphabet) + 1
    model = mg.Embedding(size, size, dtype=np.float64)
    model.weight.data[...] = np.log1p(pairs(*encode(text), size))
    return model


micro_batches = [encode([text[row] for row in rows[j : j + b]]) for j in range(0, len(rows), b)]
for j, (_, labels) in enumerate(micro_batches):
    print(f"micro-batch {j}: {(labels != PAD).sum():4} tokens in a rectangle of {labels.size}")


# %% when="fault == 'mean of means'"
def gradients_of_an_epoch(model, micro_batches, k):
    """The gradient of each window, a list of arrays."""
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        for inputs, labels in window:
            loss = mg.cross_entropy(model(inputs), labels, ignore_index=PAD).mean()
            (loss / len(window)).backward()
        found.append(model.weight.grad.copy())
        model.zero_grad()
    return found


# %% when="fault == 'rectangle'"
def gradients_of_an_epoch(model, micro_batches, k):
    """The gradient of each window, a list of arrays."""
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        N = sum(len(labels) * labels.shape[1] for _, labels in window)
        for inputs, labels in window:
            loss = mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum()
            (loss / N).backward()
        found.append(model.weight.grad.copy())
        model.zero_grad()
    return found


# %% when="fault == 'two owners'"
def scaled_backward(loss, k):
    """What the trainer calls: accumulation is taken care of."""
    (loss / k).backward()


def gradients_of_an_epoch(model, micro_batches, k):
    """The gradient of each window, a list of arrays."""
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        N = sum(int((labels != PAD).sum()) for _, labels in window)
        for inputs, labels in window:
            loss = mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum()
            scaled_backward(loss / N, k)
        found.append(model.weight.grad.copy())
        model.zero_grad()
    return found


# %% when="fault == 'tail'"
def gradients_of_an_epoch(model, micro_batches, k):
    """The gradient of each window, a list of arrays."""
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        tokens_each = np.mean([(labels != PAD).sum() for _, labels in window]).item()
        for inputs, labels in window:
            loss = mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum()
            (loss / tokens_each / k).backward()
        found.append(model.weight.grad.copy())
        model.zero_grad()
    return found


# %% [markdown]
# Below, each window's gradient is held against the right one. Since the model is a table, the right
# one can be counted, without any autograd: row $c$ is the softmax of its logits times the number of
# tokens after $c$, minus how often each character came there, all of it divided by the number of
# tokens. Two gradients may differ in length, in direction (an angle above 0), or in both.


# %%
def counted_sum(table, found):
    """The gradient of the loss sum of these pairs."""
    p = np.exp(table - table.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p * found.sum(axis=1, keepdims=True) - found


def right_gradients(table, micro_batches, k):
    """The mean gradient over all tokens of each window, counted: (windows, rows, columns)."""
    right = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        found = sum(pairs(x, y, len(table)) for x, y in window)
        right.append(counted_sum(table, found) / found.sum())
    return np.array(right)


model = new_model()
right = right_gradients(model.weight.data, micro_batches, k)
for j, (r, found) in enumerate(zip(right, gradients_of_an_epoch(model, micro_batches, k))):
    length, right_length = np.linalg.norm(found), np.linalg.norm(r)
    angle = np.degrees(np.arccos(min(1, (found * r).sum() / length / right_length)))
    print(f"window {j}: {length / right_length:.3f} times as long as right, turned by {angle:.1f}°")

# %% [markdown]
# Which fault is it? One of
#
# - `"mean of means"`: each micro-batch is divided by its own tokens;
# - `"rectangle"`: padding is counted;
# - `"two owners"`: two places divide;
# - `"tail"`: the last window is divided as if it were full.

# %% answer="05-name"
# Assign one of the four names to `fault_found`.
### BEGIN SOLUTION
fault_found = fault
### END SOLUTION

# %% check="05-name"
predicted(fault_found, among=["mean of means", "rectangle", "two owners", "tail"])

# %% test="05-name" points=1
### BEGIN HIDDEN TESTS
because = {
    "mean of means": "a mean of means turns the gradient by degrees, and these all point the right "
    "way; ask what changes their length alone",
    "rectangle": "counting padding makes each window's gradient shorter by its share of padding, "
    "and turns none; ask whether the divisor of this loop contains padding",
    "two owners": "two owners of 1/k make every window exactly k times too short; compare the "
    "lengths of all windows with 1/k",
    "tail": "a wrong tail leaves all full windows right: only the last one would be too "
    "short; compare the windows",
}
grade(
    1,
    lambda: predicted(fault_found, among=[*because]),
    lambda: chosen(fault, fault_found, {name: because[name] for name in because if name != fault}),
)
### END HIDDEN TESTS

# %% wrong="tail" of="05-name" earns=0 because="all full windows right" when="fault != 'tail'"
fault_found = "tail"

# %% wrong="means" of="05-name" earns=0 because="turns the" when="fault != 'mean of means'"
fault_found = "mean of means"

# %% [markdown]
# Now write the loop so that each window's gradient is that of the mean over its tokens, with
# `mg.cross_entropy` and `backward()`, but without minigrad's own accumulation. A micro-batch
# in which nothing counts must change nothing.


# %% answer="05-mend"
def mended(model, micro_batches, k):
    """The gradient of each window, a list of arrays: the mean over all tokens of the window.

    model: a table, its weight is `model.weight`. micro_batches: a list of (inputs, labels), where
    padding has the label PAD. k: how many of them make a window; the last window may have fewer.
    """
    ### BEGIN SOLUTION
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        model.zero_grad()
        N = sum(int((labels != PAD).sum()) for _, labels in window)
        for inputs, labels in window:
            mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum().backward()
        found.append(model.weight.grad / N)
    model.zero_grad()
    return found
    ### END SOLUTION


# %% check="05-mend"
def check_mended(micro_batches, name):
    model = new_model()
    table = model.weight.data
    right, means, last = right_gradients(table, micro_batches, k), [], []
    share, tail, N = [], [], []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        each = [pairs(x, y, len(table)) for x, y in window]
        means.append(sum(counted_sum(table, p) / max(p.sum(), 1) for p in each) / len(window))
        N.append(sum(p.sum() for p in each))
        last.append(counted_sum(table, each[-1]) / N[-1])
        share.append(N[-1] / sum(y.size for _, y in window))
        tail.append(len(window) / k)
    as_factor = lambda values: np.reshape(values, (-1, 1, 1))  # noqa: E731
    also = {
        "mean of means": (
            np.array(means),
            "each micro-batch is divided by its own tokens, so that a short one counts as much as "
            "a long one; divide the sums by the tokens of the whole window",
        ),
        "rectangle": (
            right * as_factor(share),
            "the divisor counts padding; only labels other than PAD count",
        ),
        "tail": (
            right * as_factor(tail),
            "the last window is divided as if it were full; divide it by what it holds",
        ),
        "not divided": (
            right * as_factor(N),
            "these are the gradients of the sums: nothing was divided by the tokens",
        ),
        "cleared inside": (
            np.array(last),
            "each window has what its last micro-batch alone brings: clear only between windows",
        ),
        "not cleared": (
            np.cumsum(right * as_factor(N), axis=0) / as_factor(N),
            "each window adds to what the one before it left in `.grad`: clear between windows",
        ),
    }
    found = mended(model, micro_batches, k)
    check(right, found if found is None else np.array(found), name, also=also, k=k)


LIBRARY = "accumulate", "train_step", "Accumulator", "Window", "right_gradients", "counted_sum"
forbid(mended, *LIBRARY)
check_mended(micro_batches, "the gradients")

# %% test="05-mend" points=2
### BEGIN HIDDEN TESTS
masked = [*micro_batches]
masked[1] = (masked[1][0], np.full_like(masked[1][1], PAD))
grade(
    2,
    lambda: forbid(mended, *LIBRARY),
    lambda: check_mended(micro_batches, "the gradients"),
    lambda: check_mended(micro_batches[1:], "another cut"),
    lambda: check_mended(masked, "a micro-batch with nothing to count"),
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="05-mend" earns=0 because="a short one counts as much"
def mended(model, micro_batches, k):
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        model.zero_grad()
        for inputs, labels in window:
            mg.cross_entropy(model(inputs), labels, ignore_index=PAD).mean().backward()
        found.append(model.weight.grad / len(window))
    return found


# %% wrong="not cleared" of="05-mend" earns=0 because="left in `.grad`"
def mended(model, micro_batches, k):
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        for inputs, labels in window:
            mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum().backward()
        found.append(model.weight.grad / sum((labels != PAD).sum() for _, labels in window))
    return found


# %% wrong="rectangle" of="05-mend" earns=0 because="the divisor counts padding"
def mended(model, micro_batches, k):
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        model.zero_grad()
        for inputs, labels in window:
            mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum().backward()
        found.append(model.weight.grad / sum(labels.size for _, labels in window))
    return found


# %% wrong="two owners" of="05-mend" earns=0 because="divided by k twice"
def mended(model, micro_batches, k):
    found = []
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        model.zero_grad()
        N = sum(int((labels != PAD).sum()) for _, labels in window)
        for inputs, labels in window:
            loss = mg.cross_entropy(model(inputs), labels, ignore_index=PAD).sum() / N
            (loss / k).backward()
        found.append(model.weight.grad.copy())
    return found


# %% [markdown]
# ## 5. In your own words (2 points, given by a person)
#
# A colleague trains with Adam, without weight decay. "I forgot to divide by $k = 8$, and mended it.
# The two loss curves lie on each other. So the division does not matter."
#
# Say in three or four sentences why the curves agree, in which run the same fault would show, and
# which *one* comparison proves it at once, with the number that you expect from it.
#
# *2 points:* the reason comes from Adam's formula; a run is named that shows the fault; the
# comparison would find any wrong divisor, says what is held equal on both sides, and its number is
# right. *1 point:* the comparison would find it, but the reason or the number is missing; or reason
# and run are right, and the comparison is missing. *0 points:* otherwise.

# %% [markdown] manual="05-why" points=2
# Adam divides the averaged gradient by the root of its averaged square. With eight times the
# gradient both are eight times as large, and the update is the same but for `eps`. SGD would move
# eight times as far, and Adam with weight decay in the gradient would decay eight times too little
# in proportion. I would compare the window's gradient with the gradient of one batch at the same
# weights, in float64: the faulty one is 8 times as long, so that their relative difference is 7.
