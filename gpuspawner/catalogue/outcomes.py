"""How a start failed and how a session ended, in English, as data."""

from collections.abc import Mapping
from typing import Final

from gpuspawner.catalogue.lines import Line, Part
from gpuspawner.domain.reasons import Code


def _failed(first: str) -> tuple[Part, ...]:
    """Tell a failure that carries a ``detail`` from the engine."""
    return (
        (Line(first),),
        (
            Line(
                "Please try again. If it fails again, show the staff this message:",
                needs=("detail",),
            ),
            Line("Please try again. If it fails again, tell the staff."),
        ),
        (Line("{detail}", needs=("detail",), own_line=True),),
    )


OUTCOMES: Final[Mapping[Code, tuple[Part, ...]]] = {
    Code.IMAGE_MISSING: (
        (
            Line(
                "The image “{image}” is not on this machine. Choose another image, or tell the "
                "staff which one is missing."
            ),
        ),
    ),
    Code.PULL_FAILED: _failed("The image “{image}” could not be fetched."),
    Code.PULL_TOO_LONG: (
        (
            Line(
                "Fetching the image “{image}” took longer than {seconds} seconds.",
                one="Fetching the image “{image}” took longer than {seconds} second.",
                count="seconds",
            ),
        ),
        (
            Line(
                "Try again later or choose another image; if it stays like this, ask the staff to "
                "fetch it in advance."
            ),
        ),
    ),
    Code.CREATE_FAILED: _failed("The container of the server could not be created."),
    Code.START_FAILED: _failed("The container of the server could not be started."),
    Code.DIED_AT_BOOT: (
        (
            Line(
                "The server ended while it was starting (exit code {exit_code}).",
                needs=("exit_code",),
            ),
            Line("The server ended while it was starting."),
        ),
        (
            Line(
                "Try again or choose another image. If it happens again, show the staff its last "
                "lines:",
                needs=("log",),
            ),
            Line("Try again or choose another image. If it happens again, tell the staff."),
        ),
        (Line("{log}", needs=("log",), own_line=True),),
    ),
    Code.NOT_READY: (
        (
            Line(
                "The server started but did not answer within {seconds} seconds.",
                one="The server started but did not answer within {seconds} second.",
                count="seconds",
            ),
        ),
        (Line("Try again or choose another image. If it happens again, tell the staff."),),
    ),
    Code.INTERNAL: (
        (
            Line(
                "Something went wrong on our side. Try again; if it happens again, tell the staff "
                "when it happened."
            ),
        ),
    ),
    Code.STOPPED: ((Line("The server was stopped."),),),
    Code.EXITED: (
        (
            Line("The server ended by itself (exit code {exit_code}).", needs=("exit_code",)),
            Line("The server ended by itself."),
        ),
    ),
    Code.OUT_OF_MEMORY: (
        (
            Line(
                "The server was ended because it used up its main memory (RAM, not GPU memory). "
                "Load less data at once, or ask the staff for more memory."
            ),
        ),
    ),
    Code.REMOVED: (
        (
            Line(
                "The container of the server was removed from outside JupyterHub. You can start "
                "the server again; if this is a surprise, ask the staff."
            ),
        ),
    ),
    Code.GIVEN_UP: ((Line("The request was given up before the server ran."),),),
    Code.START_EXPIRED: (
        (
            Line(
                "The server did not run within {seconds} seconds of getting its GPU, so the GPU "
                "went back.",
                one="The server did not run within {seconds} second of getting its GPU, so the "
                "GPU went back.",
                count="seconds",
            ),
        ),
        (Line("Start it again; if it happens again, tell the staff."),),
    ),
    Code.FORGOTTEN: (
        (
            Line(
                "The server still ran, but JupyterHub had not known it for {minutes} minutes, so "
                "nobody could reach it. It was stopped, and the GPU went back.",
                one="The server still ran, but JupyterHub had not known it for {minutes} minute, "
                "so nobody could reach it. It was stopped, and the GPU went back.",
                count="minutes",
            ),
        ),
        (Line("Your files are kept. Start it again."),),
    ),
    Code.FORCED: (
        (
            Line("{actor}, an administrator, ended this session.", needs=("actor",)),
            Line("An administrator ended this session."),
        ),
        (Line("Their note: {note}", needs=("note",), own_line=True),),
    ),
}
