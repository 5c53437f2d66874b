"""Write the driver table of a library that wraps a driver: `python -m cudaapi.real`, run by CMake."""

import argparse
from pathlib import Path

from vendorapi.complete import add_header

from cudaapi import emit, header


def main() -> None:
    """Write the header that CMake asks for."""
    parser = argparse.ArgumentParser(prog="cudaapi.real")
    add_header(parser)
    parser.add_argument("--header", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.header.write_text(emit.real_header(header.read(arguments.compiler, arguments.include)))


if __name__ == "__main__":
    main()
