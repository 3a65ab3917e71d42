# %% [markdown]
# # Exercises 07: why are k micro-batches not one batch for BatchNorm?
#
# You predict how the bias of the gradient falls, write the way back through mean and variance, and
# find and mend the fault of a loop that keeps running statistics.
# They belong to the lesson [07_batchnorm_diverges](../07_batchnorm_diverges.ipynb). About 45
# minutes.
# {{practice}}
#
# Write your answers below `# YOUR CODE HERE` (delete the line that raises), then run the cell below
# each answer: it says at once whether it is right, and if not, why.

# %%
import tracemalloc
import weakref

import numpy as np

import minigrad as mg
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score
from minigrad.data import digits

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
N = 64  # exercise 1: samples of the batch
b1 = 4  # exercise 1: a micro-batch of which the bias is known
b2 = 16  # exercise 1: another one
n = 5  # exercise 2: samples
seed = 0  # exercise 2: of the inputs
m = 0.25  # exercise 3: the momentum
windows = [[[1, 3, 2], [9, 7]], [[0, 2, 4, 2], [8, 10, 12]], [[5, 1, 3], [11, 7, 9, 13]]]  # 3
### BEGIN PLANTED
fault = "inside"  # exercise 3
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    N, b1, b2 = [(48, 4, 16), (64, 4, 32), (64, 8, 32), (96, 4, 32), (96, 8, 32)][rng.integers(5)]
    m = float(rng.choice([0.125, 0.25, 0.5]))

    def moments(window):
        """Mean and variance that the right loop and each faulty one would move towards."""
        parts = [np.array(part, float) for part in window]
        whole = np.concatenate(parts)
        n, sizes = len(whole), [len(part) for part in parts]
        inside = sum(len(p) * p.var() for p in parts) / (n - 1)
        middle = np.mean([p.mean() for p in parts])
        return [
            (whole.mean(), whole.var(ddof=1)),
            (whole.mean(), inside),
            (middle, ((whole - middle) ** 2).sum() / (n - 1)),
            (whole.mean(), whole.var()),
        ], sizes

    while True:
        drawn = []
        for _ in range(3):
            sizes = rng.choice([2, 3, 4, 5], int(rng.integers(2, 4)), replace=False)
            middles = rng.permutation([0, 8, 16])[: len(sizes)]
            drawn.append(
                [(at + rng.integers(0, 6, size)).tolist() for at, size in zip(middles, sizes)]
            )
        good = True
        for window in drawn:
            (right, inside, means, divisor), _ = moments(window)
            apart = abs(right[1] - inside[1]), abs(right[0] - means[0]), abs(inside[1] - divisor[1])
            varied = all(len(set(part)) > 1 for part in window)
            good &= min(apart) > 0.5 and varied
        if good:
            break
    return {
        "N": N,
        "b1": b1,
        "b2": b2,
        "n": int(rng.integers(4, 9)),
        "seed": int(rng.integers(1, 1000)),
        "m": m,
        "windows": drawn,
        "fault": str(rng.choice(["each", "inside", "means", "divisor"])),
    }


# %% [markdown]
# ## 1. Predict: how does the bias fall? (1 point, and 1 for the correction)
#
# A batch of {{N}} digits is cut at random into micro-batches, and BatchNorm standardizes each by
# its own statistics. The bias is the error of the mean gradient over many such cuts.
#
# How many times smaller is it with micro-batches of {{b2}} than with micro-batches of {{b1}}? Write
# a number; the lesson has a law for it. Your prediction need not be right: it needs to be there
# before you run the experiment.

# %% answer="07-predict"
# Assign a number to `prediction`.
### BEGIN SOLUTION
prediction = (1 / b1 - 1 / N) / (1 / b2 - 1 / N)
### END SOLUTION

# %% check="07-predict"
predicted(prediction)

# %% test="07-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="none" of="07-predict" earns=0 because="there is no prediction yet"
prediction = None

# %% check="07-predict-experiment"
predicted(prediction)
(x_train, y_train), _ = digits(np.float64)
rng = np.random.default_rng(0)
first = mg.Linear(64, 6, bias=False, rng=rng, dtype=np.float64)
last = mg.Linear(6, 10, rng=rng, dtype=np.float64)


def mean_gradient(rows, b):
    """The gradient over these rows, in micro-batches of b, each with its own statistics."""
    hidden = mg.functions.standardize(first(x_train[rows]).reshape(-1, b, 6), 1, 1e-5)
    loss = mg.cross_entropy(last(mg.tanh(hidden.reshape(-1, 6))), y_train[rows]).mean()
    first.weight.grad = last.weight.grad = last.bias.grad = None
    loss.backward()
    return np.concatenate([first.weight.grad.ravel(), last.weight.grad.ravel()])


one_batch, biases = mean_gradient(np.arange(N), N), {}
cuts = np.concatenate([np.random.default_rng(i).permutation(N) for i in range(400)])
for b in (b1, b2):
    biases[b] = np.linalg.norm(mean_gradient(cuts, b) - one_batch) / np.linalg.norm(one_batch)
    print(f"b = {b:2}: bias {biases[b]:.4f} of the gradient")
print(f"{biases[b1] / biases[b2]:.2f} times smaller; you predicted {prediction:.2f}")
print(f"the law says {(1 / b1 - 1 / N) / (1 / b2 - 1 / N):.2f}, and b2 / b1 would be {b2 / b1:.2f}")

# %% [markdown]
# One sentence: what happened, and why? If you were right: why did it have to be so? (The cuts are
# many and not all; expect a few percent of luck.)

# %% answer="07-correct"
# Assign a sentence to `correction`.
### BEGIN SOLUTION
correction = "The bias is proportional to 1/b - 1/N, and so falls faster than 1/b near one batch."
### END SOLUTION

# %% check="07-correct"
corrected(correction)

# %% test="07-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="07-correct" earns=0 because="expected 6 or more"
correction = "It fell faster."

# %% [markdown]
# ## 2. Write: the way back (3 points)
#
# Each column of `x` is standardized: $\hat x = (x - \mu)/s$, with the mean $\mu$ and the standard
# deviation $s$ of the column. What comes out has the gradient `g`. Which gradient has `x`? In plain
# loops, with $n$ rows:
#
# ```
# for each column, with its mean, its s and its standardized values h:
#     for each row j:
#         dx[j] = sum over all rows i of  g[i] * ([i == j] - 1/n - h[i] * h[j] / n) / s
# ```
#
# These loops make $n^2$ steps a column, and without them there would be a square table of
# $n \times n$ numbers. Write it without either: take the sum over $i$ of each of the three terms by
# itself, and sums over a column are enough. The check refuses $n^2$ steps and the table, and shows
# the memory that yours takes beside that of the reference.

# %%
print(
    """
 x --------------------> x - mean ------> h = (x - mean) / s ------> loss
 |                        ^                ^
 +--> mean of all --------+                |        three ways lead back from h to x:
 +--> s, of all  --------------------------+        straight, by the mean, and by s
"""
)


# %% answer="07-back"
def way_back(x, g):
    """The gradient of x (n, c), where g (n, c) is that of its standardized columns; eps is 0."""
    ### BEGIN SOLUTION
    s = np.sqrt(x.var(axis=0))
    h = (x - x.mean(axis=0)) / s
    return (g - g.mean(axis=0) - h * (g * h).mean(axis=0)) / s
    ### END SOLUTION


# %% check="07-back"
def plain_loops(x, g):
    """As it stands above."""
    dx, n = np.zeros(x.shape), len(x)
    for column in range(x.shape[1]):
        s = np.std(x[:, column])
        h = (x[:, column] - np.mean(x[:, column])) / s
        for j in range(n):
            for i in range(n):
                dx[j, column] += g[i, column] * ((i == j) - 1 / n - h[i] * h[j] / n) / s
    return dx


def check_back(rows, columns, name):
    rng = np.random.default_rng([seed, rows, columns])
    x, g = rng.standard_normal((rows, columns)) * 3 + 5, rng.standard_normal((rows, columns))
    s, h = x.std(axis=0), (x - x.mean(axis=0)) / x.std(axis=0)
    also = {
        "constant": (
            g / s,
            "the straight way alone: mean and deviation are counted as constants, as in evaluation "
            "mode, but they depend on x",
        ),
        "mean only": (
            (g - g.mean(axis=0)) / s,
            "the way back through the deviation is missing: s depends on every x too",
        ),
        "wrong sign": (
            (g - g.mean(axis=0) + h * (g * h).mean(axis=0)) / s,
            "the term of the deviation has the wrong sign: both ways back take something away",
        ),
        "not standardized": (
            (g - g.mean(axis=0) - s * h * (g * s * h).mean(axis=0)) / s,
            "h is x - mean in yours, and the formula takes the standardized values, (x - mean) / s",
        ),
        "deviation only": (
            (g - h * (g * h).mean(axis=0)) / s,
            "the way back through the mean is missing: the mean depends on every x too",
        ),
        "not divided by n": (
            (g - g.sum(axis=0) - h * (g * h).sum(axis=0)) / s,
            "the sums over the rows are not divided by n",
        ),
        "not divided by s": (
            (g - g.mean(axis=0) - h * (g * h).mean(axis=0)),
            "it is not divided by the deviation s: a channel that is stretched has a smaller "
            "gradient",
        ),
    }
    s1 = x.std(axis=0, ddof=1)
    h1 = (x - x.mean(axis=0)) / s1
    also["n - 1"] = (
        (g - g.mean(axis=0) - h1 * (g * h1).mean(axis=0)) / s1,
        "your deviation has the divisor n - 1; the layer standardizes by the one with n",
    )
    if columns > 1:
        matter = "each channel is a matter of its own"
        h_all, by_row = (x - x.mean()) / x.std(), {"axis": 1, "keepdims": True}
        h_row = (x - x.mean(**by_row)) / x.std(**by_row)
        also |= {
            "all columns": (
                (g - g.mean() - h * (g * h).mean()) / s,
                f"the means of g run over all columns together: {matter}",
            ),
            "one deviation": (
                (g - g.mean() - h_all * (g * h_all).mean()) / x.std(),
                f"mean and deviation run over all columns together: {matter}",
            ),
            "rows": (
                (g - g.mean(**by_row) - h_row * (g * h_row).mean(**by_row)) / x.std(**by_row),
                "means and deviation run along the rows: a channel is a column",
            ),
        }
    check(plain_loops(x, g), way_back(x, g), name, also=also)


def check_pair():
    """Two samples: nothing comes through."""
    x, g = np.array([[1.0], [4.0]]), np.array([[1.0], [0.0]])
    found = way_back(x, g)
    small = np.where(np.abs(np.asarray(found, float)) < 1e-12, 0, found)
    check(np.zeros((2, 1)), small, "two samples, through which no gradient comes")


class Watched(np.ndarray):
    """An array that counts how often a part of it is looked up."""

    looks = 0

    def __getitem__(self, place):
        Watched.looks += 1
        return super().__getitem__(place)


def check_cost():
    """Neither n^2 steps a column nor a table of n^2 numbers."""
    rows, columns, Watched.looks = 50, 2, 0
    x = np.random.default_rng(0).standard_normal((rows, columns)).view(Watched)
    way_back(x, x**2)
    if Watched.looks > columns * rows**2:
        what = f"for {rows} rows and {columns} columns single numbers were looked up"
        raise WrongAnswer(
            "steps", f"{what} {Watched.looks} times: take sums over the column, once for all j"
        )
    x, reference = np.random.default_rng(0).standard_normal((500, columns)), 8 * 500 * columns * 5
    tracemalloc.start()
    way_back(x, x**2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    score("peak memory", peak, reference, " bytes")
    if peak > 10 * reference:
        what = f"the peak memory is {peak / reference:.0f} times that of the reference"
        raise WrongAnswer("memory", f"{what}: is there a square table? Sums over a column do")


REFUSED = "backward", "standardize", "batch_norm", "BatchNorm", "plain_loops", "gradcheck"
forbid(way_back, *REFUSED)
check_back(n, 3, "three channels")
check_back(n, 1, "one channel")
check_pair()
check_cost()

# %% test="07-back" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: forbid(way_back, *REFUSED),
    lambda: check_back(n + 3, 4, "four channels"),
    lambda: check_back(n, 1, "one channel"),
    lambda: check_back(3, 2, "three samples"),
    lambda: check_pair(),
    lambda: check_cost(),
    partial={
        "mean only": 1,
        "deviation only": 1,
        "wrong sign": 1,
        "all columns": 2,
        "one deviation": 2,
        "n - 1": 2,
        "steps": 2,
        "memory": 2,
    },
)
### END HIDDEN TESTS


# %% wrong="constant" of="07-back" earns=0 because="counted as constants"
def way_back(x, g):
    return g / np.sqrt(x.var(axis=0))


# %% wrong="mean only" of="07-back" earns=1 because="through the deviation is missing"
def way_back(x, g):
    return (g - g.mean(axis=0)) / np.sqrt(x.var(axis=0))


# %% wrong="all columns" of="07-back" earns=2 because="a matter of its own"
def way_back(x, g):
    s = np.sqrt(x.var(axis=0))
    h = (x - x.mean(axis=0)) / s
    return (g - g.mean() - h * (g * h).mean()) / s


# %% wrong="n - 1" of="07-back" earns=2 because="has the divisor n - 1"
def way_back(x, g):
    s = x.std(axis=0, ddof=1)
    h = (x - x.mean(axis=0)) / s
    return (g - g.mean(axis=0) - h * (g * h).mean(axis=0)) / s


# %% wrong="rows" of="07-back" earns=0 because="a channel is a column"
def way_back(x, g):
    s = x.std(axis=1, keepdims=True)
    h = (x - x.mean(axis=1, keepdims=True)) / s
    return (g - g.mean(axis=1, keepdims=True) - h * (g * h).mean(axis=1, keepdims=True)) / s


# %% wrong="square table" of="07-back" earns=2 because="is there a square table"
def way_back(x, g):
    n, dx = len(x), []
    for column, of_column in zip(x.T, g.T):
        s = column.std()
        h = (column - column.mean()) / s
        dx.append((np.eye(n) - 1 / n - np.outer(h, h) / n) @ of_column / s)
    return np.transpose(dx)


# %% wrong="the loops" of="07-back" earns=2 because="once for all j"
def way_back(x, g):
    dx, n = np.zeros(x.shape), len(x)
    for column in range(x.shape[1]):
        s = np.std(x[:, column])
        h = (x[:, column] - np.mean(x[:, column])) / s
        for j in range(n):
            for i in range(n):
                dx[j, column] += g[i, column] * ((i == j) - 1 / n - h[i] * h[j] / n) / s
    return dx


# %% [markdown]
# ## 3. Find the fault (1 point), and mend it (2 points)
#
# A loop keeps the running mean and variance of one channel: from 0 and 1, they move once an update
# by the momentum {{m}} towards mean and variance of the *window* (the variance with the divisor
# $n - 1$). Its micro-batches come one after the other and hold different numbers of samples. The
# loop below looks like many, and something is wrong with it.


# %% when="fault == 'each'"
def running_statistics(windows, m):
    """Running mean and variance after each update: (updates, 2)."""
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        for part in window:
            mean += m * (np.mean(part) - mean)
            var += m * (np.var(part, ddof=1) - var)
        path.append([mean, var])
    return np.array(path)


# %% when="fault == 'inside'"
def running_statistics(windows, m):
    """Running mean and variance after each update: (updates, 2)."""
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n, total, squares = 0, 0.0, 0.0
        for part in window:
            n, total = n + len(part), total + np.sum(part)
            squares += np.sum((part - np.mean(part)) ** 2)
        mean += m * (total / n - mean)
        var += m * (squares / (n - 1) - var)
        path.append([mean, var])
    return np.array(path)


# %% when="fault == 'means'"
def running_statistics(windows, m):
    """Running mean and variance after each update: (updates, 2)."""
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n, middle, squares = 0, 0.0, 0.0
        for part in window:
            middle += np.mean(part) / len(window)
        for part in window:
            n, squares = n + len(part), squares + np.sum((part - middle) ** 2)
        mean += m * (middle - mean)
        var += m * (squares / (n - 1) - var)
        path.append([mean, var])
    return np.array(path)


# %% when="fault == 'divisor'"
def running_statistics(windows, m):
    """Running mean and variance after each update: (updates, 2)."""
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n, total, squares = 0, 0.0, 0.0
        for part in window:
            n, total = n + len(part), total + np.sum(part)
            squares += np.sum(np.square(part))
        mean += m * (total / n - mean)
        var += m * (squares / n - (total / n) ** 2 - var)
        path.append([mean, var])
    return np.array(path)


# %% [markdown]
# Here each update's move is turned back into what it moved *towards*, and held against minigrad on
# the whole window as one batch.


# %%
def of_one_batch(windows, m):
    """Running mean and variance of mg.BatchNorm, each window as one batch."""
    norm, path = mg.BatchNorm(1, momentum=m, dtype=np.float64), []
    sgd = mg.SGD(norm.parameters(), lr=0)
    for window in windows:
        x = np.concatenate(window).astype(float)[:, None]
        loss = lambda outputs, _: mg.per_sample(outputs.sum(axis=1))  # noqa: E731
        mg.train_step(norm, loss, sgd, (x, x), micro_batch_size=len(x))
        path.append([norm.running_mean.item(), norm.running_var.item()])
    return np.array(path)


def towards(path, m):
    before = np.concatenate([[[0.0, 1.0]], path[:-1]])
    return (path - (1 - m) * before) / m


arrays = [[np.array(part, float) for part in window] for window in windows]
print("                                moved towards: mean               variance")
print("         sizes                one batch   the loop      one batch   the loop")
loop, right = towards(running_statistics(arrays, m), m), towards(of_one_batch(arrays, m), m)
for window, (r_mean, r_var), (mean, var) in zip(arrays, right, loop):
    sizes = f"{[len(part) for part in window]}"
    print(f"         {sizes:20} {r_mean:9.3f} {mean:10.3f} {r_var:14.3f} {var:10.3f}")

# %% [markdown]
# Which fault is it? One of
#
# - `"each"`: the statistics move after each micro-batch;
# - `"inside"`: what lies between the micro-batches is not in the variance;
# - `"means"`: the mean is a mean of means;
# - `"divisor"`: the variance is divided by $n$ in place of $n - 1$.

# %% answer="07-name"
# Assign one of the four names to `fault_found`.
### BEGIN SOLUTION
fault_found = fault
### END SOLUTION

# %% check="07-name"
predicted(fault_found, among=["each", "inside", "means", "divisor"])

# %% test="07-name" points=1
### BEGIN HIDDEN TESTS
because = {
    "each": "moving after each micro-batch stands inside the loop over the parts; here the moves "
    "stand behind it, once an update",
    "inside": "a loop that loses what lies between has the right mean and a variance that is far "
    "too small; compare both columns",
    "means": "a mean of means is a wrong mean too, where the sizes differ; which mean is divided "
    "by the number of micro-batches here?",
    "divisor": "a wrong divisor leaves the mean right and changes the variance by the factor "
    "(n - 1) / n alone; compare the two variances",
}
grade(
    1,
    lambda: predicted(fault_found, among=[*because]),
    lambda: chosen(fault, fault_found, {name: because[name] for name in because if name != fault}),
)
### END HIDDEN TESTS

# %% wrong="divisor" of="07-name" earns=0 because="the factor" when="fault != 'divisor'"
fault_found = "divisor"

# %% wrong="inside" of="07-name" earns=0 because="far too small" when="fault != 'inside'"
fault_found = "inside"

# %% [markdown]
# Now write the loop as it should be: one move an update. Micro-batches are seen one after the other
# (that is why they are micro): do not put them together into one array or list, but keep a few
# numbers of each.


# %% answer="07-mend"
def mended(windows, m):
    """Running mean and variance after each update: an array (updates, 2), from 0 and 1.

    windows: for each update a list of micro-batches, arrays (n_j,) of different lengths.
    """
    ### BEGIN SOLUTION
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n, middle, squares = 0, 0.0, 0.0
        for part in window:
            size, apart = len(part), np.mean(part) - middle
            squares += np.sum((part - np.mean(part)) ** 2) + apart**2 * n * size / (n + size)
            middle += apart * size / (n + size)
            n += size
        mean += m * (middle - mean)
        var += m * (squares / (n - 1) - var)
        path.append([mean, var])
    return np.array(path)
    ### END SOLUTION


# %% check="07-mend"
def moved_along(targets, m):
    """The path of running statistics that move once towards each target."""
    path, now = [], np.array([0.0, 1.0])
    for target in targets:
        now = (1 - m) * now + m * np.array(target)
        path.append(now)
    return np.array(path)


def check_mended(windows, m, name):
    lengths = [[len(part) for part in window] for window in windows]
    wholes = [np.concatenate(window) for window in windows]
    means = [np.mean([part.mean() for part in window]) for window in windows]
    inside = [
        sum(len(part) * part.var() for part in window) / (len(whole) - 1)
        for window, whole in zip(windows, wholes)
    ]
    own = [
        np.average([part.var(ddof=1) for part in w], weights=n) for w, n in zip(windows, lengths)
    ]
    about = [
        ((whole - middle) ** 2).sum() / (len(whole) - 1) for whole, middle in zip(wholes, means)
    ]
    pooled = [
        sum(((part - part.mean()) ** 2).sum() for part in w) / (sum(n) - len(n))
        for w, n in zip(windows, lengths)
    ]
    right = [(whole.mean(), whole.var(ddof=1)) for whole in wholes]
    mild, now = [], np.array([0.0, 1.0])
    for w in windows:
        share = mg.momentum_per_micro_batch(m, len(w))
        for part in w:
            now = (1 - share) * now + share * np.array([part.mean(), part.var(ddof=1)])
        mild.append(now)
    late = moved_along(right, m)
    late[:, 1] -= (1 - m) ** np.arange(1, len(right) + 1)  # what is left of the 1
    lost = (
        "the variance lacks how far the means of the micro-batches are apart: inside plus between"
    )
    also = {
        "each": (
            moved_along([(part.mean(), part.var(ddof=1)) for w in windows for part in w], m)[
                np.cumsum([len(window) for window in windows]) - 1
            ],
            "the statistics move after each micro-batch; collect first, and move once an update",
        ),
        "inside": (moved_along([(w.mean(), v) for w, v in zip(wholes, inside)], m), lost),
        "own": (moved_along([(w.mean(), v) for w, v in zip(wholes, own)], m), lost),
        "pooled": (moved_along([(w.mean(), v) for w, v in zip(wholes, pooled)], m), lost),
        "mild": (
            np.array(mild),
            "each micro-batch moves them by m': that mends how fast they forget, and what lies "
            "between the micro-batches is lost all the same; move once an update",
        ),
        "other share": (
            moved_along(right, 1 - m),
            "m is the share of what was seen, and 1 - m that of the old value; yours has it the "
            "other way round",
        ),
        "from 0": (late, "the running variance begins at 1, and yours at 0"),
        "means": (
            moved_along([*zip(means, about)], m),
            "the mean is that of the micro-batches' means, which counts a short one as much as a "
            "long one",
        ),
        "divisor": (
            moved_along([(whole.mean(), whole.var()) for whole in wholes], m),
            "the variance is divided by n, and the running variance takes n - 1",
        ),
        "not moved": (
            np.array(right),
            "these are the windows' own statistics: the running ones move by m towards them",
        ),
    }
    check(of_one_batch(windows, m), mended(windows, m), name, also=also)


LIBRARY = "Statistics", "BatchNorm", "of_one_batch", "train_step", "moved"


class OneByOne:
    """A window that hands out its micro-batches, and knows how many were held at once."""

    def __init__(self, parts):
        self.parts, self.held, self.most = parts, [], 0

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, j):
        part = self.parts[j].copy()
        self.held = [one for one in self.held if one() is not None] + [weakref.ref(part)]
        self.most = max(self.most, len(self.held))
        return part


def check_held(m):
    """Eight micro-batches in a window; a few may be held, by names that a loop has left behind."""
    window = OneByOne([np.arange(3.0) + j for j in range(8)])
    mended([window], m)
    if window.most > 4:
        what = "the micro-batches of a window were held at once"
        raise WrongAnswer(
            "memory", f"{what}: take n, mean and squared deviations of each, and merge these"
        )


forbid(mended, *LIBRARY)
check_mended(arrays, m, "running mean and variance")
check_held(m)

# %% test="07-mend" points=2
### BEGIN HIDDEN TESTS
others = [[part + 3 for part in window[::-1]] for window in arrays[::-1]]
rng = np.random.default_rng(5)
uneven = [[rng.standard_normal(size) * 4 for size in (7, 2, 3, 11)] for _ in range(4)]
grade(
    2,
    lambda: forbid(mended, *LIBRARY),
    lambda: check_mended(arrays, m, "running mean and variance"),
    lambda: check_mended(others, m / 2, "another order"),
    lambda: check_mended(uneven, 0.1, "four uneven micro-batches"),
    lambda: check_held(m),
    partial={"memory": 1},
)
### END HIDDEN TESTS


# %% wrong="each" of="07-mend" earns=0 because="move once an update"
def mended(windows, m):
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        for part in window:
            mean += m * (np.mean(part) - mean)
            var += m * (np.var(part, ddof=1) - var)
        path.append([mean, var])
    return np.array(path)


# %% wrong="inside" of="07-mend" earns=0 because="inside plus between"
def mended(windows, m):
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n = sum(len(part) for part in window)
        mean += m * (sum(np.sum(part) for part in window) / n - mean)
        var += m * (sum(len(part) * np.var(part) for part in window) / (n - 1) - var)
        path.append([mean, var])
    return np.array(path)


# %% wrong="divisor" of="07-mend" earns=0 because="takes n - 1"
def mended(windows, m):
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        n = sum(len(part) for part in window)
        middle = sum(np.sum(part) for part in window) / n
        mean += m * (middle - mean)
        var += m * (sum(np.sum((part - middle) ** 2) for part in window) / n - var)
        path.append([mean, var])
    return np.array(path)


# %% wrong="with m'" of="07-mend" earns=0 because="is lost all the same"
def mended(windows, m):
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        share = 1 - (1 - m) ** (1 / len(window))
        for part in window:
            mean += share * (np.mean(part) - mean)
            var += share * (np.var(part, ddof=1) - var)
        path.append([mean, var])
    return np.array(path)


# %% wrong="put together" of="07-mend" earns=1 because="were held at once"
def mended(windows, m):
    mean, var, path = 0.0, 1.0, []
    for window in windows:
        whole = np.concatenate(list(window))
        mean += m * (np.mean(whole) - mean)
        var += m * (np.var(whole, ddof=1) - var)
        path.append([mean, var])
    return np.array(path)


# %% [markdown]
# ## 4. In your own words (2 points, given by a person)
#
# Four devices, 8 samples each at a time, 16 micro-batches accumulated, then one update. A colleague
# writes: "BatchNorm is taken care of. We synchronize it over the devices, and the running
# statistics move once an update by the merged statistics. So this is training with one batch of
# 512."
#
# Say in three or four sentences what each of the two measures does make equal, from how many
# samples the statistics of a training step come, how large the remaining error is in terms of $b$
# and $N$, and one thing that would make it really equal.
#
# *2 points:* the number of samples, what each measure makes equal, and the error are right, and the
# way out works. *1 point:* the number of samples is right, and one of the others is missing or
# wrong. *0 points:* otherwise.

# %% [markdown] manual="07-why" points=2
# Synchronizing makes the statistics those of 4 times 8 = 32 samples, all at one moment; the 16
# micro-batches stay apart in time. Moving the running statistics once, merged, makes evaluation
# equal, and changes no output and no gradient of training. The gradient is still biased in
# proportion to 1/32 - 1/512, and accumulating more does not help, since k is not in it. LayerNorm
# or GroupNorm would be equal for any cut; so would BatchNorm with the statistics of all 512, if
# the gradient goes back through these statistics as well.
