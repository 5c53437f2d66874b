"""Which libcuda a program gets in images of all layouts: with a share always ours.

The images imitate the layouts of public ones. Their own libcuda is the software GPU's driver library, so a program
that loads it sees the whole GPU, as one that loads a forward-compatibility library would on a real node.
"""

import json
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from devcluster.images import BASE, Image, layered_archive
from devcluster.platform import GpuNode
from devcluster.report import to_stderr
from milligpu.model import names
from milligpu.native import library
from tests.e2e.life.attach.conftest import DRIVER_ROOT, generate_spec
from tests.e2e.platform.pods import apply, execute, get, manifest, wait_running, wait_told

pytestmark = pytest.mark.e2e

OWN = library("softgpu/libcuda.so.1").read_bytes()
"""The image's own libcuda."""
SHARE_MIB = 4096

LOOK = """
import ctypes, json, os, re, subprocess
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
code = cuda.cuInit(0) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
maps = set(re.findall(r"(/\\S*libcuda\\.so\\S*)$", open("/proc/self/maps").read(), re.M))
# Triton's rule: the directories of all libcuda.so.1 in the cache, of which one must have the file.
listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
triton = [os.path.dirname(line.split()[-1]) for line in listed.splitlines() if "libcuda.so.1" in line]
links = [path for path in triton if os.path.exists(os.path.join(path, "libcuda.so"))]
smi = [os.access(path, os.X_OK) for path in ("/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")]
nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print(json.dumps([code, total.value >> 20, sorted(maps), triton, links, smi, nodes]))
"""


@dataclass(frozen=True)
class Layout:
    """Where an image has CUDA, and how its loader gets there."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    links: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    """Directories in the loader's cache of the image."""

    def archive(self, name: str) -> tuple[Image, Path]:
        image = Image(f"local.dev/{name}:1", (), BASE.command, links=self.links, environment=self.environment)
        files = {"usr/sbin/ldconfig": Path("/sbin/ldconfig").read_bytes(), **self.files}
        if self.cached:
            files["etc/ld.so.cache"] = self._cache()
        return image, layered_archive(image, BASE, files, to_stderr)

    def _cache(self) -> bytes:
        """The cache as ldconfig writes it when the image is built."""
        with tempfile.TemporaryDirectory() as folder:
            for path, content in {**self.files, "etc/ld.so.conf": "\n".join(self.cached).encode()}.items():
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            subprocess.run(["ldconfig", "-r", folder], check=True, stderr=subprocess.DEVNULL)
            return Path(folder, "etc/ld.so.cache").read_bytes()


_CUDA_LINK = (("usr/local/cuda", "cuda-12.8"),)
_BASE_PATH = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
LAYOUTS = {
    # As nvidia/cuda: a library path into directories that only NVIDIA's old runtime filled.
    "cuda-base": Layout(
        {"usr/local/cuda-12.8/version.json": b"{}"}, _CUDA_LINK, (f"LD_LIBRARY_PATH={_BASE_PATH}",)
    ),
    # As nvcr.io: forward compatibility first in the library path.
    "ngc": Layout(
        {"usr/local/cuda-12.8/compat/lib.real/libcuda.so.570.1": OWN},
        (
            *_CUDA_LINK,
            ("usr/local/cuda-12.8/compat/lib", "lib.real"),
            ("usr/local/cuda-12.8/compat/lib.real/libcuda.so.1", "libcuda.so.570.1"),
        ),
        (f"LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:{_BASE_PATH}",),
    ),
    # As vllm/vllm-openai of some releases: forward compatibility in the loader's cache and its configuration.
    "vllm": Layout(
        {
            "usr/local/cuda-12.8/compat/libcuda.so.1": OWN,
            "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/00-cuda-compat.conf": b"/usr/local/cuda-12.8/compat\n",
        },
        _CUDA_LINK,
        (f"LD_LIBRARY_PATH={_BASE_PATH}",),
        cached=("/usr/local/cuda-12.8/compat",),
    ),
    # With conda's package cuda-compat in an active environment.
    "conda": Layout(
        {"opt/conda/cuda-compat/libcuda.so.1": OWN},
        environment=("CONDA_PREFIX=/opt/conda", "LD_LIBRARY_PATH=/opt/conda/cuda-compat"),
    ),
    # As Red Hat's: libraries in /usr/lib64, and no directory of Debian's in the loader's cache.
    "ubi": Layout(
        {"etc/os-release": b'ID="rhel"\nID_LIKE="fedora"\n', "usr/lib64/libsome.so.1": OWN}, cached=("/usr/lib64",)
    ),
}


@pytest.fixture(scope="module")
def layouts(nvidia_node: GpuNode) -> dict[str, Image]:
    found = {name: layout.archive(name) for name, layout in LAYOUTS.items()}
    for image, archive in found.values():
        nvidia_node.node.import_image(archive, image)
    return {name: image for name, (image, _) in found.items()}


def share(name: str, image: Image, **more: Any) -> dict[str, Any]:
    limits = {names.VGPU: 100, names.VGPU_MEMORY: SHARE_MIB}
    return manifest(name, image=image.reference, resources={"limits": limits}, **more)


def seen(node: GpuNode, namespace: str, pod: str) -> list[Any]:
    return json.loads(execute(node.cluster, namespace, pod, LOOK))


def test_with_a_share_ours_wins_in_every_image(
    nvidia_node: GpuNode, namespace: str, layouts: dict[str, Image]
) -> None:
    cluster = nvidia_node.cluster
    apply(cluster, namespace, *(share(name, image) for name, image in layouts.items()))
    wait_running(cluster, namespace, len(layouts))
    for name in layouts:
        code, mib, maps, triton, links, smi, nodes = seen(nvidia_node, namespace, name)
        assert (code, mib) == (0, SHARE_MIB), (name, maps)
        assert triton, f"{name}: ldconfig -p lists no libcuda"
        assert links, f"{name}: no directory of the cache has libcuda.so"
        assert smi == [True, True]
        assert nodes == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"]


def test_a_whole_gpu_has_what_nvidias_toolkit_attaches(
    nvidia_node: GpuNode, namespace: str, layouts: dict[str, Image]
) -> None:
    cluster = nvidia_node.cluster
    pod = manifest("whole", image=layouts["cuda-base"].reference, resources={"limits": {names.WHOLE_GPU: 1}})
    apply(cluster, namespace, pod)
    wait_running(cluster, namespace, 1)
    code, mib, maps, triton, _, smi, nodes = seen(nvidia_node, namespace, "whole")
    assert (code, mib) == (0, nvidia_node.inventory()[0].mib), maps
    assert triton in (["/lib/x86_64-linux-gnu"], ["/usr/lib/x86_64-linux-gnu"])
    assert smi == [True, True]
    assert "nvidia-modeset" in nodes
    opens = "import ctypes; ctypes.CDLL('libnvcuvid.so.1'); print('ok')"
    assert execute(cluster, namespace, "whole", opens) == "ok\n"


def test_a_share_does_not_have_video_and_an_event_says_so(
    nvidia_node: GpuNode, namespace: str, layouts: dict[str, Image]
) -> None:
    cluster = nvidia_node.cluster
    asked = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,video"}]
    apply(cluster, namespace, share("film", layouts["cuda-base"], env=asked))
    wait_running(cluster, namespace, 1)
    note = wait_told(cluster, namespace, "film", "CapabilityNotShareable")
    assert "video" in note
    found = execute(cluster, namespace, "film", "import glob; print(glob.glob('/usr/lib/*/libnvcuvid*'))")
    assert found == "[]\n"


def test_a_container_waits_while_a_hooks_program_is_missing(
    nvidia_node: GpuNode, nvidia_toolkit: Path, namespace: str, layouts: dict[str, Image]
) -> None:
    spec = nvidia_node.node.cdi_dir / "nvidia.yaml"
    text = spec.read_text()
    spec.write_text(text.replace(f"{nvidia_toolkit}/nvidia-cdi-hook", f"{DRIVER_ROOT}/nvidia-cdi-hook"))
    cluster = nvidia_node.cluster
    apply(cluster, namespace, share("early", layouts["cuda-base"]))
    note = wait_told(cluster, namespace, "early", "DriverNotReady")
    assert f"needs {DRIVER_ROOT}/nvidia-cdi-hook, which this node does not have" in note
    assert not get(cluster, namespace, "early")["status"].get("containerStatuses", [{}])[0].get("started")
    generate_spec(nvidia_node, nvidia_toolkit)
    wait_running(cluster, namespace, 1)
