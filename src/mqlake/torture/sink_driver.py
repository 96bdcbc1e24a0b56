"""The program that the row `sink` kills: a Spark driver that streams JSON lines into a store, and resumes after a kill.

    python -m mqlake.torture.sink_driver INPUT CHECKPOINT STORE

It ends once all lines are in. A killed commit fails the stream, which is then started again.
"""

from __future__ import annotations

import sys

import mqlake.spark

LOG_BYTES = 1 << 20
TRIES = 50


def run(lines: str, checkpoint: str, store: str) -> None:
    spark = mqlake.spark.session("local[2]", spark_ui_enabled="false", spark_driver_memory="512m")
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.schema("n INT").option("maxFilesPerTrigger", 1).json(lines)
    rows = rows.selectExpr(
        "concat('topic-', n % 3) topic",
        "rpad(string(n), 300, '.') body",
        "array(concat('key-', n)) keys",
        "n flag",
        "timestamp_millis(1700000000000 + n) born_timestamp",
    )
    for _ in range(TRIES):
        stream = rows.repartition(2).writeStream.format("mqlake").trigger(availableNow=True)
        stream = stream.option("checkpointLocation", checkpoint).option("mappedFileSizeCommitLog", LOG_BYTES)
        query = stream.start(store)
        try:
            query.awaitTermination()
            return
        except Exception as error:
            print(error, file=sys.stderr)
    sys.exit(f"the stream failed {TRIES} times")


if __name__ == "__main__":
    run(*sys.argv[1:])
