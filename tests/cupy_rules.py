"""What CuPy 14.2 has of NumPy, as tables: the rules by which fake_device.py refuses a call.

test_fake_device.py holds each table against CuPy itself, where it is installed (no GPU is needed).
"""

import functools
import inspect

import numpy as np

try:
    import cupy
except ImportError:
    cupy = None

# CuPy's functions and their parameters. One that is not here is looked up in CuPy, if installed.
FUNCTIONS = {
    "sum prod mean argmax argmin": "a axis dtype out keepdims",
    "var std": "a axis dtype out ddof keepdims",
    "max min amax amin any all": "a axis out keepdims",
    "clip": "a a_min a_max out",
    "cumsum": "a axis dtype out",
    "where": "condition x y",
    "take": "a indices axis out",
    "take_along_axis": "a indices axis",
    "concatenate stack": "tup axis out dtype casting",
    "reshape": "a newshape order copy",
    "transpose": "a axes",
    "swapaxes": "a axis1 axis2",
    "moveaxis": "a source destination",
    "broadcast_to": "array shape",
    "expand_dims squeeze count_nonzero flip": "a axis",
    "ravel copy": "a order",
    "copyto": "dst src casting where",
    "zeros_like ones_like": "a dtype order subok shape",
    "empty_like": "prototype dtype order subok shape",
    "full_like": "a fill_value dtype order subok shape",
    "zeros ones empty": "shape dtype order",  # NumPy hands device=None to ones, full and eye,
    "full": "shape fill_value dtype order",  # so that these three fail with like=: use full_like
    "eye": "N M k dtype order",
    "arange": "start stop step dtype",
    "asarray": "a dtype order copy blocking",
    "array": "obj dtype copy order subok ndmin blocking",
    "dot outer": "a b out",
    "vdot inner": "a b",
    "tensordot": "a b axes",
    "einsum": "*operands dtype optimize",
    "linalg.norm": "x ord axis keepdims",
    "isclose allclose": "a b rtol atol equal_nan",
    "array_equal": "a1 a2 equal_nan",
    "nonzero": "a",
    "bincount": "x weights minlength",
    "split array_split": "ary indices_or_sections axis",
    "repeat": "a repeats axis",
    "round": "a decimals out",
}
# Functions whose result has a size that depends on the values: CuPy waits to read it.
WAITING = {"nonzero", "flatnonzero", "argwhere", "unique", "bincount"}
# Functions that ask about an array, not about its values: NumPy answers, on the host.
ON_HOST = {"shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "shares_memory"}

MISSING_UFUNCS = {"isnat", "matvec", "spacing", "vecdot", "vecmat"}
CALL = {"out", "dtype", "casting"}  # no where=
MATMUL = CALL | {"axes", "axis", "keepdims", "signature", "order"}
REDUCE = {"axis", "dtype", "out", "keepdims"}  # no where=, no initial=
SCATTER = {"add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
UFUNC_METHODS = {  # the ufuncs that have the method (None: all of them), and its keywords
    "__call__": (None, CALL),
    "outer": (None, CALL),
    "reduce": ({"add", "multiply"}, REDUCE),
    "accumulate": ({"add", "multiply"}, REDUCE - {"keepdims"}),
    "reduceat": ({"add"}, REDUCE - {"keepdims"}),
    "at": (SCATTER, set()),
}

DTYPES = {np.dtype(char) for char in "?bhilqBHILQefdFD"}
ATTRIBUTES = {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"}
METHODS = {  # of an array, that are functions of NumPy by the same name
    *("sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "argmax", "argmin"),
    *("clip", "cumsum", "dot", "take", "repeat", "squeeze", "swapaxes", "round", "ravel"),
    "nonzero",
}


@functools.cache
def signature(name):
    """The `inspect.Signature` of CuPy's `name`. Raises TypeError where CuPy has no such function.

    A ufunc of CuPy that is a plain function in NumPy has none: its keywords are not checked.
    """
    for names, parameters in FUNCTIONS.items():
        if name in names.split():
            kind, found = inspect.Parameter.POSITIONAL_OR_KEYWORD, []
            for parameter in parameters.split():
                if parameter.startswith("*"):
                    found.append(inspect.Parameter(parameter[1:], inspect.Parameter.VAR_POSITIONAL))
                    kind = inspect.Parameter.KEYWORD_ONLY
                else:
                    found.append(inspect.Parameter(parameter, kind, default=None))
            return inspect.Signature(found)
    if cupy is None:
        raise TypeError(f"np.{name} is not in FUNCTIONS of {__name__}.py: add it if CuPy has it")
    try:
        function = functools.reduce(getattr, name.split("."), cupy)
    except AttributeError:
        raise TypeError(f"no implementation found for np.{name}: CuPy lacks it") from None
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)


def check_ufunc(name, method, keywords):
    """Raises TypeError or NotImplementedError, as CuPy does, for what its ufunc `name` lacks."""
    if name in MISSING_UFUNCS or (cupy is not None and not hasattr(cupy, name)):
        raise TypeError(f"CuPy has no ufunc {name}")
    names, allowed = UFUNC_METHODS[method]
    if names is not None and name not in names:
        raise NotImplementedError(f"`cupy_{name}.{method}` is not supported yet")
    wrong = set(keywords) - (MATMUL if name == "matmul" else allowed)
    if wrong:
        raise TypeError(f"CuPy's {name}, {method}: no keyword {', '.join(sorted(wrong))}")
