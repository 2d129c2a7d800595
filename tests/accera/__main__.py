"""`python -m tests.accera FILES...`: how many of Accera's tests work here, and why the others do not.

    --only REGEX    the tests whose name matches
    --again JSON    the tests that did not work in an earlier run; the records of the others are kept
    --limit SECONDS for each test (60), --jobs N at once (2)
    --out JSON      where the records go (accera.json), and the table beside it (.md)

Counted are all methods `test_*` of the files' classes, 580 in dsl_tests.py, smoke_tests.py and mfma_tests.py: those too
that Accera skips or expects to fail, for what fails there may work here, and without `test_benchmark`, which needs a program
that is not part of Accera. Accera's samples are found in a folder `samples` beside a file.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

from tests.accera import modules, running


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only")
    parser.add_argument("--again")
    parser.add_argument("--out", default="accera.json")
    parser.add_argument("--limit", type=int, default=running.LIMIT)
    parser.add_argument("--jobs", type=int, default=running.AT_ONCE)
    arguments = parser.parse_args()
    modules.install({Path(path).parent / "samples" for path in arguments.files})
    earlier = {}
    if arguments.again:
        earlier = {(r["file"], r["test"]): r for r in json.loads(Path(arguments.again).read_text())}
    chosen, kept = [], []
    for path in arguments.files:
        for kind, method in running.load(path):
            old = earlier.get((Path(path).name, method))
            is_named = not arguments.only or re.search(arguments.only, method)
            if is_named and (not arguments.again or old is None or old["verdict"] != "works"):
                chosen.append((Path(path).name, kind, method))
            elif old is not None:
                kept.append(old)
    records, out, saved = list(kept), Path(arguments.out), time.time()
    for file, method, record in running.run_all(
        chosen, arguments.limit, arguments.jobs, lambda s: print(s, flush=True)
    ):
        records.append({"file": file, "test": method, **record})
        if time.time() - saved > 20:
            save(records, out)
            saved = time.time()
    save(records, out)
    print(running.table(records).split("\n## ")[0])


def save(records, out):
    records.sort(key=lambda r: (r["file"], r["test"]))
    out.write_text(json.dumps(records, indent=1))
    out.with_suffix(".md").write_text(running.table(records) + "\n")


if __name__ == "__main__":
    main()
