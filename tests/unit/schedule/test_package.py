"""Packages: what they write, and that each of it tells the same of a kernel."""

import ast
import hashlib
import json
import shutil
import subprocess

import numpy as np
import pytest
from tests.unit.schedule.plans import product

import tilewright as tw
from tilewright.errors import ScheduleError, TilewrightWarning
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.functions import stand_in
from tilewright.schedule.manifests import toml_text
from tilewright.schedule.nest import Nest
from tilewright.schedule.package import Package
from tilewright.schedule.parameters import create_parameter_grid, create_parameters
from tilewright.schedule.targets import Target


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A package of fixed sizes in two variants, and of sizes that the launch brings."""
    folder = tmp_path_factory.mktemp("package")
    tile = create_parameters(1)
    package = Package()
    plan, arrays = product(24, 16, 16, tile)
    package.add(plan, arrays, "fixed", create_parameter_grid({tile: [4, 8]}))
    M, N, stream = Dimension("M"), Dimension("N"), Dimension("stream")
    plan, arrays = product(M, N, stream)
    package.add(plan, arrays, "general")
    files = package.build("products", Package.Format.DEFAULT | Package.Format.TOML, folder)
    return package, folder, files


def functions_of(folder):
    manifest = json.loads((folder / "products.json").read_text())
    return {entry["name"]: entry for entry in manifest["functions"]}


def test_a_package_has_the_files_that_its_manifest_names(built):
    package, folder, files = built
    entries = functions_of(folder)
    assert list(entries) == ["fixed_0", "fixed_1", "general"] == [f.name for f in package.functions]
    named = {file["name"] for entry in entries.values() for file in entry["files"].values()}
    assert named | {"products.h", "products.json", "products.toml", "products.py"} == set(files)
    assert {path.name for path in folder.iterdir()} == set(files)
    for entry in entries.values():
        for file in entry["files"].values():
            data = (folder / file["name"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
        assert (folder / entry["files"]["machine_code"]["name"]).read_bytes()[:4] == b"\x7fELF"


def test_the_manifest_says_what_the_kernel_is(built):
    package, folder, _ = built
    entries = functions_of(folder)
    for function in package.functions[:2]:
        entry = entries[function.name]
        assert entry["launch"]["grid"] == list(function.kernel.grid)
        assert entry["launch"]["block"] == list(function.kernel.block)
        assert entry["resources"]["registers"] == function.kernel.resources().registers > 0
    assert [entries[f"fixed_{n}"]["parameters"] for n in (0, 1)] == [{"tile": 4}, {"tile": 8}]
    assert [a["name"] for a in entries["general"]["arguments"]] == ["C", "A", "B"]
    assert [a["written"] for a in entries["general"]["arguments"]] == [True, False, False]
    assert entries["general"]["arguments"][1]["shape"] == ["M", "stream_1"]


def test_an_input_that_a_function_writes_is_said_to_be_written(tmp_path):
    a = Array(Role.INPUT, "float32", (8,), name="A")
    nest = Nest((8,))
    i = nest.get_indices()

    def logic():
        a[i] = a[i] * 2.0

    with pytest.warns(TilewrightWarning, match="array A is INPUT and is written"):
        nest.iteration_logic(logic)
    package = Package()
    package.add(nest.create_plan(Target("sm_90a")), (a,), "twice")
    package.build("inputs", Package.Format.HAT_SOURCE, tmp_path)
    (entry,) = json.loads((tmp_path / "inputs.json").read_text())["functions"]
    assert [(x["role"], x["written"]) for x in entry["arguments"]] == [("input", True)]
    assert "const float *" not in (tmp_path / "inputs.h").read_text()


def test_machine_parameters_stand_in_the_order_of_the_source(built):
    _, folder, _ = built
    for entry in functions_of(folder).values():
        text = (folder / entry["files"]["source"]["name"]).read_text()
        head = text[text.index("__global__") :]
        head = head[head.index(f"{entry['entry']}(") + len(entry["entry"]) + 1 : head.index(") {")]
        pointers = [part.rpartition("*")[1] == "*" or "__restrict__" in part for part in head.split(",")]
        assert [p["part"] == "pointer" for p in entry["machine_parameters"]] == pointers


def test_nothing_is_assumed_of_sizes_that_the_launch_brings(built):
    package, _, _ = built
    for array in package.functions[2].arrays:
        kind = stand_in(array).info.specialisation
        assert kind.extents == (1, 1)
        assert all(step.divisor == 1 for step in kind.strides)
    assert "float4" not in package.functions[2].device_source.text


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (24, 16, 16), (61, 7, 9), (8, 9, 3)])
def test_the_grid_is_that_of_the_kernel(built, m, n, k):
    from tilewright.schedule.loading import evaluate

    package, folder, _ = built
    grid = functions_of(folder)["general"]["launch"]["grid"]
    arrays = [np.zeros(shape, np.float32) for shape in ((m, n), (m, k), (k, n))]
    sizes = {"M": m, "N": n, "stream_1": k}
    assert tuple(evaluate(axis, sizes) for axis in grid) == package.functions[2].kernel.grid_for(*arrays)


def test_toml_says_what_json_says(built):
    tomllib = pytest.importorskip("tomllib")
    _, folder, _ = built

    def without_none(x):
        if isinstance(x, dict):
            return {key: without_none(value) for key, value in x.items() if value is not None}
        return [without_none(item) for item in x] if isinstance(x, list) else x

    manifest = json.loads((folder / "products.json").read_text())
    assert tomllib.loads((folder / "products.toml").read_text()) == without_none(manifest)
    odd = {"a b": 'quote " back \\ line \n del \x7f ü', "list": [1, 2.5, True, []], "empty": {}}
    assert tomllib.loads(toml_text(odd)) == odd


HOST = """
#include <stdio.h>
#include "products.h"
#ifdef __cplusplus
extern "C"
#endif
int cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                   unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **p, void **extra) {
    int n;
    (void)function; (void)stream; (void)extra;
    printf("%u %u %u %u %u %u %u", gx, gy, gz, bx, by, bz, shared);
    for (n = 0; n < general_PARAMETERS && gx != 4; n++)
        if (p[n] == 0) return 1;
    printf("\\n");
    return 0;
}
int main(void) {
    struct fixed_0_arguments fixed;
    struct general_arguments general;
    void *p[general_PARAMETERS];
    int n;
    fixed.A = 0; fixed.B = 0; fixed.C = 0;
    if (fixed_0_launch(0, 0, &fixed)) return 1;
    general_parameters(&general, p);
    for (n = 0; n < general_PARAMETERS; n++) printf("%d ", (int)((char *)p[n] - (char *)&general));
    printf("\\n");
    return general_launch(0, 0, &general, 61, 7, 9);
}
"""


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("gcc", "c11"), ("g++", "c++11"), ("g++", "c++20")])
def test_the_header_compiles_and_launches(built, tmp_path, compiler, standard):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    package, folder, _ = built
    source, program = tmp_path / ("host.c" if compiler == "gcc" else "host.cpp"), tmp_path / "host"
    source.write_text(HOST)
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", f"-std={standard}", f"-I{folder}"]
    subprocess.run(
        [compiler, *flags, "-fsyntax-only", "-x", "c" if compiler == "gcc" else "c++", str(folder / "products.h")],
        check=True,
    )
    subprocess.run([compiler, *flags, "-DPRODUCTS_LAUNCH", str(source), "-o", str(program)], check=True)
    lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    fixed, general = package.functions[0].kernel, package.functions[2].kernel
    assert [int(x) for x in lines[0].split()] == [*fixed.grid, *fixed.block, 0]
    arrays = [np.zeros(shape, np.float32) for shape in ((61, 7), (61, 9), (9, 7))]
    assert [int(x) for x in lines[2].split()] == [*general.grid_for(*arrays), *general.block, 0]
    # Fields follow one another in the order of the machine code's parameters.
    offsets = [int(x) for x in lines[1].split()]
    assert offsets == sorted(set(offsets)) and len(offsets) == len(package.functions[2].machine_parameters)


def test_functions_of_a_package_run_in_the_simulator(built):
    package, _, _ = built
    random = np.random.default_rng(0)
    for function, (m, n, k) in zip(package.functions, ((24, 16, 16), (24, 16, 16), (13, 7, 5)), strict=True):
        c, a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n)))
        wanted = c + a @ b
        function(c, a, b)
        assert np.array_equal(c, wanted)


def test_the_loader_is_python_and_names_the_functions(built):
    _, folder, _ = built
    tree = ast.parse((folder / "products.py").read_text())
    assigned = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    assert assigned == ["_package", "fixed_0", "fixed_1", "general", "__all__"]


def test_files_are_kept_unless_they_may_be_replaced(tmp_path):
    plan, arrays = product(16, 16, 8)
    package = Package()
    package.add(plan, arrays, "mm")
    form = Package.Format.SOURCE
    package.build("p", form, tmp_path)
    (tmp_path / "p.mm.cu").write_text("mine")
    with pytest.raises(ScheduleError, match=r"p\.mm\.cu already"):
        package.build("p", form, tmp_path)
    assert (tmp_path / "p.mm.cu").read_text() == "mine"
    package.build("p", form, tmp_path, overwrite=True)
    assert "__global__" in (tmp_path / "p.mm.cu").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["p.mm.cu"]


def test_a_function_of_parameters_makes_the_plans():
    package = Package()
    made = package.add(
        lambda p: product(16, 16, 8, p["tile"]), base_name="mm", parameters=create_parameter_grid({"tile": [4, 8]})
    )
    assert [f.kernel.block for f in made] == [(4, 4, 1), (8, 8, 1)]
    assert [a.name for a in made[0].arrays] == ["C", "A", "B"]
    one = package.add(lambda p: product(16, 16, 8, p["tile"])[0], ("B", "C", "A"), "other", {"tile": 4})
    assert one.name == "other" and [a.name for a in one.arrays] == ["B", "C", "A"]


def test_a_nest_is_added_as_it_stands_and_constants_travel(tmp_path):
    x = Array(Role.INPUT, tw.float32, (5,), name="x")
    y = Array(Role.OUTPUT, tw.float32, (5,), name="short")  # a word of C
    table = Array(Role.CONST, data=np.arange(5, dtype=np.float32), name="table")
    nest = Nest((5,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: y.__setitem__(i, x[i] + table[i]))
    package = Package()
    package.add(nest, base_name="shift")
    package.build("p", Package.Format.DEFAULT, tmp_path)
    entry = json.loads((tmp_path / "p.json").read_text())["functions"][0]
    assert entry["constants"][0]["name"] == "table"
    data = (tmp_path / entry["constants"][0]["file"]["name"]).read_bytes()
    assert np.array_equal(np.frombuffer(data, np.float32), np.arange(5))
    if shutil.which("gcc"):
        flags = ["-Wall", "-Werror", "-pedantic", "-DP_LAUNCH", "-fsyntax-only", "-x", "c"]
        subprocess.run(["gcc", *flags, str(tmp_path / "p.h")], check=True)


@pytest.mark.parametrize("name", ["2mm", "a-b", "int", "class", "", "a b", "naïve", "mm\n"])
def test_names_that_c_does_not_take_are_refused(name, tmp_path):
    plan, arrays = product(16, 16, 8)
    package = Package()
    if name:
        with pytest.raises(ScheduleError, match="not a name for a function"):
            package.add(plan, arrays, name)
    package.add(plan, arrays, "mm")
    with pytest.raises(ScheduleError, match="not a name for a package"):
        package.build(name, Package.Format.SOURCE, tmp_path)


def test_what_cannot_be_added_is_refused_and_leaves_the_package_as_it_was(tmp_path):
    package = Package()
    with pytest.raises(ScheduleError, match="no functions"):
        package.build("p", Package.Format.SOURCE, tmp_path)
    plan, arrays = product(16, 16, 8)
    package.add(plan, arrays, "mm")
    tile = create_parameters(1)
    waiting, its = product(16, 16, 8, tile)
    for source, args, name, parameters, words in (
        (plan, arrays, "MM", None, "already"),
        (waiting, its, "other", None, "tile has no value"),
        (waiting, its, "other", [{tile: 4}, {tile: 64}], "threads"),
        (waiting, its, "other", [], "empty"),
        (plan, ("C", "A", "D"), "other", None, "no array D"),
        (3, None, "other", None, "cannot be added"),
        (lambda p: 3, None, "other", None, "returned 3"),
    ):
        with pytest.raises(ScheduleError, match=words):
            package.add(source, args, name, parameters)
    assert [f.name for f in package.functions] == ["mm"]
