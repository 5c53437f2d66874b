"""Which cluster, and who we are there: a kubeconfig or the pod's service account, read by lightkube."""

import os
from pathlib import Path

from lightkube import AsyncClient, Client, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from milligpu.model.errors import Unavailable

_HINT = "name one with --kubeconfig or KUBECONFIG"


def find(kubeconfig: str | None = None) -> SingleConfig:
    """The named file; else, inside a pod, its service account; else what kubectl would take."""
    try:
        if kubeconfig or "KUBERNETES_SERVICE_HOST" not in os.environ:
            default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            found = KubeConfig.from_file(kubeconfig or default).get()
        else:
            found = KubeConfig.from_service_account().get()
    except (ConfigError, OSError, KeyError) as error:
        raise Unavailable(f"no cluster: {error}", hint=_HINT) from None
    if found is None or found.user is None:
        raise Unavailable(f"no cluster: {kubeconfig or 'the kubeconfig'} names no user", hint=_HINT)
    return found


def client(config: SingleConfig) -> AsyncClient:
    """lightkube's typed client, for objects that are read or written now and then."""
    return AsyncClient(config=config, trust_env=False)


def blocking_client(config: SingleConfig) -> Client:
    """The same for commands, which do one thing after the other."""
    return Client(config=config, trust_env=False)
