"""The state file of a simulated lab: hot reload, sharing, and everything a person may mistype."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuspawner.domain.devices import Trouble
from gpuspawner.gpus import simulated_state
from gpuspawner.gpus.simulated import SimulatedInventory
from tests.gpus.simulated_host import (
    A100,
    H100,
    HOST,
    LAB,
    TURING,
    device,
    inventory,
    state,
)

__all__ = ["inventory", "state"]


def write(path, document):
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def test_no_file_is_the_untouched_lab_and_none_is_made(inventory, state, at):
    assert inventory.look(at()) == SimulatedInventory(HOST, "mixed-lab").look(at())
    assert not state.exists()


def test_a_file_is_taken_in_at_the_next_look_even_within_one_tick(inventory, state, at):
    for lost in (True, False, True):
        write(state, {"devices": {H100: {"lost": lost}}})
        os.utime(state, (1, 1))  # a file system's clock may stand still between two changes
        assert bool(device(inventory, at, H100).unavailable) is lost


def test_everything_a_file_can_say(inventory, state, at):
    write(
        state,
        {
            "preset": "mixed-lab",
            "trouble": None,
            "devices": {
                A100: {"layout": ["3g.20gb:4"], "generation": 7},
                H100: {"xid": 79, "partitioned": True, "layout": ["7g.80gb"], "generation": 1},
            },
            "loads": {TURING: {"used_mib": 100, "busy_percent": None}},
        },
    )
    seen = {d.uuid: d for d in inventory.look(at()).devices}
    assert [p.profile for p in seen[A100].instances] == ["3g.20gb"]
    assert [p.profile for p in seen[H100].instances] == ["7g.80gb"]
    assert seen[H100].unavailable.trouble is Trouble.SICK
    assert (seen[TURING].load.used_mib, seen[TURING].load.busy_percent) == (100, None)


def test_a_change_by_method_is_seen_by_another_process_and_after_a_restart(inventory, state, at):
    inventory.relayout(A100, ["3g.20gb", "3g.20gb"])
    inventory.set_load(TURING, used_mib=77)
    inventory.lose(H100)
    inventory.trouble("Gone.")
    other = SimulatedInventory(HOST, "mixed-lab", state)
    assert other.look(at()) == inventory.look(at())
    other.trouble(None)
    other.return_(H100)
    assert inventory.look(at()) == other.look(at())
    assert inventory.look(at()).trouble is None
    assert device(inventory, at, TURING).load.used_mib == 77
    assert [path.name for path in state.parent.iterdir()] == [state.name]


def test_the_file_says_only_what_differs(inventory, state):
    inventory.lose(H100)
    inventory.return_(H100)
    assert json.loads(state.read_text()) == {"preset": "mixed-lab", "devices": {}, "loads": {}}
    inventory.xid(H100, 79)
    assert json.loads(state.read_text())["devices"] == {H100: {"xid": 79}}


def test_a_file_that_is_gone_is_the_untouched_lab(inventory, state, at):
    before = inventory.look(at())
    inventory.lose(H100)
    state.unlink()
    assert inventory.look(at()) == before


def test_a_file_may_name_the_lab(state, at):
    write(state, {"preset": "four-a100", "trouble": "Gone."})
    seen = SimulatedInventory(HOST, state).look(at())
    assert (len(seen.devices), seen.trouble) == (4, "Gone.")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "'preset' must name a simulated lab"),
        ({"preset": "x"}, "no simulated lab 'x'; known are four-a100"),
        ("{", "not JSON"),
    ],
)
def test_a_file_that_names_no_lab_is_refused(state, document, sentence):
    write(state, document)
    with pytest.raises(ValueError, match=sentence):
        SimulatedInventory(HOST, state)


BAD = [
    ("{", "it is not JSON"),
    ("[]", "it must be one JSON object"),
    ("[" * 100_000, "nested too deeply"),
    ("9" * 5000, "it is not JSON"),
    ({"device": {}}, "'device' is not a key here; known are preset, trouble, devices, loads"),
    ({"preset": "four-a100"}, "it is for the lab 'four-a100', and this one is 'mixed-lab'"),
    ({"trouble": 3}, "'trouble' must be a sentence or null"),
    ({"devices": []}, "'devices' must be an object"),
    ({"devices": {H100: 1}}, "must be an object"),
    ({"devices": {"GPU-x": {}}}, "there is no GPU 'GPU-x'"),
    ({"devices": {H100: {"Lost": True}}}, "'Lost' is not a key here; known are lost, xid"),
    ({"devices": {H100: {"lost": 1}}}, "'lost' must be true or false"),
    ({"devices": {H100: {"partitioned": None}}}, "'partitioned' must be true or false"),
    ({"devices": {H100: {"xid": "79"}}}, "'xid' must be a whole number from 1 to 999"),
    ({"devices": {H100: {"generation": True}}}, "'generation' must be a whole number"),
    ({"devices": {H100: {"layout": "7g.80gb"}}}, "'layout' must be a list of instance profiles"),
    ({"devices": {H100: {"layout": ["7g.80gb"], "generation": 1}}}, "is not partitioned"),
    ({"devices": {A100: {"layout": ["7g.40gb"]}}}, "needs an unused 'generation'"),
    ({"devices": {A100: {"partitioned": False}}}, "needs an unused 'generation'"),
    ({"devices": {A100: {"layout": ["8g.1gb"], "generation": 1}}}, "'8g.1gb' is not an instance"),
    ({"devices": {A100: {"layout": ["7g.40gb"] * 2, "generation": 1}}}, "7g.40gb does not fit"),
    ({"devices": {TURING: {"partitioned": True}}}, "cannot be partitioned"),
    ({"loads": {"MIG-x": {"used_mib": 1}}}, "there is no GPU or instance 'MIG-x'"),
    ({"loads": {TURING: {"used_mib": "1"}}}, "'used_mib' must be a whole number"),
    ({"loads": {TURING: {"used_mb": 1}}}, "'used_mb' is not a key here"),
    ({"loads": {A100: {"used_mib": 1}}}, "set the loads of its instances"),
    ({"loads": {TURING: {"busy_percent": float("nan")}}}, "'busy_percent' must be a whole"),
]


@pytest.mark.parametrize(("document", "sentence"), BAD, ids=[item[1] for item in BAD])
def test_a_bad_file_is_trouble_in_one_sentence_and_the_last_good_state_is_kept(
    inventory, state, at, document, sentence
):
    inventory.relayout(A100, ["3g.20gb", "3g.20gb"])
    before = inventory.look(at())
    good = state.read_text()
    write(state, document)

    seen = inventory.look(at())

    assert seen.trouble.startswith("The state file state.json is not usable: ")
    assert sentence in seen.trouble
    assert "\n" not in seen.trouble
    assert len(seen.trouble) < 400
    assert [d.uuid for d in seen.devices] == [d.uuid for d in before.devices]
    assert [p.uuid for p in seen.devices[2].instances] == [
        p.uuid for p in before.devices[2].instances
    ]
    assert {d.unavailable.trouble for d in seen.devices} == {Trouble.UNKNOWN}
    with pytest.raises(ValueError, match="is not usable"):
        inventory.lose(H100)  # a person's file is not overwritten
    assert state.read_text() != good
    write(state, good)
    assert inventory.look(at()) == before


def test_a_file_that_cannot_be_read_is_trouble(inventory, state, at):
    state.mkdir()
    assert "cannot be read" in inventory.look(at()).trouble
    state.rmdir()
    assert inventory.look(at()).trouble is None


def test_bytes_that_are_no_text_are_trouble(inventory, state, at):
    state.write_bytes(b"\xff\xfe{}")
    assert "is not usable" in inventory.look(at()).trouble


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.dictionaries(
    st.sampled_from(["lost", "xid", "partitioned", "layout", "generation", "used_mib", "x"]), JSON
)
TABLE = st.dictionaries(st.sampled_from([H100, A100, TURING, "GPU-x"]), ENTRY | JSON, max_size=3)
DOCUMENT = JSON | st.fixed_dictionaries(
    {}, optional={"trouble": JSON, "devices": TABLE | JSON, "loads": TABLE | JSON, "preset": JSON}
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=50) | DOCUMENT.map(lambda document: json.dumps(document).encode()))
def test_no_file_makes_a_look_raise(state, at, content):
    state.write_bytes(content)
    inventory = SimulatedInventory(HOST, "mixed-lab", state)
    seen = inventory.look(at())
    assert len(seen.devices) == 4
    assert seen.trouble is None or seen.trouble


LAYOUT = st.sampled_from([(), ("7g.40gb",), ("3g.20gb:4", "2g.10gb"), ("1g.5gb+me",)])


@settings(deadline=None)
@given(
    lost=st.booleans(),
    xid=st.none() | st.integers(1, 999),
    layout=LAYOUT,
    trouble=st.none() | st.text(min_size=1),
    used_mib=st.none() | st.integers(0, 11264),
)
def test_what_is_spelled_is_read_back(lost, xid, layout, trouble, used_mib):
    start = simulated_state.initial(LAB)
    a100 = LAB.devices[A100]
    changed = a100.with_layout(start.devices[A100], layout)
    state = simulated_state.State(
        {**start.devices, A100: changed, H100: simulated_state.DeviceState(lost=lost, xid=xid)},
        {TURING: {"used_mib": used_mib}},
        trouble,
    )
    assert simulated_state.parse(simulated_state.dump(state, LAB), LAB) == state
