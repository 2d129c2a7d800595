"""Arrays of libraries that tests do not have: classes with the attributes and names that adapters go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class TorchDevice(NamedTuple):
    type: str
    index: int | None = None


class TorchDType(NamedTuple):
    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


class _Storage(NamedTuple):
    pointer: int

    def data_ptr(self) -> int:
        return self.pointer


class _Tensor:
    is_freed = False

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        pointer: int = 4096,
        dtype: str = "float32",
        device: str = "cuda",
        index: int = 0,
    ) -> None:
        self.shape = shape
        self._strides = tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape))) if strides is None else strides
        self.pointer = pointer
        self.dtype = TorchDType(dtype)
        self.device = TorchDevice(device, None if device == "cpu" else index)
        self.layout = "torch.strided"

    def data_ptr(self) -> int:
        return self.pointer

    def untyped_storage(self) -> _Storage:
        return _Storage(0 if self.is_freed else self.pointer)

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def is_contiguous(self) -> bool:
        return self._strides == tuple(int(np.prod(self.shape[n + 1 :])) for n in range(len(self.shape)))

    def get_device(self) -> int:
        return -1 if self.device.index is None else self.device.index

    def is_neg(self) -> bool:
        return False


Tensor: Any = type("Tensor", (_Tensor,), {"__module__": "torch"})
Parameter: Any = type("Parameter", (Tensor,), {"__module__": "torch.nn"})


class SparseTensor(Tensor):
    """A tensor without strides."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.layout = "torch.sparse_coo"

    def stride(self) -> tuple[int, ...]:
        raise RuntimeError("Cannot access strides of a sparse tensor")


@dataclass
class CupyMemory:
    ptr: int
    device_id: int


class _CupyArray:
    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 8192, device: int = 0) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = np.dtype("float16")
        self.data = CupyMemory(pointer, device)


CupyArray: Any = type("ndarray", (_CupyArray,), {"__module__": "cupy"})


@dataclass
class InterfaceArray:
    """An array that shows itself by `__cuda_array_interface__`, on its class."""

    shape: tuple[int, ...]
    typestr: str = "<f4"
    pointer: int | None = 4096
    read_only: bool = False
    strides: tuple[int, ...] | None = None
    stream: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.pointer, self.read_only),
            "strides": self.strides,
            "stream": self.stream,
            **self.extra,
        }


class DLPackArray:
    """A NumPy array that shows itself by DLPack only; `versions` is the protocol's generation."""

    def __init__(self, array: np.ndarray[Any, Any], generation: int = 1) -> None:
        self.array = array
        self.generation = generation

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.generation == 0:
            if "max_version" in options:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            return self.array.__dlpack__(stream=options["stream"])
        return self.array.__dlpack__(**options)
