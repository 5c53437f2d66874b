"""`milligpu layout`: calendars of the cluster, what their next switches do, and a person's changes to them."""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milligpu.kube.config import BlockingClient
    from milligpu.layouts.calendar import LayoutSwitch
    from milligpu.layouts.spec import CalendarSpec

_LOOK_S = 0.5
_kubeconfig = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")


@click.group()
def command() -> None:
    """Show which layout holds on the GPUs of the cluster, and switch to another."""


def _client(kubeconfig: str | None) -> "BlockingClient":
    from milligpu.kube import config

    return config.blocking_client(config.find_cluster(kubeconfig))


def _calendar(client: "BlockingClient", name: str) -> tuple[dict[str, Any], "CalendarSpec"]:
    """Return a calendar object, and what it says."""
    from milligpu.kube.api import ApiRefused
    from milligpu.kube.fetch import get_json
    from milligpu.layouts.spec import parse_calendar
    from milligpu.model.names import CALENDARS_PATH

    try:
        found = get_json(client, f"{CALENDARS_PATH}/{name}")
    except ApiRefused as error:
        if error.status != 404:
            raise
        hint = "list them with: milligpu layout list"
        raise BadRequest("calendar", name, "the name of a GpuCalendar", hint=hint) from None
    return found, parse_calendar(found, datetime.now(UTC))


def _change(client: "BlockingClient", name: str, spec: dict[str, Any]) -> None:
    from milligpu.kube.fetch import patch_json
    from milligpu.model.names import CALENDARS_PATH

    patch_json(client, f"{CALENDARS_PATH}/{name}", {"spec": spec})


def _reason(status: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), dict[str, Any]())


@command.command("list")
@_kubeconfig
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME)
def list_(kubeconfig: str | None, output: OutputFormat) -> None:
    """List the calendars with the layout that holds and the next switch."""
    from milligpu.kube.fetch import get_json
    from milligpu.model.names import CALENDARS_PATH
    from milligpu.status.calendars import calendar_status

    with _client(kubeconfig) as client:
        found = get_json(client, CALENDARS_PATH)["items"]
    if output is OutputFormat.NAME:
        for each in found:
            click.echo(each["metadata"]["name"])
    elif output is OutputFormat.TABLE:
        rows = [
            [each.name, *(part or "-" for part in (each.layout, each.next_layout, each.next_at, each.state))]
            for each in map(calendar_status, found)
        ]
        show_table(["CALENDAR", "LAYOUT", "NEXT", "AT", "STATE"], rows)
        if not found:
            click.echo("no calendar exists; docs/layouts.md shows how to create one", err=True)
    else:
        show_data([{"name": e["metadata"]["name"], "status": e.get("status", {})} for e in found], output)


@command.command()
@click.argument("calendar")
@_kubeconfig
def show(calendar: str, kubeconfig: str | None) -> None:
    """Show the layout that holds and the next seven switches, in local time and in UTC."""
    with _client(kubeconfig) as client:
        found, spec = _calendar(client, calendar)
    status = found.get("status", {})
    ready = _reason(status)
    click.echo(f"layout {status.get('layout', '-')}; {ready.get('reason', '-')}: {ready.get('message', '-')}")
    rows = [
        [f"{each.local:%a %Y-%m-%d %H:%M}", f"{each.at:%Y-%m-%d %H:%M}", each.after, each.odd or "-"]
        for each in spec.calendar.next_switches(datetime.now(UTC))
    ]
    show_table([f"LOCAL ({spec.calendar.zone.key})", "UTC", "LAYOUT", "NOTE"], rows)


@command.command()
@click.argument("calendar")
@click.argument("layout", required=False)
@_kubeconfig
def preview(calendar: str, layout: str | None, kubeconfig: str | None) -> None:
    """Show what the next switch changes, node by node, or a switch to LAYOUT. Changes nothing."""
    from milligpu.cluster.read import read_cluster
    from milligpu.kube import fetch
    from milligpu.layouts.plan import nodes_of
    from milligpu.layouts.preview import preview_switch
    from milligpu.scheduler.card_actuator import layout_node

    with _client(kubeconfig) as client:
        found, spec = _calendar(client, calendar)
        upcoming = spec.calendar.next_switches(datetime.now(UTC), 1)
        name = layout or (upcoming[0].after if upcoming else spec.calendar.default)
        wanted = _layout(client, name)
        objects, pods = fetch.list_nodes(client), fetch.list_pods(client)
        state = read_cluster(objects, pods, fetch.list_classes(client))
        if wanted.machines:
            _preview_machines(client, found, wanted, f"{name}{_when(upcoming, layout)}")
        if wanted.machines and not wanted.groups:
            return
    held: dict[str, int] = {}
    for entry in state.bound():
        held[entry.node] = held.get(entry.node, 0) + 1
    nodes = nodes_of([spec], [layout_node(each) for each in objects])[spec.name]
    rows = preview_switch(wanted, spec.name, nodes, held)
    click.echo(
        f"switch to {name}{_when(upcoming, layout)}: {'GPUs' if wanted.machines else 'all pods go on running'}"
    )
    show_table(
        ["NODE", "GPUS", "PODS", "CHANGE"],
        [
            [r.node, str(r.gpus), str(r.pods), "; ".join((*r.changes, *filter(None, (r.note,)))) or "-"]
            for r in rows
        ],
        right=["GPUS", "PODS"],
    )


def _when(upcoming: "Sequence[LayoutSwitch]", layout: str | None) -> str:
    return f" at {upcoming[0].local:%a %H:%M}" if upcoming and layout is None else ""


def _preview_machines(client: "BlockingClient", calendar: dict[str, Any], wanted: Any, what: str) -> None:
    """Show VM by VM what is done, which pods are suspended or evicted, and what blocks it."""
    from milligpu.kube.fetch import get_json
    from milligpu.layouts.machine_preview import preview_machines, read_budgets

    status: dict[str, Any] = calendar.get("status", {})
    present = _layout(client, status["layout"]) if status.get("layout") else None
    pods: dict[str, list[dict[str, Any]]] = {each.node: [] for each in wanted.machines}
    for pod in get_json(client, "/api/v1/pods")["items"]:
        if (where := pod["spec"].get("nodeName")) in pods:
            pods[where].append(pod)
    budgets = read_budgets(get_json(client, "/apis/policy/v1/poddisruptionbudgets")["items"])
    rows = preview_machines(wanted, present, pods, budgets)
    past = [each for each in status.get("history", ()) if each["phase"] == "Done" and each["to"] == wanted.name]
    took = f", about {_seconds(past[0]):.0f} s as last time" if past else ""
    click.echo(f"switch to {what}: VMs{took}")
    cells = [
        [each.name, each.node, each.action, ", ".join(each.suspended) or "-", ", ".join(each.evicted) or "-"]
        for each in rows
    ]
    show_table(["VM", "NODE", "ACTION", "PODS SUSPENDED", "PODS EVICTED"], cells)
    for each in rows:
        for problem in each.blocked:
            click.echo(f"blocked: {problem}")


def _seconds(past: dict[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(past[key]) for key in ("startedAt", "endedAt"))
    return (end - begin).total_seconds()


def _layout(client: "BlockingClient", name: str) -> Any:
    from milligpu.kube.fetch import get_json
    from milligpu.layouts.spec import parse_layout
    from milligpu.model.names import LAYOUTS_PATH

    found = {each["metadata"]["name"]: each for each in get_json(client, LAYOUTS_PATH)["items"]}
    if name not in found:
        raise BadRequest("layout", name, f"the name of a GpuLayout: {', '.join(sorted(found)) or 'none exists'}")
    return parse_layout(found[name])


@command.command()
@click.argument("calendar")
@click.argument("layout")
@click.option("--until", metavar="TIME", help="When the calendar goes on (default: at its next switch).")
@click.option("--watch", is_flag=True, help="Show the progress until the switch has ended.")
@_kubeconfig
def switch(calendar: str, layout: str, until: str | None, watch: bool, kubeconfig: str | None) -> None:
    """Switch to LAYOUT now, until the calendar's next switch.

    While a switch is under way, the layout before aborts it.
    """
    from milligpu.layouts.spec import parse_instant

    with _client(kubeconfig) as client:
        found, spec = _calendar(client, calendar)
        _layout(client, layout)
        upcoming = spec.calendar.next_switches(datetime.now(UTC), 1)
        end = parse_instant("--until", until) if until else upcoming[0].at if upcoming else None
        _change(client, calendar, {"override": {"layout": layout, "until": _stamp(end)}})
        click.echo(f"{calendar}: {layout} until {_stamp(end) or 'somebody switches back'}")
        if watch:
            _watch(client, calendar, found["metadata"]["generation"])


def _watch(client: "BlockingClient", calendar: str, generation: int) -> None:
    """Show each state of the switch on stderr once, until the controller has acted on the change and ended."""
    said = ""
    while True:
        found, _ = _calendar(client, calendar)
        ready = _reason(found.get("status", {}))
        line = f"{ready.get('reason', '-')}: {ready.get('message', '')}"
        if ready.get("observedGeneration", 0) > generation or found["metadata"]["generation"] == generation:
            if line != said:
                click.echo(line, err=True)
                said = line
            if ready.get("reason") != "Switching":
                return
        time.sleep(_LOOK_S)


@command.command()
@click.argument("calendar")
@click.argument("minutes", type=click.IntRange(1, 7 * 24 * 60))
@_kubeconfig
def postpone(calendar: str, minutes: int, kubeconfig: str | None) -> None:
    """Keep the present layout for MINUTES after the next switch is due."""
    with _client(kubeconfig) as client:
        found, spec = _calendar(client, calendar)
        present = found.get("status", {}).get("layout")
        upcoming = spec.calendar.next_switches(datetime.now(UTC), 1)
        if not present or not upcoming:
            raise BadRequest("calendar", calendar, "a calendar with a layout in force and a next switch")
        end = _stamp(upcoming[0].at + timedelta(minutes=minutes))
        _change(client, calendar, {"override": {"layout": present, "until": end}})
    click.echo(f"{calendar}: {present} until {end}")


@command.command()
@click.argument("calendar")
@click.option("--off", is_flag=True, help="End the pause.")
@_kubeconfig
def pause(calendar: str, off: bool, kubeconfig: str | None) -> None:
    """Keep the present layout until the pause ends."""
    with _client(kubeconfig) as client:
        _calendar(client, calendar)
        _change(client, calendar, {"paused": not off})
    click.echo(f"{calendar}: {'follows its windows' if off else 'paused'}")


@command.command()
@click.argument("calendar")
@_kubeconfig
def history(calendar: str, kubeconfig: str | None) -> None:
    """List the last switches with how long they took and why."""
    with _client(kubeconfig) as client:
        found, _ = _calendar(client, calendar)
    rows: list[list[str]] = []
    for each in found.get("status", {}).get("history", ()):
        begin, took = datetime.fromisoformat(each["startedAt"]), f"{_seconds(each):.1f} s"
        cells = [f"{begin:%Y-%m-%d %H:%M:%S}", each.get("from") or "-", each["to"], each["phase"], took]
        rows.append([*cells, each.get("message") or each.get("why", "-")])
    show_table(["BEGAN (UTC)", "FROM", "TO", "END", "TOOK", "WHY"], rows, right=["TOOK"])


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
