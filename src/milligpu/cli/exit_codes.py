"""The exit codes of all commands, as `milligpu --help` lists them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a command ended; `run` and `softgpu exec` end with the exit code of the program that they start."""

    OK = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    ONLY_SKIPPED = 3
    NO_CAPACITY = 75  # EX_TEMPFAIL of sysexits.h: trying again later may help
    UNAVAILABLE = 125  # as env and timeout, so that it is no code of a program that they start
    NOT_EXECUTABLE = 126  # as shells
    NOT_FOUND = 127  # as shells
    INTERRUPTED = 130  # 128 + SIGINT
    BROKEN_PIPE = 141  # 128 + SIGPIPE


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "Success.",
    ExitCode.CHECK_FAILED: "A check failed (doctor, health, verify).",
    ExitCode.BAD_INPUT: "Wrong usage or bad input, such as a pod that does not exist.",
    ExitCode.ONLY_SKIPPED: "All checks were skipped (verify).",
    ExitCode.NO_CAPACITY: "No GPU has enough free capacity; try again later.",
    ExitCode.UNAVAILABLE: "Something that the command needs does not answer, or a bug.",
    ExitCode.NOT_EXECUTABLE: "The program of run or softgpu exec cannot be executed.",
    ExitCode.NOT_FOUND: "The program of run or softgpu exec does not exist.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C.",
}
"""What `milligpu --help` says of each; only a program that reads our output notices a broken pipe."""
