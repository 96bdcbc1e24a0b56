"""Benchmarks. The programs that they start import compiled modules, as everyone does who has imported mqlake before."""

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
