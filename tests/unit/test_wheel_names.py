"""The short names of the wheel: which names change, and that the programs do the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from types import CodeType, ModuleType

import pytest
from tests.helpers.wheel import hatch_build, plain_wheel, private_uses, unannotated


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """What rewrites the wheel."""
    return hatch_build()


def test_variables_of_inner_functions_have_short_names(build: ModuleType) -> None:
    """But for parameters of public functions, texts that show a name, and functions that are kernels."""
    source = """
def plain(count, *rest, key=1):
    total, b = 0, 1
    for item in rest:
        total += item
    held = item
    pairs = {first: [first + second + third for second in rest] for first in rest if first < count}
    ordered = sorted(pairs, key=lambda each: pairs[each, pairs])
    again = call(again=[[third for third in rest] for each in ordered], total=ordered)
    equal = f"{total} {equal=} {label!r:>{item}} equals={equal}"
    label = count
    try:
        import os.path as path
    except OSError as error:
        label = error, path

    def inner(value, way, depth=held):
        item = value + depth
        return held, item, depth, inner(1, way=2)

    def given(value):
        return [held for held in value], held

    return inner(1, way=2), given, label, b, os, again

@tw.kernel
def kernel(x):
    value = x
    return value

def known():
    value = 1
    return locals()
"""
    new = {
        "total": "a",
        "item": "c",
        "pairs": "d",
        "first": "e",
        "second": "f",
        "ordered": "g",
        "again": "h",
        "label": "i",
    }
    begin, end = source.index("    def inner"), source.index("    def given")
    inner = {"value": "a", "depth": "b", "item": "d"}  # c is the item around it
    expected = "".join(
        re.sub(r"\b[a-z]+\b(?!=[\[o])", lambda word, names=names: names.get(word[0], word[0]), text)
        for text, names in ((source[:begin], new), (source[begin:end], inner), (source[end:], new))
    )
    assert build.short(source).split("\n") == expected.split("\n")
    assert same_program(build, source, expected)
    lean = build.lean(source.encode(), "tilewright/trace/x.py", frozenset()).decode()
    assert "g=sorted" in lean
    assert "ordered" in build.lean(source.encode(), "tilewright/schedulers/x.py", frozenset()).decode()


def test_variables_that_functions_within_use_have_one_short_name(build: ModuleType) -> None:
    """Which no variable of those has, in any depth."""
    source = """
def outer(items):
    count, unused = len(items), 1
    def middle():
        own = 1
        def inner():
            mine = count
            return mine, own
        return inner()
    class Local:
        field = count
        def method(self):
            value = unused
            return value
    def changes():
        nonlocal count
    return middle, Local
"""
    new = source.replace("own", "a").replace("mine", "b")
    assert build.short(source) == new.replace("value", "a")
    source = source.replace("nonlocal count", "return count").replace("field = count", "field = 1")
    expected = source.replace("count", "a").replace("own", "b").replace("mine", "c").replace("value", "a")
    assert build.short(source) == expected
    assert same_program(build, source, expected)


def test_private_parameters_and_constants_have_short_names(build: ModuleType) -> None:
    """Where modules only call the function, never with the parameter's name, and none but its own has the constant."""
    source = """
_LIMIT: int = 1
_imported = _READ = _TEXT = 2
_held = _LIMIT
def _plain(value, other, *rest, key=_LIMIT):
    return value + other + key + rest
def _open(value, **more):
    return value
def _passed(value):
    return value, _imported, _READ
def _unpacked(value):
    return value
class Thing:
    _LIMIT = 3
    def _method(self, value):
        return self._method(value), _plain(1, other=2), f"{_held} {_TEXT=}"
@tw.kernel
def kernel(x):
    return x + _held
call(_passed, _unpacked(**{}), _open(1))
"""
    files = {
        "tilewright/ir/x.py": source.encode(),
        "tilewright/ir/y.py": b"from tilewright.ir.x import _imported\nx._READ, x._LIMITED, '_held of'",
    }
    private = build.private_uses(files)
    changed = {
        "def _plain(value, other, *rest, key=_LIMIT):": "def _plain(a, other, *b, key=_LIMIT):",
        "    return value + other + key + rest": "    return a + other + key + b",
        "    def _method(self, value):": "    def _method(self, a):",
        "        return self._method(value), _plain": "        return self._method(a), _plain",
    }
    expected = source
    for before, after in changed.items():
        assert before in expected
        expected = expected.replace(before, after)
    assert build.short(source, private).split("\n") == expected.split("\n")
    source, expected = (text.replace("    _LIMIT = 3\n", "").replace("x + _held", "x") for text in (source, expected))
    files = {"tilewright/ir/x.py": source.encode()}
    expected = expected.replace("_LIMIT", "_a").replace("_imported", "_b").replace("_READ", "_c").replace("_held", "_d")
    assert build.short(source, build.private_uses(files)).split("\n") == expected.split("\n")
    assert same_program(build, source, expected, keywords_in(files), files)
    assert not same_program(build, source, expected, {("_plain", "value")}, files)
    assert not same_program(build, source, expected, keywords_in(files), {**files, "y.py": b"x._LIMIT"})


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("x = y = 1; return x", "a = y = 1; return x"),  # a variable that is none any more
        ("x = y = 1; return x", "y = y = 1; return y"),  # two in one
        ("x = 1; return [x + y for y in z]", "z = 1; return [z + y for y in z]"),
        ("x = 1; return lambda: x", "a = 1; return lambda: x"),
        ("return [[y for y in z], y]", "return [[a for a in z], a]"),
        ("x = 1; return z(x=x)", "a = 1; return z(a=a)"),
        ("x = 1; return z.x", "a = 1; return z.a"),
        ("x = 1; return f'{x=}'", "a = 1; return f'{a=}'"),
    ],
)
def test_wrong_names_are_found(build: ModuleType, line: str, other: str) -> None:
    one, two = (f"def f():\n    {each}\n" for each in (line, other))
    assert same_program(build, one, one) and not same_program(build, one, two)


def test_wrong_names_of_parameters_and_modules_are_found(build: ModuleType) -> None:
    assert not same_program(build, "def f(x): return x", "def f(a): return a")
    assert not same_program(build, "_X = _Y = 1", "_a = _a = 1", files={})
    assert not same_program(build, "_X = 1", "_a = 1") and same_program(build, "_X = 1", "_a = 1", files={})
    assert not same_program(build, "X = 1", "_a = 1", files={})


Given = set[tuple[str, str | None]]  # the names of functions, and of what calls give by name; None for `**`


def keywords_in(files: dict[str, bytes]) -> Given:
    """Return what calls give by name."""
    calls = [x for text in files.values() for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Call)]
    names = ((getattr(call.func, "attr", getattr(call.func, "id", "")), call.keywords) for call in calls)
    return {(name, keyword.arg) for name, keywords in names for keyword in keywords}


def same_program(
    build: ModuleType, one: str, other: str, given: Given = frozenset(), files: dict[str, bytes] | None = None
) -> bool:
    """Say whether two modules differ by names only: of variables, each of which has one name in a whole function.

    And of parameters that no call has by name: of functions within functions, and of private ones, whose calls in all
    modules name those in `given`. And of private variables of the module, where `files` are all modules.
    """
    trees = [without_types(text) for text in (one, other)]
    functions = [[x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)] for tree in trees]
    for pair in zip(*functions, strict=True):
        ids = [[node.id for node in build.names_of(function, build._DEFINITIONS)] for function in pair]
        if not is_one_to_one(zip(*ids, strict=True)):
            return False
    pairs: set[tuple[str, str]] = set()
    if not same_code(*(compile(tree, "x", "exec") for tree in trees), (given, keywords_in({"": one.encode()})), pairs):
        return False
    changed = {before for before, after in pairs if before != after}
    others = b"\n".join(text for text in (files or {}).values() if text != one.encode())
    known = {word for word in changed if not word.startswith("_") or re.search(rb"\b%b\b" % word.encode(), others)}
    return is_one_to_one(pairs) and not known and not (changed and files is None)


def is_one_to_one(pairs: Iterable[tuple[str, str]]) -> bool:
    """Say whether each name has one other, and none has that of another."""
    renamed = set(pairs)
    return all(len({names[i] for names in renamed}) == len(renamed) for i in (0, 1))


def without_types(source: str) -> ast.Module:
    """Return a module without annotations, in which names of parameters and of variables are texts."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            node.annotation = ast.copy_location(ast.Constant(0), node) if isinstance(node, ast.AnnAssign) else None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    tree.body = [unannotated(x) if isinstance(x, ast.AnnAssign) and x.value is not None else x for x in tree.body]
    return tree


def same_code(
    one: CodeType, other: CodeType, given: tuple[Given, Given], pairs: set[tuple[str, str]], is_inner: bool = False
) -> bool:
    """Say whether two programs have the same instructions; `pairs` gets the names of what is no variable.

    What instructions take is not compared: they number the variables of closures by the order of their names.
    """
    names = ("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_flags")
    if any(getattr(one, name) != getattr(other, name) for name in names) or one.co_code[::2] != other.co_code[::2]:
        return False
    if any(len(getattr(one, name)) != len(getattr(other, name)) for name in ("co_cellvars", "co_freevars", "co_names")):
        return False
    pairs.update(zip(one.co_names, other.co_names, strict=True))
    parameters = one.co_argcount + one.co_kwonlyargcount + bool(one.co_flags & 4) + bool(one.co_flags & 8)
    changed = [x for x, y in zip(one.co_varnames[:parameters], other.co_varnames, strict=False) if x != y]
    name, is_private = one.co_name, one.co_name.startswith("_") and not one.co_name.endswith("__")
    if changed and (
        not (is_inner or is_private) or one.co_flags & 8 or {(name, x) for x in (None, *changed)} & given[is_inner]
    ):
        return False
    is_inner = bool(one.co_flags & 2)  # a function, and no class or module
    consts = zip(one.co_consts, other.co_consts, strict=True)
    return all(
        same_code(a, b, given, pairs, is_inner) if isinstance(a, CodeType) else type(a) is type(b) and a == b
        for a, b in consts
    )


@pytest.mark.slow
def test_short_names_leave_the_code_of_all_modules_as_it_is(build: ModuleType) -> None:
    """Python 3.11 calls methods of what has the name of an import in another way: such a variable fails here."""
    files = plain_wheel()
    given = keywords_in({name: text for name, text in files.items() if build.is_ours(name)})
    for name in files:
        if build.is_ours(name) and build.is_short(name):
            source = files[name].decode()
            assert same_program(build, source, build.short(source, private_uses()), given, {}), name
