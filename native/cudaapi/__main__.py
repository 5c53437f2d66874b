"""Run by CMake: `python -m cudaapi include` and `python -m cudaapi emit …`."""

from vendorapi.complete import Interface, main

from cudaapi.emit import coverage, source
from cudaapi.header import include_folder, read

main(Interface("cudaapi", "cu", include_folder, read, source, coverage))
