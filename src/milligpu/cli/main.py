"""The entry point: `milligpu`, also called as `kubectl milligpu`."""

import importlib
import os
import sys

import click

from milligpu import __version__
from milligpu.cli.commands import COMMANDS, FORMER_NAMES
from milligpu.cli.exit_codes import MEANINGS, ExitCode
from milligpu.cli.output import CommandRefused, warn_renamed
from milligpu.model.errors import BadFormat, BadRequest, MilligpuError, NoCapacity


class LazyGroup(click.Group):
    """A group that lists its commands without importing them, and imports one to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
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
        """Find the command, also by its former name, or suggest similar names."""
        if args and args[0] in FORMER_NAMES:
            old, *rest = args
            warn_renamed(f"milligpu {old}", f"milligpu {FORMER_NAMES[old]}")
            args = [FORMER_NAMES[old], *rest]
        if args and args[0] not in COMMANDS:
            raise click.NoSuchCommand(args[0], possibilities=_near(args[0]), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with its summary and an example, and the exit codes."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])
        with formatter.section("Examples"):
            for name in self.list_commands(ctx):
                formatter.write(f"  {COMMANDS[name].example}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in MEANINGS.items()])


def _near(name: str) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, COMMANDS)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help. The documentation is in docs/ of the source.",
)
@click.version_option(__version__, prog_name="milligpu", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="MILLIGPU_DEBUG", help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Share GPUs on Kubernetes like CPUs: 1000 milligpu are one GPU."""


def main() -> None:
    """Run the command line; an error becomes an exit code, one line and perhaps a hint on stderr."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run these arguments and return the exit code."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    program = "kubectl milligpu" if name.startswith("kubectl-") else "milligpu"
    debug = "--debug" in args[: _own_options(args)] or bool(os.environ.get("MILLIGPU_DEBUG"))
    try:
        result = cli.main(args, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has closed the pipe. Python must not flush to it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as no_arguments:
        click.echo(no_arguments.message)
        return ExitCode.OK
    except Exception as error:
        if debug:
            raise
        return explain_error(program, _missing(args, error) or error)
    return result if isinstance(result, int) else 0


def _own_options(args: list[str]) -> int:
    """How many arguments come before the command's name."""
    return next((at for at, arg in enumerate(args) if not arg.startswith("-")), len(args))


def _missing(args: list[str], error: Exception) -> MilligpuError | None:
    """The error that says what to install, for a module of an extra that is not installed."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    from milligpu.cli.extras import missing_extra

    entry = COMMANDS.get(next(iter(args[_own_options(args) :]), ""))
    return missing_extra(error, entry.extra if entry else "")


def explain_error(program: str, error: Exception) -> int:
    """Print an error as one line and perhaps a hint, and return its exit code."""
    match error:
        case click.NoSuchOption():
            where = error.ctx.command_path if error.ctx else program
            _say(f"no such option: {error.option_name}", f"{_meant(error)}see: {where} --help")
            return ExitCode.BAD_INPUT
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else program
            _say(error.format_message(), f"see: {where} --help")
            return ExitCode.BAD_INPUT
        case click.ClickException():
            _say(error.format_message(), error.hint if isinstance(error, CommandRefused) else "")
            return ExitCode.BAD_INPUT
        case BadRequest() | BadFormat():
            _say(error.message, error.hint)
            return ExitCode.BAD_INPUT
        case NoCapacity():
            _say(error.message, error.hint)
            return ExitCode.NO_CAPACITY
        case MilligpuError():
            _say(error.message, error.hint)
            return ExitCode.UNAVAILABLE
        case _:
            _say(f"{type(error).__name__}: {error}", f"this is a bug; to see where, run: {program} --debug …")
            return ExitCode.UNAVAILABLE


def _meant(error: click.NoSuchOption) -> str:
    import difflib

    near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.75)
    return f"did you mean {near[0]}? " if near else ""


def _say(message: str, hint: str = "") -> None:
    """Print the error as one line, and the hint as another."""
    click.echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
