"""Kernels compiled ahead of time: what the C launchers and the Python loader of a package ask the driver for."""

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from tests.helpers.exported import COMPILER, build_fake, build_library, calls, expected

import tilewright as tw
from tilewright.ahead.functions import ExportedArray, ExportedFunction
from tilewright.ahead.python_text import torch_text
from tilewright.errors import ArgumentError, LanguageError
from tilewright.runtime.nvrtc import library_path

pytestmark = [
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler, on Linux"),
    pytest.mark.skipif(library_path() is None, reason="needs NVRTC"),
]


@tw.kernel
def axpy(y, a: tw.float32, x):
    """Compute y = a x + y."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < y.shape[0]:
        y[i] = a * x[i] + y[i]


@tw.kernel
def numbers(y, b: tw.bfloat16, h: tw.float16, d: tw.float64, n: tw.int64, yes: tw.bool_, k: tw.uint8):
    """Write numbers of many types."""
    y[tw.thread_idx.x] = b.to(tw.float32) + h.to(tw.float32) + d.to(tw.float32) + n.to(tw.float32) + k.to(tw.float32)
    if yes:
        y[tw.thread_idx.x] = 0.0


@tw.kernel
def crowded(
    mode, codes, p0, device: tw.int32, code: tw.int32, blocks: tw.int32, config: tw.int32, linux: tw.int32, chosen, load
):
    """Take arguments that are called as the launchers call their own."""
    mode[0] = codes[0] + p0[0] + chosen[0] + load[0] + (device + code + blocks + config + linux).to(tw.float32)


@tw.kernel
def copy_tiles(dst, src, tile: tw.constexpr):
    """Copy whole tiles: extents have to be multiples of theirs."""
    where = tw.block_idx.y, tw.block_idx.x
    tw.copy(
        tw.local_partition(tw.local_tile(src, tile, where), tw.Layout((8, 16), (16, 1)), tw.thread_idx.x),
        tw.local_partition(tw.local_tile(dst, tile, where), tw.Layout((8, 16), (16, 1)), tw.thread_idx.x),
    )


@tw.kernel(cluster=2)
def bring(dst, src, box: tw.constexpr):
    """Copy boxes by TMA, in clusters of two blocks."""
    tile = tw.shared(src.dtype, tw.Layout(box, (box[1], 1)))
    full = tw.mbarrier(1)
    where = tw.block_idx.x, tw.block_idx.y
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(box[0] * box[1] * 4)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(tw.guarded(src), box, where), tile, barrier=full)
    full.wait(0)
    for k in tw.static_range(box[0]):
        dst[tw.block_idx.x * box[0] + k, tw.block_idx.y * box[1] + tw.thread_idx.x] = tile[k, tw.thread_idx.x]


@tw.kernel
def fill(dst, value: tw.float32):
    """Store a box of one value by TMA."""
    tile = tw.shared(dst.dtype, tw.row_major((8, 64)))
    for k in tw.static_range(8):
        tile[k, tw.thread_idx.x] = value
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.copy(tw.atoms.SM90_TMA_STORE, tile, tw.local_tile(tw.guarded(dst), (8, 64), (0, 0)))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@tw.kernel
def rotate(y, x, shift: tw.int32):
    """Rotate a row by way of shared memory of a size that the launch knows."""
    row = tw.shared(x.dtype, tw.Layout(x.shape[0]))
    for i in range(tw.thread_idx.x, x.shape[0], tw.block_dim.x):
        row[i] = x[i]
    tw.sync_threads()
    for i in range(tw.thread_idx.x, x.shape[0], tw.block_dim.x):
        y[i] = row[(i + shift) % x.shape[0]]


@dataclass(frozen=True)
class Parameters:
    weight: object
    bias: object
    scale: object


@tw.kernel
def affine(y, x, params):
    """Compute y = (weight x + bias) scale."""
    i = tw.block_idx.x * 128 + tw.thread_idx.x
    if i < x.shape[0]:
        y[i] = (params.weight[i] * x[i] + params.bias[i]) * params.scale


vector, odd = tw.spec(tw.float32, (4096,)), tw.spec(tw.float32, (4097,), align=4)
matrix, rows = tw.spec(tw.float32, (256, 256)), tw.spec(tw.float32, (64, 128))
blocks_of = lambda y, *rest: tw.ceil_div(y.shape[0], 256)  # noqa: E731


def package_of():
    package = tw.Package("several", archs=["sm_90a", "sm_80"])
    package.add(axpy[blocks_of, 256], odd, 2.0, odd)
    package.add(axpy[lambda y, a, x: (y.shape[0] // 1024, 2), 256], vector, 2.0, vector, name="axpy_of_1024")
    some = (tw.bfloat16(1), tw.float16(1), tw.float64(1), tw.int64(1), True, tw.uint8(1))
    package.add(numbers[1, 32], vector, *some)
    package.add(copy_tiles[lambda dst, src, tile: (src.shape[1] // 16, src.shape[0] // 8), 128], rows, rows, (8, 16))
    package.add(rotate[np.int64(1), 64], vector, vector, 3)
    of_numbers = lambda m, c, p, device, *rest: (device * device // 32, 1)  # noqa: E731
    package.add(crowded[of_numbers, 32], odd, odd, odd, 1, 2, 3, 4, 5, odd, odd)
    package.add(affine[lambda y, x, p: tw.ceil_div(y.shape[0], 128), 128], odd, odd, Parameters(odd, odd, 2.0))
    package.add(axpy[1, 32], tw.static(tw.spec(tw.float32, (32,))), 2.0, tw.spec(tw.float32, (32,), (0,)), name="fixed")
    return package


def only_hopper():
    package = tw.Package("hopper", archs=["sm_90a"])
    package.add(bring[lambda dst, src, box: (src.shape[0] // 8, src.shape[1] // 64), 64], matrix, matrix, (8, 64))
    package.add(fill[1, 64], tw.spec(tw.float32, (8, 63), (64, 1)), 1.0)
    return package


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return build_fake(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module", params=[package_of, only_hopper], ids=["several", "hopper"])
def written(request, tmp_path_factory):
    package, folder = request.param(), tmp_path_factory.mktemp("package")
    package.write(folder)
    build_library(folder, package.name)
    return package, folder


def row(n, at=0x7F0000000000, step=1):
    return (at, [n], [step])


def table(m, n, at=0x7F0000000000, pitch=None):
    return (at, [m, n], [n if pitch is None else pitch, 1])


OTHER, THIRD, FOURTH = 0x7F1000000000, 0x7F2000000000, 0x7F3000000000
LAUNCHES = [
    ("several", "axpy", [row(1), 2.5, row(1, OTHER)]),
    ("several", "axpy", [row(100003, 0x7F0000000004), -1.0, row(100003, OTHER + 12)]),
    ("several", "axpy_of_1024", [row(8192), 0.5, row(8192, OTHER)]),
    ("several", "numbers", [row(32), 1.0078125, 0.5, 1e300, -(2**40), True, 255]),
    ("several", "copy_tiles", [table(64, 128), table(64, 128, OTHER, 256)]),
    ("several", "rotate", [row(12288), row(12288, OTHER), -5]),
    ("several", "rotate", [row(44), row(44, OTHER), 7]),
    ("several", "crowded", [row(1), *[row(9, OTHER)] * 2, 100_000, 2, 3, 4, 5, *[row(9, THIRD)] * 2]),
    ("several", "affine", [row(77), row(77, OTHER), row(77, THIRD), row(77, FOURTH), 0.25]),
    ("several", "fixed", [row(32), 2.0, row(32, OTHER, 0)]),
    ("hopper", "bring", [table(256, 256), table(256, 256, OTHER)]),
    ("hopper", "bring", [table(16, 64, OTHER + 4096), table(16, 64, pitch=1024)]),
]


@pytest.mark.parametrize("way", ["c", "python"])
def test_the_driver_is_asked_for_what_the_kernel_says(written, fake, way):
    package, folder = written
    functions = {function.name: function for function in package.functions}
    for name, function, args in LAUNCHES:
        if name != package.name:
            continue
        lines, sizes = expected(functions[function].variants[0], args, stream=0x1230)
        (found,) = calls(way, package, folder, fake, [(function, args, 0x1230)], sizes=sizes)
        assert found[-1] == "done", found
        assert [line for line in found if line.startswith(("map", "launch"))] == lines
        allowed = re.search(r", (\d+) bytes", lines[-1]).group(1)
        assert (f"attribute 8 {allowed} 0" in found) == (int(allowed) > 48 * 1024)


REFUSED = [
    ("axpy", [row(100, 0x7F0000000002), 1.0, row(100, OTHER)], "y begins at 0x7f0000000002"),
    ("axpy", [row(100, 0), 1.0, row(100, OTHER)], "y has elements, and "),
    ("axpy", [row(100, step=2), 1.0, row(100, OTHER)], "stride 0 "),
    ("axpy", [row(2**31 + 8), 1.0, row(100, OTHER)], "spans 2"),
    ("axpy", [row(-1), 1.0, row(100, OTHER)], "extent 0 "),
    ("axpy", [row(100), 1.0, row(100, 0x7F0000000000 + 396)], "x shares memory with y"),
    ("axpy_of_1024", [row(4098), 1.0, row(4098, OTHER)], "multiples of 4"),
    ("copy_tiles", [table(60, 128), table(60, 128, OTHER)], "60"),
    ("copy_tiles", [table(64, 128), table(64, 128, OTHER, 130)], "multiples of 4"),
    ("rotate", [row(100000), row(100000, OTHER), 1], "bytes of shared memory"),
    ("fixed", [row(33), 2.0, row(33, OTHER, 0)], "extent 0 "),
    ("fixed", [row(32), 2.0, row(32, OTHER, 1)], "stride 0 "),
]


@pytest.mark.parametrize("way", ["c", "python"])
def test_arguments_that_the_kernel_was_not_compiled_for_are_refused(written, fake, way):
    package, folder = written
    if package.name != "several":
        pytest.skip("of the other package")
    found = calls(way, package, folder, fake, [(name, args, 0) for name, args, _ in REFUSED])
    for (name, _, message), lines in zip(REFUSED, found, strict=True):
        assert lines[-1].startswith(f"refused -1 {name}"), lines
        assert message in lines[-1], lines
        assert not [line for line in lines if line.startswith("launch")]


@pytest.mark.parametrize("way", ["c", "python"])
def test_tma_refuses_what_no_map_describes_and_clusters_divide_the_grid(written, fake, way):
    package, folder = written
    if package.name != "hopper":
        pytest.skip("of the other package")
    made = [
        ([table(256, 256), table(256, 256, OTHER, 258)], "multiples of"),
        ([table(256, 256), table(256, 256, OTHER + 4)], "begins at"),
        ([table(24, 64), table(24, 64, OTHER)], "clusters of 2"),
        ([table(8, 63, pitch=64), 1.0], "whole 16 bytes at the end of a row, and rows have 63 elements of 4 bytes"),
    ]
    names = ["bring", "bring", "bring", "fill"]
    found = calls(way, package, folder, fake, [(name, args, 0) for name, (args, _) in zip(names, made, strict=True)])
    for name, (_, message), lines in zip(names, made, found, strict=True):
        assert lines[-1].startswith(f"refused -1 {name}") and message in lines[-1], lines
    (lines,) = calls(way, package, folder, fake, [("fill", [table(8, 60, pitch=64), 1.0], 0)])
    assert lines[-1] == "done", lines


@pytest.mark.parametrize("way", ["c", "python"])
def test_the_code_for_the_device_is_taken_and_loaded_once(written, fake, way):
    package, folder = written
    args = {"several": [row(100), 1.0, row(100, OTHER)], "hopper": [table(256, 256), table(256, 256, OTHER)]}
    first = package.functions[0]
    for capability in (75, 80, 86, 90, 100):
        fit = [v for v in first.variants if v.capability == (9, 0)] if capability == 90 else []
        fit += [v for v in first.variants if v.capability == (8, 0)] if capability in (80, 86) else []
        made = [(first.name, args[package.name], 0)] * 2
        found = calls(way, package, folder, fake, made, capability=capability)
        if not fit:
            assert all("no machine code for a GPU of compute capability" in lines[-1] for lines in found)
            continue
        loads = [line for lines in found for line in lines if line.startswith("load")]
        assert loads == [f"load {fit[0].lowered.module.cubin[:16].hex()}"]
        assert all(lines[-1] == "done" for lines in found)


@pytest.mark.parametrize("way", ["c", "python"])
def test_nothing_is_launched_without_blocks_and_without_a_context(written, fake, way):
    package, folder = written
    if package.name != "several":
        pytest.skip("of the other package")
    (found,) = calls(way, package, folder, fake, [("axpy", [row(0), 1.0, row(0, OTHER)], 0)])
    assert found[-1] == "done" and not [line for line in found if line.startswith("launch")]
    (found,) = calls(way, package, folder, fake, [("axpy", [row(9), 1.0, row(9, OTHER)], 0)], context=False)
    assert "no CUDA context is current" in found[-1]


def test_the_header_is_cplusplus_and_the_loader_imports_little(written, tmp_path):
    package, folder = written
    program = tmp_path / "main.cpp"
    program.write_text(
        f'#include "{package.name}.h"\nint main() {{ {package.name}_array x{{}}; return x.data != 0; }}\n'
    )
    compiler = "g++" if COMPILER.endswith("gcc") else "clang++"
    subprocess.run(
        [compiler, "-std=c++11", "-Wall", "-Werror", "-I", folder, "-c", program, "-o", tmp_path / "o"], check=True
    )
    script = f"import sys; sys.path.insert(0, {str(folder)!r}); import {package.name}; print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True).stdout
    for heavy in ("tilewright", "numpy", "torch", "json", "re", "inspect", "typing"):
        assert f"'{heavy}'" not in shown


def test_operators_write_any_number_of_arguments():
    arrays = [ExportedArray(f"y{n}", f"y{n}", tw.float32, (), (), ((), ()), 4, False, True, False) for n in range(60)]
    text = torch_text("p", [ExportedFunction("f", tuple(arrays), ())])
    assert len(set(re.findall(r"Tensor\((\w+)!\)", text))) == 60


def test_a_launcher_exports_itself(tmp_path):
    files = axpy[4, 256].export(tmp_path / "new", vector, 2.0, vector, name="vectors", archs=["sm_80"])
    assert sorted(file.name for file in files) == sorted(file.name for file in (tmp_path / "new").iterdir())
    assert {file.suffix for file in files} == {".c", ".h", ".py", ".cubin"}
    with pytest.raises(ArgumentError, match="already"):
        axpy[4, 256].export(tmp_path / "new", vector, 2.0, vector, name="vectors", archs=["sm_80"])
    axpy[4, 256].export(tmp_path / "new", vector, 2.0, vector, name="vectors", archs=["sm_80"], overwrite=True)


@tw.kernel
def together(x):
    tw.sync_grid()
    x[tw.thread_idx.x] = 1.0


def add(**options):
    def attempt():
        package = tw.Package("p", archs=["sm_90a"])
        package.add(axpy[1, 32], vector, 1.0, vector, **options)

    return attempt


def grid(function):
    return lambda: tw.Package("p", archs=["sm_90a"]).add(axpy[function, 32], vector, 1.0, vector)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: tw.Package("2d"), "not a name"),
        (lambda: tw.Package("class"), "not a name"),
        (lambda: tw.Package("p", archs="sm_90a"), "list of targets"),
        (lambda: tw.Package("p", archs=3), "list of targets"),
        (lambda: tw.Package("p", archs=[90]), "list of targets"),
        (lambda: tw.Package("p", archs=["sm_1"]), "sm_1"),
        (lambda: tw.Package("p", archs=["gfx90a"]).add(axpy[1, 64], vector, 1.0, vector), "AMD"),
        (lambda: tw.Package("p").add(axpy, vector, 1.0, vector), "grid and block"),
        (lambda: tw.Package("p").write("nowhere"), "no functions"),
        (add(name="return"), "not a name"),
        (add(name="error"), "not a name"),  # the header has p_error and p_array
        (add(name="array"), "not a name"),
        (lambda: tw.Package("check"), "not a name"),
        (lambda: tw.Package("launch"), "not a name"),
        (add(name="sum"), "not a name"),  # the loader calls that of Python
        (grid(lambda y, a, x: int(y.shape[0])), "only the launch knows"),
        (grid(lambda y, a, x: 1 if y.shape[0] > 5 else 2), "only the launch knows"),
        (grid(lambda y, a, x: y.shape[0] / 2), "only the launch knows"),
        (grid(lambda y, a, x: len(str(y.shape[0]))), "only the launch knows"),
        (grid(lambda y, a, x: {4: 2}.get(y.shape[0], 1)), "only the launch knows"),
        (grid(lambda y, a, x: y.shape[0] >> 8), "only the launch knows"),
        (grid(lambda y, a, x: y.shape[0] // 0), "divides by zero"),
        (grid(lambda y, a, x: y.shape[0] * 10**20), "64 bits"),
        (grid(lambda y: 1), "does not take the arguments of the kernel"),
        (grid(lambda y, a, x: 2.5), "whole number"),
        (grid(lambda y, a, x: y.shape[0] * a), "a is a float"),
        (grid(lambda y, a, x: a), "a is a float"),
        (grid(lambda y, a, x: int(a)), "only the launch knows"),
        (grid(lambda y, a, x: 2**63), "whole number"),
        (grid(lambda y, a, x: -1), "at least 0"),
        (grid(lambda y, a, x: (1, 2, 3, 4)), "1 to 3"),
        (lambda: tw.Package("p", archs=["sm_90a"]).add(together[1, 32], vector), "all its blocks at once"),
        (lambda: tw.Package("p", archs=["sm_90a"]).add(axpy[1, 32], vector), "axpy"),
    ],
)
def test_refused(attempt, message):
    with pytest.raises((ArgumentError, LanguageError), match=message):
        attempt()


def test_two_functions_of_one_name_are_refused():
    package = tw.Package("p", archs=["sm_80"])
    package.add(axpy[1, 32], vector, 1.0, vector)
    with pytest.raises(ArgumentError, match="already"):
        package.add(axpy[2, 32], vector, 1.0, vector, name="AXPY")
    assert [function.name for function in package.functions] == ["axpy"]


def test_the_loader_rounds_as_numpy_and_divides_as_c(tmp_path, monkeypatch):
    import ml_dtypes

    axpy[4, 256].export(tmp_path, vector, 2.0, vector, name="rounding", archs=["sm_80"])
    monkeypatch.syspath_prepend(str(tmp_path))
    loader = importlib.import_module("rounding")
    import ctypes

    memory = ctypes.create_string_buffer(8)
    values = [*np.random.default_rng(0).standard_normal(200), 0.0, -0.0, float("inf"), float("nan"), 1.00390625, 3e38]
    for value in values:
        loader._pack(memory, 0, "bfloat16", float(value), "f")
        bits = np.float32(value).astype(ml_dtypes.bfloat16).view(np.uint16)
        assert int.from_bytes(memory.raw[:2], "little") == bits or np.isnan(value)
    for a in range(-9, 10):
        for b in range(-4, 5):
            assert loader.quotient(a, b) == (int(a / b) if b else 0)
            assert loader.remainder_of(a, b) == (a - b * int(a / b) if b else 0)
    for x in (-(2**40) - 1, -129, -128, 127, 128, 2**31, 2**35 + 5):
        for kind in (np.int8, np.uint16, np.int32):
            bits = np.dtype(kind).itemsize * 8
            assert loader.reduced(x, bits, kind(0).dtype.kind == "i") == np.int64(x).astype(kind)
    array = loader.Array(4096, (8,))
    with pytest.raises(loader.PackageError, match="axpy: a: 'two' does not fit"):  # said before the grid is computed
        loader.axpy(array, "two", array)
    del sys.modules["rounding"]


@tw.kernel
def scale_in_place(x, unused: tw.float32):
    x[tw.thread_idx.x] = 2 * x[tw.thread_idx.x]


@tw.kernel
def shouted(OUT, EOF: tw.float32, INT64_MAX: tw.int32, SIZE_MAX: tw.int64, SEEK_SET: tw.int32, near: tw.int32):
    OUT[tw.thread_idx.x] = EOF + (INT64_MAX + SIZE_MAX + SEEK_SET + near).to(tw.float32)


def test_the_c_text_has_no_warnings_where_a_kernel_reads_nothing_else(tmp_path):
    package = tw.Package("lone", archs=["sm_90a"])
    package.add(scale_in_place[1, 32], vector, 1.0)
    package.add(shouted[1, 32], vector, 1.0, 2, 3, 4, 5)  # as headers of C call their macros
    package.write(tmp_path)
    build_library(tmp_path, "lone")
