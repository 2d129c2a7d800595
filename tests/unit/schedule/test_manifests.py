"""Manifests from anywhere: what was not written by `build` is refused with its place, and reads no other file."""

import builtins
import copy
import io
import json
import keyword
import os
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.schedule.plans import product

import tilewright as tw
from tilewright.dtypes import dtype
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.schedule import Array, Nest, Package, Role, loading, schema
from tilewright.schedule.affine import Dimension
from tilewright.schedule.manifests import toml_text

ROLES = ("machine_code", "source", "files", "name", "header", "constants")  # names that a manifest has of its own


def with_constants(names, data=None):
    """Return a nest that adds CONST arrays of these names to an input."""
    x = Array(Role.INPUT, tw.float32, (8,), name="x")
    y = Array(Role.OUTPUT, tw.float32, (8,), name="y")
    data = np.arange(8, dtype=np.float32) if data is None else data
    tables = [Array(Role.CONST, data=data + n, element_type=tw.float32, name=name) for n, name in enumerate(names)]
    nest = Nest((8,))
    i = nest.get_indices()

    def logic():
        total = x[i]
        for table in tables:
            total = total + table[i]
        y[i] = total

    nest.iteration_logic(logic)
    return nest, tables


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    package = Package()
    package.add(*product(24, 16, 16), "fixed")
    M, N, K = Dimension("M"), Dimension("N"), Dimension("K")
    package.add(*product(M, N, K), "general")
    package.add(with_constants(ROLES)[0], base_name="tables", parameters={"tile": 4, "fused": [True, 0.5, "x", None]})
    package.build("p", Package.Format.DEFAULT | Package.Format.TOML, folder)
    return folder


@pytest.fixture(scope="module")
def manifest(built):
    return json.loads((built / "p.json").read_text())


def test_no_name_of_an_array_takes_the_place_of_another_file(built, manifest):
    entry = manifest["functions"][2]
    assert "__global__" in (built / entry["files"]["source"]["name"]).read_text()
    assert (built / entry["files"]["machine_code"]["name"]).read_bytes()[:4] == b"\x7fELF"
    assert [constant["name"] for constant in entry["constants"]] == list(ROLES)
    for n, constant in enumerate(entry["constants"]):
        values = np.frombuffer((built / constant["file"]["name"]).read_bytes(), np.float32)
        assert values.tolist() == [float(x + n) for x in range(8)]
    files = [
        file["name"]
        for f in manifest["functions"]
        for file in (*f["files"].values(), *(c["file"] for c in f["constants"]))
    ]
    assert len({name.casefold() for name in files}) == len(files) == len(list(built.iterdir())) - 4
    assert loading.load(built / "p.json")["tables"].machine_code[:4] == b"\x7fELF"


@pytest.mark.parametrize("data", [np.arange(8), np.arange(8, dtype=np.float64), np.arange(8, dtype=np.int8)])
def test_constants_are_written_in_the_type_and_strides_that_the_code_reads(data, tmp_path):
    nest, _ = with_constants(["table"], data)
    package = Package()
    package.add(nest, base_name="f")
    table = Array(Role.CONST, "float16", layout=Array.Layout.LAST_MAJOR, data=np.arange(6).reshape(2, 3), name="t")
    B = Array(Role.OUTPUT, "float16", (2, 3), name="B")
    other = Nest((2, 3))
    i, j = other.get_indices()
    other.iteration_logic(lambda: B.__setitem__((i, j), table[i, j]))
    package.add(other, base_name="g")
    package.build("p", Package.Format.MANIFEST, tmp_path)
    f, g = loading.load(tmp_path / "p.json").values()
    assert f._constant_values[0].tolist() == list(map(float, range(8))) and f._constant_values[0].dtype == np.float32
    assert g._constant_values[0].tolist() == [0, 3, 1, 4, 2, 5] and g.manifest["constants"][0]["strides"] == [1, 2]


def test_names_of_functions_and_arrays_stay_names(tmp_path):
    package = Package()
    package.add(*product(16, 16, 8), "_package")
    package.add(*product(16, 16, 8), "load")
    package.build("p", Package.Format.LOADER, tmp_path)
    scope = {"__file__": str(tmp_path / "p.py")}
    exec((tmp_path / "p.py").read_text(), scope)
    assert [scope[name].name for name in scope["__all__"]] == ["_package", "load"]
    for name in ("a b", "../x", 'x"""\nimport os', "x */ y", "x\n", "", "1", *keyword.kwlist):
        with pytest.raises(tw.TilewrightError, match="an array cannot be called|name"):
            with_constants([name])
    with pytest.raises(ScheduleError, match="the name of a function has 101 letters"):
        package.add(*product(16, 16, 8), "f" * 101)
    for name in ("con", "NUL", "Aux", "com1", "LPT9"):
        with pytest.raises(ScheduleError, match="not a name for a package"):
            package.build(name, Package.Format.DEFAULT, tmp_path)
        assert schema.is_device(f"{name}.f.cu") and not schema.is_device(f"p.{name}")
    with pytest.raises(ScheduleError, match="the name of a package has 101 letters"):
        package.build("p" * 101, Package.Format.DEFAULT, tmp_path)
    with pytest.raises(ScheduleError, match="not a name for a function"):
        package.add(*product(16, 16, 8), "__all__")


@pytest.mark.parametrize("names", [("short", "short_"), ("naïve", "n_na_ve"), ("x_", "x__")])
def test_fields_of_the_header_differ(names, tmp_path):
    package = Package()
    package.add(with_constants(names)[0], base_name="f")
    package.build("p", Package.Format.HEADER | Package.Format.MANIFEST, tmp_path)
    text = (tmp_path / "p.h").read_text()
    fields = re.findall(r"^    [\w ]+?\*?(\w+); /\*", text, re.M)
    assert len(fields) == len(set(fields)) >= 4
    for n, name in enumerate(names):
        assert f"the contents of p.f.constant{n}.bin" in text
        assert json.loads((tmp_path / "p.json").read_text())["functions"][0]["constants"][n]["name"] == name


def paths_of(x, path=()):
    """Yield the path of every key and item of plain data, containers included."""
    for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
        yield (*path, key)
        yield from paths_of(x[key], (*path, key))


def at(x, path):
    for key in path:
        x = x[key]
    return x


HOSTILE = [
    *(None, True, False, 0, -1, 3, 2**31, 2**63, 10**400, -(2**63) - 1, 0.5, -0.0, 1e308, "", "x", "A", "../x", "M"),
    *("/etc/passwd", "..", "a\\b", "C:\\x", "C:x", "a/b", ".", "a\0b", "\ud800", "é", "x" * 5000, "(" * 400, "1//0"),
    *("__import__('os')", "M ** 99", [], {}, [1], ["x"], [[[[[[[[[[[[1]]]]]]]]]]]], {"x": 1}, {"name": "x"}, [None] * 3),
]  # fmt: skip


def mutants(manifest, every, few=6):
    """Yield what is changed, while it is: one key or value of the manifest, replaced, taken away or added.

    A few of the values for each place, unless `every` one is asked for.
    """
    chosen = random.Random(0)
    for path in list(paths_of(manifest)):
        *above, key = path
        parent = at(manifest, above)
        kept = copy.copy(parent)
        old = parent[key]
        for value in HOSTILE if every else chosen.sample(HOSTILE, few):
            if type(value) is not type(old) or value != old:
                parent[key] = value
                yield path, value
        parent[key] = old
        del parent[key]
        yield path, "gone"
        if isinstance(parent, dict):
            parent[f"{key}_"] = old
            yield path, "renamed"
            parent.clear()
            parent.update(kept)
        else:
            parent[:] = [*kept, old]
            yield path, "twice"
            parent[:] = kept


class CudaArray:
    def __init__(self, pointer, shape):
        self.shape = shape
        self.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": "<f4", "data": (pointer, False), "strides": None, "stream": None,
        }  # fmt: skip


@pytest.fixture
def opened(monkeypatch):
    """The files that Python code opens. Files that compiled code opens by itself are not seen.

    An audit hook would see those too, but it stays for the life of the process, and is called for each frame that a
    trace looks at: every test after it takes a tenth longer.
    """
    paths = []

    def watched(function):
        def noting(file, *args, **kwargs):
            if isinstance(file, (str, bytes, os.PathLike)):
                paths.append(os.fsdecode(file))
            return function(file, *args, **kwargs)

        return noting

    for module, function in ((builtins, open), (io, io.open), (os, os.open)):
        monkeypatch.setattr(module, "open", watched(function))
    return paths


def test_what_is_opened_is_noted(tmp_path, opened):
    file = tmp_path / "file"
    file.write_text("1")
    with open(file, "rb"):
        os.close(os.open(file, os.O_RDONLY))
    assert opened == [str(file)] * 3 and file.read_bytes() == b"1" and len(opened) == 4


@pytest.fixture
def driver(monkeypatch):
    """A driver that does nothing, so that a call of a loaded function goes through all that it reads."""

    class OnDevice:
        def __init__(self, values, ordinal):
            self.pointer, self.dtype, self.ordinal = 1 << 30, dtype(values.dtype), ordinal

        from_numpy = classmethod(lambda cls, values, ordinal=0: cls(values, ordinal))

    function = SimpleNamespace(launch=lambda *values: 0, handle=0)
    monkeypatch.setattr(loading.driver, "load_function", lambda *args, **kwargs: function)
    monkeypatch.setattr("tilewright.runtime.driver.ordinal_of_pointer", lambda pointer: 0)
    monkeypatch.setattr(loading, "DeviceArray", OnDevice)


def call_all(manifest, folder):
    """Call the functions of a manifest that was taken for one."""
    for entry in manifest["functions"]:
        function = loading.LoadedFunction(entry, folder)
        shapes = {"fixed": ((24, 16), (24, 16), (16, 16)), "general": ((9, 5), (9, 7), (7, 5)), "tables": ((8,), (8,))}
        arguments = [CudaArray((n + 1) << 24, shape) for n, shape in enumerate(shapes.get(entry["name"], ()))]
        function(*arguments, stream=0)


def test_the_package_itself_is_called(manifest, built, driver):
    call_all(manifest, built)


every = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


@every
def test_a_changed_manifest_is_refused_or_means_the_same(manifest, driver, opened, every):
    """Every leaf and key, changed without the digest: what loads is what was written."""
    manifest, digest = copy.deepcopy(manifest), schema.digest(manifest)
    accepted = 0
    for what in mutants(manifest, every):
        try:
            assert schema.digest(schema.check(manifest)) == digest, what
            accepted += 1
        except ScheduleError as error:
            assert len(str(error)) < 2000, what
    assert accepted < 20  # where nothing stood for None
    assert opened == [] and schema.digest(manifest) == digest


@every
def test_a_forged_manifest_is_refused_or_refers_to_nothing_else(manifest, built, driver, opened, every):
    """The same with a digest that fits: it is refused by what it says, or calls go through, or are refused."""
    manifest, digest = copy.deepcopy(manifest), manifest["digest"]
    for what in mutants(manifest, every, few=2):
        try:
            manifest["digest"] = schema.digest(manifest)
            schema.check(manifest)
            if what[0][0] == "functions":
                call_all(manifest, built)
        except TilewrightError as error:
            assert len(str(error)) < 4000, what
        finally:
            manifest["digest"] = digest
    folder = os.path.realpath(built)
    outside = [path for path in opened if os.path.dirname(os.path.realpath(path)) != folder]
    assert [path for path in outside if "tilewright" not in path] == []


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("functions", 0, "launch", "grid", 0), 0, r"functions\[0\].launch.grid\[0\] is 0; a whole number from 1 to 2147483647 is needed"),
        (("functions", 0, "launch", "grid", 0), 2.0, r"grid\[0\] is 2.0; a whole number"),
        (("functions", 0, "launch", "grid", 1), "Q // 2", r"an expression of \(\) with"),
        (("functions", 0, "launch", "block"), [32, 32, 32], "a block of at most 1024 threads"),
        (("functions", 0, "launch", "block"), [8, 8], "a list of 3 is needed"),
        (("functions", 0, "launch", "dynamic_shared_bytes"), 10**6, "what sm_80 has"),
        (("functions", 0, "arguments", 0, "shape", 0), -24, r"shape\[0\] is -24"),
        (("functions", 0, "arguments", 0, "shape", 0), 10**400, "a number of 1329 bits"),
        (("functions", 0, "arguments", 0, "type"), "float33", "one of bool, int8"),
        (("functions", 0, "files", "machine_code", "name"), "../p.fixed.cubin", "the name of a file beside the manifest"),
        (("functions", 0, "machine_parameters", 0, "argument"), "Z", "one of"),
        (("functions", 2, "constants", 0, "file", "bytes"), 31, "32, by shape, strides and type is needed"),
        (("functions", 1, "name"), "Fixed", "a list of different names is needed"),
        (("format",), True, "not of format 2: its format is True"),
        (("format",), 3, "not of format 2: its format is 3"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place_the_value_and_what_is_needed(manifest, place, value, words):
    changed = copy.deepcopy(manifest)
    at(changed, place[:-1])[place[-1]] = value
    with pytest.raises(ScheduleError, match=words):
        schema.check(changed)


def texts(good):
    """Yield files that are no manifests."""
    yield from (
        b"",
        b"\xff\xfe",
        good[:-40],
        b"[]",
        b"3",
        b"null",
        b'"text"',
        b"{",
        good + b"}",
        b"\x00",
        good.replace(b"grid", b"gr\xe9d"),
    )
    yield b"[" * 100_000
    yield b'{"a":' * 100_000
    yield good.replace(b'"format": 2', b'"format": 2, "format": 2', 1)
    yield good.replace(b'"bytes": ', b'"bytes": 1, "bytes": ', 1)
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"-" + b"9" * 5000):
        yield good.replace(b'"tile": 4', b'"tile": ' + number)
    chosen = random.Random(1)
    for _ in range(150):
        data = bytearray(good)
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        yield bytes(data)


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_files_that_are_no_manifests_are_refused(built, tmp_path, suffix, manifest):
    if suffix == "toml":
        pytest.importorskip("tomllib")
    good = (built / f"p.{suffix}").read_bytes()
    file = tmp_path / f"p.{suffix}"
    file.write_bytes(good)
    assert list(loading.load(file)) == ["fixed", "general", "tables"]
    for data in texts(good):
        if data == good:
            continue
        file.write_bytes(data)
        try:
            functions = loading.load(file)
        except ScheduleError as error:
            assert len(str(error)) < 2000
        else:  # blanks, or the case of an escape
            assert [f.manifest for f in functions.values()] == [
                f.manifest for f in loading.load(built / f"p.{suffix}").values()]  # fmt: skip


@pytest.mark.parametrize("key", ["format", "functions", "grid", "sha256"])
def test_two_keys_of_one_name_are_refused(built, tmp_path, key):
    """Also where both have one value: which of two counts is nothing to rely on."""
    text = (built / "p.json").read_text()
    file = tmp_path / "p.json"
    file.write_text(text.replace(f'"{key}":', f'"{key}": 2, "{key}":', 1))
    with pytest.raises(ScheduleError, match=f"a table has two keys '{key}'"):
        loading.load(file)


def test_what_is_no_file_is_not_waited_for(tmp_path, built, manifest):
    places = [tmp_path, tmp_path / "absent.json", tmp_path / "a\0b.json"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
        places.append(tmp_path / "pipe.json")
    (tmp_path / "large.json").write_bytes(b" " * (2**24 + 1))
    (tmp_path / "circle.json").symlink_to("circle.json")
    for place in (*places, tmp_path / "large.json", tmp_path / "circle.json"):
        with pytest.raises(ScheduleError, match="cannot be loaded"):
            loading.load(place)


def test_files_of_a_package_lie_in_its_folder(tmp_path, built, manifest):
    folder, outside = tmp_path / "package", tmp_path / "elsewhere"
    folder.mkdir(), outside.mkdir()
    (folder / "p.json").write_bytes((built / "p.json").read_bytes())
    name = manifest["functions"][0]["files"]["machine_code"]["name"]
    code = (built / name).read_bytes()
    (outside / name).write_bytes(code)
    file = folder / name

    def refused(words):
        with pytest.raises(ScheduleError, match=words):
            loading.load(folder / "p.json")["fixed"].machine_code
        if file.is_symlink() or file.exists():
            file.unlink()

    refused("cannot be loaded")
    file.symlink_to(outside / name)
    refused("is a link to .*outside of the package's folder")
    file.symlink_to(name)
    refused("cannot be loaded")
    for wrong in (code[:-1], code + b"x", bytes(len(code)), b""):
        file.write_bytes(wrong)
        refused("its size or its hash differs|bytes; at most")
    if hasattr(os, "mkfifo"):
        os.mkfifo(file)
        refused("not a regular file")
    (folder / "inside").write_bytes(code)
    file.symlink_to("inside")
    assert loading.load(folder / "p.json")["fixed"].machine_code == code
    (tmp_path / "link").symlink_to(folder)
    assert loading.load(tmp_path / "link" / "p.json")["fixed"].machine_code == code


def test_json_and_toml_have_one_digest(manifest, built):
    tomllib = pytest.importorskip("tomllib")
    read = tomllib.loads(toml_text(manifest))
    assert read["digest"] == schema.digest(read) == schema.digest(manifest)
