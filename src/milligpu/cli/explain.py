"""`milligpu explain`: why a pod waits, in the words of its event, or which GPUs it has."""

from typing import Any

import click

from milligpu.cli.output import Format, format_option, show_data


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", help="Default: that of the kubeconfig's context.")
@click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl.")
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def command(pod: str, namespace: str | None, kubeconfig: str | None, output: Format) -> None:
    """Say why a pod waits for a GPU and what would help, or which GPU it has.

    Who may list nodes and pods gets today's numbers; everybody else what the scheduler last said in an event.
    """
    from milligpu.kube import config

    found = config.find(kubeconfig)
    with config.blocking_client(found) as client:
        result = _explain(client, namespace or found.namespace or "default", pod)
    if output is Format.TABLE:
        click.echo(result["text"])
    else:
        show_data(result, output)


def _explain(client: Any, namespace: str, name: str) -> dict[str, Any]:
    from milligpu import dialects
    from milligpu.kube import fetch
    from milligpu.scheduler.sight import PodReader

    found = fetch.pod(client, namespace, name)
    sight = PodReader(dialects.read).sight(found)
    state, text = "waiting", ""
    if sight.node:
        state, text = "bound", _held(sight) + resizing(client, sight)
    elif not sight.wish.wants_gpu:
        state, text = "no-gpu", "it asks for no GPU: kubectl describe pod says what the scheduler thinks"
    elif sight.gated:
        state, text = "gated", "it has scheduling gates: nobody looks for a GPU until they are removed"
    else:
        text = _why(client, namespace, sight)
    return {"namespace": namespace, "pod": name, "state": state, "text": text}


def _held(sight: Any) -> str:
    from milligpu.scheduler.resizes import words

    if sight.grant is None:
        return f"on {sight.node}, without a grant: no GPU is attached to it"
    return f"on {sight.node}; {words(sight.grant)}"


def resizing(client: Any, sight: Any) -> str:
    """What keeps a pod from the share that it wants instead."""
    from milligpu.kube import fetch
    from milligpu.kube.api import Refused
    from milligpu.model.errors import BadRequest
    from milligpu.scheduler import resizes
    from milligpu.scheduler.resizer import WAITS
    from milligpu.scheduler.view import view

    if not sight.resize or sight.grant is None:
        return ""
    try:
        books = view(fetch.nodes(client), fetch.pods(client))
        entry = books.entry(sight.uid)
        grant = None if entry is None else resizes.wanted(entry)
        if entry is None or grant is None:
            return ""
        missing = resizes.short_of(books, entry, grant)
        why = resizes.explain(missing) if missing else "nothing is missing for it"
        return f"; wants {resizes.words(grant)}; {why}"
    except BadRequest as error:
        return f"; {error.message}"
    except Refused as error:
        if error.status != 403:
            raise
        said = fetch.notes(client, sight.wish.pod.namespace, sight.uid, WAITS)
        return f"; {said[-1]}" if said else ""


def _why(client: Any, namespace: str, sight: Any) -> str:
    from milligpu.kube import fetch
    from milligpu.kube.api import Refused
    from milligpu.scheduler.explain import REASON, explain
    from milligpu.scheduler.view import view

    try:
        books = view(fetch.nodes(client), fetch.pods(client))
    except Refused as error:
        if error.status != 403:
            raise
        said = fetch.notes(client, namespace, sight.uid, REASON)
        return said[-1] if said else "nothing was said about it yet; listing nodes and pods would tell"
    if books.fits(sight.wish):
        return f"it fits now: the scheduler will place it{_next(sight)}"
    return explain(books, sight.wish)


def _next(sight: Any) -> str:
    return f", on {sight.nominated}" if sight.nominated else ""
