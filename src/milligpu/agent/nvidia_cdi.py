"""NVIDIA's CDI specification: what its container toolkit would attach of the driver. Pure.

NVIDIA knows which files a release of its driver consists of. So a container gets what the toolkit's specification
says: for whole GPUs all of it, for a share the part that does not reach a GPU past the limits library.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

import msgspec
import yaml

from milligpu.agent.cdi import CDI_VERSION, ContainerEdits, DeviceNode, Hook, Mount
from milligpu.model.errors import BadFormat

NVIDIA_KIND = "nvidia.com/gpu"
SHAREABLE = frozenset({"compute", "utility"})
"""The driver capabilities that the limits library covers."""

_LDCACHE = "update-ldcache"
# Hooks that a share keeps. Others link or mount another libcuda (create-symlinks, enable-cuda-compat) or concern
# graphics; one that is not known here may do either.
_SHARE_HOOKS = frozenset({_LDCACHE, "create-soname-symlinks", "disable-device-node-modification"})
_SHARE_PROGRAMS = frozenset({"nvidia-smi", "nvidia-debugdump"})
# Libraries that reach the GPU past libcuda, so memory and launches would not be counted.
_UNMETERED = (
    *("libnvidia-opencl.*", "libOpenCL.*", "libnvcuvid.*", "libnvidia-encode.*", "libnvidia-opticalflow.*"),
    *(
        "libnvidia-gl*",
        "libnvidia-egl*",
        "libnvidia-fbc.*",
        "libnvidia-ifr.*",
        "libnvidia-ngx.*",
        "libnvidia-tls.*",
    ),
    *("libnvidia-rtcore.*", "libnvoptix.*", "libnvidia-present.*", "libnvidia-wayland*", "libnvidia-vulkan*"),
    *("libnvidia-cbl.*", "libnvidia-gtk*", "libGL*", "libEGL*", "libOpenGL*", "libvdpau*", "nvidia-drm_gbm.so"),
)
_LIBRARY = re.compile(r"\.so(\.|$)")
# Where files for graphics are.
_GRAPHICS_FOLDERS = frozenset(
    {"glvnd", "vulkan", "vulkansc", "egl", "X11", "xorg", "gbm", "dri", "vdpau", "OpenCL"}
)
_GRAPHICS_NODES = ("/dev/dri/", "/dev/nvidia-modeset")


class _Edits(msgspec.Struct, frozen=True):
    env: tuple[str, ...] = ()
    deviceNodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additionalGids: tuple[int, ...] = ()


class _Device(msgspec.Struct, frozen=True):
    name: str
    containerEdits: _Edits = msgspec.field(default_factory=_Edits)


class _Spec(msgspec.Struct, frozen=True):
    kind: str
    cdiVersion: str
    devices: tuple[_Device, ...] = ()
    containerEdits: _Edits = msgspec.field(default_factory=_Edits)


@dataclass(frozen=True, slots=True)
class NvidiaSpec:
    """A specification of kind `nvidia.com/gpu`."""

    devices: Mapping[str, ContainerEdits]
    """By name: a UUID, an index, or both, as the toolkit was configured."""
    common: ContainerEdits

    def edits_of(self, gpus: Mapping[str, str]) -> ContainerEdits | None:
        """Return what containers with these GPUs get; None if one is missing.

        `gpus` has the device node of each GPU by UUID, "" where it is not known. A specification that names devices
        by index is read by their nodes: indices change when a GPU is lost.
        """
        edits = self.common
        for uuid, node in gpus.items():
            own = self.devices.get(uuid) or self._device_with(node)
            if own is None:
                return None
            edits = edits.plus(own)
        return edits

    def _device_with(self, node: str) -> ContainerEdits | None:
        """Return the device with this node and no other GPU's; a device such as "all" has several."""
        for edits in self.devices.values():
            if node and [each.path for each in edits.device_nodes if _is_gpu_node(each.path)] == [node]:
                return edits
        return None

    @property
    def every_edit(self) -> tuple[ContainerEdits, ...]:
        """Return the common edits and those of every device."""
        return (self.common, *self.devices.values())


def decode_spec(text: bytes, *, is_json: bool) -> NvidiaSpec | None:
    """Read a CDI file; None if it is of another kind. Raise `BadFormat` if it is none."""
    try:
        raw: Any = json.loads(text) if is_json else yaml.load(text, Loader=_YAML_LOADER)
        if not isinstance(raw, dict) or raw.get("kind") != NVIDIA_KIND:  # pyright: ignore[reportUnknownMemberType]
            return None
        spec = msgspec.convert(raw, _Spec)
    except (ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise BadFormat("CDI specification", str(error)) from None
    devices = {each.name: _edits(each.containerEdits, spec.cdiVersion) for each in spec.devices}
    return NvidiaSpec(devices, _edits(spec.containerEdits, spec.cdiVersion))


# The C parser is ten times as fast, and an agent reads the file before a container can start.
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _edits(raw: _Edits, version: str) -> ContainerEdits:
    pairs = (each.partition("=") for each in raw.env)
    return ContainerEdits(
        {key: value for key, _, value in pairs},
        raw.deviceNodes,
        raw.mounts,
        raw.hooks,
        raw.additionalGids,
        version,
    ).plus(ContainerEdits(version=CDI_VERSION))


def missing_files(spec: NvidiaSpec, exists: Callable[[str], bool]) -> list[str]:
    """Return the files to mount that the node does not have: the specification is of another driver version."""
    return [each.host for edits in spec.every_edit for each in edits.mounts if not exists(each.host)]


def missing_programs(spec: NvidiaSpec, exists: Callable[[str], bool]) -> list[str]:
    """Return the programs of hooks that the node does not have. Without one of them no container starts."""
    paths = dict.fromkeys(each.path for edits in spec.every_edit for each in edits.hooks)
    return [path for path in paths if not exists(path)]


def updates_loader_cache(edits: ContainerEdits) -> bool:
    """Whether a hook makes the loader's cache in the container, with the links that it needs."""
    return any(_hook_name(each) == _LDCACHE for each in edits.hooks)


def share_part(edits: ContainerEdits, ours: Sequence[str], folder: str) -> ContainerEdits:
    """Return what a share gets of the driver.

    Left out are the libraries that ours replace (`ours` are their names), what reaches the GPU past the limits
    library, and hooks that could put another libcuda in front. The loader's cache gets `folder`, where ours are.
    """
    stems = tuple(name.partition(".so")[0] + ".so" for name in ours)
    return replace(
        edits,
        environment={},
        device_nodes=tuple(each for each in edits.device_nodes if not each.path.startswith(_GRAPHICS_NODES)),
        mounts=tuple(each for each in edits.mounts if _shareable(PurePosixPath(each.inside), stems)),
        hooks=tuple(_with_folder(each, folder) for each in edits.hooks if _hook_name(each) in _SHARE_HOOKS),
    )


def folders_of(edits: ContainerEdits, name: str) -> tuple[str, ...]:
    """Return the directories in the container that have a library, such as libcuda.so.1, in any version."""
    stem = name.partition(".so")[0] + ".so"
    found = (PurePosixPath(each.inside) for each in edits.mounts)
    return tuple(dict.fromkeys(str(path.parent) for path in found if path.name.startswith(stem)))


def programs_of(edits: ContainerEdits) -> dict[str, str]:
    """Return the programs of the driver on the node, by name."""
    found = {PurePosixPath(each.inside): each.host for each in edits.mounts}
    return {path.name: host for path, host in found.items() if path.parent.name in ("bin", "sbin")}


def unshareable(capabilities: str) -> list[str]:
    """Return the driver capabilities in `NVIDIA_DRIVER_CAPABILITIES` that a share does not have.

    "all" asks for whatever there is, so it names none.
    """
    asked = {word.strip() for word in capabilities.split(",")}
    return sorted(asked - SHAREABLE - {"", "all"})


def _shareable(path: PurePosixPath, replaced: Sequence[str]) -> bool:
    if _LIBRARY.search(path.name):
        metered = not any(fnmatchcase(path.name, pattern) for pattern in _UNMETERED)
        return metered and not path.name.startswith(tuple(replaced)) and not _GRAPHICS_FOLDERS & set(path.parts)
    if path.parent.name in ("bin", "sbin"):
        return path.name in _SHARE_PROGRAMS
    return "mps" not in path.name and not _GRAPHICS_FOLDERS & set(path.parts) and path.name != "nvoptix.bin"


def _with_folder(hook: Hook, folder: str) -> Hook:
    if _hook_name(hook) != _LDCACHE:
        return hook
    return msgspec.structs.replace(hook, args=(*hook.args, "--folder", folder))


def _hook_name(hook: Hook) -> str:
    """Return the toolkit's name of a hook: `nvidia-cdi-hook NAME`, in older releases `nvidia-ctk hook NAME`."""
    words = [word for word in hook.args[1:] if word != "hook"]
    return words[0] if words else ""


def _is_gpu_node(path: str) -> bool:
    return re.fullmatch(r"/dev/nvidia\d+", path) is not None
