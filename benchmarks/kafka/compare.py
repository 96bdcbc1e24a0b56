"""One workload on the store and on a Kafka topic with the same messages, in one Spark session, taking turns.

Run as a program: `python -m benchmarks.kafka.compare WORKLOAD DIRECTORY [mib=1024] [body=896] [rounds=3]`. Store and
topic are made in DIRECTORY when they are not there. Prints one JSON line: medians in seconds of both, GiB of the log.

The topic has four partitions and is filled from the store; a Kafka record has the message's body, its key, and its
other properties as headers, which are read on both sides.
Both sides run three times before they are timed. "parquet" is the archive job here, and Spark's own writer there.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kafka.broker import JARS, broker, connector_jars, fetch

TOPIC = "messages"
BATCH_BYTES = 256 << 20
FILLING = {"kafka.enable.idempotence": "false", "kafka.linger.ms": "50", "kafka.batch.size": "262144"}
"""The broker makes the topic while it is written to, and takes the sequence numbers of the first batches for wrong."""
RECORD = (
    "keys[0] as key",
    "body as value",
    """transform(filter(map_entries(properties), entry -> entry.key <> 'KEYS'),
        entry -> named_struct('key', entry.key, 'value', cast(entry.value as binary))) as headers""",
)
RUNS_PREPARED = "MQLAKE_BENCH_KAFKA"


def main(arguments: list[str]) -> None:
    """Run again under the PySpark that the connector belongs to, then measure."""
    if RUNS_PREPARED not in os.environ:
        fetch()
        environment = {**os.environ, RUNS_PREPARED: "1", "PYTHONPATH": f"{JARS / 'pyspark'}:{os.getcwd()}"}  # noqa: PTH109
        environment.pop("SPARK_HOME", None)
        command = [sys.executable, "-m", "benchmarks.kafka.compare", *arguments]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    workload, directory, *rest = arguments
    settings = {"mib": 1024, "body": 896, "rounds": 3, **{k: int(v) for k, v in (item.split("=") for item in rest)}}
    print(json.dumps(measure(workload, Path(directory), **settings)))


def measure(workload: str, directory: Path, mib: int, body: int, rounds: int) -> dict[str, Any]:
    from benchmarks.spark import write
    from mqlake import MessageStore
    from mqlake.spark import session

    store = directory / f"spark-{mib}-{body}"
    if not store.exists():
        write(store, mib, body)
    with MessageStore.open(store, read_only=True) as opened:
        size = opened.end_offset - opened.first_offset
    spark = session(
        "local[2]",
        spark_ui_enabled="false",
        spark_driver_memory="2g",
        spark_sql_shuffle_partitions=2,
        spark_jars=connector_jars(),
    )
    spark.sparkContext.setLogLevel("ERROR")
    data = directory / f"kafka-{mib}-{body}"
    is_filled = data / "filled"
    if not is_filled.exists():
        shutil.rmtree(data, ignore_errors=True)
    with broker(data) as address:
        if not is_filled.exists():
            rows = spark.read.format("mqlake").option("columns", "keys,properties,body").load(str(store))
            filling = rows.selectExpr(*RECORD).write.format("kafka").options(**FILLING)
            filling.option("kafka.bootstrap.servers", address).option("topic", TOPIC).save()
            is_filled.touch()
        count = spark.read.format("mqlake").option("columns", "size").load(str(store)).count()
        sides = Sides(spark, store, address, directory / "out", max(1, count * BATCH_BYTES // size))
        took = sides.turns(workload, rounds)
    spark.stop()
    return {**took, "gib": size / 2**30}


class Sides:
    """Each workload as two functions that do the same work."""

    def __init__(self, spark: Any, store: Path, address: str, out: Path, batch_rows: int) -> None:
        self._spark, self._store, self._address, self._out, self._batch_rows = spark, store, address, out, batch_rows

    def turns(self, workload: str, rounds: int) -> dict[str, float]:
        from benchmarks.spark import WARM_UPS

        took: dict[str, list[float]] = {"ours": [], "theirs": []}
        for number in range(WARM_UPS + rounds):
            for side, times in took.items():
                run: Callable[[], None] = getattr(self, f"{side}_{workload}")
                shutil.rmtree(self._out, ignore_errors=True)
                began = time.perf_counter()
                run()
                if number >= WARM_UPS:
                    times.append(time.perf_counter() - began)
        shutil.rmtree(self._out, ignore_errors=True)
        return {side: statistics.median(times) for side, times in took.items()}

    def _messages(self, columns: str = "") -> Any:
        reader = self._spark.read.format("mqlake")
        return (reader.option("columns", columns) if columns else reader).load(str(self._store))

    def _topic(self, reader: Any) -> Any:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self._address)
        return reader.option("subscribe", TOPIC).option("includeHeaders", "true")

    def ours_full(self) -> None:
        self._messages().write.format("noop").mode("overwrite").save()

    def theirs_full(self) -> None:
        self._topic(self._spark.read).load().write.format("noop").mode("overwrite").save()

    def ours_count(self) -> None:
        self._messages("size").count()

    def theirs_count(self) -> None:
        self._topic(self._spark.read).load().count()

    def ours_group(self) -> None:
        self._messages("topic").groupBy("topic").count().collect()

    def theirs_group(self) -> None:
        self._topic(self._spark.read).load().groupBy("topic").count().collect()

    def ours_parquet(self) -> None:
        from mqlake.spark import archive

        archive(self._spark, str(self._store), str(self._out), index=False)

    def theirs_parquet(self) -> None:
        self._topic(self._spark.read).load().write.option("compression", "zstd").parquet(str(self._out / "files"))

    def ours_catchup(self) -> None:
        reader = self._spark.readStream.format("mqlake").option("maxBytesPerTrigger", BATCH_BYTES)
        self._stream(reader.option("startingOffsets", "earliest").load(str(self._store)))

    def theirs_catchup(self) -> None:
        reader = self._topic(self._spark.readStream).option("startingOffsets", "earliest")
        self._stream(reader.option("maxOffsetsPerTrigger", self._batch_rows).load())

    def _stream(self, rows: Any) -> None:
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._out / "checkpoint")).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
