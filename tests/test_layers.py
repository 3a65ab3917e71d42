"""Modules, initial weights and random masks: what a layer holds, and what it draws.

What layers compute is in test_gradients.py and test_matches_pytorch.py.
"""

import copy
import itertools
import pickle
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad as mg
from tests.operations import LAYERS, layer


class Nested(mg.Module):
    """Everything that a module may hold, in an order that is not that of the alphabet."""

    def __init__(self):
        self.z = mg.Linear(2, 3)
        self.scale = mg.parameter(np.ones(3))
        self.blocks = [mg.Linear(3, 3, bias=False), mg.Sequential(mg.ReLU(), mg.Linear(3, 2))]
        self.heads = {"b": mg.Linear(2, 1), "a": mg.Linear(2, 1, bias=False)}
        self.pair = (mg.BatchNorm(3), mg.Tanh())
        self.again = self.z
        self.tied = self.blocks[0].weight
        self.name, self.count, self.rates = "net", 3, [0.1, 0.2]


# ---------------------------------------------------------------------------------- parameters


def test_parameters_come_in_the_order_in_which_they_were_set_a_shared_one_once():
    model = Nested()
    names = [name for name, _ in model.named_parameters()]
    assert names == [
        "z.weight",
        "z.bias",
        "scale",
        "blocks.0.weight",
        "blocks.1.layers.1.weight",
        "blocks.1.layers.1.bias",
        "heads.b.weight",
        "heads.b.bias",
        "heads.a.weight",
        "pair.0.weight",
        "pair.0.bias",
    ]
    assert [id(p) for p in model.parameters()] == [id(p) for _, p in model.named_parameters()]


def test_the_order_of_parameters_is_the_same_every_time():
    assert [n for n, _ in Nested().named_parameters()] == [
        n for n, _ in Nested().named_parameters()
    ]


def test_a_module_in_two_places_is_listed_once():
    modules = Nested().modules()
    assert len(modules) == len(set(modules)) == 10


class Lists(mg.Module):
    def __init__(self):
        self.grid = [[mg.Linear(1, 1)], {"deep": (mg.Linear(1, 1),)}]
        self.weights = [mg.parameter(np.ones(2)), mg.parameter(np.ones(3))]


def test_no_parameter_is_lost_in_a_list_of_lists_or_of_tensors():
    assert [p.shape for p in Lists().parameters()] == [(1, 1), (1,), (1, 1), (1,), (2,), (3,)]


def test_train_and_eval_reach_every_module_and_only_this_model():
    model, other = Nested(), Nested()
    assert model.eval() is model
    assert not any(module.training for module in model.modules())
    assert all(module.training for module in other.modules())
    assert all(module.training for module in model.train().modules())


def test_zero_grad_forgets_all_gradients():
    model = mg.MLP(2, 3, 1)
    model(np.ones((4, 2))).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_one_weight_in_two_layers_gets_the_gradient_of_both():
    first = mg.Linear(2, 2, bias=False, dtype=np.float64)
    second = mg.Linear(2, 2, bias=False)
    second.weight = first.weight
    model, x = mg.Sequential(first, second), np.array([[1.0, 2.0]])
    mg.gradcheck(lambda w: model(x), *model.parameters())


def test_a_sequential_of_nothing_is_the_identity_and_an_mlp_of_two_sizes_is_linear():
    x = mg.Tensor(np.ones((2, 3)))
    assert mg.Sequential()(x) is x
    assert [type(m) for m in mg.MLP(3, 2).layers] == [mg.Linear]


def test_an_mlp_has_norm_activation_and_dropout_after_each_linear_layer_but_the_last():
    model = mg.MLP(4, 6, 5, 2, activation=mg.Tanh, norm=mg.LayerNorm, dropout=0.25)
    kinds = [mg.Linear, mg.LayerNorm, mg.Tanh, mg.Dropout]
    assert [type(m) for m in model.layers] == [*kinds, *kinds, mg.Linear]
    assert model.layers[3].p == 0.25
    assert repr(model).startswith("MLP(Linear(")


# --------------------------------------------------------------------------------- state_dict


def test_a_state_holds_copies_of_all_parameters_and_buffers():
    model = Nested()
    state = model.state_dict()
    names = {name for name, _ in model.named_parameters()}
    assert state.keys() == names | {"pair.0.running_mean", "pair.0.running_var"}
    state["z.weight"][...] = 7
    assert not np.any(model.z.weight.data == 7)
    model.z.bias.data[...] = 8
    assert not np.any(state["z.bias"] == 8)


def test_a_loaded_model_is_the_saved_one_and_keeps_its_arrays_and_dtype():
    saved, model = mg.MLP(3, 4, 2, norm=mg.BatchNorm), mg.MLP(3, 4, 2, norm=mg.BatchNorm)
    saved(np.random.default_rng(0).standard_normal((5, 3)))  # moves the running statistics
    arrays = [p.data for p in model.parameters()]
    model.load_state_dict({k: v.astype(np.float64) for k, v in saved.state_dict().items()})
    assert all(p.data is array for p, array in zip(model.parameters(), arrays))
    for name, value in model.state_dict().items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, saved.state_dict()[name])


BAD_STATES = {
    "missing": (
        lambda s: {k: v for k, v in s.items() if k != "layers.0.weight"},
        KeyError,
        r"misses \['layers.0.weight'\]",
    ),
    "unexpected": (lambda s: s | {"extra": np.ones(1)}, KeyError, r"does not know .*\['extra'\]"),
    "a buffer missing": (
        lambda s: {k: v for k, v in s.items() if "running_var" not in k},
        KeyError,
        r"misses \['layers.1.running_var'\]",
    ),
    "of another shape": (
        lambda s: s | {"layers.3.bias": np.ones(5)},
        ValueError,
        r"layers.3.bias .*shape \(5,\), expected \(2,\)",
    ),
    "a buffer of another shape": (
        lambda s: s | {"layers.1.running_mean": np.ones((4, 1))},
        ValueError,
        r"layers.1.running_mean .*shape \(4, 1\), expected \(4,\)",
    ),
    "a number for an array": (
        lambda s: s | {"layers.3.bias": 0.0},
        ValueError,
        r"layers.3.bias .*shape \(\), expected \(2,\)",
    ),
    "no numbers": (
        lambda s: s | {"layers.3.bias": np.array(["a", "b"])},
        (TypeError, ValueError),
        None,
    ),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_does_not_fit_is_refused_by_name_and_nothing_has_changed(name):
    spoil, kind, message = BAD_STATES[name]
    model = mg.MLP(3, 4, 2, norm=mg.BatchNorm)
    before = model.state_dict()
    other = {key: value + 1 for key, value in before.items()}
    with pytest.raises(kind, match=message):
        model.load_state_dict(spoil(other))
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[key])


def test_loading_goes_on_under_an_optimizer():
    model = mg.Linear(2, 1, dtype=np.float64)
    optimizer = mg.SGD(model.parameters(), 1.0)
    model.load_state_dict({"weight": np.ones((2, 1)), "bias": np.zeros(1)})
    model(np.array([[1.0, 2.0]])).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(model.weight.data, [[0], [-1]])


# --------------------------------------------------------------------------- astype and copies


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, object])
def test_astype_converts_parameters_and_buffers_and_forgets_gradients(dtype):
    model = mg.Sequential(mg.Linear(2, 3), mg.BatchNorm(3))
    model(np.ones((4, 2))).sum().backward()
    assert model.astype(dtype) is model
    assert {value.dtype for value in model.state_dict().values()} == {np.dtype(dtype)}
    assert all(p.grad is None for p in model.parameters())


def test_astype_after_the_optimizer_was_made_is_refused_at_the_next_step():
    model = mg.Linear(2, 1)
    optimizer = mg.SGD(model.parameters(), 0.1)
    model.astype(np.float64)
    model(np.ones((1, 2))).sum().backward()
    with pytest.raises(TypeError, match="convert the model first, then make the optimizer"):
        optimizer.step()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("name", LAYERS)
def test_a_copied_layer_computes_the_same_and_shares_nothing(name, how):
    module, x = layer(name)
    other = how(module)
    np.testing.assert_array_equal(other(x).data, module(x).data)
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        assert not np.shares_memory(p.data, q.data)


def test_a_copied_model_and_optimizer_train_together_and_apart_from_the_first():
    def make():
        model = mg.MLP(3, 4, 2, rng=np.random.default_rng(0))
        return model, mg.Adam(model.parameters(), 0.1)

    rng = np.random.default_rng(1)
    batch = rng.standard_normal((5, 3)).astype(np.float32), rng.integers(0, 2, 5)
    model, optimizer = make()
    mg.train_step(model, mg.cross_entropy, optimizer, batch, 2)
    copies = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    frozen = copy.deepcopy(model).state_dict()
    for other, its in copies:
        mg.train_step(other, mg.cross_entropy, its, batch, 2)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, frozen[name])
    mg.train_step(model, mg.cross_entropy, optimizer, batch, 2)
    for name, value in model.state_dict().items():
        for other, _ in copies:
            np.testing.assert_array_equal(other.state_dict()[name], value)


# ------------------------------------------------------------------------------ initial weights

VARIANCES = {"he": lambda m, n: 2 / m, "glorot": lambda m, n: 2 / (m + n)}


@pytest.mark.parametrize("rule", VARIANCES)
@pytest.mark.parametrize(("inputs", "outputs"), [(200, 50), (50, 200), (1, 10_000)])
def test_initial_weights_have_the_variance_of_their_rule(rule, inputs, outputs):
    n = inputs * outputs
    w = mg.Linear(
        inputs, outputs, init=rule, rng=np.random.default_rng(0), dtype=np.float64
    ).weight.data
    z = w / np.sqrt(VARIANCES[rule](inputs, outputs))
    assert w.shape == (inputs, outputs)
    assert abs(z.mean()) < 5 / np.sqrt(n)  # 5 standard deviations of each estimate
    assert abs((z * z).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)  # normal, not uniform


MAKERS = {
    "Linear": lambda rng: mg.Linear(3, 4, rng=rng),
    "MLP": lambda rng: mg.MLP(3, 4, 5, 2, rng=rng),
    "Embedding": lambda rng: mg.Embedding(3, 4, rng=rng),
}


def weights(module):
    return np.concatenate([p.data.ravel() for p in module.parameters()])


@pytest.mark.parametrize("name", MAKERS)
def test_initial_weights_come_from_the_generator_that_is_passed_in(name):
    make = MAKERS[name]
    first, second, other = (weights(make(np.random.default_rng(s))) for s in (5, 5, 6))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    rng = np.random.default_rng(5)
    assert not np.array_equal(weights(make(rng)), weights(make(rng)))


@pytest.mark.parametrize("name", MAKERS)
def test_initial_weights_without_a_generator_come_from_the_seed(name):
    def make():
        return weights(MAKERS[name](None))

    mg.manual_seed(1)
    first, next_ = make(), make()
    assert not np.array_equal(first, next_)
    np.random.default_rng(0).random()
    mg.manual_seed(1)
    np.testing.assert_array_equal(make(), first)
    np.testing.assert_array_equal(make(), next_)
    mg.manual_seed(2)
    assert not np.array_equal(make(), first)


def test_a_passed_generator_leaves_the_seed_alone():
    mg.manual_seed(1)
    first = weights(mg.Linear(3, 4))
    mg.manual_seed(1)
    mg.Linear(3, 4, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(weights(mg.Linear(3, 4)), first)


def test_initial_weights_are_those_of_another_dtype_rounded():
    wide, single = (
        mg.MLP(3, 4, 2, rng=np.random.default_rng(0), dtype=t) for t in (np.float64, np.float32)
    )
    np.testing.assert_array_equal(weights(wide).astype(np.float32), weights(single))


@pytest.mark.parametrize(
    ("norm", "bias"), [(mg.BatchNorm, False), (mg.LayerNorm, True), (None, True)]
)
def test_an_mlp_has_no_bias_where_a_batchnorm_takes_it_away_again(norm, bias):
    first, *_, last = mg.MLP(3, 4, 2, norm=norm).layers
    assert (first.bias is not None) == bias
    assert last.bias is not None


def test_biases_start_at_zero_and_norms_at_the_identity():
    model = mg.MLP(3, 4, 2)
    assert not model.layers[0].bias.data.any()
    for norm in (mg.BatchNorm(3), mg.LayerNorm(3), mg.GroupNorm(1, 3)):
        np.testing.assert_array_equal(norm.weight.data, [1, 1, 1])
        np.testing.assert_array_equal(norm.bias.data, [0, 0, 0])


# -------------------------------------------------------------------------------------- dropout


@pytest.fixture(autouse=True)
def _seed_zero():
    mg.manual_seed(0)
    yield
    mg.manual_seed(0)


def mask(model, start=0, stop=6, update=0, seed=0, rows=1, width=8):
    """What `model` makes of ones, for samples `start` to `stop` with `rows` rows each."""
    x = np.ones(((stop - start) * rows, width))
    with mg.drawing(mg.Samples(seed, update, start, stop, model.modules)):
        return model(mg.Tensor(x)).data


splits = st.lists(st.integers(0, 12), max_size=5).map(lambda cuts: sorted({0, 12, *cuts}))


@given(splits, st.sampled_from([1, 3]), st.integers(1, 20))
def test_the_mask_of_a_sample_is_the_same_under_any_split(cuts, rows, width):
    dropout = mg.Dropout(0.5)
    whole = mask(dropout, 0, 12, rows=rows, width=width)
    parts = [mask(dropout, a, b, rows=rows, width=width) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@given(st.integers(1, 13))
def test_accumulate_draws_the_masks_of_the_one_batch(size):
    model = mg.Sequential(mg.Linear(3, 8, dtype=np.float64), mg.Dropout(0.5), mg.Dropout(0.25))
    x, y = np.arange(36.0).reshape(12, 3) + 1, np.zeros((12, 8))
    found = []
    for b in (size, 12):
        mg.accumulate(model, lambda p, y: mg.per_sample(p), (x, y), b, update=3)
        found.append(model.layers[0].bias.grad * 96 * 0.5 * 0.75)  # how often each unit was kept
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    assert len(set(found[1].round(9))) > 1


def test_rows_in_sample_order_are_the_same_whether_they_are_an_axis_or_not():
    dropout = mg.Dropout(0.5)
    rows = mask(dropout, rows=5)
    x = mg.Tensor(np.ones((6, 5, 8)))
    with mg.drawing(mg.Samples(0, 0, 0, 6, dropout.modules)):
        axis = dropout(x).data
    np.testing.assert_array_equal(rows.reshape(6, 5, 8), axis)


def test_a_mask_is_drawn_anew_for_each_sample_update_seed_layer_and_call():
    pair = mg.Sequential(mg.Dropout(0.5), mg.Dropout(0.5))

    class Twice(mg.Module):
        def __init__(self):
            self.dropout = mg.Dropout(0.5)

        def forward(self, x):
            return mg.concatenate([self.dropout(x), self.dropout(x)], axis=1)

    class Both(mg.Module):
        def __init__(self):
            self.one, self.two = mg.Dropout(0.5), mg.Dropout(0.5)

        def forward(self, x):
            return mg.concatenate([self.one(x), self.two(x)], axis=1)

    one = mask(mg.Dropout(0.5), width=64)
    drawn = {
        "first": one,
        "next update": mask(mg.Dropout(0.5), update=1, width=64),
        "other seed": mask(mg.Dropout(0.5), seed=1, width=64),
        "other samples": mask(mg.Dropout(0.5), 6, 12, width=64),
    }
    for name, model in {"calls": Twice(), "layers": Both()}.items():
        both = mask(model, width=64)
        drawn[f"{name}, first"], drawn[f"{name}, second"] = both[:, :64], both[:, 64:]
    kept = {name: tuple((m > 0).ravel()) for name, m in drawn.items()}
    # The first layer of a larger model stands at another position: at 1, behind the model itself.
    assert kept["calls, first"] == kept["layers, first"]
    del kept["layers, first"]
    assert len(set(kept.values())) == len(kept)
    for one, other in zip(list(kept.values()), list(kept.values())[1:]):
        assert 0.35 < np.mean(np.equal(one, other)) < 0.65  # and not the opposite either
    assert len({tuple(row) for row in drawn["first"]}) == 6
    assert np.any(mask(pair) == 4)


def test_a_mask_does_not_depend_on_how_often_or_where_it_is_computed():
    model = mg.MLP(8, 8, 8, dropout=0.5, dtype=np.float64)
    first = mask(model)
    mask(model, update=1)
    mg.Dropout(0.5)(np.ones(100))  # outside of any window
    mg.Linear(3, 3)  # weights from the seed
    np.testing.assert_array_equal(mask(model), first)
    np.testing.assert_array_equal(mask(copy.deepcopy(model)), first)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-3, 0.999])
def test_elements_are_kept_with_probability_1_minus_p_and_scaled_by_its_inverse(p):
    out = mask(mg.Dropout(p), stop=200, width=500)
    n = out.size
    rate = np.mean(out != 0)
    assert abs(rate - (1 - p)) < 5 * np.sqrt(p * (1 - p) / n)
    np.testing.assert_allclose(out[out != 0], 1 / (1 - p), rtol=1e-12)
    by_column = np.mean(out != 0, axis=0)
    assert np.abs(by_column - (1 - p)).max() < 6 * np.sqrt(p * (1 - p) / 200) + 1 / 200


def test_the_gradient_goes_where_the_mask_let_values_through():
    dropout, x = mg.Dropout(0.5), mg.Tensor(np.ones((6, 8)), requires_grad=True)
    with mg.drawing(mg.Samples(0, 0, 0, 6, dropout.modules)):
        y = dropout(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, object])
def test_the_mask_does_not_depend_on_the_dtype(dtype):
    dropout = mg.Dropout(0.5)
    x = mg.fractions(np.ones((6, 8))) if dtype is object else np.ones((6, 8), dtype)
    with mg.drawing(mg.Samples(0, 0, 0, 6, dropout.modules)):
        y = dropout(x)
    np.testing.assert_array_equal(y.data.astype(float), mask(dropout))


@pytest.mark.parametrize("make", [lambda: mg.Dropout(0.0), lambda: mg.Dropout(0.5).eval()])
def test_dropout_of_nothing_and_in_evaluation_is_the_identity(make):
    x = mg.Tensor(np.ones((2, 3)))
    assert make()(x) is x
    np.testing.assert_array_equal(mask(make()), np.ones((6, 8)))


def test_outside_of_a_window_each_call_draws_anew_and_the_seed_starts_it_again():
    dropout = mg.Dropout(0.5)
    first, second = dropout(np.ones(200)).data, dropout(np.ones(200)).data
    assert not np.array_equal(first, second)
    mg.manual_seed(0)
    np.testing.assert_array_equal(dropout(np.ones(200)).data, first)
    assert dropout(1.0).shape == ()


def test_the_draws_are_pinned_so_that_no_numpy_can_change_them():
    model = mg.Sequential(mg.Dropout(0.5), mg.Dropout(0.25))
    kept = mask(model, start=3, stop=40, update=7, seed=123, width=21) != 0
    loose = mg.Dropout(0.5)(np.ones(1000)).data != 0
    digests = [sha256(np.packbits(bits).tobytes()).hexdigest()[:16] for bits in (kept, loose)]
    assert digests == ["93d2ea003d095476", "54d6bb1689c63013"]


BAD = {
    "rows that are no multiple": (
        (7, 2),
        3,
        r"\(7, 2\).*expected.* 3 samples|3 samples.* expected",
    ),
    "a number": ((), 3, r"\(\).*expected.* 3 samples|3 samples.* expected"),
    "no samples": ((0, 2), 0, r"\b0 samples"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_input_that_does_not_hold_the_samples_is_refused(name):
    shape, count, message = BAD[name]
    dropout = mg.Dropout(0.5)
    with (
        mg.drawing(mg.Samples(0, 0, 0, count, dropout.modules)),
        pytest.raises(ValueError, match=message),
    ):
        dropout(np.ones(shape))


def test_a_dropout_that_is_no_part_of_the_model_is_refused_by_name():
    dropout, model = mg.Dropout(0.5), mg.Linear(2, 2)
    with (
        mg.drawing(mg.Samples(0, 0, 0, 2, model.modules)),
        pytest.raises((KeyError, ValueError, RuntimeError), match=r"Dropout.*no part"),
    ):
        dropout(np.ones((2, 2)))


def test_the_window_is_left_after_an_error():
    dropout = mg.Dropout(0.5)
    with pytest.raises(ZeroDivisionError), mg.drawing(mg.Samples(0, 0, 0, 2, dropout.modules)):
        raise ZeroDivisionError
    assert dropout(np.ones(7)).shape == (7,)  # 7 rows would not fit 2 samples


# ------------------------------------------------------------------------------------ batch norm


def test_the_running_statistics_move_once_per_window_by_those_of_the_whole_batch():
    x = np.random.default_rng(0).standard_normal((12, 3)) * 2 + 5
    for b in (12, 5, 4, 2):
        model = mg.BatchNorm(3, dtype=np.float64)
        mg.train_step(model, mg.squared_error, mg.SGD(model.parameters(), 0.0), (x, x), b)
        mean, variance = model.running_mean, model.running_var
        np.testing.assert_allclose(mean, 0.1 * x.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(variance, 0.9 + 0.1 * x.var(axis=0, ddof=1), rtol=1e-13)


def test_evaluation_uses_the_running_statistics_and_leaves_them():
    model = mg.BatchNorm(2, eps=0.0, dtype=np.float64)
    model.running_mean, model.running_var = np.array([1.0, 2.0]), np.array([4.0, 9.0])
    model.eval()
    np.testing.assert_allclose(model(np.array([[5.0, 5.0]])).data, [[2, 1]], rtol=1e-15)
    np.testing.assert_array_equal(model.running_mean, [1, 2])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.floats(-1e6, 1e6))
def test_merged_statistics_are_those_of_all_values(sizes, offset):
    rng = np.random.default_rng(sum(sizes))
    parts = [rng.standard_normal((n, 2)) + offset for n in sizes]
    merged = None
    for x in parts:
        seen = mg.Statistics(len(x), x.mean(axis=0), ((x - x.mean(axis=0)) ** 2).sum(axis=0))
        merged = seen if merged is None else merged.merge(seen)
    x = np.concatenate(parts)
    assert merged.n == len(x)
    np.testing.assert_allclose(merged.mean, x.mean(axis=0), rtol=1e-13, atol=1e-13)
    expected = ((x - x.mean(axis=0)) ** 2).sum(axis=0)
    np.testing.assert_allclose(merged.squares, expected, rtol=1e-8, atol=1e-8)
