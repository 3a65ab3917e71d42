"""The only file that knows that CuPy exists. The rest is plain NumPy calls, which CuPy answers.

Move a model before its optimizer is made: `mg.to_gpu(model)`. Batches may stay on the host: each
micro-batch moves when its turn comes. Labels should stay there: on the GPU nobody checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def _cupy() -> Any:
    import cupy  # lazily: importing minigrad must not import CuPy

    return cupy


def available() -> bool:
    """Is there a GPU that CuPy can use?"""
    try:
        return _cupy().cuda.is_available()
    except ImportError:
        return False


def to_gpu(thing: Any) -> Any:
    """An array on the GPU, itself if it is there; or a Module, moved in place and returned.

    Raises RuntimeError where there is no GPU, or no CuPy.
    """
    if not available():
        raise RuntimeError(
            "to_gpu() found no GPU, expected CuPy and an NVIDIA GPU; install the extra cuda13 or "
            "cuda12, or stay on the CPU"
        )
    return move_to(thing, _cupy().asarray)


def to_cpu(thing: Any) -> Any:
    """An array as a NumPy array, itself if it is one; or a Module, moved in place and returned."""
    return move_to(thing, lambda data: data if isinstance(data, np.ndarray) else data.get())


def move_to(thing: Any, move: Any) -> Any:
    """An array, moved by `move`; or a Module all of whose arrays are, in place."""
    if not hasattr(thing, "named_parameters"):
        if not hasattr(thing, "dtype") or hasattr(thing, "requires_grad"):
            what = f"to_gpu() or to_cpu() got a {type(thing).__name__}"
            raise TypeError(f"{what}, expected an array or a Module; move the model, or t.data")
        return move(thing)
    for parameter in thing.parameters():
        parameter.data, parameter.grad, parameter.home = move(parameter.data), None, None
    for _, module, name in thing.named_buffers():
        setattr(module, name, move(getattr(module, name)))
    return thing


@contextmanager
def watch_gpu_memory() -> Iterator[Any]:
    """Yields an object whose `live` and `peak` are bytes of CuPy's memory pool in use.

    CuPy counts what is in use but not its peak: a hook looks after each allocation.
    """
    cupy = _cupy()
    pool = cupy.get_default_memory_pool()
    hook: Any = cupy.cuda.MemoryHook

    class Watch(hook):
        name = "minigrad"
        peak = pool.used_bytes()

        @property
        def live(self) -> int:
            return pool.used_bytes()

        def malloc_postprocess(self, **_: Any) -> None:
            self.peak = max(self.peak, pool.used_bytes())

    with Watch() as watch:
        yield watch
