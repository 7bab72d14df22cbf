"""A plug-in of pytest that runs each test in a forked process, and reports one that a signal ended as failed."""

import json
import os
import signal

from _pytest.runner import runtestprotocol
from pytest import CallInfo, TestReport


def pytest_runtest_protocol(item, nextitem):
    """Run one test and report what came of it."""
    hook = item.config.hook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        reports = runtestprotocol(item, log=False, nextitem=None)
        lines = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
        with os.fdopen(writing, "w") as pipe:
            json.dump(lines, pipe, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if status == 0:
        reports = [hook.pytest_report_from_serializable(config=item.config, data=data) for data in json.loads(text)]
    else:
        reports = [_ended(item, status)]
    for report in reports:
        if isinstance(report.longrepr, list):  # of a skipped test: JSON knows no tuples
            report.longrepr = tuple(report.longrepr)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _ended(item, status):
    """Return the report of a test whose process ended by a signal."""

    def fail():
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {status >> 8}"
        raise MemoryError(f"{name}: memory beyond a tensor was read or written")

    return TestReport.from_item_and_call(item, CallInfo.from_call(fail, "call"))
