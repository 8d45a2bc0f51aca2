"""What `replay-service up` is told: a TOML file, checked key by key before anything is started."""

from __future__ import annotations

import importlib.resources
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.errors import ConfigError
from deploy.kinds import EPISODIC, Kind, read_kind
from deploy.settings import (
    DEFAULT_NAMESPACE,
    DEFAULT_TIMEOUT_S,
    Config,
    RayConfig,
    ResourceConfig,
    ServiceConfig,
    TransportConfig,
    check_address,
    is_ip,
)
from deploy.tables import Table, near_match

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["load_config", "preset_names", "read_config"]

SECTIONS = ("service", "storage", "episodic", "sampler", "writer", "transport", "resources", "ray")
# What only makes sense for a Ray that is started here.
START_KEYS = ("num_cpus", "num_gpus", "resources", "object_store_memory", "port", "node_ip_address", "temp_dir")


def load_config(file: str | Path) -> Config:
    """Read and check a configuration.

    Args:
        file: a TOML file, or the name of a preset (`preset_names`) where there is no such file.

    Raises:
        ConfigError: no such file or preset, no valid TOML, or a broken rule; the message begins with the file's name.
    """
    path = Path(file)
    if not path.exists() and str(file) in preset_names():
        source, text = f"{file}.toml", (_presets() / f"{file}.toml").read_text(encoding="utf-8")
    else:
        source, text = str(file), _text_of(path)
    try:
        return read_config(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_config(values: Mapping[str, Any]) -> Config:
    """Check a parsed file and turn it into records.

    Raises:
        ConfigError: an unknown key, a wrong type or a bad value, named by its dotted key.
    """
    top = Table(values, "", SECTIONS)
    for section in ("service", "storage"):
        if section not in top and not (section == "storage" and EPISODIC in top):
            raise ConfigError(f"[{section}] (missing) must be given")
    service = _service(top.value("service"))
    parts = _episodic(top, service) if EPISODIC in top else _parts(top)
    config = Config(
        service=service,
        **parts,
        transport=_transport(top.value("transport") if "transport" in top else {}),
        resources=_resources(top.value("resources") if "resources" in top else {}),
        ray=_ray(top.value("ray") if "ray" in top else {}),
    )
    for part in parts.values():
        if part is not None:
            part.try_out()
    return config


def _parts(top: Table) -> dict[str, Kind | None]:
    """What a buffer of records is made of."""
    storage = read_kind(top.value("storage"), "storage")
    capacity = storage.parameters.get("max_size")
    others = ("sampler", "writer")
    found = {role: None if role not in top else read_kind(top.value(role), role, capacity) for role in others}
    return {"storage": storage, **found}


def _episodic(top: Table, service: ServiceConfig) -> dict[str, Kind | None]:
    """An episodic buffer, which is whole in itself."""
    for section in ("storage", "sampler", "writer"):
        if section in top:
            raise ConfigError(f"[{section}] must be left out with [{EPISODIC}], which is a whole buffer")
    for name, value in (("batch_size", service.batch_size), ("priority_key", service.priority_key)):
        if value is not None:
            raise ConfigError(
                f"service.{name} ({value!r}) must be left out with [{EPISODIC}]; clients say it when they sample"
            )
    return {EPISODIC: read_kind(top.value(EPISODIC), EPISODIC)}


def preset_names() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _presets().iterdir() if entry.name.endswith(".toml"))


def _presets() -> Any:
    return importlib.resources.files("deploy") / "presets"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        guess = near_match(str(path), preset_names())
        names = ", ".join(preset_names())
        raise ConfigError(
            f"file ({str(path)!r}) must be a TOML file or a preset ({names}); got no such file{guess}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"file ({str(path)!r}) must be a readable TOML file; got {reason}") from error


def _service(values: Any) -> ServiceConfig:
    known = ("name", "namespace", "lifetime", "batch_size", "priority_key", "timeout_s")
    table = Table(values, "service", known)
    name = table.text("name")
    if name is None:
        raise ConfigError("service.name (missing) must be given; clients find the service by it")
    lifetime = table.text("lifetime", "detached")
    if lifetime != "detached":
        raise table.refuse("lifetime", "'detached', because the service has to outlive the command that starts it")
    key = table.value("priority_key")
    if key is not None:
        parts = key if isinstance(key, list) else [key]
        if not parts or not all(isinstance(part, str) and part for part in parts):
            raise table.refuse("priority_key", "a key or an array of keys")
        key = tuple(key) if isinstance(key, list) else key
    return ServiceConfig(
        name=name,
        namespace=table.text("namespace") or DEFAULT_NAMESPACE,
        batch_size=table.integer("batch_size", least=1),
        priority_key=key,
        timeout_s=table.number("timeout_s", above=0.0) or DEFAULT_TIMEOUT_S,
    )


def _transport(values: Any) -> TransportConfig:
    table = Table(values, "transport", ("kind", "backend", "threads"))
    kind = table.choice("kind", ("auto", "ray", "distributed"), "auto") or "auto"
    if kind == "ray" and "backend" in table:
        raise table.refuse("backend", "left out with transport.kind 'ray', which has none")
    return TransportConfig(kind, table.choice("backend", ("gloo", "nccl")), table.integer("threads", least=1))


def _resources(values: Any) -> ResourceConfig:
    known = ("num_cpus", "num_gpus", "memory", "custom", "node", "soft", "strategy")
    table = Table(values, "resources", known)
    node, strategy = table.text("node"), table.choice("strategy", ("DEFAULT", "SPREAD"))
    if node is not None and not (is_ip(node) or re.fullmatch(r"[0-9a-f]{56}", node)):
        raise table.refuse("node", "the IP address or the id (56 hex digits) of a Ray node")
    if node is not None and strategy is not None:
        raise table.refuse("strategy", "left out where resources.node is given")
    if "soft" in table and node is None:
        raise table.refuse("soft", "left out without resources.node")
    return ResourceConfig(
        num_cpus=table.number("num_cpus"),
        num_gpus=table.number("num_gpus"),
        memory_bytes=table.size_bytes("memory"),
        custom=table.amounts("custom"),
        node=node,
        soft=table.boolean("soft"),
        strategy=strategy,
    )


def _ray(values: Any) -> RayConfig:
    table = Table(values, "ray", ("address", *START_KEYS))
    address = check_address(table.text("address", "local") or "local")
    if address != "local":
        for key in START_KEYS:
            if key in table:
                raise table.refuse(
                    key, f"left out with ray.address {address!r}: it describes a Ray that is started here"
                )
    node_ip = table.text("node_ip_address")
    if node_ip is not None and not is_ip(node_ip):
        raise table.refuse("node_ip_address", "an IP address of this machine")
    return RayConfig(
        address=address,
        num_cpus=table.integer("num_cpus", least=1),
        num_gpus=table.integer("num_gpus"),
        resources=table.amounts("resources"),
        object_store_memory_bytes=table.size_bytes("object_store_memory"),
        port=table.integer("port", least=1, most=65535),
        node_ip_address=node_ip,
        temp_dir=table.text("temp_dir"),
    )
