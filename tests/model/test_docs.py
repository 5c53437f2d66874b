"""What the documentation lists is what there is."""

import re
from pathlib import Path

from milligpu.model.names import USER_ANNOTATIONS
from milligpu.model.policy import PlacementStrategy, SharePolicy
from milligpu.model.reasons import RESOLVABLE, AttachReason, EventReason, Reason

DOCS = Path(__file__).parents[2] / "docs"


def test_every_reason_is_documented_with_whether_it_passes() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|no) \|", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert dict(rows) == {str(reason): "yes" if reason in RESOLVABLE else "no" for reason in Reason}


def test_every_annotation_policy_and_strategy_is_documented() -> None:
    text = (DOCS / "requests.md").read_text()
    assert [word for word in (*USER_ANNOTATIONS, *SharePolicy, *PlacementStrategy) if f"`{word}`" not in text] == []


def test_every_fault_of_the_agent_is_documented() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* \|", (DOCS / "reasons.md").read_text(), re.MULTILINE)
    assert rows == [str(fault) for fault in AttachReason]


def test_every_event_reason_is_documented() -> None:
    text = (DOCS / "reasons.md").read_text()
    rows = re.findall(r"^\| (?:\*\*|`)(\w+)(?:\*\*|`) \|", text, re.MULTILINE)
    assert [reason for reason in EventReason if reason not in rows] == []


def test_every_attach_reason_is_an_event_reason() -> None:
    assert {str(reason) for reason in AttachReason} <= {str(reason) for reason in EventReason}
