"""The pure builder, for anything that a site may have set."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.reasons import RefusedError
from gpuspawner.engines.docker import labels as names
from gpuspawner.engines.docker.settings import Attach, Terms, finish
from tests.builders import hold_of, key, share_hold
from tests.strategies import texts

WHOLE = hold_of(1, "GPU-a").slice
SHARE = share_hold(1, "GPU-b", 0, 4096, "ml101").slice
OURS = names.labels_of(key("ada"), None)

variables = st.sampled_from((
    "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "GPU_UUIDS",
    "GPU_MODE", "GPU_MEM_LIMIT", "GPU_COMPUTE_LIMIT", "PATH", "TZ",
)) | texts.filter(lambda text: text and "=" not in text)  # fmt: skip
values = st.sampled_from(("all", "none", "0", "0,1", "GPU-a", "")) | texts
environments = st.one_of(
    st.none(),
    st.dictionaries(variables, values),
    st.lists(st.builds("{}={}".format, variables, values)),
)
labels = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(sorted(OURS)) | texts, texts),
    st.lists(texts),
)


def finished(terms: Terms, **request: Any) -> dict[str, Any]:
    return finish({"image": "x", "name": "n", **request}, terms)


@pytest.mark.proves("P4")
@given(environments, st.sampled_from(((), (WHOLE,), (SHARE,), (WHOLE, SHARE))))
def test_no_site_environment_says_which_gpus(environment: Any, slices: Any) -> None:
    result = finished(Terms(labels=OURS, slices=slices), environment=environment)

    ours = result["environment"]
    uuids = ",".join(item.uuid for item in slices)
    assert ours["NVIDIA_VISIBLE_DEVICES"] == (uuids or "void")
    assert ours.get("GPU_UUIDS") == (uuids or None)
    assert "CUDA_VISIBLE_DEVICES" not in ours
    if not slices:
        assert not [name for name in ours if name.startswith("GPU_")]
    for request in result["host_config"].get("DeviceRequests", []):
        assert request["Count"] == 0
        assert request["DeviceIDs"] == [item.uuid for item in slices]
    given_pairs = dict(
        environment if isinstance(environment, dict)
        else (item.split("=", 1) for item in environment or ())
    )  # fmt: skip
    for name in ("PATH", "TZ"):
        assert ours.get(name) == given_pairs.get(name)


@given(labels)
def test_no_site_label_takes_the_place_of_ours(given_labels: Any) -> None:
    result = finished(Terms(labels=OURS), labels=given_labels)["labels"]
    assert OURS.items() <= result.items()
    assert set(result) == {*OURS, *(given_labels or ())}


def test_the_request_that_came_is_not_changed() -> None:
    request = {
        "image": "x", "name": "n", "labels": {"a": "b"}, "environment": {"GPU_MODE": "x"},
        "volumes": ["/data"], "host_config": {"Binds": ["v:/data:rw"], "AutoRemove": True},
    }  # fmt: skip
    before = copy.deepcopy(request)
    terms = Terms(labels=OURS, slices=(WHOLE,), home_volume="home", home_path="/home/jovyan")

    result = finish(request, terms)

    assert request == before
    assert result["host_config"]["Binds"] == ["v:/data:rw", "home:/home/jovyan:rw"]
    assert result["volumes"] == ["/data", "/home/jovyan"]
    assert finish(request, terms) == result
    # Completing a completed one is refused: the devices stand there already.
    with pytest.raises(RefusedError):
        finish(result, terms)


@pytest.mark.parametrize(
    ("host", "is_added"),
    [
        ({}, True),
        ({"Binds": ["/srv:/srv"]}, True),
        ({"Binds": ["mine:/home/jovyan"]}, False),
        ({"Binds": ["mine:/home/jovyan/:ro"]}, False),
        ({"Binds": ["mine:/home/jovyan/work:rw"]}, True),
        ({"Mounts": [{"Target": "/home/jovyan", "Source": "x", "Type": "volume"}]}, False),
        ({"Mounts": [{"Target": "/home", "Source": "x", "Type": "volume"}]}, True),
        ({"Binds": None, "Mounts": None}, True),
    ],
)
def test_the_home_volume_gives_way_to_the_sites_own(host: dict[str, Any], is_added: bool) -> None:
    terms = Terms(labels={}, home_volume="home", home_path="/home/jovyan")
    binds = finished(terms, host_config=host)["host_config"].get("Binds") or []
    assert ("home:/home/jovyan:rw" in binds) is is_added
    assert [bind for bind in binds if not bind.startswith("home:")] == (host.get("Binds") or [])


def test_without_a_home_path_nothing_is_mounted() -> None:
    assert "Binds" not in finished(Terms(labels={}, home_volume="home"))["host_config"]
    assert finished(Terms(labels={}, home_path="/home"))["volumes"] == []


def test_attaching_nothing_leaves_the_engine_no_request() -> None:
    terms = Terms(labels={}, slices=(WHOLE,), attach=Attach.NONE)
    assert "DeviceRequests" not in finished(terms)["host_config"]
