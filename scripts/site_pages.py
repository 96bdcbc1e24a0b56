"""A hook of mkdocs: pages of the site that are made from other files, so that nothing is written twice.

README, changelog, contributing and the example's README are files of the repository: here they are pages too, with
links that fit. The page of commands is what `mqlake … --help` prints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/jobs/README.md": "examples/jobs.md",
}
COMMANDS = "reference/commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links to pages."""
    up = "../" * page.file.src_uri.count("/")
    text = re.sub(r"\]\((?:\.\./)*examples/jobs/?\)", f"]({up}examples/jobs.md)", markdown)
    if page.file.src_uri in PAGES.values():
        text = re.sub(r"\]\(docs/", f"]({up}", text)
    for source, target in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(source)}(#[^)]*)?\)", rf"]({up}{target}\1)", text)
    return text


def commands_page() -> str:
    from mqlake.cli.main import COMMANDS as GROUPS
    from mqlake.cli.main import mqlake

    lines = ["# Commands", "", "Made from `mqlake COMMAND --help`. `mqlake --help` ends with the exit codes.", ""]
    with click.Context(mqlake, info_name="mqlake") as root:
        for group, entries in GROUPS.items():
            lines += [f"## {group}", ""]
            for name in entries:
                command = mqlake.get_command(root, name)
                assert command is not None
                lines += _command(command, root, f"mqlake {name}", 3)
    return "\n".join(lines)


def _command(command: click.Command, parent: click.Context, title: str, level: int) -> list[str]:
    with click.Context(command, info_name=title.split()[-1], parent=parent, terminal_width=96) as context:
        lines = ["#" * level + f" {title}", "", "```text", command.get_help(context), "```", ""]
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                lines += _command(inner, context, f"{title} {name}", level + 1)
    return lines
