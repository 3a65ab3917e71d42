"""Does CuPy take the NumPy calls of the engine? Record them on the fake, replay them on CuPy.

A real `cupy.ndarray` can be made over host memory, without a GPU. On it CuPy checks names, keywords
and dispatch as always, and stops where it would launch a kernel, with an error that tells of the
missing driver or library. That error is the answer wanted; any other is a call that CuPy rejects.

    with record() as calls:
        step_on_fake_arrays()
    assert replay(calls) == {}

What it cannot prove: the types of operands, which CuPy looks at only after it has found a GPU (the
fake's part), and the results.
"""

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from tests import fake_device
from tests.cupy_rules import cupy

# The functions that dispatch by like=, not by an operand.
CREATE = {"array", "asarray", "arange", "zeros", "ones", "empty", "full", "eye", "identity", "tri"}


class Device(NamedTuple):
    """Stands for an array on the device."""

    shape: tuple
    dtype: np.dtype


class Host(NamedTuple):
    """Stands for a NumPy array."""

    shape: tuple
    dtype: np.dtype


class Call(NamedTuple):
    """One call: "np.add", "np.add.at", "ndarray.astype", ...; arrays by their shape and dtype."""

    name: str
    args: tuple
    kwargs: dict


def _map(value, change):
    """`value` with `change` applied to all that is not a tuple, list or dict."""
    if type(value) in (tuple, list):
        return type(value)([_map(item, change) for item in value])
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return change(value)


# --------------------------------------------------------------------------------------- Record


def _describe(value):
    if isinstance(value, fake_device.FakeArray):
        return Device(value.shape, value.dtype)
    if isinstance(value, np.ndarray):
        return Host(value.shape, value.dtype)
    return value


@contextlib.contextmanager
def record():
    """The calls made on fake arrays inside the block, each different one once, as a list."""
    seen, calls = set(), []

    def observer(name, args, kwargs):
        call = Call(name, _map(args, _describe), _map(kwargs, _describe))
        if repr(call) not in seen:
            seen.add(repr(call))
            calls.append(call)

    fake_device.observers.append(observer)
    try:
        yield calls
    finally:
        fake_device.observers.remove(observer)


# --------------------------------------------------------------------------------------- Replay


@functools.cache
def _paper():
    """cupy.ndarray, but printable without a GPU.

    NumPy and CuPy print the operands in some of their errors, and would meet the missing driver
    there: a ufunc or a keyword that CuPy lacks would look like one that it has.
    """

    class Paper(cupy.ndarray):
        def __repr__(self):
            return f"{self.dtype}{self.shape}"

        __str__ = __repr__

    return Paper


def real_array(shape, dtype):
    """A `cupy.ndarray` of zeros: on the GPU if there is one, else over host memory."""
    host = np.zeros(shape, dtype)
    if cupy.cuda.is_available():
        return cupy.asarray(host)
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, max(host.nbytes, 1), host, 0)
    return _paper()(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def _real(value):
    if isinstance(value, Device):
        return real_array(value.shape, value.dtype)
    if isinstance(value, Host):
        return np.zeros(value.shape, value.dtype)
    return value


def run_on_cupy(call):
    """Make one recorded call on `cupy.ndarray` objects, and let its error through."""
    args, kwargs = _map(call.args, _real), _map(call.kwargs, _real)
    module, *path = call.name.split(".")
    if module == "ndarray":
        return getattr(args[0], path[0])(*args[1:], **kwargs)
    if path[0] in CREATE:
        kwargs["like"] = real_array((1,), np.float32)
    return functools.reduce(getattr, path, np)(*args, **kwargs)


def _no_gpu_here(error):
    """Whether `error` is the one that CuPy ends in, on a machine without a GPU, if all is well."""
    if cupy.cuda.is_available():
        return False
    driver = isinstance(error, cupy.cuda.runtime.CUDARuntimeError)
    library = isinstance(error, ImportError) and "libcu" in str(error)  # cuBLAS, at a product
    return driver or library


def replay(calls):
    """The calls that CuPy rejects, as a dictionary of call -> error, both as text."""
    rejected = {}
    for call in calls:
        try:
            run_on_cupy(call)
        except Exception as error:
            if not _no_gpu_here(error):
                rejected[repr(call)] = f"{type(error).__name__}: {error}"
    return rejected
