"""The contracts where few look: Fractions, float16, leaves outside of the model, devices."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from minigrad.device import move_to
from tests.fake_device import Meter, to_fake


def linear(dtype=np.float64) -> mg.Module:
    model = mg.Linear(2, 1, dtype=np.float64)
    model.weight.data[...] = [[0.5], [-1]]
    return model.astype(dtype)


BATCH = np.array([[1.0, 2], [3, -1], [0.5, 4]]), np.array([[1.0], [0], [2]])


def all_exact(array) -> bool:
    return all(isinstance(value, int | Fraction) for value in array.ravel())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_fractions_stay_exact_whatever_the_reduction(reduction):
    model = linear(object)
    optimizer = mg.SGD(model.parameters(), lr=Fraction(1, 3))
    mg.train_step(model, mg.absolute_error, optimizer, BATCH, 1, reduction=reduction)
    assert all(all_exact(p.data) for p in model.parameters())
    assert model.bias.data[0] == Fraction(1, 3) / (3 if reduction == "mean" else 1)


@pytest.mark.parametrize("optimizer", [mg.Adam, mg.AdamW, mg.LARS, mg.LAMB])
def test_what_needs_roots_refuses_fractions_before_it_changes_them(optimizer):
    model = linear(object)
    with pytest.raises(TypeError, match=rf"{optimizer.__name__}\(\) got Fractions, .*; use mg.SGD"):
        optimizer(model.parameters(), lr=1)
    assert all_exact(model.weight.data)


def test_a_state_of_floats_becomes_exact_in_a_model_of_fractions():
    model = linear(object)
    model.load_state_dict(linear().state_dict())
    assert all_exact(model.weight.data)


def test_a_state_made_of_the_models_own_arrays_may_swap_them():
    model = mg.Sequential(mg.Linear(1, 1), mg.Linear(1, 1))
    a, b = (layer.weight.data.copy() for layer in model.layers)
    state = model.state_dict()
    swapped = {"layers.0.weight": model.layers[1].weight.data}
    swapped["layers.1.weight"] = model.layers[0].weight.data
    model.load_state_dict(state | swapped)
    assert model.layers[0].weight.data == b
    assert model.layers[1].weight.data == a


def test_a_leaf_outside_of_the_model_must_not_hold_an_old_gradient():
    model, scale = linear(), mg.Tensor(np.ones(1), requires_grad=True)
    loss = lambda out, y: mg.squared_error(out * scale, y)  # noqa: E731
    mg.accumulate(model, loss, BATCH, 1)
    first = scale.grad.copy()
    with pytest.raises(ValueError, match="leaf outside of this window"):
        mg.accumulate(model, loss, BATCH, 1)
    assert scale.grad == first, "it was added to before it was refused"
    scale.grad = None
    mg.accumulate(model, loss, BATCH, 3)
    np.testing.assert_allclose(scale.grad, first, rtol=1e-14)


def test_a_parameter_of_no_optimizer_must_not_hold_an_old_gradient():
    model = mg.Sequential(mg.Linear(2, 2, dtype=np.float64), linear())
    optimizer = mg.SGD(model.layers[1].parameters(), 0.1)
    mg.train_step(model, mg.squared_error, optimizer, BATCH, 1)
    weight, stays = model.layers[0].weight, np.ones((2, 2))
    assert weight.grad is None  # its gradient was computed, and forgotten as all are
    weight.grad = stays
    with pytest.raises(ValueError, match="or make it the model's and its optimizer's"):
        mg.train_step(model, mg.squared_error, optimizer, BATCH, 1)
    assert weight.grad is stays
    assert np.all(stays == 1)


def test_targets_of_binary_cross_entropy_are_probabilities():
    z = mg.Tensor([300.0, -300])
    with pytest.raises(ValueError, match="from -1.0 to 1.0, expected numbers from 0 to 1"):
        mg.binary_cross_entropy_with_logits(z, [1, -1])
    with pytest.raises(TypeError, match="expected constants"):
        mg.binary_cross_entropy_with_logits(z, mg.Tensor([1.0, 0], requires_grad=True))


def test_layer_norm_of_float16_does_not_overflow():
    x = np.array([[-400, 0, 400, 800]])
    narrow, wide = (mg.LayerNorm(4, dtype=t)(x).data for t in (np.float16, np.float64))
    np.testing.assert_allclose(narrow, wide, atol=2e-3)


def test_a_float16_leaf_behind_a_conversion_gets_a_float32_gradient():
    w = mg.Tensor(np.ones(1, np.float16), requires_grad=True)
    (w.astype(np.float32) * 1e-9).sum().backward()
    assert w.grad == np.float32(1e-9)


def test_flush_inside_a_micro_batch_is_refused_and_drops_the_window():
    model = linear()
    optimizer = mg.SGD(model.parameters(), 0.1)
    before = model.weight.data.copy()

    def loop():
        accumulator = mg.Accumulator(model, optimizer, accumulation_steps=2)
        with accumulator, accumulator.micro_batch(3):
            accumulator.backward(mg.squared_error(model(BATCH[0]), BATCH[1]))
            accumulator.flush()

    with pytest.raises(RuntimeError, match="flush"):
        loop()
    assert optimizer.updates == 0
    assert np.array_equal(before, model.weight.data)


def test_an_average_that_does_not_fit_fails_before_the_update():
    model = mg.MLP(2, 1)
    average = mg.WeightAverage(model.parameters(), 0.9)
    model.astype(np.float64)
    optimizer = mg.SGD(model.parameters(), 0.1)
    before = model.state_dict()
    with pytest.raises(TypeError, match="after its average was made"):
        mg.train_step(model, mg.squared_error, optimizer, BATCH, 1, average=average)
    assert optimizer.updates == 0
    assert all(np.array_equal(before[k], a) for k, a in model.state_dict().items())
    with pytest.raises(TypeError, match="got a Tensor of Tensor, expected a list of Tensors"):
        mg.WeightAverage(model.layers[0].weight, 0.9)


def test_token_ids_are_checked_before_they_move_to_a_device():
    with Meter():
        model = move_to(mg.Sequential(mg.Embedding(4, 2), mg.Linear(2, 1)), to_fake)
        optimizer = mg.SGD(model.parameters(), 0.1)
        batch = np.array([[1, 9]]), np.zeros((1, 2, 1))
        with pytest.raises(IndexError, match="index 9, expected 0 to 3"):
            mg.train_step(model, mg.squared_error, optimizer, batch, 1)


def test_a_fraction_may_scale_a_loss_on_a_device():
    loss = lambda out, y: Fraction(1, 2) * mg.squared_error(out, y)  # noqa: E731
    with Meter():
        near, far = linear(), move_to(linear(), to_fake)
        reports = [mg.accumulate(model, loss, BATCH, 2) for model in (near, far)]
    assert reports[0].loss == reports[1].loss


def test_losses_of_one_unit_whose_weights_lie_on_a_device_say_why_they_do_not_add():
    with Meter():
        z, y = mg.Tensor(to_fake(np.ones((2, 3)))), to_fake(np.array([0, 1]))
        with pytest.raises(ValueError, match="weights on a device"):
            mg.cross_entropy(z, y) + mg.cross_entropy(z, y)


@pytest.mark.parametrize("size", [1e-24, 1e24])
def test_the_norm_of_a_gradient_is_right_where_its_square_is_no_float32(size):
    model = mg.Linear(1, 1, bias=False)
    batch = np.full((1, 1), size, np.float32), np.zeros((1, 1))
    report = mg.accumulate(model, lambda out, _: mg.per_sample(out), batch, 1)
    assert report.grad_norm == pytest.approx(size, rel=1e-6)


def test_a_parameter_without_elements_does_not_hinder_a_norm_of_0():
    linear, empty = mg.Linear(1, 1, bias=False), mg.Tensor(np.zeros((0, 1), np.float32), True)
    model = mg.Sequential(linear)
    model.empty = empty
    batch = np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32)
    report = mg.accumulate(
        model, lambda out, t: mg.squared_error(out, t) + mg.penalty(empty.sum()), batch, 1
    )
    assert report.grad_norm == mg.clip_grad_norm(model.parameters(), 1.0) == 0


def test_a_tensor_has_no_truth_value_and_a_number_no_elements():
    with pytest.raises(TypeError, match="no truth value"):
        bool(mg.Tensor([0.0]))
    with pytest.raises(TypeError):
        sum(mg.Tensor(3.0))
    assert [t.item() for t in mg.Tensor([1.0, 2.0])] == [1, 2]


def test_a_window_that_holds_a_penalty_alone_counts_nothing_and_says_so():
    model = linear()
    optimizer = mg.SGD(model.parameters(), 0.1)
    penalty = lambda out, y: mg.penalty((model.weight * model.weight).sum())  # noqa: E731
    report = mg.train_step(model, penalty, optimizer, BATCH, 1)
    assert not report.updated
    assert "nothing to count" in report.reason
