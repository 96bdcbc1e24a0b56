"""No Java, or an old one: said with what was found, what is needed and how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake.errors import MissingJava
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


def test_a_new_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, 'openjdk version "21.0.4" 2024-07-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == 21
