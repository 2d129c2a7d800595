"""The C++ example of kernels compiled ahead of time: it is compiled here, and run where there is a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.exported import COMPILER, build_fake, build_library, calls, expected

from tilewright.demo.examples import examples_folder, load_example
from tilewright.runtime.nvrtc import library_path

FOLDER = examples_folder() / "ahead_of_time"
pytestmark = [
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler, on Linux"),
    pytest.mark.skipif(library_path() is None, reason="needs NVRTC"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    package = load_example(FOLDER / "_export.py").package()
    package.write(folder)
    return package, folder


def test_the_program_is_compiled_with_the_package(written, tmp_path):
    _, folder = written
    compiler = "g++" if COMPILER.endswith("gcc") else "clang++"
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{folder}", "-c", "-o", tmp_path / "main.o"]
    subprocess.run([compiler, *flags, FOLDER / "main.cpp"], check=True)
    build_library(folder, "products")


@pytest.mark.parametrize("way", ["c", "python"])
def test_a_product_of_hopper_is_launched_with_its_tensor_maps(written, tmp_path, way):
    package, folder = written
    build_library(folder, "products")
    at = 0x7F0000000000
    args = [(at, [512, 768], [768, 1]), (at + 2**30, [512, 1024], [1024, 1]), (at + 2**31, [768, 1024], [1024, 1])]
    (variant,) = package.functions[1].variants
    assert len(variant.maps) == 3
    lines, sizes = expected(variant, args)
    (found,) = calls(way, package, folder, build_fake(tmp_path), [("multiply", args, 0)], sizes=sizes)
    assert found[-1] == "done", found
    assert [line for line in found if line.startswith(("map", "launch"))] == lines
    assert lines[-1].startswith("launch 12 1 1, 384 1 1")


@pytest.mark.gpu
def test_the_program_runs(written, tmp_path):
    _, folder = written
    library = next((str(p) for p in map(Path, _places()) if p.exists()), "-lcuda")
    objects = []
    for source, compiler in (
        (folder / "products.c", "gcc"),
        (folder / "products_code.c", "gcc"),
        (FOLDER / "main.cpp", "g++"),
    ):
        objects.append(tmp_path / f"{source.stem}.o")
        subprocess.run([compiler, "-O1", f"-I{folder}", "-c", source, "-o", objects[-1]], check=True)
    subprocess.run(["g++", "-o", tmp_path / "products", *objects, library, "-ldl"], check=True)
    shown = subprocess.run([tmp_path / "products"], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stdout + shown.stderr


def _places():
    return ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/local/cuda/lib64/libcuda.so.1")
