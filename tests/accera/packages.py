"""Packages as Accera has them: functions are added, built, and called by name with arrays."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from types import SimpleNamespace

from tests.accera import checking
from tests.accera.words import Function, Nest, Schedule, Unsayable

import tilewright.schedule as ts
from tilewright.errors import TilewrightError


class Format(enum.Flag):
    DYNAMIC_LIBRARY = enum.auto()
    STATIC_LIBRARY = enum.auto()
    HAT_PACKAGE = enum.auto()
    MLIR = enum.auto()
    MLIR_VERBOSE = enum.auto()
    SOURCE = enum.auto()
    DEFAULT = enum.auto()
    HAT_DYNAMIC = HAT_PACKAGE | DYNAMIC_LIBRARY
    HAT_STATIC = HAT_PACKAGE | STATIC_LIBRARY
    HAT_SOURCE = HAT_PACKAGE | SOURCE
    MLIR_DYNAMIC = HAT_DYNAMIC | MLIR
    MLIR_STATIC = HAT_STATIC | MLIR
    MLIR_SOURCE = HAT_SOURCE | MLIR


class Mode(enum.Enum):
    RELEASE = "Release"
    DEBUG = "Debug"


class Options(enum.Flag):
    NONE = enum.auto()
    DISABLE_AUTO_UNROLL = enum.auto()
    HIGH_PRECISION_FLOATING_POINT_OPS = enum.auto()


FUNCTIONS: dict[str, Function] = {}  # all that were added, by name


class Package:
    Format, Mode, _Options = Format, Mode, Options
    Platform = SimpleNamespace(HOST=1, LINUX=2, MACOS=3, WINDOWS=4, RASPBIAN=5, ANDROID=6, IOS=7)

    def __init__(self):
        self.inner = ts.Package()
        self._fns: dict[str, Function] = {}

    def add(self, source, args=None, base_name="", parameters=None, function_opts=None, auxiliary=None):
        for array in args or ():
            if getattr(array, "role", None) is ts.Role.TEMP:
                raise ValueError(f"argument {array.name} of function {base_name} is TEMP")
        if isinstance(source, tuple):
            raise Unsayable("package.add of a tuple")
        is_plain = isinstance(source, Nest)
        if isinstance(source, (Nest, Schedule)):
            source = source.create_plan()
        name = base_name or f"function_{len(FUNCTIONS)}"
        try:
            made = self.inner.add(source, list(args or ()), _identifier(name, self._fns), parameters or None)
        except TilewrightError as error:
            if not inspect.isfunction(source):
                raise
            # What a Python function does Accera finds out when the package is built.
            refused = Function(_identifier(name, self._fns), base_name, args or (), source, is_plain)
            refused.error = error
            self._fns[refused.name] = FUNCTIONS[refused.name] = refused
            return refused
        functions = [
            self._function(one, args or (), base_name, source, is_plain)
            for one in (made if isinstance(made, list) else [made])
        ]
        return functions if isinstance(made, list) else functions[0]

    def _function(self, made, args, base_name, source, is_plain):
        function = Function(made.name, base_name, args, source, is_plain)
        function.made = made
        self._fns[function.name] = FUNCTIONS[function.name] = function
        checking.added(function)
        return function

    def build(
        self,
        name,
        format=Format.DEFAULT,
        mode=Mode.RELEASE,
        platform=None,
        tolerance=1e-5,
        output_dir=None,
        fail_on_error=False,
        profile=False,
        _quiet=True,
        _opts=Options.NONE,
    ):
        if not self._fns:
            raise RuntimeError("no functions have been added")
        for function in self._fns.values():
            if function.error is not None:
                raise function.error
            checking.build(function)
        Path(output_dir or ".").mkdir(parents=True, exist_ok=True)
        return list(self._fns.values())

    def get_functions(self):
        return self._fns

    def add_description(self, *args, **kwargs):
        raise Unsayable("package.add_description, which is written into a HAT file")


def _identifier(name, taken):
    plain = "".join(c if c.isalnum() else "_" for c in name)
    plain = plain if not plain[:1].isdigit() else f"_{plain}"
    found, n = plain, 1
    while found in taken or found in FUNCTIONS:
        found, n = f"{plain}_{n}", n + 1
    return found[:99]


class VerifyPackage:
    """`accera.test.verifiers.VerifyPackage`: results are compared, files and their text are not."""

    def __init__(self, testcase, package_name, output_dir=None, file_list=None):
        self.output_dir = output_dir

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def check_correctness(self, function_name, before, after, tolerance=1e-5):
        checking.check(FUNCTIONS[function_name], before, after, tolerance)

    def file_checker(self, filename):
        return _Silent()


class _Silent:
    """FileCheck, whose directives are about MLIR and the text of Accera's CUDA."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None
