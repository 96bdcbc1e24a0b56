"""`mqlake completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  mqlake completion bash >> ~/.bashrc
    zsh:   mqlake completion zsh >> ~/.zshrc
    fish:  mqlake completion fish > ~/.config/fish/completions/mqlake.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click supports these three shells"
    click.echo(found(ctx.find_root().command, {}, "mqlake", "_MQLAKE_COMPLETE").source())
