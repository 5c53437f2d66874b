"""Generate the Python code of the kubelet's protocols: `uv run python proto/generate.py [DIRECTORY]`.

Without a directory it replaces `src/milligpu/kubelet/_generated/`, which is never edited by hand.
Only messages are generated; `milligpu.kubelet.rpc` calls and serves the few services with types.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "milligpu" / "kubelet" / "_generated"
PACKAGE = "milligpu.kubelet._generated"
DOCSTRING = '"""Generated from proto/ by proto/generate.py: do not edit."""\n'


def generate(folder: Path) -> None:
    """Write the modules for every .proto file into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*_pb2*.py*"):
        old.unlink()
    for source in sorted(HERE.glob("*.proto")):
        arguments = [f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments, source.name], check=True)
    (folder / "__init__.py").write_text(DOCSTRING)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
