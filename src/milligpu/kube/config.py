"""Which cluster, and with which login: a kubeconfig or the pod's service account, read by lightkube."""

import os
from pathlib import Path
from typing import TypeAlias

import httpx2
import msgspec
from lightkube import KubeConfig
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from milligpu.model.errors import Unavailable

BlockingClient: TypeAlias = httpx2.Client
"""What the functions of `fetch` need."""
_HINT = "name one with --kubeconfig or KUBECONFIG"


def find_cluster(kubeconfig: str | None = None) -> SingleConfig:
    """Read the named kubeconfig; else, in a pod, its service account; else the kubeconfig that kubectl reads."""
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
    return found._replace(user=_with_absolute_token_file(found))


def _with_absolute_token_file(found: SingleConfig) -> User | None:
    """Resolve a relative `tokenFile` from the kubeconfig's directory, as kubectl does."""
    user = found.user
    if user is None or user.token_file is None:
        return user
    return msgspec.structs.replace(user, token_file=str(found.abs_file(user.token_file)))


def with_token(config: SingleConfig, token: str) -> SingleConfig:
    """The same cluster with another login: only this bearer token, no certificate and no password."""
    return config._replace(user=User(token=token))


def blocking_client(config: SingleConfig) -> BlockingClient:
    """Return an HTTP client with the cluster's CA and login, for commands."""
    try:
        return Client(config, ConnectionParams(trust_env=False))
    except (ConfigError, OSError) as error:
        raise Unavailable(f"no cluster: {error}", hint=_HINT) from None
