"""A loss is a sum with a weight: how losses add, what masks do, and what a batch may be.

The numbers are dyadic and equality is exact, unless a test says that it holds to rounding.
"""

import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad as mg


class Toy(mg.Module):
    """outputs = x w, one weight a column of x."""

    def __init__(self, *w):
        self.w = mg.parameter(np.array(w, float))

    def forward(self, x):
        return x @ self.w if x.ndim == 2 else x * self.w


class Shift(mg.Module):
    """outputs = x + w: a model that shows its inputs to the loss."""

    def __init__(self, columns):
        self.w = mg.parameter(np.zeros(columns))

    def forward(self, x):
        return x + self.w


def tensor(*values):
    return mg.Tensor(np.array(values, float), requires_grad=True)


def every_split(n, most):
    """Parametrizes over all ways to cut n samples into up to `most` parts, as lists of slices."""
    cuts = [
        [0, *inner, n]
        for parts in range(1, most + 1)
        for inner in itertools.combinations(range(1, n), parts - 1)
    ]
    splits = [[slice(a, b) for a, b in itertools.pairwise(ends)] for ends in cuts]
    names = ["+".join(str(part.stop - part.start) for part in parts) for parts in splits]
    return pytest.mark.parametrize("parts", splits, ids=names)


def window_gradient(model, loss, batch, parts, reduction="mean"):
    """The gradient of w by an Accumulator over `parts`, and its report."""
    before = model.w.data.copy()
    sgd = mg.SGD(model.parameters(), 1.0)
    window = mg.Accumulator(model, sgd, accumulation_steps=len(parts), reduction=reduction)
    with window:
        for where in parts:
            inputs, *targets = (array[where] for array in batch)
            with window.micro_batch(len(inputs)):
                window.backward(loss(model(inputs), *targets))
    gradient = before - model.w.data
    model.w.data[...] = before
    return gradient.tolist(), window.report


# ------------------------------------------------------------------------------ the algebra


def test_terms_of_one_unit_merge():
    x, y = tensor(1, 2, 3), np.array([0.0, 0, 1])
    loss = mg.squared_error(x, y) + 2 * mg.absolute_error(x, y)
    assert [(term.unit, term.weight) for term in loss.terms] == [("sample", 3)]
    assert loss.sum().item() == (1 + 4 + 4) + 2 * (1 + 2 + 2)


def test_terms_of_two_units_stay_apart():
    x = mg.Tensor(np.ones((2, 3)), requires_grad=True)
    loss = mg.squared_error(x, np.zeros((2, 3))) + 0.5 * mg.per_sample(x.sum(axis=1))
    weights = {term.unit: term.weight for term in loss.terms}
    assert weights == {"element": 6, "sample": 2}
    assert loss.mean().item() == 6 / 6 + 0.5 * 6 / 2


def test_sums_and_multiples_of_losses_are_sums_and_multiples():
    x = tensor(1, 3)
    a, b = mg.per_sample(x), mg.per_sample(x * x)
    penalty = mg.penalty(x.sum())
    assert (a + b).sum().item() == 4 + 10
    assert (a + penalty + b + penalty).sum().item() == 4 + 4 + 10 + 4
    assert (3 * a * 0.5).sum().item() == 6
    assert (np.float64(0.5) * a + a * np.int64(2)).sum().item() == 10
    (a + -0.25 * b + 0.5 * penalty).sum().backward()
    assert x.grad.tolist() == [1 - 0.25 * 2 + 0.5, 1 - 0.25 * 6 + 0.5]


def test_showing_a_loss_gives_its_sum_and_its_mean():
    loss = mg.per_sample(tensor(1, 2, 6))
    assert (loss.sum().item(), loss.mean().item()) == (9, 3)
    assert repr(loss) == "Loss(1 * 9.0 sample / 3)"


def test_a_mean_of_nothing_is_zero():
    assert mg.per_sample(tensor(1, 2), np.zeros(2)).mean().item() == 0
    assert mg.cross_entropy(np.zeros((2, 3)), np.array([-100, -100])).mean().item() == 0


def test_losses_of_one_unit_must_weigh_the_same():
    x = tensor(1, 2, 3)
    with pytest.raises(ValueError, match="unit 'sample' but weigh 3 and 2, .*; name"):
        mg.per_sample(x) + mg.per_sample(x[:2])
    loss = mg.per_sample(x) + mg.per_sample(x[:2], unit="pair")
    assert {term.unit: term.weight for term in loss.terms} == {"sample": 3, "pair": 2}


@pytest.mark.parametrize("other", [1, 0.5, tensor(1.0), None, np.ones(2)], ids=repr)
def test_only_losses_add_to_losses(other):
    loss = mg.per_sample(tensor(1, 2))
    with pytest.raises(TypeError, match="expected a Loss"):
        loss + other


@pytest.mark.parametrize("factor", [tensor(1.0), None, np.ones(2), "2"], ids=repr)
def test_only_numbers_scale_losses(factor):
    with pytest.raises(TypeError):
        mg.per_sample(tensor(1, 2)) * factor


@pytest.mark.parametrize("k", [2, 0.5, np.int64(2), Fraction(2), tensor(2)], ids=repr)
def test_a_loss_is_not_divided_by_hand(k):
    with pytest.raises(TypeError, match="the window divides, once"):
        mg.per_sample(tensor(1, 2)) / k


def test_a_third_of_an_exact_loss_is_exact():
    model, x = Toy(1.0).astype(object), mg.fractions([1, 3])
    mg.accumulate(model, lambda outputs, _: Fraction(1, 3) * mg.per_sample(outputs), (x, x), 1)
    assert model.w.grad.tolist() == [Fraction(2, 3)]


def test_an_exact_loss_is_not_divided_by_hand_either():
    model, x = Toy(1.0).astype(object), mg.fractions([1, 3])
    with pytest.raises(TypeError, match="the window divides, once"):
        mg.accumulate(model, lambda outputs, _: mg.per_sample(outputs) / 3, (x, x), 1)
    assert model.w.grad is None


@pytest.mark.parametrize("show", [mg.Loss.sum, mg.Loss.mean])
def test_an_exact_loss_that_is_shown_can_be_differentiated(show):
    x = mg.Tensor(mg.fractions([1, 2]), requires_grad=True)
    show(3 * mg.per_sample(x)).backward()
    assert x.grad.tolist() == [Fraction(3) if show is mg.Loss.sum else Fraction(3, 2)] * 2


def test_the_sum_of_a_list_of_losses_is_their_sum():
    x = tensor(1, 2)
    assert sum([mg.per_sample(x), mg.per_sample(x)]).sum().item() == 6


# ------------------------------------------------- two units, one window, and every split of it


# Samples with two columns and a mask: the main loss counts masked rows, the other all elements.
INPUTS = np.array([[1.0, 2], [3, -1], [2, 2], [-4, 1], [1, 5], [2, -3]])
MASK = np.array([1, 0, 1, 1, 0, 1])


def main_and_rest(outputs, mask):
    main = mg.per_sample(outputs.sum(axis=1), mask)  # weighs 4 in all
    rest = mg.per_sample(outputs * np.array([2.0, 4]), unit="element")  # weighs 12
    return main + 0.75 * rest


@every_split(6, 4)
def test_each_unit_is_divided_by_its_own_weight_in_every_split(parts):
    model = Shift(2)
    gradient, report = window_gradient(model, main_and_rest, (INPUTS, MASK), parts)
    main, rest = np.array([4, 4]), np.array([12, 24])
    assert gradient == (main / 4 + 0.75 * rest / 12).tolist()
    assert report.weights == {"weight": 4, "element": 12}
    total = (INPUTS.sum(axis=1) * MASK).sum(), (INPUTS * [2, 4]).sum()
    assert report.loss == total[0] / 4 + 0.75 * total[1] / 12

    summed, report = window_gradient(model, main_and_rest, (INPUTS, MASK), parts, "sum")
    assert summed == (main + 0.75 * rest).tolist()
    assert report.loss == total[0] + 0.75 * total[1]


@every_split(6, 3)
def test_the_order_in_which_units_appear_makes_no_difference(parts):
    """The main loss of the first samples is masked: there the other unit comes first."""
    mask = np.array([0, 0, 1, 1, 1, 1])
    gradient, _ = window_gradient(Shift(2), main_and_rest, (INPUTS, mask), parts)
    assert gradient == [4 / 4 + 0.75 * 12 / 12, 4 / 4 + 0.75 * 24 / 12]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("first", [True, False])
def test_a_penalty_counts_once_a_window_and_is_never_divided(k, reduction, first):
    model = Toy(3.0)

    def loss(outputs, _):
        penalty = 0.5 * mg.penalty((model.w * model.w).sum())
        main = mg.per_sample(outputs)
        return penalty + main if first else main + penalty

    x = np.array([1.0, 2, 4, 5, 6, 6])
    report = mg.accumulate(model, loss, (x, x), accumulation_steps=k, reduction=reduction)
    n = 6 if reduction == "mean" else 1
    assert model.w.grad.tolist() == [24 / n + 3]
    assert report.loss == 3 * 24 / n + 4.5
    assert report.weights == {"sample": 6}


def test_two_penalties_are_one():
    model, x = Toy(3.0), np.zeros(4)
    mg.accumulate(
        model,
        lambda outputs, _: (
            mg.per_sample(outputs)
            + 0.5 * mg.penalty((model.w * model.w).sum())
            + -1 * mg.penalty(2 * model.w)
        ),
        (x, x),
        1,
    )
    assert model.w.grad.tolist() == [3 - 2]


@pytest.mark.parametrize("wrong", [tensor(1, 2), 1.0, None], ids=repr)
def test_a_penalty_is_a_tensor_of_one_element(wrong):
    with pytest.raises(TypeError, match=r"penalty\(\) got .*, expected a Tensor of one element"):
        mg.penalty(wrong)


def test_a_penalty_that_depends_on_data_is_refused():
    model, x = Toy(1.0), np.array([1.0, 2])
    loss = lambda outputs, _: mg.per_sample(outputs) + mg.penalty(outputs.sum())  # noqa: E731
    with pytest.raises(ValueError, match="depends on parameters alone"):
        mg.accumulate(model, loss, (x, x), 1)


@pytest.mark.parametrize("k", [1, 2])
def test_a_penalty_that_overflows_skips_the_window_in_every_split(k):
    model, x = Toy(1e200), np.zeros(2)

    def loss(outputs, _):
        with np.errstate(over="ignore"):
            return mg.per_sample(outputs) + mg.penalty((model.w * model.w).sum())

    with pytest.warns(mg.NonFiniteWarning):
        mg.train_step(model, loss, mg.SGD([model.w], 1.0), (x, x), accumulation_steps=k)


# ------------------------------------------------------------------------ weights and masks


@every_split(4, 4)
@pytest.mark.parametrize("kind", [float, int, bool, np.float32, np.uint8])
def test_sample_weights_weigh_samples_in_every_split(parts, kind):
    x, weights = np.array([1.0, 2, 3, 8]), np.array([0, 1, 1, 2]).astype(kind)
    if kind is bool:
        right = (2 + 3 + 8) / 3
        parts = [slice(0, 4)] if len(parts) > 1 else parts  # thirds are not dyadic: one division
    else:
        right = (2 + 3 + 16) / 4
    gradient, report = window_gradient(Toy(0.0), mg.per_sample, (x, weights), parts)
    assert gradient == [right]
    assert report.weights == {"weight": weights.sum()}


def test_weights_of_samples_spread_over_their_elements():
    values = mg.Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    loss = mg.per_sample(values, np.array([1.0, 2]))
    assert (loss.sum().item(), loss.terms[0].weight) == (3 + 2 * 12, 9)
    loss = mg.per_sample(values, np.array([[1.0, 0, 0], [1, 1, 1]]))
    assert (loss.sum().item(), loss.terms[0].weight) == (12, 4)


@pytest.mark.parametrize(
    "wrong", [np.array([1.0, -1]), np.array([1, math.nan]), np.array([math.inf, 1])], ids=repr
)
def test_weights_are_finite_and_not_negative(wrong):
    with pytest.raises(ValueError, match="negative or non-finite"):
        mg.per_sample(tensor(1, 2), wrong)


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 1)), np.float64(1), 1.0], ids=repr)
def test_weights_have_the_first_axes_of_the_values(wrong):
    with pytest.raises(ValueError, match="sample_weights got shape"):
        mg.per_sample(tensor(1, 2), wrong)


LABELS = np.array([0, 1, -100, -100, 2, 1])
LOGITS = np.array([[2.0, 0, 1], [0, 3, 1], [9, 9, 9], [9, 9, 9], [1, 1, 1], [0, 2, 0]])


@every_split(6, 6)
def test_masked_labels_count_for_nothing_in_every_split(parts):
    """To rounding; the labels of samples 2 and 3 are ignored, so that some parts hold none."""
    counted = LABELS >= 0
    model = Shift(3)
    right = mg.accumulate(model, mg.cross_entropy, (LOGITS[counted], LABELS[counted]), 4)
    expected = model.w.grad.copy()
    gradient, report = window_gradient(model, mg.cross_entropy, (LOGITS, LABELS), parts)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-15)
    assert report.loss == pytest.approx(right.loss, rel=1e-15)
    assert report.weights == {"sample": 4}


@pytest.mark.parametrize("b", [1, 2, 6])
def test_a_batch_of_masked_labels_has_no_gradient_and_no_nan(b):
    model = Shift(3)
    report = mg.accumulate(model, mg.cross_entropy, (LOGITS, np.full(6, -100)), b)
    assert model.w.grad is None
    assert (report.loss, report.weights, report.updated) == (0, {"sample": 0}, False)


@pytest.mark.parametrize("b", [1, 2, 3, 6])
def test_what_an_ignored_row_holds_does_not_matter_in_any_split(b):
    """Otherwise a NaN in the padding skips the update or not, as the micro-batch size has it."""
    logits = np.where((LABELS >= 0)[:, None], LOGITS, math.nan)
    report = mg.accumulate(Shift(3), mg.cross_entropy, (logits, LABELS), b)
    assert np.isfinite(report.loss)


@pytest.mark.parametrize("b", [1, 2, 6])
def test_what_a_row_of_a_class_without_weight_holds_does_not_matter(b):
    labels, class_weights = np.array([0, 1, 2, 2, 1, 0]), np.array([1.0, 2, 0])
    logits = np.where((labels == 2)[:, None], math.nan, LOGITS)

    def loss(outputs, y):
        return mg.cross_entropy(outputs, y, class_weights=class_weights)

    model = Shift(3)
    report = mg.accumulate(model, loss, (logits, labels), b)
    gradient, counted = model.w.grad.copy(), labels < 2
    right = mg.accumulate(model, loss, (logits[counted], labels[counted]), 4)
    assert report.weights == right.weights == {"weight": 6}
    assert report.loss == pytest.approx(right.loss, rel=1e-15)
    np.testing.assert_allclose(gradient, model.w.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("b", [1, 2])
def test_a_smoothed_label_whose_class_weighs_nothing_counts_in_every_split(b):
    """To rounding. Micro-batches of such labels weigh 0 and add to the gradient all the same."""
    labels = np.array([0, 0, 1, 1, 2, 0])

    def loss(outputs, y):
        weights = np.array([0.0, 2, 1])
        return mg.cross_entropy(outputs, y, class_weights=weights, label_smoothing=0.2)

    model = Shift(3)
    whole = mg.accumulate(model, loss, (LOGITS, labels), 6)
    expected = model.w.grad.copy()
    report = mg.accumulate(model, loss, (LOGITS, labels), b)
    assert report.loss == pytest.approx(whole.loss, rel=1e-15)
    np.testing.assert_allclose(model.w.grad, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("b", [1, 2, 4])
def test_a_value_that_is_not_finite_counts_in_every_split_though_it_weighs_nothing(b):
    """Whether an update is made must not depend on the micro-batch size."""
    values, weights = np.array([[1.0], [2], [math.nan], [math.nan]]), np.array([1, 1, 0, 0])
    assert math.isnan(mg.accumulate(Shift(1), mg.per_sample, (values, weights), b).loss)


def test_the_first_unit_of_a_loss_stays_the_first_where_it_does_not_count():
    """Its gradient adds up in `.grad`: which one that is must not depend on the data."""

    def loss(outputs, words, tags):
        return mg.cross_entropy(outputs, words, unit="word") + mg.cross_entropy(
            outputs, tags, unit="tag"
        )

    for words in ([-100, 0], [0, -100]):
        batch = LOGITS[:2], np.array(words), np.array([1, 2])
        assert [*mg.accumulate(Shift(3), loss, batch, 1).weights] == ["word", "tag"]


@pytest.mark.parametrize("index", [0, 1, 2, -1, 7, 255])
@pytest.mark.parametrize("b", [1, 4, 6])
def test_ignore_index_may_be_any_integer_a_class_too(index, b):
    labels = np.where(LABELS < 0, index, LABELS)
    counted = labels != index
    model = Shift(3)

    def loss(outputs, y):
        return mg.cross_entropy(outputs, y, ignore_index=index)

    report = mg.accumulate(model, loss, (LOGITS, labels), b)
    gradient = model.w.grad.copy()
    right = mg.accumulate(model, mg.cross_entropy, (LOGITS[counted], labels[counted]), 6)
    np.testing.assert_allclose(gradient, model.w.grad, rtol=0, atol=1e-15)
    assert report.weights == right.weights == {"sample": counted.sum()}


def test_tokens_are_counted_as_tokens():
    logits, labels = LOGITS.reshape(2, 3, 3), LABELS.reshape(2, 3)
    loss = mg.cross_entropy(mg.Tensor(logits), labels)
    flat = mg.cross_entropy(mg.Tensor(LOGITS), LABELS)
    assert (loss.terms[0].unit, loss.terms[0].weight) == ("token", 4)
    assert loss.sum().item() == flat.sum().item()


# ------------------------------------------------------------------- labels and other targets


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_labels_are_integers_of_any_kind(kind):
    labels = np.array([0, 1, 2, 1, 2, 1])
    same = [mg.cross_entropy(mg.Tensor(LOGITS), y).sum() for y in (labels, labels.astype(kind))]
    assert same[0].item() == same[1].item()


def test_labels_of_uint8_may_ignore_255():
    labels = np.where(LABELS < 0, 255, LABELS).astype(np.uint8)
    loss = mg.cross_entropy(mg.Tensor(LOGITS), labels, ignore_index=255)
    assert loss.terms[0].weight == 4
    assert loss.sum().item() == mg.cross_entropy(mg.Tensor(LOGITS), LABELS).sum().item()


@pytest.mark.parametrize("kind", [float, bool, np.float32])
def test_labels_that_are_no_integers_are_refused(kind):
    with pytest.raises(TypeError, match="expected integers"):
        mg.cross_entropy(mg.Tensor(LOGITS), np.ones(6, kind))


@pytest.mark.parametrize("wrong", [3, -1, -99, 100])
def test_a_label_that_is_no_class_is_refused(wrong):
    labels = LABELS.copy()
    labels[3] = wrong
    with pytest.raises(IndexError, match=f"label {wrong}, expected 0 to 2, one of 3 classe?s"):
        mg.cross_entropy(mg.Tensor(LOGITS), labels)


@pytest.mark.parametrize("shape", [(5,), (6, 1), (), (6, 3)], ids=str)
def test_labels_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="labels got shape"):
        mg.cross_entropy(mg.Tensor(LOGITS), np.zeros(shape, int))


@pytest.mark.parametrize("loss", [mg.squared_error, mg.absolute_error])
def test_a_column_and_a_row_are_not_paired_each_with_each(loss):
    with pytest.raises(ValueError, match="pair each with each"):
        loss(mg.Tensor(np.zeros((3, 1))), np.zeros(3))


def test_integer_targets_take_the_dtype_of_the_prediction():
    prediction = mg.Tensor(np.ones(3, np.float32), requires_grad=True)
    loss = mg.squared_error(prediction, np.array([0, 3, 255], np.uint8))
    assert loss.sum().item() == 1 + 4 + 254**2
    assert loss.sum().dtype == np.float32


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_large_and_small_logits_neither_overflow_nor_vanish(scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits = mg.Tensor(LOGITS * scale, requires_grad=True)
        mg.cross_entropy(logits, LABELS).sum().backward()
        binary = mg.Tensor(LOGITS * scale, requires_grad=True)
        mg.binary_cross_entropy_with_logits(binary, np.ones((6, 3))).sum().backward()
    assert np.isfinite(logits.grad).all()
    assert np.isfinite(binary.grad).all()


@pytest.mark.parametrize("wrong", [np.ones(2), 1.0, tensor(1, 2).sum(), None], ids=repr)
def test_per_sample_takes_one_value_a_sample(wrong):
    with pytest.raises(TypeError, match="expected a Tensor with one value a sample"):
        mg.per_sample(wrong)


# ----------------------------------------------------------------------- reduction, showing


@pytest.mark.parametrize("b", [1, 2, 4])
def test_the_reduction_is_said_to_the_step(b):
    x = np.array([1.0, 2, 4, 9])
    model = Toy(1.0)
    reports = {}
    for reduction in ("mean", "sum"):
        reports[reduction] = mg.accumulate(
            model, lambda outputs, _: mg.per_sample(outputs), (x, x), b, reduction=reduction
        )
        assert model.w.grad.tolist() == [{"mean": 4, "sum": 16}[reduction]]
    assert (reports["mean"].loss, reports["sum"].loss) == (4, 16)
    assert reports["sum"].weights == {"sample": 4}


@pytest.mark.parametrize("wrong", ["average", "MEAN", None, ""], ids=repr)
def test_a_reduction_is_mean_or_sum(wrong):
    x = np.ones(2)
    with pytest.raises(ValueError, match="expected 'mean' or 'sum'"):
        mg.accumulate(Toy(1.0), mg.squared_error, (x, x), 1, reduction=wrong)


@pytest.mark.parametrize(
    "show",
    [lambda loss: loss.mean(), lambda loss: loss.sum(), lambda loss: loss.sum().item()],
    ids=["mean", "sum", "item"],
)
def test_a_loss_that_has_forgotten_its_weight_is_refused_by_name(show):
    x = np.ones(2)
    with pytest.raises(TypeError, match="the loss is a (Tensor|float), expected a Loss"):
        mg.accumulate(Toy(1.0), lambda *arguments: show(mg.squared_error(*arguments)), (x, x), 1)


def test_a_shown_loss_can_still_be_differentiated():
    x = np.array([1.0, 2, 3, 4])
    model, by_hand = Toy(1.0), Toy(1.0)

    def shown(outputs, y):
        loss = mg.squared_error(outputs, y)
        loss.mean().item()
        return loss

    mg.accumulate(model, shown, (x, 2 * x), 2)
    mg.squared_error(by_hand(x), 2 * x).mean().backward()
    assert model.w.grad == by_hand.w.grad == -15


# ----------------------------------------------------------------------- what a batch may be


class Sum(mg.Module):
    """The sum of all arrays in a tuple or dict, times w."""

    def __init__(self):
        self.w = mg.parameter(np.array(1.0))

    def forward(self, inputs):
        return sum(leaves(inputs)) * self.w


def leaves(inputs):
    if isinstance(inputs, tuple | dict):
        inside = inputs.values() if isinstance(inputs, dict) else inputs
        return [leaf for part in inside for leaf in leaves(part)]
    return [inputs]


A, B = np.array([1.0, 2, 3, 4]), np.array([8.0, 4, 2, 1])
SHAPES = {
    "tuple": (A, B),
    "dict": {"a": A, "b": B},
    "nested": {"a": (A,), "b": ({"c": B}, ())},
}


@pytest.mark.parametrize("inputs", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("b", [1, 3, 4])
def test_inputs_and_targets_may_be_tuples_and_dicts_of_arrays(inputs, b):
    model = Sum()
    sizes = []

    def loss(outputs, targets, mask):
        sizes.append(len(mask))
        return mg.squared_error(outputs, sum(leaves(targets)) + 1, mask)

    mg.accumulate(model, loss, (inputs, inputs, np.ones(4)), b)
    assert model.w.grad == np.sum(-2 * (A + B)) / 4
    assert sum(sizes) == 4


@pytest.mark.parametrize(
    "prepare",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: np.ascontiguousarray(x[::-1])[::-1],
        lambda x: np.ascontiguousarray(x.T).T,
        lambda x: np.broadcast_to(x, x.shape),
    ],
    ids=["fortran", "strided", "reversed", "transposed", "broadcast"],
)
def test_inputs_may_lie_in_memory_as_they_like_and_be_read_only(prepare):
    x, y = np.arange(24.0).reshape(8, 3) / 4, np.arange(16.0).reshape(8, 2)
    gradients = []
    for data in ((x, y), (prepare(x), prepare(y))):
        for array in data:
            array.flags.writeable = False
        model = mg.Linear(3, 2, dtype=np.float64)
        model.weight.data[...] = 0.5
        mg.accumulate(model, mg.squared_error, data, 3)
        gradients.append(model.weight.grad.tolist())
    assert gradients[0] == gradients[1]


def test_a_step_leaves_the_batch_as_it_was():
    x, y, w = LOGITS.copy(), LABELS.copy(), np.arange(6.0)
    model = mg.MLP(3, 4, 3, norm=mg.LayerNorm, dropout=0.5, dtype=np.float64)

    def loss(outputs, labels, weights):
        return mg.cross_entropy(outputs, labels, sample_weights=weights, label_smoothing=0.25)

    mg.train_step(model, loss, mg.SGD(model.parameters(), 1.0), (x, y, w), 4)
    np.testing.assert_array_equal(x, LOGITS)
    np.testing.assert_array_equal(y, LABELS)
    np.testing.assert_array_equal(w, np.arange(6))


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32, np.float16, bool])
def test_inputs_of_another_dtype_take_that_of_the_parameters(kind):
    x = np.array([[1, 0], [1, 1], [0, 1]]).astype(kind)
    model = mg.Linear(2, 1)
    mg.accumulate(model, mg.squared_error, (x, np.ones((3, 1), kind)), 2)
    assert model.weight.grad.dtype == np.float32


X4, Y4 = np.ones((4, 2)), np.ones(4)
BAD_BATCHES = {
    "lengths that differ": (ValueError, (X4, Y4[:3])),
    "a third array that is shorter": (ValueError, (X4, Y4, Y4[:1])),
    "inside of a dict": (ValueError, ({"a": X4, "b": X4[:3]}, Y4)),
    "a Tensor": (TypeError, (mg.Tensor(X4), Y4)),
    "a target Tensor": (TypeError, (X4, mg.Tensor(Y4))),
    "a list": (TypeError, (X4.tolist(), Y4)),
    "a list of arrays": (TypeError, ([X4, X4], Y4)),
    "a list of two": (TypeError, [X4, Y4]),
    "an array": (TypeError, X4),
    "a dict": (TypeError, {"x": X4, "y": Y4}),
    "None": (TypeError, None),
    "not even inputs": (TypeError, ()),
    "no target, but None": (TypeError, (X4, None)),
    "a number": (TypeError, (X4, 1.0)),
    "an array without axes": (TypeError, (X4, np.array(1.0))),
    "no samples": (ValueError, (X4[:0], Y4[:0])),
    "no arrays": (ValueError, ((), {})),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_refused_before_the_model_sees_it(case):
    error, batch = BAD_BATCHES[case]
    model = Toy(1.0, 2.0)
    model.forward = None
    with pytest.raises(error, match="batch"):
        mg.accumulate(model, mg.squared_error, batch, 2)
    with pytest.raises(error, match="batch"):
        mg.train_step(model, mg.squared_error, mg.SGD([model.w], 1.0), batch, 2)
    assert model.w.grad is None


def test_a_batch_may_have_no_targets_where_the_loss_wants_none():
    toy = Toy(1.0, 2.0)
    assert mg.accumulate(toy, mg.per_sample, (X4,), 3).loss == 3
    with pytest.raises(TypeError, match="target"):
        mg.accumulate(toy, mg.squared_error, (X4,), 3)
    assert toy.w.grad is None


# ------------------------------------------------------------------------ sizes of the parts


@given(st.integers(1, 300), st.integers(1, 320))
@settings(deadline=None)
def test_parts_of_a_given_size_cover_the_batch_in_order(n, size):
    parts = mg.micro_batches(n, size)
    assert [i for part in parts for i in range(n)[part]] == list(range(n))
    sizes = [part.stop - part.start for part in parts]
    assert sizes[:-1] == [size] * (len(parts) - 1)
    assert 1 <= sizes[-1] <= size


@given(st.integers(1, 300), st.integers(1, 320))
@settings(deadline=None)
def test_a_given_number_of_parts_covers_the_batch_in_order_and_evenly(n, k):
    parts = mg.micro_batches(n, accumulation_steps=k)
    assert [i for part in parts for i in range(n)[part]] == list(range(n))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == min(k, n)  # never an empty part
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("wrong", [0, -1, True, False, 2.5, 2.0, "2", [2], np.float64(2)], ids=repr)
@pytest.mark.parametrize("name", ["micro_batch_size", "accumulation_steps"])
def test_sizes_are_positive_integers(name, wrong):
    with pytest.raises(ValueError, match=f"{name} is .*, expected an integer of 1 or more"):
        mg.accumulate(Toy(1.0), mg.squared_error, (Y4, Y4), **{name: wrong})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "neither of .* expected one"),
        ({"micro_batch_size": 2, "accumulation_steps": 2}, "both of .* expected one"),
        ({"micro_batch_size": 0, "accumulation_steps": 0}, "both of .* expected one"),
    ],
)
@pytest.mark.parametrize("step", [mg.accumulate, mg.train_step])
def test_either_a_size_or_a_number_is_given(step, sizes, message):
    model = Toy(1.0)
    optimizer = [mg.SGD([model.w], 1.0)] if step is mg.train_step else []
    with pytest.raises(ValueError, match=message):
        step(model, mg.squared_error, *optimizer, (Y4, Y4), **sizes)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({"micro_batch_size": np.int64(3)}, 2),
        ({"micro_batch_size": np.uint8(4)}, 1),
        ({"accumulation_steps": np.int32(2)}, 2),
        ({"micro_batch_size": 99}, 1),
        ({"accumulation_steps": 99}, 4),
    ],
)
def test_integers_of_numpy_serve_and_sizes_beyond_the_batch_are_the_batch(sizes, count):
    model = Toy(1.0)
    report = mg.accumulate(model, lambda outputs, _: mg.per_sample(outputs), (Y4, Y4), **sizes)
    assert report.micro_batches == count
    assert model.w.grad.tolist() == [1]


def test_backward_on_a_loss_says_what_to_call():
    loss = mg.squared_error(mg.Tensor([1.0, 2.0]), [0.0, 0.0])
    with pytest.raises(TypeError, match=r"expected a Tensor: \.mean\(\)\.backward\(\), or \.sum"):
        loss.backward()
