"""Runs the code blocks of a page as a reader would: from top to bottom, in one folder.

    python             a program of its own; a `text` block right after it is what it prints
    python title="F"   saved as F; a later command runs it
    console            lines that begin with `$ ` are typed, the lines after each are what it prints; one that ends
                       with ` &` runs until the page ends, and the next waits for its first line of output
    other languages    shown only

In expected output `…` stands for any text. `<!-- run: long -->` before a block leaves it out of the default run. The
ports that pages name are replaced by free ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONG = "<!-- run: long -->"
PORTS = re.compile(r"127\.0\.0\.1:(\d{4,5})")


class Block(NamedTuple):
    """One block of code, and where it is."""

    line: int
    language: str
    title: str
    text: str
    long: bool
    printed: str | None
    """What the page says that a program prints."""


class Typed(NamedTuple):
    """One command of a console block, and its expected output."""

    command: str
    output: str


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that can be run."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(page):
        language, title, text = match[1], match[2] or "", match[3]
        between = page[end : match.start()].strip()
        if language == "text" and found and found[-1].language == "python" and not between:
            found[-1] = found[-1]._replace(printed=text)
        elif language in ("python", "console"):
            is_long = between.endswith(LONG)
            found.append(Block(page.count("\n", 0, match.start()) + 1, language, title, text, is_long, None))
        end = match.end()
    return found


def typed_in(text: str) -> list[Typed]:
    """Return the commands of a console block."""
    found: list[Typed] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            found.append(Typed(command, ""))
        else:
            found[-1] = found[-1]._replace(output=f"{found[-1].output}{line}\n")
    return found


def matches(expected: str, printed: str) -> bool:
    """Return whether output is as expected. Spaces at line ends do not count; `…` on its own line is any lines."""
    pattern = "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", _trimmed(expected)))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@dataclass
class Session:
    """One reader: a folder, commands, ports, and what runs in the background."""

    folder: Path
    timeout_s: float = 110
    """For one program or command."""
    ports: dict[str, int] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tools = self.folder / ".tools"
        tools.mkdir(parents=True)
        for name, module in (("mqlake", " -m mqlake"), ("python", "")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n', encoding="utf-8")
            tool.chmod(0o755)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.env = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": path,
            "COLUMNS": "160",
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, block: Block) -> None:
        text = PORTS.sub(lambda match: f"127.0.0.1:{self.port(match[1])}", block.text)
        if block.title:
            (self.folder / block.title).write_text(text, encoding="utf-8")
        elif block.language == "python":
            self._check(f"line {block.line}", [sys.executable, "-c", text], block.printed)
        else:
            for command, output in typed_in(text):
                self._type(f"line {block.line}: {command}", self._with_ports(command), output)

    def close(self) -> None:
        """End what runs in the background, as a service manager does."""
        for process in reversed(self.running):
            os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def port(self, wanted: str) -> int:
        """Return the free port that stands for the one a page names."""
        if wanted not in self.ports:
            self.ports[wanted] = free_port()
        return self.ports[wanted]

    def _with_ports(self, command: str) -> str:
        """Give `mqlake serve` without addresses free ports instead of its usual ones."""
        if not command.startswith("mqlake serve ") or "--listen" in command:
            return command
        options = f"--listen 127.0.0.1:{self.port('9876')} --broker-listen 127.0.0.1:{self.port('10911')}"
        if "-master" in command:
            options += f" --ha-listen 127.0.0.1:{self.port('10912')}"
        return command.replace("mqlake serve", f"mqlake serve {options}", 1)

    def _type(self, where: str, command: str, output: str) -> None:
        if not command.endswith(" &"):
            self._check(where, ["bash", "-c", f"set -o pipefail; {command}"], output or None)
            return
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.removesuffix(' &')}"],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), f"{where}: ended with {process.wait(20)}"

    def _check(self, where: str, command: list[str], expected: str | None) -> None:
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True,
            timeout=self.timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
        assert expected is None or matches(expected, done.stdout), f"{where}\nprinted:\n{done.stdout}\nnot:\n{expected}"
