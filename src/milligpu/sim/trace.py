"""Nodes and pods as the openb CSV files have them, read strictly.

A trace is columns of whole numbers. Nodes: `sn,cpu_milli,memory_mib,gpu,model`. Pods:
`name,cpu_milli,memory_mib,num_gpu,gpu_milli`, and where known `gpu_spec` (models, `A|B`), `creation_time` and
`deletion_time` in seconds. Other columns are ignored.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu, Node
from milligpu.model.request import ContainerRequest, PodRef, PodRequest, ShareRequest
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, Milli

# Far beyond any machine, and small enough that no sum overflows.
CPU_MAX = 4_096_000
MEMORY_MAX = 1 << 28
TIME_MAX = 1 << 40
# The traces have no GPU memory: every GPU of a replay has this much, and shares take their fraction of it.
GPU_MIB = Mib(16384)


@dataclass(frozen=True, slots=True)
class TracePod:
    """One line of a pod list."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: tuple[str, ...] = ()
    """Allowed models; none means all."""
    lifetime: int = 0
    """In seconds; 0 where it is not known."""

    @property
    def gpu_total(self) -> int:
        """The milli-GPU that the pod asks for, on all its GPUs together."""
        return self.num_gpu * self.gpu_milli

    @property
    def group(self) -> str:
        """The class that failures are counted by."""
        if not self.num_gpu:
            return "cpu-only"
        if self.num_gpu > 1:
            return "multi-gpu"
        return "one-gpu" if self.gpu_milli == WHOLE else "fractional"

    def request(self, name: str = "") -> PodRequest:
        """Return the pod as a `PodRequest`, under another name if one is given."""
        containers = ()
        if self.num_gpu:
            containers = (ContainerRequest("main", ShareRequest(self.num_gpu, Milli(self.gpu_milli))),)
        wants = Requirements(models=self.models) if self.models else ANY
        return PodRequest(
            PodRef("trace", name or self.name, name or self.name),
            containers,
            requirements=wants,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
        )


GROUPS = ("cpu-only", "fractional", "one-gpu", "multi-gpu")


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and the pods that arrive in it."""

    nodes: tuple[Node, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity(self) -> int:
        """All milli-GPU of the cluster."""
        return sum(gpu.milli for node in self.nodes for gpu in node.gpus)


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Read both files; raise an error that names the file and line of the first mistake."""
    found = read_nodes(nodes)
    models = {gpu.model for node in found for gpu in node.gpus}
    trace = Trace(found, read_pods(pods, models))
    if not trace.capacity:
        raise BadFormat(str(nodes), "column gpu: no node has a GPU: must be above 0 for at least one")
    if not any(pod.num_gpu for pod in trace.pods):
        raise BadFormat(str(pods), "column num_gpu: no pod asks for a GPU: must be above 0 for at least one")
    return trace


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Read a node list."""
    nodes: list[Node] = []
    names: set[str] = set()
    for line in _lines(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        name = line.name("sn", names)
        gpus = line.number("gpu", 0, GPUS_MAX)
        model = line.text("model")
        if gpus and not model:
            raise line.bad("model", "the model of the node's GPUs")
        devices = tuple(Gpu(f"GPU-{name}-{at}"[:47], model, GPU_MIB) for at in range(gpus))
        nodes.append(
            Node(name, devices, line.number("cpu_milli", 1, CPU_MAX), line.number("memory_mib", 1, MEMORY_MAX))
        )
    return tuple(nodes)


def read_pods(path: Path, models: Iterable[str]) -> tuple[TracePod, ...]:
    """Read a pod list; the models it names must be ones that the nodes have."""
    known = sorted(models)
    pods: list[TracePod] = []
    names: set[str] = set()
    for line in _lines(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        name = line.name("name", names)
        count = line.number("num_gpu", 0, GPUS_MAX)
        milli = line.number("gpu_milli", 1 if count else 0, WHOLE if count else 0)
        if count > 1 and milli != WHOLE:
            raise line.bad("gpu_milli", f"{WHOLE} when num_gpu is above 1")
        pods.append(
            TracePod(
                name,
                line.number("cpu_milli", 0, CPU_MAX),
                line.number("memory_mib", 0, MEMORY_MAX),
                count,
                milli,
                line.models("gpu_spec", known) if count else (),
                line.lifetime(),
            )
        )
    return tuple(pods)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a file; its errors name the file and the line."""

    path: Path
    number_: int
    cells: dict[str, str]

    def bad(self, column: str, want: str) -> BadFormat:
        where = f"{self.path}:{self.number_}"
        return BadFormat(where, f"column {column}: {self.cells.get(column, '')!r}: must be {want}")

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def name(self, column: str, taken: set[str]) -> str:
        name = self.text(column)
        if not name or name in taken:
            raise self.bad(column, "a name that no other line has")
        taken.add(name)
        return name

    def number(self, column: str, low: int, high: int) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX and low <= int(text) <= high):
            raise self.bad(column, f"a whole number from {low} to {high}" if low < high else str(low))
        return int(text)

    def models(self, column: str, known: Sequence[str]) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name for name in self.cells.get(column, "").split("|") if name))
        for name in names:
            if name not in known:
                raise self.bad(column, f"models that a node has ({', '.join(known)}), joined by |")
        return names

    def lifetime(self) -> int:
        if not self.cells.get("creation_time") or not self.cells.get("deletion_time"):
            return 0
        start = self.number("creation_time", 0, TIME_MAX)
        end = self.number("deletion_time", 0, TIME_MAX)
        if end < start:
            raise self.bad("deletion_time", f"a time from creation_time ({start}) on")
        return end - start


_DIGITS_MAX = 16


def _lines(path: Path, columns: Sequence[str]) -> Iterator[_Line]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _read(path, file, columns)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadFormat(str(path), f"{reason}: must be a CSV file") from None


def _read(path: Path, file: Iterable[str], columns: Sequence[str]) -> Iterator[_Line]:
    reader = csv.reader(file)
    header = [cell.strip() for cell in next(reader, list[str]())]
    want = ", ".join(columns)
    if not header:
        raise BadFormat(f"{path}:1", f"the file is empty: must have a header with {want}")
    for column in columns:
        if column not in header:
            raise BadFormat(f"{path}:1", f"column {column}: missing: must have {want}")
    empty = True
    try:
        for cells in reader:
            if not cells:
                continue
            empty = False
            if len(cells) != len(header):
                last = header[min(len(cells), len(header)) - 1]
                problem = f"column {last}: {len(cells)} values: must be {len(header)}"
                raise BadFormat(f"{path}:{reader.line_num}", problem)
            yield _Line(path, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise BadFormat(f"{path}:{reader.line_num}", f"{error}: must be CSV") from None
    if empty:
        raise BadFormat(f"{path}:2", f"the file has no lines after its header: must have {want}")


def write_trace(folder: Path, trace: Trace) -> None:
    """Write a trace as the two files that `read_trace` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nodes.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        for node in trace.nodes:
            model = node.gpus[0].model if node.gpus else ""
            out.writerow((node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model))
    with (folder / "pods.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            (
                "name",
                "cpu_milli",
                "memory_mib",
                "num_gpu",
                "gpu_milli",
                "gpu_spec",
                "creation_time",
                "deletion_time",
            )
        )
        for pod in trace.pods:
            size = (pod.cpu_milli, pod.memory_mib, pod.num_gpu, pod.gpu_milli)
            out.writerow((pod.name, *size, "|".join(pod.models), 0, pod.lifetime))
