"""The identities of a cluster: every certificate and kubeconfig, created before the first component starts."""

from dataclasses import dataclass
from pathlib import Path

from devcluster.certs import Authority, KeyPair, service_account_keys, write_kubeconfig

KUBELET_CLIENT = "kube-apiserver-kubelet-client"
KWOK_USER = "kwok-controller"


@dataclass(frozen=True)
class ServerFiles:
    """The files with which the API server is started."""

    api: KeyPair
    etcd: KeyPair
    etcd_client: KeyPair
    kubelet_client: KeyPair
    front_proxy_client: KeyPair
    service_accounts: KeyPair


class Pki:
    """The CAs of one cluster and what they have signed."""

    def __init__(self, folder: Path, server: str, api_hosts: tuple[str, ...]) -> None:
        """`server` is the address in kubeconfigs; `api_hosts` are all names of the API server."""
        self._folder = folder / "pki"
        self._folder.mkdir(mode=0o700)
        self._server = server
        self.cluster = Authority("cluster-ca", self._folder)
        self.etcd = Authority("etcd-ca", self._folder)
        self.front_proxy = Authority("front-proxy-ca", self._folder)
        self.files = ServerFiles(
            api=self.cluster.server("kube-apiserver", api_hosts, file="apiserver"),
            etcd=self.etcd.server("etcd", ("127.0.0.1", "localhost"), file="etcd", also_client=True),
            etcd_client=self.etcd.client("kube-apiserver", file="apiserver-etcd-client"),
            kubelet_client=self.cluster.client(KUBELET_CLIENT, file="apiserver-kubelet-client"),
            front_proxy_client=self.front_proxy.client("front-proxy-client", file="front-proxy-client"),
            service_accounts=service_account_keys(self._folder),
        )
        self.controller_manager = self.kubeconfig("system:kube-controller-manager")
        self.scheduler = self.kubeconfig("system:kube-scheduler")
        self.kwok = self.kubeconfig(KWOK_USER)
        self.admin = self.kubeconfig("admin", ("system:masters",), file=folder / "admin.kubeconfig")

    def kubeconfig(self, user: str, groups: tuple[str, ...] = (), *, file: Path | None = None) -> Path:
        """Write a kubeconfig for any user: a component, or a user whose permissions a test checks."""
        name = user.replace(":", "_")
        pair = self.cluster.client(user, groups, file=name)
        target = file or self._folder / f"{name}.kubeconfig"
        return write_kubeconfig(target, self._server, self.cluster.certificate, pair, user)

    def node_kubeconfig(self, node: str) -> Path:
        """Write a node's kubeconfig; the Node authorizer and NodeRestriction limit it to its own objects."""
        return self.kubeconfig(f"system:node:{node}", ("system:nodes",))

    def node_server(self, node: str, address: str) -> KeyPair:
        return self.cluster.server(f"system:node:{node}", (node, address), file=f"kubelet-{node}")
