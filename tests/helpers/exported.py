"""Packages run against a stand-in for the CUDA driver, by their C launchers and by their Python loader.

`calls(folder, package, functions, ...)` gives what the driver was asked for in each call, or what was refused;
`expected(variant, ...)` what the IR says that it should be asked for, computed without the package's texts.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from tilewright.ahead.functions import ExportedArray
from tilewright.ahead.sizes import Size
from tilewright.ir.core import Buffer

COMPILER = shutil.which("gcc") or shutil.which("clang")
FAKE = Path(__file__).with_name("fake_cuda.c")
_C = {"bool": "c_uint8", "float16": "c_uint16", "bfloat16": "c_uint16", "float32": "c_float", "float64": "c_double"}

_BY_C = """
import ctypes, json, sys
work = json.load(open(sys.argv[1]))
library = ctypes.CDLL(work["library"])
rank, name = work["rank"], work["package"]
class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * rank), ("strides", ctypes.c_int64 * rank)]
error = getattr(library, name + "_error")
error.restype = ctypes.c_char_p
for call in work["calls"]:
    given = []
    for kind, value in call["args"]:
        if kind == "array":
            data, shape, strides = value
            array = Array(data)
            array.shape[: len(shape)], array.strides[: len(strides)] = shape, strides
            given.append(ctypes.byref(array))
        else:
            given.append(getattr(ctypes, kind)(value))
    status = getattr(library, name + "_" + call["function"])(*given, ctypes.c_void_p(call["stream"]))
    with open(work["log"], "a") as log:
        log.write("done\\n" if status == 0 else f"refused {status} {error().decode()}\\n")
"""

_BY_PYTHON = """
import importlib, json, sys
work = json.load(open(sys.argv[1]))
sys.path.insert(0, work["folder"])
package = importlib.import_module(work["package"])
assert "tilewright" not in sys.modules and "numpy" not in sys.modules
for call in work["calls"]:
    given = [package.Array(*value) if kind == "array" else value for kind, value in call["plain"]]
    try:
        getattr(package, call["function"])(*given, stream=call["stream"] or 0)
        said = "done"
    except package.PackageError as error:
        said = f"refused -1 {error}"
    with open(work["log"], "a") as log:
        log.write(said + "\\n")
"""


def build_fake(folder):
    """Compile the stand-in for the driver, and return the folder that it lies in."""
    folder.mkdir(exist_ok=True)
    target = folder / "libcuda.so.1"
    if not target.exists():
        subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", target, FAKE], check=True)
    return folder


def build_library(folder, package):
    """Compile the C launchers of a package, without a warning, and return the library."""
    target = folder / f"lib{package}.so"
    sources = [folder / f"{package}.c", folder / f"{package}_code.c"]
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, "-o", target, *sources, "-ldl"], check=True)
    return target


def calls(way, package, folder, fake, made, *, capability=90, sizes=(), context=True):
    """Make calls (function, arguments, stream) by "c" or "python"; return for each the lines of the driver and its end."""
    rank = max([1, *(a.rank for f in package.functions for a in f.arrays)])
    log = folder / f"log_{way}"
    log.unlink(missing_ok=True)
    by_name = {function.name: function for function in package.functions}
    work = {
        "library": str(folder / f"lib{package.name}.so"),
        "folder": str(folder),
        "package": package.name,
        "rank": rank,
        "log": str(log),
        "calls": [
            {
                "function": name,
                "args": [_for_c(a, x) for a, x in zip(by_name[name].arguments, args, strict=True)],
                "plain": [("array" if isinstance(x, tuple) else "number", x) for x in args],
                "stream": stream,
            }
            for name, args, stream in made
        ],
    }
    given = folder / f"work_{way}.json"
    given.write_text(json.dumps(work))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "LD_LIBRARY_PATH": str(fake),
        "FAKE_CUDA_LOG": str(log),
        "FAKE_CUDA_CAPABILITY": str(capability),
        "FAKE_CUDA_SIZES": ",".join(map(str, sizes)),
        **({} if context else {"FAKE_CUDA_NO_CONTEXT": "1"}),
    }
    script = _BY_C if way == "c" else _BY_PYTHON
    subprocess.run([sys.executable, "-c", script, str(given)], env=environment, check=True, timeout=60)
    found, lines = [], []
    for line in log.read_text().splitlines():
        lines.append(line)
        if line.startswith(("done", "refused")):
            found.append(lines)
            lines = []
    return found


def expected(variant, args, stream=0):
    """Return the driver's lines of a launch: its tensor maps, and the launch with the bytes of its parameters."""
    given = dict(zip((a.path for a in variant.arguments), args, strict=True))

    def find(parameter):
        value = given[parameter.argument]
        if not isinstance(parameter.part, tuple):
            return value
        part, mode = parameter.part
        return value[1 if part == "shape" else 2][mode]

    lowered, lines, data = variant.lowered, [], []
    lowered.check(find)
    for parameter in variant.slots:
        if isinstance(parameter.target, Buffer):
            data.append(struct.pack("=Q", given[parameter.argument][0]))
        else:
            data.append(np.asarray(find(parameter)).astype(parameter.target.type.numpy).tobytes())
    for number, (each, values) in enumerate(lowered.map_values(find).items(), 1):
        pointer = given[next(p.argument for p in variant.slots if p.target is each.buffer.root)][0]
        size, steps = each.dtype.bytes, each.steps or (1,) * each.rank
        kind = {"bfloat16": 9, "float16": 6, "float32": 7, "int32": 3, "float8_e4m3fn": 0}[each.dtype.name]
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[each.swizzle]
        address = values.check_address(each, pointer)
        boxes = "".join(
            f" {extent}/{box * step}/{step}" for extent, box, step in zip(values.extents, each.box, steps, strict=True)
        )
        pitches = "".join(f" {stride * size}" for stride in values.strides[1:])
        lines.append(f"map {kind} {each.rank} {address:#x} 0 {swizzle} 2 {int(each.nan)}:{boxes}{pitches}")
        data.append(bytes([number]) * 128)
    shapes = {a.name: given[a.path] for a in variant.arguments if isinstance(a, ExportedArray)}
    numbers = {a.name: given[a.path] for a in variant.arguments if not isinstance(a, ExportedArray)}
    grid = [value_of(extent, shapes, numbers) for extent in variant.grid]
    shared = lowered.source.dynamic_shared_bytes
    if lowered.kernel.launch_sized:
        shared = lowered.shared_memory(find, variant.arch.shared_bytes_optin, "a GPU")[0]
    attributes = "".join(f" {x.id}({' '.join(map_three(x.value))})" for x in variant.attributes)
    handle = hex(stream) if stream else "(nil)"
    words = "".join(f" {word.hex()}" for word in data)
    block = " ".join(map(str, variant.block))
    lines.append(
        f"launch {' '.join(map(str, grid))}, {block}, {shared} bytes, stream {handle}, attributes{attributes}:{words}"
    )
    return lines, [len(word) for word in data]


def map_three(value):
    return [str(x) for x in (*value, 0, 0)[:3]]


def value_of(size, shapes, numbers):
    """Compute a grid's extent by Python's own arithmetic."""
    if not isinstance(size, Size):
        return size
    if size.kind in ("extent", "stride"):
        name, mode = size.operands
        return shapes[name][1 if size.kind == "extent" else 2][mode]
    if size.kind == "number":
        return numbers[size.operands[0]]
    if size.kind == "constant":
        return size.operands[0]
    a, b = (value_of(x, shapes, numbers) for x in size.operands)
    return {"+": a + b, "-": a - b, "*": a * b, "//": a // b if b else 0, "%": a % b if b else 0}[size.kind]


def _for_c(argument, value):
    if isinstance(argument, ExportedArray):
        return "array", value
    kind = argument.dtype.name
    if kind == "float16":
        value = int(np.float16(value).view(np.uint16))
    if kind == "bfloat16":
        value = int(np.asarray(value).astype(argument.dtype.numpy).view(np.uint16))
    return _C.get(kind, f"c_{kind}"), value
