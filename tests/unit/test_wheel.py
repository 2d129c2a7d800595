"""The wheel: what its build leaves out, and that it holds the same programs."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from tests.helpers.wheel import hatch_build, plain_wheel, private_uses, unannotated

import tilewright as tw
from tilewright.runtime import compiled

MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """What rewrites the wheel."""
    return hatch_build()


@pytest.fixture(scope="module")
def shown(build: ModuleType) -> frozenset[str]:
    """What users meet."""
    return build.exported(plain_wheel())


@pytest.mark.slow
def test_the_wheel_is_small_and_says_what_it_holds(build: ModuleType, tmp_path: Path) -> None:
    plain, path = plain_wheel(), tmp_path / "tilewright.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**plain, "tilewright.dist-info/RECORD": b""}.items():
            wheel.writestr(name, content)
    pytest.importorskip("zopfli", reason="the build compresses by it")
    build.shrink(path)
    assert path.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    rows = [row.split(",") for row in files["tilewright.dist-info/RECORD"].decode().splitlines()]
    assert [row[0] for row in rows] == list(files)
    for name, digest, length in rows[:-1]:
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
        assert (digest, length) == (f"sha256={expected}", "")
    archives = {f"tilewright/{name}" for name in ("examples.bz2", "sources.bz2")}
    for name in archives:
        (tmp_path / Path(name).name).write_bytes(files[name])
    packed = {f"tilewright/examples/{x}": text for x, text in compiled.packed_files(tmp_path / "examples.bz2").items()}
    assert packed == {name: content for name, content in plain.items() if name.startswith("tilewright/examples/")}
    sources = {f"tilewright/{x}": text for x, text in compiled.packed_files(tmp_path / "sources.bz2").items()}
    in_c = [name for name in plain if name.endswith((".c", ".h", ".cpp")) and name not in packed]
    assert sources == {name: build.lean_c(plain[name]) for name in in_c}
    assert {f"tilewright/{name}" for name in (*compiled.LAUNCHER.sources, "torch/calls.cpp")} <= set(sources)
    modules = {name for name in plain if name not in packed and name not in sources}
    assert modules == set(files) - {"tilewright.dist-info/RECORD"} - archives


@pytest.mark.parametrize("text", [b"", b"a a", b"word word words", "W\u00f6rter word word".encode(), b"x\n\ny" * 300])
def test_packed_files_are_what_they_were(build: ModuleType, tmp_path: Path, text: bytes) -> None:
    """Words have bytes of their own where all is ASCII."""
    files = {"one.py": text, "two/word.c": b"word " * 50 + text, "zero": b""}
    (tmp_path / "packed.bz2").write_bytes(build.packed(files.items()))
    assert compiled.packed_files(tmp_path / "packed.bz2") == files


@pytest.mark.slow  # what private names are used for is read from all modules
def test_modules_of_the_wheel_are_the_same_programs(
    build: ModuleType, shown: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the docstrings of private functions, and for names; and every statement stays on its line."""
    files, private = plain_wheel(), private_uses()
    modules = [name for name in files if build.is_ours(name) and not name.startswith("tilewright/examples/")]
    for name in modules[:: len(modules) // 45]:
        lean = build.lean(files[name], name, shown, private)
        with monkeypatch.context() as patched:
            patched.setattr(build, "is_short", lambda _: False)
            long = build.lean(files[name], name, shown, private)
        assert program(build, long, name, None) == program(build, files[name], name, shown), name
        renamed = build.short(long.decode(), private).encode() if build.is_short(name) else long
        assert program(build, lean, name, None) == program(build, renamed, name, None), name


def program(build: ModuleType, content: bytes, name: str, shown: frozenset[str] | None) -> tuple[str, list[int]]:
    """Return a program without the docstrings that are left out, or `...` in their place, and the lines of its statements.

    And without the annotations that are.
    """
    tree = ast.parse(content)
    if shown is not None:
        for function in build.unannotated(tree):
            function.returns = None
            for node in ast.walk(function.args):
                if isinstance(node, ast.arg):
                    node.annotation = None
        typed = list(build.local_annotations(tree))
        local = {id(x) for x in typed}
        for parent in ast.walk(tree):
            for body in (getattr(parent, part, None) for part in ("body", "orelse", "finalbody")):
                if isinstance(body, list):
                    body[:] = [unannotated(x) if id(x) in local else x for x in body]
        for node in build.unseen(tree, name, shown):
            docstring = node.body.pop(0)
            if not node.body and not isinstance(node, ast.Module):
                node.body.append(ast.copy_location(ast.Expr(ast.Constant(...)), docstring))
    return ast.unparse(tree), [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def test_types_of_variables_in_functions_are_left_out(build: ModuleType) -> None:
    """Those of classes and modules are read, and what a kernel is made of stays as it was written."""
    source = """
top: int = 1

def public(a: int) -> int:
    x: dict[int, str] = {}; y: list[str] = []
    z: int
    class Inner:
        field: int = 2
    def inner():
        q: "text" = 3
    for _ in x:
        é: int = 4
    long: dict[
        int, str
    ] = {}
    (s): int = 5
    x.attribute: int = 6

@tw.kernel
def kernel():
    k: int = 7

class Public:
    field: int = 8
    def method(self) -> None:
        m: int = 9
"""
    lean = build.lean(source.encode(), "tilewright/schedulers/x.py", frozenset({"public", "Public"})).decode()
    changed = {
        a: b for a, b in zip(build.dense(build.thin(source)).split("\n"), lean.split("\n"), strict=True) if a != b
    }
    assert changed == {
        " x:dict[int,str]={};y:list[str]=[]": " x={};y=[]",
        '  q:"text"=3': "  q=3",
        "  é:int=4": "  é=4",
        "  m:int=9": "  m=9",
    }


def test_spaces_between_words_and_signs_go_but_in_kernels(build: ModuleType) -> None:
    source = """
x = a if b else -1; y = [1, 2 .real, "a b" "c"]; z = f"{x = } {y!r: >3}" % (x,)


@tw.kernel
def kernel(a, b):
    return a + b


def plain(a, b = 1, * , c):
    return 'a' in b, a  [1 : 2] - - \\
        3
"""
    expected = """
x=a if b else-1;y=[1,2 .real,"a b" "c"];z=f"{x = } {y!r: >3}"%(x,)


@tw.kernel
def kernel(a, b):
 return a + b


def plain(a,b=1,*,c):
 return 'a' in b,a[1:2]-- \\
  3
"""
    assert build.lean(source.encode(), "tilewright/ir/x.py", frozenset()).decode() == expected
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(expected))


def test_c_loses_comments_and_indentation(build: ModuleType) -> None:
    source = b"""/* What it is,
   over lines. */
#define TWICE(x) \\
    (2 * (x))

int f(void) {
    return TWICE(1); /* two */
}
"""
    assert build.lean_c(source) == b"#define TWICE(x) \\\n(2 * (x))\nint f(void) {\nreturn TWICE(1);\n}\n"


def test_docstrings_of_public_names_stay(build: ModuleType, shown: frozenset[str]) -> None:
    """Law: what a user can ask for by name, with its methods, is documented after an ordinary installation too."""
    files = plain_wheel()
    rooms = [importlib.import_module(f"tilewright.{room}") for room in tw._SUBMODULES]
    public = [getattr(tw, name) for name in tw._MODULE_OF] + [getattr(room, n) for room in rooms for n in room.__all__]
    names = {(x.__module__, x.__name__) for x in public if isinstance(x, (type, FunctionType))}
    for module in {module for module, _ in names}:
        name = f"{module.replace('.', '/')}.py"
        if name in files:
            tree = ast.parse(files[name])
            left_out = {*map(id, build.unseen(tree, name, shown))}
            for node in tree.body:
                if (module, getattr(node, "name", "")) in names:
                    methods = [x for x in ast.walk(node) if isinstance(x, ast.FunctionDef) and x.name[0] != "_"]
                    assert not [x.name for x in (node, *methods) if id(x) in left_out], name


def test_docstrings_of_modules_stay_where_users_reach_the_module(build: ModuleType, shown: frozenset[str]) -> None:
    """`help(tw.torch.nn)` has it; of a module that only has the name of something public nobody asks."""
    files = plain_wheel()
    documented = {
        name: ast.get_docstring(ast.parse(build.lean(files[f"tilewright/{name}.py"], f"tilewright/{name}.py", shown)))
        for name in ("__init__", "torch/__init__", "torch/nn", "torch/products", "kernels/matmul", "instructions/mma")
    }
    assert [name for name, text in documented.items() if text] == ["__init__", "torch/__init__", "torch/nn"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed: pip install pyright")
def test_types_of_the_wheel_are_complete(build: ModuleType, tmp_path: Path) -> None:
    """`pyright --verifytypes tilewright --ignoreexternal` gives 100 % for what is installed, not for the sources only.

    Classes that derive from those of a framework have a type where that is installed.
    """
    for name, content in build.shrunk(plain_wheel()).items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = ["pyright", "--verifytypes", "tilewright", "--ignoreexternal", "--outputjson"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if not ran.stdout.startswith("{"):  # it fetches a Node.js the first time
        pytest.skip(f"pyright does not run here: {(ran.stderr or ran.stdout)[-300:]}")
    report = json.loads(ran.stdout)["typeCompleteness"]
    assert Path(report["packageRootDirectory"]).is_relative_to(tmp_path)
    missing = tuple(f"tilewright.{name}." for name in ("torch", "jax") if importlib.util.find_spec(name) is None)
    exported = [
        symbol for symbol in report["symbols"] if symbol["isExported"] and not symbol["name"].startswith(missing)
    ]
    assert len(exported) > 10000
    assert [x["name"] for x in exported if not x["isTypeKnown"] or x["isTypeAmbiguous"]] == []


def test_comments_and_private_docstrings_are_left_out(build: ModuleType) -> None:
    source = '''"""Module."""
x = "# text"  # comment


def public():
    """Shown."""
    # alone
    return x  # type: ignore


@cache
def _private():
    """Not shown,
    over lines."""


@command("c")
def _shown():
    """Shown."""
'''
    expected = '''"""Module."""
x = "# text"


def public():
    """Shown."""

    return x


@cache
def _private():
    ...



@command("c")
def _shown():
    """Shown."""
'''
    assert build.lean(source.encode()).decode() == build.dense(build.thin(expected))


def test_annotations_that_nobody_is_shown_are_left_out(build: ModuleType) -> None:
    """Those of private functions and of functions within functions."""
    source = """def shown(x: int) -> int:
    def inner(y: list[int], *rest: str, key: dict[str, "é"] = {}, **more: int) -> None:
        return y
    return inner(x)

def _own(
    é: tuple[
        int,
        str,
    ],  # comment
    b: int = 1,
) -> tuple[
    int
]:
    return é

class Shown:
    def method(self, x: int) -> int:
        return x
    def _method(self, x: int) -> int:
        return x

@command("x")
def _command(x: int) -> int:
    return x
"""
    expected = """def shown(x: int) -> int:
    def inner(y, *rest, key = {}, **more):
        return y
    return inner(x)

def _own(
    é


,
    b = 1,
) -> tuple[
    int
]:
    return é

class Shown:
    def method(self, x: int) -> int:
        return x
    def _method(self, x):
        return x

@command("x")
def _command(x: int) -> int:
    return x
"""
    shown = frozenset({"shown", "Shown"})
    assert build.lean(source.encode(), "tilewright/language/x.py", shown).decode() == build.dense(build.thin(expected))


def test_indentation_is_one_space(build: ModuleType) -> None:
    """But for lines that continue others at their own place, and inside of texts."""
    source = '''def f(
        x):
    if x:
        return (x +
              1)
    return """
    text
        of lines"""
'''
    expected = '''def f(
  x):
 if x:
  return (x +
              1)
 return """
    text
        of lines"""
'''
    assert build.thin(source) == expected


def test_docstrings_of_inner_modules_are_left_out_and_of_public_ones_stay(build: ModuleType) -> None:
    source = b'''"""What an op is."""

@some.decorator
class Op:
    """An op."""


def emit(op):
    """Write an op."""
    return op
'''
    thin = build.dense(build.thin(source.decode())).encode()
    assert build.lean(source, "tilewright/language/copying.py") == thin
    assert build.lean(source, "tilewright/backends/sim/findings.py") == thin  # which users meet
    lean = build.lean(source, "tilewright/ir/core.py").decode()
    assert lean.split("\n") == [
        "",
        "",
        "@some.decorator",
        "class Op:",
        " ...",
        "",
        "",
        "def emit(op):",
        "",
        " return op",
        "",
    ]
    inner = tuple(folder[:-1].replace("/", ".") for folder in build.INNER)
    assert [name for name in tw._MODULE_OF if str(getattr(getattr(tw, name), "__module__", "")).startswith(inner)] == []
