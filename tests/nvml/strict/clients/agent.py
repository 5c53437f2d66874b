"""What the agent offers, reads and exports under rules: a line of rules in, a line of what is seen out."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from click.testing import CliRunner

from milligpu.agent import gpus as module
from milligpu.agent.gpus import GpuWatch
from milligpu.agent.settings import AgentSettings
from milligpu.agent.usage import UsageReader
from milligpu.checks.node import driver
from milligpu.cli.gpu import command
from milligpu.logs import configure_logs
from milligpu.metrics.node import families
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.readings import GpuVitals, LostGpu
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.energy import EnergyAccounts
from milligpu.tenancy.tenants import Tenants

RULES = Path(os.environ["STRICT_NVML"])
# The agent waits a second between two looks, and for an XID.
module.LOOK_S = 0.2
module._EVENT_S = 0.02  # pyright: ignore[reportPrivateUsage]


class NoAttachments:
    """The agent's attachments when no container runs."""

    held: Mapping[str, Any] = MappingProxyType({})


class CountingGpus(NvmlGpus):
    """Counts how often the agent has looked at the GPUs' health."""

    looks = 0

    def vitals(self) -> tuple[GpuVitals | LostGpu, ...]:
        self.looks += 1
        return super().vitals()


async def look(tenants: Tenants) -> dict[str, object]:
    with CountingGpus() as nvml:
        watch = GpuWatch(nvml, lambda: None)
        task = asyncio.create_task(watch.run())
        await watch.read()
        while nvml.looks < 2:  # then the first look is in the states
            await asyncio.sleep(0.001)
        none: Any = NoAttachments()
        usage = UsageReader(
            "n", watch, none, tenants=tenants, sessions=lambda: None, demands=dict, energy=EnergyAccounts()
        )
        samples, _ = usage.samples({})
        metrics = {family.name: len(family.samples) for family in families(samples, [])}
        found: dict[str, object] = {
            "states": {index: watch.gpus[gpu.uuid].state.value for index, gpu in nvml.known().items()},
            "memory": {index: gpu.mib for index, gpu in nvml.known().items()},
            "modes": {index: gpu.mode.value for index, gpu in nvml.known().items()},
            "readings": sorted(each.index for each in watch.readings.values()),
            "metrics": metrics,
        }
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return found


configure_logs(structured=True)
arbiter = Arbiter()
for line in sys.stdin:
    RULES.with_suffix(".new").write_text("".join(f"{rule}\n" for rule in json.loads(line)))
    RULES.with_suffix(".new").rename(RULES)
    seen = asyncio.run(look(Tenants(arbiter)))
    listed = CliRunner().invoke(command, ["list", "-o", "json"], catch_exceptions=False)
    checked = {each.name: str(each.result) for each in driver(AgentSettings("n"), os.environ)}
    print(json.dumps({**seen, "listed": json.loads(listed.output), "doctor": checked}))
arbiter.close()
