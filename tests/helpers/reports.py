"""What a worker of xdist tells of a test: that it passed, and not also that it was set up and torn down.

A report takes 0.2 ms: the worker packs it, and the process that prints the dots reads it and asks each plugin.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


def are_all_needed(config: pytest.Config) -> bool:
    """Say whether something reads every report: files of JUnit's format, and lists of what took longest."""
    return bool(config.getoption("xmlpath", None)) or config.getoption("durations", None) is not None


class OneReport:
    """A plugin that runs a test as pytest does, and leaves out the reports of setting up and tearing down that passed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test and tell of it."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
