"""The data that ships in the package is what minigrad/data/SOURCES.md says, to the last bit."""

import json
import re
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import minigrad.data
from minigrad.data import digits, measured, sentences

HERE = Path(minigrad.data.__file__).parent
SENTENCES = "cf4cacba5c31ab21f577d92813ab826774f18a5dfb4732996821172fbb90fede"
DIGESTS = {
    "images": "c5c1ddf59b8fd2fbe327daa2074b93be2e495ca5bb5e6fc14180d917f0a96207",
    "labels": "55003f49d3f1009ce8263df3176015fee922369a07a12b4f459b4b83e7efb2af",
}


@pytest.fixture(scope="module")
def stored():
    """The arrays as they lie in the file, by name."""
    with np.load(HERE / "digits.npz") as file:
        return {name: file[name] for name in file}


def test_the_file_holds_the_arrays_that_sources_md_describes(stored):
    described = {name: (array.shape, array.dtype) for name, array in stored.items()}
    assert described == {"images": ((1797, 64), np.uint8), "labels": ((1797,), np.uint8)}
    assert {name: sha256(array.tobytes()).hexdigest() for name, array in stored.items()} == DIGESTS


def test_the_file_holds_the_digits_of_sklearn_in_the_documented_order(stored):
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    images, labels = datasets.load_digits(return_X_y=True)
    order = sorted(range(len(labels)), key=lambda i: sha256(str(i).encode()).digest())
    np.testing.assert_array_equal(stored["images"], images[order])
    np.testing.assert_array_equal(stored["labels"], labels[order])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_digits_gives_the_dtype_that_was_asked_for(dtype):
    (x_train, y_train), (x_test, y_test) = digits(dtype)
    assert (x_train.shape, x_test.shape) == ((1536, 64), (261, 64))
    assert (y_train.shape, y_test.shape) == ((1536,), (261,))
    assert x_train.dtype == x_test.dtype == dtype
    assert y_train.dtype == y_test.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_inputs_are_sixteenths_between_0_and_1_without_rounding(stored, dtype):
    (x_train, y_train), (x_test, y_test) = digits(dtype)
    np.testing.assert_array_equal(np.concatenate([x_train, x_test]) * 16, stored["images"])
    np.testing.assert_array_equal(np.concatenate([y_train, y_test]), stored["labels"])
    assert x_train.min() == x_test.min() == 0
    assert x_train.max() == x_test.max() == 1


def test_both_parts_hold_every_class_in_about_equal_shares():
    for _, y in digits():
        counts = np.bincount(y, minlength=10)
        assert len(counts) == 10
        # four standard deviations of a fair draw
        assert np.all(abs(counts - len(y) / 10) < 4 * np.sqrt(len(y) * 0.1 * 0.9))


def test_no_test_image_is_among_the_training_images():
    (x_train, _), (x_test, _) = digits()
    assert len(np.unique(np.concatenate([x_train, x_test]), axis=0)) == 1797


def test_every_call_gives_fresh_arrays():
    (x, y), _ = digits()
    x[:], y[:] = -1, -1
    (x, y), _ = digits()
    assert x.min() == 0
    assert y.min() == 0


@pytest.mark.parametrize("dtype", [int, np.uint8, bool, object, complex])
def test_a_dtype_that_is_not_a_floats_is_refused(dtype):
    with pytest.raises(TypeError, match="give a float dtype such as np.float32"):
        digits(dtype)


def test_the_sentences_are_what_sources_md_describes():
    lines = sentences()
    lengths = [len(line) for line in lines]
    assert (len(lines), min(lengths), max(lengths)) == (186, 20, 237)
    assert len(set(lines)) == len(lines)
    assert all(line.isascii() and line.isprintable() and line == line.strip() for line in lines)
    assert all(line[0].isupper() and line.endswith(".") for line in lines)
    said = f"{len(lines)} sentences of Python's language reference, of {min(lengths)} to"
    assert sentences.__doc__.startswith(said)
    assert "186 sentences about Python" in (HERE / "SOURCES.md").read_text(encoding="utf-8")


def test_the_file_of_sentences_is_the_same_to_the_last_bit():
    assert sha256((HERE / "language_reference.txt").read_bytes()).hexdigest() == SENTENCES


@pytest.mark.skipif(
    sys.version_info[:3] != (3, 11, 7), reason="needs Python 3.11.7, whose text it is"
)
def test_sources_md_makes_the_file_of_sentences_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (HERE / "SOURCES.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import re\n.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    again = (tmp_path / "language_reference.txt").read_bytes()
    assert again == (HERE / "language_reference.txt").read_bytes()


def test_every_call_gives_a_fresh_list():
    sentences().clear()
    assert len(sentences()) == 186


def test_what_was_measured_is_read_by_its_name_and_says_on_which_machine():
    folder = HERE.parents[1] / "figures/data"
    names = sorted(path.stem for path in folder.glob("*.json"))
    assert {"speed", "memory"} <= set(names)
    for name in names:
        recorded = measured(name)
        assert recorded == json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert {"machine", "versions"} <= recorded.keys()


@pytest.mark.parametrize("name", ["nothing", "", "speed.json", "../data"])
def test_what_was_not_measured_is_no_file(name):
    with pytest.raises(FileNotFoundError):
        measured(name)


def test_an_installed_package_reads_what_it_ships(tmp_path, monkeypatch):
    (tmp_path / "shipped/data").mkdir(parents=True)
    (tmp_path / "shipped/data/speed.json").write_text("[1]", encoding="utf-8")
    monkeypatch.setattr(minigrad.data, "__file__", str(tmp_path / "data/__init__.py"))
    assert measured("speed") == [1]
    with pytest.raises(FileNotFoundError):
        measured("memory")
