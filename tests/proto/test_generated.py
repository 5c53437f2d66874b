"""The generated code matches the `.proto` files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "src" / "milligpu" / "kubelet" / "_generated"


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.iterdir() if path.is_file()}
    assert kept == made, "run: uv run python proto/generate.py"


def test_every_proto_file_has_generated_code() -> None:
    assert {path.stem for path in (ROOT / "proto").glob("*.proto")} == {
        path.name.removesuffix("_pb2.py") for path in GENERATED.glob("*_pb2.py")
    }
