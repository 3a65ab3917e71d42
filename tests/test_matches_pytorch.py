"""The same numbers as PyTorch: every operation, layer, loss and optimizer, in float32 and float64.

The table is in operations.py. "To rounding" is a few units of the last place of the largest
element: the order of sums differs, the mathematics may not.
"""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad as mg
from tests.operations import CLASS_WEIGHTS, LAYERS, ROWS, layer, leaves

torch = pytest.importorskip("torch", reason="needs PyTorch")
functional = torch.nn.functional
torch.set_num_threads(1)  # on arrays this small, more threads are slower

DTYPES = [np.float32, np.float64]


def assert_close(ours, theirs, ulps=64):
    """Same shape and dtype, and equal to `ulps` units of rounding of the largest element."""
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    size = np.max(np.abs(theirs), initial=0)
    bound = ulps * np.finfo(theirs.dtype).eps * size
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound, equal_nan=False)


def twin(x, requires_grad=True):
    return torch.tensor(np.asarray(x), requires_grad=requires_grad)


def assert_same(run, theirs, *inputs, ulps=64):
    """Forward, and the gradient of each input for a random gradient of the result."""
    mine = [mg.Tensor(x, requires_grad=True) for x in inputs]
    other = [twin(x) for x in inputs]
    y, z = run(*mine), theirs(*other)
    assert_close(y.data, z, ulps)
    g = np.random.default_rng(0).standard_normal(y.shape).astype(y.dtype)
    y.backward(g)
    z.backward(torch.tensor(g))
    for x, t in zip(mine, other):
        assert_close(x.grad, t.grad, ulps)


# ------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_an_operation_is_that_of_pytorch(name, dtype):
    row = ROWS[name]
    inputs = [x.data for x in leaves(name, dtype)]
    assert_same(row.run, lambda *xs: row.twin(torch, *xs), *inputs)


BINARY = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
}
SHAPES = [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((4, 1, 3), (2, 1))]
SHAPES += [((0, 3), (3,))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a", "b"), SHAPES + [(b, a) for a, b in SHAPES])
@pytest.mark.parametrize("operator", BINARY)
def test_operators_broadcast_as_in_pytorch(operator, a, b, dtype):
    rng = np.random.default_rng(0)
    x, y = (np.asarray(rng.uniform(0.5, 1.5, shape), dtype) for shape in (a, b))
    assert_same(BINARY[operator], BINARY[operator], x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [3, -0.75])
@pytest.mark.parametrize("operator", BINARY)
def test_a_number_may_stand_on_either_side(operator, number, dtype):
    f = BINARY[operator]
    x = np.array([0.5, -1.25, 3], dtype)
    assert_same(lambda x: f(x, number), lambda x: f(x, number), x)
    assert_same(lambda x: f(number, x), lambda x: f(number, x), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", [*BINARY, "@"])
def test_an_array_may_stand_on_either_side(operator, dtype):
    f = BINARY.get(operator, lambda x, y: x @ y)
    x, a = np.array([[0.5, -1.25], [3, 2]], dtype), np.array([[2.0, 1.0], [-0.5, 4.0]], dtype)
    assert_same(lambda x: f(x, a), lambda x: f(x, torch.tensor(a)), x)
    assert_same(lambda x: f(a, x), lambda x: f(torch.tensor(a), x), x)


@pytest.mark.parametrize("exponent", [-3, -1, -0.5, 0, 0.5, 1, 2, 2.0, 2.5, 3])
def test_powers_are_those_of_pytorch(exponent):
    x = np.array([0.5, 1.5, 3.0])
    assert_same(lambda x: x**exponent, lambda x: x**exponent, x)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3])
def test_powers_at_zero_and_below_are_those_of_pytorch(exponent):
    x = np.array([0.0, -1.5])
    assert_same(lambda x: x**exponent, lambda x: x**exponent, x)


AXES = [None, 0, 1, -1, (0,), (0, 1), (-1, 0), (0, 1, 2)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_reductions_over_any_axes_are_those_of_pytorch(name, axis, keepdims):
    x = np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(np.float64)  # most are ties
    dims = (0, 1, 2) if axis is None else axis
    if name == "max":
        run, theirs = lambda x: mg.max(x, axis, keepdims), lambda x: x.amax(dims, keepdims)
    else:
        run = lambda x: getattr(x, name)(axis, keepdims)  # noqa: E731
        theirs = lambda x: getattr(x, name)(dims, keepdims)  # noqa: E731
    assert_same(run, theirs, x)


def test_equal_ones_share_the_gradient_of_maximum_as_in_pytorch():
    x, y = np.array([1.0, 2.0, -1.0]), np.array([1.0, 0.0, -1.0])
    assert_same(mg.maximum, torch.maximum, x, y)
    assert_same(lambda x: mg.maximum(x, 0), lambda x: torch.maximum(x, torch.zeros(3).double()), y)


def test_kinks_and_extremes_are_those_of_pytorch():
    x = np.array([-800.0, -30.0, -1e-9, 0.0, 1e-9, 30.0, 800.0])
    assert_same(mg.relu, torch.relu, x)
    assert_same(mg.tanh, torch.tanh, x)
    assert_same(mg.sigmoid, torch.sigmoid, x)
    assert_same(mg.logsumexp, lambda x: torch.logsumexp(x, -1), x)
    assert_same(mg.log_softmax, lambda x: torch.log_softmax(x, -1), x)
    t = np.array([0.0, 1.0, 0.3, 0.5, 1.0, 0.0, 1.0])
    assert_same(
        lambda z: mg.binary_cross_entropy_with_logits(z, t).sum(),
        lambda z: functional.binary_cross_entropy_with_logits(z, torch.tensor(t), reduction="sum"),
        x,
    )


def test_a_masked_logit_of_minus_infinity_is_that_of_pytorch():
    z = np.array([[0.5, -np.inf, 1.0]])
    assert_same(mg.logsumexp, lambda z: torch.logsumexp(z, -1), z)
    assert_same(
        lambda z: mg.cross_entropy(z, [2]).sum(),
        lambda z: functional.cross_entropy(z, torch.tensor([2])),
        z,
    )


def test_a_branch_that_was_not_taken_gives_no_nan_as_in_pytorch():
    x = np.array([0.0, 4.0])
    with np.errstate(divide="ignore"):
        assert_same(
            lambda x: mg.where(x.data > 0, mg.exp(x), x.detach() * 0),
            lambda x: torch.where(x.detach() > 0, torch.exp(x), x.detach() * 0),
            x,
        )


STEPS = [  # (ours, theirs) on matrices (3, 3) of numbers that stay of moderate size
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: x - y.T, lambda x, y: x - y.T),
    (lambda x, y: x * mg.tanh(y), lambda x, y: x * torch.tanh(y)),
    (lambda x, y: x / (2 + mg.tanh(y)), lambda x, y: x / (2 + torch.tanh(y))),
    (lambda x, y: mg.tanh(x) @ mg.sigmoid(y), lambda x, y: torch.tanh(x) @ torch.sigmoid(y)),
    (lambda x, y: mg.tanh(x) ** 2 - y, lambda x, y: torch.tanh(x) ** 2 - y),
    (lambda x, y: x + y[0] - y[1:2], lambda x, y: x + y[0] - y[1:2]),
    (lambda x, y: x[[0, 0, 2]] + y[:, [1, 2, 1]], lambda x, y: x[[0, 0, 2]] + y[:, [1, 2, 1]]),
    (lambda x, y: x - x.mean() + y.sum(axis=0), lambda x, y: x - x.mean() + y.sum(axis=0)),
    (
        lambda x, y: mg.log_softmax(x) + mg.logsumexp(y, 0),
        lambda x, y: torch.log_softmax(x, 1) + torch.logsumexp(y, 0),
    ),
    (
        lambda x, y: mg.concatenate([x, y])[2:5] + mg.stack([y[0], x[1], x[1]]),
        lambda x, y: torch.cat([x, y])[2:5] + torch.stack([y[0], x[1], x[1]]),
    ),
    (lambda x, y: mg.linear(x, mg.tanh(y), y[2]), lambda x, y: x @ torch.tanh(y) + y[2]),
    (lambda x, y: mg.relu(x) + x * 0.5 + y, lambda x, y: torch.relu(x) + x * 0.5 + y),
    (lambda x, y: mg.maximum(x, y) - x, lambda x, y: torch.maximum(x, y) - x),
]
programs = st.lists(st.tuples(*[st.integers(0, 99)] * 3), min_size=1, max_size=12)


@settings(max_examples=60)
@given(programs)
def test_any_program_of_operations_that_use_any_earlier_result_is_that_of_pytorch(program):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, 3)) for _ in range(2)]
    mine = [mg.Tensor(a, requires_grad=True) for a in arrays]
    theirs = [twin(a) for a in arrays]
    for step, i, j in program:
        ours, other = STEPS[step % len(STEPS)]
        i, j = i % len(mine), j % len(mine)
        mine.append(ours(mine[i], mine[j]))
        theirs.append(other(theirs[i], theirs[j]))
    mg.stack(mine).sum().backward()
    torch.stack(theirs).sum().backward()
    assert_close(mine[-1].data, theirs[-1], ulps=1e4)
    for x, t in zip(mine[:2], theirs[:2]):
        assert_close(x.grad, t.grad, ulps=1e4)


# ----------------------------------------------------------------------------------- layers


def copied(name, dtype):
    """A layer of ours, the same of PyTorch with the same parameters, and an input."""
    mine, x = layer(name, dtype)
    theirs = LAYERS[name].theirs(torch.nn).to(getattr(torch, np.dtype(dtype).name))
    for p, q in zip(mine.parameters(), theirs.parameters()):
        q.data = torch.tensor(p.data.T if _is_linear(q, p) else p.data)
    return mine, theirs, x


def _is_linear(q, p):
    return p.ndim == 2 and q.shape != p.shape


def assert_same_gradients(mine, theirs):
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert_close(p.grad, q.grad.T if _is_linear(q, p) else q.grad, ulps=128)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_pytorch(name, training, dtype):
    mine, theirs, x = copied(name, dtype)
    assert_same(mine.train(training), theirs.train(training), x, ulps=128)
    assert_same_gradients(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_running_statistics_of_batchnorm_are_those_of_pytorch(dtype):
    mine, theirs, x = copied("BatchNorm", dtype)
    for factor in (1, 2, -3):
        assert_close(mine(x * factor + factor).data, theirs(torch.tensor(x * factor + factor)), 128)
    assert_close(mine.running_mean, theirs.running_mean)
    assert_close(mine.running_var, theirs.running_var)
    assert_same(mine.eval(), theirs.eval(), x)
    assert_same_gradients(mine, theirs)


def test_embedding_is_that_of_pytorch():
    indices = np.array([[0, 3, 3], [1, 3, 0]])
    weight = np.random.default_rng(0).standard_normal((5, 2))
    mine, theirs = mg.Embedding(5, 2, dtype=np.float64), torch.nn.Embedding(5, 2)
    mine.weight.data, theirs.weight.data = weight, torch.tensor(weight)
    y, z = mine(indices), theirs(torch.tensor(indices))
    assert_close(y.data, z)
    (y * y).sum().backward()
    (z * z).sum().backward()
    assert_close(mine.weight.grad, theirs.weight.grad)


# ----------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [-100, 1, 7])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_cross_entropy_is_that_of_pytorch(shape, smoothing, weighted, ignore, reduction, dtype):
    rng = np.random.default_rng(0)
    labels = np.resize([0, 1, 2, ignore], shape)
    weights = CLASS_WEIGHTS.astype(dtype) if weighted else None

    def ours(z):
        loss = mg.cross_entropy(
            z, labels, ignore_index=ignore, class_weights=weights, label_smoothing=smoothing
        )
        return getattr(loss, reduction)()

    def theirs(z):
        return functional.cross_entropy(
            z.reshape(-1, 3),
            torch.tensor(labels.reshape(-1)),
            None if weights is None else torch.tensor(weights),
            ignore_index=ignore,
            label_smoothing=smoothing,
            reduction=reduction,
        )

    assert_same(ours, theirs, rng.standard_normal((*shape, 3)).astype(dtype))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("per_token", [False, True])
def test_cross_entropy_with_sample_weights_is_the_weighted_mean(smoothing, weighted, per_token):
    rng = np.random.default_rng(0)
    labels = np.array([[0, 1, 2], [2, -100, 0]])
    samples = np.array([[1, 0.5, 2], [0, 3, 1.5]]) if per_token else np.array([0.5, 3])
    classes = CLASS_WEIGHTS if weighted else np.ones(3)

    def ours(z):
        return mg.cross_entropy(
            z,
            labels,
            class_weights=CLASS_WEIGHTS if weighted else None,
            label_smoothing=smoothing,
            sample_weights=samples,
        ).mean()

    def theirs(z):
        flat = labels.reshape(-1)
        each = np.broadcast_to(samples if per_token else samples[:, None], (2, 3)).reshape(-1)
        losses = functional.cross_entropy(
            z.reshape(-1, 3),
            torch.tensor(flat),
            torch.tensor(classes),
            label_smoothing=smoothing,
            reduction="none",
        )
        weights = np.where(flat >= 0, each * classes[np.maximum(flat, 0)], 0)
        return (losses * torch.tensor(each)).sum() / weights.sum()

    assert_same(ours, theirs, rng.standard_normal((2, 3, 3)))


ADDITIVE = {
    "squared_error": functional.mse_loss,
    "absolute_error": functional.l1_loss,
    "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ADDITIVE)
def test_an_additive_loss_is_that_of_pytorch(name, reduction, dtype):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3)).astype(dtype), rng.random((4, 3)).astype(dtype)
    x[0] = y[0]  # the kink of the absolute error
    assert_same(
        lambda x: getattr(getattr(mg, name)(x, y), reduction)(),
        lambda x: ADDITIVE[name](x, torch.tensor(y), reduction=reduction),
        x,
    )


@pytest.mark.parametrize("name", ADDITIVE)
def test_an_additive_loss_with_sample_weights_is_the_weighted_mean(name):
    rng = np.random.default_rng(0)
    x, y, w = rng.standard_normal((4, 3)), rng.random((4, 3)), np.array([0.5, 0, 2, 1])
    assert_same(
        lambda x: getattr(mg, name)(x, y, w).mean(),
        lambda x: (
            (ADDITIVE[name](x, torch.tensor(y), reduction="none") * torch.tensor(w)[:, None])
            .sum()
            .div(3 * w.sum())
        ),
        x,
    )


# -------------------------------------------------------------------------------- optimizers

OPTIMIZERS = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "SGD, Nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD, decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "SGD, everything": (
        "SGD",
        {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.03},
    ),
    "Adam": ("Adam", {"lr": 0.01}),
    "Adam, betas": ("Adam", {"lr": 0.01, "betas": (0.0, 0.9), "eps": 1e-4}),
    "Adam, L2": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW, default decay": ("AdamW", {"lr": 0.01}),
}
SCHEDULES = {
    "cosine": mg.cosine(1.0, 15, 0.1),
    "warmup": mg.warmup(1.0, 5),
    "warmup, then cosine": mg.warmup(mg.cosine(1.0, 30), 4),
    "linear_decay": mg.linear_decay(1.0, 12, 0.25),
    "step_decay": mg.step_decay(1.0, 0.5, 6),
}


def train(name, dtype, schedule=None, steps=20):
    """`steps` updates of both, from the same weights on the same data: (ours, theirs)."""
    kind, options = OPTIMIZERS[name]
    options = dict(options)
    mine, theirs, _ = copied("MLP: tanh and norms", dtype)
    rng = np.random.default_rng(1)
    other = getattr(torch.optim, kind)(theirs.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(other, schedule or (lambda update: 1))
    rate = options.pop("lr")
    lr = rate if schedule is None else lambda update: rate * schedule(update)
    optimizer = getattr(mg, kind)(mine.parameters(), lr=lr, **options)
    for _ in range(steps):
        x, y = rng.standard_normal((8, 4)).astype(dtype), rng.integers(0, 3, 8)
        mg.train_step(mine, mg.cross_entropy, optimizer, (x, y), micro_batch_size=8)
        other.zero_grad()
        functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)).backward()
        other.step()
        scheduler.step()
    return mine, theirs


def assert_same_weights(mine, theirs, ulps):
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert_close(p.data, q.T if _is_linear(q, p) else q, ulps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_updates_are_those_of_pytorch(name, dtype):
    assert_same_weights(*train(name, dtype), ulps=1000)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["SGD, everything", "AdamW"])
def test_twenty_updates_with_a_schedule_are_those_of_pytorch(name, schedule):
    assert_same_weights(*train(name, np.float64, SCHEDULES[schedule]), ulps=1000)


# Adam counts its updates, that of PyTorch those of each parameter: equal for one that is used
# always or never.
SOMETIMES = [[0, 1, 2], [1], [0, 2], [2]]
ALWAYS_OR_NEVER = [[0, 2]] * 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_stays_as_it_is_as_in_pytorch(name):
    kind, options = OPTIMIZERS[name]
    values = [np.ones(2), np.ones((3, 2)), np.ones(1)]
    mine = [mg.Tensor(v.copy(), True) for v in values]
    theirs = [twin(v) for v in values]
    a, b = getattr(mg, kind)(mine, **options), getattr(torch.optim, kind)(theirs, **options)
    for used in SOMETIMES if kind == "SGD" else ALWAYS_OR_NEVER:
        for i, (p, q) in enumerate(zip(mine, theirs)):
            p.grad = np.full(p.shape, 0.5) if i in used else None
            q.grad = torch.full(q.shape, 0.5).double() if i in used else None
        a.step()
        b.step()
    for p, q in zip(mine, theirs):
        assert_close(p.data, q)


def rates(kind, **options):
    """The first 20 rates of a scheduler of PyTorch that starts at 0.1."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
    found = []
    for _ in range(20):
        found += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return found


def test_the_schedules_have_the_rates_of_pytorchs_schedulers():
    twins = [
        (mg.step_decay(0.1, 0.5, 6), rates("StepLR", step_size=6, gamma=0.5)),
        (mg.warmup(0.1, 5), rates("LinearLR", start_factor=1 / 5, total_iters=4)),
        (
            mg.linear_decay(0.1, 12, 0.025),
            rates("LinearLR", start_factor=1, end_factor=0.25, total_iters=12),
        ),
        (mg.cosine(0.1, 20, 0.01), rates("CosineAnnealingLR", T_max=20, eta_min=0.01)),
    ]
    for schedule, expected in twins:
        np.testing.assert_allclose([schedule(u) for u in range(20)], expected, rtol=1e-12)


# ----------------------------------------------------------------- clipping, average, saving


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 5.0, 100.0])
def test_clipping_is_that_of_pytorch_but_for_its_epsilon(max_norm, dtype):
    rng = np.random.default_rng(0)
    mine = [mg.Tensor(np.zeros(shape, dtype), True) for shape in [(3, 2), (4,), (2,)]]
    theirs = [twin(p.data) for p in mine]
    for p, q in zip(mine[:2], theirs):  # the last has no gradient
        p.grad = rng.standard_normal(p.shape).astype(dtype)
        q.grad = torch.tensor(p.grad)
    norm = mg.clip_grad_norm(mine, max_norm)
    other = torch.nn.utils.clip_grad_norm_(theirs, max_norm).item()
    assert norm == pytest.approx(other, rel=1e-6 if dtype == np.float32 else 1e-14)
    epsilon = (other + 1e-6) / other if other > max_norm else 1  # PyTorch divides by norm + 1e-6
    for p, q in zip(mine[:2], theirs):
        assert_close(p.grad, q.grad * epsilon)


def test_the_weight_average_is_that_of_the_formula_and_of_pytorch():
    rng, d = np.random.default_rng(0), 0.75
    weights = rng.standard_normal((6, 3))
    p = mg.Tensor(weights[0].copy(), True)
    average = mg.WeightAverage([p], d)
    module = torch.nn.Linear(3, 1, bias=False).double()
    module.weight.data = torch.tensor(weights[:1])
    swa = torch.optim.swa_utils
    other = swa.AveragedModel(module, multi_avg_fn=swa.get_ema_multi_avg_fn(d))
    other.update_parameters(module)  # the first one copies
    for w in weights[1:]:
        p.data[...] = w
        average.update()
        module.weight.data = torch.tensor(w[None])
        other.update_parameters(module)
    T = 5
    by_hand = d**T * weights[0] + (1 - d) * sum(d ** (T - t) * weights[t] for t in range(1, T + 1))
    assert_close(average.values[0], by_hand)
    assert_close(average.values[0], other.module.weight.detach()[0])


def updates(model, optimizer, average, batches):
    for x, y in batches:
        mg.train_step(
            model, mg.cross_entropy, optimizer, (x, y), micro_batch_size=3, average=average
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_saved_in_the_middle_and_loaded_goes_on_bit_for_bit(name, dtype):
    kind, options = OPTIMIZERS[name]
    options = options | {"lr": mg.warmup(options["lr"], 9)}
    rng = np.random.default_rng(1)
    batches = [
        (rng.standard_normal((8, 4)).astype(dtype), rng.integers(0, 3, 8)) for _ in range(12)
    ]

    def start(seed):
        model = mg.MLP(
            4, 6, 3, norm=mg.BatchNorm, dropout=0.25, rng=np.random.default_rng(seed), dtype=dtype
        )
        optimizer = getattr(mg, kind)(model.parameters(), **options)
        return model, optimizer, mg.WeightAverage(model.parameters(), 0.9)

    whole = start(seed=0)
    updates(*whole, batches[:7])
    saved = [part.state_dict() for part in whole]
    resumed = start(seed=1)
    for part, state in zip(resumed, saved):
        part.load_state_dict(state)
    for run in (whole, resumed):
        updates(*run, batches[7:])
    for name, value in whole[0].state_dict().items():
        np.testing.assert_array_equal(resumed[0].state_dict()[name], value)
    for one, other in zip(whole[2].values, resumed[2].values):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_saved_is_not_changed_by_later_updates(name):
    kind, options = OPTIMIZERS[name]
    p = mg.Tensor(np.ones(3), True)
    optimizer = getattr(mg, kind)([p], **options)
    p.grad = np.arange(3.0)
    optimizer.step()
    state = optimizer.state_dict()
    expected = copy.deepcopy(state)
    p.grad = np.arange(3.0)
    optimizer.step()
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value)


def test_smoothing_counts_a_label_whose_class_weighs_nothing():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((4, 3)), np.array([0, 1, 2, 0])
    weights = np.array([0.0, 1, 2])
    ours = mg.Tensor(logits, requires_grad=True)
    loss = mg.cross_entropy(ours, labels, class_weights=weights, label_smoothing=0.2).mean()
    loss.backward()
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs, torch.tensor(labels), torch.tensor(weights), label_smoothing=0.2
    )
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-11, atol=1e-14)
