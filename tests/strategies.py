"""Hypothesis strategies for the domain's values, used by the tests of domain, ledger and broker."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostId,
    HostInventory,
    Instance,
    Load,
    Mode,
    Trouble,
    Unavailable,
)
from gpuspawner.domain.leases import ServerKey
from gpuspawner.domain.policy import DeviceRule, PlacementPolicy, Policy
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import VALUES_OF, Code, Reason
from gpuspawner.domain.slices import Slice
from tests.builders import T0, after

GROUPS = ("ml101", "vis202")
MODELS = ("Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA H200")
PLACED_MODES = (Mode.WHOLE, Mode.INSTANCE, Mode.TIME_SLICED)
INSTANCE_SIZES = {"1g.5gb": 4864, "2g.10gb": 9856, "3g.20gb": 20096}

LOADS = (
    Load(), Load(used_mib=0, busy_percent=0), Load(used_mib=0), Load(busy_percent=0),
    Load(used_mib=3000, busy_percent=50), Load(used_mib=9000, busy_percent=100),
)  # fmt: skip
SICK = Unavailable(trouble=Trouble.SICK, detail="XID 79")

# A machine that is busy with other tests makes every deadline wrong.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# No surrogates: they are no text that could be stored. No NUL: hubs refuse it in names.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
mibs = st.integers(1, 200_000)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def maybe(values: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """A value, or unknown."""
    return st.none() | values


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """A profile that a site may write, with every field in use."""
    bare = draw(st.one_of(placed_profiles(), st.just(CPU_ONLY)))
    return replace(
        bare,
        name=draw(names),
        title=draw(texts),
        description=draw(texts),
        images=tuple(draw(st.lists(texts.filter(bool), max_size=2))),
        groups=bare.groups or draw(st.sampled_from(((), GROUPS))),
        hour_weight=draw(st.dictionaries(texts, st.floats(0.1, 1000), max_size=2)),
        default=draw(st.booleans()),
    )


@st.composite
def placed_profiles(draw: st.DrawFn) -> Profile:
    """A profile with GPU, in what placement looks at only."""
    mode = draw(st.sampled_from(PLACED_MODES))
    models = draw(st.sampled_from(((), (), ("T4",), ("a100",))))
    memory = draw(st.sampled_from((2000, 5000, 9000)))
    profile = Profile(name=f"{mode}-{memory}", title=f"{mode} {memory}", mode=mode, models=models)
    if mode is Mode.WHOLE:
        count, least = draw(st.integers(1, 3)), draw(st.sampled_from((None, 1, 20000)))
        return replace(profile, count=count, memory_mib=least)
    if mode is Mode.INSTANCE:
        size = draw(st.sampled_from((None, *INSTANCE_SIZES)))
        return replace(profile, instance=size, memory_mib=None if size else memory)
    group, percent = draw(st.sampled_from(GROUPS)), draw(st.sampled_from((None, 25)))
    return replace(profile, memory_mib=memory, compute_percent=percent, groups=(group,))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """What a device does, each reading unknown for itself."""
    return Load(
        used_mib=draw(maybe(st.integers(0, 40000))),
        busy_percent=draw(maybe(st.integers(0, 100))),
        temperature_c=draw(maybe(st.integers(0, 100))),
        power_w=draw(maybe(st.floats(0, 1000))),
        power_limit_w=draw(maybe(st.floats(0, 1000))),
    )


@st.composite
def unavailables(draw: st.DrawFn) -> Unavailable:
    """Why a device is not to be handed out."""
    return Unavailable(
        trouble=draw(st.sampled_from(Trouble)), detail=draw(texts), cleared_by=draw(texts)
    )


@st.composite
def devices(draw: st.DrawFn, uuid: str, host_id: str) -> Device:
    """A device in any state of knowledge, in what placement looks at only."""
    sizes = draw(st.lists(st.sampled_from(sorted(INSTANCE_SIZES)), max_size=3))
    unknown = draw(st.integers(0, 9))  # the place of an instance of unknown size, if it is there
    return Device(
        uuid=DeviceUUID(uuid),
        host_id=HostId(host_id),
        index=draw(st.integers(0, 2)),
        model=draw(st.sampled_from(MODELS)),
        memory_mib=draw(st.sampled_from((None, 8192, 16384, 16384, 40960))),
        partitioned=draw(st.sampled_from((False, False, False, True, True, None))),
        instances=tuple(
            Instance(
                uuid=DeviceUUID(f"MIG-{uuid}-{at}"),
                profile=size,
                memory_mib=None if at == unknown else INSTANCE_SIZES[size],
            )
            for at, size in enumerate(sizes)
        ),
        load=draw(st.sampled_from(LOADS)),
        unavailable=draw(st.sampled_from((None, None, None, SICK))),
    )


@st.composite
def inventories(draw: st.DrawFn, host_id: str = "lab") -> HostInventory:
    """What one host's agent saw, at the beginning of time or long before."""
    count = draw(st.integers(0, 4))
    return HostInventory(
        host_id=HostId(host_id),
        observed_at=draw(st.sampled_from((T0, T0, T0, after(-59), after(-61)))),
        devices=tuple(draw(devices(f"GPU-{host_id}-{at}", host_id)) for at in range(count)),
        simulated=draw(st.sampled_from((True, True, True, True, False))),
    )


@st.composite
def full_inventories(draw: st.DrawFn) -> HostInventory:
    """What one host's agent saw, with every field in use."""
    bare = draw(inventories())
    full = [
        replace(
            item,
            load=draw(loads()),
            unavailable=draw(maybe(unavailables())),
            instances=tuple(
                replace(each, used_mib=draw(maybe(mibs)), compute_slices=draw(maybe(mibs)))
                for each in item.instances
            ),
        )
        for item in bare.devices
    ]
    return replace(
        bare,
        observed_at=draw(times),
        devices=tuple(full),
        driver_version=draw(maybe(texts)),
        trouble=draw(maybe(texts)),
    )


@st.composite
def sites(draw: st.DrawFn) -> tuple[HostInventory, ...]:
    """One or two hosts."""
    hosts = draw(st.sampled_from((("lab",), ("lab", "tower"))))
    return tuple(draw(inventories(host)) for host in hosts)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """What a site decides about its devices."""
    rule = st.builds(
        DeviceRule,
        select=st.sampled_from(("*", "*", "*", "#0", "T4", "a100", "GPU-lab-0")),
        modes=st.sampled_from([frozenset(PLACED_MODES)] * 8 + [frozenset({mode}) for mode in Mode]),
        headroom_mib=st.sampled_from((1, 512, 512, 9000)),
    )
    return Policy(
        rules=tuple(draw(st.lists(rule, min_size=1, max_size=2))),
        placement=draw(st.sampled_from(PlacementPolicy)),
    )


@st.composite
def cordons(draw: st.DrawFn, hosts: tuple[HostInventory, ...]) -> dict[str, str]:
    """Some devices and instances of a site, cordoned."""
    known = [
        str(uuid)
        for host in hosts
        for item in host.devices
        for uuid in (item.uuid, *(each.uuid for each in item.instances))
    ]
    chosen = draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
    return dict.fromkeys(chosen, "fan")


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """Any slice, whether or not a device like this exists."""
    return Slice(
        host_id=HostId(draw(texts)),
        device_uuid=DeviceUUID(draw(texts)),
        mode=draw(st.sampled_from(Mode)),
        unit=draw(texts),
        memory_mib=draw(maybe(mibs)),
        compute_percent=draw(maybe(st.integers(1, 100))),
        instance_profile=draw(maybe(texts)),
        model=draw(texts),
    )


@st.composite
def reasons(draw: st.DrawFn) -> Reason:
    """Any code with any values that could be stored."""
    code = draw(st.sampled_from(Code))
    return Reason(code, {name: draw(json_values) for name in sorted(VALUES_OF[code])})


server_keys = st.builds(
    ServerKey,
    hub_id=st.text("ab:0123", max_size=4),
    user=st.text("ab:0123/", max_size=4),
    server=st.text("ab:0123/", max_size=4),
)
