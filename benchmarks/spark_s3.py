"""The archive into a bucket of an S3 server on this machine, compared with the archive into a folder, in turn.

Run as a program: `python -m benchmarks.spark_s3 archive DIRECTORY [mib=1024] [body=180] [rounds=3]`. The server is
versitygw (`scripts/bootstrap s3`), which shares the processors with the archive. It writes past the page cache, as the
folder's side does, and makes its ETags of CRCs instead of MD5. Prints one JSON line: the result of `turns.in_turns`,
in which `theirs` is the folder, and the log's GiB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, store_in
from benchmarks.turns import in_turns, put_aside, settings_of
from mqlake.spark import archive
from tests.lake.s3 import FAST, Server


def main(arguments: list[str]) -> None:
    _, directory, *rest = arguments
    settings = settings_of(rest)
    store = store_in(Path(directory), settings)
    target, served = store.with_suffix(".lakes"), store.with_suffix(".s3")
    served.mkdir(exist_ok=True)
    server = Server("versitygw", served, flags=FAST)
    os.environ.update(server.options)
    server.start()
    bucket = server.new_bucket()
    try:
        spark = local_session()

        def ours() -> None:
            archive(spark, str(store), f"s3://{bucket}/lake", index=False)

        def theirs() -> None:
            archive(spark, str(store), str(target), index=False)

        with put_aside(target) as local, put_aside(served / "s3" / bucket / "lake") as remote:
            figures = in_turns({"ours": ours, "theirs": theirs}, settings["rounds"], lambda: (local(), remote()))
        tell({**figures, "gib": gib_of(store)})
        spark.stop()
    finally:
        server.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
