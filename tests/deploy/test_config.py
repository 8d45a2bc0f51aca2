from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.config import load_config, preset_names, read_config
from deploy.errors import ConfigError
from deploy.kinds import Kind
from deploy.settings import RayConfig, ResourceConfig, ServiceConfig, TransportConfig, check_address

FULL = """
[service]
name = "replay"
namespace = "lab"
lifetime = "detached"
batch_size = 64
priority_key = ["agents", "td_error"]
timeout_s = 5

[storage]
kind = "LazyTensorStorage"
capacity = 1_000
device = "cpu"

[sampler]
kind = "RandomSampler"

[writer]
kind = "TensorDictRoundRobinWriter"
track_generations = true

[transport]
kind = "distributed"
backend = "gloo"
threads = 2

[resources]
num_cpus = 0.5
num_gpus = 0
memory = "1GiB"
custom = { replay = 1 }
strategy = "SPREAD"

[ray]
address = "local"
num_cpus = 4
num_gpus = 0
resources = { replay = 2 }
object_store_memory = "300MB"
port = 7001
node_ip_address = "127.0.0.1"
temp_dir = "/tmp/somewhere"
"""


def sections(**changed: Any) -> dict[str, Any]:
    """The smallest configuration, with sections added or replaced."""
    return {"service": {"name": "replay"}, "storage": {"kind": "ListStorage"}, **changed}


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        (tmp_path / "replay.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "replay.toml")

    return write


def test_a_full_file_becomes_records(toml: Any) -> None:
    config = load_config(toml(FULL))
    assert config.service == ServiceConfig("replay", "lab", "detached", 64, ("agents", "td_error"), 5.0)
    assert config.storage == Kind("storage", "LazyTensorStorage", {"max_size": 1000, "device": "cpu"})
    assert config.sampler == Kind("sampler", "RandomSampler", {})
    assert config.writer == Kind("writer", "TensorDictRoundRobinWriter", {"track_generations": True})
    assert config.transport == TransportConfig("distributed", "gloo", 2)
    assert config.transport.options() == {"backend": "gloo", "threads": 2}
    assert config.resources == ResourceConfig(0.5, 0.0, 2**30, {"replay": 1.0}, strategy="SPREAD")
    assert config.ray == RayConfig("local", 4, 0, {"replay": 2.0}, 300_000_000, 7001, "127.0.0.1", "/tmp/somewhere")


def test_the_smallest_file_has_defaults() -> None:
    config = read_config(sections())
    assert config.service == ServiceConfig("replay", "replay-service", "detached", None, None, 30.0)
    assert (config.sampler, config.writer) == (None, None)
    assert config.transport == TransportConfig("auto")
    assert config.transport.options() is None
    assert config.resources == ResourceConfig()
    assert config.ray == RayConfig("local")


def test_records_cannot_be_changed() -> None:
    config = read_config(sections())
    with pytest.raises(AttributeError):
        config.service.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.storage.parameters["max_size"] = 1  # type: ignore[index]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    config = load_config(name)
    assert config.service.name == "replay"
    if config.episodic is not None:
        assert config.episodic.factory()().maxsize >= config.episodic.parameters["total_size"]
        return
    assert config.storage is not None
    assert config.storage.factory()().max_size == config.storage.parameters["max_size"]


def test_a_file_named_like_a_preset_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").write_text(Path(toml(FULL)).read_text(encoding="utf-8"), encoding="utf-8")
    assert load_config("small").service.namespace == "lab"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"servcie": {}}, r"servcie \(\{\}\) must be a known key \(service, .*did you mean service\?"),
        ({"service": 3}, r"service \(3\) must be a table; got int"),
        ({"service": {"nmae": "x"}}, r"service\.nmae \('x'\) must be a known key .*did you mean service\.name\?"),
        ({"service": {}}, r"service\.name \(missing\) must be given"),
        ({"service": {"name": ""}}, r"service\.name \(''\) must be a string that is not empty; got str"),
        ({"service": {"name": "x", "batch_size": 0}}, r"service\.batch_size \(0\) must be an integer of at least 1"),
        ({"service": {"name": "x", "timeout_s": 0}}, r"service\.timeout_s \(0\) must be a number above 0"),
        ({"service": {"name": "x", "lifetime": "job"}}, r"service\.lifetime \('job'\) must be 'detached', because"),
        ({"service": {"name": "x", "priority_key": []}}, r"service\.priority_key \(\[\]\) must be a key or an array"),
        ({"transport": {"kind": "rya"}}, r"transport\.kind \('rya'\) must be one of auto, .*did you mean ray\?"),
        ({"transport": {"kind": "ray", "backend": "gloo"}}, r"transport\.backend \('gloo'\) must be left out"),
        ({"transport": {"backend": "mpi"}}, r"transport\.backend \('mpi'\) must be one of gloo, nccl"),
        ({"transport": False}, r"transport \(False\) must be a table; got bool"),
        ({"resources": {"num_cpus": -1}}, r"resources\.num_cpus \(-1\) must be a number of at least 0"),
        ({"resources": {"memory": "4 apples"}}, r"resources\.memory \('4 apples'\) must be a positive number of bytes"),
        ({"resources": {"custom": {"x": "y"}}}, r"resources\.custom\.x \('y'\) must be a number of at least 0"),
        ({"resources": {"node": "here"}}, r"resources\.node \('here'\) must be the IP address or the id"),
        (
            {"resources": {"node": "10.0.0.1", "strategy": "SPREAD"}},
            r"resources\.strategy .* must be left out",
        ),
        ({"resources": {"soft": True}}, r"resources\.soft \(True\) must be left out"),
        ({"ray": {"address": "nowhere"}}, r"ray\.address \('nowhere'\) must be 'local', 'auto' or 'host:port'"),
        ({"ray": {"address": "h:1", "num_cpus": 2}}, r"ray\.num_cpus \(2\) must be left out with ray\.address 'h:1'"),
        ({"ray": {"port": 70000}}, r"ray\.port \(70000\) must be an integer of at least 1 and at most 65535"),
        ({"ray": {"node_ip_address": "me"}}, r"ray\.node_ip_address \('me'\) must be an IP address"),
        ({"storage": {"kind": "LazyTensorStorage", "capacity": 1, "ndim": 0}}, r"storage\.ndim \(0\) must be"),
    ],
)
def test_what_cannot_work_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        read_config(sections(**changed))


@pytest.mark.parametrize("section", ["service", "storage"])
def test_required_sections(section: str) -> None:
    values = sections()
    del values[section]
    with pytest.raises(ConfigError, match=rf"^\[{section}\] \(missing\) must be given$"):
        read_config(values)


def test_messages_begin_with_the_file(toml: Any) -> None:
    file = toml('[service]\nname = "x"\n[storage]\nkind = "ListStorage"\nsize = 3\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}: storage.size (3) must be a known key")
    with pytest.raises(ConfigError) as caught:
        load_config(toml("[service\n"))
    assert str(caught.value).startswith(f"{file}: not valid TOML: ")
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a TOML file or a preset \(.*small.*\); got no such file, did"):
        load_config("smal")
    with pytest.raises(ConfigError, match=r"must be a readable TOML file; got Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match=r"must be a readable TOML file; got it is not UTF-8 text"):
        load_config(tmp_path / "latin.toml")


def test_the_command_line_changes_name_namespace_and_address() -> None:
    config = read_config(sections()).with_options("other", "lab", "10.0.0.1:6379")
    assert (config.service.name, config.service.namespace, config.ray.address) == ("other", "lab", "10.0.0.1:6379")
    starting = read_config(sections(ray={"num_cpus": 2}))
    assert starting.with_options(address="local") == starting
    with pytest.raises(ConfigError, match=r"^address \('auto'\) must be 'local' for a file whose \[ray\] describes"):
        starting.with_options(address="auto")
    with pytest.raises(ConfigError, match=r"^address \('x'\) must be"):
        starting.with_options(address="x")


@pytest.mark.parametrize("address", ["local", "auto", "127.0.0.1:1", "host.lab:65535", "[::1]:80"])
def test_addresses(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "h:0", "h:65536", "h:x", "ray://h:1", "::1:80"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^ray\.address \(.*\) must be 'local', 'auto' or 'host:port'"):
        check_address(address)
