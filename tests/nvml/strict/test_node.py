"""What real drivers refuse, answer oddly or never answer concerns one GPU, in the agent and in every command."""

import os
import random
import re
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from testing.strictnvml.build import documented
from tests.nvml.standin import real
from tests.nvml.strict.conftest import MODELS, PATIENCE_S, StrictNode, answer

GPUS = range(len(MODELS))
# What a driver answers about something that a GPU, its firmware or this user does not have.
NOT_HERE = ("NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT")
# Every driver answers these about every GPU that works, or nothing could use it.
ALWAYS = re.compile(r"nvml(Init|Shutdown|System|Event|DeviceGet(Count|Handle|UUID|Index|Name|MinorNumber|MigMode))")
MEMORY = "nvmlDeviceGetMemoryInfo"
SEEDS = 4


def code(name: str) -> int:
    return int(getattr(real, f"NVML_ERROR_{name}"))


def not_here(seed: int) -> list[str]:
    """Rules by which each model lacks what it is drawn to lack: older drivers do not even have the function."""
    dice, rules = random.Random(seed), list[str]()
    for function, errors in sorted(documented().items()):
        allowed = ["FUNCTION_NOT_FOUND", *(each for each in NOT_HERE if f"NVML_ERROR_{each}" in errors)]
        for gpu in GPUS:
            if not ALWAYS.match(function) and dice.random() < 0.5:
                rules.append(f"answer {function} {gpu} {code(dice.choice(allowed))}")
    links = [f"links {gpu} {dice.choice((0, 2, 4, 6, 12, 18))}" for gpu in GPUS]
    return [*links, *rules]


def rule_for(rules: list[str], function: str, gpu: int) -> int | None:
    return next((int(rule.split()[3]) for rule in rules if rule.startswith(f"answer {function} {gpu} ")), None)


def odd(seed: int) -> tuple[int, list[str]]:
    """A GPU that answers one in ten questions with any code, and the rules for it."""
    dice = random.Random(seed)
    gpu = dice.choice(GPUS)
    codes = [*range(1, 31), 998, 999]
    functions = [each for each in sorted(documented()) if not each.startswith(("nvmlInit", "nvmlShutdown"))]
    return gpu, [
        f"answer {each} {gpu} {dice.choice(codes)}" for each in functions if dice.random() < 0.1 or "Temp" in each
    ]


MIG = ["mig 1", f"answer nvmlDeviceGetUtilizationRates 1 {code('NOT_SUPPORTED')}"]
CASES: Mapping[str, list[str]] = {
    **{f"lacks {seed}": not_here(seed) for seed in range(SEEDS)},
    **{f"odd {seed}": odd(seed)[1] for seed in range(SEEDS)},
    "no links": [f"links {gpu} 0" for gpu in GPUS],
    "unified": [f"answer {MEMORY} 3 {code('NOT_SUPPORTED')}"],
    "mig": MIG,
    "mig without rights": [*MIG, f"answer {MEMORY} 1 {code('NO_PERMISSION')}"],
}


@pytest.fixture(scope="module")
def seen(node: StrictNode) -> Mapping[str, Any]:
    """What agent, `gpu list` and `doctor` see in every case: one process for all, because its start takes long."""
    return dict(zip(CASES, node.client("agent", CASES.values()), strict=True))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_gpus_that_lack_whatever_their_model_may_lack_are_offered_and_read(
    seen: Mapping[str, Any], seed: int
) -> None:
    rules, found = CASES[f"lacks {seed}"], seen[f"lacks {seed}"]
    memory = {gpu: rule_for(rules, MEMORY, gpu) for gpu in GPUS}
    # A GPU without memory of its own uses the machine's; one that does not tell cannot be shared.
    usable = {gpu for gpu in GPUS if memory[gpu] in (None, code("NOT_SUPPORTED"))}
    assert found["states"] == {str(gpu): "ok" for gpu in usable}
    assert found["readings"] == sorted(usable)
    assert found["metrics"]["milligpu_gpu_memory_total_bytes"] == len(usable)
    for gpu in GPUS:
        assert found["doctor"][f"GPU {gpu}"] == ("passed" if gpu in usable else "failed")
        reason = None if gpu in usable else "NVML does not report its memory"
        assert found["listed"][gpu]["reason"] == reason


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_gpu_with_odd_answers_does_not_affect_the_others(seen: Mapping[str, Any], seed: int) -> None:
    bad, found = odd(seed)[0], seen[f"odd {seed}"]
    others = {gpu for gpu in GPUS if gpu != bad}
    assert {gpu for gpu in others if found["states"].get(str(gpu)) == "ok"} == others
    assert others <= set(found["readings"])
    assert len(found["listed"]) == len(MODELS)
    assert all(found["doctor"][f"GPU {gpu}"] == "passed" for gpu in others)


def test_links_beyond_a_gpus_own_are_not_counted(seen: Mapping[str, Any]) -> None:
    assert seen["no links"]["states"] == {str(gpu): "ok" for gpu in GPUS}
    assert not any(link.startswith("NV") for each in seen["no links"]["listed"] for link in each["links"].values())


def test_a_gpu_without_memory_of_its_own_has_the_machines(seen: Mapping[str, Any]) -> None:
    found = seen["unified"]
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert (found["memory"]["3"], found["states"]["3"]) == (machine, "ok")
    listed = found["listed"][3]
    assert (listed["memory_total_mib"], listed["memory_used_mib"]) == (machine, None)
    assert found["metrics"]["milligpu_gpu_memory_total_bytes"] == len(MODELS)
    assert found["metrics"]["milligpu_gpu_memory_used_bytes"] == len(MODELS) - 1


def test_a_gpu_in_mig_mode_is_known_and_answers_as_documented(seen: Mapping[str, Any]) -> None:
    """With MIG on there is no utilization of the whole GPU, and users without rights do not see its memory."""
    assert seen["mig"]["modes"] == {"0": "share", "1": "mig", "2": "share", "3": "share"}
    assert set(seen["mig"]["states"].values()) == {"ok"}
    refused = seen["mig without rights"]
    assert refused["states"] == {"0": "ok", "2": "ok", "3": "ok"}
    assert refused["listed"][1]["reason"] == "NVML does not report its memory"


def test_commands_end_although_calls_about_gpus_hang(node: StrictNode) -> None:
    """One GPU hangs before it is known, the other one later."""
    node.rule("hang nvmlDeviceGetUUID 2", "hang nvmlDeviceGetTemperature 3", "hang nvmlDeviceGetTemperatureV 3")
    listing = node.milligpu("gpu", "list", "-o", "json")
    doctor = node.milligpu("doctor", "-o", "json", "--kubelet-dir", str(node.folder), "--node", "n")
    run = node.milligpu("run", "-p", "0.5", "-m", "1Gi", "--", "true")
    status, gpus = answer(listing)
    assert (status, [gpu["health"] for gpu in gpus]) == (0, ["ok", "ok", "unhealthy", "unhealthy"])
    assert [gpu["reason"] for gpu in gpus[2:]] == ["the driver has not answered for 5 s"] * 2
    _, checks = answer(doctor)
    results = {each["name"]: each["result"] for each in checks}
    assert [results[f"GPU {gpu}"] for gpu in GPUS] == ["passed", "passed", "failed", "failed"]
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err


def test_a_gpu_that_is_lost_while_in_use_is_reported_and_the_others_are_used(node: StrictNode) -> None:
    node.rule()
    shown = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line")
    first = node.milligpu("run", "-p", "0.5", "-m", "1Gi", "--", *shown)
    assert first.stdout
    held = first.stdout.readline().strip()
    _, gpus = answer(node.milligpu("gpu", "list", "-o", "json"))
    bad = next(gpu["index"] for gpu in gpus if gpu["uuid"] in held)
    node.rule(f"answer * {bad} {code('GPU_IS_LOST')}")
    second = node.milligpu("run", "-p", "0.6", "-m", "1Gi", "--", *shown)
    out, err = second.communicate("\n", timeout=PATIENCE_S)
    assert second.returncode == 0, err
    assert held not in out
    _, gpus = answer(node.milligpu("gpu", "list", "-o", "json"))
    assert [gpu["health"] for gpu in gpus] == ["unhealthy" if at == bad else "ok" for at in GPUS]
    report = node.start(sys.executable, "-m", "milligpu.checks.health_server")
    out, err = report.communicate(timeout=PATIENCE_S)
    assert report.returncode == 0, err
    assert f"GPU {bad}: it has fallen off the bus" in out
    first.communicate("\n", timeout=PATIENCE_S)
    assert first.returncode == 0
