"""The memory meter: how many bytes a block of code held at most, and how many it left behind.

Taught in lesson 00.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minigrad.device import watch_gpu_memory


@dataclass(slots=True)
class Memory:
    """Bytes above what was allocated when the block began. Set when it ends.

    peak: the most at any moment. live: what is still there.
    """

    peak: int = 0
    live: int = 0


@contextmanager
def measure_memory(gpu: bool = False) -> Iterator[Memory]:
    """`with measure_memory() as memory:` counts what NumPy (and Python) allocates inside.

    The CPU is measured by tracemalloc, which NumPy reports to and which makes small operations
    several times slower: measure time apart. One block must not stand inside another.
    gpu: count CuPy's memory pool instead, in blocks of 512 bytes.
    """
    memory = Memory()
    if gpu:
        with watch_gpu_memory() as watch:
            before = watch.live
            try:
                yield memory
            finally:
                memory.peak, memory.live = watch.peak - before, watch.live - before
        return
    if tracemalloc.is_tracing():
        raise RuntimeError(
            "measure_memory() found tracemalloc running, expected it free: a measurement inside "
            "another would reset its peak; measure one block after the other"
        )
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        try:
            yield memory
        finally:
            now, peak = tracemalloc.get_traced_memory()
            memory.peak, memory.live = peak - before, now - before
    finally:
        tracemalloc.stop()
