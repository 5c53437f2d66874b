"""Reading traces: what is right is read, what is wrong is one line with its place."""

from pathlib import Path

import pytest

from milligpu.model.errors import BadFormat
from milligpu.sim.generate import WorkloadMix, generate
from milligpu.sim.trace import GROUPS, TracePod, read_trace, write_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,V100\nn2,32000,131072,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "p1,4000,8192,1,500,,10,70\np2,8000,8192,0,0,,5,5\np3,8000,8192,2,1000,V100|V100,,\n"
)


def files(folder: Path, nodes: str = NODES, pods: str = PODS) -> tuple[Path, Path]:
    paths = folder / "nodes.csv", folder / "pods.csv"
    for path, text in zip(paths, (nodes, pods), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_a_trace_is_read_as_written(tmp_path: Path) -> None:
    trace = read_trace(*files(tmp_path))
    assert [len(node.gpus) for node in trace.nodes] == [8, 0]
    assert trace.capacity == 8000
    assert trace.pods == (
        TracePod("p1", 4000, 8192, 1, 500, (), 60),
        TracePod("p2", 8000, 8192, 0, 0, (), 0),
        TracePod("p3", 8000, 8192, 2, 1000, ("V100",), 0),
    )


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    trace = read_trace(*files(tmp_path, pods="name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"))
    assert trace.pods == (TracePod("p", 1, 1, 1, 1000),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "num_gpu",
            "gpus",
            "pods.csv:1: column num_gpu: missing: must have name, cpu_milli, memory_mib, num_gpu, gpu_milli",
        ),
        ("p1,4000", "p1,-4000", "pods.csv:2: column cpu_milli: '-4000': must be a whole number from 0 to 4096000"),
        ("1,500", "1,1001", "pods.csv:2: column gpu_milli: '1001': must be a whole number from 1 to 1000"),
        ("1,500", "1,0", "pods.csv:2: column gpu_milli: '0': must be a whole number from 1 to 1000"),
        ("1,500", "1,half", "pods.csv:2: column gpu_milli: 'half': must be a whole number from 1 to 1000"),
        ("1,500", "99,500", "pods.csv:2: column num_gpu: '99': must be a whole number from 0 to 64"),
        ("2,1000", "2,500", "pods.csv:4: column gpu_milli: '500': must be 1000 when num_gpu is above 1"),
        (
            "V100|V100",
            "V100|H100",
            "column gpu_spec: 'V100|H100': must be models that a node has (V100), joined",
        ),
        ("10,70", "10,7", "pods.csv:2: column deletion_time: '7': must be a time from creation_time (10) on"),
        ("p2,", "p1,", "pods.csv:3: column name: 'p1': must be a name that no other line has"),
        ("p2,8000,", "p2,", "pods.csv:3: column creation_time: 7 values: must be 8"),
    ],
)
def test_a_wrong_pod_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(BadFormat) as caught:
        read_trace(*files(tmp_path, pods=PODS.replace(old, new, 1)))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("", "nodes.csv:1: the file is empty: must have a header with sn, cpu_milli, memory_mib, gpu, model"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "nodes.csv:2: the file has no lines after its header"),
        (NODES.replace(",V100", ","), "nodes.csv:2: column model: '': must be the model of the node's GPUs"),
        (NODES.replace("8,V100", "0,"), "column gpu: no node has a GPU"),
        (NODES.replace("96000", "0"), "nodes.csv:2: column cpu_milli: '0': must be a whole number from 1 to"),
    ],
)
def test_a_wrong_node_list_is_named_with_its_place(tmp_path: Path, nodes: str, message: str) -> None:
    with pytest.raises(BadFormat) as caught:
        read_trace(*files(tmp_path, nodes=nodes, pods=PODS.replace("V100|V100", "")))
    assert message in caught.value.message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    nodes, pods = files(tmp_path)
    with pytest.raises(BadFormat, match=r"absent.csv: No such file or directory: must be a CSV file"):
        read_trace(tmp_path / "absent.csv", pods)
    pods.write_bytes(b"name,\xff\n")
    with pytest.raises(BadFormat, match="not UTF-8 text"):
        read_trace(nodes, pods)


def test_what_is_generated_can_be_written_and_read_again(tmp_path: Path) -> None:
    made = generate(20, seed=3)
    write_trace(tmp_path, made)
    again = read_trace(tmp_path / "nodes.csv", tmp_path / "pods.csv")
    assert again.pods == made.pods
    assert [(n.name, len(n.gpus), n.cpu_milli) for n in again.nodes] == [
        (n.name, len(n.gpus), n.cpu_milli) for n in made.nodes
    ]


def test_the_generator_keeps_to_its_mix_and_its_seed() -> None:
    trace = generate(150, seed=1)
    assert trace == generate(150, seed=1)
    assert trace != generate(150, seed=2)
    parts = {group: sum(pod.group == group for pod in trace.pods) / len(trace.pods) for group in GROUPS}
    assert parts["cpu-only"] == pytest.approx(0.133, abs=0.04)
    assert parts["fractional"] == pytest.approx(0.378, abs=0.05)
    assert sum(pod.gpu_total for pod in trace.pods) >= 1.05 * trace.capacity
    sharing = generate(50, mix=WorkloadMix(cpu_only=0, fractional=1, several=0, model_specific=0))
    assert {pod.group for pod in sharing.pods} == {"fractional"}
