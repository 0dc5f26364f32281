"""Every step of a start broken in turn: why is said, nothing is left, the next one gets that GPU.

These are the drills of case 03, with the engine's trouble made by a proxy before it. Starts that
are cut off from outside stand in `test_starts_cut_off`, a pull that hangs (case 33) as well; what a
broken ledger does to a start in `test_storage_spawns`.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.doubles.engine_faults import CREATE, INSPECT, LIST
from tests.doubles.fault_proxy import FaultProxy
from tests.e2e.lab import PATIENT, QUICK_AGENT, Lab, through
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

START = r"/containers/[0-9a-f]+/start"
EXEC = r"/containers/[0-9a-f]+/exec"
RECONCILE_SECONDS = 30

# What the site's own settings are for one start: a file says so, and each start reads it.
_HOOK = """
import json, pathlib
def set_for_this_start(spawner):
    told = json.loads(pathlib.Path({file!r}).read_text())
    wanted = told.get(spawner.user.name, {{}})
    if "raise" in wanted:
        raise RuntimeError(wanted["raise"])
    for name, value in {{**told["usual"], **wanted}}.items():
        setattr(spawner, name, value)
c.Spawner.pre_spawn_hook = set_for_this_start
"""


@dataclass(frozen=True)
class Break:
    """One way in which a start breaks, and what its owner is told."""

    name: str
    code: Code | None  # of the ended lease; None: the start did not come to a lease
    status: int
    said: str
    settings: dict[str, Any] = field(default_factory=dict)
    faults: tuple[tuple[str, str, dict[str, Any]], ...] = ()


IN_THE_SITES_SETTINGS = [
    Break("image absent", Code.IMAGE_MISSING, 500, "no-such-image:1",
          {"image": "no-such-image:1", "pull_policy": "never"}),
    Break("image that cannot be pulled", Code.PULL_FAILED, 500, "127.0.0.1:1/far:1",
          {"image": "127.0.0.1:1/far:1"}),
    Break("network unknown", Code.START_FAILED, 500, "no-such-network",
          {"network_name": "no-such-network"}),
    Break("volume that the engine refuses", Code.CREATE_FAILED, 500, "volume name",
          {"volumes": {"no volume!": "/mnt/data"}}),
    Break("command that is not in the image", Code.DIED_AT_BOOT, 500, "no-such-program",
          {"cmd": ["no-such-program"]}),
    Break("command that ends at once", Code.DIED_AT_BOOT, 500, "exit code 3",
          {"cmd": ["python3", "-c", "raise SystemExit(3)"]}),
    Break("command that never answers", Code.NOT_READY, 500, "within 2 seconds",
          {"cmd": ["sleep", "60"], "http_timeout": 2}),
    # What such an error of the site's own says is for its log; a `web.HTTPError` would be shown.
    Break("pre_spawn_hook raises", None, 500, "Internal Server Error",
          {"raise": "a hook of the site fails"}),
    Break("post_start_cmd cannot be run", Code.START_FAILED, 500, "fault 500",
          {"post_start_cmd": "true"}, (("POST", EXEC, {"status": 500}),)),
]  # fmt: skip
AT_THE_ENGINE = [
    Break("create answers 500", Code.CREATE_FAILED, 500, "fault 500",
          faults=(("POST", CREATE, {"status": 500}),)),
    Break("create answers 400", Code.CREATE_FAILED, 500, "fault 400",
          faults=(("POST", CREATE, {"status": 400}),)),
    Break("create answers 404", Code.IMAGE_MISSING, 500, "",
          faults=(("POST", CREATE, {"status": 404}),)),
    Break("the answer of a create is lost", Code.ENGINE_AWAY, 503, "does not answer",
          faults=(("POST", CREATE, {"lose": True}),)),
    Break("half an answer of a create", Code.ENGINE_AWAY, 503, "does not answer",
          faults=(("POST", CREATE, {"cut": 10}),)),
    Break("start answers 500", Code.START_FAILED, 500, "fault 500",
          faults=(("POST", START, {"status": 500}),)),
    Break("start answers 404", Code.START_FAILED, 500, "fault 404",
          faults=(("POST", START, {"status": 404}),)),
    Break("start does not come through", Code.ENGINE_AWAY, 503, "does not answer",
          faults=(("POST", START, {"close": True}),)),
    Break("looking at what was started answers 500", Code.START_FAILED, 500, "fault 500",
          faults=(("GET", INSPECT, {"status": 500}),)),
    Break("the engine answers nothing but 500", None, 500, "fault 500",
          faults=(("*", "", {"status": 500}),)),
    Break("the engine closes each connection", None, 503, "does not answer",
          faults=(("*", "", {"reset": True}),)),
]  # fmt: skip


@dataclass
class Site:
    """A lab whose starts can be broken. The pool has one whole GPU of the wanted model."""

    lab: Lab
    proxy: FaultProxy
    file: Path
    usual: dict[str, Any]

    @contextmanager
    def broken(self, way: Break) -> Iterator[None]:
        """Break the next starts of ada. Faults at the engine begin with her lease."""
        self.file.write_text(json.dumps({"usual": self.usual, "ada": way.settings}))
        made = [self.proxy.fault(method, path, **what) for method, path, what in way.faults]
        try:
            yield
        finally:
            for fault in made:
                fault.lift()
            self.file.write_text(json.dumps({"usual": self.usual}))

    def expect_back(self, name: str) -> None:
        """Within one comparison nothing is left, and ben gets that GPU."""
        wait_for(f"no lease after {name!r}", lambda: not self.lab.living(), RECONCILE_SECONDS)
        wait_for(f"no container after {name!r}",
                 lambda: not self.lab.containers("ada"), RECONCILE_SECONDS)  # fmt: skip
        assert self.lab.hub.server("ada") is None, name
        self.lab.check()
        before = self.lab.leases("ada")
        answer = self.lab.hub.start_server("ben", options={"profile": "whole"})
        assert answer.status == 201, (name, answer.body)
        (lease,) = self.lab.living()
        assert lease.state is State.RUNNING
        held = [x.slices for x in before if x.slices]
        assert held in ([], [lease.slices] * len(held)), name
        self.lab.stop("ben")
        assert self.lab.living() == []


@pytest.fixture
def site(make_lab: Callable[..., Lab], proxy: FaultProxy, stub_image: str, tmp_path: Path) -> Site:
    file = tmp_path / "settings.json"
    config = through(proxy) + PATIENT + QUICK_AGENT + _HOOK.format(file=str(file))
    lab = make_lab(agent=True, config=config)
    usual = {
        "image": stub_image, "pull_policy": "ifnotpresent", "network_name": lab.network,
        "volumes": {}, "cmd": None, "post_start_cmd": False, "start_timeout": 120,
        "http_timeout": 60,
    }  # fmt: skip
    file.write_text(json.dumps({"usual": usual}))
    for user in ("ada", "ben"):
        lab.hub.add_user(user)
    return Site(lab, proxy, file, usual)


def break_each(site: Site, ways: list[Break]) -> None:
    for way in ways:
        before = len(site.lab.leases("ada"))
        with site.broken(way):
            answer = site.lab.hub.start_server("ada", options={"profile": "whole"})
            print(f"{way.name}: {answer.status} {answer.body['message']}")
            assert answer.status == way.status, (way.name, answer.body)
            assert way.said in str(answer.body["message"]), (way.name, answer.body)
        site.expect_back(way.name)
        made = site.lab.leases("ada")[before:]
        assert len(made) == (way.code is not None), way.name
        for lease in made:
            assert lease.reason is not None, way.name
            assert lease.reason.code is way.code, (way.name, lease.reason)
            assert site.lab.audit(lease.lease_id).count("end") == 1, way.name
    assert "never retrieved" not in site.lab.hub.log()


@pytest.mark.proves("P2", "P6")
def test_what_a_site_set_wrong(site: Site) -> None:
    break_each(site, IN_THE_SITES_SETTINGS)


@pytest.mark.proves("R2", "R5")
def test_what_the_engine_does_wrong(site: Site) -> None:
    break_each(site, AT_THE_ENGINE)


def test_a_create_without_answer_that_comes_late_keeps_its_gpu(
    make_lab: Callable[..., Lab], proxy: FaultProxy
) -> None:
    """What may still come is not gone: nobody else gets the GPU, and nothing runs by it (H8).

    When it has come it is cleared away, and only then the GPU is the next one's.
    """
    way = f"c.DockerSpawner.client_kwargs = {{'base_url': {proxy.url!r}, 'timeout': 2}}\n"
    lab = make_lab(agent=True, config=way + PATIENT + QUICK_AGENT)
    for user in ("ada", "ben"):
        lab.hub.add_user(user)
    late = proxy.fault("POST", CREATE, hang=True, times=1)

    answer = lab.hub.start_server("ada", options={"profile": "whole"})

    assert answer.status == 503, answer.body
    assert {name.lower(): value for name, value in answer.headers.items()}["retry-after"] == "60"
    compared = proxy.fault("GET", LIST)
    wait_for("three comparisons", lambda: compared.count >= 3)
    assert lab.containers("ada") == []
    lease = lab.last("ada")
    assert lease.state is State.ENDING
    assert lab.hub.start_server("ben", options={"profile": "whole"}).status == 429
    assert not late.passed.is_set()
    late.lift()
    assert late.passed.wait(20)
    lab.wait_ended(lease.lease_id)
    assert lab.containers("ada") == []
    assert lab.hub.start_server("ben", options={"profile": "whole"}).status == 201


def test_a_name_that_is_taken_twice_over(site: Site) -> None:
    """By strangers both times: neither is touched, and the start says which name it wanted."""
    lab = site.lab
    lab.start("ada", profile="cpu")
    container = lab.container("ada")
    hub_id = container["Config"]["Labels"]["org.gpuspawner.hub"]
    name = container["Name"].lstrip("/")
    lab.stop("ada")
    with contextlib.closing(lab.engine.client()) as client:
        strangers = [
            client.create_container(site.usual["image"], name=taken)["Id"]
            for taken in (name, f"{name}-{hub_id}")
        ]
    way = Break("name taken twice over", Code.CREATE_FAILED, 500, f"{name}-{hub_id} stays taken")
    break_each(site, [way])
    present = [x["Id"] for x in lab.containers()]
    assert sorted(present) == sorted(strangers)


@pytest.mark.proves("R5")
def test_a_removal_that_is_not_over_is_waited_for(site: Site) -> None:
    """The name is refused for a moment (case 32): the start works, by the same one lease."""
    with site.proxy.during("POST", CREATE, status=409, times=4) as taken:
        answer = site.lab.hub.start_server("ada", options={"profile": "whole"})
    assert (answer.status, taken.count) == (201, 4)
    (lease,) = site.lab.leases("ada")
    assert site.lab.container("ada")["Config"]["Labels"]["org.gpuspawner.fence"] == str(lease.fence)
    site.lab.stop("ada")
    site.expect_back("a removal under way")


@pytest.mark.proves("R6")
def test_a_removal_that_never_ends_and_a_create_that_outlasts_the_start(site: Site) -> None:
    """Both hold a thread of the hub while its start is over, and free the GPU when they end."""
    lab = site.lab
    way = Break("start_timeout", None, 500, "", {"start_timeout": 3})
    said = "longer than start_timeout (3 s)"
    with site.broken(way), site.proxy.during("POST", CREATE, status=409) as taken:
        answer = lab.hub.start_server("ada", options={"profile": "whole"})
        assert answer.status == 500, answer.body
        assert said in answer.body["message"]
        assert taken.count > 1
    site.expect_back("a name that stays taken")
    with (
        site.broken(way),
        site.proxy.during("POST", CREATE, keep=True) as create,
        ThreadPoolExecutor() as pool,
    ):
        asked = pool.submit(lab.hub.start_server, "ada", options={"profile": "whole"})
        assert create.passed.wait(20)
        wait_for("the start to be given up", lambda: lab.last("ada").detached_at is not None)
        assert lab.hub.start_server("ben", options={"profile": "whole"}).status == 429
        create.lift()
        assert said in asked.result().body["message"]
    assert [x.reason.code for x in lab.leases("ada") if x.reason] == [Code.START_FAILED] * 2
    site.expect_back("a create that outlasts the start")
