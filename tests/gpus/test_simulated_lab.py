"""A simulated lab through its methods: what it shows, and how it breaks."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuspawner.domain.devices import HostId, Load, Trouble
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.gpus.nvml import NVMLInventory
from gpuspawner.gpus.simulated import SimulatedInventory

APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
UUID = r"51300000-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def lab(preset="mixed-lab", host="host-a", state=None):
    return SimulatedInventory(HostId(host), preset, state)


def uuids(seen):
    return [device.uuid for device in seen.devices]


def instances(inventory, at, index=2):
    return inventory.look(at()).devices[index].instances


@pytest.mark.parametrize(
    ("preset", "boards"),
    [
        ("four-a100", [("NVIDIA A100-SXM4-40GB", 40960, False)] * 4),
        (
            "mixed-lab",
            [
                ("NVIDIA GeForce RTX 2080 Ti", 11264, False),
                ("NVIDIA GeForce RTX 2080 Ti", 11264, False),
                ("NVIDIA A100-SXM4-40GB", 40960, True),
                ("NVIDIA H100 80GB HBM3", 81559, False),
            ],
        ),
        ("dgx-h100", [("NVIDIA H100 80GB HBM3", 81559, False)] * 8),
    ],
)
def test_presets(at, preset, boards):
    seen = lab(preset).look(at())
    assert [(d.model, d.memory_mib, d.partitioned) for d in seen.devices] == boards
    assert [d.index for d in seen.devices] == list(range(len(boards)))
    assert {d.host_id for d in seen.devices} == {"host-a"}
    assert (seen.host_id, seen.observed_at, seen.simulated) == ("host-a", at(), True)
    assert (seen.trouble, {d.unavailable for d in seen.devices}) == (None, {None})


def test_instances_of_the_mixed_lab(at):
    parts = instances(lab(), at)
    assert [(p.profile, p.memory_mib, p.compute_slices) for p in parts] == [
        ("2g.10gb", 9856, 2)
    ] * 3
    assert len({p.uuid for p in parts}) == 3


def test_uuids_are_plainly_simulated_stable_and_each_hosts_own(at):
    first = lab().look(at())
    assert all(re.fullmatch("GPU-" + UUID, uuid) for uuid in uuids(first))
    assert all(re.fullmatch("MIG-" + UUID, p.uuid) for p in first.devices[2].instances)
    assert lab().look(at()) == first
    others = [lab(host="host-b").look(at()), lab("four-a100").look(at())]
    assert len({*uuids(first), *uuids(others[0]), *uuids(others[1])}) == 12


def test_an_untouched_gpu_is_idle_and_alike_at_each_look(at):
    seen = lab("dgx-h100").look(at())
    for device in seen.devices:
        assert device.load.busy_percent == 0
        assert 0 < device.load.used_mib < 16
        assert 20 < device.load.temperature_c < 45
        assert 60 < device.load.power_w < 100
        assert device.load.power_limit_w == 700.0
    assert lab("dgx-h100").look(at(99)).devices == seen.devices


def test_load_warms_a_gpu(at):
    inventory = lab("four-a100")
    idle, _ = inventory.look(at()).devices[:2]
    inventory.set_load(idle.uuid, used_mib=20000, busy_percent=100)
    busy = inventory.look(at()).devices[0]
    assert (busy.load.used_mib, busy.load.busy_percent) == (20000, 100)
    assert busy.load.temperature_c == idle.load.temperature_c + 40
    assert 340 < busy.load.power_w < 400
    inventory.set_load(idle.uuid, busy_percent=None)
    assert inventory.look(at()).devices[0].load.busy_percent is None
    assert inventory.look(at()).devices[0].load.used_mib == 20000


def test_load_of_an_instance_shows_in_it_and_in_the_sum(at):
    inventory = lab()
    first, second, third = instances(inventory, at)
    inventory.set_load(second.uuid, used_mib=5000)
    device = inventory.look(at()).devices[2]
    assert [p.used_mib for p in device.instances] == [12, 5000, 12]
    assert device.load.used_mib == 5024
    assert device.load.busy_percent is None
    inventory.set_load(second.uuid, used_mib=None)
    assert inventory.look(at()).devices[2].load.used_mib is None
    assert [p.used_mib for p in instances(inventory, at)] == [12, None, 12]
    assert (first.used_mib, third.used_mib) == (12, 12)


def test_a_lost_gpu_stays_and_comes_back(at):
    inventory = lab()
    before = inventory.look(at())
    inventory.lose(before.devices[2].uuid)

    lost = inventory.look(at())

    assert uuids(lost) == uuids(before)
    assert lost.devices[2].unavailable.trouble is Trouble.LOST
    assert lost.devices[2].load == Load()
    assert [p.used_mib for p in lost.devices[2].instances] == [None] * 3
    assert [d for d in lost.devices if d.index != 2] == [d for d in before.devices if d.index != 2]
    inventory.return_(before.devices[2].uuid)
    assert inventory.look(at()) == before


@pytest.mark.parametrize("number", [48, 63, 74, 79, 94, 119, 999])
def test_a_hardware_xid_makes_a_gpu_sick_until_it_is_cleared(at, number):
    inventory = lab()
    before = inventory.look(at())
    uuid = before.devices[3].uuid
    inventory.xid(uuid, number)
    sick = inventory.look(at()).devices[3]
    assert sick.unavailable.trouble is Trouble.SICK
    assert sick.unavailable.detail == f"The driver reported Xid {number}."
    assert sick.unavailable.cleared_by
    assert sick.load == before.devices[3].load
    inventory.xid(uuid, 13)
    assert inventory.look(at()).devices[3] == sick
    inventory.clear(uuid)
    assert inventory.look(at()) == before


@pytest.mark.parametrize("number", APPLICATION_XIDS)
def test_an_xid_of_a_users_program_changes_nothing(at, number):
    inventory = lab()
    before = inventory.look(at())
    inventory.xid(before.devices[0].uuid, number)
    assert inventory.look(at()) == before


def test_trouble_of_the_host_leaves_every_gpu_unknown(at):
    inventory = lab()
    before = inventory.look(at())
    inventory.trouble("The NVIDIA kernel driver is not loaded.")
    seen = inventory.look(at())
    assert seen.trouble == "The NVIDIA kernel driver is not loaded."
    assert uuids(seen) == uuids(before)
    assert {d.unavailable.trouble for d in seen.devices} == {Trouble.UNKNOWN}
    assert {d.load for d in seen.devices} == {Load()}
    assert [p.uuid for p in seen.devices[2].instances] == [
        p.uuid for p in before.devices[2].instances
    ]
    inventory.trouble(None)
    assert inventory.look(at()) == before


def test_a_new_layout_has_new_uuids_and_forgets_old_loads(at):
    inventory = lab()
    uuid = inventory.look(at()).devices[2].uuid
    old = instances(inventory, at)
    inventory.set_load(old[0].uuid, used_mib=5000)

    inventory.relayout(uuid, ["3g.20gb", "3g.20gb"])

    new = instances(inventory, at)
    assert [(p.profile, p.memory_mib, p.used_mib) for p in new] == [("3g.20gb", 20096, 12)] * 2
    assert not {p.uuid for p in new} & {p.uuid for p in old}
    with pytest.raises(ValueError, match="there is no GPU or instance"):
        inventory.set_load(old[0].uuid, used_mib=1)


def test_partitions_are_turned_off_and_on_without_instances(at):
    inventory = lab()
    uuid = inventory.look(at()).devices[2].uuid
    old = {p.uuid for p in instances(inventory, at)}
    inventory.partition(uuid, False)
    device = inventory.look(at()).devices[2]
    assert (device.partitioned, device.instances, device.load.busy_percent) == (False, (), 0)
    inventory.set_load(uuid, used_mib=3000)
    inventory.partition(uuid, True)
    device = inventory.look(at()).devices[2]
    assert (device.partitioned, device.instances, device.load.used_mib) == (True, (), 0)
    inventory.relayout(uuid, ["2g.10gb"] * 3)
    assert not {p.uuid for p in instances(inventory, at)} & old


def test_what_no_hardware_can_do_is_refused_and_changes_nothing(at):
    inventory = lab()
    before = inventory.look(at())
    turing, a100, h100 = (before.devices[index].uuid for index in (0, 2, 3))
    part = before.devices[2].instances[0].uuid
    refusals = [
        (lambda: inventory.relayout(a100, ["3g.20gb", "3g.20gb", "1g.5gb"]), "does not fit beside"),
        (lambda: inventory.relayout(a100, ["3g.40gb"]), "'3g.40gb' is not an instance profile"),
        (lambda: inventory.relayout(h100, ["3g.40gb"]), "turn that on first"),
        (lambda: inventory.partition(turing, True), "cannot be partitioned"),
        (lambda: inventory.lose("GPU-x"), "there is no GPU 'GPU-x' in the simulated lab 'mixed-"),
        (lambda: inventory.xid("GPU-x", 13), "there is no GPU 'GPU-x'"),
        (lambda: inventory.xid(a100, 0), "'xid' must be a whole number from 1 to 999"),
        (lambda: inventory.set_load("GPU-x", used_mib=1), "there is no GPU or instance 'GPU-x'"),
        (
            lambda: inventory.set_load(h100, used_mib=81560),
            "'used_mib' must be a whole number from",
        ),
        (lambda: inventory.set_load(h100, used_mib=-1), "'used_mib' must be a whole number"),
        (lambda: inventory.set_load(h100, busy_percent=101), "'busy_percent' must be a whole"),
        (lambda: inventory.set_load(h100, busy_percent=0.5), "'busy_percent' must be a whole"),
        (lambda: inventory.set_load(part, busy_percent=1), "no hardware tells how busy"),
        (lambda: inventory.set_load(part, used_mib=9857), "from 0 to 9856"),
        (lambda: inventory.set_load(a100, used_mib=1), "set the loads of its instances"),
    ]
    for refused, sentence in refusals:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            refused()
    assert inventory.look(at()) == before


LAYOUTS = [["7g.40gb"], ["3g.20gb", "3g.20gb"], ["2g.10gb"] * 3, ["2g.10gb:4"], [], None, "off"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LAYOUTS), max_size=12))
def test_no_instance_uuid_ever_comes_back(at, steps):
    inventory = lab()
    uuid = inventory.look(at()).devices[2].uuid
    current = {p.uuid for p in instances(inventory, at)}
    ever = set(current)
    for step in steps:
        if step in (None, "off"):
            inventory.partition(uuid, step is None)
        else:
            inventory.partition(uuid, True)
            inventory.relayout(uuid, step)
        current = {p.uuid for p in instances(inventory, at)}
        assert not current & ever
        ever |= current


def test_the_factory_opens_what_is_named(tmp_path, at):
    simulated = open_inventory(HostId("h"), "four-a100", tmp_path / "state.json")
    assert len(simulated.look(at()).devices) == 4
    simulated.close()
    assert isinstance(open_inventory(HostId("h"), None, None), NVMLInventory)


def test_the_factory_names_the_labs_it_knows():
    with pytest.raises(ValueError, match="'x'; known are four-a100, mixed-lab, dgx-h100"):
        open_inventory(HostId("h"), "x", None)
