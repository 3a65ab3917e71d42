"""A GPU array without a GPU: NumPy inside, CuPy's rules outside, and a meter that counts the cost.

`to_fake(array)` puts an array on the fake device, `to_host(fake)` fetches it. A `FakeArray` refuses
what a `cupy.ndarray` refuses (cupy_rules.py), and computes with NumPy: its bits are NumPy's. Read
`Meter`, then `FakeArray`.

What it cannot show: CuPy wraps an index that is out of range (here: IndexError), flushes subnormals
to zero, adds in another order and uses workspaces; and one NumPy call is counted as one kernel.
"""

import contextlib
import functools
import gc
import weakref
from typing import ClassVar

import numpy as np

from tests import cupy_rules as rules

observers = []  # functions of (name, args, kwargs), told of each call on the device; see replay.py


class Meter:
    """Counts what a block costs on the fake device: `with Meter(limit=None) as meter:`.

    kernels       launches (a view launches none)
    waits         times the host waits for the device: float(), bool(), .get(), a boolean mask, ...
    to_device     copies host -> device
    index_copies  those of them that CuPy makes without a word: host arrays at or as an index
    to_host       copies device -> host
    live, peak    bytes in use, in blocks of 512 as in CuPy's pool; arrays from before the block too
    limit         bytes; more raise MemoryError, as after CuPy's `pool.set_limit(limit)`
    """

    active: ClassVar[list] = []  # the meters of the open blocks
    owners: ClassVar[dict] = {}  # the device: id of a NumPy array that owns memory -> bytes
    used: ClassVar[int] = 0  # the sum of these bytes

    def __init__(self, limit=None):
        self.limit = limit
        self.kernels = self.waits = self.to_device = self.index_copies = self.to_host = 0
        self.forbidden = set()

    @property
    def live(self):
        return Meter.used

    def __enter__(self):
        gc.collect()  # what earlier tests left behind is not this block's
        self.peak = self.live
        Meter.active.append(self)
        return self

    def __exit__(self, *_):
        Meter.active.remove(self)

    @contextlib.contextmanager
    def forbid(self, *events):
        """Inside the block each of `events` ("waits", "index_copies", ...) is an AssertionError."""
        before, self.forbidden = self.forbidden, self.forbidden.union(events)
        try:
            yield
        finally:
            self.forbidden = before

    def forbid_waits(self):
        return self.forbid("waits")


def _count(*events):
    for meter in Meter.active:
        for event in events:
            setattr(meter, event, getattr(meter, event) + 1)
            assert event not in meter.forbidden, f"{event}: forbidden in this block, but happened"


def _owner(array):
    """The array that owns the memory of `array`. Views of one buffer share it and cost nothing."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _is_view(array):
    return id(_owner(array)) in Meter.owners


def _allocate(array):
    """Take the memory of `array` into account, until the last view of it dies."""
    owner = _owner(array)
    nbytes = -(-owner.nbytes // 512) * 512
    for meter in Meter.active:
        if meter.limit is not None and Meter.used + nbytes > meter.limit:
            raise MemoryError(f"{Meter.used} bytes in use, {nbytes} more, limit {meter.limit}")
    Meter.owners[id(owner)] = nbytes
    Meter.used += nbytes
    for meter in Meter.active:
        meter.peak = max(meter.peak, Meter.used)
    weakref.finalize(owner, _release, id(owner)).atexit = False


def _release(owner_id):
    Meter.used -= Meter.owners.pop(owner_id)


# -------------------------------------------------------------- Between the host and the device


def to_fake(array):
    """A copy of `array` on the fake device."""
    _count("to_device")
    return FakeArray(np.array(array))


def to_host(fake):
    """A copy of `fake` as a NumPy array; the host waits for it."""
    return fake.get()


def _unwrap(value):
    """`value` with the NumPy arrays inside its fakes; a host array among them is refused."""
    if isinstance(value, FakeArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: move it with np.asarray(array, like=x)")
    if isinstance(value, (tuple, list)):
        return type(value)([_unwrap(item) for item in value])
    return value


def _operand(value):
    """An operand of a ufunc: a fake, or a Python or NumPy scalar. CuPy takes no list here."""
    if not isinstance(value, (FakeArray, np.ndarray, int, float, complex, np.generic)):
        raise TypeError(f"Unsupported type {type(value)}")
    return _unwrap(value)


def _moved(value):
    """`value` as CuPy moves it without a word where it is an index, or assigned at one."""
    if isinstance(value, FakeArray):
        return value
    if np.ndim(value):
        _count("index_copies")
    return to_fake(value)


def _index(key):
    """`key` for NumPy, and whether it holds arrays. A boolean mask waits: CuPy counts its Trues."""
    parts, fancy = [], False
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, (FakeArray, np.ndarray, list, bool, np.bool_)):
            fancy, part = True, _moved(part)._host
            if part.dtype == bool:
                _count("waits")
        parts.append(part)
    if not fancy and Ellipsis not in parts:
        parts.append(Ellipsis)  # so that x[0] of a vector is a 0-d view, not a NumPy scalar
    return tuple(parts), fancy


def _wrap(result, out=None):
    """What NumPy computed, as CuPy returns it: never a scalar. Counts a kernel, for a view none."""
    if isinstance(result, (tuple, list)):
        parts = [_wrap(item) for item in result]
        return parts if isinstance(result, list) else tuple(parts)
    if isinstance(result, (bool, int, float, np.generic)):
        result = np.asarray(result)
    if out is not None or result is None or not _is_view(result):
        _count("kernels")
    if out is not None:
        (out,) = out if isinstance(out, tuple) else (out,)  # CuPy, too, takes only one
        return out
    return None if result is None else FakeArray(result)


def _observe(name, *args, **kwargs):
    for observer in observers:
        observer(name, args, kwargs)


# ------------------------------------------------------------------------------------ The array


class FakeArray(np.lib.mixins.NDArrayOperatorsMixin):  # operators call ufuncs: __array_ufunc__
    """An array on the fake device: of `to_fake`, or of NumPy's functions on such arrays."""

    __slots__ = ("__weakref__", "_host")
    __array_priority__ = 100  # CuPy's

    def __init__(self, host):
        if host.dtype not in rules.DTYPES:
            raise ValueError(f"Unsupported dtype {host.dtype}")
        self._host = host
        if not _is_view(host):
            _allocate(host)

    # NumPy hands over its calls by these two protocols, NEP 13 and NEP 18.

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = ufunc.__name__
        _observe(f"np.{name}" + f".{method}" * (method != "__call__"), *inputs, **kwargs)
        rules.check_ufunc(name, method, kwargs)
        if method == "at":
            target, key, *values = inputs
            values = [_moved(value)._host for value in values]
            operands = [_unwrap(target), _index(key)[0], *values]
        else:
            operands = [_operand(value) for value in inputs]
        keywords = {key: _unwrap(value) for key, value in kwargs.items()}
        return _wrap(getattr(ufunc, method)(*operands, **keywords), kwargs.get("out"))

    def __array_function__(self, function, types, args, kwargs):
        name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")
        _observe(f"np.{name}", *args, **kwargs)
        if name in rules.ON_HOST:
            return function(*_unwrap(args), **kwargs)
        given = rules.signature(name).bind(*args, **kwargs).arguments
        if name in ("array", "asarray") and not _holds_fakes(args[0]):  # np.asarray(host, like=x)
            return to_fake(function(*args, **kwargs))
        if name.endswith("_like") and given.get("shape") in ((), 0):
            raise ValueError(f"CuPy ignores the shape () of np.{name}: use np.zeros((), like=x)")
        if name in ("take", "take_along_axis") and isinstance(args[1], (np.ndarray, list)):
            args = (args[0], _moved(args[1]), *args[2:])
        if name in rules.WAITING or (name == "where" and len(given) == 1):
            _count("waits")
        keywords = {key: _unwrap(value) for key, value in kwargs.items()}
        return _wrap(function(*_unwrap(args), **keywords), given.get("out"))

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use .get()")

    def __getitem__(self, key):
        _observe("ndarray.__getitem__", self, key)
        return _wrap(self._host[_index(key)[0]])

    def __setitem__(self, key, value):
        _observe("ndarray.__setitem__", self, key, value)
        key, fancy = _index(key)
        if fancy:
            self._host[key] = _moved(value)._host
        elif isinstance(value, FakeArray):
            target = self._host[key]
            if target.__array_interface__ == value._host.__array_interface__:
                return  # x[key] += y ends in x[key] = the same view: nothing is left to do
            target[...] = value._host
        elif np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        else:
            self._host[key] = _operand(np.asarray(value)[()])
        _count("kernels")

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    # To the host: each of these waits.

    def get(self):
        _count("waits", "to_host")
        return self._host.copy()

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def __float__(self):
        return float(self.get())

    def __int__(self):
        return int(self.get())

    def __bool__(self):
        return bool(self.get())

    def __complex__(self):
        return complex(self.get())

    def __format__(self, spec):
        return format(self.get()[()], spec)

    def __repr__(self):
        return repr(self.get())

    def __reduce__(self):
        return to_fake, (self.get(),)

    # On the device.

    def __getattr__(self, name):
        if name in rules.ATTRIBUTES:
            return getattr(self._host, name)
        if name in rules.METHODS:
            return functools.partial(getattr(np, name), self)
        raise AttributeError(f"the fake device array has no attribute {name!r}; has CuPy's?")

    @property
    def T(self):
        return np.transpose(self)

    def transpose(self, *axes):
        return np.transpose(self, (axes[0] if len(axes) == 1 else axes) or None)

    def reshape(self, *shape, order="C"):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def astype(self, dtype, order="K", *, copy=True):
        _observe("ndarray.astype", self, dtype, order=order, copy=copy)
        return _wrap(self._host.astype(dtype, order=order, copy=copy))

    def copy(self, order="C"):
        return np.copy(self, order=order)

    def __deepcopy__(self, memo):
        return self.copy()

    def fill(self, value):
        self[...] = value

    def set(self, array):
        """Copy a NumPy array of the same shape and dtype into this one."""
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise TypeError(f"{array.dtype}{array.shape} cannot be set to {self.dtype}{self.shape}")
        _count("to_device")
        self._host[...] = array


def _holds_fakes(value):
    """Whether `value` is a fake, or a list or tuple that holds one."""
    return isinstance(value, FakeArray) or (
        isinstance(value, (list, tuple)) and any(_holds_fakes(item) for item in value)
    )
