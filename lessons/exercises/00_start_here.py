# %% [markdown]
# # Exercises 00: small batches as one large one
#
# They train the words and the one rule of the course: add, and divide once. They belong to lesson
# [00](../00_start_here.ipynb). About 25 minutes.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises an error, and run the check below
# it: it says why an answer is wrong. A cell without an answer stops with `NotImplementedError`, and
# its check with `NameError`: nothing is broken there, it waits for you.

# %%
import numpy as np

import minigrad as mg
from minigrad.checking import (
    WrongAnswer,
    check,
    chosen,
    corrected,
    forbid,
    grade,
    predicted,
    score,
)
from minigrad.data import digits
from minigrad.demo import ROUNDING, units

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
k = 8  # micro-batches of 1.
batch_size = 50  # samples of 2.
micro_batch_size = 8  # samples at a time, in 2.
stays = 600  # MB of weights, gradient and optimizer, in 3.
per_sample = 20  # MB for each sample that is worked on, in 3.
large = 96  # samples at once, in 3.
small = 8  # samples of a micro-batch, in 3.
x = [[2, -1], [1, 3], [1, -2], [2, 0], [2, -1], [3, 2], [0, -2], [-1, 2]]  # inputs of 4.
t = [-3, 3, -3, -3, 0, 3, 3, -1]  # right answers of 4.
part = 5  # samples of a micro-batch of 4.
### BEGIN PLANTED
fault = "A"  # which loop stands in 4.
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    values = {
        "k": int(rng.choice([2, 4, 8, 16])),
        "batch_size": int(rng.integers(30, 90)),
        "micro_batch_size": int(rng.integers(5, 12)),
        "stays": 50 * int(rng.integers(6, 20)),
        "per_sample": 5 * int(rng.integers(2, 8)),
        "large": int(rng.choice([48, 72, 96, 128])),  # large / small is never small
        "small": int(rng.choice([4, 6, 8, 12])),
        "fault": str(rng.choice(["A", "B", "C"])),
    }
    while values["batch_size"] % values["micro_batch_size"] == 0:
        values["batch_size"] += 1
    while True:  # until every wrong answer is another one than the right one
        n, part = int(rng.integers(7, 12)), int(rng.integers(3, 5))
        x, t = rng.integers(-3, 4, (n, 2)), rng.integers(-3, 4, n)
        g = (x.sum(axis=1) - t)[:, None] * x
        means = [g[first : first + part].mean(axis=0) for first in range(0, n, part)]
        full = n // part * part
        answers = [
            g.mean(axis=0),
            np.mean(means, axis=0),
            np.sum(means, axis=0),
            g.sum(axis=0),
            means[-1],
            means[-1] / len(means),
            g[full:].sum(axis=0) / n,
            g[:full].mean(axis=0),
            g[:full].sum(axis=0) / n,
            g.sum(axis=0) / (len(means) * part),
            np.sum(means, axis=0) / n,
            np.sum(means, axis=0) / part,
            g[:part].sum(axis=0) / n,
        ]
        apart = [abs(p - q).max() for i, p in enumerate(answers) for q in answers[:i]]
        if n % part and min(apart) > 0.05:
            return {**values, "x": x.tolist(), "t": t.tolist(), "part": part}


# %% [markdown]
# ## 1. Predict: too long, and a smaller rate (1 point + 1)
#
# The loop of the lesson that forgets to divide did not settle: it adds up the *means* of {{k}}
# equal micro-batches. Somebody does not look for the fault, but tries smaller learning rates. At
# last the rate is $1/{{k}}$ of the one that is right for one batch. The optimizer is SGD with
# momentum.
#
# What does the loss of this loop do, compared with that of one batch at the right rate?
#
# - `"the same"`: the two curves lie on each other;
# - `"slower"`: it falls, but about {{k}} times more slowly;
# - `"unsettled"`: it still does not settle.

# %% answer="00-predict"
# Assign one of the three words to `prediction`.
### BEGIN SOLUTION
prediction = "the same"
### END SOLUTION

# %% check="00-predict"
predicted(prediction, among=["the same", "slower", "unsettled"])

# %% test="00-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction, among=["the same", "slower", "unsettled"]))
### END HIDDEN TESTS

# %% wrong="no prediction" of="00-predict" earns=0 because="no prediction yet"
prediction = None

# %% [markdown]
# Now run it: 12 updates with 128 digits each.

# %% check="00-predict-experiment"
predicted(prediction, among=["the same", "slower", "unsettled"])


def losses_of(parts, lr):
    """The loss of each batch, where the means of the parts are added up and nothing is divided."""
    mg.manual_seed(0)
    model = mg.MLP(64, 32, 10, dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), lr=lr, momentum=0.9)
    images, labels = digits(np.float64)[0]
    losses = []
    for first in range(0, len(images), 128):
        model.zero_grad()
        total = 0.0
        for rows in np.split(np.arange(first, first + 128), parts):
            loss = mg.cross_entropy(model(images[rows]), labels[rows])
            loss.mean().backward()
            total += loss.sum().item() / 128
        optimizer.step()
        losses.append(total)
    return losses


one_batch, no_division = losses_of(1, lr=0.1), losses_of(k, lr=0.1 / k)
print("one batch:    ", *(f"{loss:.2f}" for loss in one_batch))
print("no division:  ", *(f"{loss:.2f}" for loss in no_division))
print("you predicted:", prediction)
assert max(map(units, one_batch, no_division)) < ROUNDING

# %% [markdown]
# One sentence: what happened, and why? If you were right, say why it had to be so.

# %% answer="00-correct"
# Assign a sentence to `correction`.
### BEGIN SOLUTION
correction = "The sum of k means is k times the gradient, and a rate of 1/k takes the factor back."
### END SOLUTION

# %% check="00-correct"
corrected(correction)

# %% test="00-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="no sentence" of="00-correct" earns=0 because="expected 6 or more"
correction = "I was right."

# %% [markdown]
# So a curve that looks right proves nothing about the divisor: with another number of parts, or on
# a short last batch, the same loop is wrong again. Compare gradients.
#
# ## 2. Write: cut a batch (3 points)
#
# A batch of 11 samples in micro-batches of 4:
#
# ```
# samples    0 1 2 3 | 4 5 6 7 | 8 9 10
# sizes         4         4        3
# ```
#
# Write `sizes_of(N, b)`: the sizes of the micro-batches, in order, as a list. Each holds `b`
# samples but the last, which holds what is left. Four lines are enough. It is tried with
# {{batch_size}} samples in micro-batches of {{micro_batch_size}}, and with other numbers.


# %% answer="00-sizes"
def sizes_of(N, b):
    """The sizes of the micro-batches of a batch of N samples, b each, the last perhaps shorter.

    In plain words: take b samples as long as there are so many, then take the rest, if any.
    """
    ### BEGIN SOLUTION
    sizes = [b] * (N // b)
    if N % b:
        sizes.append(N % b)
    return sizes
    ### END SOLUTION


# %% check="00-sizes"
def check_sizes(N, b):
    """Every sample once; no micro-batch too large; as few as possible."""
    forbid(sizes_of, "micro_batches")
    sizes = sizes_of(N, b)
    if not isinstance(sizes, list):
        what = f"sizes_of({N}, {b}) returns {sizes!r}"
        raise WrongAnswer("no list", f"{what}, expected a list of sizes such as [4, 4, 3]")
    odd = [size for size in sizes if not isinstance(size, int | np.integer)]
    if odd:
        what = f"the list that sizes_of({N}, {b}) returns holds {odd[0]!r}"
        raise WrongAnswer("no whole number", f"{what}, expected whole numbers: how many samples")
    left_out = "the last, shorter micro-batch is left out: its samples never count"
    too_many = "the last micro-batch is counted as a full one, but there are no such samples"
    also = {"tail dropped": (N // b * b, left_out), "full tail": (-(-N // b) * b, too_many)}
    what = f"of {N} samples in micro-batches of {b}, "
    check(N, sum(sizes), what + "the sum of the sizes", also=also)
    expected = np.bincount(np.arange(N) // b)  # sample i goes to micro-batch i // b
    empty = "there is an empty micro-batch: nothing is left here after the full ones"
    also = {"empty": (len(expected) + sizes.count(0), empty)}
    check(len(expected), len(sizes), what + "the number of sizes", also=also)
    check(expected, sizes, what + "the sizes")


check_sizes(batch_size, micro_batch_size)
check_sizes(11, 4)
check_sizes(12, 4)

# %% test="00-sizes" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: check_sizes(batch_size, micro_batch_size),
    lambda: check_sizes(3 * micro_batch_size, micro_batch_size),
    lambda: check_sizes(batch_size, 1),
    lambda: check_sizes(micro_batch_size, batch_size),
    lambda: check_sizes(batch_size + 1, 7),
    partial={"tail dropped": 1, "full tail": 1},
)
### END HIDDEN TESTS


# %% wrong="tail dropped" of="00-sizes" earns=1 because="its samples never count"
def sizes_of(N, b):
    return [b] * (N // b)


# %% wrong="full tail" of="00-sizes" earns=1 because="counted as a full one"
def sizes_of(N, b):
    return [b for first in range(0, N, b)]


# %% wrong="the library does it" of="00-sizes" earns=0 because="which it is to do by itself"
def sizes_of(N, b):
    return [part.stop - part.start for part in mg.micro_batches(N, b)]


# %% wrong="no whole numbers" of="00-sizes" earns=0 because="expected whole numbers"
def sizes_of(N, b):
    return ["b"] * (N // b)


# %% [markdown]
# ## 3. Write: how much memory is saved? (2 points)
#
# A model and its optimizer hold {{stays}} MB that do not depend on the batch: weights, gradient,
# momentum. Each sample that is worked on needs {{per_sample}} MB more, until its gradient is there.
#
# ```
# all at once    [ stays ][ per_sample x N                                  ]
# in parts       [ stays ][ per_sample x b ]
# ```
#
# Write `times_less(stays, per_sample, N, b)`: how many times less memory do micro-batches of `b`
# samples need than all `N` samples at once? It is tried with N = {{large}} and b = {{small}}. What
# stays counts here. (The lesson has both factors: 5.5 times less beside what stays, 2.8 times less
# with it. This is the second.)


# %% answer="00-memory"
def times_less(stays, per_sample, N, b):
    """Memory of N samples at once, over memory of micro-batches of b samples: a number above 1."""
    ### BEGIN SOLUTION
    return (stays + per_sample * N) / (stays + per_sample * b)
    ### END SOLUTION


# %% check="00-memory"
def check_memory(stays, per_sample, N, b):
    """Against the two bars, one MB after the other."""
    bars = [stays, stays]
    for bar, samples in enumerate((N, b)):
        for _ in range(samples):
            bars[bar] += per_sample
    also = {
        "all of it shrinks": (N / b, "this is N / b, as if nothing stayed: add what stays to both"),
        "upside down": (bars[1] / bars[0], "this is the other way round: the larger one on top"),
        "a difference": (bars[0] - bars[1], "this is how many MB less, not how many times less"),
        "above": ((bars[0] - stays) / bars[1], "what stays is missing where all are at once"),
        "below": (bars[0] / (bars[1] - stays), "what stays is missing where the parts are"),
        "no brackets": (
            stays + per_sample * N / stays + per_sample * b,
            "the sums have no brackets, so that / takes only the numbers beside it",
        ),
    }
    check(bars[0] / bars[1], times_less(stays, per_sample, N, b), "times_less", also=also)


check_memory(stays, per_sample, large, small)
print(f"{large / small:.1f} times smaller parts, ", end="")
print(f"{times_less(stays, per_sample, large, small):.1f} times less memory")

# %% test="00-memory" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: check_memory(stays, per_sample, large, small),
    lambda: check_memory(7 * stays, per_sample, large, 1),
    lambda: check_memory(stays, 3 * per_sample, 5 * large, small + 1),
    partial={"all of it shrinks": 1, "upside down": 1},
)
### END HIDDEN TESTS


# %% wrong="all of it shrinks" of="00-memory" earns=1 because="as if nothing stayed"
def times_less(stays, per_sample, N, b):
    return N / b


# %% wrong="upside down" of="00-memory" earns=1 because="the other way round"
def times_less(stays, per_sample, N, b):
    return (stays + per_sample * b) / (stays + per_sample * N)


# %% wrong="a difference" of="00-memory" earns=0 because="not how many times less"
def times_less(stays, per_sample, N, b):
    return per_sample * (N - b)


# %% [markdown]
# ## 4. Find the fault (1 point + 2)
#
# The model is $w \cdot x$ with the loss $(w \cdot x - t)^2 / 2$, as in the lesson. The function
# below is to return the gradient of the mean loss of a batch, from micro-batches of `b` samples. It
# looks right. Run it, and compare it with the gradient of one batch. The batch has as many samples
# as `t` has numbers, and the last micro-batch is shorter than the others.

# %%
x, t, w = np.array(x, float), np.array(t, float), np.array([1.0, 1.0])
worked_on = []  # how many samples, each time that gradients_of is called


def gradients_of(x, t, w):
    """The gradient of each sample, one row each."""
    worked_on.append(len(x))
    return (x @ w - t)[:, None] * x


print("one batch:", gradients_of(x, t, w).mean(axis=0).round(3))


# %% when="fault == 'A'"
def found_in_the_wild(x, t, w, b):
    g = np.zeros(2)
    for first in range(0, len(x), b):
        rows = slice(first, first + b)
        g += gradients_of(x[rows], t[rows], w).mean(axis=0)
    return g


# %% when="fault == 'B'"
def found_in_the_wild(x, t, w, b):
    g, seen = np.zeros(2), 0
    for j in range(len(x) // b):
        rows = slice(j * b, (j + 1) * b)
        g += gradients_of(x[rows], t[rows], w).sum(axis=0)
        seen += len(x[rows])
    return g / seen


# %% when="fault == 'C'"
def found_in_the_wild(x, t, w, b):
    seen = 0
    for first in range(0, len(x), b):
        rows = slice(first, first + b)
        g = gradients_of(x[rows], t[rows], w).sum(axis=0)
        seen += len(x[rows])
    return g / seen


# %%
print("the loop, in micro-batches of", part, found_in_the_wild(x, t, w, part).round(3))
print("the loop, all at once        ", found_in_the_wild(x, t, w, len(x)).round(3))

# %% [markdown]
# With one part that holds everything the fault cannot be seen. Which one is it? The check below
# saves your choice; `minigrad check` says whether it is right, and if not, why.
#
# - `"it forgets to divide"`
# - `"it leaves out the last part"`
# - `"only the last part counts"`

# %% answer="00-fault"
# Assign one of the three to `fault_found`.
### BEGIN SOLUTION
fault_found = {
    "A": "it forgets to divide",
    "B": "it leaves out the last part",
    "C": "only the last part counts",
}[fault]
### END SOLUTION

# %% check="00-fault"
predicted(
    fault_found,
    among=["it forgets to divide", "it leaves out the last part", "only the last part counts"],
)

# %% test="00-fault" points=1
### BEGIN HIDDEN TESTS
looks = {
    "it forgets to divide": "it does divide: look at its last line",
    "it leaves out the last part": "the last part is there: count the rounds of its loop",
    "only the last part counts": "what came before is kept: look for the += in its loop",
}
planted = dict(zip("ABC", looks))[fault]
because = {name: sentence for name, sentence in looks.items() if name != planted}
grade(1, lambda: chosen(planted, fault_found, because=because))
### END HIDDEN TESTS

# %% when="fault == 'A'" wrong="not left out" of="00-fault" earns=0 because="the last part is there"
fault_found = "it leaves out the last part"

# %% when="fault == 'A'" wrong="kept" of="00-fault" earns=0 because="what came before is kept"
fault_found = "only the last part counts"

# %% when="fault == 'B'" wrong="divided" of="00-fault" earns=0 because="it does divide"
fault_found = "it forgets to divide"

# %% when="fault == 'C'" wrong="there" of="00-fault" earns=0 because="the last part is there"
fault_found = "it leaves out the last part"

# %% when="fault == 'C'" wrong="divided" of="00-fault" earns=0 because="it does divide"
fault_found = "it forgets to divide"

# %% [markdown]
# Now write it as it should be, for parts of any size: add, and divide once.


# %% answer="00-mend"
def gradient_of_batch(x, t, w, b):
    """The gradient of the mean loss of all samples, b of them worked on at a time.

    x: (N, 2), t: (N,), w: (2,). Returns (2,). The gradients come from `gradients_of`, which may be
    called with b rows at most.
    """
    ### BEGIN SOLUTION
    g = np.zeros(2)
    for first in range(0, len(x), b):
        rows = slice(first, first + b)
        g += gradients_of(x[rows], t[rows], w).sum(axis=0)
    return g / len(x)
    ### END SOLUTION


# %% check="00-mend"
def check_mended(x, t, b):
    """Against the gradient of one batch; and no more than b samples at a time."""
    each = (x @ w - t)[:, None] * x
    worked_on.clear()
    g = gradient_of_batch(x.copy(), t.copy(), w, b)
    parts = [each[first : first + b] for first in range(0, len(x), b)]
    means, sizes = [p.mean(axis=0) for p in parts], [len(p) for p in parts]
    early, inside = parts[0].sum(axis=0) / len(x), np.zeros(2)
    for p in parts:
        inside = (inside + p.sum(axis=0)) / len(x)
    also = {
        "last sum": (
            parts[-1].sum(axis=0) / len(x),
            "only the last micro-batch counts: each one overwrites the one before it; add (+=)",
        ),
        "early": (early, "only the first micro-batch counts: does the loop return too early?"),
        "inside": (inside, "the division stands inside the loop: divide once, after it"),
        "twice": (sum(means) / len(x), "the means were divided already: add sums, divide once"),
        "one number": (
            np.full(2, each.sum() / len(x)),
            "the derivatives by both weights are in one sum: sum over the samples alone",
        ),
    }
    check(each.mean(axis=0), g, "the gradient", parts=means, sizes=sizes, also=also)
    if sum(worked_on) < len(x):
        what = f"gradients_of() got {sum(worked_on)} samples in all, expected {len(x)}"
        raise WrongAnswer("not asked", f"{what}: take each sample's gradient from it")
    if max(worked_on) > b:
        what = f"gradients_of() got {max(worked_on)} samples at once, expected {b} at most"
        raise WrongAnswer("too many at once", f"{what}: cut the batch, that is what it is about")


check_mended(x, t, part)
score("samples worked on at once", max(worked_on), part)

# %% test="00-mend" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: check_mended(x, t, part),
    lambda: check_mended(x[:-1], t[:-1], 2),
    lambda: check_mended(x, t, 1),
    lambda: check_mended(x, t, len(x)),
    lambda: check_mended(np.array([[1.0, 2], [0, -1], [3, 1]]), np.array([1.0, -2, 4]), 2),
    partial={"mean of means": 1, "tail dropped": 1, "too many at once": 1},
)
### END HIDDEN TESTS


# %% wrong="mean of means" of="00-mend" earns=1 because="counts a short one as much"
def gradient_of_batch(x, t, w, b):
    g, parts = np.zeros(2), 0
    for first in range(0, len(x), b):
        rows = slice(first, first + b)
        g += gradients_of(x[rows], t[rows], w).mean(axis=0)
        parts += 1
    return g / parts


# %% wrong="sum of means" of="00-mend" earns=0 because="nothing was divided"
def gradient_of_batch(x, t, w, b):
    g = np.zeros(2)
    for first in range(0, len(x), b):
        rows = slice(first, first + b)
        g += gradients_of(x[rows], t[rows], w).mean(axis=0)
    return g


# %% wrong="tail dropped" of="00-mend" earns=1 because="last micro-batch is missing"
def gradient_of_batch(x, t, w, b):
    g, seen = np.zeros(2), 0
    for first in range(0, len(x) - b + 1, b):
        rows = slice(first, first + b)
        g += gradients_of(x[rows], t[rows], w).sum(axis=0)
        seen += b
    return g / seen


# %% wrong="not cut" of="00-mend" earns=1 because="cut the batch"
def gradient_of_batch(x, t, w, b):
    return gradients_of(x, t, w).mean(axis=0)


# %% [markdown]
# ## 5. In your words (2 points, a person reads it)
#
# A friend writes: "With {{k}} micro-batches my losses differ from those of one batch in the
# fifteenth digit, so accumulation is an approximation. But at least it needs {{k}} times less
# memory." Answer in three or four sentences.
#
# 2 points: both statements are put right, each with its reason: where the difference comes from,
# and which memory becomes less. 1 point: one of them with its reason, or both without. 0 points:
# neither.

# %% [markdown] manual="00-why" points=2
# Both gradients are the same sum, divided by the same number; only the order of the additions
# differs, and so the last digits do, by rounding. An approximation would not come closer with more
# digits. The memory that shrinks is that of the samples that are worked on; the weights, their
# gradient and the optimizer's state stay as they are, so that the saving is less than {{k}} times.
