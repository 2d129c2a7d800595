"""Each test in a process of its own, with a limit of time, and what became of it."""

from __future__ import annotations

import inspect
import json
import os
import re
import resource
import signal
import tempfile
import time
import traceback
import unittest
from collections import Counter
from pathlib import Path

from tests.helpers.scripts import load_script

LIMIT = 60  # seconds of the processor
_CROWDED = 4  # times as many seconds pass at most, where other programs run too
AT_ONCE = 2


def load(path):
    """Return the tests of a file: its methods test_*, those too that Accera skips, or expects to fail."""
    tests = []
    for kind in vars(load_script(Path(path))).values():
        if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(kind):
            if "accera_gemm" not in inspect.getsource(inspect.unwrap(getattr(kind, method))):  # not part of Accera
                tests.append((kind, method))
    return tests


def run_one(kind, method):
    """Run one test here and return its record."""
    from tests.accera import checking, words

    from tilewright.errors import TilewrightError

    class Case(kind):
        def assertRaises(self, expected, *args, **kwargs):  # unittest's name
            # Accera raises ValueError and the like where this library has errors of its own.
            kinds = expected if isinstance(expected, tuple) else (expected,)
            return super().assertRaises((*kinds, TilewrightError), *args, **kwargs)

        def assertEqual(self, first, second, msg=None):  # unittest's name
            # Accera has lists where this library has tuples.
            if {type(first), type(second)} == {tuple, list}:
                first, second = list(first), list(second)
            super().assertEqual(first, second, msg)

    start = time.time()
    verdict, reason, where = "works", "", ""
    try:
        case = Case(method)
        case.setUp()
        inspect.unwrap(getattr(kind, method))(case)
        checking.finish()
        case.tearDown()
    except unittest.SkipTest as error:
        verdict, reason = "skipped", str(error)
    except checking.Disagreement as error:
        verdict, reason, where = "wrong", str(error), _where(error)
    except TilewrightError as error:
        verdict, reason, where = "refused", str(error).splitlines()[0], _where(error)
    except words.Unsayable as error:
        verdict, reason, where = "cannot be said", str(error), _where(error)
    except Exception as error:
        first = (str(error).strip() or "?").splitlines()[0]
        verdict, reason, where = "cannot be said", f"{type(error).__name__}: {first}", _where(error)
    return {
        "verdict": verdict,
        "reason": reason,
        "where": where,
        "notes": checking.notes,
        "seconds": round(time.time() - start, 1),
    }


def _where(error):
    frames = traceback.extract_tb(error.__traceback__)
    inner = frames[-1]
    ours = [f for f in frames if "_tests.py" in f.filename]
    text = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].line}" if ours else ""
    return f"{text} | {Path(inner.filename).name}:{inner.lineno}"


def run_all(tests, limit=LIMIT, at_once=AT_ONCE, show=print):
    """Run tests in forked processes and yield (file, name, record) as they end."""
    waiting = list(tests)
    running: dict[int, tuple] = {}
    done, total = 0, len(waiting)
    while waiting or running:
        while waiting and len(running) < at_once:
            path, kind, method = waiting.pop(0)
            out = tempfile.mktemp(suffix=".json")
            child = os.fork()
            if not child:
                _child(kind, method, out, limit)
            running[child] = (path, method, out, time.time())
        time.sleep(0.02)
        for child, (path, method, out, start) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.time() - start <= limit * _CROWDED:
                continue
            if not ended or os.WIFSIGNALED(status):
                if not ended:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                record = {"verdict": "slow", "reason": f"over {limit} s", "where": "", "notes": [], "seconds": limit}
            elif Path(out).exists():
                record = json.loads(Path(out).read_text())
            else:
                record = {
                    "verdict": "cannot be said",
                    "reason": f"the process ended with {status}",
                    "where": "",
                    "notes": [],
                }
            Path(out).unlink(missing_ok=True)
            del running[child]
            done += 1
            show(f"[{done}/{total}] {record['verdict']:15s}{method}  {record['reason'][:150]}")
            yield path, method, record


def _child(kind, method, out, limit):
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    os.setpgid(0, 0)
    os.nice(5)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    try:
        record = run_one(kind, method)
        Path(out + ".part").write_text(json.dumps(record))
        os.replace(out + ".part", out)
    finally:
        os.chdir("/")
        os.system(f"rm -rf {folder}")
        os._exit(0)


def class_of(reason):
    """Return a reason without the names and numbers of one program."""
    text = re.sub(r"[-+]?\d+(\.\d+)?(e-?\d+)?", "#", reason)
    text = re.sub(r"\b[a-zA-Z]+(_\w+)?\[[^\]]*\]", "X[..]", text)
    return re.sub(r"'[^']*'", "'..'", text)[:160]


def table(records):
    """Return the counts of each file, and the tests that do not work by their reason."""
    lines = []
    files = sorted({record["file"] for record in records})
    kinds = ["works", "refused", "cannot be said", "wrong", "slow", "skipped"]
    lines.append("| file | tests | " + " | ".join(kinds) + " |")
    lines.append("|---|---|" + "---|" * len(kinds))
    for file in (*files, None):
        chosen = [r for r in records if file is None or r["file"] == file]
        counts = Counter(r["verdict"] for r in chosen)
        lines.append(f"| {file or 'all'} | {len(chosen)} | " + " | ".join(str(counts[k]) for k in kinds) + " |")
    for verdict in kinds[1:]:
        groups: dict[str, list] = {}
        for record in records:
            if record["verdict"] == verdict:
                groups.setdefault(class_of(record["reason"]), []).append(record)
        if groups:
            lines += ["", f"## {verdict}", ""]
        for reason, group in sorted(groups.items(), key=lambda item: -len(item[1])):
            lines.append(f"- **{len(group)}** {reason}")
            lines += [f"  - {r['test']}: {r['reason'][:240]}  ({r['where'][:160]})" for r in group]
    return "\n".join(lines)
