"""Run by CMake: `python -m nvmlapi include` finds the header, `python -m nvmlapi emit …` completes a library."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from nvmlapi import emit, header


def main() -> None:
    """Do what CMake asks for."""
    parser = argparse.ArgumentParser(prog="nvmlapi")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("include", help="print the folder of nvml.h")
    emitter = commands.add_parser("emit", help="write the rest and the coverage of a library")
    emitter.add_argument("--compiler", default="cc")
    emitter.add_argument("--nm", default="nm")
    emitter.add_argument("--include", type=Path, required=True)
    emitter.add_argument("--source", type=Path, required=True)
    emitter.add_argument("--coverage", type=Path, required=True)
    emitter.add_argument("--pass-on", action="store_true", help="to the real library, instead of refusing")
    emitter.add_argument("objects", nargs="+", help="what its author compiled")
    arguments = parser.parse_args()
    if arguments.command == "include":
        sys.stdout.write(str(header.include_folder()))
        return
    api = header.read(arguments.compiler, arguments.include)
    symbols = subprocess.run([arguments.nm, *arguments.objects], capture_output=True, text=True, check=True).stdout
    implemented = set(re.findall(r" T (nvml[A-Z]\w*)$", symbols, re.M))
    arguments.source.write_text(emit.source(api, implemented, pass_on=arguments.pass_on))
    arguments.coverage.write_text(emit.coverage(api, implemented))


if __name__ == "__main__":
    main()
