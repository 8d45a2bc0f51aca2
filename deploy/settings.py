"""Frozen records of everything one `up` is told: the service, its parts, its transport, its place and its Ray."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.errors import ConfigError
from deploy.kinds import Kind
from deploy.tables import near_match

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_TIMEOUT_S",
    "Config",
    "RayConfig",
    "ResourceConfig",
    "ServiceConfig",
    "TransportConfig",
    "check_address",
    "is_ip",
]

DEFAULT_NAMESPACE = "replay-service"
DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ServiceConfig:
    """Section `[service]`. `timeout_s` is what a remote call gets by default, in seconds."""

    name: str
    namespace: str = DEFAULT_NAMESPACE
    lifetime: str = "detached"
    batch_size: int | None = None
    priority_key: str | tuple[str, ...] | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True)
class TransportConfig:
    """Section `[transport]`: how data travels, and with how many torch `threads` the service serves it."""

    kind: str = "auto"
    backend: str | None = None
    threads: int | None = None

    def options(self) -> dict[str, Any] | None:
        """As `transport_options` of the buffer; None where the defaults hold."""
        given = {"backend": self.backend, "threads": self.threads}
        return {key: value for key, value in given.items() if value is not None} or None


@dataclass(frozen=True)
class ResourceConfig:
    """Section `[resources]`: what the service's process takes from Ray, and on which node it runs.

    Attributes:
        num_cpus, num_gpus: logical processors; fractions are allowed. None leaves it to the service.
        memory_bytes: memory that Ray sets aside.
        custom: amounts of custom resources by name.
        node: IP address or Ray node id (hex) of the node to run on.
        soft: with `node`, run elsewhere if that node cannot.
        strategy: Ray's placement strategy, `"DEFAULT"` or `"SPREAD"`.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    custom: Mapping[str, float] = field(default_factory=dict)
    node: str | None = None
    soft: bool = False
    strategy: str | None = None


@dataclass(frozen=True)
class RayConfig:
    """Section `[ray]`: which Ray to use. All but `address` describe a Ray that is started here.

    Attributes:
        address: `"local"` (the Ray that `up` keeps on this machine, started if need be), `"auto"` or `"host:port"`.
        num_cpus, num_gpus, resources: what the started node offers.
        object_store_memory_bytes: size of its shared-memory object store.
        port: where it listens; None takes a free one.
        node_ip_address: the address others reach it by; None leaves it to Ray.
        temp_dir: folder of its session files and logs; None takes a folder of this user's.
    """

    address: str = "local"
    num_cpus: int | None = None
    num_gpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    object_store_memory_bytes: int | None = None
    port: int | None = None
    node_ip_address: str | None = None
    temp_dir: str | None = None


@dataclass(frozen=True)
class Config:
    """One service to bring up: a buffer of records, made of a storage and other parts, or an episodic one."""

    service: ServiceConfig
    storage: Kind | None = None
    episodic: Kind | None = None
    sampler: Kind | None = None
    writer: Kind | None = None
    transport: TransportConfig = TransportConfig()
    resources: ResourceConfig = ResourceConfig()
    ray: RayConfig = RayConfig()

    def with_options(self, name: str | None = None, namespace: str | None = None, address: str | None = None) -> Config:
        """The same configuration with what the command line says.

        Raises:
            ConfigError: `address` is none that Ray can be found by, or a Ray that is to be joined has start options.
        """
        service = replace(self.service, name=name or self.service.name, namespace=namespace or self.service.namespace)
        if address is None:
            return replace(self, service=service)
        ray = replace(self.ray, address=check_address(address, "address"))
        if ray.address != "local" and replace(ray, address="local") != RayConfig():
            raise ConfigError(f"address ({address!r}) must be 'local' for a file whose [ray] describes a Ray to start")
        return replace(self, service=service, ray=ray)


def check_address(address: str, name: str = "ray.address") -> str:
    """Return `address` if it is `"local"`, `"auto"` or `"host:port"` (`"[…]:port"` for IPv6).

    Raises:
        ConfigError: it is none of these; `name` is what the message calls it.
    """
    if address in ("local", "auto"):
        return address
    if address.startswith("ray://"):
        raise ConfigError(
            f"{name} ({address!r}) must be 'local', 'auto' or 'host:port'; got a Ray Client address, use the GCS port"
        )
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    fits = host and "://" not in address and (":" not in host or bracketed)
    if not (fits and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(
            f"{name} ({address!r}) must be 'local', 'auto' or 'host:port'{near_match(address, ('local', 'auto'))}"
        )
    return address


def is_ip(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
