"""etcd, API server, controller manager and schedulers, configured as in a real cluster.

Authorization is Node and RBAC, and every connection is mutual TLS. Requests that a real cluster would refuse are
refused here, so tests find missing permissions before users do.
"""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from devcluster.pki import Pki
from devcluster.process import Process
from devcluster.record import Record
from devcluster.wait import until

READY_DEADLINE_S = 60.0
DEFAULT_SCHEDULER = "kube-scheduler"


class ControlPlane:
    """The components; a test may kill each `Process` and start it again on the same port."""

    def __init__(
        self,
        record: Record,
        binaries: Path,
        *,
        feature_gates: Mapping[str, bool],
        apiserver_args: Mapping[str, str],
    ) -> None:
        self._record = record
        self._binaries = binaries
        self._gates = dict(feature_gates)
        self.server = f"https://127.0.0.1:{record.port('apiserver')}"
        service = "kubernetes.default.svc"
        self.pki = Pki(
            record.folder,
            self.server,
            (
                "127.0.0.1",
                "localhost",
                record.plan.api_service,
                "kubernetes",
                "kubernetes.default",
                service,
                f"{service}.cluster.local",
            ),
        )
        self.etcd = self._process("etcd", self._etcd_flags())
        flags = {**self._apiserver_flags(), **apiserver_args}
        if "authorization-config" in flags:
            del flags["authorization-mode"]  # the API server takes one of the two
        self.apiserver = self._process("kube-apiserver", flags)
        self.controller_manager = self._process("kube-controller-manager", self._controller_manager_flags())
        self.schedulers: dict[str, Process] = {}

    @property
    def components(self) -> tuple[Process, ...]:
        return (self.etcd, self.apiserver, self.controller_manager, *self.schedulers.values())

    def start_store(self) -> None:
        """Start etcd and the API server; `wait_ready` waits until they answer."""
        self.etcd.start()
        self.apiserver.start()

    def wait_ready(self) -> None:
        """Wait until the API server has completed its start-up, including the default roles."""
        with self._anonymous() as client:

            def ready() -> bool:
                self.etcd.must_run()
                self.apiserver.must_run()
                return client.get("/readyz").status_code == 200

            until(
                "the API server to be ready",
                ready,
                READY_DEADLINE_S,
                every_s=0.03,
                retry=(httpx2.TransportError,),
                last_state=lambda: self.apiserver.tail(20),
            )

    def _anonymous(self) -> httpx2.Client:
        """A client without credentials, which may read only /readyz and /version."""
        context = ssl.create_default_context(cafile=str(self.pki.cluster.certificate))
        return httpx2.Client(base_url=self.server, verify=context, trust_env=False, timeout=5)

    def start_scheduler(
        self,
        config: Mapping[str, Any] | None = None,
        name: str = DEFAULT_SCHEDULER,
        feature_gates: Mapping[str, bool] | None = None,
    ) -> Process:
        """Start a scheduler with this KubeSchedulerConfiguration; `name` is the name of its process."""
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **(config or {}),
            "clientConnection": {"kubeconfig": str(self.pki.scheduler), "qps": 1000, "burst": 2000},
        }
        file = self._record.folder / f"{name}.json"
        file.write_text(json.dumps(content, indent=1))
        flags = {
            "config": str(file),
            "authentication-kubeconfig": str(self.pki.scheduler),
            "authorization-kubeconfig": str(self.pki.scheduler),
            "bind-address": "127.0.0.1",
            "secure-port": str(self._record.port(name)),
            **self._gate_flags(feature_gates),
        }
        process = self._process("kube-scheduler", flags, name)
        self.schedulers[name] = process
        process.start()
        return process

    def stop_scheduler(self, name: str) -> None:
        self.schedulers.pop(name).stop()

    def _process(self, program: str, flags: Mapping[str, str], name: str = "") -> Process:
        name = name or program
        return Process(
            name,
            [str(self._binaries / program), *(f"--{flag}={value}" for flag, value in flags.items())],
            cgroup=self._record.cgroup,
            log=self._record.folder / "logs" / f"{name}.log",
        )

    def _gate_flags(self, more: Mapping[str, bool] | None = None) -> dict[str, str]:
        gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in {**self._gates, **(more or {})}.items())
        return {"feature-gates": gates} if gates else {}

    def _etcd_flags(self) -> dict[str, str]:
        client = f"https://127.0.0.1:{self._record.port('etcd')}"
        peer = f"https://127.0.0.1:{self._record.port('etcd-peer')}"
        pair, authority = self.pki.files.etcd, str(self.pki.etcd.certificate)
        return {
            "data-dir": str(self._record.folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "cert-file": str(pair.certificate),
            "key-file": str(pair.key),
            "client-cert-auth": "true",
            "trusted-ca-file": authority,
            "peer-cert-file": str(pair.certificate),
            "peer-key-file": str(pair.key),
            "peer-client-cert-auth": "true",
            "peer-trusted-ca-file": authority,
            # A killed process loses no data without fsync, only a machine that loses power does.
            "unsafe-no-fsync": "true",
        }

    def _apiserver_flags(self) -> dict[str, str]:
        files, plan = self.pki.files, self._record.plan
        return {
            "bind-address": "127.0.0.1",
            "secure-port": str(self._record.port("apiserver")),
            "advertise-address": plan.api_service,
            "etcd-servers": f"https://127.0.0.1:{self._record.port('etcd')}",
            "etcd-cafile": str(self.pki.etcd.certificate),
            "etcd-certfile": str(files.etcd_client.certificate),
            "etcd-keyfile": str(files.etcd_client.key),
            "tls-cert-file": str(files.api.certificate),
            "tls-private-key-file": str(files.api.key),
            "client-ca-file": str(self.pki.cluster.certificate),
            "kubelet-certificate-authority": str(self.pki.cluster.certificate),
            "kubelet-client-certificate": str(files.kubelet_client.certificate),
            "kubelet-client-key": str(files.kubelet_client.key),
            "kubelet-preferred-address-types": "InternalIP",
            "requestheader-client-ca-file": str(self.pki.front_proxy.certificate),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": str(files.front_proxy_client.certificate),
            "proxy-client-key-file": str(files.front_proxy_client.key),
            # There is no kube-proxy, so extension API servers are reached at their pods' addresses.
            "enable-aggregator-routing": "true",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": plan.service_range,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": str(files.service_accounts.certificate),
            "service-account-signing-key-file": str(files.service_accounts.key),
            **self._gate_flags(),
        }

    def _controller_manager_flags(self) -> dict[str, str]:
        kubeconfig, authority = str(self.pki.controller_manager), self.pki.cluster.pair
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": str(self._record.port("kube-controller-manager")),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": str(self.pki.files.service_accounts.key),
            "root-ca-file": str(authority.certificate),
            "cluster-signing-cert-file": str(authority.certificate),
            "cluster-signing-key-file": str(authority.key),
            # With the default of 20 requests per second, tests would wait for the deletion of namespaces.
            "kube-api-qps": "200",
            "kube-api-burst": "400",
            **self._gate_flags(),
        }
