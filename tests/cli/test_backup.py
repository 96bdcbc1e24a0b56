"""`mqlake backup`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_a_backup_reports_its_offset_files_bytes_and_time_and_equals_the_store(orders: Cli, tmp_path: Path) -> None:
    (info,) = orders.json("info", orders.store)
    with orders.open():
        shown = orders.ok("backup", orders.store, tmp_path / "b")
    for told in (f"{info['endOffset']}: all before it", "reflinked", "copied", "on disk", "all promises hold", " s"):
        assert told in shown
    assert "while it was written" in shown
    assert orders.ok("dump", tmp_path / "b", "--walk") == orders.ok("dump", orders.store, "--walk")
    assert orders.run("check", tmp_path / "b").exit_code == 0


def test_a_backup_can_report_as_json_and_can_be_refused(orders: Cli, tmp_path: Path) -> None:
    (made,) = orders.json("backup", orders.store, tmp_path / "b", "--config", orders.config)
    assert made["path"] == str(tmp_path / "b") and made["check"]["holds"] and not made["live"]
    assert made.keys() >= {"endOffset", "reflinkedCount", "copiedCount", "sizeBytes", "tookMs"}
    result = orders.run("backup", orders.store, tmp_path / "b")
    assert result.exit_code == 3 and "name an empty or a new folder" in result.stderr
