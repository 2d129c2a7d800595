"""The loader of a package, with a driver that only notes what it is asked for."""

import json

import numpy as np
import pytest
from tests.helpers.scripts import load_script
from tests.unit.schedule.plans import product

from tilewright.errors import ArgumentError, ScheduleError
from tilewright.runtime.launch import ExtentSlot, PointerSlot, StrideSlot
from tilewright.schedule import loading
from tilewright.schedule.affine import Dimension
from tilewright.schedule.package import Package


class CudaArray:
    """What `__cuda_array_interface__` says of an array at an address of no machine."""

    def __init__(self, pointer, shape, dtype="<f4", strides=None):
        self.shape = shape
        self.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": dtype, "data": (pointer, False), "strides": strides, "stream": None,
        }  # fmt: skip


class NotingPacker:
    """In place of `Packer`: keeps what would be launched."""

    launches: list = []

    def __init__(self, slots, starts):
        self.slots, self.starts = slots, starts

    def launch(self, function, config, stream, values, layouts):
        taken = []
        for slot in self.slots:
            start = self.starts[slot.argument]
            if isinstance(slot, PointerSlot):
                taken.append(values[start])
            else:
                part = {ExtentSlot: 0, StrideSlot: 1}[type(slot)]
                taken.append(layouts[start][part][slot.mode])
        NotingPacker.launches.append((function, config.grid, config.block, taken))


@pytest.fixture
def functions(tmp_path, monkeypatch):
    package = Package()
    package.add(*product(24, 16, 16), "fixed")
    M, N, K = Dimension("M"), Dimension("N"), Dimension("K")
    package.add(*product(M, N, K), "general")
    package.build("products", Package.Format.LOADER, tmp_path)
    loads: list = []

    def load_function(cubin, name, *, ordinal, dynamic_shared_bytes):
        loads.append((cubin, name, ordinal))
        return f"function {name} on {ordinal}"

    monkeypatch.setattr(loading.driver, "load_function", load_function)
    monkeypatch.setattr("tilewright.runtime.driver.ordinal_of_pointer", lambda pointer: 0)
    monkeypatch.setattr(loading, "Packer", NotingPacker)
    monkeypatch.setattr(NotingPacker, "launches", [])
    module = load_script(tmp_path / "products.py")
    module.loads, module.folder = loads, tmp_path
    return module


def arrays(m, n, k, first=1 << 20):
    return tuple(CudaArray(first + (x << 24), s) for x, s in enumerate(((m, n), (m, k), (k, n))))


def test_a_call_launches_the_machine_code_once_loaded(functions):
    for _ in range(2):
        functions.fixed(*arrays(24, 16, 16), stream=0)
    code = (functions.folder / "products.fixed.cubin").read_bytes()
    assert functions.loads == [(code, "fixed", 0)]
    wanted = ("function fixed on 0", (2, 3, 1), (8, 8, 1))
    assert [launch[:3] for launch in NotingPacker.launches] == [wanted] * 2


@pytest.mark.parametrize(("m", "n", "k"), [(61, 7, 9), (8, 8, 8), (1, 33, 2)])
def test_sizes_and_parameters_come_from_the_arrays(functions, m, n, k):
    given = arrays(m, n, k)
    functions.general(*given, stream=0)
    _, grid, block, values = NotingPacker.launches[-1]
    assert (grid, block) == ((-(-n // 8), -(-m // 8), 1), (8, 8, 1))
    shapes = {"C": (m, n), "A": (m, k), "B": (k, n)}
    pointers = {name: x.__cuda_array_interface__["data"][0] for name, x in zip("CAB", given, strict=True)}
    for parameter, value in zip(functions.general.manifest["machine_parameters"], values, strict=True):
        shape = shapes[parameter["argument"]]
        wanted = {
            "pointer": lambda p=parameter: pointers[p["argument"]],
            "shape": lambda p=parameter, s=shape: s[p["mode"]],
            "stride": lambda p=parameter, s=shape: (s[1], 1)[p["mode"]],
        }[parameter["part"]]()
        assert value == wanted, parameter


def test_arrays_without_elements_need_no_launch(functions):
    functions.general(*arrays(0, 5, 3), stream=0)
    assert NotingPacker.launches == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, a, b: (c, a), "takes"),
        (lambda c, a, b: (c, a, 3.0), "an array is needed"),
        (lambda c, a, b: (c, a, CudaArray(1 << 26, (16, 8))), "shape"),
        (lambda c, a, b: (c, a, CudaArray(1 << 26, (16, 16, 1))), "modes"),
        (lambda c, a, b: (c, a, CudaArray(1 << 26, (16, 16), "<f8")), "float64; float32 is needed"),
        (lambda c, a, b: (c, a, CudaArray(1 << 26, (16, 16), strides=(4, 64))), "strides"),
        (lambda c, a, b: (c, a, CudaArray((1 << 26) + 4, (16, 16))), "multiple of 16"),
        (lambda c, a, b: (c, a, CudaArray((1 << 20) + 1520, (16, 16))), "shares memory with 'C'"),
        (lambda c, a, b: tuple(np.zeros(x.shape, np.float32) for x in (c, a, b)), "on the CPU"),
    ],
)
@pytest.mark.spread(3)
def test_what_the_machine_code_cannot_take_is_refused(functions, change, words):
    with pytest.raises(ArgumentError, match=words):
        functions.fixed(*change(*arrays(24, 16, 16)), stream=0)
    assert NotingPacker.launches == []


def test_arrays_that_disagree_on_a_size_are_refused(functions):
    c, a, _ = arrays(10, 12, 14)
    with pytest.raises(ArgumentError, match="is 14 by another array"):
        functions.general(c, a, CudaArray(1 << 26, (13, 12)), stream=0)


def test_machine_code_that_was_exchanged_is_refused(functions):
    file = functions.folder / "products.fixed.cubin"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ScheduleError, match="its size or its hash differs"):
        functions.fixed(*arrays(24, 16, 16), stream=0)


def test_a_manifest_of_another_format_is_refused(functions, tmp_path):
    manifest = json.loads((functions.folder / "products.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps({**manifest, "format": 99}))
    (tmp_path / "broken.json").write_text("{")
    for name, words in (("other", "format 2"), ("broken", "cannot be read"), ("missing", "cannot be read")):
        with pytest.raises(ScheduleError, match=words):
            loading.load(tmp_path / f"{name}.json")


@pytest.mark.parametrize("text", ["M ** 2", "N + 1", "__import__('os')", "M / 2", "1.5", "M //", "M // 0"])
def test_expressions_are_arithmetic_of_the_sizes_and_nothing_else(text):
    with pytest.raises(ScheduleError):
        loading.evaluate(text, {"M": 4})


@pytest.mark.gpu
def test_a_package_runs_on_the_gpu(tmp_path):
    from tilewright.runtime.memory import DeviceArray
    from tilewright.schedule.targets import Target

    M, N, K = Dimension("M"), Dimension("N"), Dimension("K")
    package = Package()
    package.add(*product(M, N, K, target=Target()), "mm")
    package.build("p", Package.Format.LOADER, tmp_path)
    mm = loading.load(tmp_path / "p.json")["mm"]
    random = np.random.default_rng(0)
    for m, n, k in ((64, 64, 64), (61, 7, 9)):
        c, a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n)))
        on_gpu = [DeviceArray.from_numpy(x) for x in (c, a, b)]
        mm(*on_gpu)
        assert np.array_equal(on_gpu[0].numpy(), c + a @ b)
