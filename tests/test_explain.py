"""An answer is judged rightly, and for the true reason: explain.py, and the tools of checking.py.

The wrong values are computed here in plain loops, over samples and not over micro-batches.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from minigrad import checking
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score
from minigrad.explain import explain
from tests.lines import PACKAGE

# Gradients of ten samples, in micro-batches of 4, 4 and 2.
SIZES = [4, 4, 2]
SAMPLES = [[3.0, 1.0, 0.5, 2.5], [7.0, 2.0, 9.0, 4.0], [5.0, 6.0]]


def loops():
    """The right mean, and the wrong ones, by the name of the mistake."""
    total, counted, sum_of_means, first, last, without_last, counted_without_last = [0.0] * 7
    for j, part in enumerate(SAMPLES):
        part_total = 0.0
        for g in part:
            total += g
            counted += 1
            part_total += g
            if j < len(SAMPLES) - 1:
                without_last += g
                counted_without_last += 1
        last = part_total / len(part)
        first = last if j == 0 else first
        sum_of_means += last
    k, right = len(SAMPLES), total / counted
    return right, {
        "sign": -total / counted,
        "mean of means": sum_of_means / k,
        "last only": last,
        "last only, divided": last / k,
        "sum of means": sum_of_means,
        "not divided": total,
        "full divisor": total / (k * 4),
        "tail dropped": without_last / counted_without_last,
        "first only": first,
        "k times": k * total / counted,
        "1/k": total / counted / k,
        "1/N": total / counted / counted,
    }


RIGHT, WRONG = loops()
PARTS = [sum(part) / len(part) for part in SAMPLES]
SAID = {
    "sign": "its sign is wrong",
    "mean of means": "counts a short one as much as a long one",
    "last only": "each one overwrites the one before it",
    "last only, divided": "cleared inside the window",
    "sum of means": "nothing was divided",
    "not divided": "never divided by their number",
    "full divisor": "counts the short micro-batch as a full one",
    "tail dropped": "the last micro-batch is missing",
    "first only": "the later ones are not added",
    "k times": "k = 3 times too large",
    "1/k": "k = 3 times too small",
    "N times": "N = 10 times too large",
    "1/N": "N = 10 times too small",
}


# ------------------------------------------------------------------------- explain: the rules


def test_the_wrong_values_of_this_file_are_all_different_and_none_is_right():
    values = [RIGHT, *WRONG.values()]
    assert all(abs(a - b) > 1e-3 for a, b in itertools.combinations(values, 2))


@pytest.mark.parametrize("mistake", WRONG)
def test_a_usual_mistake_is_found_by_its_value(mistake):
    reason = explain(RIGHT, WRONG[mistake], parts=PARTS, sizes=SIZES)
    assert reason.rule == mistake
    assert SAID[mistake] in reason.sentence


@pytest.mark.parametrize("mistake", WRONG)
def test_a_usual_mistake_is_found_in_a_gradient_of_any_shape(mistake):
    along = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 4.0]])
    parts = [part * along for part in PARTS]
    reason = explain(RIGHT * along, WRONG[mistake] * along, parts=parts, sizes=SIZES)
    assert reason.rule == mistake


@pytest.mark.parametrize("mistake", WRONG)
def test_lists_arrays_fractions_and_numpy_s_numbers_are_judged_alike(mistake):
    for convert in (Fraction, np.float64, np.array, lambda value: np.array(value, object)):
        found = convert(WRONG[mistake])
        assert explain(RIGHT, found, parts=np.array(PARTS), sizes=np.array(SIZES)).rule == mistake


def test_without_parts_the_factors_k_and_n_are_known():
    assert (
        explain(2.0, 6.0, k=3).sentence == "it is k = 3 times too large: nothing was divided by k"
    )
    assert explain(6.0, 2.0, k=3).rule == "1/k"
    assert explain(2.0, 20.0, sizes=SIZES).rule == "N times"
    assert SAID["N times"] in explain(2.0, 20.0, sizes=SIZES).sentence
    assert explain(2.0, 0.2, sizes=SIZES).rule == "1/N"


def test_without_sizes_the_micro_batches_count_alike():
    assert explain(2.0, 6.0, parts=[1.0, 2.0, 3.0]).rule == "sum of means"
    assert explain(2.0, 3.0, parts=[1.0, 2.0, 3.0]).rule == "last only"
    assert explain(2.0, 1.5, parts=[1.0, 2.0, 3.0]).rule == "tail dropped"


def test_a_mistake_of_the_exercise_alone_comes_first():
    also = {"sign": (-2.0, "the exercise says it better"), "squared": (4.0, "it is squared")}
    assert explain(2.0, -2.0, also=also).sentence == "the exercise says it better"
    assert explain(2.0, 4.0, also=also, k=2).rule == "squared"


def test_a_mistake_that_gives_the_right_value_or_another_shape_is_no_reason():
    also = {"none": (2.0, "it is right"), "shape": ([3.0, 3.0], "of another shape")}
    assert explain(2.0, 2.0, also=also) is None
    assert explain(2.0, 3.0, also=also).rule == "factor"
    also = {"rounding": (2.0 + 1.9e-9, "it is right, to rounding")}
    assert explain(2.0, 2.0 + 3.8e-9, also=also).rule == "close"


@pytest.mark.parametrize(
    ("expected", "found", "rule", "said"),
    [
        (3.0, None, "nothing", "your answer is None, expected a number: is there a return?"),
        ([1.0, 2.0], None, "nothing", "expected an array of shape (2,)"),
        (3.0, mg.Tensor(3.0), "tensor", "your answer is a Tensor, expected a number"),
        (3.0, "3.0", "type", "your answer is a str, expected a number"),
        ([[1.0, 2.0]], [2.0, 1.0], "shape", "its shape is (2,), expected (1, 2): over which axis"),
        ([[1.0, 2.0]], [[1.0], [2.0]], "shape", "expected (1, 2): transpose it"),
        (3.0, float("nan"), "not finite", "your answer is not a number; look for a division by 0"),
        ([1.0, 2.0], [1.0, -np.inf], "not finite", "your answer is infinite"),
        ([0.0, 0.0], [0.0, -0.25], "not zero", "it should be 0, and the largest is 0.25"),
        ([3.0, 4.0], [2.1, 2.8], "factor", "it is 0.7 times the right answer"),
        (3.0, 4.5, "factor", "it is 1.5 times the right answer"),
        (64.0, 1.0, "factor", "it is 0.01562 times the right answer"),
        (3.0, 2.9173, "value", "it is 2.9173, expected 3"),
        (3.0, 0.0, "value", "it is 0, expected 3"),
        ([3.0], [2.9173], "value", "1 of 1 elements differ, most of all [0]: it is 2.9173"),
        ([3.0, 4.0], [0.0, 0.0], "value", "2 of 2 elements differ, most of all [1]: it is 0,"),
        ([0.0, 3.0], [0.0, 0.0], "value", "1 of 2 elements differ, most of all [1]: it is 0,"),
        (
            [[1.0, 2.0], [3.0, 4.0]],
            [[1.0, 2.5], [3.0, 5.0]],
            "value",
            "most of all [1, 1]: it is 5",
        ),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.5], [3.0, 5.0]], "value", "2 of 4 elements differ"),
        (1 / 3, np.float32(1 / 3), "close", "off by 3e-08 of its size: is something float32"),
        ([1.0, 2.0], [1.0, 2.000001], "close", "it is close"),
    ],
)
def test_other_answers_get_the_sentence_that_says_how_they_differ(expected, found, rule, said):
    reason = explain(expected, found)
    assert reason.rule == rule
    assert said in reason.sentence
    assert "\n" not in reason.sentence


def test_one_number_is_a_multiple_of_any_other_and_only_a_simple_factor_is_named():
    rng = np.random.default_rng(0)
    for right, wrong in rng.standard_normal((200, 2)):
        assert explain(right, wrong).rule == "value"
        assert explain(right * 7, wrong * 7).rule == "value"
    for factor in (2, 1 / 2, 100, 1 / 100, 2 / 3, 5 / 4, -3):
        assert explain(0.7, 0.7 * factor).rule == "factor"


def test_the_tolerance_is_relative_to_the_largest_element_that_is_expected():
    assert explain([1e9, 0.0], [1e9, 0.5]) is None
    assert explain([1e9, 0.0], [1e9, 1.5]) is not None
    assert explain(1e-200, 1.1e-200) is not None
    assert explain(1.0, 1.01, rtol=0.1) is None


# ---------------------------------------------------------------- explain: ambiguous, degenerate


def test_one_micro_batch_leaves_nothing_to_do_wrong_but_sign_and_factors():
    for found in (5.0, Fraction(5), [5.0]):
        expected = [5.0] if isinstance(found, list) else 5.0
        assert explain(expected, found, parts=[np.array(expected)], sizes=[8]) is None
    assert explain(5.0, 40.0, parts=[5.0], sizes=[8]).rule == "not divided"
    assert explain(5.0, 5 / 8, parts=[5.0], sizes=[8]).rule == "1/N"
    assert explain(5.0, -5.0, parts=[5.0], sizes=[8]).rule == "sign"
    assert explain(5.0, 5.0, k=1) is None
    assert explain(5.0, 4.9173, parts=[5.0], sizes=[1], k=1).rule == "value"


def test_with_equal_sizes_the_mean_of_means_is_right():
    parts = [1.0, 2.0, 6.0]
    assert explain(3.0, sum(parts) / 3, parts=parts, sizes=[5, 5, 5]) is None
    assert explain(3.0, 9.0, parts=parts, sizes=[5, 5, 5]).rule == "sum of means"
    assert explain(3.0, 45.0, parts=parts, sizes=[5, 5, 5]).rule == "not divided"


def test_with_equal_parts_no_part_is_blamed():
    same = {"parts": [2.0, 2.0, 2.0], "sizes": [4, 4, 2]}
    assert explain(2.0, 2.0, **same) is None
    assert explain(2.0, 6.0, **same).rule == "sum of means"
    assert explain(2.0, 20.0, **same).rule == "not divided"
    assert explain(2.0, 2 / 3, **same).rule == "1/k"


def test_with_two_micro_batches_the_first_alone_is_the_last_one_missing():
    assert explain(4.0, 1.0, parts=[1.0, 7.0], sizes=[4, 4]).rule == "tail dropped"


def test_parts_of_zero_explain_nothing():
    nothing = {"parts": [0.0, 0.0], "sizes": [3, 1]}
    assert explain(0.0, 0.0, **nothing) is None
    assert explain(0.0, 1.0, **nothing).rule == "not zero"
    for sizes in ([], [0], [0, 0]):
        assert explain(3.0, 0.0, sizes=sizes).rule == "value"


DEGENERATE = [
    *({}, {"k": 0}, {"k": 1}, {"k": 4}),
    *({"sizes": []}, {"sizes": [0]}, {"sizes": [1]}, {"sizes": np.array([3, 1])}),
    *({"parts": []}, {"parts": [], "sizes": []}, {"parts": [2.0]}),
    *({"parts": [0.0, 0.0], "sizes": [0, 0]}, {"parts": [1.0, 2.0], "sizes": [3, 0]}),
    {"parts": [np.ones(3), 2 * np.ones(3)], "sizes": np.array([3, 1])},
    *({"parts": [np.inf, np.nan]}, {"parts": [1e308, 1e308, 1e308], "sizes": [9, 9, 1]}),
    {"also": {"nan": (np.nan, "a"), "shape": (np.ones((2, 3)), "b"), "inf": (np.inf, "c")}},
]
EXPECTED = [
    *(3.0, 1, 0.0, Fraction(3), np.float32(3), 1e308, 1e-290, np.nan, np.inf),
    *(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]), np.zeros(3), np.full(3, 1e308)),
    *(np.zeros(0), np.zeros((2, 3)), np.zeros((3, 0)), np.array([np.inf, 1, 2])),
    *(np.array([np.nan, 1.0, 2.0]), np.array([Fraction(1), Fraction(2), Fraction(3)])),
]


class Raises:
    """Something that lets nobody look at it."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")

    __float__ = __len__ = __iter__ = __array__


def odd_answers():
    endless: list = []
    endless.append(endless)
    yield from (True, np.True_, "3.0", "", b"3", None, ..., object(), lambda: 3, {}, {3}, iter([3]))
    yield from (1 + 2j, 3 + 0j, np.array(3 + 0j), np.array([1 + 1j, 2, 3]), np.complex64(3))
    yield from ([True, False, True], ["1", "2", "3"], [1, None, 3], [[1, 2], [3]], endless)
    yield from (mg.Tensor(3.0), [mg.Tensor(3.0)], [mg.Tensor([1.0]), mg.Tensor([2.0])], Raises())
    yield from (np.datetime64("2020"), np.timedelta64(3, "s"), np.array([(1, 2)], "i,i"), 10**400)
    yield from (
        np.array([True, 2, 3], object),
        np.array([1, "2"], object),
        np.array("3"),
        np.array(True),
        type,
        np,
        print,
    )


def real_answers():
    yield from (0, 3, -3, 1e308, 1e-290, np.int8(-128), np.uint8(3), np.float16(3), Fraction(-1, 3))
    yield from (
        np.nan,
        np.inf,
        -np.inf,
        np.array(3.0),
        np.array([3]),
        [],
        [[]],
        (1, 2, 3),
        range(3),
    )
    yield from (np.zeros((3, 0)), np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((1, 1, 1)))
    yield from ([np.nan, np.inf, 1], [1e308, -1e308, 0], [Fraction(1), 2, 3.0], [10**30, 1, 2])


@pytest.mark.parametrize("context", DEGENERATE, ids=str)
def test_what_is_no_real_number_is_never_right_never_raises_never_warns(context):
    for expected in EXPECTED:
        for found in odd_answers():
            reason = explain(expected, found, **context)
            assert reason.rule in ("nothing", "tensor", "type")
            assert reason.sentence.startswith("your answer is ")


@pytest.mark.parametrize("context", DEGENERATE, ids=str)
def test_degenerate_numbers_never_raise_never_warn_and_are_right_only_if_equal(context):
    for expected in EXPECTED:
        for found in real_answers():
            reason = explain(expected, found, **context)
            a, b = np.asarray(expected, float), np.asarray(found, float)
            assert (reason is None) == (a.shape == b.shape and np.array_equal(a, b, equal_nan=True))
            assert reason is None or (reason.rule and reason.sentence)


def test_what_is_infinite_or_not_a_number_can_be_right():
    assert explain(np.nan, np.nan) is None
    assert explain([np.inf, 1.0], [np.inf, 1.0]) is None
    assert explain(np.inf, -np.inf).rule == "sign"
    assert explain([np.inf, 1.0], [np.inf, 2.0]).rule == "value"
    assert explain(np.inf, 3.0).sentence == "it is 3, expected inf"


def test_a_bool_is_right_where_a_bool_is_expected_and_no_number():
    mask = np.array([True, False])
    assert explain(mask, mask.tolist()) is None
    assert explain(mask, ~mask) is not None
    assert explain(mask, [1, 0]) is None
    assert explain([1, 0], mask).rule == "type"


def test_explaining_changes_neither_answers_nor_settings():
    expected, found, parts = np.ones(3), np.full(3, 2.0), [np.ones(3), np.ones(3)]
    with np.errstate(all="raise"):
        explain(expected, found, parts=parts, sizes=[0, 0])
        assert set(np.geterr().values()) == {"raise"}
    assert expected.tolist() == parts[0].tolist() == [1, 1, 1]
    assert found.tolist() == [2, 2, 2]


# ---------------------------------------------------------------------------- check and grade


def test_check_prints_one_line_or_raises_one_sentence(capsys):
    check(2.0, 2.0)
    check(2.0, 2.0, "the mean")
    assert capsys.readouterr().out == "your answer: right\nthe mean: right\n"
    with pytest.raises(WrongAnswer, match="^the mean: its sign is wrong$") as caught:
        check(2.0, -2.0, "the mean")
    assert caught.value.rule == "sign"
    with pytest.raises(WrongAnswer, match="^this is the mean of the micro-batches' means"):
        check(RIGHT, WRONG["mean of means"], parts=PARTS, sizes=SIZES)
    assert capsys.readouterr().out == ""


def test_grade_gives_all_points_partial_ones_or_raises(capsys):
    def fails(found):
        return lambda: check(2.0, found, k=4)

    assert grade(3) == grade(3, fails(2.0), fails(2.0)) == 3
    assert capsys.readouterr().out.count("right") == 2
    assert grade(3, fails(2.0), fails(8.0), partial={"k times": 1.5}) == 1.5
    output = capsys.readouterr().out.splitlines()
    assert output[-1].startswith("1.5 of 3 points: it is k = 4 times too large")
    assert grade(3, fails(8.0), partial={"k times": 0}) == 0
    for partial in (None, {}, {"sign": 1}):
        with pytest.raises(WrongAnswer, match="k = 4 times"):
            grade(3, fails(8.0), partial=partial)


def test_grade_stops_at_the_first_check_that_is_not_content():
    seen = []
    checks = [lambda: seen.append(1), lambda: check(2.0, -2.0), lambda: seen.append(3)]
    assert grade(3, *checks, partial={"sign": 1}) == 1
    assert seen == [1]


def test_grade_lets_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        grade(3, lambda: 1 / 0, partial={"sign": 1})


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, np.float32(2), np.int64(3), Fraction(1, 3), np.inf, 10**400]
)
def test_a_number_is_a_prediction(value, capsys):
    predicted(value)
    assert capsys.readouterr().out == f"saved: {value!r}\n"


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        *((None, "no prediction"), (..., "no prediction")),
        *(("3", "no number"), (True, "no number"), (np.True_, "no number"), ([3], "no number")),
        *(
            (1j, "no number"),
            (np.nan, "no number"),
            (np.ones(2), "no number"),
            (print, "no number"),
        ),
    ],
)
def test_what_is_no_number_is_no_prediction(value, rule):
    with pytest.raises(WrongAnswer) as caught:
        predicted(value)
    assert caught.value.rule == rule
    assert "a number" in str(caught.value)


@pytest.mark.parametrize("value", [None, ..., "B", 1, True, ["A"], np.ones(2), {}, np.array("A")])
def test_a_prediction_is_one_of_the_choices(value, capsys):
    with pytest.raises(WrongAnswer, match="one of 'A', 'none'"):
        predicted(value, among=["A", "none"])
    predicted("none", among=["A", "none"])
    predicted(np.int64(2), among=[1, 2])
    assert capsys.readouterr().out.startswith("saved: 'none'\n")


def test_a_correction_is_a_sentence_of_some_words(capsys):
    corrected("It was divided twice by k.")
    corrected("because", words=1)
    assert capsys.readouterr().out.count("only a person can tell") == 2
    for value in ("", "  ", "It was divided twice.", None, ..., 7, ["six words are in this list"]):
        with pytest.raises(WrongAnswer, match="words, expected 6 or more: what happened, and why"):
            corrected(value)


def test_a_wrong_choice_is_told_why_and_what_is_no_choice_which_there_are(capsys):
    because = {"B": "B clears too late", "C": "C is how it should be"}
    chosen("A", "A", because)
    chosen("A", np.str_("A"), because)
    assert capsys.readouterr().out == "'A': right\n" * 2
    with pytest.raises(WrongAnswer, match="^C is how it should be$") as caught:
        chosen("A", "C", because)
    assert caught.value.rule == "C"
    for value in ("D", "a", "", None, ..., 1, ["A"], np.array(["A", "B"]), {"A"}, print):
        with pytest.raises(WrongAnswer, match="expected one of 'A', 'B', 'C'") as caught:
            chosen("A", value, because)
        assert caught.value.rule == "no choice"


def test_a_score_stands_beside_the_reference(capsys):
    score("peak", 1234567, 1000, " bytes")
    score("backward passes", np.int64(3), 2.0)
    assert capsys.readouterr().out == (
        "peak: yours 1,234,567 bytes, the reference 1,000 bytes\n"
        "backward passes: yours 3, the reference 2\n"
    )


# -------------------------------------------------------------------------------------- forbid

WAYS = {
    "directly": "def mine(b): return train_step(b)",
    "as an attribute": "def mine(b): return mg.train_step(b)",
    "behind a name": "step = mg.train_step\ndef mine(b): return step(b)",
    "behind an import": "from minigrad import train_step as t\ndef mine(b): return t(b)",
    "behind an import inside": "def mine(b):\n from minigrad import train_step as t\n return t(b)",
    "behind a default": "def mine(b, step=mg.train_step): return step(b)",
    "in a helper": "def helper(b): return mg.train_step(b)\ndef mine(b): return helper(b)",
    "in a helper's helper": (
        "def a(b): return mg.train_step(b)\ndef c(b): return a(b)\ndef mine(b): return c(b)"
    ),
    "in a helper behind a name": "def a(b): return train_step(b)\nf = a\ndef mine(b): return f(b)",
    "in a function inside": "def mine(b):\n def inner(): return mg.train_step(b)\n return inner()",
    "in a lambda": "def mine(b): return (lambda: mg.train_step(b))()",
    "in a lambda outside": "run = lambda b: mg.train_step(b)\ndef mine(b): return run(b)",
    "in a comprehension": "def mine(b): return [mg.train_step(x) for x in b]",
    "in a generator in a lambda": "def mine(b): return (lambda: sum(train_step(x) for x in b))()",
    "in a class inside": "def mine(b):\n class A:\n  x = mg.train_step(b)\n return A.x",
    "below a decorator": "@mg.no_grad()\ndef mine(b): return mg.train_step(b)",
    "among calls of itself": "def mine(b): return mine(b[1:]) if b else mg.train_step(b)",
}


def defined(code: str):
    names = {"__name__": "__main__", "mg": mg, "np": np, "train_step": mg.train_step}
    exec(code, names)
    return names["mine"]


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_calls_what_it_is_to_write_is_refused(way):
    said = "mine() uses train_step, which it is to do by itself: write it in your own lines"
    with pytest.raises(WrongAnswer) as caught:
        forbid(defined(WAYS[way]), "accumulate", "train_step")
    assert (caught.value.rule, str(caught.value)) == ("forbidden", said)


def test_the_library_s_own_function_under_another_name_is_refused_and_a_namesake_is_not():
    with pytest.raises(WrongAnswer, match="uses train_step, which it is to do by itself"):
        forbid(defined("mine = mg.train_step"), "train_step")
    with pytest.raises(WrongAnswer, match="uses sum, which it is to do by itself"):
        forbid(np.sum, "sum")
    forbid(defined("def train_step(b): return b\nmine = train_step"), "train_step")


@pytest.mark.parametrize(
    "code",
    [
        "def mine(b): return mg.accumulate(b)",
        "def train_steps(b): pass\ndef mine(b): return train_steps(b)",
        "def mine(b):\n 'Does what train_step does.'\n return 'train_step'",
        "def a(b): return c(b)\ndef c(b): return a(b)\ndef mine(b): return a(b), mine, np.sum(b)",
        "mine = lambda b: b",
        "from functools import cache\n@cache\ndef mine(b): return b",
    ],
)
def test_a_function_that_does_not_is_not(code):
    forbid(defined(code), "train_step")
    forbid(defined(code))


@pytest.mark.parametrize("value", [None, ..., 3, "mine", print, len, int, mg.Linear])
def test_what_is_no_function_of_python_is_refused_by_name(value):
    with pytest.raises(WrongAnswer, match=r", expected a function: def \.\.\.") as caught:
        forbid(value, "train_step")
    assert caught.value.rule == "no function"


# ------------------------------------------------------------------------------- in a notebook


def test_a_notebook_shows_the_sentence_alone(tmp_path):
    pytest.importorskip("IPython")
    code = "from minigrad.checking import check; check(2.0, -2.0, 'the mean')"
    shown = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", "--no-banner", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert shown.stdout.splitlines() == ["Not yet: the mean: its sign is wrong"]


def test_every_tool_says_what_it_is_for():
    for tool in (check, grade, predicted, corrected, chosen, forbid, score, WrongAnswer):
        assert tool.__doc__
        assert getattr(checking, tool.__name__) is tool


@pytest.mark.parametrize(
    "body", ["eval('mg.train_step')", "globals()['x']", "getattr(mg, 'train' + '_step')"]
)
def test_ways_to_reach_a_name_without_writing_it_down_are_refused(body):
    names = {"__name__": "__main__", "mg": mg}
    exec(f"def mine():\n    return {body}", names)
    with pytest.raises(WrongAnswer, match="which it is to do by itself"):
        forbid(names["mine"], "train_step")


def test_a_text_that_says_it_is_equal_to_everything_is_not_the_right_choice():
    class Liar(str):
        __eq__ = lambda self, other: True  # noqa: E731
        __hash__ = str.__hash__

    with pytest.raises(WrongAnswer, match="no, that"):
        chosen("a", Liar("b"), because={"b": "no, that is b"})
