"""Golden tests of the one request that matters: what the engine is asked to create (H13)."""

import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import docker.types
import pytest

from gpuspawner.domain.devices import DeviceUUID, HostId, Mode
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.domain.slices import Slice
from tests.builders import ML_SHARE, SMALL_MIG, T0, WHOLE, key
from tests.engines.create_requests import our_request, upstreams_request

A, B, C, D = (f"GPU-0000000{n}-aaaa-bbbb-cccc-000000000000" for n in range(4))
MIG = "MIG-11111111-aaaa-bbbb-cccc-000000000000"


def whole(uuid: str) -> Slice:
    return Slice(
        host_id=HostId("lab"), device_uuid=DeviceUUID(uuid), mode=Mode.WHOLE, unit="whole",
        memory_mib=81559, model="NVIDIA H100",
    )  # fmt: skip


INSTANCE = Slice(
    host_id=HostId("lab"), device_uuid=DeviceUUID(A), mode=Mode.INSTANCE, unit=MIG,
    memory_mib=9856, instance_profile="2g.10gb", model="NVIDIA A100",
)  # fmt: skip
SHARE = Slice(
    host_id=HostId("lab"), device_uuid=DeviceUUID(B), mode=Mode.TIME_SLICED, unit="share-1",
    memory_mib=5120, compute_percent=25, model="NVIDIA RTX 2080 Ti",
)  # fmt: skip


def lease_of(*slices: Slice) -> Lease:
    profile = {Mode.INSTANCE: SMALL_MIG, Mode.TIME_SLICED: ML_SHARE}.get(slices[0].mode, WHOLE)
    return Lease(
        lease_id=7, key=key("ada"), state=State.GRANTED, profile=profile, image=None,
        engine="docker", requested_at=T0, granted_at=T0, fence=3, slices=slices,
        start_deadline=T0 + timedelta(minutes=10),
    )  # fmt: skip


# Settings that sites have, as traits of either class.
SITES: dict[str, dict[str, Any]] = {
    "none": {},
    "usual": {
        "image": "quay.io/lab/notebook:1", "network_name": "nb", "use_internal_ip": True,
        "mem_limit": "4G", "cpu_limit": 1.5, "environment": {"COURSE": "ml101"},
        "args": ["--debug"], "hub_connect_url": "http://hub:8081",
    },
    "files": {
        "volumes": {"data-{username}": "/data"}, "read_only_volumes": {"/srv/books": "/books"},
        "mounts": [{"source": "scratch", "target": "/scratch", "type": "volume"}],
    },
    "own-everything": {
        "extra_create_kwargs": {
            "user": "1000", "working_dir": "/work", "hostname": "{username}-nb",
            "labels": {"site": "vis202", "org.gpuspawner.lease": "999"},
            "environment": {"TZ": "Asia/Shanghai"}, "stop_signal": "SIGINT",
        },
        "extra_host_config": {
            "shm_size": "2g", "init": False, "cap_drop": ["ALL"], "runtime": "runc",
            "ulimits": [docker.types.Ulimit(name="nofile", soft=1024)], "pids_limit": 200,
            "network_mode": "site-net", "dns": ["172.30.0.53"], "tmpfs": {"/tmp": "size=1g"},
            "restart_policy": {"Name": "no"}, "read_only": True, "group_add": ["users"],
        },
    },
    "own-lists": {
        "extra_create_kwargs": {
            "labels": ["site", "vis202"], "environment": ["TZ=Asia/Shanghai", "A=b=c", "GONE"],
        },
        "extra_host_config": {"security_opt": ["no-new-privileges"]},
    },
    "callables": {
        "extra_create_kwargs": lambda spawner: {"hostname": spawner.user.name},
        "extra_host_config": lambda _spawner: _later({"pids_limit": 99}),
    },
    "no-removal": {"remove": False},
    "home-of-its-own": {"volumes": {"home-{username}": {"bind": "/home/jovyan/", "mode": "z"}}},
}  # fmt: skip


async def _later(value: dict[str, Any]) -> dict[str, Any]:
    return value


@pytest.mark.proves("P4", "P9")
@pytest.mark.parametrize("site", SITES)
async def test_a_cpu_server_is_upstreams_request_but_for_what_we_promise(site: str) -> None:
    settings = {"name_template": "{prefix}-{username}", **SITES[site]}
    theirs = copy.deepcopy(await upstreams_request(**{"remove": True, **settings}))

    ours = await our_request(**settings)

    host, their_host = ours["host_config"], theirs["host_config"]
    made = ours["labels"].pop("org.gpuspawner.made")
    assert len(made) == 32
    assert ours.pop("labels") == {
        **_labels_of(theirs.pop("labels", {})),
        "org.gpuspawner.hub": "hub", "org.gpuspawner.user": "ada", "org.gpuspawner.server": "",
        **({"org.gpuspawner.lease": "999"} if site == "own-everything" else {}),
    }  # fmt: skip
    assert ours.pop("environment") == {
        **_environment_of(theirs.pop("environment")), "NVIDIA_VISIBLE_DEVICES": "void",
    }  # fmt: skip
    assert host.pop("AutoRemove") is False
    assert their_host.pop("AutoRemove", False) is (site != "no-removal")
    assert host.pop("Init") is their_host.pop("Init", True)
    assert host.pop("ShmSize") == their_host.pop("ShmSize", 1 << 30)
    if site != "home-of-its-own":
        their_host["Binds"] = [
            *(their_host.get("Binds") or []), "jupyter-hub-ada:/home/jovyan:rw",
        ]  # fmt: skip
        theirs["volumes"] = [*theirs["volumes"], "/home/jovyan"]
    assert ours == theirs
    assert "DeviceRequests" not in host


def _labels_of(labels: Any) -> dict[str, str]:
    return labels if isinstance(labels, dict) else dict.fromkeys(labels, "")


def _environment_of(environment: Any) -> dict[str, str | None]:
    if isinstance(environment, dict):
        return environment
    pairs = [item.split("=", 1) for item in environment]
    return {pair[0]: pair[1] if len(pair) > 1 else None for pair in pairs}


async def test_a_name_without_value_still_takes_the_images_variable_away() -> None:
    """``environment: ["GONE"]`` means to docker-py: unset it, and not: set it to nothing."""
    ours = await our_request(**SITES["own-lists"])
    formatted = docker.types.ContainerConfig("1.41", ours["image"], ["x"], **{
        "environment": ours["environment"]})["Env"]  # fmt: skip
    assert {"GONE", "TZ=Asia/Shanghai", "A=b=c"} <= set(formatted)


NVIDIA_REQUEST = {
    "Driver": "nvidia", "Count": 0, "Capabilities": [["gpu", "compute", "utility"]], "Options": {},
}  # fmt: skip

GRANTS = [
    pytest.param(
        lease_of(whole(A)), "nvidia", {**NVIDIA_REQUEST, "DeviceIDs": [A]},
        {"GPU_MODE": "whole", "GPU_UUIDS": A, "GPU_MEM_LIMIT": str(81559 << 20)}, id="whole",
    ),
    pytest.param(
        lease_of(whole(D), whole(A), whole(C), whole(B)), "nvidia",
        {**NVIDIA_REQUEST, "DeviceIDs": [D, A, C, B]},
        {"GPU_MODE": "whole", "GPU_UUIDS": f"{D},{A},{C},{B}"}, id="four",
    ),
    pytest.param(
        lease_of(INSTANCE), "nvidia", {**NVIDIA_REQUEST, "DeviceIDs": [MIG]},
        {"GPU_MODE": "mig", "GPU_UUIDS": MIG, "GPU_MEM_LIMIT": str(9856 << 20)}, id="mig",
    ),
    pytest.param(
        lease_of(SHARE), "nvidia", {**NVIDIA_REQUEST, "DeviceIDs": [B]},
        {"GPU_MODE": "time-sliced", "GPU_UUIDS": B, "GPU_MEM_LIMIT": str(5120 << 20),
         "GPU_COMPUTE_LIMIT": "25"}, id="share",
    ),
    pytest.param(
        lease_of(replace(SHARE, memory_mib=None, compute_percent=None)), "nvidia",
        {**NVIDIA_REQUEST, "DeviceIDs": [B]},
        {"GPU_MODE": "time-sliced", "GPU_UUIDS": B}, id="unknown-memory-is-not-zero",
    ),
    pytest.param(
        lease_of(whole(A), whole(B)), "cdi",
        {"Driver": "cdi", "Count": 0, "DeviceIDs": [f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"],
         "Capabilities": [], "Options": {}},
        {"GPU_MODE": "whole", "GPU_UUIDS": f"{A},{B}"}, id="cdi",
    ),
    pytest.param(
        lease_of(whole(A)), "none", None,
        {"GPU_MODE": "whole", "GPU_UUIDS": A, "GPU_MEM_LIMIT": str(81559 << 20)}, id="none",
    ),
]  # fmt: skip


@pytest.mark.proves("P4", "P9")
@pytest.mark.parametrize(("lease", "attach", "request_", "told"), GRANTS)
async def test_a_gpu_server_differs_from_a_cpu_server_by_its_lease_only(
    lease: Lease, attach: str, request_: dict[str, Any] | None, told: dict[str, str]
) -> None:
    settings = {"name_template": "x", **SITES["usual"]}
    cpu = await our_request(**settings)

    gpu = await our_request(lease, attach=attach, **settings)

    cpu["labels"] |= {
        "org.gpuspawner.made": gpu["labels"]["org.gpuspawner.made"],
        "org.gpuspawner.lease": "7", "org.gpuspawner.fence": "3",
        "org.gpuspawner.slices": ",".join(item.slice_id for item in lease.slices),
    }  # fmt: skip
    grant = json.loads(gpu["labels"].pop("org.gpuspawner.grant"))
    assert (grant["profile"]["name"], grant["image"]) == (lease.profile.name, lease.image)
    assert [(item["device_uuid"], item["unit"]) for item in grant["slices"]] == [
        (item.device_uuid, item.unit) for item in lease.slices
    ]
    cpu["environment"] |= {
        "NVIDIA_VISIBLE_DEVICES": told["GPU_UUIDS"],
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility", **told,
    }  # fmt: skip
    if request_ is not None:
        cpu["host_config"]["DeviceRequests"] = [request_]
    assert gpu == cpu


OWN_DEVICES = [docker.types.DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])]
REFUSED = [
    ({"device_requests": OWN_DEVICES}, False, "device_requests"),
    ({"device_requests": OWN_DEVICES}, True, "device_requests"),
    ({"restart_policy": {"Name": "always"}}, False, "restart_policy"),
    ({"restart_policy": {"Name": "on-failure", "MaximumRetryCount": 3}}, False, "restart_policy"),
    ({"restart_policy": {"Name": "unless-stopped"}}, True, "restart_policy"),
    ({"privileged": True}, True, "privileged"),
    ({"privileged": True}, False, "privileged"),
    ({"devices": ["/dev/nvidia0:/dev/nvidia0:rwm"]}, False, "devices"),
    ({"devices": ["/dev/fuse", "/dev/nvidiactl"]}, True, "devices"),
    ({"devices": ["/dev/nvidia-uvm"]}, True, "devices"),
]


@pytest.mark.proves("P4")
@pytest.mark.parametrize(("host", "with_gpu", "setting"), REFUSED)
async def test_settings_that_contradict_a_lease_are_refused(
    host: dict[str, Any], with_gpu: bool, setting: str
) -> None:
    lease = lease_of(whole(A)) if with_gpu else None
    with pytest.raises(RefusedError) as refused:
        await our_request(lease, extra_host_config=host)
    assert refused.value.reason.code is Code.SITE_SETTING
    assert refused.value.reason.values["setting"] == setting


@pytest.mark.parametrize(
    ("host", "with_gpu"),
    [
        ({"devices": ["/dev/fuse"]}, True),
        ({"restart_policy": {"Name": "no"}}, True),
        ({"restart_policy": {}}, True),
        ({"restart_policy": {"Name": ""}}, True),
    ],
)
async def test_settings_that_do_no_harm_stay(host: dict[str, Any], with_gpu: bool) -> None:
    asked = await our_request(lease_of(whole(A)) if with_gpu else None, extra_host_config=host)
    if "devices" in host:
        assert [item["PathOnHost"] for item in asked["host_config"]["Devices"]] == ["/dev/fuse"]
    assert not asked["host_config"].get("Privileged")
