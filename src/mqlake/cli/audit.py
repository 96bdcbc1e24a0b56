"""`mqlake audit`: check one store or many on Spark; print the findings as tables, or write them to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqlake.cli import show
from mqlake.cli.check import EXIT_CODES, VerdictCommand, finding_json, verdict_json
from mqlake.cli.findings_view import print_report
from mqlake.cli.options import json_option, settings_of
from mqlake.cli.output_file import whole_file
from mqlake.cli.spark import master_option, spark_session
from mqlake.inspect.findings import Severity

if TYPE_CHECKING:
    import pyarrow as pa


def rows_file(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".parquet", ".json"):
        raise click.BadParameter(f"{path.name!r}; expected a name that ends in .parquet or .json")
    return path


@click.command(cls=VerdictCommand, epilog=EXIT_CODES)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file with RocketMQ's property names."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=rows_file,
    help="Also write the findings to this file, .parquet or .json.",
)
@master_option
@json_option
def audit(stores: tuple[str, ...], config: Path | None, out: Path | None, master: str, as_json: bool) -> None:
    """Check log, queues, index and small files of stores as `mqlake check` does, in parallel on Spark.

    Writes nothing to a store. STORE may be a pattern that matches several folders.
    """
    settings = settings_of(config)
    with show.progress("auditing", None), spark_session(master) as spark:
        from mqlake.spark.jobs.audit import findings_table, reports

        found = reports(spark, stores, config=settings)
    if out is not None:
        import pyarrow as pa

        write_rows(pa.concat_tables(map(findings_table, found)), out)
    for report in found:
        if as_json:
            for finding in report.findings:
                show.print_json({"store": str(report.path), **finding_json(finding)})
            show.print_json({"kind": "verdict", **verdict_json(report)})
        else:
            if len(found) > 1:
                click.echo(report.path)
            print_report(report)
    sys.exit(int(max((report.severity for report in found), default=Severity.NOTE)))


def write_rows(rows: pa.Table, out: Path) -> None:
    """Write the findings to a file, completely or not at all."""
    with whole_file(out) as place:
        if out.suffix == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(rows, place)
        else:
            import json

            place.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")
