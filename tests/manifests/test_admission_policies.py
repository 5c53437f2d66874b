"""What the policies let an agent write is what an agent writes."""

import pytest

from milligpu.agent.node_labels import node_labels
from milligpu.manifests.admission_policies import AGENT_NODES, admission_policies
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib

POLICIES = admission_policies("milligpu", "scheduler", "agent")
(AGENT_POLICY,) = (
    each for each in POLICIES if each["metadata"]["name"] == AGENT_NODES and "validations" in each["spec"]
)
GPUS = [Gpu("GPU-1", "GRID V100-8Q", Mib(8192))]
LABELS = {**node_labels(GPUS, "550.54.15", {}), **node_labels([], "", {}), names.VGPU_TYPE: "v100-8q-8GB"}


@pytest.mark.parametrize("label", LABELS)
def test_every_label_that_an_agent_writes_is_allowed(label: str) -> None:
    expression = AGENT_POLICY["spec"]["validations"][1]["expression"]
    assert f"'{label}'" in expression or (
        label.startswith(names.VGPU_PROFILE) and f"startsWith('{names.VGPU_PROFILE}')" in expression
    )


def test_every_policy_denies_where_it_cannot_be_evaluated() -> None:
    specs = [each["spec"] for each in POLICIES]
    assert {spec["failurePolicy"] for spec in specs if "validations" in spec} == {"Fail"}
    assert {tuple(spec["validationActions"]) for spec in specs if "policyName" in spec} == {("Deny",)}
