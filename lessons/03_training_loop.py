# %% [markdown]
# # 03 · What is one update?
#
# **You will be able to**
#
# 1. say why the gradient of a batch is a sum over its samples, and where broadcasting adds it up;
# 2. derive the gradient of softmax cross-entropy, and write SGD, momentum and Adam from memory;
# 3. write one update in its right order, and name what each of its stages reads and writes.
#
# **Needs:** lessons [00](00_start_here.ipynb) and [02](02_autograd.ipynb), what a probability is
# ([a page of background](before.md)). **Reading:** 50 minutes; **exercises:** 50 minutes
# ([03_training_loop](exercises/03_training_loop.ipynb)). **Code:**
# [`minigrad/functions.py`](../minigrad/functions.py),
# [`minigrad/losses.py`](../minigrad/losses.py), [`minigrad/layers.py`](../minigrad/layers.py),
# [`minigrad/optimizers.py`](../minigrad/optimizers.py),
# [`minigrad/training.py`](../minigrad/training.py).

# %% [markdown]
# ## 1 · A batch already is a sum
#
# Lesson 02 built the engine. Now we use it, and build what goes round it, until that is minigrad's
# `train_step`. A *sample* is one input with the answer that is wanted for it, its *target*. The
# inputs of N samples are the rows of one array `X`, and one line treats them all:
#
# $$Y = X W + b, \qquad X: (N, 3), \quad W: (3, 2), \quad b: (2,), \quad Y: (N, 2).$$
#
# `X @ W` has N rows and `b`, the *bias*, has one. NumPy uses it again for each row: that is
# *broadcasting*. (From section 5 on, b is the size of a micro-batch again.)
#
# **Before you run the next cell:** let N be 4, and let each element of `Y` have the gradient 1.
# What is then in `b.grad`: 1 (it is one row), 1/4 (it is shared by four), or 4? And would four
# calls of `backward`, one a sample, leave the same?

# %%
import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.arrays import sum_to
from minigrad.data import digits
from minigrad.reading import show_source

N = 4
rng = np.random.default_rng(0)


def quarters(*shape):
    """Multiples of 1/4 from -2 to 2: float64 multiplies and adds a few of them without rounding."""
    return rng.integers(-8, 9, shape) / 4


X = quarters(N, 3)
W, b = mg.parameter(quarters(3, 2)), mg.parameter(quarters(2))  # leaves that require a gradient
G = quarters(N, 2)  # the gradient of each element of Y, whatever the loss may be

(X @ W + b).backward(np.ones((N, 2)))
print(f"each element of Y has the gradient 1: b.grad = {b.grad}")
assert (b.grad == N).all()

W.grad = b.grad = None
(X @ W + b).backward(G)  # all samples at once
W_batch, b_batch = W.grad, b.grad

W.grad = b.grad = None
for x, g in zip(X, G):  # one sample at a time; backward adds, and nobody clears
    (x[None, :] @ W + b).backward(g[None, :])

assert (b.grad == b_batch).all()
assert (W.grad == W_batch).all()
assert (b_batch == sum(G)).all()
assert (W_batch == sum(np.outer(x, g) for x, g in zip(X, G))).all()
print(f"one batch of {N} and {N} calls of backward: the same b.grad and W.grad, ==\n")
show_source(sum_to)

# %% [markdown]
# It is N. `b` was used once for each row, and the gradients of a value that is used more than once
# are *added* (lesson 02). So **the pullback of broadcasting is a sum over the samples**, and
# `sum_to`, above, is where `backward` takes it. (It is that of lesson 02; what it has besides is
# for other kinds of numbers, and for errors.) For `W` the matrix product takes the same sum,
# $X^\top G = \sum_i x_i g_i^\top$. The loop over samples gives the same, *exactly* (`==`), because
# these numbers are chosen so that no sum is rounded.
#
# A batch is therefore already an accumulation: the array library runs the loop over samples. All
# that this course does is to take a part of that loop out of the array again. (Change `N` to 7: the
# cell still says `==`.)
#
# ## 2 · A net
#
# $x W + b$ is a *linear layer*. Two of them in a row are only one again, with the weight $W_1 W_2$.
# So something bent must stand between: *ReLU*, which is max(x, 0), element by element. Linear,
# ReLU, linear is a *multi-layer perceptron* (MLP), a *net* for short, and the numbers between its
# layers are *hidden*.
#
# Ours will read digits: 8 × 8 pixels, a row of 64 numbers from 0 to 1, and a *label* from 0 to 9.
# It answers with ten numbers, the *logits*; the largest one names the *class*, here the digit, that
# it votes for.
#
# **Before you run the next cell:** how many numbers are there to learn in a net 64 → 32 → 10?

# %%
(x_train, y_train), (x_test, y_test) = digits(np.float64)
hidden = 32

mg.manual_seed(0)
model = mg.MLP(64, hidden, 10, dtype=np.float64)
W1, b1, W2, b2 = model.parameters()


def forward_by_hand(x):
    """Images (n, 64) to logits (n, 10)."""
    return mg.relu(x @ W1 + b1) @ W2 + b2


def far(a, b):
    """How far a is from b: the norm of their difference, as a part of the norm of b."""
    return np.linalg.norm(a - b) / np.linalg.norm(b)


print(f"{len(x_train)} digits to train on, {len(x_test)} to test with")
print("shapes:", *(p.shape for p in model.parameters()))
print("numbers to learn:", sum(p.data.size for p in model.parameters()))

logits = forward_by_hand(x_train[:5])
assert far(logits.data, model(x_train[:5]).data) < 1e-12
print(f"votes of the untrained net: {logits.data.argmax(axis=1)}, labels: {y_train[:5]}")

without_relu = (x_train @ W1 + b1) @ W2 + b2
as_one_layer = x_train @ (W1 @ W2) + (b1 @ W2 + b2)
assert far(without_relu.data, as_one_layer.data) < 1e-12
assert far(model(x_train).data, as_one_layer.data) > 0.1
print("by hand and mg.MLP: equal to rounding; without ReLU, two layers are one")

# %% [markdown]
# ## 3 · The loss: softmax cross-entropy
#
# *Softmax* makes probabilities of the logits z of one sample, and the *cross-entropy* is how much
# the right class y is missed by:
#
# $$p_j = \frac{e^{z_j}}{\sum_i e^{z_i}}, \qquad \ell = -\log p_y = \log \sum_i e^{z_i} - z_y .$$
#
# It is near 0 where the net is sure and right, and grows without bound where it is sure and wrong.
# A net that knows nothing, and gives each of ten classes 1/10, has log 10. The loss of a batch is
# the *sum* of its samples' losses, together with its *weight*, here the number of samples; sum over
# weight is the mean that is printed. `mg.cross_entropy` returns both: a `Loss` is a sum that knows
# what it weighs. Its `terms` hold the two, here one term with its `total` and its `weight`.
#
# **Before you run the next cell:** for z = (1000, 0, 0) and the label y = 1 the loss is 1000, to
# rounding. What does the first formula give if it is typed as it stands?


# %%
def naive(z, y):
    """As it stands above."""
    e = np.exp(z)
    return -np.log(e[y] / e.sum())


def stable(z, y):
    """The largest logit is taken off first: e to the 0 is then the largest number there is."""
    shifted = z - z.max()
    return np.log(np.exp(shifted).sum()) - shifted[y]


with np.errstate(all="ignore"):  # NumPy would warn; the point is what comes out
    print("   largest logit     naive    stable")
    for largest in (1, 10, 100, 1000):
        z = np.array([largest, 0.0, 0.0])
        print(f"{largest:16}{naive(z, 1):10.4g}{stable(z, 1):10.4g}")
        assert largest == 1000 or abs(naive(z, 1) - stable(z, 1)) < 1e-12 * stable(z, 1)
    assert (naive(z, 1), stable(z, 1)) == (np.inf, 1000)
    assert np.isnan(naive(z, 0))
    assert np.exp(np.float32(88)) < np.exp(np.float32(89)) == np.inf
print("in float32 e^89 is already infinite")

loss = mg.cross_entropy(np.zeros((7, 10)), np.arange(7))
assert loss.terms[0].weight == 7
assert abs(loss.mean().item() - np.log(10)) < 1e-12
print(f"seven logits of zeros: sum {loss.sum().item():.4g}, weight 7, mean log 10")

# %% [markdown]
# Typed as it stands it is infinite, for the label 0 even NaN. Taking the same number off all logits
# changes no probability, because it cancels in the fraction; so the largest is taken off, and
# nothing overflows. That is what runs in `mg.cross_entropy`.
#
# **Its gradient.** With $\ell = \log \sum_i e^{z_i} - z_y$,
#
# $$\frac{\partial \ell}{\partial z_j} = \frac{e^{z_j}}{\sum_i e^{z_i}} - [j = y]
# = p_j - \mathrm{onehot}(y)_j ,$$
#
# where onehot(y) is 1 at place y and 0 elsewhere. In words: the right logit is pulled up by the
# probability that it lacks, each wrong one is pushed down by the probability that it took. The
# pushes and the pull cancel: each row sums to 0. For N samples, row i of the gradient is $p_i -
# \mathrm{onehot}(y_i)$, and what reaches the weights is a sum over rows, as in section 1.
#
# The cell checks this formula against three others: the tape of simple operations,
# `mg.cross_entropy`, and differences. **Before you run it:** people who know that the net "should
# output probabilities" put a softmax before a loss that has one inside. If the first softmax is
# perfect (1 for the right class, 0 for all others), is the loss then 0?

# %%
x, y = x_train[:5], y_train[:5]
z = mg.parameter(model(x).data)

e = mg.exp(z - z.data.max(axis=1, keepdims=True))
p = e / e.sum(axis=1, keepdims=True)
onehot = np.eye(10)[y]
formula = p.data - onehot

(-mg.log(p[np.arange(len(y)), y])).sum().backward()
by_tape, z.grad = z.grad, None
mg.cross_entropy(z, y).sum().backward()
fused = z.grad

h, by_differences = 1e-5, np.zeros_like(formula)
for place in np.ndindex(formula.shape):
    step = np.zeros_like(formula)
    step[place] = h
    up, down = (mg.cross_entropy(z.data + s, y).sum().item() for s in (step, -step))
    by_differences[place] = (up - down) / (2 * h)

assert max(far(by_tape, formula), far(fused, formula)) < 1e-12
assert far(by_differences, formula) < 1e-8
assert np.abs(formula.sum(axis=1)).max() < 1e-12
np.set_printoptions(precision=3, suppress=True)
print(f"label {y[0]}; p - onehot = {formula[0]}")
print("formula, tape and mg.cross_entropy: equal to rounding; differences: to 8 digits")

twice = mg.cross_entropy(onehot, y).mean().item()
assert abs(twice - np.log(1 + 9 / np.e)) < 1e-12
print(f"softmax twice: the loss of a perfect answer is {twice:.4g}, not 0")

# %% [markdown]
# With a softmax too many the loss cannot fall below $\log(1 + 9/e)$: the second one sees logits
# from 0 to 1, and gives every class a share. No error says so.
#
# ## 4 · The step: SGD, momentum, Adam
#
# An *optimizer* turns the gradient g into a change of the *parameters* p, all weights and biases.
# One such change is an *update*. lr is the *learning rate*, the *rate* for short. (In section 3 p
# was a probability.)
#
# - **SGD**, stochastic gradient descent: $p \leftarrow p - \mathrm{lr}\, g$.
# - **Momentum** $\mu$: $v \leftarrow \mu v + g$, then $p \leftarrow p - \mathrm{lr}\, v$. The
#   velocity v is the sum of all gradients so far, those of t updates ago times $\mu^t$: what points
#   the same way each time builds up, what changes its sign cancels.
# - **Adam**: m and v (no velocity here) are averages of the gradient and of its square, with
#   $\beta_1$ and $\beta_2$ a little below 1 and a tiny $\epsilon$. Both begin at 0; after t updates
#   the weights in an average sum to $1 - \beta^t$, by which it is divided.
#
# $$m \leftarrow \beta_1 m + (1-\beta_1) g, \quad v \leftarrow \beta_2 v + (1-\beta_2) g^2, \quad
# p \leftarrow p - \mathrm{lr}\, \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon} .$$
#
# **Before you run the next cell:** one parameter has the gradient 1000, another 1/1000. How long is
# the first step of Adam for each?


# %%
class ByHand:
    """The three rules, for one array p that is changed in place."""

    def __init__(self, p, lr, mu=0.8, beta1=0.9, beta2=0.999, eps=1e-8):
        self.p, self.lr, self.mu, self.eps = p, lr, mu, eps
        self.beta1, self.beta2 = beta1, beta2
        self.m, self.v, self.t = np.zeros_like(p), np.zeros_like(p), 0

    def sgd(self, g):
        self.p -= self.lr * g

    def momentum(self, g):
        self.v = self.mu * self.v + g
        self.p -= self.lr * self.v

    def adam(self, g):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m = self.m / (1 - self.beta1**self.t)
        v = self.v / (1 - self.beta2**self.t)
        self.p -= self.lr * m / (np.sqrt(v) + self.eps)


curvature = np.array([1.0, 50.0])  # of the valley f(p) = (p_1^2 + 50 p_2^2) / 2
RULES = {  # name: (the rule, its rate in the valley, the same in minigrad)
    "SGD": (ByHand.sgd, 0.036, mg.SGD),
    "momentum": (ByHand.momentum, 0.02, lambda p, lr: mg.SGD(p, lr=lr, momentum=0.8)),
    "Adam": (ByHand.adam, 0.5, mg.Adam),
}
paths = {}
for name, (rule, lr, theirs) in RULES.items():
    mine, q = ByHand(np.array([-8.0, 1.0]), lr), mg.parameter(np.array([-8.0, 1.0]))
    optimizer, path = theirs([q], lr=lr), [mine.p.copy()]
    for _ in range(60):
        rule(mine, curvature * mine.p)
        q.grad = curvature * q.data
        optimizer.step()
        path.append(mine.p.copy())
    assert np.abs(mine.p - q.data).max() < 1e-12
    paths[name] = np.array(path)

first = ByHand(np.zeros(2), lr=0.1)
first.adam(np.array([1000.0, 0.001]))
assert np.allclose(np.abs(first.p), 0.1, rtol=1e-4)
print(f"three rules by hand and in minigrad, {len(path) - 1} updates: equal to rounding")
print(f"first step of Adam at lr = {first.lr}, gradients 1000 and 1/1000: {np.abs(first.p)}")

figure, (left, right) = plotting.subplots(1, 2, height=3.3, width_ratios=(1.45, 1))
p1, p2 = np.meshgrid(np.linspace(-8.6, 2.6, 200), np.linspace(-1.3, 1.3, 200))
levels = [0.3, 2, 5, 10, 17, 27, 40, 56]
left.contour(p1, p2, (p1**2 + 50 * p2**2) / 2, levels, colors="#dcdce0", linewidths=1)
left.plot(0, 0, marker="x", color=plotting.DARK, ms=8, mew=2, zorder=5)
marks = dict(zip(RULES, ((plotting.BLUE, "o"), (plotting.ORANGE, "s"), (plotting.PURPLE, "^"))))
for name, path in paths.items():
    colour, mark = marks[name]
    left.plot(*path[:41].T, color=colour, marker=mark, ms=3.5, lw=1.1, ls="-")
    distance = np.linalg.norm(path, axis=1)
    right.plot(
        distance, color=colour, marker=mark, ms=4.5, markevery=10, lw=1.6, label=name, ls="-"
    )
left.set_title("40 updates in a valley", loc="left")
left.set(xlabel="$p_1$", ylabel="$p_2$")
left.grid(False)
right.set_title("distance to the lowest point", loc="left")
right.set(xlabel="update", yscale="log")
right.legend()
ends = ", ".join(f"{np.linalg.norm(path[-1]):.2g} ({name})" for name, path in paths.items())
plotting.show(
    figure,
    "03-optimizers",
    "Left: paths to the lowest point (cross) of a valley, 50 times as curved across as along. SGD "
    "jumps from side to side and creeps along it; momentum swings, and gathers speed; Adam's "
    f"first steps are as long along as across. Right: distance after 60 updates: {ends}.",
)

# %% [markdown]
# Both steps of Adam have the length lr, but for $\epsilon$: at the first update the fraction is
# $g/|g|$, the sign. So the gradient's scale is lost on Adam, while SGD passes each factor on; that
# will matter when a loop forgets to divide. (Change the rate of SGD to `0.041`: beyond 2/50 it no
# longer comes down.)
#
# ## 5 · Six words
#
# | word | what it is |
# |---|---|
# | *sample* | one input with its target |
# | *micro-batch* | b samples that go through the net at once, and must fit into memory |
# | *batch* | N samples, whose mean gradient makes one update |
# | *window* | the k micro-batches of one batch, from the first forward pass to the update |
# | *update* | one change of the parameters, at the end of a window |
# | *epoch* | a walk over all samples of the data, each once |
#
# The micro-batch is chosen for memory, the batch for learning. Where they are the same, k is 1.
#
# **Before you run the next cell:** 250 samples, batches of 100, micro-batches of 32, two epochs.
# How many micro-batches are there, and how many updates?

# %%
samples, batch_size, micro_batch_size, epochs = 250, 100, 32, 2
count = dict.fromkeys(("samples", "micro-batches", "batches", "updates", "epochs"), 0)

for _ in range(epochs):
    for start in range(0, samples, batch_size):
        n = min(batch_size, samples - start)  # of the batch; the last may be short
        sizes = []
        for part in mg.micro_batches(n, micro_batch_size):
            b = part.stop - part.start  # of the micro-batch; the last may be short
            sizes.append(b)
            count["samples"] += b
            count["micro-batches"] += 1
        count["batches"] += 1
        count["updates"] += 1  # at the end of the window, and only there
        window = f"{len(sizes)} micro-batches {' + '.join(map(str, sizes))}"
        print(f"epoch {count['epochs'] + 1}, update {count['updates']}: batch of {n} = {window}")
    count["epochs"] += 1
print(count)

full, short = divmod(samples, batch_size)
# -(-a // b) is a / b, rounded up
assert count["updates"] == count["batches"] == epochs * -(-samples // batch_size)
assert count["samples"] == epochs * samples
assert count["micro-batches"] == epochs * (
    full * -(-batch_size // micro_batch_size) + -(-short // micro_batch_size)
)
assert (count["updates"] == count["epochs"]) == (batch_size >= samples)

# %% [markdown]
# The last micro-batch of a batch and the last batch of an epoch may be short: a mean must know how
# many it counted. One epoch is one update only where the batch is all of the data. (Change
# `micro_batch_size` to 25: more micro-batches, the same updates. Then change `batch_size`.)
#
# ## 6 · The smallest loop, and what is missing
#
# An update in four lines: forward, loss, backward, step. **Before you run the next cell:** what is
# in `.grad` when the second update makes its step?


# %%
def first_loop(clear, momentum=0.0, updates=120):
    """Loss of the batch and gradient of W1 at each update; losses of all digits now and then."""
    mg.manual_seed(0)
    model = mg.MLP(64, 32, 10, dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.2, momentum=momentum)
    rng = np.random.default_rng(0)
    losses, gradients, now_and_then = [], [], {}
    for update in range(1, updates + 1):
        if update in (1, 10, 20, 40, 80, 120):
            now_and_then[update] = mg.cross_entropy(model(x_train), y_train).mean().item()
        rows = rng.permutation(len(x_train))[:64]
        loss = mg.cross_entropy(model(x_train[rows]), y_train[rows]).mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.parameters()[0].grad.copy())
        optimizer.step()
        if clear:
            optimizer.zero_grad()
    return losses, gradients, now_and_then


_, g, cleared = first_loop(clear=True)
losses, summed, forgotten = first_loop(clear=False)
rolling, _, _ = first_loop(clear=True, momentum=1.0)

assert far(summed[1], g[0] + g[1]) < 1e-12
assert np.allclose(losses, rolling, rtol=1e-9, atol=0)  # rounding
assert forgotten[20] < 0.5 * cleared[20]
assert forgotten[120] > 2 * cleared[120]
print("loss before update", *(f"{update:7}" for update in cleared))
print("cleared           ", *(f"{value:7.2f}" for value in cleared.values()))
print("forgotten         ", *(f"{value:7.2f}" for value in forgotten.values()))
print("the second step of the loop that forgets goes by g_1 + g_2: equal to rounding")

# %% [markdown]
# `backward` adds, and nobody had cleared: the second step goes by $g_1 + g_2$, the third by three
# gradients. That is momentum with $\mu = 1$, a ball that nothing slows down: the cell has checked
# that the two loops have the same losses, to rounding. It gets down sooner, and then it rolls up
# the other side.
# **"The loss went down" does not prove a loop right.**
#
# So: clear once an update, after the step or before the first `backward`, never between the two.
#
# ## 7 · Reading digits
#
# Now all of it, over epochs. Three things are new.
#
# - The order of the samples is drawn anew for each epoch, inputs and labels *by the same rows*.
# - *Dropout* sets hidden numbers to 0 at random while training, so that the net cannot lean on one
#   of them, and enlarges the others to make up for it. It must be off when the net is used:
#   `model.train()` and `model.eval()` switch this mode.
# - *Accuracy* is the share of images that are read right, and it is taken on the *test set*, digits
#   that the net was never trained on.
#
# **Before you run the next cell:** the loss on the training set, measured in eval mode after an
# epoch: is it larger than the mean of the losses during the epoch, smaller, or the same?


# %%
def evaluate(model, x, y):
    """Mean loss and accuracy, without dropout and without a tape."""
    model.eval()
    with mg.no_grad():
        logits = model(x)
        return mg.cross_entropy(logits, y).mean().item(), np.mean(logits.data.argmax(axis=1) == y)


mg.manual_seed(0)
reader = mg.MLP(64, 64, 10, dropout=0.5, dtype=np.float64)
optimizer = mg.SGD(reader.parameters(), lr=0.1, momentum=0.9)
rng, batch_size, epochs = np.random.default_rng(0), 64, 20
per_update, per_epoch, test_losses, last_batches = [], [], [], []

print("epoch  updates  train: epoch  last batch  in eval   test: loss  accuracy")
for epoch in range(1, epochs + 1):
    reader.train()
    order = rng.permutation(len(x_train))
    total = 0.0
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        optimizer.zero_grad()
        loss = mg.cross_entropy(reader(x_train[rows]), y_train[rows]).mean()
        loss.backward()
        optimizer.step()
        per_update.append(loss.item())
        total += loss.item() * len(rows)
    per_epoch.append(total / len(order))
    last_batches.append(loss.item())
    train_loss, _ = evaluate(reader, x_train, y_train)
    test_loss, accuracy = evaluate(reader, x_test, y_test)
    test_losses.append(test_loss)
    if epoch in (1, 2, 5, 10, 20):
        mean, last = per_epoch[-1], last_batches[-1]
        print(f"{epoch:5}{len(per_update):9}{mean:14.3f}{last:12.3f}{train_loss:9.3f}", end="")
        print(f"{test_loss:13.3f}{100 * accuracy:9.1f}%")

assert len(per_update) == epochs * -(-len(x_train) // batch_size)
assert accuracy > 0.95
assert train_loss < 0.5 * per_epoch[-1]
off = np.array(last_batches) / per_epoch - 1
low, high = 100 * off.min(), 100 * off.max()
print(f"the last batch alone misses the epoch's loss by {low:+.0f} to {high:+.0f} %")
assert off.min() < -0.1 < 0.1 < off.max()

assert evaluate(reader, x_test, y_test)[0] == evaluate(reader, x_test, y_test)[0]
reader.train()
noisy = [mg.cross_entropy(reader(x_test), y_test).mean().item() for _ in range(2)]
assert noisy[0] != noisy[1] > 1.2 * test_loss
assert set(mg.Dropout(0.5)(np.ones(100)).data) == {0, 2}  # about half are 0, the others doubled
print(f"test loss in eval mode: {test_loss:.3f}, each time")
print(f"test loss in train mode: {noisy[0]:.3f}, and again: {noisy[1]:.3f}")

reader.eval()
read = reader(x_test).data.argmax(axis=1)
shown = np.array([np.flatnonzero(y_test == digit)[0] for digit in range(10)])
misread = np.flatnonzero(read != y_test)[0]
shown[y_test[misread]] = misread

figure, (left, right) = plotting.subplots(1, 2, height=3.5, width_ratios=(1.35, 1))
updates = np.arange(1, len(per_update) + 1)
ends = updates.reshape(epochs, -1)[:, -1]
left.plot(updates, per_update, color=plotting.GREY, lw=0.8, ls="-", label="each batch, train mode")
left.plot(ends, per_epoch, color=plotting.BLUE, marker="o", ls="-", label="mean of the epoch")
left.plot(ends, test_losses, color=plotting.ORANGE, marker="s", ls="--", label="test, eval mode")
left.set_title("loss", loc="left")
left.set(xlabel="update", yscale="log")
left.yaxis.set_major_formatter("{x:g}")
left.legend()

page = np.full((2, 12, 5, 10), np.nan)  # two rows of five images, with room around each
page[:, :8, :, 1:9] = x_test[shown].reshape(2, 5, 8, 8).transpose(0, 2, 1, 3)
right.imshow(page.reshape(24, 50), cmap="gray_r", vmin=-0.15, vmax=1)
for place, image in enumerate(shown):
    row, column = divmod(place, 5)
    wrong = read[image] != y_test[image]
    said = f"{y_test[image]} read as {read[image]}" if wrong else str(read[image])
    colour = plotting.RED if wrong else plotting.DARK
    right.text(10 * column + 4.5, 12 * row + 8, said, ha="center", va="top", color=colour)
    if wrong:
        x, y = 10 * column + 0.5, 12 * row - 0.5
        frame = [x, x + 8, x + 8, x, x], [y, y, y + 8, y + 8, y]
        right.plot(*frame, color=colour, lw=2.5, ls="-")
right.set_title("ten of the test digits, as they are read", loc="left")
right.axis("off")
plotting.show(
    figure,
    "03-digits",
    f"Left: {len(per_update)} updates of {batch_size} digits. Batches scatter; the epoch's mean "
    f"falls from {per_epoch[0]:.2f} to {per_epoch[-1]:.2f}, the test loss, without dropout, to "
    f"{test_losses[-1]:.2f}. Right: ten test digits, one of each class; the {y_test[misread]} in "
    f"the frame is read as {read[misread]}. Of {len(y_test)} test digits {np.sum(read == y_test)} "
    "are read right.",
)

# %% [markdown]
# Smaller: the mean of the epoch is taken over weights that were still changing, and with dropout
# on; the loss of the net as it is at the end, without dropout, is less than half of it. The last
# batch alone scatters to both sides.
#
# ## 8 · The loop becomes `train_step`
#
# If a batch does not fit into memory, its micro-batches go through the net one after the other. Two
# things change: `backward` is called on *sums*, which may be added whatever their sizes, and the
# one division waits until the window ends. After it the whole gradient is there for the first time,
# and everything that wants *the* gradient stands in one order: **divide, look, clip, step,
# average**.
#
# - *look*: the loss, and the *norm* of the gradient (of all parameters as one vector); if one of
#   them is not finite, there is no update.
# - *clip*: a gradient whose norm exceeds `clip_norm` is scaled down to it, so that one odd batch
#   cannot throw the weights far.
# - *average*: a smoothed copy of the parameters, $a \leftarrow d\,a + (1-d)\,p$, for later use.
#
# **Before you run the next cell:** 20 updates by the loop below in micro-batches of 1, 32 and 100,
# against `mg.train_step` with one batch of 100. Same bits, equal to rounding, or different?


# %%
def accumulate(model, loss, batch, micro_batch_size):
    """Add the gradient of each micro-batch's sum to `.grad`; return the window's sum and weight."""
    inputs, labels = batch
    total = weight = 0
    for part in mg.micro_batches(len(inputs), micro_batch_size):
        outputs = model(inputs[part])  # forward
        [term] = loss(outputs, labels[part]).terms  # loss: a sum, and what it weighs
        term.total.backward()  # backward: adds
        total += term.total.item()
        weight += term.weight
    return total, weight


def train_step(model, loss, optimizer, batch, micro_batch_size, clip_norm=None, average=None):
    """One update by the gradient of the whole batch; returns its loss and its gradient's norm."""
    total, weight = accumulate(model, loss, batch, micro_batch_size)
    gradients = [p.grad for p in optimizer.parameters]
    for g in gradients:
        g /= weight  # divide, once
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients))  # look
    if np.isfinite(total) and np.isfinite(norm):
        if clip_norm is not None and norm > clip_norm:
            for g in gradients:
                g *= clip_norm / norm  # clip
        optimizer.step()  # step
        if average is not None:
            average.update()  # average
    optimizer.zero_grad()  # clear
    return total / weight, norm


def vector(model, average):
    """All parameters and their averages, one after the other."""
    arrays = [*(p.data for p in model.parameters()), *average.values]
    return np.concatenate([array.ravel() for array in arrays])


def train(step, micro_batch_size, clip_norm=0.5, dropout=0.0):
    """All parameters and their averages after 20 updates of 100 digits, as one vector."""
    mg.manual_seed(0)
    model = mg.MLP(64, 32, 10, dropout=dropout, dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = mg.WeightAverage(model.parameters(), decay=0.9)
    options = {"clip_norm": clip_norm, "average": average}
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.permutation(len(x_train))[:100]
        batch = x_train[rows], y_train[rows]
        step(model, mg.cross_entropy, optimizer, batch, micro_batch_size, **options)
    return vector(model, average)


one_batch = train(mg.train_step, 100)
for b in (1, 32, 100):
    assert far(train(train_step, b), one_batch) < 1e-12
    print(f"micro-batches of {b:3}: the loop of this lesson and mg.train_step, equal to rounding")
unclipped = far(train(train_step, 32, clip_norm=None), one_batch)
assert unclipped > 1e-3
print(f"and without clipping: different, by {100 * unclipped:.1f} % of the norm")

one_batch = train(mg.train_step, 100, dropout=0.5)
assert far(train(mg.train_step, 32, dropout=0.5), one_batch) < 1e-12
with_dropout = far(train(train_step, 32, dropout=0.5), one_batch)
assert with_dropout > 1e-3
print(f"with dropout our loop is different, by {100 * with_dropout:.0f} %; mg.train_step is not")

broken, before = (x_train[:4] * np.nan, y_train[:4]), model.state_dict()
train_step(model, mg.cross_entropy, mg.SGD(model.parameters(), lr=0.1), broken, 2)
assert all((before[name] == p.data).all() for name, p in model.named_parameters())
print("a window that is not finite: no update, ==")

# %% [markdown]
# Equal to *rounding*: the sums are taken in another order, and nothing else differs. Here it ends,
# though: with dropout, our loop draws other *masks* (what is set to 0) in micro-batches than in one
# batch. In `mg.train_step` a mask belongs to the sample, whatever the cut; how, is shown in lesson
# 06.
#
# ## 9 · The anatomy of one update
#
# Which stage reads what, and what does it write? We need not take it on trust. **It writes**
# what is different after the stage. **It reads** what makes a difference: repeat the update with
# one thing changed just before the stage, and see whether anything that the stage writes comes out
# otherwise. The cell does so for nine stages and eight things, at the second of two micro-batches.
#
# **Before you run the next cell:** name all stages that read the weights. Who writes them?


# %%
MICRO = ["forward", "loss", "backward"]  # for each micro-batch
ONCE = ["divide", "look", "clip", "step", "average", "clear"]  # at the end of the window


class Update:
    """All that one update touches, and its stages: the lines of `train_step`, taken apart."""

    def __init__(self):
        mg.manual_seed(0)
        self.model = mg.MLP(64, 8, 10, dtype=np.float64)
        self.weights = self.model.parameters()
        self.optimizer = mg.SGD(self.weights, lr=0.1, momentum=0.9)
        self.smooth = mg.WeightAverage(self.weights, decay=0.9)
        self.batch, self.tape, self.sums, self.report = [], None, np.zeros(2), np.zeros(2)

    def forward(self):
        self.tape = self.model(self.batch[0])

    def loss(self):
        [term] = mg.cross_entropy(self.tape, self.batch[1]).terms
        self.tape = term.total
        self.sums += term.total.item(), term.weight

    def backward(self):
        self.tape.backward()
        self.tape = None

    def divide(self):
        for p in self.weights:
            p.grad /= self.sums[1]

    def look(self):
        norm = np.sqrt(sum(np.sum(p.grad**2) for p in self.weights))
        self.report[:] = self.sums[0] / self.sums[1], norm

    def clip(self):
        for p in self.weights:
            p.grad *= min(1, 0.1 / self.report[1])

    def step(self):
        self.optimizer.step()

    def average(self):
        self.smooth.update()

    def clear(self):
        self.optimizer.zero_grad()
        self.sums[:] = 0

    def run(self, stages):
        for stage in stages:
            getattr(self, stage)()

    def window(self, parts):
        for part in parts:
            self.batch = part
            self.run(MICRO)
        self.run(ONCE)

    def things(self):
        """The arrays of each thing, as they are now."""
        return {
            "batch": self.batch,
            "weights": [p.data for p in self.weights],
            "tape": [] if self.tape is None else [self.tape.data],
            ".grad": [p.grad for p in self.weights if p.grad is not None],
            "sums": [self.sums],
            "report": [self.report],
            "velocity": list(self.optimizer.state_dict().values()),
            "average": self.smooth.values,
        }

    def change(self, thing):
        """Make one thing another one."""
        if thing == "tape":
            self.tape = None if self.tape is None else self.tape * 2
        elif thing == "velocity":
            state = self.optimizer.state_dict()
            self.optimizer.load_state_dict({name: value + 1 for name, value in state.items()})
        else:
            for array in self.things()[thing]:
                array += 1


def two_parts():
    """20 digits in two micro-batches of 10; no 9, so that a label plus 1 is still a label."""
    return [[x_train[s].copy(), y_train[s] % 9] for s in mg.micro_batches(20, 10)]


def stop_at(stage, changed=None):
    """All things before and after a stage of the second window, at its second micro-batch."""
    u = Update()
    u.window(two_parts())
    first, second = two_parts()
    u.batch = first
    u.run(MICRO)
    u.batch = second
    u.run((MICRO + ONCE)[: (MICRO + ONCE).index(stage)])
    if changed:
        u.change(changed)
    before = {thing: [np.array(a) for a in arrays] for thing, arrays in u.things().items()}
    u.run([stage])
    return before, u.things()


def differ(a, b):
    return len(a) != len(b) or not all(np.array_equal(x, y) for x, y in zip(a, b))


reads, writes = {}, {}
for stage in MICRO + ONCE:
    before, after = stop_at(stage)
    writes[stage] = [thing for thing in after if differ(before[thing], after[thing])]
    otherwise = {thing: stop_at(stage, changed=thing)[1] for thing in after}
    reads[stage] = [
        thing
        for thing in after
        if any(differ(after[t], otherwise[thing][t]) for t in writes[stage])
    ]
    print(f"{stage:9} reads {', '.join(reads[stage]) or 'none of them'}")
    print(f"{'':9} writes {', '.join(writes[stage])}")


def who(what, thing):
    return [stage for stage in what if thing in what[stage]]


assert who(reads, "weights") == ["forward", "backward", "step", "average"]
assert who(writes, "weights") == who(writes, "velocity") == ["step"]
assert who(writes, ".grad") == ["backward", "divide", "clip", "clear"]
assert writes["average"] == ["average"]
assert not reads["clear"]
after_window = stop_at("clear")[1]
assert not any(map(np.any, (after_window[name] for name in ("tape", ".grad", "sums"))))


apart, whole = Update(), Update()
apart.window(two_parts())
batch = [np.concatenate(halves) for halves in zip(*two_parts())]
train_step(whole.model, mg.cross_entropy, whole.optimizer, batch, 10, 0.1, whole.smooth)
assert far(vector(apart.model, apart.smooth), vector(whole.model, whole.smooth)) < 1e-12

# %%
LINES = {
    "forward": "outputs = model(inputs)",
    "loss": "[term] = loss(outputs, labels).terms",
    "backward": "term.total.backward()",
    "divide": "g /= weight",
    "look": "norm = np.sqrt(sum(np.sum(g * g)))",
    "clip": "g *= clip_norm / norm",
    "step": "optimizer.step()",
    "average": "average.update()",
    "clear": "optimizer.zero_grad()",
}
TITLES = "batch", "weights", "tape", ".grad", "sum,\nweight", "loss,\nnorm", "velocity", "average"
FACES = {"reads": "white", "writes": plotting.ORANGE, "changes": plotting.PURPLE}
DARK = plotting.DARK

figure, axes = plotting.subplots(height=4.9)
for row, stage in enumerate(LINES):
    y = -row - 0.5 * (stage in ONCE)
    axes.text(-4.3, y + 0.16, stage, weight="bold", va="center", color=DARK)
    axes.text(-4.3, y - 0.24, LINES[stage], family="monospace", size=7.5, va="center", color=DARK)
    axes.plot([-0.3, 9.2], [y, y], color="#dcdce0", lw=0.8, ls="-", zorder=0)
    for column, thing in enumerate(after):
        kinds = [k for k, d in (("reads", reads), ("writes", writes)) if thing in d[stage]]
        if kinds:
            kind = kinds[0] if len(kinds) == 1 else "changes"
            box = {"boxstyle": "round,pad=0.35", "fc": FACES[kind], "ec": DARK, "lw": 0.8}
            ink = "white" if kind == "changes" else DARK
            style = {"size": 8.5, "ha": "center", "va": "center", "color": ink, "bbox": box}
            axes.text(1.2 * column + 0.3, y, kind, **style)
for column, (title, thing) in enumerate(zip(TITLES, after)):
    weight = "bold" if thing in ("weights", "velocity", "average") else "normal"
    style = {"size": 9, "ha": "center", "va": "bottom", "weight": weight, "color": DARK}
    axes.text(1.2 * column + 0.3, 0.7, title, **style)
for top, bottom, said in ((0.4, -2.4, "k times"), (-3.1, -8.9, "once")):
    axes.plot([-4.4, -4.55, -4.55, -4.4], [top, top, bottom, bottom], color=DARK, lw=1, ls="-")
    style = {"rotation": 90, "ha": "right", "va": "center", "color": DARK}
    axes.text(-4.65, (top + bottom) / 2, said, **style)
axes.set(xlim=(-5.1, 9.3), ylim=(-9.1, 1.5))
axes.axis("off")
plotting.show(
    figure,
    "03-anatomy",
    "One update, from top to bottom: three stages for each micro-batch, six once a window, and "
    "what each of them reads, writes, or changes (both). What stands in bold lives on after the "
    "update: the weights and the velocity, which only step writes, and the average.",
)

# %% [markdown]
# Four stages read the weights, and `backward` is one of them: to take a gradient back through $x W$
# one needs W, and the tape holds the array itself, no copy (lesson 02). So **the weights must stand
# still from the first forward pass of a window to its `step`**: that is what makes a window one
# update. (In `Update`, let the optimizer be `mg.Adam(self.weights, lr=0.1)`: the same picture.)
#
# ## 10 · The file itself
#
# What runs when you call `mg.train_step` is below. `run`, from `accumulation.py`, holds the three
# stages of a micro-batch, `window.finish` divides and looks; clip, step and average stand in
# `finish_update`. What is more than in our loop: losses of several units (lesson 05), statistics
# that some layers keep, and the care that after an error nothing has changed.

# %%
show_source(mg.train_step, mg.training.finish_update)

# %% [markdown]
# ## Usual mistakes
#
# - *`zero_grad` is forgotten.* The gradients of all updates add up, and the loss goes down all the
#   same, for a while. Once an update, never between `backward` and `step`.
# - *The loss of the last batch is reported as that of the epoch.* It is one noisy number. Add up
#   each batch's loss times its size, divide by the number of samples.
# - *The net is tested in train mode.* Dropout is on: the loss is too large, and another one each
#   time. `model.eval()` before, `model.train()` after.
# - *"An epoch is an update."* An epoch is a walk over the data; it has as many updates as batches.
# - *Softmax twice.* The loss takes logits; with probabilities in their place it can never reach 0.
# - *"The loss went down, so the loop is right."* Compare gradients with ones that you trust.
#
# ## In short
#
# - A batch is a sum over samples: the pullback of broadcasting, and of a product, takes it.
# - The gradient of softmax cross-entropy by the logits is p − onehot; each row of it sums to 0.
# - An epoch has as many updates as batches, an update as many micro-batches as memory demands.
# - k times: forward, loss, backward. Once: divide, look, clip, step, average, clear.
# - The weights stand still from the first forward pass of a window to its step.
#
# ## References
#
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986). Learning representations by
#   back-propagating errors. *Nature* 323.
# - B. T. Polyak (1964). Some methods of speeding up the convergence of iteration methods. *USSR
#   Computational Mathematics and Mathematical Physics* 4. On momentum.
# - D. P. Kingma, J. Ba (2015). Adam: a method for stochastic optimization. *ICLR*.
# - N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever, R. Salakhutdinov (2014). Dropout: a
#   simple way to prevent neural networks from overfitting. *Journal of Machine Learning Research*
#   15.
# - R. Pascanu, T. Mikolov, Y. Bengio (2013). On the difficulty of training recurrent neural
#   networks. *ICML*. On clipping by the norm.
# - E. Alpaydin, C. Kaynak (1998). *Optical Recognition of Handwritten Digits*. UCI Machine Learning
#   Repository. The digits.
