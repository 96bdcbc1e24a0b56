"""One workload on the store and on a Kafka topic with the same messages, in one Spark session, in turn.

Run as a program: `python -m benchmarks.kafka.compare WORKLOAD DIRECTORY [mib=1024] [body=896] [rounds=3]`. It makes
store and topic in DIRECTORY if they do not exist. Prints one JSON line: the result of `turns.in_turns`, and the log's
GiB.

The topic has four partitions and is filled from the store. A Kafka record has the message's body, its key, and its
other properties as headers, which are read as well. "full" and "catchup" read all columns of each side;
"catchup_same" reads those of our columns that a Kafka row also has. "parquet" is the archive job on our side, and
Spark's own writer on the other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.kafka.broker import JARS, broker, connector_jars, fetch
from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, store_in
from benchmarks.turns import in_turns, put_aside, settings_of

TOPIC = "messages"
BATCH_BYTES = 256 << 20
FILLING = {"kafka.enable.idempotence": "false", "kafka.linger.ms": "50", "kafka.batch.size": "262144"}
"""The broker creates the topic during the first write, and then rejects the sequence numbers of the first batches."""
RECORD = (
    "keys[0] as key",
    "body as value",
    """transform(filter(map_entries(properties), entry -> entry.key <> 'KEYS'),
        entry -> named_struct('key', entry.key, 'value', cast(entry.value as binary))) as headers""",
)
SAME_COLUMNS = "topic,queue_id,queue_offset,store_timestamp,keys,properties,body"
RUNS_PREPARED = "MQLAKE_BENCH_KAFKA"


def main(arguments: list[str]) -> None:
    """Restart under the PySpark that the connector needs, then measure."""
    if RUNS_PREPARED not in os.environ:
        fetch()
        environment = {**os.environ, RUNS_PREPARED: "1", "PYTHONPATH": f"{JARS / 'pyspark'}:{os.getcwd()}"}  # noqa: PTH109
        environment.pop("SPARK_HOME", None)
        command = [sys.executable, "-m", "benchmarks.kafka.compare", *arguments]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    workload, directory, *rest = arguments
    tell(measure(workload, Path(directory), settings_of(rest, body=896)))


def measure(workload: str, directory: Path, settings: dict[str, int]) -> dict[str, Any]:
    store = store_in(directory, settings)
    gib = gib_of(store)
    spark = local_session(spark_jars=connector_jars())
    data = directory / store.name.replace("spark", "kafka")
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
        sides = Sides(spark, store, address, directory / "out", max(1, int(count * BATCH_BYTES / 2**30 / gib)))
        took = sides.turns(workload, settings["rounds"])
    spark.stop()
    return {**took, "gib": gib}


class Sides:
    """Each workload as two functions that do the same work."""

    def __init__(self, spark: Any, store: Path, address: str, out: Path, batch_rows: int) -> None:
        self._spark, self._store, self._address, self._out, self._batch_rows = spark, store, address, out, batch_rows

    def turns(self, workload: str, rounds: int) -> dict[str, float]:
        sides = {side: getattr(self, f"{side}_{workload}") for side in ("ours", "theirs")}
        with put_aside(self._out) as before:
            return in_turns(sides, rounds, before)

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

    def ours_catchup(self, **columns: str) -> None:
        reader = self._spark.readStream.format("mqlake").option("maxBytesPerTrigger", BATCH_BYTES)
        self._stream(reader.options(startingOffsets="earliest", **columns).load(str(self._store)))

    def ours_catchup_same(self) -> None:
        self.ours_catchup(columns=SAME_COLUMNS)

    def theirs_catchup(self) -> None:
        reader = self._topic(self._spark.readStream).option("startingOffsets", "earliest")
        self._stream(reader.option("maxOffsetsPerTrigger", self._batch_rows).load())

    def theirs_catchup_same(self) -> None:
        self.theirs_catchup()

    def _stream(self, rows: Any) -> None:
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._out / "checkpoint")).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
