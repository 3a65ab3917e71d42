"""Settings that all tests share."""

import os
import tempfile

from hypothesis import settings

# Importing CuPy makes a folder for its kernels: not in the home folder of whoever runs the tests.
os.environ.setdefault("CUPY_CACHE_DIR", tempfile.mkdtemp(prefix="cupy-cache-"))

# The same examples in every run, and no limit on the time of one: machines differ.
settings.register_profile("minigrad", deadline=None, derandomize=True, database=None)
settings.load_profile("minigrad")
