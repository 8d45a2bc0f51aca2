"""Nested data as JSON and raw bytes, and back. Making it again runs nothing: there is no code in it.

None, booleans, integers, floats, strings, lists and dicts with plain names are themselves in JSON. Everything else is an object with one
entry `"~"` that names its kind; the bytes of tensors and arrays lie in blobs, to which such objects point:

    {"~": "tensor", "dtype": "float32", "shape": [3], "at": [0, 64]}      blob 0, from byte 64 on
    {"~": "td", "batch": [3], "items": [["a", …]]}                        a TensorDict; "tc" with "class": a tensorclass
    {"~": "rows"…                                                         see `KINDS` for all of them

Classes are named as `module:Class`, and only tensorclasses and named tuples that are imported already are made.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
    is_tensorclass,
    lazy_stack,
)
from torch import Tensor

from replay_service.arena import aligned
from replay_service.buffer.columns import numpy_view
from replay_service.errors import CheckpointError, LayoutError
from replay_service.payload import view_leaf
from replay_service.sources import NUMBER_FIELD, REFERENCE_CLASS, SOURCES, words_of_numbers
from replay_service.structure import class_named, class_path

__all__ = ["Blobs", "pack_tree", "unpack_tree"]

Bytes = NDArray[np.uint8]
LARGE_BYTES = 1 << 16
PLAIN = (bool, int, str, type(None))


class Blobs:
    """The bytes of a tree on their way to files: small things together in blob 0, each large one in a blob of its own.

    Args:
        together: put everything into blob 0.
    """

    def __init__(self, together: bool = False) -> None:
        self._together = together
        self._parts: list[list[Bytes]] = [[]]
        self._sizes = [0]

    def add(self, data: Bytes) -> list[int]:
        """Blob and offset of `data` uint8 `[n]`."""
        if data.size >= LARGE_BYTES and not self._together:
            self._parts.append([data])
            self._sizes.append(data.size)
            return [len(self._parts) - 1, 0]
        at = self._sizes[0]
        padded = aligned(data.size)
        self._parts[0] += [data, np.zeros(padded - data.size, np.uint8)]
        self._sizes[0] = at + padded
        return [0, at]

    @property
    def parts(self) -> list[list[Bytes]]:
        """The pieces of every blob, in order."""
        return self._parts


def pack_tree(tree: Any, blobs: Blobs, allow_pickle: bool = False) -> Any:
    """`tree` as what JSON can hold; its bytes are added to `blobs`.

    Raises:
        CheckpointError: something is made of objects that can only be pickled, and `allow_pickle` is False.
    """
    return _Packing(blobs, allow_pickle).pack(tree, "data")


def unpack_tree(document: Any, blobs: Sequence[Bytes], allow_pickle: bool = False) -> Any:
    """The tree that was packed; its tensors have memory of their own if the blobs do.

    Raises:
        CheckpointError: it holds pickled objects, and `allow_pickle` is False; or it is none of what `pack_tree` makes.
    """
    try:
        return _Unpacking(blobs, allow_pickle).unpack(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, LayoutError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"saved data must be made of what can be read back; {type(error).__name__}: {error}"
        ) from error


class _Packing:
    def __init__(self, blobs: Blobs, allow_pickle: bool) -> None:
        self._blobs = blobs
        self._allow_pickle = allow_pickle

    def pack(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"~": "float", "value": repr(value)}
        if kind is list:
            return [self.pack(part, f"{name}[{place}]") for place, part in enumerate(value)]
        if kind is dict:
            if all(type(key) is str and key != "~" for key in value):
                return {key: self.pack(part, f"{name}.{key}") for key, part in value.items()}
            items = [[self.pack(key, name), self.pack(part, f"{name}.{key}")] for key, part in value.items()]
            return {"~": "dict", "items": items}
        of_torch = isinstance(value, Tensor) or is_tensor_collection(value)
        packed = self._torch(value, name) if of_torch else self._other(value, name)
        return self._pickled(value, name) if packed is None else packed

    def _torch(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if isinstance(value, NonTensorStack):
            return {"~": "texts", "items": [self.pack(part, name) for part in value.unbind(0)]}
        if isinstance(value, NonTensorData):
            return {"~": "text", "value": self.pack(value.data, name), "batch": list(value.batch_size)}
        if isinstance(value, LazyStackedTensorDict):
            parts = [self.pack(part, name) for part in value.unbind(value.stack_dim)]
            return {"~": "stack", "dim": value.stack_dim, "parts": parts}
        if isinstance(value, TensorDictBase):
            items = [[key, self.pack(value.get(key), f"{name}.{key}")] for key in value.keys()]  # noqa: SIM118
            return {"~": "td", "batch": list(value.batch_size), "items": items}
        if is_tensorclass(value):
            inner = value.to_tensordict(retain_none=False)
            kind: Any = type(value)
            packed = {"~": "tc", "class": class_path(kind), "value": self.pack(inner, name)}
            if packed["class"] == REFERENCE_CLASS:
                packed["sources"] = words_of_numbers(inner[NUMBER_FIELD])
            return packed
        return None

    def _tensor(self, value: Tensor, name: str) -> Any:
        if value.is_nested:
            parts = [self._tensor(part, name) for part in value.unbind()]
            return {"~": "nested", "parts": parts, "dtype": _dtype_name(value.dtype)}
        if value.layout is not torch.strided or value.is_quantized or type(value) not in (Tensor, torch.nn.Parameter):
            return None
        flat = numpy_view(value.detach().cpu().contiguous()).reshape(-1)
        at = self._blobs.add(flat.view(np.uint8))
        return {"~": "tensor", "dtype": _dtype_name(value.dtype), "shape": list(value.shape), "at": at}

    def _other(self, value: Any, name: str) -> Any:
        kind = type(value)
        if isinstance(value, torch.Size):
            return {"~": "size", "value": list(value)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self.pack(part, f"{name}.{field}") for field, part in zip(value._fields, value, strict=True)]
            named: Any = kind
            return {"~": "nt", "class": class_path(named), "items": items}
        if kind in (tuple, set, frozenset):
            return {"~": kind.__name__, "items": [self.pack(part, name) for part in value]}
        if kind in (bytes, bytearray):
            data = np.frombuffer(bytes(value), np.uint8)
            return {"~": kind.__name__, "at": self._blobs.add(data), "size": data.size}
        if kind is complex:
            return {"~": "complex", "value": [self.pack(part, name) for part in (value.real, value.imag)]}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, torch.dtype | torch.device):
            return {"~": "dtype" if isinstance(value, torch.dtype) else "device", "value": str(value)}
        return None

    def _array(self, value: Any) -> Any:
        array = np.asarray(value, order="C")
        if array.dtype.kind not in "biufcSUmM" or type(value) is np.ma.MaskedArray:
            return None
        at = self._blobs.add(np.frombuffer(array.tobytes(), np.uint8))
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {"~": kind, "dtype": array.dtype.str, "shape": list(array.shape), "at": at}

    def _pickled(self, value: Any, name: str) -> Any:
        if not self._allow_pickle:
            raise CheckpointError(
                f"{name} ({type(value).__name__}) must be made of tensors, arrays, texts, numbers and containers of these to be saved "
                f"without pickle; give the storage a checkpointer with allow_pickle=True if you will load it from a place you trust"
            )
        try:
            data = np.frombuffer(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{name} ({type(value).__name__}) must be an object that can be pickled; {error}"
            ) from error
        return {"~": "pickle", "at": self._blobs.add(data), "size": data.size}


class _Unpacking:
    def __init__(self, blobs: Sequence[Bytes], allow_pickle: bool) -> None:
        self._blobs = blobs
        self._allow_pickle = allow_pickle

    def unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.unpack(part) for part in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("~")
        if kind is None:
            return {key: self.unpack(part) for key, part in value.items()}
        return KINDS[kind](self, value)

    def bytes_of(self, value: dict[str, Any], size: int) -> Bytes:
        blob, at = value["at"]
        data = self._blobs[blob]
        if not 0 <= at <= at + size <= data.size:
            raise CheckpointError(f"saved data must lie within its {data.size} bytes; got {size} from {at} on")
        part: Bytes = data[at : at + size]
        return part

    def tensor(self, value: dict[str, Any]) -> Tensor:
        dtype, shape = _dtype_named(value["dtype"]), tuple(value["shape"])
        size = math.prod(shape) * dtype.itemsize
        data = self.bytes_of(value, size)
        return view_leaf(data, dtype, shape, 0) if size else torch.zeros(shape, dtype=dtype, device="cpu")

    def array(self, value: dict[str, Any]) -> Any:
        dtype = np.dtype(value["dtype"])
        if dtype.hasobject:
            raise CheckpointError("saved arrays must not hold objects")
        shape = tuple(value["shape"])
        size = math.prod(shape) * dtype.itemsize
        return np.ndarray(shape, dtype, self.bytes_of(value, size).tobytes()).copy()

    def tensordict(self, value: dict[str, Any]) -> TensorDict:
        return TensorDict({key: self.unpack(part) for key, part in value["items"]}, batch_size=value["batch"])

    def tensorclass(self, value: dict[str, Any]) -> Any:
        SOURCES.add(value.get("sources", ()))
        return class_named(value["class"]).from_tensordict(self.unpack(value["value"]))

    def parts(self, value: dict[str, Any]) -> list[Any]:
        return [self.unpack(part) for part in value["items"]]

    def pickled(self, value: dict[str, Any]) -> Any:
        if not self._allow_pickle:
            raise CheckpointError(
                "saved objects must not be pickled to be loaded: making them runs their code; if you trust whoever wrote the "
                "checkpoint, give the storage a checkpointer with allow_pickle=True"
            )
        return pickle.loads(self.bytes_of(value, value["size"]).tobytes())


KINDS: dict[str, Callable[[_Unpacking, dict[str, Any]], Any]] = {
    "float": lambda u, v: float(v["value"]),
    "complex": lambda u, v: complex(*(u.unpack(part) for part in v["value"])),
    "dict": lambda u, v: {u.unpack(key): u.unpack(part) for key, part in v["items"]},
    "tuple": lambda u, v: tuple(u.parts(v)),
    "set": lambda u, v: set(u.parts(v)),
    "frozenset": lambda u, v: frozenset(u.parts(v)),
    "bytes": lambda u, v: u.bytes_of(v, v["size"]).tobytes(),
    "bytearray": lambda u, v: bytearray(u.bytes_of(v, v["size"]).tobytes()),
    "size": lambda u, v: torch.Size(v["value"]),
    "dtype": lambda u, v: _dtype_named(v["value"].removeprefix("torch.")),
    "device": lambda u, v: torch.device(v["value"]),
    "tensor": lambda u, v: u.tensor(v),
    "nested": lambda u, v: nested_of([u.tensor(part) for part in v["parts"]], _dtype_named(v["dtype"])),
    "array": lambda u, v: u.array(v),
    "scalar": lambda u, v: u.array(v)[()],
    "td": lambda u, v: u.tensordict(v),
    "tc": lambda u, v: u.tensorclass(v),
    "nt": lambda u, v: class_named(v["class"])(*u.parts(v)),
    "text": lambda u, v: NonTensorData(u.unpack(v["value"]), batch_size=v["batch"]),
    "texts": lambda u, v: NonTensorStack(*u.parts(v)),
    "stack": lambda u, v: lazy_stack([u.unpack(part) for part in v["parts"]], v["dim"]),
    "pickle": lambda u, v: u.pickled(v),
}


def nested_of(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """A nested tensor of tensors whose shapes differ."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls every nested tensor a prototype
        return torch.nested.nested_tensor(list(parts), dtype=dtype)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            f"dtype ({name}) must be one of torch; this torch {torch.__version__} has none of that name"
        )
    return dtype
