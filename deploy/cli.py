"""The command line `replay-service`: it reads options, calls `deploy`, prints; every failure is one line on stderr."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from typer.core import TyperCommand

from deploy.board import as_json, connect_lines, status_view
from deploy.checkpoints import load_service, save_service, saved_line
from deploy.config import load_config, preset_names
from deploy.connection import prefer_token, stuck_in_ray
from deploy.errors import ConfigError, DeployError
from deploy.interruption import Interruption
from deploy.launch import Stopped
from deploy.launch import down as take_down
from deploy.launch import up as bring_up
from deploy.state import ServiceRecord, StateFile
from deploy.status import observe, observe_once

__all__ = ["app", "main"]

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
WIDTH_WITHOUT_TERMINAL = 160

app = typer.Typer(
    name="replay-service",
    help="Run replay buffers that many machines share.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str | None, typer.Argument(help="Name of the service.")]
Namespace = Annotated[str | None, typer.Option(help="Its namespace.")]
Address = Annotated[str | None, typer.Option(help="Its Ray, as host:port.")]
Timeout = Annotated[float, typer.Option(help="Seconds that it may take.", min=1.0)]
StateDir = Annotated[Path | None, typer.Option(help="Folder that remembers what runs.", file_okay=False)]


class _Watching(TyperCommand):
    """Lets `--watch` take its interval, as in `--watch 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spelled: list[str] = []
        for word in args:
            number = word.removeprefix("--watch=")
            if number != word:
                spelled.append("--watch")
            if spelled[-1:] == ["--watch"] and re.fullmatch(r"\d+(\.\d+)?|\.\d+", number):
                spelled += ["--interval", number]
            else:
                spelled.append(word)
        return super().parse_args(ctx, spelled)


@app.command()
def up(
    file: Annotated[str, typer.Argument(help=f"TOML file, or a preset: {', '.join(preset_names())}.")],
    name: Annotated[str | None, typer.Option(help="Instead of the file's service.name.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Instead of the file's service.namespace.")] = None,
    address: Annotated[str | None, typer.Option(help="Instead of the file's ray.address.")] = None,
    state_dir: StateDir = None,
) -> None:
    """Start or join Ray, create the service, wait until it answers and say how to connect."""
    with _complaints():
        config = load_config(file).with_options(name, namespace, address)
        launched = bring_up(config, StateFile(state_dir), report=_report)
        typer.echo(connect_lines(launched, state_dir))


@app.command(cls=_Watching)
def status(
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking; a number after it is the interval.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between the two looks that give rates.", min=0.1)] = 1.0,
) -> None:
    """Show what services hold and how fast rows come and go."""
    with _complaints():
        state = StateFile(state_dir).read()
        picked = [state.pick(name, namespace, address)] if name else state.find(None, namespace, address)
        if watch:
            _watch(picked, interval, json)
            return
        statuses = observe_once(picked, interval)
        if json:
            typer.echo(as_json(statuses))
        elif statuses:
            _console().print(status_view(statuses))
        else:
            typer.echo("No service is recorded here. Start one: replay-service up small")
        if name and statuses[0].state != "up":
            _fail(f"{name}: {statuses[0].reason}", FAILED)


@app.command()
def down(
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    everything: Annotated[bool, typer.Option("--all", help="Every service recorded here, and Ray.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that calls in flight may take.", min=0.0)] = 30.0,
    keep_ray: Annotated[bool, typer.Option("--keep-ray", help="Leave the Ray that `up` started running.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Drop the record of one whose Ray is gone.")] = False,
) -> None:
    """Let calls in flight finish, then stop the service; with the last one goes the Ray that `up` started."""
    with _complaints():
        if everything and (name or namespace or address):
            raise ConfigError("--all (given) must stand alone; got the name of a service, too")
        file = StateFile(state_dir)
        target = None if everything else file.read().pick(name, namespace, address)
        stopped = take_down(file, target, timeout_s=timeout, keep_ray=keep_ray, forget=forget, report=_report)
        for service in stopped.services:
            typer.echo(f"{service.name!r} is down.")
        if stopped == Stopped():
            typer.echo("Nothing is recorded here.")
        for service in stopped.gone:
            typer.echo(f"{service.name!r} was gone already.")
        if stopped.ray:
            typer.echo(f"The Ray at {stopped.ray} is down.")
        if stopped.kept:
            typer.echo(f"The Ray that `up` started stays: {stopped.kept}. Stop it with: replay-service down --all")


@app.command()
def save(
    path: Annotated[Path, typer.Argument(help="Folder for the checkpoint, on the service's node.")],
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    timeout: Timeout = 600.0,
) -> None:
    """Save a service's buffer, on its own node, while it is used; a later save to the same path writes what changed."""
    with _complaints():
        record = StateFile(state_dir).read().pick(name, namespace, address)
        typer.echo(saved_line(record.name, save_service(record, path, timeout)))


@app.command()
def load(
    path: Annotated[Path, typer.Argument(help="A checkpoint, on the service's node.")],
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    timeout: Timeout = 600.0,
) -> None:
    """Load a checkpoint into a service's buffer, in the place of what it holds."""
    with _complaints():
        record = StateFile(state_dir).read().pick(name, namespace, address)
        typer.echo(f"{record.name!r} holds {load_service(record, path, timeout):,} records of {path}.")


@app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(help="HDF5 or .npz file, Minari's or a replay buffer's memory-mapped folder.")
    ],
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Make a checkpoint instead; needs no service.")] = None,
    chunk: Annotated[int, typer.Option(help="Records moved at once.", min=1)] = 4096,
) -> None:
    """Append recorded data to a service's buffer, or make a checkpoint of it."""
    with _complaints():
        from deploy.moving import import_into_checkpoint, import_into_service

        shows = sys.stderr.isatty()
        if checkpoint is not None:
            typer.echo(f"{import_into_checkpoint(source, checkpoint, chunk, shows):,} records are in {checkpoint}.")
            return
        record = StateFile(state_dir).read().pick(name, namespace, address)
        typer.echo(f"{import_into_service(source, record, chunk, shows):,} records went to {record.name!r}.")


@app.command()
def export(
    target: Annotated[
        Path, typer.Argument(help="File ending with .npz or .h5, or a folder for memory-mapped columns.")
    ],
    name: Name = None,
    namespace: Namespace = None,
    address: Address = None,
    state_dir: StateDir = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Take the records of this checkpoint; needs no service.")
    ] = None,
    chunk: Annotated[int, typer.Option(help="Records moved at once.", min=1)] = 4096,
) -> None:
    """Write a service's or a checkpoint's records, the oldest first, for other programs."""
    with _complaints():
        from deploy.moving import export_checkpoint, export_service

        shows = sys.stderr.isatty()
        if checkpoint is not None:
            typer.echo(f"{export_checkpoint(checkpoint, target, chunk, shows):,} records are in {target}.")
            return
        record = StateFile(state_dir).read().pick(name, namespace, address)
        typer.echo(f"{export_service(record, target, chunk, shows):,} records are in {target}.")


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    minutes: Annotated[float, typer.Option(help="Give up after so many minutes.", min=0.0)] = 5.0,
    env: Annotated[str, typer.Option(help="Gymnasium environment with discrete actions.")] = "CartPole-v1",
    collectors: Annotated[
        int, typer.Option(help="Collecting processes; 0 for everything in one, without Ray.", min=0)
    ] = 2,
    runs: Annotated[Path, typer.Option(help="Folder for curves and metrics.")] = Path("runs"),
) -> None:
    """Train through a Ray-hosted buffer until the environment is solved."""
    with _complaints():
        from deploy.demo import run_demo

        raise typer.Exit(run_demo(seed=seed, minutes=minutes, env=env, collectors=collectors, runs=runs))


def main() -> NoReturn:
    """Entry point of the console script and of `python -m deploy`."""
    prefer_token()
    # A command that is told to end cleans up like one that gets Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code: Any = 0
    try:
        app()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    if stuck_in_ray():
        # A thread inside Ray cannot be stopped, and a normal exit would wait for it or crash in it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _watch(records: list[ServiceRecord], interval_s: float, json: bool) -> None:
    addresses = sorted({record.address for record in records})
    if len(addresses) != 1:
        raise DeployError(f"--watch ({', '.join(addresses) or 'no service'}) must be for services of one Ray; name one")
    looks = observe(records, interval_s)
    with (
        contextlib.suppress(KeyboardInterrupt),
        Interruption(at_once=True) as interruption,
        contextlib.closing(looks),
    ):
        console = _console()
        wanted = itertools.takewhile(lambda _: not interruption.requested, looks)
        if json:
            for statuses in wanted:
                typer.echo(as_json(statuses, indent=None))
        elif not console.is_terminal:
            for statuses in wanted:
                console.print(status_view(statuses))
        else:
            with Live(console=console, auto_refresh=False) as live:
                for statuses in wanted:
                    live.update(status_view(statuses), refresh=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def _report(line: str) -> None:
    typer.echo(f"{line} …", err=True)


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """Turn every failure into one line on stderr and an exit code. `REPLAY_SERVICE_TRACEBACK=1` shows the traceback."""
    if os.environ.get("REPLAY_SERVICE_TRACEBACK"):
        yield
        return
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except ConfigError as error:
        _fail(str(error), MISUSED)
    except Exception as error:
        _fail(str(error) or type(error).__name__, FAILED)


def _fail(message: str, code: int) -> NoReturn:
    line = message.strip().splitlines()[0]
    typer.secho(f"replay-service: {line}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)
