"""The programs that verify runs: what is stored in them can be made again."""

import base64
import importlib
import re
from pathlib import Path
from typing import Any

import milligpu.verify

PROGRAMS = Path(milligpu.verify.__file__).parent / "programs"


def _ptx(architecture: int, mib: int) -> bytes:
    return (
        f".version 7.8\n.target sm_{architecture}\n.address_size 64\n"
        f".visible .global .align 4 .b8 room[{mib << 20}];\n.visible .entry none() {{ ret; }}\n"
    ).encode() + b"\0"


def test_the_fat_binary_is_what_nvidias_packer_makes() -> None:
    nvfatbin: Any = importlib.import_module("cuda.bindings.nvfatbin")  # has no types
    handle = nvfatbin.create(["-compress=false"], 1)
    for architecture, mib in ((50, 16), (90, 32)):
        code = _ptx(architecture, mib)
        nvfatbin.add_ptx(handle, code, len(code), str(architecture), f"sm_{architecture}", "")
    image = bytearray(nvfatbin.size(handle))
    nvfatbin.get(handle, image)
    nvfatbin.destroy(handle)
    text = (PROGRAMS / "charges.py").read_text().partition("FAT_BINARY = (")[2].partition(")")[0]
    assert base64.b64decode("".join(re.findall(r'"(.+)"', text))) == bytes(image)


def test_no_program_hides_the_framework_that_it_imports() -> None:
    for program in PROGRAMS.glob("*.py"):
        imported = re.findall(r"^\s*(?:import|from) (\w+)", program.read_text(), re.MULTILINE)
        assert program.stem not in imported
        assert "milligpu" not in imported
