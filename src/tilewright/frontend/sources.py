"""From a function to the syntax tree of its definition, with the lines and columns of its file.

Python compiled the function when its module was imported, and the file is read when the kernel is first traced: what
stands there by then may be something else. So the definition that is found is compiled and compared with the code that
the function has. Lines and columns do not count: where only the lines above it were edited, the definition is found at
its new place.

Code says nothing of the types that annotate variables, and an import hook (such as pytest's for assertions) may have
written other code than the file's. Then the file has to be the one that was there when the function was decorated;
`remember` notes which that was.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import io
import linecache
import os
import stat
import sys
import tokenize
import types
import zipimport
from collections.abc import Iterator
from importlib import machinery
from typing import Any
from weakref import WeakKeyDictionary

from tilewright.errors import LanguageError
from tilewright.frontend.syntax import FACTORY, definition

# What the compiler was told by `from __future__ import`, as flags of the code.
_FUTURES = sum(getattr(__future__, feature).compiler_flag for feature in __future__.all_feature_names)
# Flags that say where a definition stands, not what it does: CO_NESTED, and CO_METHOD of Python 3.14.
_PLACE_FLAGS = inspect.CO_NESTED | 0x8000000
# Loaders that compile a file as it is; modules of the interactive prompt and of notebooks have none.
_PLAIN_LOADERS = (machinery.SourceFileLoader, machinery.SourcelessFileLoader, zipimport.zipimporter, type, type(None))

_Stamp = tuple[int, int, int]  # of a file: when it was written, its size and its number

_stamps: WeakKeyDictionary[types.FunctionType, _Stamp | None] = WeakKeyDictionary()


def remember(function: types.FunctionType) -> None:
    """Note which file a function comes from, as it is now: one question to the file system."""
    _stamps[function] = _stamp(function.__code__.co_filename)


def _stamp(file: str) -> _Stamp | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # a notebook's cell, a doctest
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def parse(function: types.FunctionType) -> ast.FunctionDef:
    """Return the definition of a function; its nodes have the places of the file.

    Raises `LanguageError` when the source cannot be read, is not a def statement, or is not what the function was
    compiled from.
    """
    code = function.__code__
    lines = _lines(function)
    if not lines:
        raise _no_source(function)
    if code.co_name == "<lambda>" or code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise _no_definition(function)
    owner = _class_name(function)
    same_file = _stamps.get(function) in (None, _stamp(code.co_filename))
    modules = frozenset(n for n, value in function.__globals__.items() if isinstance(value, types.ModuleType))
    for found, imported in _candidates(lines, code):
        if any(_compiles_to(found, code, owner, names) for names in (imported or modules, frozenset[str]())):
            if not same_file and any(isinstance(node, ast.AnnAssign) for node in ast.walk(found)):
                break  # the types may have been edited
        elif not (same_file and _was_transformed(function) and _is_there(found, code)):
            continue
        return found if owner is None else _Mangler(owner).visit(found)
    if code.co_filename in _WITHOUT_FILE:
        raise _no_source(function)
    raise LanguageError(
        f"the source of {function.__name__!r} is not what Python compiled",
        details=[
            f"{code.co_filename}, line {code.co_firstlineno}: the file was edited after the module was imported, "
            "or the function was made from other text"
        ],
        help="import the module again or restart Python; a kernel is made from its source when it is first launched",
    )


def _lines(function: types.FunctionType) -> list[str]:
    """Return the lines of the file as it is now."""
    try:
        file = inspect.getsourcefile(function) or function.__code__.co_filename
    except TypeError:
        file = function.__code__.co_filename
    linecache.checkcache(file)
    return linecache.getlines(file, function.__globals__) or _lines_without_file(function.__code__)


_WITHOUT_FILE = ("<string>", "<stdin>")  # names that many texts have, or what ran from the command line


def _lines_without_file(code: types.CodeType) -> list[str]:
    """Return the text that code was compiled from, where Python still has it; what is read is compared with the code.

    From 3.13 on, Python keeps what was typed at its prompt and what `-c` ran. Before, the text of `-c` is in the
    command line, and standard input can be read again where it is a file.
    """
    kept = getattr(linecache, "_getlines_from_code", None)
    if kept is not None and (lines := kept(code)):
        return list(lines)
    if code.co_filename == "<string>" and "-c" in sys.orig_argv[:-1]:
        return sys.orig_argv[sys.orig_argv.index("-c") + 1].splitlines(keepends=True)
    if code.co_filename == "<stdin>":
        return _standard_input()
    return []


def _standard_input() -> list[str]:
    """Return the lines of standard input from its start, where it is a file; its position stays where it is."""
    try:
        if not stat.S_ISREG(os.fstat(0).st_mode):
            return []
        with open(os.dup(0), "rb") as file:
            position = file.seek(0, os.SEEK_CUR)
            file.seek(0)
            text = file.read()
            file.seek(position)
        return io.TextIOWrapper(io.BytesIO(text), tokenize.detect_encoding(io.BytesIO(text).readline)[0]).readlines()
    except (OSError, ValueError, SyntaxError):
        return []


def _no_source(function: types.FunctionType) -> LanguageError:
    file = function.__code__.co_filename
    details: list[str] = []
    if os.path.isabs(file) and _stamps.get(function) is not None:
        details = [f"{file} does not exist any more"]
        help = "keep the file until the kernel was launched"
    elif file == "<stdin>":
        details = ["it came through a pipe, or was typed at the prompt of a Python before 3.13, which keep no text"]
        help = "define the kernel in a file, in a notebook, in IPython or after `python -c`"
    else:
        details = [f"its text was compiled under the name {file!r}, of which Python knows no lines"]
        help = (
            "define the kernel in a file or in a notebook cell; text that a program compiles can be made known before "
            "by linecache.cache[name] = (len(text), None, text.splitlines(True), name)"
        )
    message = f"the source of {function.__name__!r} cannot be read, and a kernel is made from its source"
    return LanguageError(message, details=details, help=help)


def _candidates(lines: list[str], code: types.CodeType) -> Iterator[tuple[ast.FunctionDef, frozenset[str]]]:
    """Yield the definitions that may be the function's: that at its line, then all of its name, the nearest first.

    With them come the names that the file imports, none where nothing but the definition was read.
    """
    here = _definition_at(lines, code)
    if here is not None:
        yield here, frozenset()
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return
    imported = frozenset(_imported(tree))
    others = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    for node in sorted(others, key=lambda node: abs(_first_line(node) - code.co_firstlineno)):
        yield node, imported


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names that import statements outside of functions and classes give."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0]) for alias in node.names if alias.name != "*")
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            yield from _imported(node)


def _definition_at(lines: list[str], code: types.CodeType) -> ast.FunctionDef | None:
    """Return the definition at a function's line, without a look at the rest of the file."""
    first = code.co_firstlineno
    try:
        block = inspect.getblock(lines[first - 1 :])
        source = "".join(block)
        if source[:1].isspace():  # a method or a nested function: give its indentation something to stand in
            source, first = "if True:\n" + source, first - 1
        tree = ast.parse(source)
    except (SyntaxError, ValueError, IndexError):
        return None
    ast.increment_lineno(tree, first - 1)
    found = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name), None)
    return found if found is not None and _first_line(found) == code.co_firstlineno else None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


# --- comparing with the code ------------------------------------------------------------------------------


def _compiles_to(found: ast.FunctionDef, code: types.CodeType, owner: str | None, imported: frozenset[str]) -> bool:
    """Return whether a definition gives a function's code, in a class of its name and with its free variables.

    `imported` are the names that its module imports: later Pythons call methods of these by other instructions.
    """
    body: list[ast.stmt] = [found]
    if owner is None and found.name not in code.co_freevars:
        body = [ast.Global([found.name]), found]  # one that calls itself finds itself in its module, not in the factory
    if owner is not None:
        made = ast.parse(f"class {owner}: pass").body[0]
        assert isinstance(made, ast.ClassDef)
        made.body, body = body, [made]
        if owner not in code.co_freevars:  # a method that names its class finds it in its module
            body.insert(0, ast.Global([owner]))
    factory = definition(FACTORY, code.co_freevars, body)
    imports: list[ast.stmt] = [ast.Import([ast.alias(each)]) for each in sorted(imported)]
    module = ast.fix_missing_locations(ast.Module([*imports, factory], []))
    try:
        compiled = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    meaning = _meaning(code)
    return any(inner.co_name == code.co_name and _meaning(inner) == meaning for inner in codes_in(compiled))


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of all functions that stand in a function's or module's code."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_in(constant)


def _meaning(code: types.CodeType) -> tuple[object, ...]:
    """Return all of a function's code that says what it does, and nothing of where it stands."""
    return (
        code.co_name,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_PLACE_FLAGS),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        code.co_code,
        getattr(code, "co_exceptiontable", b""),
        tuple(map(_constant, code.co_consts)),
    )


def _constant(value: object) -> object:
    """Return a constant so that 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, types.CodeType):
        return _meaning(value)
    if isinstance(value, (tuple, frozenset)):
        parts = [_constant(part) for part in value]
        return type(value), parts if isinstance(value, tuple) else sorted(parts, key=repr)
    if isinstance(value, str):
        value = value.rpartition("<locals>.")[2]  # Python 3.10 keeps the whole names of inner functions
    return type(value), repr(value)


def _was_transformed(function: types.FunctionType) -> bool:
    """Return whether an import hook made the function's module, which may write other code than the file's."""
    return not isinstance(function.__globals__.get("__loader__"), _PLAIN_LOADERS)


def _is_there(found: ast.FunctionDef, code: types.CodeType) -> bool:
    """Return whether a definition stands at a function's line and has its parameters."""
    arguments = found.args
    given = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    return _first_line(found) == code.co_firstlineno and tuple(given) == code.co_varnames[:count]


def _no_definition(function: types.FunctionType) -> LanguageError:
    code = function.__code__
    return LanguageError(
        f"{function.__name__!r} at {code.co_filename}:{code.co_firstlineno} is not a def statement of its own",
        help="a kernel is written with def: not as a lambda, and not as async def",
    )


def _class_name(function: types.FunctionType) -> str | None:
    """Return the name of the class whose body a function stands in, be it inside of a method."""
    whole = getattr(function.__code__, "co_qualname", function.__qualname__)
    for part in reversed(whole.split(".<locals>.")):
        names = part.split(".")
        if len(names) > 1:
            return names[-2] if names[-2].isidentifier() else None
    return None


class _Mangler(ast.NodeTransformer):
    """Writes a class's private names (`self.__tile`) as Python does, because the rewritten method stands outside."""

    def __init__(self, owner: str) -> None:
        self.prefix = f"_{owner.lstrip('_')}"

    def mangled(self, name: str) -> str:
        return self.prefix + name if name.startswith("__") and not name.endswith("__") else name

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = self.mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.attr = self.mangled(node.attr)
        return self.generic_visit(node)
