"""Run by CMake: `python -m nvmlapi include` and `python -m nvmlapi emit …`."""

from vendorapi.complete import Interface, main

from nvmlapi.emit import coverage, source
from nvmlapi.header import include_folder, read

main(Interface("nvmlapi", "nvml", include_folder, read, source, coverage))
