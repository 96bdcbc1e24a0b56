"""No Java, or an old one: said with what was found, what is needed and how to get it."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkRuntimeError

from mqlake.cli.spark import failure, start
from mqlake.errors import MissingJava, SparkNotStarted
from mqlake.spark.session import JAVA_NEEDED, require_java, session


def java_that_says(home: Path, text: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    (home / "bin" / "java").chmod(0o755)


@pytest.mark.parametrize(
    "text", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_372"', "Unable to locate a Java Runtime."]
)
def test_an_old_java_is_refused_with_what_it_says(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingJava) as caught:
        session("local[1]")
    assert text in str(caught.value)
    assert f"Java {JAVA_NEEDED} or newer" in str(caught.value)
    assert f"apt-get install openjdk-{JAVA_NEEDED}-jre-headless" in str(caught.value)


def test_no_java_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingJava, match="no java on PATH, and JAVA_HOME is not set"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(MissingJava, match="none that runs"):
        require_java()


def test_a_java_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: list[str], **how: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    java_that_says(tmp_path, "nothing")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(MissingJava, match="no answer within a minute"):
        require_java()


def test_a_master_that_is_none_is_told_in_a_sentence_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(master: str, **settings: object) -> None:
        os.write(2, b"26/01/01 WARN it tries\njava.io.IOException: Failed to connect\n\tat a.B\n")
        os.write(2, b"Caused by: java.net.ConnectException: Connection refused\n\tat c.D\n")
        raise PySparkRuntimeError("Java gateway process exited")

    monkeypatch.setattr(importlib.import_module("mqlake.spark.session"), "session", fails)
    with pytest.raises(SparkNotStarted) as caught:
        start("spark://nowhere:7077")
    assert str(caught.value).startswith(
        "Spark did not start with the master 'spark://nowhere:7077': Connection refused; name one that runs"
    )
    assert capfd.readouterr().err == "", "and none of Java's lines"


def test_what_a_worker_raised_is_told_in_its_own_words() -> None:
    said = "An exception was thrown:\nTraceback (most recent call last):\n  File x\n{}: it is gone\n"
    for name in ("mqlake.errors.ChangedUnderRead", "mqlake.spark.read_split.FileVanished"):
        assert str(failure(said.format(name))) == f"{name.rpartition('.')[2]}: it is gone"


def test_a_new_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, 'openjdk version "21.0.4" 2024-07-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == 21
