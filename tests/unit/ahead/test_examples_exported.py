"""The kernels of all examples as packages: both launchers ask the driver for what the lowered kernels say, to the byte."""

import sys
import threading

import pytest
from tests.helpers.exported import COMPILER, build_fake, build_library, calls, expected

import tilewright as tw
from tilewright.demo import collect_cases, example_files, with_parts
from tilewright.errors import ArgumentError, LanguageError
from tilewright.launch import observers
from tilewright.runtime.arrays import describe
from tilewright.runtime.nvrtc import library_path
from tilewright.runtime.plan import named_leaves

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler, on Linux"),
    pytest.mark.skipif(library_path() is None, reason="needs NVRTC"),
]
# What a package says it cannot launch, and instructions of AMD's.
REFUSED = ("reaches arrays by addresses", "needs all its blocks at once", "needs gfx908")


def launches():
    """Return what the examples launch: each kernel once for each shape of its block."""
    found = {}

    def see(launcher, args, kwargs):
        if launcher.kernel.takes_any_number:
            launcher = launcher.kernel.numbered_for(args)[launcher.grid, launcher.block]
        key = launcher.kernel.__name__, str(launcher.block)
        found.setdefault(key, (launcher, launcher.kernel.complete(args, kwargs)))
        return True  # and nothing runs

    thread = threading.get_ident()
    for case in collect_cases(with_parts(example_files()), "sim", quick=True):
        trial = case.prepare()
        observers[thread] = see
        try:
            trial.launch()
        finally:
            observers.pop(thread, None)
    return list(found.values())


def given(function, launcher, args):
    """Return the arguments of a launch for the stand-in: arrays far apart, each as far from 16 bytes as it is."""
    leaves = {}
    for parameter, value in zip(launcher.kernel.parameters, args, strict=True):
        if not parameter.is_constexpr and value is not None:
            leaves.update(named_leaves(parameter.name, value))
    places, found = {}, []
    for argument in function.arguments:
        value = leaves[argument.path]
        info = describe(value)
        if info is None:
            found.append(value.item() if hasattr(value, "item") else value)
            continue
        at = places.setdefault(info.pointer, 0x7F0000000000 + len(places) * 2**34 + info.pointer % 16)
        found.append((at, list(info.shape), list(info.strides)))
    return found


def test_packages_of_all_kernels_launch_as_the_kernels_say(tmp_path):
    fake, right = build_fake(tmp_path / "driver"), 0
    for number, (launcher, args) in enumerate(launches()):
        package, folder = tw.Package(f"package{number}", archs=["sm_90a"]), tmp_path / str(number)
        try:
            function = package.add(launcher, *args)
        except (ArgumentError, LanguageError) as error:
            assert any(reason in str(error) for reason in REFUSED), error
            continue
        package.write(folder)
        build_library(folder, package.name)
        values = given(function, launcher, args)
        lines, sizes = expected(function.variants[0], values)
        for way in ("c", "python"):
            (found,) = calls(way, package, folder, fake, [(function.name, values, 0)], sizes=sizes)
            assert found[-1] == "done", (function.name, way, found)
            assert [line for line in found if line.startswith(("map", "launch"))] == lines, (function.name, way)
        right += 1
    assert right > 80
