"""What the build does to the wheel beyond copying files: it makes it small.

The examples are packed together, and the modules lose their comments and the docstrings of modules, classes and
functions that users do not meet (see `exported`); those below the language lose all. Private functions and those within
others lose their annotations too, and variables in functions theirs; for the rest `pyright --verifytypes` asks.
Indentation is one space, and spaces that only part words from signs go, but for functions that become kernels, whose
lines the profiler shows. In rooms that users have no reason to read, variables of functions and private ones of modules
have short names, as have parameters of functions that only the package calls. Every line keeps its number, so that
tracebacks of an installed package match the repository. C and C++ lose comments and indentation, and are packed in one
file. Files are compressed by Zopfli, in the format that all readers of zip files know. The sdist and editable installs
hold the files as they are.
"""

from __future__ import annotations

import ast
import base64
import bz2
import collections
import hashlib
import io
import itertools
import keyword
import os
import re
import string
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    BuildHookInterface = object
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:  # the tests import this file where the build backend is not installed
        BuildHookInterface = object

try:
    import zopfli.zlib as zopfli
except ImportError:  # as above
    zopfli = None

# The IR, its passes and what runs it: users meet none of it but what the simulator finds.
INNER = tuple(f"tilewright/{folder}/" for folder in ("backends", "ir", "passes"))
# Rooms in whose functions variables have short names.
_ROOMS = (
    "ahead", "arch", "atoms", "bench", "cli", "demo", "distributed", "draw", "frontend", "instructions", "jax",
    "kernels", "language", "layout", "profile", "runtime", "schedule", "suites", "tensors", "tiled", "torch", "trace",
    "tune",
)  # fmt: skip
SHORT = (*INNER, *(f"tilewright/{folder}/" for folder in _ROOMS))
SHOWN = ("tilewright/backends/sim/findings.py",)
WRITTEN_OUT = ("tilewright/ahead/_loader.py",)  # its text is copied into packages
PACKAGE, EXAMPLES, ARCHIVE = "tilewright/", "tilewright/examples/", "tilewright/examples.bz2"
SOURCES = "tilewright/sources.bz2"
_WORD = re.compile(r"\w+")
Documented = ast.FunctionDef | ast.ClassDef | ast.Module
_INDENT = 4
_DATE = (0, (2020 - 1980) << 9 | 2 << 5 | 2)  # time and day: hatchling's, so that one source gives one wheel


class SmallWheel(BuildHookInterface):
    """The hook: rewrites a wheel that was built."""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Rewrite a wheel in place; an editable one stays."""
        if version == "standard":
            shrink(artifact_path)


def shrink(path: str | os.PathLike[str]) -> None:
    """Rewrite a wheel: modules without comments, examples in one archive, and the record of what is there."""
    with zipfile.ZipFile(path) as wheel:
        files = {info.filename: wheel.read(info) for info in wheel.infolist()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    kept = {name: content for name, content in shrunk(files).items() if name != record}
    temporary = f"{os.fspath(path)}.part"
    with open(temporary, "wb") as wheel:
        wheel.write(zipped({**kept, record: record_of(kept, record)}))
    os.replace(temporary, path)


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip file, whose streams `zipfile` could not write: it has zlib's compression only."""
    entries, directory, offset = [], [], 0
    for name, content in files.items():
        path, stream = name.encode("ascii"), deflated(content)
        facts = struct.pack(
            *("<HHHHHIIIHH", 20, 0, zipfile.ZIP_DEFLATED, *_DATE),
            *(zlib.crc32(content), len(stream), len(content), len(path), 0),
        )
        entries.append(b"PK\3\4" + facts + path + stream)
        made_by, mode = 3 << 8 | 20, 0o100644 << 16  # a Unix, and a file's permissions there
        rest = struct.pack("<HHHII", 0, 0, 0, mode, offset) + path
        directory.append(b"PK\1\2" + struct.pack("<H", made_by) + facts + rest)
        offset += len(entries[-1])
    listed = b"".join(directory)
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(listed), offset, 0)
    return b"".join(entries) + listed + b"PK\5\6" + end


def deflated(content: bytes) -> bytes:
    """Return a raw deflate stream: Zopfli's, and where that is missing zlib's, which is some percent longer."""
    if zopfli is None:
        return zlib.compress(content, 9)[2:-4]
    ways = (0, 1) if len(content) > 2500 else (0,)  # in blocks, which for all would take four times as long
    found: bytes = min((zopfli.compress(content, numiterations=15, blocksplitting=n) for n in ways), key=len)
    return found[2:-4]  # without the header and the checksum of zlib's format


def shrunk(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return what is in a wheel in place of the files that it would hold."""
    examples = {name: content for name, content in files.items() if name.startswith(EXAMPLES)}
    shown, private = exported(files), private_uses(files)
    kept = {name: content for name, content in files.items() if name not in examples}
    for name, content in kept.items():
        if is_ours(name) and name not in WRITTEN_OUT:
            kept[name] = lean(content, name, shown, private)
    sources = [name for name in kept if name.startswith(PACKAGE) and name.endswith((".c", ".h", ".cpp"))]
    if sources:
        kept[SOURCES] = packed((name[len(PACKAGE) :], lean_c(kept.pop(name))) for name in sources)
    if examples:
        kept[ARCHIVE] = packed((name[len(EXAMPLES) :], content) for name, content in examples.items())
    return kept


def exported(files: dict[str, bytes]) -> frozenset[str]:
    """Return the names that users of a wheel may meet, and the files of modules that they reach as attributes.

    The names are those that the modules of its packages name, those in `__all__`, the classes that these derive from,
    and what their functions and methods return. The modules are those that packages import as such, as
    `tilewright.torch` does with `nn`.
    """
    trees = {name: ast.parse(content) for name, content in files.items() if is_ours(name)}
    packages: list[ast.AST] = [tree for name, tree in trees.items() if name.endswith("/__init__.py")]
    lists = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.Assign) and is_all(node)]
    names = {text for tree in (*packages, *lists) for text in texts_of(tree) if text.isidentifier()}
    defined: dict[str, list[ast.AST]] = {}
    for tree in trees.values():
        for statement in tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                defined.setdefault(statement.name, []).append(statement)
            elif isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    defined.setdefault(alias.asname or "", []).append(alias)
    met, reached = set(names), list(names)
    while reached:
        for node in defined.get(reached.pop(), ()):
            new = led_to(node) & defined.keys() - met
            met |= new
            reached.extend(new)
    imports = [node for tree in packages for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    paths = {f"{(node.module or '').replace('.', '/')}/{alias.name}.py" for node in imports for alias in node.names}
    return frozenset(met | paths & trees.keys())


def is_all(node: ast.Assign) -> bool:
    """Say whether a statement gives a module its `__all__`."""
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def texts_of(tree: ast.AST) -> list[str]:
    """Return the texts of a module."""
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


def led_to(node: ast.AST) -> set[str]:
    """Return the names of what users meet through a function, a class or another name of one.

    They are its bases, and what its public functions return; `import MBarrier as mbarrier` gives another name.
    """
    if isinstance(node, ast.alias):
        return {node.name}
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    functions = [f for f in ast.walk(node) if isinstance(f, ast.FunctionDef) and not is_private(f.name)]
    shown = [*bases, *(f.returns for f in functions if f.returns is not None)]
    parts = [part for tree in shown for part in ast.walk(tree)]
    quoted = (part.value.strip() for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return {*(part.id for part in parts if isinstance(part, ast.Name)), *quoted}


def is_ours(name: str) -> bool:
    """Say whether a file of the wheel is a module of the package."""
    return name.startswith(PACKAGE) and name.endswith(".py")


def record_of(files: dict[str, bytes], record: str) -> bytes:
    """Return the RECORD of a wheel: each file with its hash, which tells of its length too, and itself without."""
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},\n")
    return "".join((*lines, f"{record},,\n")).encode()


def packed(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return files in one, names and texts in turn: a little smaller than by xz, and than in an archive of tar."""
    text = b"\0".join(part for name, text in sorted(files) for part in (name.encode(), text))
    return min((bz2.compress(coded(text, count)) for count in (0, 128 if text.isascii() else 0)), key=len)


def coded(text: bytes, count: int) -> bytes:
    """Return so many frequent words, and a text with a byte for each: of examples 1 % less by bz2."""
    words = collections.Counter(re.findall(rb"[A-Za-z]{3,}", text))
    most = sorted(sorted(words, key=lambda word: (words[word] * (1 - len(word)), word))[:count])
    codes = {word: bytes([128 + n]) for n, word in enumerate(most)}
    return b"\n".join(most) + b"\0" + re.sub(rb"[A-Za-z]{3,}", lambda found: codes.get(found[0], found[0]), text)


def lean(source: bytes, name: str = "", shown: frozenset[str] | None = None, private: Uses | None = None) -> bytes:
    """Return a module without comments, spaces and docstrings that nobody is shown, each line where it was."""
    text = source.decode()
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    tree = ast.parse(text)
    cuts = [cut for node in unannotated(tree) for cut in annotations_of(node, lines)]
    drop(lines, cuts + [(x.target.lineno, x.target.end_col_offset, x.annotation) for x in local_annotations(tree)])
    for node in unseen(tree, name, shown):
        docstring = node.body[0]
        first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
        lines[first:last] = [""] * (last - first)
        if len(node.body) == 1 and not isinstance(node, ast.Module):
            lines[first] = " " * docstring.col_offset + "..."
    thinner = thin("\n".join(lines))
    return dense(short(thinner, private) if is_short(name) else thinner).encode()


def unannotated(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions whose types no checker of types asks for: private ones, and those within functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = {id(node) for function in functions for node in ast.walk(function) if node is not function}
    return [node for node in functions if has_plain_decorators(node) and (is_private(node.name) or id(node) in inner)]


def local_annotations(node: ast.AST, is_local: bool = False) -> Iterator[ast.AnnAssign]:
    """Yield the assignments with a type to variables of functions; not those of functions whose source is read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            if has_plain_decorators(child):
                yield from local_annotations(child, True)
        elif isinstance(child, ast.ClassDef):
            yield from local_annotations(child)
        else:
            is_typed = isinstance(child, ast.AnnAssign) and child.simple and child.value is not None
            # What is left of a type over several lines would begin with the sign.
            if is_local and is_typed and child.annotation.end_lineno == child.lineno:
                yield child
            yield from local_annotations(child, is_local)


Cut = tuple[int, int, ast.expr]  # a row, the column in bytes after which to cut, and what to cut up to its end


def annotations_of(function: ast.FunctionDef, lines: list[str]) -> list[Cut]:
    """Return where the types of parameters and of the result of a function are."""
    a = function.args
    taken = [x for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
    cuts = [(x.lineno, x.col_offset + len(x.arg.encode()), x.annotation) for x in taken if x.annotation is not None]
    if (returns := function.returns) is not None and returns.lineno == returns.end_lineno:
        before = lines[returns.lineno - 1].encode()[: returns.col_offset]
        if b"->" in before:
            cuts.append((returns.lineno, len(before[: before.rindex(b"->")].rstrip()), returns))
    return cuts


def drop(lines: list[str], cuts: list[Cut]) -> None:
    """Take what is to be cut out of the lines of a module, from the last on."""
    for row, begin, annotation in sorted(cuts, key=lambda cut: cut[:2], reverse=True):
        last = annotation.end_lineno or row
        rest = lines[last - 1].encode()[annotation.end_col_offset :]
        lines[row - 1 : last] = [
            *[(lines[row - 1].encode()[:begin] + (rest if last == row else b"")).decode()],
            *[""] * (last - row - 1),
            *[rest.decode()] * (last > row),
        ]


def lean_c(source: bytes) -> bytes:
    """Return C without comments, indentation and empty lines; no text of ours holds what begins a comment."""
    text = re.sub(r"/\*.*?\*/", "", source.decode(), flags=re.DOTALL)
    return "".join(f"{line.strip()}\n" for line in text.split("\n") if line.strip()).encode()


def is_private(name: str) -> bool:
    """Say whether a name begins with an underscore, and is none of Python's."""
    return name.startswith("_") and not name.endswith("__")


def thin(text: str) -> str:
    """Return a module indented by one space in place of four; texts that go over several lines stay."""
    lines = text.split("\n")
    in_texts = {
        row
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING")
        for row in range(token.start[0] + 1, token.end[0] + 1)
    }
    for row, line in enumerate(lines, 1):
        depth, odd = divmod(len(line) - len(line.lstrip(" ")), _INDENT)
        if row not in in_texts and not odd:
            lines[row - 1] = " " * depth + line[depth * _INDENT :]
    return "\n".join(lines)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BY_NAME = {"locals", "globals", "eval", "exec", "vars", "dir"}  # what knows variables by their names


def is_short(name: str) -> bool:
    """Say whether variables of a module have short names: not those of code for the device, which lies in `_` files.

    What is generated from it has the names of its variables.
    """
    folder, _, file = name.rpartition("/")
    is_of_device = file.startswith("_") and not name.startswith(INNER)
    return (name.startswith(SHORT) or folder == "tilewright") and not is_of_device


Calls = dict[str, set[str]]  # functions that are only called, and which arguments the calls name


class Uses(NamedTuple):
    """What parts of programs do with names."""

    calls: Calls
    fixed: set[str]  # what they import, read as an attribute or have in texts


def uses_in(trees: Iterable[ast.AST]) -> Uses:
    """Return what parts of programs do with names; only functions that nothing but calls mention may be changed."""
    calls: Calls = {}
    mentioned, attributes, imported, texts = set[str](), set[str](), set[str](), set[str]()
    for tree in trees:
        called: dict[ast.AST, list[ast.keyword]] = {}  # a walk meets a call before what it calls
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called[node.func] = node.keywords
            elif isinstance(node, (ast.Name, ast.Attribute)):
                name, keywords = node.id if isinstance(node, ast.Name) else node.attr, called.get(node)
                if keywords is None or any(each.arg is None for each in keywords):
                    mentioned.add(name)
                else:
                    calls.setdefault(name, set()).update(each.arg for each in keywords if each.arg is not None)
                attributes |= {name} if isinstance(node, ast.Attribute) else set()
            elif isinstance(node, ast.alias):
                imported.add(node.name)
                mentioned |= {node.name} if node.asname is not None else set()
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.update(_WORD.findall(node.value))
    kept = {name: given for name, given in calls.items() if name not in mentioned and name not in texts}
    return Uses(kept, attributes | imported | texts)


def private_uses(files: dict[str, bytes]) -> Uses:
    """Return what all modules of a wheel, and its examples, do with private names."""
    calls, fixed = uses_in(ast.parse(content) for name, content in files.items() if is_ours(name))
    return Uses({name: given for name, given in calls.items() if is_private(name)}, fixed)


def short(text: str, private: Uses | None = None) -> str:
    """Return a module whose functions have variables with short names: it compiles to the same instructions.

    Those of comprehensions count, and those that other scopes within the function use. So do parameters that no call
    gives by name: of functions within functions, and of private ones. All other parameters keep their names, as do
    variables of `f"{x=}"`, and all of functions that decorators read. Private variables of the module change too.
    """
    tree, lines = ast.parse(text), [line.encode() for line in text.split("\n")]
    calls, fixed = private or Uses({}, set())
    constants = short_constants(tree, lines, fixed) if private is not None else {}
    places = new_at(((node, node.id) for node in ast.walk(tree) if isinstance(node, ast.Name)), constants)

    def visit(node: ast.AST, known: Calls, around: Calls) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                visit(child, known, around)
            elif isinstance(child, ast.ClassDef) and has_plain_decorators(child):
                visit(child, calls, around)
            elif isinstance(child, ast.FunctionDef) and has_plain_decorators(child):
                new = short_names(child, lines, known.get(child.name), around)
                places.extend(new_at([(x, x.id) for x in reached_by(child)], new))
                places.extend(new_at([(x, x.arg) for x in parameters_of(child)], new))
                inside = {name: around.get(name, set()) | {new.get(name, name)} for name in {*around, *new}}
                visit(child, uses_in([child]).calls, inside)

    visit(tree, calls, {})
    for row, begin, name, other in sorted(places, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:begin] + other.encode() + line[begin + len(name.encode()) :]
    return b"\n".join(lines).decode()


def new_at(named: Iterable[tuple[ast.Name | ast.arg, str]], new: dict[str, str]) -> list[tuple[int, int, str, str]]:
    """Return the places of names that change: row and column, and what is there and what will be."""
    return [(node.lineno, node.col_offset, name, new[name]) for node, name in named if name in new]


def short_constants(tree: ast.Module, lines: list[bytes], fixed: set[str]) -> dict[str, str]:
    """Return new names for the private variables of a module that are nobody else's."""
    nodes = list(ast.walk(tree))
    own = {node for node in names_of(tree) if isinstance(node.ctx, ast.Store)}
    definitions = [node for node in nodes if isinstance(node, _DEFINITIONS)]
    left_alone = {part for node in definitions if not has_plain_decorators(node) for part in ast.walk(node)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    taken = fixed | names_without_nodes(nodes) | fixed_in_texts(nodes, lines)
    taken |= {x.id for x in names if x in left_alone or (isinstance(x.ctx, ast.Store) and x not in own)}
    everything = {x.id for x in names}
    if everything & _BY_NAME:
        return {}
    order = dict.fromkeys(x.id for x in names if x in own and len(x.id) > 2 and is_private(x.id))
    return dict(zip([x for x in order if x not in taken], new_names("_", everything | taken)))  # noqa: B905  # as above


def of_scope(scope: ast.AST, closed: tuple[type[ast.AST], ...] = _SCOPES) -> list[ast.AST]:
    """Return the nodes of a function's body that belong to its own scope, and closed scopes within it as a whole."""
    nodes = list(scope.body if isinstance(scope, ast.FunctionDef) else ast.iter_child_nodes(scope))
    for node in nodes:  # which get more
        if not isinstance(node, closed):
            nodes.extend(ast.iter_child_nodes(node))
    return nodes


def names_of(scope: ast.AST, closed: tuple[type[ast.AST], ...] = _SCOPES) -> list[ast.Name]:
    """Return the places of a scope where names are, also before the bodies of functions in it."""
    nodes = of_scope(scope, closed)
    heads = [part for node in nodes if isinstance(node, ast.FunctionDef) for part in head_of(node)]
    return [node for node in (*nodes, *heads) if isinstance(node, ast.Name)]


def head_of(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function that belong to the scope around it."""
    for node in (function.args, *function.decorator_list, *filter(None, [function.returns])):
        yield from ast.walk(node)


def parameters_of(function: ast.FunctionDef) -> list[ast.arg]:
    """Return the parameters of a function."""
    a = function.args
    return [x for x in (*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg) if x is not None]


def reached_by(function: ast.FunctionDef) -> list[ast.Name]:
    """Return the places where variables of a function may be meant, also those in functions within it."""
    names = names_of(function, _DEFINITIONS)
    for node in of_scope(function, _DEFINITIONS):
        if isinstance(node, ast.FunctionDef) and has_plain_decorators(node):
            own = {x.arg for x in parameters_of(node)} | stored(names_of(node, _DEFINITIONS))
            names += [name for name in reached_by(node) if name.id not in own]
    return names


def stored(names: Iterable[ast.Name]) -> set[str]:
    """Return which of the names get values."""
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def from_outside(scope: ast.AST) -> set[str]:
    """Return the names that a scope and those within it do not define: `x` of `[y + x for y in z]`, and `z`."""
    names = names_of(scope)
    inner = [from_outside(node) for node in of_scope(scope) if isinstance(node, _SCOPES)]
    defined = {x.arg for x in parameters_of(scope)} if isinstance(scope, ast.FunctionDef) else set()
    return {node.id for node in names}.union(*inner) - stored(names) - defined


def short_names(function: ast.FunctionDef, lines: list[bytes], given: set[str] | None, around: Calls) -> dict[str, str]:
    """Return new names for the variables of a function that may have other ones.

    `given` are the parameters that calls name, None where nobody knows; `around` has the new names in functions around.
    """
    nodes = list(ast.walk(function))
    variables = sorted(reached_by(function), key=lambda node: (node.lineno, node.col_offset))
    everything = {node.id for node in nodes if isinstance(node, ast.Name)}
    is_known = given is not None and function.args.kwarg is None
    parameters = [x for x in parameters_of(function) if is_known and x not in function.args.kwonlyargs]
    own = {x: x.arg for x in parameters if x.arg not in (given or ()) and x.arg != "self"}  # which packs well
    long = {name for name in {*own.values(), *stored(variables)} if len(name) > 1 and not name.startswith("__")}
    if not long or everything & _BY_NAME:
        return {}
    taken = from_outside(function) | fixed_in_texts(nodes, lines)
    taken |= names_without_nodes(node for node in nodes if node not in own)
    for node in nodes:
        if isinstance(node, _DEFINITIONS) and node is not function:
            if isinstance(node, ast.FunctionDef) and has_plain_decorators(node):  # one name, but two variables
                taken |= from_outside(node) & stored(names_of(node, _DEFINITIONS))
            else:
                taken |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    order = dict.fromkeys(name for name in (*own.values(), *(x.id for x in variables)) if name in long - taken)
    others = {new for name in everything for new in around.get(name, ())}
    return dict(zip(order, new_names("", everything | taken | others)))  # noqa: B905  # there are more


def new_names(begin: str, taken: set[str]) -> Iterator[str]:
    """Yield short names that are free."""
    names = (begin + "".join(x) for length in (1, 2) for x in itertools.product(string.ascii_lowercase, repeat=length))
    return (name for name in names if name not in taken and not keyword.iskeyword(name))


def names_without_nodes(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are no nodes of their own, but those of arguments in calls."""
    found: set[str] = set()
    for node in nodes:
        for field in () if isinstance(node, ast.keyword) else ("arg", "name", "rest", "asname"):
            name = getattr(node, field, None)
            found |= {name.split(".")[0]} if isinstance(name, str) else set()
        found |= set(node.names) if isinstance(node, (ast.Global, ast.Nonlocal)) else set()
    return found


def fixed_in_texts(nodes: Iterable[ast.AST], lines: list[bytes]) -> set[str]:
    """Return the names in braces that stay: `x` of `f"{x=}"`, and what is not where older parsers say."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            found |= {x.id for x in names if not lines[x.lineno - 1].startswith(x.id.encode(), x.col_offset)}
            texts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
            found |= {word for text in texts if text.rstrip().endswith("=") for word in _WORD.findall(text)}
    return found


def dense(text: str) -> str:
    """Return a module without spaces between tokens that need none, outside of functions that decorators read."""
    lines = text.split("\n")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    kept = {
        row
        for node in functions
        if not has_plain_decorators(node)
        for row in range(node.decorator_list[0].lineno, (node.end_lineno or node.lineno) + 1)
    }
    cuts: list[tuple[int, int, int]] = []
    before: tokenize.TokenInfo | None = None
    depth = 0  # of texts in which braces hold expressions
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, (row, column) = tokenize.tok_name[token.type], token.start
        if before is not None and before.end[0] == row and not depth and row not in kept and may_meet(before, token):
            cuts.append((row, before.end[1], column))
        depth += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        before = None if kind in ("INDENT", "DEDENT", "NEWLINE", "NL") else token
    for row, begin, end in reversed(cuts):
        line = lines[row - 1]
        if not line[begin:end].strip(" "):  # a line that goes on has a backslash there
            lines[row - 1] = line[:begin] + line[end:]
    return "\n".join(lines)


def may_meet(before: tokenize.TokenInfo, token: tokenize.TokenInfo) -> bool:
    """Say whether two tokens stay two without a space between them."""
    kinds = [tokenize.tok_name[each.type] for each in (before, token)]
    are_words = all(kind in ("NAME", "NUMBER", "STRING") or kind.startswith("FSTRING") for kind in kinds)
    return not are_words and not token.string.startswith(".")  # 1 .real


def unseen(tree: ast.Module, name: str, shown: frozenset[str] | None) -> list[Documented]:
    """Return what has a docstring that nobody but this package sees: some decorators show it, as those of commands do.

    `shown` are the names that packages export; None where that is not known.
    """
    documented: list[Documented] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None
    ]
    if name.startswith(INNER) and name not in SHOWN:
        return documented
    kept: set[int] = {id(tree)} if shown is None or name.endswith("/__init__.py") or name in shown else set()
    for statement in tree.body:
        if shown is None or getattr(statement, "name", "") in shown:
            kept |= {id(part) for part in ast.walk(statement)}
    is_private_module = name.rpartition("/")[2].startswith("_")
    return [
        node
        for node in documented
        if (id(node) not in kept or (not isinstance(node, ast.Module) and is_private(node.name)))
        and (isinstance(node, ast.Module) or has_plain_decorators(node) or (is_private_module and is_device_code(node)))
    ]


def has_plain_decorators(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Say whether no decorator may do something with a docstring."""
    names = {part.id for decorator in node.decorator_list for part in ast.walk(decorator) if isinstance(part, ast.Name)}
    return names <= _PLAIN_DECORATORS


def is_device_code(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Say whether a function is traced into kernels, or is one."""
    return [ast.unparse(decorator) for decorator in node.decorator_list] in (["tw.function"], ["tw.kernel"])


_PLAIN_DECORATORS = {
    "cache", "cached_property", "contextmanager", "dataclass", "hashed_once", "lru_cache", "property", "staticmethod",
}  # fmt: skip
