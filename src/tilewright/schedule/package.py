"""`Package`: kernels of plans as files, with what it takes to launch them from C, C++ and Python."""

from __future__ import annotations

import enum
import hashlib
import inspect
import itertools
import keyword
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from tilewright.arguments import instance
from tilewright.errors import ScheduleError
from tilewright.frames import hiding_frames
from tilewright.pickling import with_own_containers
from tilewright.runtime.folders import write_whole
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array
from tilewright.schedule.constants import memory_of
from tilewright.schedule.functions import C_WORDS, PackagedFunction, constant_file
from tilewright.schedule.headers import header_text
from tilewright.schedule.manifests import FilesOf, json_text, manifest_of, toml_text
from tilewright.schedule.nest import Nest
from tilewright.schedule.parameters import named_values
from tilewright.schedule.plan import Plan
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.scheduled import ScheduledKernel
from tilewright.schedule.schema import is_device

# What can be added: something with loops, or a function of the parameters that makes it (alone, or with the arguments).
Source = Union[Plan, Schedule, Nest, ScheduledKernel, Callable[..., Any]]
Choice = Mapping[Any, Any]  # Any: parameters or their names; their values

_MOST_LETTERS = 100  # file systems take 255 bytes, and a file's name has those of the package and of the function in it
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class PackageFormat(enum.Flag):
    """The files that `Package.build` writes.

    Accera's names that end in STATIC and DYNAMIC are DEFAULT: machine code of a GPU is linked with nothing, and the
    readable source takes the place of MLIR.
    """

    SOURCE = enum.auto()  # <function>.cu, or .hip for AMD targets
    CUBIN = enum.auto()  # <function>.cubin, or .hsaco for AMD targets
    HEADER = enum.auto()  # <name>.h, for C and C++
    MANIFEST = enum.auto()  # <name>.json
    TOML = enum.auto()  # <name>.toml, the same manifest
    LOADER = enum.auto()  # <name>.py; it needs CUBIN and MANIFEST, which come with it
    DEFAULT = SOURCE | CUBIN | HEADER | MANIFEST | LOADER

    # Accera's names.
    HAT_PACKAGE = HEADER | MANIFEST
    HAT_SOURCE = HAT_PACKAGE | SOURCE
    MLIR_SOURCE = HAT_SOURCE
    HAT_DYNAMIC = HAT_STATIC = DEFAULT
    MLIR_DYNAMIC = MLIR_STATIC = DEFAULT
    MLIR = MLIR_VERBOSE = SOURCE


class PackageMode(enum.Enum):
    """How functions are built: both in the same way.

    Accera's DEBUG runs each function beside the nest that it was made of. Here transforms are proven to keep what the
    nest computes when they are applied, and `plan.build()(...)` on NumPy arrays runs in the simulator with all checks.
    """

    RELEASE = "Release"
    DEBUG = "Debug"


class PackagePlatform(enum.Enum):
    """The platforms of Accera. Machine code of a GPU, header and loader are the same on all of them."""

    HOST = "host"
    WINDOWS = "windows"
    LINUX = "linux"
    MACOS = "macos"
    ANDROID = "android"
    IOS = "ios"
    RASPBIAN = "raspbian"


class Package:
    """Functions that are built together: sources, machine code, a C header, a manifest and a Python loader.

    >>> import tilewright as tw
    >>> from tilewright.schedule import Array, Nest, Package, Role, Target, create_parameter_grid, create_parameters
    >>> threads = create_parameters(1)
    >>> A = Array(Role.INPUT, tw.float32, (1024,), name="A")
    >>> B = Array(Role.OUTPUT, tw.float32, (1024,), name="B")
    >>> nest = Nest((1024,))
    >>> i = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _():
    ...     B[i] = 2.0 * A[i]
    >>> schedule = nest.create_schedule()
    >>> ii = schedule.split(i, threads)
    >>> target = Target("NVIDIA A100")
    >>> plan = schedule.create_plan(target)
    >>> plan.bind({i: target.GridUnit.BLOCK_X, ii: target.GridUnit.THREAD_X})
    >>> package = Package()
    >>> grid = create_parameter_grid({threads: [64, 128]})
    >>> functions = package.add(plan, args=(A, B), base_name="double", parameters=grid)
    >>> [(function.name, function.kernel.grid) for function in functions]
    [('double_0', (16, 1, 1)), ('double_1', (8, 1, 1))]

    Source: Accera, `Package`.
    """

    Format = PackageFormat
    Mode = PackageMode
    Platform = PackagePlatform

    def __init__(self) -> None:
        self._functions: dict[str, PackagedFunction] = {}

    def __copy__(self) -> Package:
        found: Package = with_own_containers(self)
        return found

    @property
    def functions(self) -> tuple[PackagedFunction, ...]:
        """The functions that were added, in order."""
        return tuple(self._functions.values())

    def add(
        self,
        source: Source,
        args: Sequence[Array | Dimension | str] | None = None,
        base_name: str = "",
        parameters: Choice | Sequence[Choice] | None = None,
        function_opts: Mapping[str, Any] | None = None,  # Any: as Accera's options
    ) -> Any:  # Any: one function for one choice of parameters, a list of them for a list
        """Add a plan (or a schedule or nest, without bound loops) and return its function, or the list of its variants.

        `args` are the arrays and sizes in the order of a call, by themselves or by name; without them the arrays come
        in the order of their creation. `parameters` is a dict of values for the results of `create_parameters`, or a
        list of such dicts, as `create_parameter_grid` makes: then each makes a function, called base_name_0,
        base_name_1 and so on. Without them a plan with heuristics of `auto` makes a function of each combination of the
        values that they leave open. `source` may also be a function of such a dict (by name) that returns the plan, or
        the plan and its args; or one of the arrays `args` that is the logic of a nest of one point: it calls other
        functions of the package. `function_opts` are Accera's calling and inlining options, and do not change a kernel.

        Raises `ScheduleError` for names that are not C identifiers or are repeated, parameters without a value, and
        plans that cannot be built; then nothing is added. Source: Accera, `Package.add`.
        """
        instance("Package.add", "args", args, (list, tuple, type(None)), "a list of arrays or their names")
        for array in args or ():
            instance("Package.add", "each of args", array, (Array, Dimension, str), "an Array or its name, or a size")
        instance("Package.add", "base_name", base_name, str, "a text")
        instance("Package.add", "function_opts", function_opts, (Mapping, type(None)), "a dict of options")
        name = base_name or getattr(source, "__name__", "") or getattr(source, "name", "") or "function"
        if not parameters and isinstance(source, Plan) and source.choices:
            parameters = [
                dict(zip(source.choices, point, strict=True)) for point in itertools.product(*source.choices.values())
            ]
        if parameters is None or isinstance(parameters, Mapping):
            return self._add([self._function(source, args, name, name, parameters or {})])[0]
        if not parameters:
            raise ScheduleError(f"the grid of parameters for {name} is empty")
        return self._add(
            [self._function(source, args, name, f"{name}_{n}", choice) for n, choice in enumerate(parameters)]
        )

    def _function(
        self, source: Source, args: Sequence[Array | Dimension | str] | None, base_name: str, name: str, choice: Choice
    ) -> PackagedFunction:
        check_name("function", name)
        kernel = kernel_of(source, choice, name, args)
        return PackagedFunction(name, base_name, kernel, named_values(choice))

    def _add(self, functions: list[PackagedFunction]) -> list[PackagedFunction]:
        taken = {name.casefold(): name for name in self._functions}
        for function in functions:
            other = taken.setdefault(function.name.casefold(), function.name)
            if function.name.casefold() in {name.casefold() for name in self._functions}:
                raise ScheduleError(
                    f"the package has a function {other} already, and {function.name} is added",
                    help="give another base_name; names that differ in case only would share files on some systems",
                )
        self._functions.update((function.name, function) for function in functions)
        return functions

    @hiding_frames
    def build(
        self,
        name: str,
        format: PackageFormat = PackageFormat.DEFAULT,
        output_dir: str | os.PathLike[str] = ".",
        *,
        overwrite: bool = False,
        mode: PackageMode = PackageMode.RELEASE,
        platform: PackagePlatform | None = None,
        tolerance: float = 1e-5,
    ) -> dict[str, Path]:
        """Write the package's files to a folder, which is created if missing; return them by name.

        Everything is compiled before anything is written, each file is written atomically, and the manifest and the
        loader come last. Raises `ScheduleError` for an empty package, a name that is not an identifier of C and Python,
        and files that exist already unless `overwrite`; `CompileError` if the compiler rejects a kernel. For an AMD
        target without a compiler on this machine the source is written and no machine code; the manifest says so.
        `mode`, `platform` and `tolerance` are Accera's and change nothing: `PackageMode` and `PackagePlatform` say why.
        """
        instance("Package.build", "name", name, str, "a text")
        instance("Package.build", "format", format, PackageFormat, "a Package.Format")
        instance("Package.build", "mode", mode, PackageMode, "a Package.Mode")
        instance("Package.build", "platform", platform, (PackagePlatform, type(None)), "a Package.Platform")
        instance("Package.build", "tolerance", tolerance, (int, float), "a number")
        check_name("package", name)
        if is_device(name):
            raise ScheduleError(f"{name!r} is not a name for a package", help="Windows has a device of that name")
        if not self._functions:
            raise ScheduleError(f"package {name} has no functions", help="package.add(plan, args, base_name)")
        contents = self._contents(name, format)
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        existing = [file for file in contents if (folder / file).exists()]
        if existing and not overwrite:
            raise ScheduleError(
                f"{folder} has {', '.join(existing)} already", help="build(..., overwrite=True) replaces them"
            )
        for file, data in contents.items():
            write_whole(folder / file, [data])
        return {file: folder / file for file in contents}

    def _contents(self, name: str, format: PackageFormat) -> dict[str, bytes]:
        """Return the files in the order in which they are written."""
        if format & PackageFormat.LOADER:
            format |= PackageFormat.CUBIN | PackageFormat.MANIFEST
        files: dict[str, bytes] = {}
        written: dict[str, FilesOf] = {}

        def add(file: str, data: bytes) -> dict[str, Any]:  # Any: plain data
            assert file not in files, file
            files[file] = data
            return {"name": file, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

        for function in self.functions:
            roles: dict[str, dict[str, Any]] = {}
            stem = f"{name}.{function.name}"
            if format & PackageFormat.SOURCE:
                text = function.device_source.text.encode()
                roles["source"] = add(f"{stem}.{'hip' if function.is_amd else 'cu'}", text)
            if format & PackageFormat.CUBIN and function.module is not None:
                file = f"{stem}.{'hsaco' if function.is_amd else 'cubin'}"
                roles["machine_code"] = add(file, function.module.cubin)
            constants = [
                add(constant_file(name, function.name, n), memory_of(array))
                for n, array in enumerate(function.kernel.constants)
            ]
            written[function.name] = FilesOf(roles, constants)
        if format & PackageFormat.HEADER:
            files[f"{name}.h"] = header_text(name, self.functions).encode()
        manifest = manifest_of(name, self.functions, written, f"{name}.h" if format & PackageFormat.HEADER else None)
        if format & PackageFormat.TOML:
            files[f"{name}.toml"] = toml_text(manifest).encode()
        if format & PackageFormat.MANIFEST:
            files[f"{name}.json"] = json_text(manifest).encode()
        if format & PackageFormat.LOADER:
            files[f"{name}.py"] = _loader_text(name, self.functions).encode()
        return files


def kernel_of(
    source: Any, choice: Choice, name: str, args: Sequence[Array | Dimension | str] | None
) -> ScheduledKernel:
    """Return the kernel of a plan (or of what makes one) for a choice of parameters. `source` is a `Source`.

    Raises `ScheduleError` for what is not a source.
    """
    from tilewright.schedule.delayed import Resolution

    if isinstance(source, ScheduledKernel):
        given: Sequence[Array | Dimension | str] = source.parameters if args is None else args
        return ScheduledKernel(source.plan, name, arguments_of(source.plan, given))
    if isinstance(source, type) or not (isinstance(source, (Plan, Schedule, Nest)) or callable(source)):
        raise ScheduleError(
            f"{source!r} cannot be added to a package", help="add a plan, or a function of parameters that returns one"
        )
    if not isinstance(source, (Plan, Schedule, Nest)) and _is_logic(source, args) and not choice:
        source = _nest_or_plan_of(source, args or ())
    if not isinstance(source, (Plan, Schedule, Nest)):
        source = source(named_values(choice))
        if isinstance(source, tuple) and len(source) == 2:
            source, args = source[0], source[1] if args is None else args
        if not isinstance(source, (Plan, Schedule, Nest)):
            raise ScheduleError(f"the function that makes {name} returned {source!r}, and a plan is needed")
    plan = source if isinstance(source, Plan) else source.create_plan()
    if plan.is_delayed:
        resolution = Resolution(choice)
        plan = resolution.plan(plan)
        args = None if args is None else [resolution.resolve(array) for array in args]
    return plan.build(name, None if args is None else arguments_of(plan, args))


def _is_logic(source: Callable[..., Any], args: Sequence[Array | Dimension | str] | None) -> bool:
    """Whether a function may be logic: it takes the arrays, or nothing, where one that makes a plan takes a dict."""
    if not args or not all(isinstance(array, Array) for array in args):
        return False
    try:
        taken = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # builtins that say nothing of their parameters
        return False
    required = [x for x in taken if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD]
    return not taken or len(required) == len(args)


def _nest_or_plan_of(source: Callable[..., Any], args: Sequence[Array | Dimension | str]) -> Any:  # Any: see below
    """Return a nest of one point, whose logic a function is; where it makes a plan of no parameters, the plan."""
    nest, returned = Nest((1,)), []
    given = args if inspect.signature(source).parameters else ()  # without parameters it names the arrays itself
    nest.indices[0].name = "once"
    try:
        nest.iteration_logic(lambda: returned.append(source(*given)))
    except ScheduleError:
        if returned and isinstance(returned[0], (Plan, Schedule, Nest)):
            return returned[0]
        raise
    return nest


def arguments_of(plan: PlanState, args: Sequence[Array | Dimension | str]) -> tuple[Array | Dimension, ...]:
    """Return the arrays of a call, some of which are given by name. Raises `ScheduleError` for an unknown name."""
    named = {array.name: array for array in plan.arguments}
    for array in args:
        if isinstance(array, str) and array not in named:
            raise ScheduleError(f"the plan has no array {array}", help=f"its arrays are {', '.join(named)}")
    return tuple(named[array] if isinstance(array, str) else array for array in args)


def check_name(what: str, name: str) -> None:
    """Raise `ScheduleError` for a name that C, C++ or Python does not take."""
    if len(name) > _MOST_LETTERS:
        raise ScheduleError(
            f"the name of a {what} has {len(name)} letters",
            help=f"files are called by it, whose names are short: take at most {_MOST_LETTERS}",
        )
    if not _IDENTIFIER.match(name) or name.startswith("__") or name in C_WORDS or keyword.iskeyword(name):
        raise ScheduleError(
            f"{name!r} is not a name for a {what}",
            help="take letters, digits and _, no digit or __ first, and no word of C++",
        )


def _loader_text(name: str, functions: Sequence[PackagedFunction]) -> str:
    package = "_package"
    while package in {f.name for f in functions}:
        package += "_"
    calls = [f"{f.name}({', '.join(_in_docstring(array.name) for array in f.arrays)})" for f in functions]
    lines = [
        f'"""Functions of the package {name}, which run on arrays on a GPU.',
        "",
        *(f"    {call}" for call in calls),
        "",
        "Made by Tilewright, which has to be installed. Files that the manifest names lie beside this one.",
        '"""',
        "",
        "from pathlib import Path",
        "",
        "from tilewright.schedule.loading import load",
        "",
        f'{package} = load(Path(__file__).with_name("{name}.json"))',
        "",
        *(f'{f.name} = {package}["{f.name}"]' for f in functions),
        "",
        "__all__ = [" + ", ".join('"' + f.name + '"' for f in functions) + "]",
        "",
    ]
    return "\n".join(lines)


def _in_docstring(text: str) -> str:
    """Return text as a docstring of Python shows it, whatever signs it holds."""
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
