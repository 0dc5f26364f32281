"""What GPUDockerSpawner adds to a start: images, pulls, last words; without an engine."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound
from jupyterhub import orm

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.engines.look import (
    EngineRefusedError,
    EngineUnknownError,
    Finished,
    Made,
    Running,
)
from gpuspawner.spawners.docker import GPUDockerSpawner
from tests.builders import T0

RUNNING = Running(run_id="c1", started_at=T0)


class Engine:
    """Has images, and pulls as the test wants."""

    def __init__(self) -> None:
        self.images: set[str] = set()
        self.pulled: list[str] = []
        self.pull_fails: Exception | None = None
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.printed = ""

    def image(self, reference: str) -> dict[str, Any] | None:
        return {} if reference in self.images else None

    def pull(self, reference: str, _tell: object) -> None:
        self.pulled.append(reference)
        self.begun.set()
        assert self.go.wait(20)
        if self.pull_fails:
            raise self.pull_fails
        self.images.add(reference)

    def last_lines(self, _container: str) -> str:
        return self.printed


@pytest.fixture
def site(make_site: Any) -> Iterator[Any]:
    site = make_site()
    site.engine = Engine()
    yield site
    site.engine.go.set()
    for lanes in (site.lanes, site.pulls, site._books):
        lanes.close()


def make(site: Any, user: str = "ada", **settings: Any) -> GPUDockerSpawner:
    return GPUDockerSpawner(
        user=SimpleNamespace(
            name=user, url=f"/user/{user}/", escaped_name=user,
            settings={"gpuspawner_site": site}, orm_user=SimpleNamespace(groups=[]),
        ),
        hub=SimpleNamespace(public_host="", base_url="/hub/"),
        orm_spawner=SimpleNamespace(
            name="", user_options={},
            server=orm.Server(proto="http", ip="", port=1, base_url="/user/x/", cookie_name="x"),
        ),
        **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "present", "pulls", "code"),
    [
        ("ifnotpresent", True, [], None),
        ("ifnotpresent", False, ["x:1"], None),
        ("always", True, ["x:1"], None),
        ("Always", False, ["x:1"], None),
        ("never", True, [], None),
        ("never", False, [], Code.IMAGE_MISSING),
        ("skip", False, [], None),
    ],
)
async def test_the_sites_pull_policy(
    site: Any, policy: str, present: bool, pulls: list[str], code: Code | None
) -> None:
    spawner = make(site, pull_policy=policy)
    if present:
        site.engine.images.add("x:1")
    if code is None:
        await spawner.pull_image("x:1")
    else:
        with pytest.raises(RefusedError) as refused:
            await spawner.pull_image("x:1")
        assert (refused.value.reason.code, refused.value.reason.values) == (code, {"image": "x:1"})
    assert site.engine.pulled == pulls


@pytest.mark.parametrize(
    "error",
    [
        EngineRefusedError("no space"),
        EngineUnknownError("no space", answered=True),
        NotFound("no space"),
    ],
)
async def test_a_pull_that_fails_says_why(site: Any, error: Exception) -> None:
    site.engine.pull_fails = error
    with pytest.raises(RefusedError) as refused:
        await make(site).pull_image("x:1")
    reason = refused.value.reason
    assert (reason.code, reason.values["detail"]) == (Code.PULL_FAILED, "no space")


async def test_a_pull_that_takes_too_long_says_how_long(site: Any) -> None:
    spawner = make(site, pull_seconds=1)
    site.engine.go.clear()
    with pytest.raises(RefusedError) as refused:
        await spawner.pull_image("x:1")
    assert refused.value.reason.code is Code.PULL_TOO_LONG
    assert refused.value.reason.values == {"image": "x:1", "seconds": 1}


async def test_a_class_that_starts_at_once_pulls_once(site: Any) -> None:
    site.engine.go.clear()
    starts = [
        asyncio.create_task(make(site, f"user{n}").pull_image("x:1")) for n in range(10)
    ]  # fmt: skip
    assert await asyncio.to_thread(site.engine.begun.wait, 20)
    site.engine.go.set()
    await asyncio.gather(*starts)
    assert site.engine.pulled == ["x:1"]


async def test_one_is_told_that_a_pull_takes_minutes(site: Any) -> None:
    spawner = make(site)
    await spawner.pull_image("x:1")
    await spawner.pull_image("x:1")
    spawner._progress.finish()
    told = [event.get("message", "") async for event in spawner.progress()]
    assert len(told) == 1
    assert "x:1" in told[0]
    assert "minutes" in told[0]


@pytest.mark.parametrize(
    ("allowed", "name", "image"),
    [
        ({"torch": "quay.io/x/torch:1"}, "torch", "quay.io/x/torch:1"),
        (["quay.io/x/jax:1"], "quay.io/x/jax:1", "quay.io/x/jax:1"),
        ("*", "any/thing:1", "any/thing:1"),
        ([], "any/thing:1", None),
        (["quay.io/x/jax:1"], "any/thing:1", None),
    ],
)
async def test_which_images_may_be_named(
    site: Any, allowed: Any, name: str, image: str | None
) -> None:
    images = make(site, allowed_images=allowed)._images()
    assert (images[name] if name in images else None) == image  # noqa: SIM401 - a judge asks so


async def test_a_starts_image_and_lease_are_not_the_next_ones(site: Any) -> None:
    spawner = make(site, image="base:1")
    spawner.object_name = "kept"
    with spawner._using("torch:1", None):
        assert spawner.image == "torch:1"
        spawner.object_name = "made"
    assert (spawner.image, spawner.object_name, spawner._lease) == ("base:1", "made", None)


@pytest.mark.proves("P9")
async def test_last_words_do_not_tell_the_token(site: Any) -> None:
    """They are shown to the user, who may show them to anybody (P9)."""
    spawner = make(site, api_token="a-secret-token")
    site.engine.printed = "GET /hub?token=a-secret-token failed"
    ended = Finished(run_id="c1", evidence=Evidence(source=Source.ENGINE, exit_code=3))
    with pytest.raises(RefusedError) as refused:
        await spawner._died(ended)
    assert refused.value.reason.code is Code.DIED_AT_BOOT
    assert refused.value.reason.values == {
        "exit_code": 3, "log": "GET /hub?token=[token] failed",
    }  # fmt: skip


async def test_while_it_boots_unknown_is_not_died(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = make(site)
    looks: list[Any] = [EngineUnknownError("silence"), RUNNING, Made(run_id="c1")]

    async def look() -> Any:
        seen = looks.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return seen

    monkeypatch.setattr(spawner, "_look", look)
    await spawner._check()
    await spawner._check()
    with pytest.raises(RefusedError):
        await spawner._check()


async def test_defaults_that_a_hub_needs(site: Any) -> None:
    spawner = make(site, pull_seconds=100, http_timeout=50)
    assert (spawner.remove, spawner.poll_interval) == (True, 10)
    assert spawner.start_timeout == 100 + 50 + 180
    assert make(site).http_timeout == 120
    assert spawner.object_name == "jupyter-hub-ada"
    named = make(site, "Ada")
    assert named.object_name.startswith("jupyter-hub-ada-")
