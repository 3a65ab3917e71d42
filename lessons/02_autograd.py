# %% [markdown]
# # 02 · Where does a gradient come from, and why is it *added*?
#
# **You will be able to**
#
# 1. write the engine that computes gradients, and say what each line of it is there for;
# 2. show that the sums over paths, over samples and over micro-batches are one sum, made by one
#    `+=`;
# 3. check a gradient by differences with the right step, and check the checker.
#
# **Needs:** lesson [00](00_start_here.ipynb), the chain rule, Python with NumPy ([a page of
# background](before.md)). **Reading:** 40 minutes; **exercises:** 45 minutes
# ([02_autograd](exercises/02_autograd.ipynb)). **Code:**
# [`minigrad/tensor.py`](../minigrad/tensor.py),
# [`minigrad/gradcheck.py`](../minigrad/gradcheck.py).

# %% [markdown]
# ## An operation, and its way back
#
# Calculus knows how the result of an operation changes with its operands. For the product $p = xy$
# it is $dp = y\,dx + x\,dy$. Now let a longer computation end in one number, its **root** (that of
# the graph below; lesson 01 had the root of an equation). Call the derivative of the root by a
# value the *gradient* of that value. If $p$ has the gradient $g$, then by the formula the product
# gives $g y$ to $x$ and $g x$ to $y$. The function that takes $g$ to $(g y, g x)$ is the
# **pullback** of the product. Every operation has one; that of a sum $x + y$ takes $g$ to $(g, g)$.
#
# An engine for gradients writes down each operation when it is computed: its operands, called
# **parents**, and its pullback. One such note is a `Node`; all of them are the **tape**. Drawn with
# an **edge** from each operation to each of its operands, it is a **graph**. A `Tensor` is a value
# that remembers the node that made it. A **leaf** is a Tensor that no operation made; its
# `requires_grad` says whether a gradient is wanted there. For a constant none is, and inside
# `no_grad()` nothing is recorded.
#
# We build this engine here, with the names of minigrad's file, until it is that file. First for
# single numbers.

# %%
from contextlib import contextmanager

import numpy as np

import minigrad as mg
from minigrad import plotting

recording = True


class Node:
    """One operation on the tape."""

    def __init__(self, parents, pullback, shape):
        self.parents = parents  # for each operand: its node, or the leaf itself, or None
        self.pullback = pullback  # from the gradient of the result to one for each parent
        self.shape = shape  # of the result: () for a number; it will matter with arrays


class Tensor:
    """A value that remembers how it was made."""

    def __init__(self, data, requires_grad=False):
        self.data, self.requires_grad = data, requires_grad
        self.grad = self.node = None

    def __add__(self, other):
        return record(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        a, b = self.data, other.data
        return record(a * b, (self, other), lambda g: (g * b, g * a))


def record(data, parents, pullback):
    """The Tensor of `data`; on the tape if one of its parents requires a gradient."""
    result = Tensor(data)
    if recording and any(parent.requires_grad for parent in parents):
        edges = [(p.node or p) if p.requires_grad else None for p in parents]
        result.node, result.requires_grad = Node(edges, pullback, np.shape(data)), True
    return result


@contextmanager
def no_grad():
    """Switch the tape off."""
    global recording
    before, recording = recording, False
    try:
        yield
    finally:
        recording = before


def leaf(data):
    """A Tensor that requires a gradient and that no operation made."""
    return Tensor(data, requires_grad=True)


x, y = leaf(3), leaf(4)
product = x * y
z = product + x
assert (product.data, z.data) == (12, 15)
assert z.node.parents == [product.node, x]  # a node, and a leaf
assert product.node.pullback(1) == (4, 3)  # dp = 4 dx + 3 dy
with no_grad():
    assert (x * y).node is None
print("x * y + x =", z.data, "was recorded as", len([z.node, product.node]), "nodes")

# %% [markdown]
# ## The first walk, and a bug
#
# The gradient of the root by itself is 1. Begin there, and ask each node's pullback what to hand on
# to its parents, until leaves are reached. The generator `paths` does just that: it follows every
# path from the root down to a leaf, and yields what arrives there. What is to be done with it? The
# obvious thing: put it into `leaf.grad`.
#
# **Before you run the next cell:** let $x = 3$. Write down the gradient of $x$ by calculus, and
# what `x.grad` will hold, for $x + x$, for $x x + x$, and for $x + x x$. (What was put on the stack
# last is taken first: the walk begins with the right operand.)


# %%
def paths(root, gradient=1):
    """Each path from the root to a leaf: the leaf, and what arrives there along this path."""
    stack = [(root.node or root, gradient)]
    while stack:
        place, g = stack.pop()
        if type(place) is Node:
            stack += zip(place.parents, place.pullback(g))
        elif place is not None:
            yield place, g


def backward(root, gradient=1):
    """Give each leaf below `root` its gradient. First try."""
    for leaf, contribution in paths(root, gradient):
        _add_to_leaf(leaf, contribution)


def _add_to_leaf(leaf, contribution):
    leaf.grad = contribution


GRAPHS = {
    "x + x": lambda x: x + x,
    "x x + x": lambda x: x * x + x,
    "x + x x": lambda x: x + x * x,
}
CALCULUS = {"x + x": 2, "x x + x": 7, "x + x x": 7}  # at x = 3


def gradients():
    """x.grad of each graph, at x = 3."""
    found = {}
    for name, f in GRAPHS.items():
        x = leaf(3)
        backward(f(x))
        found[name] = x.grad
    return found


overwritten = gradients()
assert all(overwritten[name] != CALCULUS[name] for name in GRAPHS)
assert overwritten["x x + x"] != overwritten["x + x x"]  # the same function
for name, wrong in overwritten.items():
    print(f"{name:7}  calculus: {CALCULUS[name]}   x.grad: {wrong}")

# %% [markdown]
# ## The line that fixes it
#
# All are wrong, and $x x + x$ and $x + x x$, which are one function, are wrong in two ways:
# `x.grad` holds what came *last*. The formula for several variables says what is right. If $z$
# depends on $x$ through $v_1, \dots, v_m$, then
# $$\frac{dz}{dx} = \sum_i \frac{\partial z}{\partial v_i}\,\frac{dv_i}{dx}.$$
# Put the same formula in for each $dv_i/dx$, and so on down to $x$:
#
# **Theorem** (Bauer 1974). The gradient of $x$ is the **sum over all paths** from the root to $x$
# of the **product of the derivatives along the path**. An operand that is used twice has two edges.
#
# *Proof, which may be skipped.* By induction in the order of computation. For $x$ itself there is
# one path, without edges, whose product is 1. A path from $z$ to $x$ is one edge from $z$ to an
# operand $v_i$, followed by one path from $v_i$ to $x$, whose products sum to $dv_i/dx$. Summing
# over both is the formula above. ∎
#
# So along a path numbers are multiplied, which the pullbacks do. Between paths they are **added**,
# and that is one line.


# %%
def _add_to_leaf(leaf, contribution):
    if leaf.grad is None:
        leaf.grad = contribution
    else:
        leaf.grad += contribution  # the line


assert gradients() == CALCULUS  # exact
for name, f in GRAPHS.items():
    arrived = [contribution for _, contribution in paths(f(leaf(3)))]
    print(f"{name:7}  the paths bring {' + '.join(map(str, arrived))} = {sum(arrived)}")

# %%
from matplotlib.patches import FancyBboxPatch


def box(axes, x, y, name, value, gradient, width=1.15):
    """A value on the tape: its name, its number, its gradient. Lengths are inches."""
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "fc": "white", "ec": plotting.DARK}
    frame = FancyBboxPatch((x - width / 2, y - 0.42), width, 0.84, lw=1.3, zorder=3, **style)
    colours = plotting.DARK, plotting.BLUE, plotting.RED
    lines = name, f"value {value}", f"gradient {gradient}"
    for up, text, colour in zip((0.25, 0, -0.25), lines, colours):
        axes.text(x, y + up, text, color=colour, ha="center", va="center", zorder=4)
    return (x, y), axes.add_patch(frame)


def edge(axes, operand, result, arrives, bend=0.0):
    """The value goes to the result; `arrives` comes back to the operand."""
    (start, first), (end, last) = operand, result
    style = {"arrowstyle": "-|>", "lw": 1.6, "mutation_scale": 11}
    forth = {"color": plotting.BLUE, "patchA": first, "patchB": last}
    back = {"color": plotting.RED, "patchA": last, "patchB": first, "ls": (0, (4, 1.5))}
    arcs = f"arc3,rad={bend - 0.09}", f"arc3,rad={-bend - 0.09}"
    axes.annotate("", end, start, arrowprops=style | forth | {"connectionstyle": arcs[0]})
    axes.annotate("", start, end, arrowprops=style | back | {"connectionstyle": arcs[1]})
    (x0, y0), (x1, y1), sag = start, end, (bend + 0.09) / 2
    middle = (x0 + x1) / 2 + sag * (y1 - y0), (y0 + y1) / 2 - sag * (x1 - x0)
    ring = {"boxstyle": "circle,pad=0.25", "fc": "white", "ec": plotting.RED}
    axes.text(*middle, arrives, color=plotting.RED, ha="center", va="center", bbox=ring)


def added(root):
    """What arrives at the leaf along each path, and the sum."""
    arrived = [contribution for _, contribution in paths(root)]
    return f"{' + '.join(map(str, arrived))} = {sum(arrived)}"


figure, axes = plotting.subplots(height=3.3)
axes.set(xlim=(0, 8.4), ylim=(0, 3.3), aspect="equal")
axes.axis("off")

x = leaf(3)
z = x + x
one, other = z.node.pullback(1)
X = box(axes, 0.83, 1.45, "$x$", x.data, added(z), 1.6)
Z = box(axes, 3.2, 1.45, "$z = x + x$", z.data, 1)
edge(axes, X, Z, one, bend=-0.4)
edge(axes, X, Z, other, bend=0.4)

p = x * x
z = p + x
to_p, to_x = z.node.pullback(1)
one, other = p.node.pullback(to_p)
X = box(axes, 5.0, 0.75, "$x$", x.data, added(z), 1.85)
P = box(axes, 6.5, 2.8, r"$p = x\,x$", p.data, to_p)
Z = box(axes, 7.75, 0.75, "$z = p + x$", z.data, 1)
edge(axes, X, P, one, bend=-0.34)
edge(axes, X, P, other, bend=0.2)
edge(axes, P, Z, to_p)
edge(axes, X, Z, to_x, bend=0.1)
plotting.show(
    figure,
    "02-graph",
    f"The graphs of x + x and of x x + x at x = {x.data}. Blue, solid: values, from operand to "
    f"result. Red, dashed: what each edge brings back. Two edges lead to x on the left, and its "
    f"gradient is {added(x + x)}; three on the right: {added(z)}. Had the last one overwritten the "
    f"others, x.grad would be {overwritten['x + x']} and {overwritten['x x + x']}.",
)

# %% [markdown]
# ## One sum
#
# Now something to learn from. A **sample** is a pair $(x_i, t_i)$; a weight $w$ shall make $w x_i$
# close to $t_i$. The loss of the **batch** of $N$ samples is $\sum_i (w x_i - t_i)^2$, here the
# sum, which lesson 03 divides. There are three ways to get its gradient by $w$:
#
# - *paths*: one graph for the whole batch, and the theorem;
# - *samples*: a graph and a `backward` for each sample, and all of them into the same `w.grad`;
# - *micro-batches*: the same for each group of $b$ samples.
#
# In the graph of the batch, each path from the root to $w$ goes through one sample. So the sum over
# paths is a sum over samples, taken in one call. With several calls the same numbers arrive at the
# same leaf, some now and some later, and the line `+=` cannot tell the difference. **This is why
# gradient accumulation gives the gradient of the batch**, but for the rounding of a sum in another
# order, and why it needs no code of its own: the line that adds what two paths bring adds what two
# micro-batches bring.
#
# **Before you run the next cell:** each sample uses $w$ once and squares its error. How many paths
# lead to $w$ from the loss of $N = 6$ samples? Then change `b` to 4, so that the last micro-batch
# is short: what will change?

# %%
xs, ts = [1, 2, 3, 4, 5, 6], [2, 3, 7, 8, 8, 13]
N, b = len(xs), 2
w = leaf(3)


def loss(samples):
    """The sum over these samples of (w x - t)^2."""
    total = Tensor(0)
    for i in samples:
        error = w * Tensor(xs[i]) + Tensor(-ts[i])
        total = total + error * error
    return total


def accumulated(parts):
    """w.grad after one `backward` for each part of the batch."""
    w.grad = None
    for samples in parts:
        backward(loss(samples))
    return w.grad


batch = range(N)
by_paths = [contribution for _, contribution in paths(loss(batch))]
by_samples = accumulated([i] for i in batch)
by_micro_batches = accumulated(batch[i : i + b] for i in range(0, N, b))
by_calculus = sum(2 * x * (w.data * x - t) for x, t in zip(xs, ts))

assert sum(by_paths) == by_samples == by_micro_batches == accumulated([batch]) == by_calculus
assert len(by_paths) == 2 * N
print(f"{len(by_paths)} paths, {N} samples, micro-batches of {b}: each time {by_calculus}, exactly")

backward(loss(batch))  # again, without clearing
assert w.grad == 2 * by_calculus
print(f"once more without `w.grad = None`: {w.grad}")

# %% [markdown]
# ## When may a node be walked?
#
# To follow every path is right, and of no use: after $n$ doublings `y = y + y` there are $n$ nodes
# and $2^n$ paths. Each node should be walked *once*, with the sum of all that its uses bring.
#
# The obvious repair is to go depth first, to add up at nodes too, and not to enter a node again.
#
# **Before you run the next cell:** let $s = x x$ and $x = 3$. The repaired walk is given
# $s + 2s$ and then $2s + s$. Calculus says 18 for both. And the walk?


# %%
def doubled(y, n):
    for _ in range(n):
        y = y + y
    return y


for n in (1, 5, 10):
    number = sum(1 for _ in paths(doubled(leaf(1), n)))
    assert number == 2**n
    print(f"{n} nodes: {number} paths")


def depth_first(root):
    """Walk each node once, when it is met. Second try."""
    gradients, walked, stack = {root.node: 1}, set(), [root.node]
    while stack:
        node = stack.pop()
        if node in walked:
            continue
        walked.add(node)
        for parent, contribution in zip(node.parents, node.pullback(gradients[node])):
            if type(parent) is Node:
                gradients[parent] = gradients.get(parent, 0) + contribution
                stack.append(parent)
            elif parent is not None:
                _add_to_leaf(parent, contribution)


def shared(order):
    """x, and s + 2 s of s = x x, or 2 s + s."""
    x = leaf(3)
    s = x * x
    twice = s * Tensor(2)
    return x, (s + twice if order == "s + 2 s" else twice + s)


for order in ("s + 2 s", "2 s + s"):
    x, z = shared(order)
    depth_first(z)
    print(f"{order}: x.grad = {x.grad}")
    assert (x.grad == 18) == (order == "s + 2 s")

# %% [markdown]
# One of the two is wrong: $s$ was walked when only the sum had handed it something, and what $2s$
# brought later was lost. Which of them is wrong depends on the order in which operands are met, so
# a test that tries one of them may miss it.
#
# **The rule: a node is walked when all that used it have been walked.** To know when that is, count
# the uses of each node first, and count down.
#
# *Proof, which may be skipped, that every node gets its turn.* An operand exists before the
# operation that uses it. So among the nodes still to be walked, the one that was made last has no
# uses left, and is ready. Each node is walked once, each edge twice: time grows with the number of
# operations. ∎
#
# Three more decisions are in the loop:
#
# - **The tape is freed while it is walked.** A pullback holds the values that it needs. A node that
#   has been walked lets them go, so that memory falls during the walk. Hence a second `backward`
#   over the same tape is an error, and should say so.
# - **Only leaves keep a gradient.** That of any other node is popped and used up.
# - **No recursion.** A function that calls itself for each parent fails on a chain of operations
#   that is longer than Python's stack.


# %%
def backward(root, gradient=1):
    """Add `gradient` times the derivative of `root` to `.grad` of every leaf below it."""
    if root.node is None:
        return _add_to_leaf(root, gradient)
    uses = count_uses(root.node)
    gradients, owned, ready = {root.node: gradient}, set(), [root.node]
    while ready:
        node = ready.pop()
        parents, contributions = node.parents, node.pullback(gradients.pop(node))
        owned.discard(node)
        node.parents, node.pullback = [], None  # and with them what the pullback held
        for parent, contribution in zip(parents, contributions):
            if type(parent) is Node:
                _add_to_node(parent, contribution, gradients, owned)
                uses[parent] -= 1
                if not uses[parent]:
                    ready.append(parent)
            elif parent is not None:
                _add_to_leaf(parent, contribution)


def count_uses(root):
    """How often each node below `root` was used as an operand; refuses a freed tape."""
    uses, stack = {root: 1}, [root]
    while stack:
        node = stack.pop()
        if node.pullback is None:
            raise RuntimeError("this part of the tape has been freed: compute the loss again")
        for parent in node.parents:
            if parent in uses:
                uses[parent] += 1
            elif type(parent) is Node:
                uses[parent] = 1
                stack.append(parent)
    return uses


def _add_to_node(node, contribution, gradients, owned):  # `owned` is for arrays, below
    if node in gradients:
        gradients[node] += contribution
    else:
        gradients[node] = contribution


def refused(call, error):
    """Does this raise that error?"""
    try:
        call()
    except error:
        return True
    return False


for order in ("s + 2 s", "2 s + s"):
    x, z = shared(order)
    backward(z)
    assert x.grad == 18
    assert refused(lambda z=z: backward(z), RuntimeError)  # twice
    assert x.grad == 18  # and nothing was added
    assert z.node.pullback is None  # freed
    assert z.grad is None  # no leaf

x = leaf(1)
backward(doubled(x, 1000))
assert x.grad == 2**1000  # exact: Python's integers have no end

x = leaf(1)
chain = x
for _ in range(10_000):
    chain = chain + x


def recursive(place, g=1):
    """The walk over all paths, as it is usually written."""
    if type(place) is Node:
        for parent, contribution in zip(place.parents, place.pullback(g)):
            recursive(parent, contribution)


assert refused(lambda: recursive(chain.node), RecursionError)
backward(chain)
assert x.grad == 10_001
print("1000 doublings in 1000 steps; a chain of 10,000 operations; backward twice is refused")

# %% [markdown]
# ## Arrays: three things go wrong
#
# The engine never asked what a value is, so let it be an array. `backward` then begins with an
# array too, the *seed*. A seed of ones asks for the gradient of the sum of all elements of the
# root.
#
# **Before you run the next cell, three predictions.**
#
# 1. $w$ is one number, $x$ holds 6 samples, $z = w x$. What shape has `w.grad`?
# 2. $a = 1x$, $b = 1y$ (so that $a$ and $b$ are nodes, not leaves), $z = (a + b) + a$, with arrays
#    of two elements. Calculus: the gradient of $x$ is 2, that of $y$ is 1. And the engine?
# 3. $z = x x$ at $x = 3$. Between the forward computation and `backward`, somebody runs
#    `x.data += 1`. What is `x.grad`?


# %%
def ones(z):
    """The seed for the sum of all elements."""
    return np.ones(np.shape(z.data))


samples = np.array(xs, float)


def broadcast():
    """w.grad of w x, for a number w and an array x."""
    w = leaf(np.array(3.0))
    z = w * Tensor(samples)
    backward(z, ones(z))
    return w.grad


def sharing():
    """x.grad and y.grad of (a + b) + a, and the seed after the walk."""
    x, y, one = leaf(np.array([5.0, 6.0])), leaf(np.array([7.0, 8.0])), Tensor(np.ones(2))
    a, b = x * one, y * one
    z = (a + b) + a
    seed = ones(z)
    backward(z, seed)
    return x.grad, y.grad, seed


def changed(change):
    """x.grad of x x, where x.data is changed after its use."""
    x = leaf(np.array([3.0]))
    z = x * x
    change(x)
    backward(z, ones(z))
    return x.grad


def in_place(x):
    x.data += 1


def in_a_view(x):
    part = x.data[:1]
    part += 1


def anew(x):
    x.data = x.data + 1


assert broadcast().shape == (6,)
print("1. a gradient of shape", broadcast().shape, "for a weight of shape ()")

x_grad, y_grad, seed = sharing()
assert np.array_equal(x_grad, [2, 2])
assert np.array_equal(y_grad, [2, 2])  # not 1
assert np.array_equal(seed, [2, 2])  # the caller's own array
print("2. the gradient of y is", y_grad, "instead of [1. 1.]; the seed of ones is now", seed)

assert changed(in_place) == changed(in_a_view) == 8
assert changed(anew) == 6
print("3. after x.data += 1 the gradient at 3 is", changed(in_place), "instead of [6.]")

# %% [markdown]
# **1. Shape.** The number $w$ was *broadcast*: it is used once in each of the 6 products. It has 6
# paths, and what they bring is to be added. So a contribution is summed over the axes along which
# its operand was stretched, which `sum_to` does. It is the sum over the samples once more: an array
# operation over a batch has accumulation inside.
#
# **2. Shared memory.** On a number, `+=` makes a new number. On an array it writes into the array.
# The pullback of $a + b$ hands *one and the same array* to both parents, as it may; with views
# (parts, transposes, broadcasts) it is the same without looking the same. Then adding to the
# gradient of $a$ adds to that of $b$ too. A copy for each edge would be safe, and would cost memory
# and time for each edge. The rule of the engine is cheaper:
#
# > The first contribution is **borrowed**: kept as it is, never written to. The second
# > **allocates** the sum, and from then on the node **owns** its gradient: later ones are added in
# > place.
#
# A leaf owns its gradient from the first contribution on, because `.grad` outlives the walk: the
# next micro-batch will be added to it.
#
# **3. Values changed after their use.** A pullback holds the arrays that it needs, not copies of
# them. No rule about gradients mends that; some frameworks count the writes to each array and
# refuse to walk. minigrad does not notice. So it is a rule for the user: **between the forward
# computation and `backward`, do not write into an array that was used**, and remember that a slice
# is a view, so that writing to it writes to the whole. To bind a new array is safe: that is what
# `x.data = x.data + 1` does.


# %%
def sum_to(gradient, shape):
    """Sum over the axes along which an operand of this shape was broadcast."""
    if np.shape(gradient) == shape:
        return gradient  # the same array: borrowed
    new = gradient.ndim - len(shape)
    stretched = [new + i for i, n in enumerate(shape) if n == 1]
    return gradient.sum(axis=(*range(new), *stretched), keepdims=True).reshape(shape)


def _add_to_node(node, contribution, gradients, owned):
    contribution = sum_to(contribution, node.shape)
    if node not in gradients:
        gradients[node] = contribution  # borrowed
    elif node not in owned:
        gradients[node] = gradients[node] + contribution  # allocates
        owned.add(node)
    else:
        gradients[node] += contribution  # in place


def _add_to_leaf(leaf, contribution):
    contribution = sum_to(contribution, np.shape(leaf.data))
    if leaf.grad is None:
        leaf.grad = np.array(contribution)  # a copy: owned at once
    else:
        leaf.grad += contribution


assert broadcast() == samples.sum()  # shape (), exact
w = leaf(np.array(3.0))
error = w * Tensor(samples) + Tensor(-np.array(ts, float))
squares = error * error
backward(squares, ones(squares))
assert w.grad == by_calculus  # the batch as one array: the same sum, exactly
x_grad, y_grad, seed = sharing()
assert np.array_equal(x_grad, [2, 2])
assert np.array_equal(y_grad, [1, 1])
assert np.array_equal(seed, [1, 1])
assert not np.shares_memory(x_grad, y_grad)
assert not np.shares_memory(y_grad, seed)
for view in (seed[:1], seed.T, np.broadcast_to(seed, (3, 2))):
    assert np.shares_memory(seed, view)

g, node, held, owned = np.ones(2), Node([], None, (2,)), {}, set()
kept = []
for _ in range(3):
    _add_to_node(node, g, held, owned)
    kept.append(held[node])
assert kept[0] is g  # borrowed
assert kept[1] is not g  # allocated
assert kept[2] is kept[1]  # in place
assert np.array_equal(g, [1, 1])

assert changed(in_place) == 8  # still: the third is not for the engine to mend
print("shape: mended; memory: mended; values changed after their use: for the user to avoid")

# %%
# This is the engine. Is it minigrad's? Both get the same functions: sums and products, values that
# are used many times, broadcasts. The numbers are small integers, so that no sum is rounded and the
# gradients can be asked to be equal. Add a function of your own.
FUNCTIONS = {
    "x + x": lambda x, w: x + x,
    "x x + x": lambda x, w: x * x + x,
    "x (1 weight a column)": lambda x, w: x * w,
    "weights alone": lambda x, w: w * w + w,
    "shared": lambda x, w: (s := x * w) * s + s + s + w,
    "sum of products": lambda x, w: (x + w) * (x * w) * (x + x),
    "deep": lambda x, w: doubled(doubled(x * w, 5) + x, 5),
}
numbers = np.random.default_rng(0)
x_data = numbers.integers(-4, 5, (3, 2)).astype(float)  # 3 samples of 2
w_data = numbers.integers(-4, 5, 2).astype(float)


def ours(f):
    x, w = leaf(x_data), leaf(w_data)
    z = f(x, w)
    backward(z, ones(z))
    return x.grad, w.grad


def minigrads(f):
    x, w = mg.Tensor(x_data, requires_grad=True), mg.Tensor(w_data, requires_grad=True)
    z = f(x, w)
    z.backward(ones(z))
    return x.grad, w.grad


for f in FUNCTIONS.values():
    for mine, its in zip(ours(f), minigrads(f)):
        assert (mine is None) == (its is None)
        assert mine is None or (mine.shape == its.shape and np.array_equal(mine, its))  # exact
print(f"{len(FUNCTIONS)} functions, two engines: equal gradients")

# %% [markdown]
# ## Is a gradient right?
#
# A pullback is written by hand, and hands make mistakes. The derivative can be had without it, from
# values alone: the *central difference* $\big(f(x+h) - f(x-h)\big) / 2h$. Two errors are in it.
#
# - **Truncation.** By Taylor's formula it misses $f'(x)$ by about $h^2 |f'''(x)| / 6$.
# - **Rounding.** A computed value of $f$ is wrong by about $u |f(x)|$, where $u = 2^{-53}$ is the
#   unit of rounding of lesson 00, or unit roundoff. Divided by $h$, that is $u |f(x)| / h$.
#
# So a smaller $h$ is better only down to a point: the sum of both is least where
# $h^3 = 3 u |f / f'''|$. With two values more, the difference for $2h$ can be had too. Its error is
# 4 times as large, so that 4/3 of the first minus 1/3 of the second is without it:
# $$\frac{8 f(x+h) - 8 f(x-h) - f(x+2h) + f(x-2h)}{12 h}$$
# is wrong by about $h^4 |f^{(5)}(x)| / 30$ only, so that $h$ may be larger, and rounding is less.
#
# **Before you run the next cell:** sketch the error of both against $h$, on logarithmic axes. Which
# slopes do you expect on the left and on the right, and which curve comes further down?

# %%
from inspect import signature

u = 2.0**-53


def seventh(x):
    """x^7, of numbers, arrays or Tensors."""
    square = x * x
    return square * square * square * x


def central(x, h):
    return (seventh(x + h) - seventh(x - h)) / (2 * h)


def fourth_order(x, h):
    outer = seventh(x + 2 * h) - seventh(x - 2 * h)
    return (8 * (seventh(x + h) - seventh(x - h)) - outer) / (12 * h)


def rms(errors):
    """The root of the mean of the squares."""
    return np.sqrt(np.mean(errors**2))


def slope(steps, errors, low, high):
    """Of the error against h, both as logarithms, for low < h < high."""
    chosen = (low < steps) & (steps < high)
    return np.polyfit(np.log(steps[chosen]), np.log(errors[chosen]), 1)[0]


points = 1 + np.arange(256) / 256  # with steps that are powers of 2, x + h is exact
steps = 2.0 ** -np.arange(1, 41)
x = mg.Tensor(points, requires_grad=True)
z = seventh(x)
z.backward(ones(z))
truth = x.grad
assert np.allclose(truth, 7 * points**6, rtol=1e-14, atol=0)
from_central = (4 * central(points, 0.25) - central(points, 0.5)) / 3
assert np.allclose(fourth_order(points, 0.25), from_central, rtol=1e-12, atol=0)

# Relative to f' = 7 x^6: f''' = 210 x^4 gives 5 (h/x)^2, the fifth, 2520 x^2, gives 12 (h/x)^4.
rounding = rms(u * points / 7)  # at h = 1: u f / f'
METHODS = {  # the formula, its order, its truncation at h = 1, colour, marker
    "central": (central, 2, rms(5 / points**2), plotting.BLUE, "o"),
    "fourth order": (fourth_order, 4, rms(12 / points**4), plotting.ORANGE, "s"),
}
figure, axes = plotting.subplots(height=3.8)
best, lowest = {}, {}
for name, (difference, order, truncation, colour, marker) in METHODS.items():
    errors = np.array([rms(difference(points, h) / truth - 1) for h in steps])
    predicted = truncation * steps**order
    best[name] = (rounding / (order * truncation)) ** (1 / (order + 1))  # the sum is least there
    lowest[name] = errors.min()
    axes.loglog(steps, errors, ls="", marker=marker, color=colour, label=f"{name}, measured")
    label = f"truncation, predicted: slope {order}"
    axes.loglog(steps, predicted, color=colour, lw=1.2, ls="--", label=label)
    right, left = slope(steps, errors, 4e-3, 0.1), slope(steps, errors, 0, 1e-7)
    assert abs(right - order) < 0.05
    assert abs(left + 1) < 0.15
    assert best[name] / 4 < steps[errors.argmin()] < best[name] * 4
    print(f"{name}: slopes {left:.0f} and {right:.0f}; best step, predicted: {best[name]:.0e}")
assert lowest["fourth order"] < lowest["central"] / 20
used = signature(mg.gradcheck).parameters["step"].default
assert best["fourth order"] / 2 < used < 2 * best["fourth order"]
print(f"mg.gradcheck uses the fourth order with a step of {used:.0e}")

label = "rounding, predicted: slope -1"
axes.loglog(steps, rounding / steps, color=plotting.DARK, lw=1.2, ls=":", label=label)
axes.set(xlabel="step h", ylabel="relative error", ylim=(1e-14, 10))
axes.legend(loc="upper center")
plotting.show(
    figure,
    "02-step",
    f"The relative error of two difference quotients of x to the 7th against the step h. Points: "
    f"measured; lines: predicted. From left to right both fall with slope -1, which is rounding, "
    f"and then rise with slopes 2 and 4, which is truncation. The best steps are predicted at "
    f"{best['central']:.0e} and {best['fourth order']:.0e}, and measured within a factor of 4; the "
    f"formula of fourth order comes more than 20 times further down.",
)

# %% [markdown]
# ## The checker, and who checks it
#
# A function of an array has many derivatives. To check them one by one takes new values for each
# element. `mg.gradcheck` takes one number instead: it draws random weights $c$ for the outputs and
# a random direction $d$ for an input, and compares the slope of $F(h) = c \cdot f(x + h d)$ at 0,
# by the formula of fourth order, with $\mathrm{grad} \cdot d$. A wrong gradient passes only if its
# error is tiny, or nearly at a right angle to a random direction, and that three times.
#
# But a check that never fails proves nothing. So **plant an error and see it caught**, one for each
# mistake that you fear. As an operation we take $y = x s$ with $s = 1 / (1 + e^{-x})$, which is
# called swish; by the product rule $y' = s + x s (1 - s)$.
#
# **Before you run the next cell:** will a factor be caught that is wrong by a thousandth? By one
# part in $10^{12}$? And what of `relu`, which is $\max(x, 0)$ and right, at $x = 0$?

# %%
from minigrad import tensor


def swish(derivative):
    """The operation y = x s, with a pullback that is built on this derivative."""

    def operation(x):
        s = 1 / (1 + np.exp(-x.data))
        dy = derivative(x.data, s)
        return tensor.record(x.data * s, (x,), lambda g: (g * dy,))

    return operation


def right(x, s):
    return s + x * s * (1 - s)


def passes(f):
    """Is gradcheck content with f?"""
    x = mg.Tensor(np.random.default_rng(0).standard_normal((2, 2)), requires_grad=True)
    return not refused(lambda: mg.gradcheck(f, x), AssertionError)


PLANTED = {
    "the product rule forgotten": swish(lambda x, s: s),
    "a wrong sign inside": swish(lambda x, s: s - x * s * (1 - s)),
    "a factor of 1.001": swish(lambda x, s: 1.001 * right(x, s)),
    "transposed": swish(lambda x, s: right(x, s).T),
    "rounded to float32": swish(lambda x, s: right(x, s).astype(np.float32)),
    "a path forgotten": lambda x: x * x.detach(),  # detach(): the same value, as a constant
    "all zero": swish(lambda x, s: 0 * s),
}
assert passes(swish(right))
for name, planted in PLANTED.items():
    assert not passes(planted)
    print("caught:", name)

# Where it ends: what is smaller than its tolerance passes, and at a kink there is no derivative.
assert passes(swish(lambda x, s: (1 + 1e-12) * right(x, s)))
kink = mg.Tensor([0.0, 1.0, -2.0], requires_grad=True)
assert refused(lambda: mg.gradcheck(mg.relu, kink), AssertionError)
print("passes: one part in 10^12; refused, though right: relu at 0")

# %%
# The file itself. Beyond the lesson it keeps dtypes, lets an optimizer say where a gradient should
# lie, lets a costly pullback write straight into that place, can retain the tape, and refuses what
# would disturb a window that is open (lesson 04); `into` is for gradients kept out of `.grad`.
from minigrad.reading import show_source

show_source(tensor.record, tensor.backward, tensor.count_uses)
show_source(tensor._add_to_node, tensor._add_to_leaf)

# %% [markdown]
# ## Usual mistakes
#
# - "A gradient is set." It is added: what a pullback returns comes along one of several paths.
# - "The gradient of several paths is their product." Derivatives are multiplied *along* a path, and
#   added *between* paths.
# - "`backward` clears what was there." It adds to it. Within an update that is accumulation;
#   between two updates, a forgotten `w.grad = None` adds the old gradient to the new one.
# - "After `backward` every value has its `.grad`." Only leaves that require one; the others are
#   used up on the way.
# - "One may call `backward` again." The tape is gone. Compute the loss again, or retain the tape.
# - "`x.data += 1` is short for `x.data = x.data + 1`." It changes what pullbacks hold, and every
#   view of the array.
# - "A smaller step gives a better difference." Below the best step, ten times smaller is ten times
#   worse.
# - "The check passed, so the gradient is right." Only if the check can fail: plant an error.
#
# ## In short
#
# - An operation records its parents and its pullback; `backward` walks the tape from the root.
# - The gradient is the sum over paths of the products along them; hence `+=`.
# - Paths, samples, micro-batches: one sum, made by the same line: gradient accumulation.
# - A node is walked when all that used it have been: first borrow, then allocate, then in place.
# - Check by differences of fourth order in a random direction, and check the checker.
#
# ## References
#
# - F. L. Bauer (1974). Computational graphs and rounding error. *SIAM J. Numerical Analysis* 11.
# - A. G. Baydin, B. A. Pearlmutter, A. A. Radul, J. M. Siskind (2018). Automatic differentiation in
#   machine learning: a survey. *Journal of Machine Learning Research* 18.
# - A. Griewank, A. Walther (2008). *Evaluating Derivatives*, second edition. SIAM.
# - N. J. Higham (2002). *Accuracy and Stability of Numerical Algorithms*, second edition. SIAM.
# - S. Linnainmaa (1970). The representation of the cumulative rounding error of an algorithm as a
#   Taylor expansion of the local rounding errors (in Finnish). Master's thesis, University of
#   Helsinki.
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986). Learning representations by
#   back-propagating errors. *Nature* 323.
