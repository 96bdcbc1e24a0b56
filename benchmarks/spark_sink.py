"""Write rows into a store with `df.write.format("mqlake")`, compared with Spark writing them to Parquet, in turn.

Run as a program: `python -m benchmarks.spark_sink DIRECTORY [mib=1024] [body=180] [rounds=3]`. Both sides read the rows
from the same Parquet files, which are made in DIRECTORY if they do not exist. Prints one JSON line: the result of
`turns.in_turns`, the log's GiB, and the row count.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, parquet_of, store_in
from benchmarks.turns import in_turns, settings_of
from mqlake.spark.sink_options import COLUMNS


def main(arguments: list[str]) -> None:
    directory, *rest = arguments
    settings = settings_of(rest)
    spark = local_session()
    parquet = parquet_of(spark, store_in(Path(directory), settings))
    rows = spark.read.parquet(str(parquet)).select(*COLUMNS)
    target = Path(directory) / "sink"
    sizes: list[float] = []

    def ours() -> None:
        rows.write.format("mqlake").mode("append").save(str(target))

    def theirs() -> None:
        rows.write.parquet(str(target))

    def clear() -> None:
        if (target / "commitlog").exists():
            sizes.append(gib_of(target))
        shutil.rmtree(target, ignore_errors=True)

    figures = in_turns({"ours": ours, "theirs": theirs}, settings["rounds"], clear)
    tell({**figures, "gib": sizes[-1], "rows": rows.count()})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
