"""What the documentation lists is what there is."""

import re
from pathlib import Path

from milligpu.metrics.node import HELP
from milligpu.model.names import USER_ANNOTATIONS
from milligpu.model.qos import Policy, Strategy
from milligpu.model.reasons import RESOLVABLE, Reason
from milligpu.node.checks import Fault

DOCS = Path(__file__).parents[2] / "docs"


def test_every_reason_is_documented_with_whether_it_passes() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|no) \|", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert dict(rows) == {str(reason): "yes" if reason in RESOLVABLE else "no" for reason in Reason}


def test_every_annotation_policy_and_strategy_is_documented() -> None:
    text = (DOCS / "requests.md").read_text()
    assert [word for word in (*USER_ANNOTATIONS, *Policy, *Strategy) if f"`{word}`" not in text] == []


def test_every_fault_of_the_agent_is_documented() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* \|", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert rows == [str(fault) for fault in Fault]


def test_every_metric_of_the_agent_is_documented() -> None:
    rows = re.findall(r"^\| `(milligpu_\w+?)(?:_total)?` \|", (DOCS / "agent.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted([*HELP, "milligpu_gpu_healthy", "milligpu_gpu_outside", "milligpu_gpu_throttled"])
