"""Claims on the fake device: it obeys CuPy's rules, its bits are NumPy's, its meter counts right.

TAKEN and REFUSED are calls that CuPy takes and refuses. Each is made on the fake, and, where CuPy
is installed, replayed on real `cupy.ndarray` objects, so that the fake's rules are CuPy's.
"""

import copy
import gc
import inspect
import math
import pickle

import numpy as np
import pytest

from tests import cupy_rules as rules
from tests.fake_device import FakeArray, Meter, to_fake, to_host
from tests.replay import Call, Device, record, replay

F32 = np.float32
TAKEN = {
    "operators": lambda x, i: -(((x + 1) * x - 2.0 / (x + 3)) ** 2) // 0.5,
    "comparison": lambda x, i: (x > 0.5) & (x != 2.0) | (x <= x),
    "in place": lambda x, i: np.subtract(x, F32(0.5) * x, out=x),
    "exp log tanh sqrt": lambda x, i: np.log(np.exp(x)) + np.tanh(x) * np.sqrt(np.abs(x)),
    "maximum of a scalar": lambda x, i: np.maximum(x, 0),
    "isfinite": lambda x, i: np.isfinite(x),
    "@": lambda x, i: x @ x.T,
    "dot": lambda x, i: np.dot(x.T, x),
    "vdot": lambda x, i: np.vdot(x, x),
    "einsum": lambda x, i: np.einsum("ij,kj->ik", x, x),
    "outer": lambda x, i: np.multiply.outer(x, x[0]),
    "sum": lambda x, i: np.sum(x, axis=0, keepdims=True, dtype=F32),
    "sum of all": lambda x, i: x.sum(),
    "add.reduce": lambda x, i: np.add.reduce(x, axis=0),
    "add.accumulate": lambda x, i: np.add.accumulate(x, axis=1),
    "mean and var": lambda x, i: np.mean(x, axis=0) - x.var(axis=0, ddof=1),
    "max": lambda x, i: np.max(x, axis=1, keepdims=True),
    "argmax": lambda x, i: np.argmax(x, axis=1),
    "all": lambda x, i: np.all(np.isfinite(x)),
    "clip": lambda x, i: np.clip(x, 0.25, 0.75),
    "where": lambda x, i: np.where(x > 0.5, x, 0.0),
    "take": lambda x, i: np.take(x, i, axis=0),
    "index": lambda x, i: x[i],
    "slices": lambda x, i: x[1:, None, ::2],
    "take_along_axis": lambda x, i: np.take_along_axis(x, i[:, None], axis=1),
    "stack of 0-d arrays": lambda x, i: np.stack([x.sum(), x[0, 0], x.mean()]),
    "concatenate": lambda x, i: np.concatenate([x, x[:1]], axis=0),
    "reshape": lambda x, i: x.reshape(-1, 2),
    "transpose": lambda x, i: np.transpose(x, (1, 0)) + np.swapaxes(x, 0, 1),
    "broadcast_to": lambda x, i: np.broadcast_to(x, (2, 3, 4)),
    "expand_dims": lambda x, i: np.squeeze(np.expand_dims(x, 1)),
    "astype": lambda x, i: x.astype(np.float64),
    "asarray with like": lambda x, i: np.asarray(x, dtype=np.float64, like=x),
    "arange with like": lambda x, i: i + np.arange(3, like=x) + np.zeros(3, np.int64, like=x),
    "host array with like": lambda x, i: x + np.asarray(host()[0], like=x),
    "zeros_like": lambda x, i: np.zeros_like(x) + np.ones_like(x) + np.full_like(x, 3.0),
    "split": lambda x, i: np.split(x, 3)[1],
    "cumsum": lambda x, i: np.cumsum(x, axis=0),
    "array_equal": lambda x, i: np.array_equal(x, x),
    "norm": lambda x, i: np.linalg.norm(x),
}
CHANGES = {  # the same for calls that return nothing: x is looked at
    "add.at": lambda x, i: np.add.at(x, i, x),
    "subtract.at a scalar": lambda x, i: np.subtract.at(x, i, 0.1),
    "assign a scalar": lambda x, i: x.__setitem__(slice(1, 3), 0.5),
    "assign a fake": lambda x, i: x.__setitem__(0, x[1]),
    "assign at an index": lambda x, i: x.__setitem__(i, 0.5),
    "copyto": lambda x, i: np.copyto(x, x[::-1] + 1),
    "fill": lambda x, i: x.fill(7.0),
}
REFUSED = {
    "maximum.reduce": (NotImplementedError, lambda x: np.maximum.reduce(x)),
    "logaddexp.reduce": (NotImplementedError, lambda x: np.logaddexp.reduce(x)),
    "maximum.accumulate": (NotImplementedError, lambda x: np.maximum.accumulate(x)),
    "multiply.at": (NotImplementedError, lambda x: np.multiply.at(x, 0, 2.0)),
    "add.reduce(where=)": (TypeError, lambda x: np.add.reduce(x, where=x > 0)),
    "sum(where=)": (TypeError, lambda x: np.sum(x, where=x > 0)),
    "sum(initial=)": (TypeError, lambda x: np.sum(x, initial=0.0)),
    "x.sum(where=)": (TypeError, lambda x: x.sum(where=x > 0)),
    "max(initial=)": (TypeError, lambda x: np.max(x, initial=0.0)),
    "var(mean=)": (TypeError, lambda x: np.var(x, mean=x)),
    "exp(where=)": (TypeError, lambda x: np.exp(x, where=x > 0)),
    "add(order=)": (TypeError, lambda x: np.add(x, x, order="C")),
    "sort(stable=)": (TypeError, lambda x: np.sort(x, stable=True)),
    "zeros_like(device=)": (TypeError, lambda x: np.zeros_like(x, device="cpu")),
    "spacing": (TypeError, lambda x: np.spacing(x)),
    "block": (TypeError, lambda x: np.block([[x]])),
    "einsum_path": (TypeError, lambda x: np.einsum_path("ij->i", x)),
    "ones(like=)": (TypeError, lambda x: np.ones(3, like=x)),
    "full(like=)": (TypeError, lambda x: np.full(3, 1.0, like=x)),
    "eye(like=)": (TypeError, lambda x: np.eye(3, like=x)),
    "dtype object": (ValueError, lambda x: x.astype(object)),
    "dtype longdouble": (ValueError, lambda x: np.zeros_like(x, dtype="g")),
    "x[:] = host": (ValueError, lambda x: x.__setitem__(slice(None), np.zeros((3, 4), F32))),
    "x @ host": (TypeError, lambda x: x @ np.zeros((4, 2), F32)),
    "host @ x": (TypeError, lambda x: np.zeros((2, 3), F32) @ x),
    "stack of both": (TypeError, lambda x: np.stack([x, np.zeros((3, 4), F32)])),
    "out of range": (IndexError, lambda x: x[3]),
}
if hasattr(np, "unstack"):  # NumPy 2.1
    REFUSED["unstack"] = (TypeError, lambda x: np.unstack(x))
    REFUSED["clip(min=)"] = (TypeError, lambda x: np.clip(x, min=0.0, max=1.0))
if np.dtype("g") == np.float64:  # Windows
    del REFUSED["dtype longdouble"]


def host():
    """A float32 array of shape (3, 4), and repeated row indices."""
    return np.random.default_rng(1).random((3, 4), F32), np.array([2, 0, 2])


@pytest.fixture
def x():
    return to_fake(host()[0])


@pytest.fixture(params=["tables", "cupy"])
def rulebook(request, monkeypatch):
    """The rules without and with CuPy installed."""
    if request.param == "cupy":
        pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    else:
        monkeypatch.setattr(rules, "cupy", None)
    rules.signature.cache_clear()
    yield
    rules.signature.cache_clear()


def assert_same_bits(fake, array):
    assert type(fake) is FakeArray
    assert (fake.shape, fake.dtype) == (array.shape, array.dtype)
    assert to_host(fake).tobytes() == array.tobytes()


# ----------------------------------------------------------------- what CuPy takes and refuses


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.usefixtures("rulebook")
def test_the_fake_computes_what_numpy_computes_bit_for_bit(name):
    fakes = [to_fake(array) for array in host()]
    assert_same_bits(TAKEN[name](*fakes), np.asarray(TAKEN[name](*host())))


@pytest.mark.parametrize("name", CHANGES)
def test_the_fake_changes_in_place_as_numpy_does(name):
    (x, i), (y, j) = host(), [to_fake(array) for array in host()]
    assert CHANGES[name](x, i) is None
    assert CHANGES[name](y, j) is None
    assert_same_bits(y, x)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("rulebook")
def test_the_fake_refuses_what_cupy_lacks(name, x):
    error, call = REFUSED[name]
    with pytest.raises(error):
        call(x)


@pytest.mark.parametrize("name", [*TAKEN, *CHANGES])
def test_cupy_takes_what_the_fake_takes(name):
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    fakes = [to_fake(array) for array in host()]
    with record() as calls:
        {**TAKEN, **CHANGES}[name](*fakes)
    assert calls
    assert replay(calls) == {}


@pytest.mark.parametrize("name", REFUSED)
def test_cupy_refuses_what_the_fake_refuses(name, x):
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    error, call = REFUSED[name]
    with record() as calls, pytest.raises(error):
        call(x)
    (message,) = replay(calls).values()
    assert message.startswith(error.__name__)


# --------------------------------------------------------------------- the host and the device


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.asarray(x),
        lambda x: np.array([x[0, 0], x[0, 1]]),
        lambda x: np.zeros((3, 4)).__setitem__(..., x),
        lambda x: np.eye(4)[np.argmax(x, axis=1)],
        lambda x: np.float32(x[0, 0]),
        lambda x: np.testing.assert_array_equal(x, x),
        lambda x: np.random.default_rng(0).permutation(x),
    ],
)
def test_a_fake_never_becomes_a_numpy_array_unasked(call, x):
    with pytest.raises(TypeError, match="Implicit conversion"):
        call(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, h: x + h,
        lambda x, h: h + x,
        lambda x, h: np.add(h, x, out=h),
        lambda x, h: np.add(x, x, out=h),
        lambda x, h: x.__iadd__(h),
        lambda x, h: x * np.array(2.0, F32),  # 0-d, but an array
        lambda x, h: np.add(x, [1, 2, 3, 4]),
        lambda x, h: np.where(h > 0, x, 0.0),
        lambda x, h: np.concatenate([x, h]),
        lambda x, h: np.take(h, np.argmax(x, axis=1)),
        lambda x, h: np.copyto(h, x),
        lambda x, h: np.add.at(h, np.argmax(x, axis=1), 1.0),
    ],
)
def test_host_arrays_and_lists_do_not_mix_with_fakes(call, x):
    with pytest.raises(TypeError):
        call(x, host()[0])


@pytest.mark.parametrize("scalar", [2, 2.0, True, F32(2), np.int64(2)])
def test_python_and_numpy_scalars_mix_with_fakes(scalar, x):
    assert (x * scalar).dtype == (scalar * x).dtype == (host()[0] * scalar).dtype


def test_a_strong_float64_scalar_widens_as_in_numpy(x):
    assert (x * 2.0).dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float64


def test_a_0_d_host_array_can_be_assigned_but_no_larger_one(x):
    x[0] = np.array(5.0, F32)
    assert to_host(x)[0].tolist() == [5.0] * 4
    for value in (np.zeros(4, F32), [0.0, 0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="fill"):
            x[0] = value


@pytest.mark.parametrize("make", [np.asarray, np.array])
def test_like_moves_a_host_array_and_shares_no_memory_with_it(make, x):
    array = np.arange(3.0)
    with Meter() as meter:
        fake = make(array, like=x)
    array[:] = 9
    assert_same_bits(fake, np.arange(3.0))
    assert (meter.to_device, meter.waits) == (1, 0)


def test_like_leaves_a_fake_where_it_is(x):
    with Meter() as meter:
        same = np.asarray(x, like=x)
    assert np.shares_memory(same, x)
    assert (meter.to_device, meter.to_host, meter.kernels) == (0, 0, 0)


@pytest.mark.usefixtures("rulebook")
def test_arange_zeros_and_empty_with_like_create_on_the_device(x):
    with Meter() as meter:
        made = np.arange(3, like=x), np.zeros((), F32, like=x), np.empty(2, like=x)
    assert all(type(fake) is FakeArray for fake in made)
    assert (meter.kernels, meter.to_device) == (3, 0)


@pytest.mark.parametrize("make", [np.zeros_like, np.ones_like, np.empty_like])
def test_shape_0_d_of_the_like_functions_is_refused_because_cupy_ignores_it(make, x):
    with pytest.raises(ValueError, match="CuPy ignores"):
        make(x, shape=())
    assert make(x, shape=(2,)).shape == (2,)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, i: x[i],
        lambda x, i: x[list(i)],
        lambda x, i: x[:, i],
        lambda x, i: np.take(x, i, axis=0),
        lambda x, i: np.take_along_axis(x, i[:, None], axis=1),
        lambda x, i: np.add.at(x, i, x),
        lambda x, i: x.__setitem__(i, x),
        lambda x, i: x.__setitem__(to_fake(i), np.zeros((3, 4), F32)),
    ],
)
def test_a_host_array_as_an_index_is_copied_silently_and_can_be_forbidden(use, x):
    with Meter() as meter:
        use(x, host()[1])
        assert meter.index_copies == 1
        assert meter.to_device >= 1
        with pytest.raises(AssertionError, match="index_copies"), meter.forbid("index_copies"):
            use(x, host()[1])


def test_an_index_on_the_device_copies_nothing(x):
    i = to_fake(host()[1])
    with Meter() as meter:
        x[i], np.take(x, i, axis=0), np.add.at(x, i, x)
    assert (meter.index_copies, meter.to_device, meter.waits) == (0, 0, 0)


# ------------------------------------------------------------------------------------- waits


@pytest.mark.parametrize(
    "read",
    [
        *(float, int, bool, complex, str, repr, math.sqrt, pickle.dumps, to_host),
        *(FakeArray.get, FakeArray.item, FakeArray.tolist),
        lambda s: f"{s:.3f}",
        lambda s: 1 if s > 0 else 0,
        lambda s: 0.5 in [s],
        lambda s: max(s, s + 1),
    ],
)
def test_reading_a_value_waits_and_copies_once(read, x):
    total = x.sum()
    with Meter() as meter:
        read(total)
    assert (meter.waits, meter.to_host) == (1, 1)


def test_the_values_read_are_numpys():
    s = to_fake(F32(0.75))
    assert (float(s), int(s), bool(s), complex(s), s.item()) == (0.75, 0, True, 0.75, 0.75)
    assert (f"{s:.3f}", str(to_fake([1, 2])), to_fake([1, 2]).tolist()) == (
        "0.750",
        "array([1, 2])",
        [1, 2],
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[x > 0.5],
        lambda x: x[host()[0] > 0.5],
        lambda x: x.__setitem__(x > 0.5, 0.0),
        lambda x: np.nonzero(x),
        lambda x: np.where(x > 0.5),
        lambda x: np.bincount(np.argmax(x, axis=1)),
    ],
)
def test_what_depends_on_a_count_of_values_waits(use, x):
    with Meter() as meter:
        use(x)
    assert meter.waits == 1


def test_a_wait_can_be_forbidden(x):
    with Meter() as meter:
        with meter.forbid_waits():
            total = (x * 2).sum()
            with pytest.raises(AssertionError, match="waits"):
                float(total)
        assert float(total) == float((host()[0] * 2).sum())


def test_a_fake_of_several_values_has_no_truth_and_none_is_an_index(x):
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="integer"):
        range(to_fake(3))
    with pytest.raises(TypeError, match="indices must be integers"):
        [1, 2, 3][to_fake(1)]
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


# -------------------------------------------------------------------------- results and views


@pytest.mark.parametrize(
    "reduce", [np.sum, np.mean, np.max, np.argmax, np.all, np.count_nonzero, np.linalg.norm]
)
def test_a_reduction_gives_a_0_d_fake_never_a_scalar(reduce, x):
    assert type(reduce(x)) is FakeArray
    assert reduce(x).shape == ()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[0],
        lambda x: x[0, 1],
        lambda x: x[..., None],
        lambda x: x.T,
        lambda x: x.transpose(1, 0),
        lambda x: x.reshape(4, 3),
        lambda x: x.reshape((12,)),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        lambda x: np.split(x, 3)[0],
        lambda x: x.astype(F32, copy=False),
        lambda x: next(iter(x)),
    ],
)
def test_a_view_shares_memory_and_costs_neither_a_kernel_nor_a_byte(view, x):
    with Meter() as meter:
        before = meter.live
        part = view(x)
        assert (meter.kernels, meter.live) == (0, before)
    x[...] = 7.0
    assert np.all(part == 7.0)


def test_an_in_place_operation_changes_the_array_itself_and_takes_no_memory(x):
    y, expected = x, host()[0]
    with Meter() as meter:
        before = meter.live
        x += 1.0
        x *= x
        x[0] -= 0.5
        x[:, 1:3] /= 2.0
        np.multiply(x, 2.0, out=x)
        assert (meter.kernels, meter.peak) == (5, before)
    expected += 1.0
    expected *= expected
    expected[0] -= 0.5
    expected[:, 1:3] /= 2.0
    expected *= 2.0
    assert x is y
    assert_same_bits(x, expected)


@pytest.mark.parametrize(
    "duplicate",
    [FakeArray.copy, copy.copy, copy.deepcopy, np.copy, lambda x: pickle.loads(pickle.dumps(x))],
)
def test_a_copy_is_a_fake_with_memory_of_its_own(duplicate, x):
    twin = duplicate(x)
    assert not np.shares_memory(twin, x)
    assert_same_bits(twin, host()[0])


def test_a_0_d_index_copies_as_an_array_does(x):
    assert not np.shares_memory(x[to_fake(1)], x)
    assert_same_bits(x[to_fake(1)], host()[0][1])


def test_what_is_fetched_is_a_copy(x):
    to_host(x)[...] = 0
    assert_same_bits(x, host()[0])


def test_set_overwrites_from_the_host(x):
    with Meter() as meter:
        x.set(np.ones((3, 4), F32))
    assert meter.to_device == 1
    assert_same_bits(x, np.ones((3, 4), F32))
    with pytest.raises(TypeError, match="cannot be set"):
        x.set(np.ones((3, 4)))


# ------------------------------------------------------------------------------------- the meter


def test_memory_is_counted_in_blocks_of_512_bytes():
    with Meter() as meter:
        start = meter.live
        one = to_fake(F32(1))
        assert meter.live - start == 512
        more = to_fake(np.zeros(129, F32))
        assert meter.live - start == 512 + 1024
        none = to_fake(np.zeros(0, F32))
        assert meter.live - start == 512 + 1024
        del one, more, none
        assert meter.live == start


def test_memory_is_free_when_the_last_view_dies_without_the_garbage_collector():
    gc.disable()
    try:
        with Meter() as meter:
            start = meter.live
            x = to_fake(np.zeros((8, 128), F32))
            row = x[3]
            del x
            assert meter.live - start == 4096
            del row
            assert meter.live == start
    finally:
        gc.enable()


def test_the_peak_is_the_most_that_lived_at_once():
    x = to_fake(np.zeros(128, F32))
    with Meter() as meter:
        start = meter.live
        for _ in range(5):
            x = x + 1.0  # old and new live side by side, then the old one dies
        assert meter.peak - start == 512
        y = (x + 1.0) * 2.0 - (x * 3.0)
        assert meter.peak - start == 3 * 512
        del y


def test_more_than_the_limit_is_a_memory_error_and_the_device_goes_on(x):
    with Meter(limit=Meter.used + 1024) as meter:
        y = x + 1.0
        with pytest.raises(MemoryError, match="limit"):
            (y * 2.0) + (y * 3.0)
        del y
        z = x * 2.0
        assert meter.live <= meter.limit
    assert_same_bits(z, host()[0] * F32(2))


def test_each_open_meter_counts_and_a_closed_one_does_not(x):
    with Meter() as outer:
        x + x
        with Meter() as inner:
            x @ x.T
        x.sum()
    np.exp(x)
    assert (outer.kernels, inner.kernels) == (3, 1)


# --------------------------------------------------------------- the tables and the replay


def test_the_table_of_functions_is_cupys():
    cupy = pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    for names, parameters in rules.FUNCTIONS.items():
        for name in set(names.split()) - {"einsum"}:  # it has **kwargs
            function = cupy.linalg.norm if name == "linalg.norm" else getattr(cupy, name)
            assert [*inspect.signature(function).parameters] == parameters.split(), name


def test_the_table_of_ufuncs_is_cupys():
    cupy = pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    ufuncs = {v.__name__: v for v in vars(np).values() if isinstance(v, np.ufunc)}
    assert {name for name in ufuncs if not hasattr(cupy, name)} <= rules.MISSING_UFUNCS
    args = {"at": (Device((3,), np.dtype("i4")), 0, 1)}
    for method, (names, _) in rules.UFUNC_METHODS.items():
        for name, ufunc in ufuncs.items():
            if names is None or ufunc.signature or (ufunc.nin, ufunc.nout) != (2, 1):
                continue
            operands = args.get(method, (Device((3,), np.dtype("i4")),))
            if method == "reduceat":
                operands += (Device((1,), np.dtype("i8")),)
            rejected = replay([Call(f"np.{name}.{method}", operands, {})])
            assert bool(rejected) == (name not in names), (name, method)


def test_the_fake_has_no_method_that_cupy_lacks():
    cupy = pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    public = {name for name in vars(FakeArray) if not name.startswith("_")}
    assert public | rules.METHODS | rules.ATTRIBUTES <= set(dir(cupy.ndarray))


@pytest.mark.parametrize("char", np.typecodes["All"])
def test_the_dtypes_are_cupys(char):
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    cast = Call("ndarray.astype", (Device((3,), np.dtype("f4")), np.dtype(char)), {})
    assert (np.dtype(char) in rules.DTYPES) == (replay([cast]) == {})


def test_astype_has_no_casting_as_in_cupy(x):
    with pytest.raises(TypeError, match="casting"):
        x.astype(np.float64, casting="safe")
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    cast = Call("ndarray.astype", (Device((3,), x.dtype), np.float64), {"casting": "safe"})
    assert "casting is not supported" in replay([cast])[repr(cast)]


def test_a_function_outside_the_tables_is_looked_up_in_cupy(x, monkeypatch):
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    assert_same_bits(np.roll(x, 1), np.roll(host()[0], 1))
    rules.signature.cache_clear()
    monkeypatch.setattr(rules, "cupy", None)
    with pytest.raises(TypeError, match=r"np\.roll is not in FUNCTIONS"):
        np.roll(x, 1)


def test_the_recorder_keeps_each_different_call_once(x):
    with record() as calls:
        for _ in range(3):
            np.add(x, x)
        np.add(x, 1)
        np.add(x, 1.0)
        x.sum(axis=0)
        np.arange(4, like=x)
        x[1:, 0]
    x + 2
    device = Device((3, 4), np.dtype("f4"))
    assert calls == [
        Call("np.add", (device, device), {}),
        Call("np.add", (device, 1), {}),
        Call("np.add", (device, 1.0), {}),
        Call("np.sum", (device,), {"axis": 0}),
        Call("np.arange", (4,), {}),
        Call("ndarray.__getitem__", (device, (slice(1, None), 0)), {}),
    ]


def test_the_replay_names_the_call_and_the_error():
    pytest.importorskip("cupy", reason="needs CuPy, but no GPU")
    device = Device((3, 4), np.dtype("f4"))
    (item,) = replay([Call("np.exp", (device,), {}), Call("np.spacing", (device,), {})]).items()
    assert "np.spacing" in item[0]
    assert item[1].startswith("TypeError")
