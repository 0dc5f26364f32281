"""In a run of the whole suite in CI, each guarantee must have been proven.

A test names what it proves by ``@pytest.mark.proves("P2")``. The run fails at its end when a
guarantee has no test that passed, or when one of its tests failed or was skipped. A test that needs
a real GPU may be skipped, and then proves nothing.
"""

import os
from collections import defaultdict

import pytest

from tools.docs.guarantee_texts import GUARANTEES, NOT_YET

_PROVES, _MAY_SKIP = "proves", "proves-may-skip"


class GuaranteeCheck:
    """Watches what becomes of the tests that prove something."""

    def __init__(self) -> None:
        self._proving: dict[str, set[str]] = {}  # a test's node id -> what it proves, of reports
        self._excused: set[str] = set()
        self._passed: set[str] = set()
        self._trouble: dict[str, str] = {}
        self._is_whole = True
        self._found: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Note which tests prove what."""
        for item in items:
            ids = {name for mark in item.iter_markers("proves") for name in mark.args}
            for name in ids - GUARANTEES.keys():
                raise pytest.UsageError(f"{item.nodeid}: there is no guarantee {name!r}")
            # Reports carry it to where the run ends, which may be another process than this.
            if ids:
                item.user_properties.append((_PROVES, sorted(ids)))
                may_skip = item.get_closest_marker("gpu") is not None
                item.user_properties.append((_MAY_SKIP, may_skip))

    def pytest_deselected(self) -> None:
        """A part of the suite proves no whole."""
        self._is_whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test went."""
        told = dict(report.user_properties)
        if _PROVES not in told:
            return
        self._proving[report.nodeid] = set(told[_PROVES])  # type: ignore[call-overload]
        if told[_MAY_SKIP]:
            self._excused.add(report.nodeid)
        if not report.passed:
            self._trouble[report.nodeid] = report.outcome
        elif report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of the whole suite that does not prove everything."""
        is_part = hasattr(session.config, "workerinput")  # of a run in several processes
        if is_part or not (os.environ.get("CI") and self._is_whole and _is_whole(session.config)):
            return
        self._found = self.missing()
        if self._found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def missing(self) -> list[str]:
        """Return in words what was not proven, and by which tests."""
        passed, found = set(), []
        for test in self._passed - self._trouble.keys():
            passed |= self._proving[test]
        trouble: dict[str, list[str]] = defaultdict(list)
        for test, outcome in sorted(self._trouble.items()):
            if outcome != "skipped" or test not in self._excused:
                for name in self._proving[test]:
                    trouble[name].append(f"{test} ({outcome})")
        for name in GUARANTEES:
            if name in trouble:
                found.append(f"{name} is not proven by {', '.join(trouble[name])}")
            elif name not in passed | NOT_YET:
                found.append(f"{name} has no test that passed")
        return found

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was not proven."""
        if self._found:
            terminalreporter.section("guarantees that are not proven", red=True)
            for line in self._found:
                terminalreporter.line(line, red=True)


def _is_whole(config: pytest.Config) -> bool:
    """Whether the run is of all that the settings name, and not stopped before its tests."""
    asked = {(config.invocation_params.dir / name).resolve() for name in config.args}
    whole = {(config.rootpath / name).resolve() for name in config.getini("testpaths")}
    left_out = ("ignore", "ignore_glob", "lf", "collectonly", "keyword", "markexpr", "deselect")
    return asked == whole and not any(config.getoption(name, None) for name in left_out)


def pytest_configure(config: pytest.Config) -> None:
    """Watch this run."""
    config.pluginmanager.register(GuaranteeCheck(), "guarantee-check")
