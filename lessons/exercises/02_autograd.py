# %% [markdown]
# # Exercises 02: where a gradient comes from
#
# They train: to see what a walk over a graph does, to write pullbacks and check them, to find a
# fault in an engine.
# They belong to lesson [02](../02_autograd.ipynb).
# They take 45 minutes.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, then run the check below it: it says why an answer is wrong.

# %%
import math

import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.arrays import sum_to
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score
from minigrad.tensor import record

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
formula = "a x x + b x"  # or "b x + a x x": the order of the operands
a = 2
b = 5
x0 = 3  # where the gradient is taken
n = 4  # samples
m = 3  # numbers in each
beta = 2.0  # the steepness of softplus
rows = 3  # samples in each of two micro-batches
### BEGIN PLANTED
fault = "alias"  # of the engine in exercise 4
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    a, x0 = (int(number) for number in rng.permutation(range(2, 8))[:2])
    others = [number for number in range(2, 20) if number != a * x0]
    n, m = (int(number) for number in rng.permutation(range(3, 8))[:2])
    return {
        "formula": str(rng.choice(["a x x + b x", "b x + a x x"])),
        "a": a,
        "b": int(rng.choice(others)),
        "x0": x0,
        "n": n,
        "m": m,
        "beta": float(rng.choice([0.5, 2.0, 3.0, 4.0])),
        "rows": int(rng.integers(2, 6)),
        "fault": str(rng.choice(["overwrites", "clears", "alias", "too early", "no sum"])),
    }


# %% [markdown]
# The engine of the lesson, without the walk. Exercises 1 and 4 use it.


# %%
class Node:
    """One operation on the tape."""

    def __init__(self, parents, pullback, shape):
        self.parents, self.pullback, self.shape = parents, pullback, shape


class Tensor:
    """An array that remembers how it was made."""

    def __init__(self, data, requires_grad=False, node=None):
        self.data = np.asarray(data, float)
        self.requires_grad, self.node, self.grad = requires_grad, node, None

    @property
    def shape(self):
        return self.data.shape

    def __add__(self, other):
        return made(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        a, b = self.data, other.data
        return made(a * b, (self, other), lambda g: (g * b, g * a))


def made(data, parents, pullback):
    """The Tensor of an operation, on the tape."""
    edges = [(p.node or p) if p.requires_grad else None for p in parents]
    return Tensor(data, True, Node(edges, pullback, np.shape(data)))


def leaf(data):
    """A Tensor that requires a gradient and that no operation made."""
    return Tensor(data, requires_grad=True)


# %% [markdown]
# ## 1. Predict: what overwriting gives (1 point, and 1 for the correction)
#
# This walk goes through the operands of a node from left to right, through each as deep as it
# goes before it takes the next. At a leaf it does not add: the last one wins.
#
# ```python
# def overwriting(place, g):
#     if type(place) is Node:
#         for parent, contribution in zip(place.parents, place.pullback(g)):
#             overwriting(parent, contribution)
#     elif place is not None:
#         place.grad = g
# ```
#
# Let $z$ be {{formula}} with the constants a = {{a}} and b = {{b}}, at x = {{x0}}. Products are
# computed from the left: $a x x$ is $(a x)\,x$. The walk begins at z with g = 1. What is `x.grad`
# at the end?

# %% answer="02-overwritten"
# Assign a number to `prediction`.
### BEGIN SOLUTION
prediction = b if formula == "a x x + b x" else a * x0
### END SOLUTION

# %% check="02-overwritten"
predicted(prediction)

# %% test="02-overwritten" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="none yet" of="02-overwritten" earns=0 because="no prediction yet"
prediction = None

# %% [markdown]
# Now run it.

# %%
predicted(prediction)


def overwriting(place, g):
    if type(place) is Node:
        for parent, contribution in zip(place.parents, place.pullback(g)):
            overwriting(parent, contribution)
    elif place is not None:
        place.grad = g


x, A, B = leaf(x0), Tensor(a), Tensor(b)
z = A * x * x + B * x if formula == "a x x + b x" else B * x + A * x * x
overwriting(z.node, 1.0)
print(f"{formula} at x = {x0}. Overwriting: {x.grad:g}; you predicted {prediction:g}.")
print(f"By calculus: 2 a x + b = {2 * a * x0 + b}.")

# %% [markdown]
# One sentence: what happened, and why? If you were right, say why it had to be so.

# %% answer="02-correction"
# Assign a text to `correction`.
### BEGIN SOLUTION
correction = "The walk keeps only what the last path to x brings, that of the rightmost operand."
### END SOLUTION

# %% check="02-correction"
corrected(correction)

# %% test="02-correction" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="too short" of="02-correction" earns=0 because="expected 6 or more"
correction = "It was wrong."

# %% [markdown]
# ## 2. Write: the pullback of a product with broadcasting (2 points)
#
# $z = x w$ with $x$ of shape ({{n}}, {{m}}): {{n}} samples of {{m}} numbers. The weights $w$ are
# stretched to the shape of $x$. Three of the shapes that they may have:
#
# ```text
#  ({{m}},)   one weight a column:   z[i, j] = x[i, j] * w[j]
#  ({{n}}, 1) one weight a row:      z[i, j] = x[i, j] * w[i, 0]
#  ()     one weight for all:    z[i, j] = x[i, j] * w
#
#   x[0, j] --.
#   x[1, j] ---*--> z[0, j], z[1, j], ...     each z[i, j] hands g[i, j] * x[i, j] back
#      w[j] --'                                to the one w[j] that it used
# ```
#
# Write the pullback in plain NumPy, without a loop over elements. It must be right for any shape
# that NumPy stretches to that of $x$, such as (1, {{m}}). `sum_to` and the engine are refused: they
# do what you are to write.


# %% answer="02-product"
def product_pullback(g, x, w):
    """The gradients of x and of w, each an array of its shape, from that of z = x * w.

    In plain loops, for w of shape (m,):

        for i in range(n):
            for j in range(m):
                dx[i, j] = g[i, j] * w[j]
                dw[j] += g[i, j] * x[i, j]
    """
    ### BEGIN SOLUTION
    dw = g * x
    if w.ndim < x.ndim:
        dw = dw.sum(axis=tuple(range(x.ndim - w.ndim)))
    for axis, length in enumerate(w.shape):
        if length == 1:
            dw = dw.sum(axis=axis, keepdims=True)
    return g * w, dw
    ### END SOLUTION


# %% check="02-product"
def in_loops(g, x, w):
    """The same, element by element: slow and plain."""
    place = np.broadcast_to(np.arange(w.size).reshape(w.shape), x.shape)  # of w, for each z
    dx, dw = np.zeros(x.shape), np.zeros(w.size)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            dx[i, j] = g[i, j] * w.flat[place[i, j]]
            dw[place[i, j]] += g[i, j] * x[i, j]
    return dx, dw.reshape(w.shape)


def look_at_product(shape, seed=0):
    """Check product_pullback for weights of this shape."""
    rng = np.random.default_rng(seed)
    g, x = rng.integers(1, 9, (2, n, m)).astype(float)
    w = rng.integers(10, 19, shape).astype(float)
    kept = g.copy(), x.copy(), w.copy()
    found = product_pullback(g, x, w)
    if not isinstance(found, tuple) or len(found) != 2:
        raise WrongAnswer("pair", "your function returns no pair, expected the two gradients")
    if not all(map(np.array_equal, kept, (g, x, w))):
        raise WrongAnswer("in place", "your function changes g, x or w; they are borrowed")
    dx, dw = in_loops(g, x, w)
    also = {"swapped": (g * x, "this is what w should get: g times the *other* operand")}
    check(dx, found[0], f"dx for weights of shape {shape}", also=also)
    mean = dw * dw.size / x.size
    also = {"mean": (mean, "this is the mean over the uses of each weight: their gradients *add*")}
    check(dw, found[1], f"dw for weights of shape {shape}", also=also)


forbid(product_pullback, "sum_to", "Tensor", "record", "made", "backward", "in_loops")
for shape in ((m,), (n, 1), ()):
    look_at_product(shape)


# %% test="02-product" points=2
### BEGIN HIDDEN TESTS
def look_at_other_shapes():
    try:
        for seed, shape in enumerate([(n, 1), (), (m,)]):
            look_at_product(shape, seed)
    except WrongAnswer as answer:
        raise WrongAnswer("other shapes", str(answer)) from None


grade(
    2,
    lambda: forbid(product_pullback, "sum_to", "Tensor", "record", "made", "backward", "in_loops"),
    lambda: look_at_product((m,)),
    look_at_other_shapes,
    partial={"other shapes": 1},
)
### END HIDDEN TESTS


# %% wrong="one shape only" of="02-product" earns=1 because="its shape is"
def product_pullback(g, x, w):
    return g * w, (g * x).sum(axis=0)


# %% wrong="not summed" of="02-product" earns=0 because="over which axis is the sum"
def product_pullback(g, x, w):
    return g * w, g * x


# %% wrong="a mean" of="02-product" earns=0 because="their gradients *add*"
def product_pullback(g, x, w):
    return g * w, (g * x).mean(axis=0)


# %% [markdown]
# ## 3. Write: softplus (2 points)
#
# $y = \log(1 + e^{\beta x}) / \beta$ with $\beta$ = {{beta}} is a $\max(x, 0)$ without the kink.
# Below are $y$ and the slope that its pullback needs.

# %%
grid = [i / 50 for i in range(-200, 201)]
values = [math.log1p(math.exp(beta * v)) / beta for v in grid]
slopes = [(right - left) * 25 for left, right in zip(values, values[2:])]
figure, axes = plotting.subplots(height=2.4)
axes.plot(grid, values, color=plotting.BLUE, label="softplus")
axes.plot(grid[1:-1], slopes, color=plotting.RED, ls="--", label="its slope")
axes.plot(grid, [max(v, 0) for v in grid], color=plotting.GREY, ls=":", label="max(x, 0)")
axes.set(xlabel="x", ylim=(-0.2, 3))
axes.legend(loc="upper left")
plotting.show(
    figure,
    "exercise-02-softplus",
    f"Softplus of steepness {beta:g} comes close to max(x, 0) on both sides, and is above it in "
    f"between: {math.log(2) / beta:.3g} at 0. Its slope rises from 0 to 1, and is 1/2 at 0.",
)

# %% [markdown]
# Write it as **one** operation of minigrad: the array `y`, then
# `record(y, (x,), pullback)`, where `pullback(g)` returns a tuple with one gradient for its one
# parent. Neither may overflow: at $x = 1000$ the value is 1000 and the slope 1, at $x = -1000$ both
# are 0. minigrad's `sigmoid` and `logsumexp` are refused.


# %% answer="02-softplus"
def softplus(x):
    """log(1 + exp(beta x)) / beta, elementwise, as one operation on the tape.

    x: a Tensor of minigrad, of any shape; x.data is its array. Returns a Tensor.
    """
    ### BEGIN SOLUTION
    e = np.exp(-beta * np.abs(x.data))  # in (0, 1], whatever the sign of x
    y = np.maximum(x.data, 0) + np.log1p(e) / beta
    slope = np.where(x.data >= 0, 1, e) / (1 + e)
    return record(y, (x,), lambda g: (g * slope,))
    ### END SOLUTION


# %% check="02-softplus"
def on_tape(numbers):
    """x, softplus(x) and a gradient for it; the result must be one node above x."""
    x = mg.Tensor(numbers, requires_grad=True)
    with np.errstate(all="ignore"):
        y = softplus(x)
    if not isinstance(y, mg.Tensor) or y.node is None:
        raise WrongAnswer("no tape", "softplus(x) is not on the tape: return record(y, (x,), ...)")
    if y.node.parents != [x]:
        what = "softplus(x) is made of several operations, or its parents are not the tuple (x,)"
        raise WrongAnswer("several", f"{what}: compute y in NumPy, and record(y, (x,), pullback)")
    with np.errstate(all="ignore"):
        handed = y.node.pullback(np.ones(x.shape))
    if not isinstance(handed, tuple) or len(handed) != 1:
        what = "the pullback returns no tuple of one gradient"
        raise WrongAnswer("no tuple", f"{what}: mind the comma in (gradient,)")
    return x, y


def look_at_softplus(numbers):
    """Check values and gradient, against plain loops and against differences."""
    x, y = on_tape(numbers)
    slope = np.array([1 / (1 + math.exp(-beta * v)) for v in numbers])
    check([math.log1p(math.exp(beta * v)) / beta for v in numbers], y.data, "softplus(x)")
    g = np.arange(2.0, 2 + len(numbers))
    y.backward(g)
    also = {
        "g forgotten": (slope, "the pullback returns the slope alone: multiply it by g"),
        "beta": (beta * g * slope, "the inner derivative beta and the 1/beta in front cancel"),
        "value": (y.data * g, "this is g times the value: the pullback needs the *slope*"),
        "mirrored": (g * (1 - slope), "this is the slope at -x: it must rise from 0 to 1"),
    }
    check(g * slope, x.grad, "its gradient", also=also)
    try:
        mg.gradcheck(softplus, mg.Tensor([numbers[:2], numbers[2:4]], requires_grad=True))
    except AssertionError as error:
        raise WrongAnswer("gradcheck", str(error)) from None


def look_far_out(distance):
    """Check value and gradient far from 0."""
    x, y = on_tape([-distance, distance])
    check([0, distance], y.data, "softplus far out")
    with np.errstate(all="ignore"):
        y.backward([2.0, 2.0])
    check([0, 2], x.grad, "its gradient far out")


forbid(softplus, "sigmoid", "logistic", "logsumexp")
look_at_softplus([-1.5, -0.25, 0.5, 2.0])
look_far_out(1000.0)

# %% test="02-softplus" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: forbid(softplus, "sigmoid", "logistic", "logsumexp"),
    lambda: look_at_softplus([-1.5, -0.25, 0.5, 2.0]),
    lambda: look_at_softplus([0.0, 1.25, -3.0, 0.75, -0.125]),
    lambda: look_far_out(1000.0),
    lambda: look_far_out(1e6),
    partial={"not finite": 1},
)
### END HIDDEN TESTS


# %% wrong="overflows" of="02-softplus" earns=1 because="look for a division by 0, or a log or exp"
def softplus(x):
    e = np.exp(beta * x.data)
    return record(np.log(1 + e) / beta, (x,), lambda g: (g * e / (1 + e),))


# %% wrong="g forgotten" of="02-softplus" earns=0 because="multiply it by g"
def softplus(x):
    y = np.logaddexp(0, beta * x.data) / beta
    slope = 1 / (1 + np.exp(-beta * x.data))
    return record(y, (x,), lambda g: (slope,))


# %% wrong="beta twice" of="02-softplus" earns=0 because="cancel"
def softplus(x):
    y = np.logaddexp(0, beta * x.data) / beta
    slope = 1 / (1 + np.exp(-beta * x.data))
    return record(y, (x,), lambda g: (g * beta * slope,))


# %% [markdown]
# ## 4. Find the fault (1 point), and mend it (2 points)
#
# Somebody has written the walk below for the engine above. `count_uses` is right. What comes out at
# the end is not.


# %%
def count_uses(root):
    """How often each node below `root` was used as an operand."""
    uses, stack = {root: 1}, [root]
    while stack:
        for parent in stack.pop().parents:
            if parent in uses:
                uses[parent] += 1
            elif type(parent) is Node:
                uses[parent] = 1
                stack.append(parent)
    return uses


# %% when="fault == 'overwrites'"
def backward(root, gradient):
    """Give every leaf below `root` its gradient."""
    uses = count_uses(root.node)
    gradients, ready = {root.node: gradient}, [root.node]
    while ready:
        node = ready.pop()
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:  # a constant
                continue
            g = sum_to(g, parent.shape)
            if type(parent) is Tensor:  # a leaf
                parent.grad = g.copy()
                continue
            gradients[parent] = gradients[parent] + g if parent in gradients else g
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)


# %% when="fault == 'clears'"
def backward(root, gradient):
    """Give every leaf below `root` its gradient."""
    uses = count_uses(root.node)
    gradients, ready, met = {root.node: gradient}, [root.node], set()
    while ready:
        node = ready.pop()
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:  # a constant
                continue
            g = sum_to(g, parent.shape)
            if type(parent) is Tensor:  # a leaf
                parent.grad = parent.grad + g if parent in met else g.copy()
                met.add(parent)
                continue
            gradients[parent] = gradients[parent] + g if parent in gradients else g
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)


# %% when="fault == 'alias'"
def backward(root, gradient):
    """Give every leaf below `root` its gradient."""
    uses = count_uses(root.node)
    gradients, ready = {root.node: gradient}, [root.node]
    while ready:
        node = ready.pop()
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:  # a constant
                continue
            g = sum_to(g, parent.shape)
            if type(parent) is Tensor:  # a leaf
                parent.grad = g.copy() if parent.grad is None else parent.grad + g
                continue
            if parent in gradients:
                gradients[parent] += g
            else:
                gradients[parent] = g
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)


# %% when="fault == 'too early'"
def backward(root, gradient):
    """Give every leaf below `root` its gradient."""
    gradients, ready, walked = {root.node: gradient}, [root.node], set()
    while ready:
        node = ready.pop()
        if node in walked:
            continue
        walked.add(node)
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:  # a constant
                continue
            g = sum_to(g, parent.shape)
            if type(parent) is Tensor:  # a leaf
                parent.grad = g.copy() if parent.grad is None else parent.grad + g
                continue
            gradients[parent] = gradients[parent] + g if parent in gradients else g
            ready.append(parent)


# %% when="fault == 'no sum'"
def backward(root, gradient):
    """Give every leaf below `root` its gradient."""
    uses = count_uses(root.node)
    gradients, ready = {root.node: gradient}, [root.node]
    while ready:
        node = ready.pop()
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:  # a constant
                continue
            if type(parent) is Tensor:  # a leaf
                parent.grad = g.copy() if parent.grad is None else parent.grad + g
                continue
            gradients[parent] = gradients[parent] + g if parent in gradients else g
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)


# %% [markdown]
# The batch has two micro-batches of {{rows}} samples, two numbers each. With $p = x w$, $q = x v$
# and $s = p p$ the function is $\big((p + q) + p\big) + (2 s + s) + w$, summed over all elements.
# By calculus the gradient of $w$ is the sum of $(2 + 6 p)\,x + 1$ over the samples, that of $v$ the
# sum of $x$.


# %%
def function(x, w, v):
    """((p + q) + p) + (2 s + s) + w, with p = x w, q = x v, s = p p."""
    p, q = x * w, x * v
    s = p * p
    return ((p + q) + p) + (s * Tensor(2) + s) + w


def accumulated(walk, parts, w, v):
    """w.grad and v.grad after one walk for each micro-batch."""
    w, v = leaf(w), leaf(v)
    for part in parts:
        walk(function(Tensor(part), w, v), np.ones(part.shape))
    return w.grad, v.grad


def by_calculus(parts, w, v):
    """The same two gradients, by the formulas above."""
    x = np.concatenate(parts)
    return ((2 + 6 * x * w) * x + 1).sum(axis=0), x.sum(axis=0)


numbers = np.random.default_rng(variant or 0)
parts = list(numbers.integers(1, 5, (2, rows, 2)).astype(float))
w0, v0 = numbers.integers(1, 5, (2, 2)).astype(float)
found, right = accumulated(backward, parts, w0, v0), by_calculus(parts, w0, v0)
for name, mine, calculus in zip("wv", found, right):
    print(f"{name}.grad: {mine.tolist()}, by calculus: {calculus.tolist()}")

# %% [markdown]
# Which fault is it? Each is one line of thought away from what is right:
#
# - `"overwrites"`: what arrives at a leaf replaces what another path brought in the same walk;
# - `"clears"`: each walk forgets what an earlier walk left in `.grad`;
# - `"alias"`: it writes into an array that was handed to two parents;
# - `"too early"`: a node is walked before all that used it have been;
# - `"no sum"`: nothing is added over the axes along which an operand was stretched;
# - `"wrong sign"`: a pullback has a wrong sign.

# %% answer="02-fault"
# Assign one of the names above to `fault_found`.
### BEGIN SOLUTION
fault_found = fault
### END SOLUTION

# %% check="02-fault"
FAULTS = ["overwrites", "clears", "alias", "too early", "no sum", "wrong sign"]
predicted(fault_found, among=FAULTS)

# %% test="02-fault" points=1
### BEGIN HIDDEN TESTS
because = {
    "overwrites": "at a leaf, what a second path brings in one walk is added to the first",
    "clears": "the second walk adds to the .grad that the first one left",
    "alias": "each sum is a new array: nothing that was handed to two parents is written to",
    "too early": "a node becomes ready only when the count of its uses is down to 0",
    "no sum": "sum_to brings what arrives to the shape of its operand",
    "wrong sign": "there is no minus in this function, and every number printed is positive",
}
if fault == "overwrites":
    because["clears"] = (
        "it is more than that: paths of one and the same walk replace each other too"
    )
del because[fault]
grade(1, lambda: chosen(fault, fault_found, because=because))
### END HIDDEN TESTS

# %% wrong="a sign" of="02-fault" earns=0 because="there is no minus in this function"
fault_found = "wrong sign"

# %% [markdown]
# Now mend it: write the whole walk again, under the name `mended`. It must work for every graph of
# the engine, be called several times, leave `gradient` as it was, and call each pullback once.


# %% answer="02-mended"
def mended(root, gradient):
    """Add to each leaf below `root` its gradient: `gradient` times the derivative of `root`.

    root: a Tensor that an operation made. gradient: an array of its shape; it is not changed.
    """
    ### BEGIN SOLUTION
    uses = count_uses(root.node)
    gradients, ready = {root.node: gradient}, [root.node]
    while ready:
        node = ready.pop()
        for parent, g in zip(node.parents, node.pullback(gradients.pop(node))):
            if parent is None:
                continue
            g = sum_to(g, parent.shape)
            if type(parent) is Tensor:
                parent.grad = g.copy() if parent.grad is None else parent.grad + g
                continue
            gradients[parent] = gradients[parent] + g if parent in gradients else g
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
    ### END SOLUTION


# %% check="02-mended"
def look_at_mended(parts, w, v):
    """Check the gradients of `function` over these micro-batches."""
    right, last = by_calculus(parts, w, v), by_calculus(parts[-1:], w, v)
    found, faulty = accumulated(mended, parts, w, v), accumulated(backward, parts, w, v)
    alone = "this is what the last micro-batch alone gives: the walk before it was forgotten"
    still = "this is what the walk above gives: its fault is still there"
    for i, name in enumerate("wv"):
        also = {"clears": (last[i], alone), "still": (faulty[i], still)}
        check(right[i], found[i], f"{name}.grad", also=also)


look_at_mended(parts, w0, v0)


# %% test="02-mended" points=2
### BEGIN HIDDEN TESTS
def look_at_ownership():
    """What is handed in and out is shared with nobody."""
    x, y, seed = leaf([1.0, 2.0]), leaf([3.0, 4.0]), np.ones(2)
    for _ in range(2):
        mended(x + y, seed)
    check([1, 1], seed, "the gradient that was handed in, afterwards")
    check([2, 2], x.grad, "x.grad of x + y after two walks")
    check([2, 2], y.grad, "y.grad of x + y after two walks")
    if any(map(np.shares_memory, (x.grad, x.grad, y.grad), (y.grad, seed, seed))):
        raise WrongAnswer("shared", "two gradients share memory: what is added to one is in both")


def look_at_cost(doublings=10):
    """Count the pullbacks that are called; all paths would be 2^10."""
    calls = []
    x = leaf([1.0])
    y = x
    for _ in range(doublings):
        y = y + y
        pullback = y.node.pullback
        y.node.pullback = lambda g, pullback=pullback: (calls.append(1), pullback(g))[1]
    mended(y, np.ones(1))
    check([2.0**doublings], x.grad, "x.grad after doublings")
    score("pullbacks called", len(calls), doublings)
    if len(calls) > doublings:
        what = f"it calls {len(calls)} pullbacks for {doublings} nodes"
        raise WrongAnswer("every path", f"{what}: it walks once for each path")


grade(
    2,
    lambda: look_at_mended(parts, w0, v0),
    lambda: look_at_mended([parts[0][:1], parts[1], parts[0]], v0, w0),
    look_at_ownership,
    look_at_cost,
    partial={"every path": 1},
)
### END HIDDEN TESTS


# %% wrong="every path" of="02-mended" earns=1 because="once for each path"
def mended(root, gradient):
    stack = [(root.node, gradient)]
    while stack:
        place, g = stack.pop()
        if type(place) is Node:
            stack += zip(place.parents, place.pullback(g))
        elif place is not None:
            g = sum_to(g, place.shape)
            place.grad = g.copy() if place.grad is None else place.grad + g


# %% wrong="clears" of="02-mended" earns=0 because="the last micro-batch alone"
def mended(root, gradient):
    stack, met = [(root.node, gradient)], set()
    while stack:
        place, g = stack.pop()
        if type(place) is Node:
            stack += zip(place.parents, place.pullback(g))
        elif place is not None:
            g = sum_to(g, place.shape)
            place.grad = place.grad + g if place in met else g.copy()
            met.add(place)


# %% wrong="not summed" of="02-mended" earns=0 because="over which axis is the sum"
def mended(root, gradient):
    stack = [(root.node, gradient)]
    while stack:
        place, g = stack.pop()
        if type(place) is Node:
            stack += zip(place.parents, place.pullback(g))
        elif place is not None:
            place.grad = g.copy() if place.grad is None else place.grad + g


# %% [markdown]
# ## 5. In your own words (2 points, read by a person)
#
# A friend proposes: "`backward` should first set `.grad` of every leaf to None. Then nobody can
# forget to clear it." In three to five sentences: for which use would this do no harm, what would
# it break, and where does clearing belong? Give an example with numbers: those of exercise 4, or
# smaller ones of your own.
#
# *Rubric.* 2: says what it would break, with the reason, *and* where clearing belongs; with an
# example whose numbers are right. 1: one of the two, or both without a right example. 0: neither.

# %% [markdown] manual="02-why" points=2
# With one call of `backward` for an update it does no harm: there is nothing to add to. With two
# micro-batches it keeps the second one alone: for the loss $w x$ and $x = 1, 2$ in one micro-batch,
# $x = 3, 4$ in the other, `w.grad` would be 7 and not 10. The gradient of the batch is one sum over
# paths, of which each call brings a part, so `.grad` must keep what earlier calls brought. It is
# cleared once for each update, after the optimizer has used it, and not by `backward`.
