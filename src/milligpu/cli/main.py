"""The entry point: `milligpu`, also reached as `kubectl milligpu`.

Exit codes: 0 done, 2 wrong usage or input, 75 no capacity now, 125 something we stand on failed, 130 interrupted.
"""

import importlib
import os
import sys

import click

from milligpu import __version__
from milligpu.cli.commands import COMMANDS
from milligpu.model.errors import BadFormat, BadRequest, MilligpuError, NoCapacity

USAGE, NO_CAPACITY, PLATFORM = 2, 75, 125
INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13


class Commands(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry.module).command
        command.help = command.help or entry.summary
        command.epilog = f"\b\nExample:\n  {entry.example}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which names come near."""
        if args and args[0] not in COMMANDS:
            raise click.NoSuchCommand(args[0], possibilities=_near(args[0]), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its summary and an example, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])
        with formatter.section("Examples"):
            for name in self.list_commands(ctx):
                formatter.write(f"  {COMMANDS[name].example}\n")


def _near(name: str) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, COMMANDS)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Documentation: docs/ in the source. Every command has --help.",
)
@click.version_option(__version__, prog_name="milligpu", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="MILLIGPU_DEBUG", help="Show tracebacks of errors.")
def cli(debug: bool) -> None:
    """GPUs on Kubernetes, shared like CPUs: 1000 milligpu are one GPU."""


def main() -> None:
    """Run the command line and turn whatever happens into an exit code and at most two lines."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """As `main`, with the arguments given and the exit code returned."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    program = "kubectl milligpu" if name.startswith("kubectl-") else "milligpu"
    debug = "--debug" in args[: _own_options(args)] or bool(os.environ.get("MILLIGPU_DEBUG"))
    try:
        result = cli.main(args, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has enough. Nothing more may be written, not even by Python's own exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return _explain(program, error)
    return result if isinstance(result, int) else 0


def _own_options(args: list[str]) -> int:
    """How many leading arguments are ours and not a subcommand's (or a child's)."""
    return next((at for at, arg in enumerate(args) if not arg.startswith("-")), len(args))


def _explain(program: str, error: Exception) -> int:
    match error:
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else program
            _say(error.format_message(), f"see: {where} --help")
            return USAGE
        case click.ClickException():
            _say(error.format_message())
            return USAGE
        case BadRequest() | BadFormat():
            _say(error.message, error.hint)
            return USAGE
        case NoCapacity():
            _say(error.message, error.hint)
            return NO_CAPACITY
        case MilligpuError():
            _say(error.message, error.hint)
            return PLATFORM
        case _:
            _say(f"{type(error).__name__}: {error}", f"this is a bug; run it again as: {program} --debug …")
            return PLATFORM


def _say(message: str, hint: str = "") -> None:
    """One line of what is wrong, and where it helps one of what to do."""
    click.echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
