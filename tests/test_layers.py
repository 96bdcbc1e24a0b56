"""The direction of imports: a folder knows only the folders below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mqlake

PACKAGE = Path(mqlake.__file__).parent
ANYWHERE = {"errors", "config", "message", "version", "runtime"}
LAYERS = {
    "kernel": {"kernel"},
    "codec": {"kernel", "codec"},
    "files": {"kernel", "files"},
    "logs": {"kernel", "codec", "files", "logs"},
    "store": {"kernel", "codec", "files", "logs", "store"},
    "ingest": {"kernel", "codec", "files", "logs", "store", "ingest"},
    "inspect": {"kernel", "codec", "files", "logs", "store", "inspect"},
    "delivery": {"kernel", "codec", "files", "logs", "store", "delivery"},
    "handling": {"delivery", "handling"},
    "remoting": {"kernel", "codec", "remoting"},
    "replication": {
        *(
            "kernel",
            "codec",
            "files",
            "logs",
            "store",
            "delivery",
            "remoting",
            "client",
            "inspect",
            "message_store",
            "replication",
        ),
    },
    "broker": {
        *(
            "kernel",
            "codec",
            "files",
            "logs",
            "store",
            "delivery",
            "remoting",
            "message_store",
            "replication",
            "broker",
        ),
    },
    "client": {"kernel", "codec", "store", "delivery", "remoting", "client"},  # of store and delivery: values only
    "embedded": {"store", "message_store", "embedded", "spark"},  # of spark: what counts a split, in this process
    "report": {"report"},
    "lake": {"kernel", "codec", "files", "logs", "store", "lake"},
    "spark": {
        *("kernel", "codec", "files", "logs", "store", "ingest", "inspect"),
        *("remoting", "client", "lake", "report", "spark"),
    },
    "torture": {
        "torture",
        "spark",
        "lake",
        "check",
        *("client", "remoting"),  # a client that sends each message once
    },  # beside the command line: it uses the public names, as any program would
    "cli": {
        *("kernel", "codec", "files", "logs", "store", "ingest", "inspect"),
        *("delivery", "remoting", "broker", "client", "replication", "lake", "report", "spark", "torture", "embedded"),
        "cli",
    },
}
OUTSIDE = {
    "broker": {"uvloop", "prometheus_client"},
    "cli": {"click", "rich", "uvloop", "pyarrow", "pyspark", "py4j", "matplotlib"},
    "embedded": {"duckdb", "pyarrow", "numpy"},
    "store": {"pyarrow", "numpy"},
    "ingest": {"pyarrow", "numpy"},
    "inspect": {"pyarrow", "numpy"},
    "codec": {"lz4", "zstandard"},
    "lake": {"pyarrow", "numpy", "obstore"},
    "spark": {"pyspark", "pyarrow", "numpy"},
    "torture": {"pyarrow", "deltalake"},
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_what_is_below_it(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("mqlake.") and name.split(".")[1][0].islower():  # names of classes are the root's own
                assert name.split(".")[1] in LAYERS[layer] | ANYWHERE | {"__version__"}, f"{path.name} imports {name}"


@pytest.mark.parametrize("layer", LAYERS)
def test_only_named_places_use_what_is_not_in_the_standard_library(layer: str) -> None:
    import sys

    for path in (PACKAGE / layer).rglob("*.py"):
        for name in imports_of(path):
            root = name.split(".")[0]
            allowed = sys.stdlib_module_names | {"mqlake", "_thread"} | OUTSIDE.get(layer, set())
            assert root in allowed, f"{path.name} imports {name}"


def test_spark_needs_the_reading_side_of_the_store() -> None:
    reading = {f"mqlake.store.{part}" for part in ("follower", "opening", "scan", "gates")}
    for path in (PACKAGE / "spark").rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("mqlake.store."):
                assert any(name.startswith(part) for part in reading), f"{path.name} imports {name}"


def test_importing_the_package_imports_nothing_outside_the_standard_library() -> None:
    import subprocess
    import sys

    program = f"import mqlake, sys; print([m for m in {sorted(set().union(*OUTSIDE.values()))} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_in_the_architecture_page_has_each_folder_after_those_it_imports() -> None:
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.split("```\nsrc/mqlake/\n")[1].split("```")[0]
    listed = [line.split()[0].removesuffix("/").removesuffix(".py") for line in tree.splitlines() if line[4:5] != " "]
    assert set(LAYERS) <= set(listed)
    for folder, known in LAYERS.items():
        for other in known - {"check"}:
            assert listed.index(other) <= listed.index(folder), f"{folder} imports {other}"
