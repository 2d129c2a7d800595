"""The modules that a program of Accera imports, made of this package's words."""

from __future__ import annotations

import sys
import types
import unittest

import ml_dtypes
import numpy as np
from tests.accera import packages, targets, words

import tilewright as tw
import tilewright.schedule as ts


def _missing(what):
    def refuse(*args, **kwargs):
        raise words.Unsayable(what)

    return refuse


def _nothing(*args, **kwargs):
    return None


class _Shapes:
    def __getattr__(self, name):
        found = getattr(ts.MMAShape, name, None) or getattr(ts.MMAShape, name.replace("x", ""), None)
        return found or getattr(ts.MMAShape, name.replace("x", "").removesuffix("_B1"))


def _expected_failure(reason, message, condition=True):
    def mark(test):
        return unittest.expectedFailure(test) if condition else test

    return mark


def _mathematics():
    found = {
        name: getattr(tw, name)
        for name in "sqrt exp log log10 log2 sin cos tan sinh cosh tanh".split()
        if hasattr(tw, name)
    }

    def find(*names):
        return next((getattr(tw, n) for n in names if hasattr(tw, n)), _missing(names[0]))

    found |= {
        "abs": find("abs", "absolute"),
        "max": tw.maximum,
        "min": tw.minimum,
        "ceil": find("ceil"),
        "floor": find("floor"),
        "round": find("round", "rint"),
        "remainderf": find("remainder"),
        "fast_exp": find("exp"),
        "fast_exp_mlas": find("exp"),
        "logical_and": getattr(ts, "logical_and", lambda a, b: a & b),
        "logical_or": getattr(ts, "logical_or", lambda a, b: a | b),
        "logical_not": getattr(ts, "logical_not", lambda a: ts.where(a, False, True)),
        "cast": ts.cast,
    }
    return found


def _module(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def install(sample_folders=()):
    """Put `accera` and what its tests import beside it into `sys.modules`.

    The folders hold Accera's own sample programs, where there are any.
    """
    constants = types.SimpleNamespace(AUTO=targets.AUTO, inf=float("inf"), k_dynamic_size=-1)
    language = {
        name: getattr(words, name)
        for name in (
            "AllocateFlags Array CacheStrategy Dimension Function Nest Plan Role Scalar ScalarType Schedule "
            "create_dimensions create_parameter_grid create_parameters fuse"
        ).split()
    }
    language |= {
        "MMAShape": _Shapes(),
        "MMASchedulingPolicy": ts.MMASchedulingPolicy,
        "MMAFragmentOp": ts.MMAFragmentOp,
        "Target": targets.Target,
        "Package": packages.Package,
        "AUTO": targets.AUTO,
        "inf": float("inf"),
        **_mathematics(),
    }
    _module("accera", Constants=constants, **language)
    _module("accera.Targets", GridUnits=ts.GridUnit, Target=targets.Target, KNOWN_DEVICES={})
    _module("accera._lang_python", Role=ts.Role, _MemoryLayout=_missing("_MemoryLayout"), ScalarType=words.ScalarType)
    _module(
        "accera._lang_python._lang",
        _MemorySpace=targets.MemorySpace,
        Dimension=words.Dimension,
        Scalar=words.Scalar,
        Array=_missing("an array of the lower layer"),
        Allocate=_missing("Allocate"),
        _If=getattr(ts, "_If", _missing("_If")),
        as_index=lambda x: x,
        EnterProfileRegion=_nothing,  # times of a CPU
        ExitProfileRegion=_nothing,
        PrintProfileResults=_nothing,
    )
    _module("accera._lang_python._lang._gpu", Barrier=_missing("Barrier in logic"))
    heuristics = getattr(ts, "algorithms", None)
    _module(
        "accera.algorithms",
        NoneCacheHeuristics=getattr(heuristics, "NoneCacheHeuristics", _missing("algorithms.NoneCacheHeuristics")),
    )
    samples = _module("accera.samples")
    samples.__path__ = [str(folder) for folder in sample_folders]
    _module("accera.test")
    _module("accera.test.verifiers", VerifyPackage=packages.VerifyPackage)
    reasons = types.SimpleNamespace(NOT_IN_CORE=1, NOT_IN_PY=2, UNKNOWN=3, BUG=4, INVALID=5)
    _module(
        "accera.test.test_utils",
        FailedReason=reasons,
        expectedFailure=_expected_failure,
        SkipReason=reasons,
        skipTest=lambda reason, message, condition=True: unittest.skipIf(condition, message),
        avx2_cpu=lambda: True,
        avx512_cpu=lambda: False,
        get_avx_platform=lambda: packages.Package.Platform.HOST,
        get_type_str=lambda kind: kind.name,
        accera_to_np_type=lambda kind: np.dtype(kind.name).type,
    )
    _module("hatlib", HATFile=_missing("a HAT file"), HATPackage=_missing("a HAT package"))
    _module("bfloat16", bfloat16=ml_dtypes.bfloat16)
