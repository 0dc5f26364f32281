"""Processes in the state file of a simulated lab: what is kept, and everything that is refused."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.domain.devices import ProcessUse
from gpuspawner.gpus import simulated_state
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.gpus.simulated_processes import SimulatedProcess
from tests.gpus.simulated_host import (
    A100,
    FIRST,
    H100,
    HOST,
    LAB,
    SECOND,
    TURING,
    device,
    inventory,
    see,
    state,
    written,
)

__all__ = ["inventory", "see", "state"]


def entry(**changes):
    return {"pid": 4711, "uuid": TURING, "memory_mib": 2048} | changes


def test_a_change_by_method_is_in_the_file_and_another_object_sees_it(inventory, state, at):
    inventory.run(7, TURING, memory_mib=10, busy_percent=3)
    inventory.run(7, FIRST, memory_mib=None, mps=True)
    other = SimulatedInventory(HOST, "mixed-lab", state)
    assert other.look(at()) == inventory.look(at())
    assert written(state) == [
        {"pid": 7, "uuid": TURING, "memory_mib": 10, "busy_percent": 3, "mps": False},
        {"pid": 7, "uuid": FIRST, "memory_mib": None, "busy_percent": None, "mps": True},
    ]
    other.run(8, H100, memory_mib=1)
    other.end(7)
    assert inventory.look(at()) == other.look(at())
    assert [use.pid for use in device(inventory, at, H100).processes] == [8]
    assert device(inventory, at, TURING).processes == ()


def test_a_person_may_leave_out_what_is_usual(state, see):
    processes = [entry(), entry(uuid=FIRST), entry(pid=1, memory_mib=None, busy_percent=None)]
    state.write_text(json.dumps({"processes": processes}))
    assert see(TURING).processes == (
        ProcessUse(pid=1),
        ProcessUse(pid=4711, memory_mib=2048, busy_percent=0),
    )
    assert see(A100).instances[0].processes == (ProcessUse(pid=4711, memory_mib=2048),)


def test_the_state_file_of_the_documentation_is_usable(state, see):
    """The example in the module's docstring, but for the UUIDs that nobody can know."""
    example = re.search(r'"processes": (\[.*?\])\}', simulated_state.__doc__, re.DOTALL)
    text = example.group(1).replace("GPU-… or MIG-…", H100)
    state.write_text(f'{{"processes": {text}}}')
    assert see(H100).processes == (ProcessUse(pid=4711, memory_mib=2048, busy_percent=80),)


AT = "'processes', entry 1"
ON = f"{TURING}, process 4711"
HINT = " (a number, or null for an unknown reading)"
BAD = [
    ({}, "'processes' must be a list with one object for each process, not an object"),
    (None, "'processes' must be a list with one object for each process, not null"),
    ([entry(pid=1), 3], "'processes', entry 2: must be an object, not 3"),
    ([[[]]], f"{AT}: must be an object, not a list"),
    (
        [entry(memory=1)],
        f"{AT}: 'memory' is not a key here; known are pid, uuid, memory_mib, busy_percent, mps",
    ),
    ([{}], f"{AT}: 'pid' must be a whole number from 1 to 2147483647, not null"),
    ([entry(pid=0)], f"{AT}: 'pid' must be a whole number from 1 to 2147483647, not 0"),
    ([entry(pid=True)], f"{AT}: 'pid' must be a whole number from 1 to 2147483647, not True"),
    ([entry(pid="7" * 99)], f"{AT}: 'pid' must be a whole number from 1 to 2147483647, not '777"),
    ([{"pid": 1}], f"{AT}: 'uuid' must name a GPU or an instance, not null"),
    ([entry(uuid=[TURING])], f"{AT}: 'uuid' must name a GPU or an instance, not a list"),
    (
        [{"pid": 1, "uuid": TURING}],
        f"{AT}: 'memory_mib' is missing; null is for an unknown reading",
    ),
    ([entry(mps=1)], f"{AT}: 'mps' must be true or false, not 1"),
    ([entry(mps=None)], f"{AT}: 'mps' must be true or false, not null"),
    ([entry(uuid="MIG-x")], "there is no GPU or instance 'MIG-x' for process 4711 to run on"),
    ([entry(uuid=A100)], f"{A100} is partitioned: processes run on its instances"),
    ([entry(), entry(memory_mib=1)], f"{ON}: must be listed once, and is listed again"),
    (
        [entry(memory_mib=-1)],
        f"{ON}: 'memory_mib' must be a whole number from 0 to 11264{HINT}, not -1",
    ),
    (
        [entry(memory_mib="9")],
        f"{ON}: 'memory_mib' must be a whole number from 0 to 11264{HINT}, not '9'",
    ),
    (
        [entry(uuid=FIRST, memory_mib=9857)],
        f"{FIRST}, process 4711: 'memory_mib' must be a whole number from 0 to 9856{HINT}, not 985",
    ),
    (
        [entry(busy_percent=101)],
        f"{ON}: 'busy_percent' must be a whole number from 0 to 100{HINT}, not 101",
    ),
    (
        [entry(busy_percent=float("inf"))],
        f"{ON}: 'busy_percent' must be a whole number from 0 to 100{HINT}, not inf",
    ),
    (
        [entry(uuid=FIRST, busy_percent=0)],
        f"{FIRST}, process 4711: no hardware tells how busy a process on an instance is",
    ),
    (
        [entry(memory_mib=9000), entry(pid=2, memory_mib=9000)],
        f"{TURING}: the 'memory_mib' of its processes must be 11264 together at most, not 18000",
    ),
]


@pytest.mark.parametrize(("processes", "sentence"), BAD, ids=[item[1] for item in BAD])
def test_a_bad_entry_is_trouble_in_one_sentence(state, inventory, at, processes, sentence):
    state.write_text(json.dumps({"processes": processes}))
    seen = inventory.look(at())
    assert seen.trouble.startswith(f"The state file state.json is not usable: {sentence}")
    assert len(seen.trouble) < 300
    with pytest.raises(ValueError, match="is not usable"):
        inventory.end(1)  # a person's file is not overwritten


def test_what_no_process_can_be_is_refused_and_changes_nothing(state, inventory, at):
    inventory.run(1, FIRST, memory_mib=9000)
    before = inventory.look(at()), state.read_text()
    refusals = [
        ((0, H100), {}, "'pid' must be a whole number from 1 to 2147483647, not 0"),
        ((1, A100), {}, "processes run on its instances"),
        ((1, "GPU-x"), {}, "there is no GPU or instance 'GPU-x' for process 1 to run on"),
        ((1, FIRST), {"busy_percent": 0}, "no hardware tells how busy"),
        ((1, H100), {"busy_percent": 0.5}, "from 0 to 100"),
        ((1, H100), {"memory_mib": 81560}, "from 0 to 81559"),
        ((1, H100), {"mps": None}, "'mps' must be true or false"),
        ((2, FIRST), {"memory_mib": 857}, "must be 9856 together at most, not 9857"),
    ]
    for place, what, sentence in refusals:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            inventory.run(*place, **({"memory_mib": 1} | what))
    assert (inventory.look(at()), state.read_text()) == before


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([[]])
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "pid": st.integers(1, 5) | JSON,
        "uuid": st.sampled_from([TURING, A100, FIRST]) | JSON,
        "memory_mib": st.integers(0, 9856) | JSON,
        "busy_percent": st.integers(0, 100) | JSON,
        "mps": st.booleans() | JSON,
        "x": JSON,
    },
)


@settings(deadline=None)
@given(st.lists(ENTRY | JSON, max_size=4) | JSON)
def test_no_list_is_more_than_refused(processes):
    text = json.dumps({"processes": processes})
    try:
        state = simulated_state.parse(text, LAB)
    except ValueError as error:
        sentence = str(error)
    else:
        sentence = "none"
        assert simulated_state.parse(simulated_state.dump(state, LAB), LAB) == state
    assert sentence.isprintable()


PLACES = st.sampled_from([TURING, H100, FIRST, SECOND])
RUNNING = st.dictionaries(
    st.tuples(st.integers(1, 2**31 - 1), PLACES),
    st.tuples(st.none() | st.integers(0, 9856), st.none() | st.integers(0, 100), st.booleans()),
    max_size=8,
)


@settings(deadline=None)
@given(RUNNING)
def test_what_is_spelled_is_read_back(running):
    items = [
        SimulatedProcess(
            pid=pid,
            uuid=uuid,
            memory_mib=None if mib is None else mib // 8,
            busy_percent=busy if uuid in LAB.devices else None,
            mps=mps,
        )
        for (pid, uuid), (mib, busy, mps) in running.items()
    ]
    start = simulated_state.initial(LAB)
    state = simulated_state.State(start.devices, {}, None, tuple(items))
    assert simulated_state.parse(simulated_state.dump(state, LAB), LAB) == state
