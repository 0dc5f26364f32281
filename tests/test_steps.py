"""Every step that touches engine, hub or ledger has a name, and every name is a step's."""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import dockerspawner.dockerspawner
import pytest

import gpuspawner
from gpuspawner import steps
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.steps import HOOK_VARIABLE, NAMES, HookedSteps, Steps, steps_from
from tests.doubles.drill import DRILLED, operations

PACKAGE = Path(gpuspawner.__file__).parent
CLIENT = "engines/docker/client.py"

# Where what touches engine, hub or ledger may stand, and nowhere else: each passes its steps.
# Beside them stand, with their reasons:
# - opening, migrations, backup, restore: inside "ledger:open", or a command on books at rest;
# - the spawner's `client`, which upstream asks for constants and builds requests with;
# - log-in at the service, which no lease waits for: the hub's library asks through `auth`.
ALLOWED: dict[str, set[str]] = {
    "docker.APIClient": {CLIENT},
    "client": {CLIENT, "spawners/docker.py"},
    "write": {"broker/together.py"},
    "begin": {"ledger/store.py", "ledger/opening.py", "ledger/restore.py", "cli/books.py"},
    "create_engine": {"ledger/opening.py"},
    "user_for_token": {"service/hub.py", "service/auth.py"},
    "Popen": {"engines/process/child.py"},
    "Part": {"broker/broker.py", "broker/door.py"},
}
# Programs and clients that reach others by a way that has no name here.
HTTP = {"requests", "httpx", "aiohttp", "urllib.request", "urllib3", "http.client"}
HTTP_ALLOWED = {"requests": {CLIENT, "agent/hub.py"}}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith("ledger/migrations/versions/"):
            yield name, ast.parse(path.read_text())


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Calls by the last word of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                yield function.attr, node
            elif isinstance(function, ast.Name):
                yield function.id, node


def receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def surprises(sources: Iterator[tuple[str, ast.Module]]) -> list[str]:
    """What touches engine, hub or ledger beside the places that pass steps."""
    found = []
    for name, tree in sources:
        for word, call in calls(tree):
            whose = receiver(call)
            key = {
                "APIClient": "docker.APIClient",
                "DockerClient": "docker.APIClient",
                "from_env": "docker.APIClient" if whose == "docker" else None,
                "client": "client" if whose.endswith("engine") or whose == "self" else None,
                # A ledger's, and not a file's.
                "write": "write" if "ledger" in whose else None,
                "begin": "begin",
                "create_engine": "create_engine",
                "user_for_token": "user_for_token",
                "api_request": "user_for_token",
                "AsyncHTTPClient": "user_for_token",
                "Popen": "Popen",
                "create_subprocess_exec": "Popen",
                # The service has a class of the same name.
                "Part": None if name.startswith("service/") else "Part",
            }.get(word)
            if key is not None and name not in ALLOWED[key]:
                found.append(f"{name}:{call.lineno}: {ast.unparse(call)[:60]}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                wanted = [str(node.module), *(f"{node.module}.{x.name}" for x in node.names)]
            else:
                continue
            found += [
                f"{name}:{node.lineno}: import of {each}"
                for each in wanted
                if each in HTTP and name not in HTTP_ALLOWED.get(each, ())
            ]
    return found


def test_nothing_touches_engine_hub_or_ledger_beside_what_passes_a_step():
    assert surprises(modules()) == []


@pytest.mark.parametrize(
    "code",
    [
        "docker.APIClient(base_url='x')",
        "docker.from_env()",
        "self._site.engine.client().containers()",
        "with self._site.broker.ledger.write() as books: pass",
        "with engine.begin() as connection: pass",
        "create_engine('sqlite://')",
        "await self._auth.user_for_token(token, sync=False)",
        "AsyncHTTPClient().fetch('http://hub/')",
        "import requests",
        "from urllib import request\nfrom urllib.request import urlopen",
        "subprocess.Popen(['docker', 'ps'])",
        "self._together.do(Part(write=write))",
    ],
)
def test_code_that_adds_such_a_step_is_found(code):
    assert surprises(iter([("spawners/new.py", ast.parse(code))]))


def used() -> dict[str, set[str]]:
    """The operations that the code carries out, by place: each by its literal name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in modules():
        for word, call in calls(tree):
            first = literal(call.args[0]) if call.args else None
            keyword = {each.arg: literal(each.value) for each in call.keywords}
            if word == "call" and (name == CLIENT or receiver(call).endswith("engine")):
                if first is None:  # `docker`, whose callers are upstream's methods and ours
                    assert (name, ast.unparse(call)) == (
                        "spawners/docker.py", "self._site.engine.call(method, *args, **kwargs)",
                    )  # fmt: skip
                    continue
                found["engine"].add(first)
            elif word == "_write" and name.startswith("broker/"):
                assert first is not None, f"{name}:{call.lineno}: a write without a literal name"
                found["write"].add(first)
            elif word == "Part" and not name.startswith("service/"):
                if name == "broker/door.py":  # `_write`, whose callers name theirs
                    continue
                assert keyword.get("name"), f"{name}:{call.lineno}: a part without a literal name"
                found["write"].add(str(keyword["name"]))
            elif word == "around":
                operation = call.args[0]
                if literal(operation) is None:
                    assert (name, ast.unparse(operation)) == (CLIENT, "f'engine:{method}'")
                    continue
                place, _, what = str(literal(operation)).partition(":")
                found[place].add(what)
    found["engine"] |= upstreams()
    return dict(found)


def upstreams() -> set[str]:
    """The calls of DockerSpawner's own methods that ours does not replace."""
    tree = ast.parse(inspect.getsource(dockerspawner.dockerspawner.DockerSpawner))
    (upstream,) = tree.body
    assert isinstance(upstream, ast.ClassDef)
    found = set()
    for method in upstream.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        ours = getattr(GPUDockerSpawner, method.name, None)
        if getattr(ours, "__module__", "").startswith("gpuspawner"):
            continue
        for word, call in calls(method):
            if word == "docker" and receiver(call) == "self":
                name = literal(call.args[0])
                assert name is not None, f"{method.name} makes a call whose name is not literal"
                found.add(name)
    return found


def test_every_operation_has_a_name_and_every_name_an_operation():
    found = used()
    assert found.keys() == {"engine", "write", "ledger", "hub", "process"}
    assert found["engine"] == set(steps.ENGINE)
    assert found["write"] == set(steps.WRITES)
    assert found["ledger"] == set(steps.LEDGER)
    assert found["hub"] == set(steps.HUB)
    assert found["process"] == set(steps.PROCESS)


# What no drill kills a process at, and where it is carried out.
UNDRILLED = {
    "tests/engines/test_docker_faults.py": {"engine:wait"},
    "tests/e2e/test_broken_starts.py": {"engine:exec_create", "engine:exec_start", "engine:logs"},
    "tests/e2e/test_starts_cut_off.py": {"engine:pull", "ledger:detach", "ledger:want-end"},
    "tests/broker/test_settle.py": {"ledger:settle"},
    "tests/cli/test_acting.py": {"ledger:force-end", "ledger:cordon", "ledger:uncordon"},
    "tests/spawners/test_local_restart.py": {"process:make", "process:let-go", "process:end"},
    # Upstream's, for sites with published ports or with TLS inside: nothing of ours stands there.
    "": {"engine:port", "engine:create_volume", "engine:put_archive"},
}


def test_every_step_is_drilled_or_is_carried_out_elsewhere():
    drilled = set().union(*DRILLED.values())
    elsewhere = set().union(*UNDRILLED.values())
    assert drilled | elsewhere == operations(NAMES)
    assert not drilled & elsewhere
    assert all((PACKAGE.parent / name).exists() for name in UNDRILLED)


def test_nobody_listens_unless_the_variable_says_so():
    assert type(steps_from({})) is Steps
    assert type(steps_from({HOOK_VARIABLE: ""})) is Steps
    with pytest.raises(ValueError, match="must be module:function"):
        steps_from({HOOK_VARIABLE: "tests.doubles.drill"})
    assert isinstance(steps_from({HOOK_VARIABLE: "tests.doubles.drill:at"}), HookedSteps)


def test_a_step_is_passed_before_and_after_and_not_after_trouble():
    passed: list[str] = []
    watched = HookedSteps(passed.append)
    with watched.around("engine:start"):
        passed.append("it")
    with pytest.raises(KeyError), watched.around("engine:stop"):
        raise KeyError
    assert passed == ["engine:start:before", "it", "engine:start:after", "engine:stop:before"]
    assert set(passed) - {"it"} <= NAMES


def test_a_name_that_is_not_listed_is_refused():
    with pytest.raises(ValueError, match=r"'engine:dance:before' is no step"):
        HookedSteps(lambda _name: None).at("engine:dance:before")
