"""Reads what services' pods serve, and the GPU time that agents charged them.

A GpuService is written by a user of a namespace, and the scheduler service can reach more than that user. So it
reads only a pod's own address at a port that the pod declares, follows no redirect, and reads a page of bounded
length within bounded time.
"""

import asyncio
from collections.abc import Iterable, Mapping

from milligpu.kube.connections import get_url
from milligpu.model.errors import BadFormat, MilligpuError, Unavailable
from milligpu.model.gpu_service import LoadSource
from milligpu.scheduler.service_pods import WatchedPod
from milligpu.services.load import PodLoad, parse_load
from milligpu.wire.scale import metrics_host
from milligpu.wire.status import decode_status

TIMEOUT_S = 1.0
PAGE_MAX = 1 << 20
# A thousand pods within a second, and far below the limit of open files.
_AT_ONCE = 256
_OK = 200


class LoadReader:
    """Reads pages, so many at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def read(
        self, pods: Iterable[WatchedPod], source: LoadSource
    ) -> tuple[dict[str, PodLoad], dict[str, MilligpuError]]:
        """Return what each pod serves, and why the others do not say."""
        listed = list(pods)
        answers = await asyncio.gather(*(self._one(each, source) for each in listed))
        loads, problems = dict[str, PodLoad](), dict[str, MilligpuError]()
        for each, answer in zip(listed, answers, strict=True):
            if isinstance(answer, PodLoad):
                loads[each.uid] = answer
            else:
                problems[each.uid] = answer
        return loads, problems

    async def _one(self, pod: WatchedPod, source: LoadSource) -> PodLoad | MilligpuError:
        name = pod.object.metadata.name
        host = metrics_host(bytes(pod.object.spec), bytes(pod.object.raw_status), source.port)
        if not host:
            return Unavailable(f"pod {name} does not declare TCP port {source.port} at an address of its own")
        try:
            text = await self._page(_url(host, source.port, source.path))
            return parse_load(text.decode(errors="replace"), source)
        except BadFormat as error:
            return type(error)(f"pod {name}: {error.document}", error.problem)
        except Unavailable as error:
            return error

    async def _page(self, url: str) -> bytes:
        async with self._slots:
            answer = await get_url(url, timeout_s=TIMEOUT_S, most=PAGE_MAX)
        if answer.status != _OK:
            raise Unavailable(f"GET {url}: {answer.status}")
        return answer.body

    async def accounts(self, agents: Mapping[str, str]) -> dict[tuple[str, str], int]:
        """Return the GPU time in ns that agents charged pods, by namespace and name.

        `agents` are the addresses of the agents, by node.
        """
        pages = await asyncio.gather(*(self._account(address) for address in agents.values()))
        return {key: used for page in pages for key, used in page.items()}

    async def _account(self, address: str) -> dict[tuple[str, str], int]:
        try:
            status = decode_status(await self._page(f"http://{address}/stats"))
        except (BadFormat, Unavailable):
            return {}
        found: dict[tuple[str, str], int] = {}
        for each in status.shares:
            if each.pod and each.gpu_time_ns is not None:
                key = each.namespace, each.pod
                found[key] = found.get(key, 0) + each.gpu_time_ns
        return found


def _url(host: str, port: int, path: str) -> str:
    return f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"
