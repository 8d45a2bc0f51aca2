"""What `up` started for this user, in one small JSON file: its Ray, and the services with the Ray each runs in."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.errors import DeployError
from deploy.settings import DEFAULT_NAMESPACE
from deploy.tables import near_match

__all__ = ["RayRecord", "ServiceRecord", "State", "StateFile", "default_state_dir"]

FORMAT = 1
LOCK_TIMEOUT_S = 120.0
LOCK_EVERY_S = 0.05


@dataclass(frozen=True)
class RayRecord:
    """A Ray started by `up`.

    Attributes:
        address: `host:port` that others join it by.
        pid, created_s: the process that keeps it, and when that process began (seconds since the epoch): a pid alone
            may name another process later.
        temp_dir: folder of its session files.
        owns_temp_dir: whether that folder goes when this Ray is stopped.
    """

    address: str
    pid: int
    created_s: float
    temp_dir: str
    owns_temp_dir: bool


@dataclass(frozen=True)
class ServiceRecord:
    """A service brought up by `up`, and the Ray it runs in."""

    name: str
    namespace: str
    address: str


@dataclass(frozen=True)
class State:
    """Content of the file."""

    ray: RayRecord | None = None
    services: tuple[ServiceRecord, ...] = ()

    def find(self, name: str | None, namespace: str | None = None, address: str | None = None) -> list[ServiceRecord]:
        """The recorded services that agree with whatever is given."""
        wanted = {"name": name, "namespace": namespace, "address": address}
        given = {key: value for key, value in wanted.items() if value is not None}
        return [one for one in self.services if all(getattr(one, key) == value for key, value in given.items())]

    def pick(self, name: str | None, namespace: str | None = None, address: str | None = None) -> ServiceRecord:
        """The one service meant by `name`, or by nothing where only one is recorded. With a name and an address it
        may be a service that somebody else started.

        Raises:
            DeployError: none or more than one fits.
        """
        found = self.find(name, namespace, address)
        if len(found) == 1:
            return found[0]
        if not found and name is not None and address is not None:
            return ServiceRecord(name, namespace or DEFAULT_NAMESPACE, address)
        shown = f"service ({name!r})" if name is not None else "service (not named)"
        if found:
            listed = ", ".join(f"{one.name} in {one.namespace} at {one.address}" for one in found)
            raise DeployError(f"{shown} must name one of those recorded; got {len(found)}: {listed}")
        names = ", ".join(sorted({one.name for one in self.services})) or "none"
        guess = near_match(name, [one.name for one in self.services]) if name is not None else ""
        hint = "" if guess or name is None else "; give --address for one that was started elsewhere"
        raise DeployError(f"{shown} must be one that `up` brought up; recorded here: {names}{guess}{hint}")

    def with_service(self, service: ServiceRecord) -> State:
        """The state after `service` came up."""
        return dataclasses.replace(self, services=(*self.without_service(service).services, service))

    def without_service(self, service: ServiceRecord) -> State:
        """The state after `service` went down."""
        return dataclasses.replace(self, services=tuple(one for one in self.services if one != service))

    def without_ray(self) -> State:
        """The state after the Ray that `up` started is gone, and every service in it."""
        if self.ray is None:
            return self
        return State(None, tuple(one for one in self.services if one.address != self.ray.address))


class StateFile:
    """The file, in a folder of the user's. Every change is written whole or not at all.

    Args:
        folder: where it lies; None takes `default_state_dir()`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else default_state_dir()
        self._path = self.folder / "state.json"

    def read(self) -> State:
        """What is recorded; an empty state if nothing is.

        Raises:
            DeployError: the file cannot be read, or another version of the program wrote it.
        """
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            return _state_from(values)
        except FileNotFoundError:
            return State()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DeployError(
                f"state file ({str(self._path)!r}) must be readable and of format {FORMAT}; got {error!s}: "
                "stop what it names by hand, then remove it"
            ) from error

    def write(self, state: State) -> None:
        """Replace what is recorded.

        Raises:
            DeployError: the folder cannot be written.
        """
        values = {"format": FORMAT, **dataclasses.asdict(state)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix="state.", suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=2)
            os.replace(name, self._path)
        except OSError as error:
            raise self._not_writable(error) from error

    @contextlib.contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Keep other commands of this user from changing the state meanwhile.

        Raises:
            DeployError: another command held it for `timeout_s`, or the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Not inherited by the Ray that is started under the lock, or the lock would live as long as that Ray.
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            self._acquire(handle, time.monotonic() + timeout_s)
            yield
        finally:
            os.close(handle)

    def _acquire(self, handle: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DeployError(
                        f"state folder ({str(self.folder)!r}) must be free; got another replay-service command at work"
                    ) from None
                time.sleep(LOCK_EVERY_S)
            else:
                return

    def _not_writable(self, error: OSError) -> DeployError:
        return DeployError(
            f"state folder ({str(self.folder)!r}) must be writable; got {error.strerror}: choose one by --state-dir"
        )


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/replay-service`, or `~/.local/state/replay-service`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "replay-service"


def _state_from(values: Any) -> State:
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']!r}")
    ray = None if values["ray"] is None else RayRecord(**values["ray"])
    return State(ray, tuple(ServiceRecord(**service) for service in values["services"]))
