"""The entry point: which commands there are, and what becomes of errors.

Every command lives in a module of its own that is imported when it is called, so that `mqlake --help` and the shell's
completion are quick. Errors end here, in one place: one line on standard error and an exit code that scripts can use.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any, NamedTuple

import click

from mqlake.errors import InvalidFilter, StoreError

EXIT_NOTHING_FOUND = 1
EXIT_STORE_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXIT_CODES = """\b
Exit codes:
    0  done
    1  nothing was found (get, find), or a promise was broken (torture)
    2  the command line is wrong
    3  the store, or a file, gave an error: one line on standard error says which
       (check and repair have their own meanings of 1, 2 and 4: see their --help)
  130  interrupted with Ctrl-C
  141  the program that read the output went away
"""


class Entry(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    module: str
    summary: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Try": {
        "demo": Entry("demo", "Write, read and find messages in a store of its own, and show how fast it went."),
    },
    "Write": {
        "put": Entry("put", "Append messages to a topic."),
        "load": Entry("load", "Append the messages of JSON lines, a dump's for instance."),
        "replay": Entry("replay", "Make a store of what a lake has archived, on Spark."),
    },
    "Read": {
        "read": Entry("read", "Read one queue of a topic from an offset or a time on."),
        "tail": Entry("tail", "Show a topic's newest messages, and follow it."),
        "get": Entry("get", "Show the message at a physical offset or with a message id."),
        "find": Entry("find", "Find messages by key or by tag."),
        "scan": Entry("scan", "Go through the log: a table, JSON lines, Parquet or Arrow."),
        "dump": Entry("dump", "Write everything in a store as JSON lines."),
    },
    "Look": {
        "topics": Entry("topics", "List the topics and their queues."),
        "top": Entry("top", "Watch topics, rates, groups and lag as they change."),
        "info": Entry("info", "Show files, sizes, positions, and who writes the store."),
    },
    "Deliver": {
        "consume": Entry("consume", "Read a topic as a member of a group, and remember how far."),
        "groups": Entry("groups", "List the consumer groups, what they read and their lag."),
        "lag": Entry("lag", "Show how far a group is in each queue."),
        "reset": Entry("reset", "Set a group's progress to the first or last message, a time or an offset."),
        "delay": Entry("delay", "List messages that wait for their time, or take one back."),
        "dlq": Entry("dlq", "List, show or resend dead letters."),
        "topic": Entry("topic", "Create, change, delete or list topics."),
        "group": Entry("group", "Create, change, delete or list groups."),
    },
    "Ask, on Spark": {
        "sql": Entry("sql", "Ask stores with SQL: one query, or a small shell."),
        "stats": Entry("stats", "Count traffic by topic, tag, queue and minute."),
        "report": Entry("report", "Draw a page: traffic, topics, sizes, latency, keys, lag, damage."),
    },
    "Keep": {
        "pipeline": Entry("pipeline", "Check, archive, index and count logs into a lake, as they grow; on Spark."),
        "retain": Entry("retain", "Delete the oldest files of the log, by age, size or offset."),
        "check": Entry("check", "Show every broken promise of a store; nothing is written."),
        "audit": Entry("audit", "Show every broken promise of one store or a fleet, on Spark."),
        "rebuild": Entry("rebuild", "Build queues and index anew from the log, on Spark."),
        "repair": Entry("repair", "Make a broken store whole again, in place or as a copy."),
    },
    "Lake": {
        "archive": Entry("archive", "Write what stores hold to a lake of Parquet files, from where it ends on."),
        "compact": Entry("compact", "Merge the small files of a lake."),
        "lake": Entry("lake", "Look at a lake, check it, find a message in it."),
    },
    "Measure": {
        "bench": Entry("bench", "Measure this store, or mmap against write, on your disk."),
        "torture": Entry("torture", "Kill, cut off, damage and starve stores on your disk; count what was lost."),
    },
    "Shell": {
        "completion": Entry("completion", "Print the completion script of bash, zsh or fish."),
    },
}


class Commands(click.Group):
    """A group whose commands are imported when they are needed, and whose errors have exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if name in section:
                module = importlib.import_module(f"mqlake.cli.{section[name].module}")
                command: click.Command = getattr(module, name)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:10}", entry.summary) for name, entry in section.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; every error that is not about the command line itself is turned into its exit code."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
            return answer
        except BrokenPipeError:
            # Python flushes standard output once more as it ends; that must not fail loudly either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ctx.exit(EXIT_BROKEN_PIPE)
        except InvalidFilter as error:  # its second and third line point at the place
            click.echo(f"mqlake: InvalidFilter: {error}", err=True)
            return ctx.exit(EXIT_STORE_ERROR)
        except (StoreError, OSError) as error:
            complain(f"{type(error).__name__}: {error}")
            return ctx.exit(EXIT_STORE_ERROR)
        except KeyboardInterrupt:
            return ctx.exit(EXIT_INTERRUPTED)


def complain(text: str) -> None:
    """One line to standard error."""
    click.echo(f"mqlake: {' '.join(text.split())}", err=True)


def show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """The version, and the kernel in use: a pure one explains slowness."""
    if not wanted or ctx.resilient_parsing:
        return
    import mqlake
    from mqlake.kernel import KERNEL

    click.echo(f"mqlake {mqlake.__version__} ({KERNEL} kernel, Python {sys.version.split()[0]})")
    ctx.exit()


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show what the store notes while it works.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show it.")
def mqlake(verbose: bool) -> None:
    """A durable message store whose files are Apache RocketMQ's.

    STORE is a store's folder. Commands that only read take no lock: they work while another process writes.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="mqlake: %(message)s")


def main() -> None:
    """Run the command line; never returns."""
    mqlake(prog_name="mqlake")
