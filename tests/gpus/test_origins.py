"""What the kernel says of processes: of real ones, and of texts as other machines have them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuspawner.domain.attribution import Origin
from gpuspawner.gpus.origins import Origins, container_ids
from tests.rig.processes import wait_for

A, B = "0123456789abcdef" * 4, "fedcba9876543210" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"12:pids:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/docker/{A}\n", (A,)),
        (f"0::/system.slice/docker-{A}.scope\n", (A,)),
        (f"0::/jupyter.slice/docker-{A}.scope\n", (A,)),
        (f"0::/../{A}\n", (A,)),  # seen from a control group namespace of its own
        (f"4:memory:/docker/{A}/docker/{B}\n", (A, B)),
        (f"0::/system.slice/docker-{A}.scope/docker/{B}\n", (A, B)),
        (f"0::/user.slice/user-1000.slice/user@1000.service/x/docker-{A}.scope\n", (A,)),
        (f"0::/machine.slice/libpod-{A}.scope/container\n", (A,)),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{A}.scope\n", (A,)),
        (f"9:cpu:/\n8:pids:/docker/{A}\n0::/\n", (A,)),  # a hybrid host
        (f"0::/docker/{A}0\n0::/docker/{A[:-1]}\n0::/docker/{A.upper()}\n", ()),
        ("0::/init.scope\n", ()),
        ("0::/\n", ()),
        ("", ()),
    ],
)
def test_ids_are_found_wherever_an_engine_writes_them(text: str, expected: tuple[str, ...]) -> None:
    assert container_ids(text) == expected


class Proc:
    """A ``/proc`` of texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "stat").write_text("1 (init) S 0")

    def put(
        self, pid: int, *, group: str = f"0::/docker/{A}\n", started: int = 500, parent: int = 1,
        command: str = "python3", line: str = "python3", state: str = "S", flags: int = 0,
    ) -> None:  # fmt: skip
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        numbers = " ".join(["0"] * 4 + [str(flags)] + ["0"] * 12)
        (place / "stat").write_text(f"{pid} ({command}) {state} {parent} {numbers} {started} 9 9")
        (place / "cgroup").write_text(group)
        (place / "cmdline").write_text(line.replace(" ", "\0"))

    def end(self, pid: int) -> None:
        for file in (self.folder / str(pid)).iterdir():
            file.unlink()
        (self.folder / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def test_a_process_is_known_by_number_and_start(proc: Proc) -> None:
    proc.put(7)
    origins = Origins(proc.folder)
    first = Origin(pid=7, started=500, container_ids=(A,), command="python3")
    assert origins.of([7]) == {7: first}
    proc.put(7, started=900, group=f"0::/docker/{B}\n")
    assert origins.of([7]) == {7: Origin(pid=7, started=900, container_ids=(B,), command="python3")}


def test_a_process_that_ended_is_not_there_and_the_others_are(proc: Proc) -> None:
    proc.put(7)
    proc.put(8)
    origins = Origins(proc.folder)
    assert set(origins.of([7, 8])) == {7, 8}
    proc.end(7)
    assert set(origins.of([7, 8, 4711])) == {8}


def test_a_name_with_brackets_and_blanks_is_only_a_name(proc: Proc) -> None:
    proc.put(7, command="a) S 1 (b", started=77)
    assert Origins(proc.folder).of([7])[7] == Origin(
        pid=7, started=77, container_ids=(A,), command="a) S 1 (b"
    )


def test_a_dead_process_whose_group_is_forgotten_is_not_told(proc: Proc) -> None:
    """Its memory is still held, by whom nobody can say; a living one there is the host's."""
    proc.put(7, state="Z", group="0::/\n")
    proc.put(8, state="Z")
    proc.put(9, group="0::/\n")
    proc.put(10, group="0::/\n", flags=0x40444)  # is exiting, and still in order otherwise
    found = Origins(proc.folder).of([7, 8, 9, 10])
    assert {pid: each.container_ids for pid, each in found.items()} == {8: (A,), 9: ()}


KERNEL = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
KERNEL_LINE = (
    f"python3 -m ipykernel_launcher -f /home/ada/.local/share/jupyter/kernel-{KERNEL}.json"
)


def test_a_kernel_and_what_it_started_are_told_by_the_kernels_id(proc: Proc) -> None:
    proc.put(10, line="jupyterhub-singleuser")
    proc.put(11, parent=10, line=KERNEL_LINE)
    proc.put(12, parent=11, line="bash -c train")
    proc.put(13, parent=12, line="python3 train.py")
    proc.put(14, parent=10, line="bash")
    found = Origins(proc.folder).of([10, 11, 12, 13, 14])
    kernels = {pid: each.kernel_id for pid, each in found.items()}
    assert kernels == {10: None, 11: KERNEL, 12: KERNEL, 13: KERNEL, 14: None}


def test_no_kernel_of_another_container_or_of_the_host_is_taken(proc: Proc) -> None:
    proc.put(11, line=KERNEL_LINE, group=f"0::/docker/{B}\n")
    proc.put(12, parent=11)
    proc.put(13, line=KERNEL_LINE, group="0::/\n")
    proc.put(14, line="x kernel-../../etc/passwd.json kernel-<b>.json")
    proc.put(15, parent=15)  # no end to its parents
    found = Origins(proc.folder).of([12, 13, 14, 15])
    assert {each.kernel_id for each in found.values()} == {None}


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x) S", "7 (x) S one " + "0 " * 20, "\xff\n"])
def test_garbage_is_no_process(proc: Proc, text: str) -> None:
    proc.put(7)
    (proc.folder / "7" / "stat").write_text(text)
    assert Origins(proc.folder).of([7]) == {}


@contextmanager
def sleeping(*arguments: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()", *arguments], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_real_processes_of_this_machine() -> None:
    origins = Origins()
    with sleeping() as pid:
        found = origins.of([pid, os.getpid()])
        assert set(found) == {pid, os.getpid()}
        assert found[pid].started >= found[os.getpid()].started
        assert found[pid].command.startswith("python")
    assert set(origins.of([pid, os.getpid()])) == {os.getpid()}


def test_who_started_after_the_list_was_made_has_only_got_the_number(proc: Proc) -> None:
    proc.put(7, started=500)
    proc.put(8, started=501)
    assert set(Origins(proc.folder).of([7, 8], not_after=500)) == {7}


def test_a_process_of_now_is_younger_than_a_list_of_before() -> None:
    listed = Origins.ticks()
    while Origins.ticks() <= listed:
        pass
    with sleeping() as pid:
        assert set(Origins().of([pid, os.getpid()], not_after=listed)) == {os.getpid()}
        assert set(Origins().of([pid], not_after=Origins.ticks())) == {pid}


def test_a_command_line_that_cannot_be_read_delays_nobody_and_is_read_later(proc: Proc) -> None:
    """It takes a lock of the process's memory, which the driver may hold for ever."""
    proc.put(11, line=KERNEL_LINE)
    (proc.folder / "11" / "cmdline").unlink()
    os.mkfifo(proc.folder / "11" / "cmdline")  # to open it waits for somebody who writes
    origins = Origins(proc.folder)
    assert origins.of([11])[11].kernel_id is None
    proc.put(12, line=KERNEL_LINE)
    began = time.monotonic()
    assert [each.kernel_id for each in origins.of([11, 12]).values()] == [None, None]
    assert time.monotonic() - began < 0.4  # nobody waits for it a second time
    with (proc.folder / "11" / "cmdline").open("wb") as lets_go:
        lets_go.write(KERNEL_LINE.encode())
    wait_for(
        "both kernels to be known",
        lambda: [each.kernel_id for each in origins.of([11, 12]).values()] == [KERNEL] * 2,
    )


def test_where_the_agent_is_not_among_the_hosts_processes_it_says_so(proc: Proc) -> None:
    origins = Origins(proc.folder)
    assert (origins.unavailable() or "").startswith("The agent cannot tell whose processes it sees")
    place = proc.folder / "self" / "ns"
    place.mkdir(parents=True)
    (place / "pid").symlink_to("pid:[4026532345]")
    assert "or in a container with the host's process numbers" in (origins.unavailable() or "")
    (place / "pid").unlink()
    (place / "pid").symlink_to("pid:[4026531836]")
    assert origins.unavailable() is None
    (proc.folder / "1" / "stat").unlink()
    assert "hidepid" in (origins.unavailable() or "")
