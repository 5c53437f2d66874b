"""Looking at this machine or at the cluster: one picture each time. Starts nothing."""

import pwd
import time
from collections.abc import Mapping

from milligpu.kube import config
from milligpu.status.cluster import ClusterStatus, read_cluster_status
from milligpu.status.machine import read_machine_status
from milligpu.status.picture import Picture, WaitingRequest
from milligpu.wire.status import MachineStatus


def machine_picture() -> Picture:
    """Look at this machine; starts nothing."""
    status = read_machine_status()
    uids = {each.uid for each in status.sessions} | {each.uid for each in status.waiting}
    return picture_of_machine(status, time.time(), {uid: _user(uid) for uid in uids})


def cluster_picture(kubeconfig: str | None, name: str) -> Picture:
    """Ask the API server, with this process's login, and the agents."""
    return picture_of_cluster(read_cluster_status(kubeconfig, with_queues=True), time.time(), name)


def cluster_name(kubeconfig: str | None) -> str:
    """What people call the cluster: the kubeconfig's context, else its address."""
    found = config.find_cluster(kubeconfig)
    return found.context_name or found.cluster.server


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def picture_of_machine(status: MachineStatus, at: float, users: Mapping[int, str]) -> Picture:
    """`users` names the uids that the status contains."""
    return Picture(
        at,
        status.machine,
        cluster=False,
        software=status.software,
        gpus=status.gpus,
        shares=status.shares,
        waiting=[
            WaitingRequest(
                "",
                " ".join(each.command[:1]),
                users.get(each.uid, str(each.uid)),
                each.request,
                each.message + (f"; behind {each.behind[-1]}" if each.behind else ""),
                place,
            )
            for place, each in enumerate(status.waiting, 1)
        ],
        sessions={each.id: each for each in status.sessions},
        processes=status.processes,
        violations=status.violations,
        users={each.id: users.get(each.uid, str(each.uid)) for each in status.sessions},
    )


def picture_of_cluster(status: ClusterStatus, at: float, name: str) -> Picture:
    """`name` is what people call the cluster."""
    return Picture(
        at,
        name,
        cluster=True,
        software=False,
        gpus=status.gpus,
        shares=status.shares,
        waiting=[
            WaitingRequest(each.namespace, each.pod, "", "", each.message, place, each.queue, each.turn)
            for place, each in enumerate(status.waiting, 1)
        ],
        processes=status.processes,
        violations=status.violations,
        problems=status.problems,
        queues=status.queues,
    )
