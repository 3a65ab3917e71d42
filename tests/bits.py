"""Bit for bit."""


def bits(thing):
    """All arrays in lists and dicts as bytes, so that == compares bit for bit."""
    if isinstance(thing, dict):
        return {key: bits(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [bits(value) for value in thing]
    return (thing.dtype.str, thing.shape, thing.tobytes()) if hasattr(thing, "dtype") else thing
