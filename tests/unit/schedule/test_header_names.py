"""Headers of packages whose arrays have names that mean something to C, C++ or the header itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.schedule import Array, Nest, Package, Role, Target
from tilewright.schedule.package import _in_docstring

NAMES = (
    *("NULL", "int8_t", "size_t", "INT8_MAX", "SIZE_MAX", "linux", "unix", "asm", "typeof", "float", "restrict"),
    *("_Bool", "_Atomic", "__func__", "arguments", "parameters", "twice_ENTRY", "twice_BLOCK_X", "PACKED_LAUNCH"),
    *("TILEWRIGHT_PACKED_H", "CUfunction", "cuLaunchKernel", "\u03b1", "n"),
)


def twice(first: str, second: str) -> Package:
    a = Array(Role.INPUT, tw.float32, (1024,), name=first)
    b = Array(Role.OUTPUT, tw.float32, (1024,), name=second)
    nest = Nest((1024,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _():
        b[i] = 2.0 * a[i]

    schedule = nest.create_schedule()
    ii = schedule.split(i, 64)
    target = Target("NVIDIA A100")
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_X, ii: target.GridUnit.THREAD_X})
    package = Package()
    package.add(plan, args=(a, b), base_name="twice")
    return package


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.spread(4)
def test_a_header_compiles_whatever_its_arrays_are_called(name: str, tmp_path: Path) -> None:
    package = twice(name, f"{name}_")
    package.build("packed", Package.Format.HEADER, tmp_path)
    main = tmp_path / "main.c"
    main.write_text('#define PACKED_LAUNCH\n#include "packed.h"\nint f(struct twice_arguments *a);\n')
    for compiler, standard, language in (("gcc", "gnu99", "c"), ("g++", "gnu++11", "c++")):
        if shutil.which(compiler) is None:
            pytest.skip(f"needs {compiler}")
        command = [compiler, f"-std={standard}", "-fsyntax-only", "-Wall", "-Werror=comment", "-x", language, str(main)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ['"""', "'''", "\\", 'a\\"""', "\n", "\u03b1", "\udc80", "\0"], ids=ascii)
def test_a_docstring_holds_any_text(text: str) -> None:
    names: dict[str, object] = {}
    exec(f'"""{_in_docstring(text)}"""\n', names)
    assert names["__doc__"] == text
