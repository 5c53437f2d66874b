"""Calendars of layouts: which layout holds, and which is next, as their conditions say it."""

from collections.abc import Sequence
from typing import Any

from milligpu.kube.api import ApiRefused
from milligpu.kube.fetch import get_json
from milligpu.model.names import CALENDARS_PATH
from milligpu.status.queue_values import CalendarSummary

# This user may not list them, or the cluster does not know the kind.
_NONE = {403, 404}


def read_calendars(client: Any) -> Sequence[CalendarSummary]:
    """List the calendars; none where there are none, or where this user may not look."""
    try:
        found = get_json(client, CALENDARS_PATH)["items"]
    except ApiRefused as error:
        if error.status not in _NONE:
            raise
        return []
    return [calendar_status(each) for each in found]


def calendar_status(found: dict[str, Any]) -> CalendarSummary:
    """Read the status that the scheduler service wrote."""
    status: dict[str, Any] = found.get("status", {})
    upcoming: dict[str, str] = next(iter(status.get("next", [])), dict[str, str]())
    conditions: list[dict[str, str]] = status.get("conditions", [])
    ready: dict[str, str] = next((each for each in conditions if each["type"] == "Ready"), dict[str, str]())
    return CalendarSummary(
        found["metadata"]["name"],
        status.get("layout", ""),
        upcoming.get("to", ""),
        upcoming.get("local", ""),
        ready.get("reason", ""),
        ready.get("message", ""),
    )
