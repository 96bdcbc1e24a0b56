"""The entry point: the list of commands, and how errors become exit codes.

Every command has its own module, imported when the command is called, so that `mqlake --help` and shell completion are
fast. All errors end here: one line on standard error, and an exit code that scripts can use.
"""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from mqlake.errors import InvalidFilter, StoreError, file_error

EXIT_NOTHING_FOUND = 1
EXIT_STORE_ERROR = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXIT_CODES = """\b
Exit codes:
    0  success
    1  nothing was found (get, find), or a promise was broken (torture)
    2  the command line is wrong
    3  a store or file error: one line on standard error describes it
       (check, audit and repair use 1, 2 and 4 differently: see their --help)
  130  interrupted with Ctrl-C
  141  the program that read the output has exited
"""


class Entry(NamedTuple):
    """The module of a command, and its line in the list of commands."""

    module: str
    summary: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Try": {
        "demo": Entry("demo", "Write, read and find messages in a temporary store, and show the speed."),
    },
    "Serve": {
        "serve": Entry("serve", "Serve a store to RocketMQ clients: name server and broker."),
        "promote": Entry("promote", "Make a slave's store a master's, once the old master is gone."),
        "attach": Entry("attach", "Follow a running master, RocketMQ or mqlake, and keep its log."),
    },
    "Write": {
        "put": Entry("put", "Append messages to a topic."),
        "load": Entry("load", "Append messages from JSON lines, such as those of a dump."),
        "replay": Entry("replay", "Turn the archive in a lake back into a store, on Spark."),
    },
    "Read": {
        "read": Entry("read", "Read one queue of a topic, starting at an offset or a time."),
        "tail": Entry("tail", "Show the newest messages of a topic, and follow it."),
        "get": Entry("get", "Show one message, by physical offset or message id."),
        "find": Entry("find", "Find messages by key or by tag."),
        "trace": Entry("trace", "Show the way of a message: put, delayed, delivered, retried, dead, and who has it."),
        "scan": Entry("scan", "Print the log as a table or JSON lines, or write Parquet or Arrow."),
        "dump": Entry("dump", "Write everything in a store as JSON lines."),
    },
    "Inspect": {
        "topics": Entry("topics", "List the topics and their queues."),
        "top": Entry("top", "Watch topics, rates, groups and lag live."),
        "info": Entry("info", "Show files, sizes, offsets, and which process writes the store."),
    },
    "Deliver": {
        "consume": Entry("consume", "Read a topic as a consumer group, and save its progress."),
        "groups": Entry("groups", "List consumer groups, their topics and their lag."),
        "lag": Entry("lag", "Show the progress and lag of a group in each queue."),
        "reset": Entry("reset", "Set the progress of a group to the beginning, the end, a time or an offset."),
        "delay": Entry("delay", "List messages that are not due yet, or cancel one."),
        "dlq": Entry("dlq", "List, show or resend dead letters."),
        "topic": Entry("topic", "Create, change, delete or list topics."),
        "group": Entry("group", "Create, change, delete or list consumer groups."),
    },
    "Query": {
        "sql": Entry("sql", "Query stores with SQL: one query, or a small shell."),
        "stats": Entry("stats", "Count traffic by topic, tag, queue and minute."),
        "report": Entry("report", "Write an HTML page: traffic, topics, sizes, latency, keys, lag, damage."),
    },
    "Maintain": {
        "pipeline": Entry("pipeline", "Check, archive, index and count logs into a lake as they grow, on Spark."),
        "retain": Entry("retain", "Delete the oldest files of the log, by age, size or offset."),
        "times": Entry("times", "Note the times in the log's files, so that reads of a time window skip the others."),
        "check": Entry("check", "Check a store and report every fault. Writes nothing."),
        "scrub": Entry("scrub", "Compare the log with its seals, at the speed of the disk."),
        "audit": Entry("audit", "Check one store or many, on Spark, and report every fault."),
        "backup": Entry("backup", "Copy a store, even while it is written, complete up to a stated offset."),
        "rebuild": Entry("rebuild", "Rebuild consume queues and index from the log, on Spark."),
        "repair": Entry("repair", "Repair a damaged store, in place or as a copy."),
    },
    "Lake": {
        "archive": Entry("archive", "Append what is new in stores to a lake of Parquet files."),
        "compact": Entry("compact", "Merge the small files of a lake."),
        "lake": Entry("lake", "Show or check a lake, or find a message in it."),
    },
    "Measure": {
        "bench": Entry("bench", "Measure mqlake, or mmap against write, on your disk."),
        "torture": Entry("torture", "Kill, truncate and damage stores on your disk, and count what was lost."),
    },
    "Shell": {
        "completion": Entry("completion", "Print the completion script for bash, zsh or fish."),
    },
}


class Commands(click.Group):
    """A group that imports its commands when they are called, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if name in section:
                module = importlib.import_module(f"mqlake.cli.{section[name].module}")
                command: click.Command = getattr(module, name)
                add_verbose(command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the nearest one if there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 3, 0.6)
            if not near or args[0].startswith("-"):
                raise
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:10}", entry.summary) for name, entry in section.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line, which prints --help and --version. Click would take an interrupt for an error (1)."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            drop_output()
            sys.exit(EXIT_BROKEN_PIPE)
        except OSError as error:  # the disk that gets the text is full, say
            drop_output()
            complain(f"{type(error).__name__}: {error}")
            sys.exit(EXIT_STORE_ERROR)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and exit with the code of its error. Click handles usage errors itself."""
        try:
            try:
                return super().invoke(ctx)
            finally:  # a command that exits with a code has written too, and its reader may have gone
                sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            return ctx.exit(EXIT_BROKEN_PIPE)
        except InvalidFilter as error:  # its second and third line point at the error
            click.echo(f"mqlake: InvalidFilter: {error}", err=True)
            return ctx.exit(EXIT_STORE_ERROR)
        except PermissionError as error:  # met while something else than opening a store was done
            complain(f"FileFailed: {file_error(Path(os.fsdecode(error.filename or '.')), 'used', 0, error)}")
            return ctx.exit(EXIT_STORE_ERROR)
        except (StoreError, OSError) as error:
            complain(f"{type(error).__name__}: {error}")
            return ctx.exit(EXIT_STORE_ERROR)
        except KeyboardInterrupt:
            return ctx.exit(EXIT_INTERRUPTED)


def drop_output() -> None:
    """Send standard output nowhere: Python flushes it again at exit, and that must not print an error either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_verbose(command: click.Command) -> None:
    """Let a command, and the commands in it, take -v: people add it at the end of the line that went wrong."""
    if not any("--verbose" in parameter.opts for parameter in command.params):
        option = click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            callback=lambda ctx, parameter, wanted: set_verbose() if wanted else None,
            help="Show the log messages of the store.",
        )
        command.params.append(option)
    for inner in getattr(command, "commands", {}).values():
        add_verbose(inner)


def set_verbose() -> None:
    logging.getLogger().setLevel(logging.INFO)


def complain(text: str) -> None:
    """Print one line to standard error."""
    click.echo(f"mqlake: {' '.join(text.split())}", err=True)


def show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the version and the kernel in use: the pure Python kernel is slow."""
    if not wanted or ctx.resilient_parsing:
        return
    import mqlake
    from mqlake.kernel import KERNEL

    click.echo(f"mqlake {mqlake.__version__} ({KERNEL} kernel, Python {sys.version.split()[0]})")
    ctx.exit()


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show the log messages of the store.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def mqlake(verbose: bool) -> None:
    """A durable message store whose files are Apache RocketMQ's.

    STORE is the folder of a store. Commands that only read take no lock: they work while another process writes.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="mqlake: %(message)s")


def hold_standard_streams() -> None:
    """Open standard streams that the caller has closed (`>&-`): else a file of the store would get their number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def main() -> None:
    """Run the command line. Never returns."""
    hold_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without some letter must not end a command
            stream.reconfigure(errors="backslashreplace")
    mqlake(prog_name="mqlake")
