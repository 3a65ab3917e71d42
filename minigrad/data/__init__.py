"""The data that ships with minigrad: handwritten digits, English sentences, recorded measurements.

SOURCES.md beside this file says where they come from, under which licence, and how to make the
files again. Nothing is downloaded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

TRAIN_SAMPLES = 1536  # 6 batches of 256; the other 261 samples are for testing


def digits(dtype: DTypeLike = np.float32) -> tuple[tuple[NDArray, NDArray], ...]:
    """Handwritten digits as `(x_train, y_train), (x_test, y_test)`.

    x: (1536, 64) and (261, 64) of the given float dtype, the pixels of 8 x 8 images. They are
    multiples of 1/16 from 0 to 1, so that every float dtype holds them without rounding.
    y: (1536,) and (261,) int64 labels, 0 to 9. The order is shuffled once and always the same.
    Raises TypeError for a dtype that is not a float's. Source: Alpaydin and Kaynak (1998).
    """
    if np.dtype(dtype).kind != "f":
        raise TypeError(f"digits() got dtype {dtype!r}; give a float dtype such as np.float32")
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        x, y = file["images"].astype(dtype) / 16, file["labels"].astype(np.int64)
    return (x[:TRAIN_SAMPLES], y[:TRAIN_SAMPLES]), (x[TRAIN_SAMPLES:], y[TRAIN_SAMPLES:])


def sentences() -> list[str]:
    """186 sentences of Python's language reference, of 20 to 237 ASCII characters each.

    They stand in the order of the text, and each once. Source: the Python documentation, 3.11.
    """
    file = Path(__file__).with_name("language_reference.txt")
    return file.read_text(encoding="ascii").splitlines()


def measured(name: str) -> Any:
    """What was measured once and is drawn again: figures/data/NAME.json, with machine and date.

    Raises FileNotFoundError for a name that was not recorded.
    """
    here = Path(__file__).parent
    shipped = here.parent / "shipped/data"  # in an installed package
    folder = shipped if shipped.exists() else here.parents[1] / "figures/data"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
