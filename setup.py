"""Builds the compiled kernel and the preload shims of `mqlake torture`.

A failed compilation stops the build; MQLAKE_PURE=1 asks for a pure build by name.
"""

import os
import sys

from setuptools import Extension, setup

PURE = os.environ.get("MQLAKE_PURE") == "1"


def extensions() -> list[Extension]:
    if PURE:
        print("mqlake: pure build requested (MQLAKE_PURE=1): the kernel will be slow", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    kernel = Extension(
        "mqlake.kernel._compiled",
        sources=["src/mqlake/kernel/_compiled.pyx"],
        depends=[
            f"src/mqlake/kernel/{name}"
            for name in sorted(os.listdir("src/mqlake/kernel"))
            if name.endswith((".pxi", ".h"))
        ],
        extra_compile_args=["-O3", "-fno-strict-aliasing"],
    )
    built: list[Extension] = cythonize([kernel], language_level=3)
    return built + [shim(name) for name in ("failsync", "powercut", "wrongclock")]


def shim(name: str) -> Extension:
    """No module to import: a shared object to preload."""
    source = f"src/mqlake/torture/faults/{name}.c"
    return Extension(f"mqlake.torture.faults._{name}", sources=[source], libraries=["dl", "pthread"])


setup(ext_modules=extensions())
