"""What a practitioner sees when an accumulated run in PyTorch does not match: the page's table.

A test a row of the table in lessons/README.md: the loop with the fault, the symptom in the row's
words, and where there is one the right line. The last tests hold its links, its code and its loop.
"""

import copy
import functools
import itertools
import re

import pytest

from tests.lines import PACKAGE

torch = pytest.importorskip("torch", reason="needs PyTorch")
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402

torch.set_num_threads(1)
FOLDER = PACKAGE.parent / "lessons"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## A run of your own that does not match\n")[1].split("\n## ")[0]
CODE = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
K, B = 4, 8


def data(*shape, seed=0):
    """Inputs (*shape, 6) and labels (*shape) of three classes, in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, shape, generator=generator)


def net(*between, dtype=torch.float64):
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 16), *between, torch.nn.Tanh(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def side_by_side(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def gradient(model, backward):
    """The one that the page shows."""
    found = {"torch": torch}
    exec(CODE[0].split("\n\n\n")[0], found)
    return found["gradient"](model, backward)


def gap(found, right):
    return ((found - right).norm() / right.norm()).item()


def length(found, right):
    return (found.norm() / right.norm()).item()


def parts(x, y, b=B):
    return list(zip(x.split(b), y.split(b), strict=True))


def at_once(model, x, y):
    """The gradient of one batch."""
    return gradient(model, lambda: token_mean(model(x), y).backward())


def in_parts(model, x, y, loss, b=B):
    """The gradient of a loop that makes `loss` of each micro-batch."""

    def loop():
        for x_j, y_j in parts(x, y, b):
            loss(model(x_j), y_j).backward()

    return gradient(model, loop)


def token_mean(out, y, reduction="mean"):
    return cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=-100, reduction=reduction)


def mean_over(k):
    """The usual line: the mean of a micro-batch, divided by their number."""
    return lambda out, y: token_mean(out, y) / k


def over(n):
    """The right line: the sum of a micro-batch, divided by what counts in the window."""
    return lambda out, y: token_mean(out, y, reduction="sum") / n


def ragged(spread):
    """16 sequences of 12 tokens on average; spread 0: all of 12, 1: of 1 to 23. Padded."""
    x, y = data(16, 23)
    for i, row in enumerate(y):
        longer = (i // 2 % 2 * 2 - 1) * (i % 12)  # or shorter: pairs are micro-batches
        row[12 + round(spread * longer) :] = -100
    return x, y


# ------------------------------------------------------------- the gradient of a window differs


def test_never_divided_it_is_k_times_too_long_and_adam_hides_it():
    model, (x, y) = net(), data(K * B)
    assert length(in_parts(model, x, y, cross_entropy), at_once(model, x, y)) == pytest.approx(K)

    def trained(make, divisor):
        model = net()
        optimizer = make(model.parameters(), lr=0.01)
        for _ in range(20):
            in_parts(model, x, y, mean_over(divisor))
            optimizer.step()
        return side_by_side(model.parameters())

    for make, low, high in ((torch.optim.SGD, 0.02, 1), (torch.optim.Adam, 0, 1e-4)):
        assert low <= gap(trained(make, 1), trained(make, K)) < high


def test_divided_twice_it_is_k_times_too_short():
    model, (x, y) = net(), data(K * B)
    twice = in_parts(model, x, y, mean_over(K * K))
    assert length(twice, at_once(model, x, y)) == pytest.approx(1 / K)


def test_the_gap_of_a_mean_of_means_grows_with_the_spread_of_lengths():
    model, gaps = net(), []
    for spread in (0, 0.25, 0.5, 1):
        x, y = ragged(spread)
        right, b = at_once(model, x, y), 2
        gaps.append(gap(in_parts(model, x, y, mean_over(len(y) // b), b), right))
        assert gap(in_parts(model, x, y, over((y != -100).sum()), b), right) < 1e-12
    assert gaps[0] < 1e-12
    assert gaps == sorted(gaps)
    assert gaps[-1] > 0.05

    losses = [token_mean(model(x_j), y_j) for x_j, y_j in parts(x, y, b)]
    assert gap(sum(losses) / len(losses), token_mean(model(x), y)) < gaps[-1] / 5


def test_a_short_last_micro_batch_is_a_mean_of_means_too():
    model, (x, y) = net(), data(3 * B + 2)
    right = at_once(model, x, y)
    assert gap(in_parts(model, x, y, mean_over(4)), right) > 0.05
    assert gap(in_parts(model, x, y, over(len(y))), right) < 1e-12


def test_class_weights_are_one_as_well():
    model, (x, y) = net(), data(K * B)
    weights = torch.tensor([1.0, 3, 9], dtype=torch.float64)
    weighted = functools.partial(cross_entropy, weight=weights)
    right = gradient(model, lambda: weighted(model(x), y).backward())
    means = in_parts(model, x, y, lambda out, y: weighted(out, y) / K)
    sums = in_parts(
        model, x, y, lambda out, y_j: weighted(out, y_j, reduction="sum") / weights[y].sum()
    )
    assert gap(means, right) > 0.01
    assert gap(sums, right) < 1e-12


def test_a_penalty_in_each_micro_batch_adds_k_minus_1_of_its_gradients():
    model, (x, y) = net(), data(K * B)

    def penalty():
        return 0.01 * sum((p * p).sum() for p in model.parameters())

    once = gradient(model, lambda: (cross_entropy(model(x), y) + penalty()).backward())
    each = in_parts(model, x, y, lambda out, y: mean_over(K)(out, y) + penalty())
    alone = gradient(model, lambda: penalty().backward())
    assert gap(each, once) > 0.1
    assert gap(each - once, (K - 1) * alone) < 1e-12
    assert gap(in_parts(model, x, y, mean_over(K)), at_once(model, x, y)) < 1e-12  # without it


def test_cleared_in_each_micro_batch_it_is_a_part_of_the_last_ones():
    model, (x, y) = net(), data(K * B)

    def clears(out, y):
        model.zero_grad()
        return mean_over(K)(out, y)

    last = at_once(model, x[-B:], y[-B:]) / K
    assert gap(in_parts(model, x, y, clears), last) < 1e-12
    assert gap(last, at_once(model, x, y)) > 0.1


def test_batchnorm_differs_in_training_alone_and_more_in_smaller_micro_batches():
    x, y = data(K * B)
    for norm, differs in ((torch.nn.BatchNorm1d(16), True), (torch.nn.GroupNorm(4, 16), False)):
        model, gaps = net(norm), []
        for training in (True, False):
            model.train(training)
            right = at_once(model, x, y)
            for b in (16, 8, 4):
                gaps.append(gap(in_parts(model, x, y, mean_over(K * B // b), b), right))
        assert max(gaps[3:]) < 1e-12
        assert gaps[:3] == sorted(gaps[:3]) and gaps[0] > 0.05 if differs else max(gaps) < 1e-12


def test_dropout_differs_under_one_seed_too_and_not_at_0():
    x, y = data(K * B)
    for p, differs in ((0.5, True), (0.0, False)):
        model = net(torch.nn.Dropout(p), torch.nn.Linear(16, 16), torch.nn.Dropout(p))
        found = []
        for b in (K * B, B):
            torch.manual_seed(1)
            found.append(in_parts(model, x, y, mean_over(K * B // b), b))
        assert gap(*found) > 0.1 if differs else gap(*found) < 1e-12


def test_in_float32_a_gap_of_1e_7_is_rounding():
    model, (x, y) = net(dtype=torch.float32), data(K * B)
    found = in_parts(model, x.float(), y, mean_over(K))
    assert 0 < gap(found, at_once(model, x.float(), y)) < 1e-6


# ----------------------------------------------------- the first windows agree, the run does not


def run(step, x, y, k=K, fault=None, model=None):
    """The gradients that `step` gets in one epoch, of the window's usual loop."""
    model, seen = model or net(), []
    for i, (x_j, y_j) in enumerate(parts(x, y), start=1):
        mean_over(k)(model(x_j), y_j).backward()
        if i % k == 0 or (i == len(x.split(B)) and fault != "drops the tail"):
            seen.append(side_by_side(p.grad for p in model.parameters()))
            step(model)
            if fault != "never clears":
                model.zero_grad()
    return seen


def windows(x, y, n=K * B):
    return [at_once(net(), x_j, y_j) for x_j, y_j in parts(x, y, n)]


def stand_still(_):
    """A step of rate 0: so that the gradients of two runs can be compared."""


def test_never_cleared_the_gradient_is_1_2_3_times_as_long():
    x, y = data(K * B)
    x, y = x.repeat(4, 1), y.repeat(4)  # the same window again and again
    seen, right = run(stand_still, x, y, fault="never clears"), windows(x, y)
    assert [length(*pair) for pair in zip(seen, right, strict=True)] == pytest.approx([1, 2, 3, 4])


def test_a_short_last_window_divided_by_k_spoils_the_last_update_alone():
    x, y = data(2 * K * B + 2 * B)
    seen, right = run(stand_still, x, y), windows(x, y)
    *first, last = [length(*pair) for pair in zip(seen, right, strict=True)]
    assert first == pytest.approx([1, 1])
    assert last == pytest.approx(2 / K)
    assert len(run(stand_still, x, y, fault="drops the tail")) == len(right) - 1


def test_clipping_in_the_loop_shows_where_the_clip_acts():
    x, y = data(K * B)
    for limit, acts in ((100.0, False), (0.05, True)):
        model = net()

        def clipped_in_the_loop(model=model, limit=limit):
            for x_j, y_j in parts(x, y):
                mean_over(K)(model(x_j), y_j).backward()
                clip_grad_norm_(model.parameters(), limit)

        found = gradient(model, clipped_in_the_loop)
        finished = []
        for of_window in (at_once(model, x, y), in_parts(model, x, y, mean_over(K))):
            finished.append(of_window * min(1, limit / of_window.norm()))
        assert gap(*finished) < 1e-12
        assert found.norm() < limit * (1 + 1e-12)  # as the right one, but of another direction
        assert gap(found, finished[0]) > 0.05 if acts else gap(found, finished[0]) < 1e-12


def test_a_scheduler_stepped_in_the_loop_has_the_rates_of_k_times_as_many_updates():
    def rates(steps):
        optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
        used = []
        for _ in range(5):
            optimizer.step()
            used.append(optimizer.param_groups[0]["lr"])
            for _ in range(steps):
                scheduler.step()
        return used

    assert rates(1) == [1 / (1 + u) for u in range(5)]
    assert rates(K) == [1 / (1 + K * u) for u in range(5)]


def test_the_loss_of_the_last_micro_batch_is_not_that_of_the_window():
    model, (x, y) = net(), data(K * B)
    losses = [token_mean(model(x_j), y_j).item() for x_j, y_j in parts(x, y)]
    right = token_mean(model(x), y).item()
    assert sum(loss / K for loss in losses) == pytest.approx(right)
    assert abs(losses[-1] - right) > 0.01
    assert abs(losses[-1] / K - right) > right / 2


# ------------------------------------------------------------------------------------ the page


def test_the_loop_of_the_page_is_that_of_large_batches():
    """Ragged sequences, a last window of two and a half micro-batches, a clip that acts, a
    schedule, momentum; two epochs. Equal to rounding, also the losses that are printed."""
    x, y = data(2 * K * B + 2 * B + B // 2, 12)
    for i, row in enumerate(y):
        row[1 + i % 12 :] = -100
    max_norm, found = 0.1, []

    def start():
        model, printed = net(), []
        found.append((model, printed))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
        return model, optimizer, rates, printed

    model, optimizer, scheduler, printed = start()
    for x_j, y_j in 2 * parts(x, y, K * B):
        optimizer.zero_grad()
        loss = token_mean(model(x_j), y_j)
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
        printed.append(f"loss {loss.item():.4f}")

    model, optimizer, scheduler, printed = start()
    names = {
        "itertools": itertools,
        "cross_entropy": lambda out, y, **how: cross_entropy(out.mT, y, **how),
        "clip_grad_norm_": clip_grad_norm_,
        "print": printed.append,
        **{"loader": parts(x, y), "k": K, "max_norm": max_norm},
        **{"model": model, "optimizer": optimizer, "scheduler": scheduler},
    }
    for _epoch in range(2):
        exec(CODE[1], names)

    (large, expected), (accumulated, printed) = found
    weights = [side_by_side(m.parameters()) for m in (accumulated, large, net())]
    assert gap(weights[0], weights[1]) < 1e-12 < 0.01 < gap(weights[2], weights[1])
    assert printed == expected
    assert len(printed) == 2 * 3


def test_what_the_page_measures_runs(capsys):
    model, (x, y) = net(), data(K * B)
    twin = copy.deepcopy(model)
    names = {
        "torch": torch,
        "model": model,
        "one_batch": lambda: cross_entropy(model(x), y).backward(),
        "your_loop": lambda: [cross_entropy(model(a), b).backward() for a, b in parts(x, y)],
    }
    exec(CODE[0], names)
    found = [float(number) for number in re.findall(r"tensor\((\S+?)[,)]", capsys.readouterr().out)]
    assert found == pytest.approx([K - 1, K], rel=1e-4)
    assert gap(side_by_side(model.parameters()), side_by_side(twin.parameters())) == 0


def test_each_row_names_a_section_of_a_lesson_and_a_test_that_exist():
    rows = re.findall(r"^\| (?!what|-)(.+?) \| (.+?) \| (.+) \| (.+) \| (.+?) \|$", SECTION, re.M)
    assert len(rows) == 12
    for *_, why, tests in rows:
        headings = set()
        for lesson in re.findall(r"\((\d\d_\w+)\.ipynb\)", why):
            text = (FOLDER / f"{lesson}.py").read_text(encoding="utf-8")
            headings |= set(re.findall(r"^# ## (.+)$", text, re.MULTILINE))
        assert re.findall(r"\*(.+?)\*", why)
        assert headings.issuperset(re.findall(r"\*(.+?)\*", why)), why
        named = re.findall(r"\[B(\d\d)\]\((.+?)\)", tests)
        assert named
        for number, file in named:
            source = (FOLDER / file).read_text(encoding="utf-8")
            assert re.search(rf"^def test_b{number}_", source, re.MULTILINE), number
