"""Run by CMake.

`python -m cudaapi include` finds the headers, `python -m cudaapi real …` writes the table of a library that wraps a
driver, `python -m cudaapi emit …` completes a library.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from cudaapi import emit, header


def main() -> None:
    """Do what CMake asks for."""
    parser = argparse.ArgumentParser(prog="cudaapi")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("include", help="print the folder of cuda.h")
    table = commands.add_parser("real", help="write the header of the table of a driver's functions")
    table.add_argument("--compiler", default="cc")
    table.add_argument("--include", type=Path, required=True)
    table.add_argument("--header", type=Path, required=True)
    emitter = commands.add_parser("emit", help="write stubs and coverage of a library")
    emitter.add_argument("--compiler", default="cc")
    emitter.add_argument("--nm", default="nm")
    emitter.add_argument("--include", type=Path, required=True)
    emitter.add_argument("--source", type=Path, required=True)
    emitter.add_argument("--coverage", type=Path, required=True)
    emitter.add_argument("--wrap", action="store_true", help="pass on what is not written, to a driver's library")
    emitter.add_argument("objects", nargs="+", help="what its author compiled")
    arguments = parser.parse_args()
    if arguments.command == "include":
        sys.stdout.write(str(header.include_folder()))
        return
    api = header.read(arguments.compiler, arguments.include)
    if arguments.command == "real":
        arguments.header.write_text(emit.real_header(api))
        return
    symbols = subprocess.run([arguments.nm, *arguments.objects], capture_output=True, text=True, check=True).stdout
    implemented = set(re.findall(r" T (cu[A-Z]\w*)$", symbols, re.M))
    arguments.source.write_text(emit.source(api, implemented, wrap=arguments.wrap))
    arguments.coverage.write_text(emit.coverage(api, implemented, wrap=arguments.wrap))


if __name__ == "__main__":
    main()
