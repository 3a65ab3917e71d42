"""Small engines that others learn from, each used as its own examples use it.

`python -m pip install --group peers` installs them (pip 25.1 or newer). Each file names the example
it follows, and what the engine lacks.
"""
