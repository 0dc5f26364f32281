"""Why a request is refused, in English, as data.

Written for a tired student: the rule, the number, what to do next; and, where only the staff can
help, words to pass on to them.
"""

from collections.abc import Mapping
from typing import Final

from gpuspawner.catalogue.lines import Line, Part
from gpuspawner.domain.reasons import Code

_MAY_CHOOSE: Final = "You can choose: {known}."
_FREE: Final = Line("Free right now: {alternatives}.", needs=("alternatives",))

REFUSALS: Final[Mapping[Code, tuple[Part, ...]]] = {
    Code.OPTION_UNKNOWN: (
        (Line("There is no option “{key}”."),),
        (Line("The options are: {known}.", needs=("known",)),),
    ),
    Code.OPTION_TYPE: ((Line("The option “{key}” must be {expected}, but {got} was sent."),),),
    Code.PROFILE_UNKNOWN: (
        (Line("There is no profile “{got}” (option “{key}”)."),),
        (
            Line(_MAY_CHOOSE, needs=("known",)),
            Line("No profile is open to you yet; please ask the staff to add you to a group."),
        ),
    ),
    Code.IMAGE_UNKNOWN: (
        (Line("The image “{got}” cannot be chosen here (option “{key}”)."),),
        (
            Line(_MAY_CHOOSE, needs=("known",)),
            Line("Leave the image out to get the usual one."),
        ),
    ),
    Code.QUERY_PRESELECTS: (
        (
            Line(
                "A link can only preselect a choice; it never starts a server with a GPU. "
                "Check the choice in the form and start the server there."
            ),
        ),
    ),
    Code.PROFILE_NOT_ALLOWED: (
        (
            Line(
                "“{profile}” is for members of these groups: {groups}. "
                "If you belong there, ask the staff to add you.",
                needs=("groups",),
            ),
            Line("“{profile}” is not open to you. If it should be, ask the staff."),
        ),
        (Line("You can choose: {alternatives}.", needs=("alternatives",)),),
    ),
    Code.NOTHING_FITS: (
        (
            Line(
                "None of the {devices} GPUs here fits “{profile}”: they are too small, of another "
                "model, or handed out in another way. Waiting does not change that.",
                needs=("devices",),
                one="The one GPU here does not fit “{profile}”: it is too small, of another "
                "model, or handed out in another way. Waiting does not change that.",
                count="devices",
            ),
            Line("There is no GPU here that could serve “{profile}”."),
        ),
        (
            _FREE,
            Line("Please tell the staff: “no GPU fits the profile {profile}”."),
        ),
    ),
    Code.CAP_NOT_HELD: (
        (
            Line(
                "“{profile}” is not handed out on these GPUs: nothing there enforces the memory "
                "limit of a share yet."
            ),
        ),
        (
            _FREE,
            Line("Please tell the staff: “the memory limit of {profile} is not enforced”."),
        ),
    ),
    Code.SERVER_HOLDS: (
        (
            Line(
                "The server “{server}” already has a session with “{profile}”; it is {state}.",
                needs=("server",),
            ),
            Line("The default server already has a session with “{profile}”; it is {state}."),
        ),
        (Line("Stop that server, wait until it has ended, and try again."),),
    ),
    Code.CONTAINER_UNKNOWN: (
        (
            Line(
                "It is not known right now what the container of the server “{server}” is doing, "
                "so nothing is changed.",
                needs=("server",),
            ),
            Line(
                "It is not known right now what the container of the default server is doing, "
                "so nothing is changed."
            ),
        ),
        (
            Line(
                "Try again in a minute. If it stays like this, tell the staff the name of the "
                "server and this message."
            ),
        ),
    ),
    Code.SITE_SETTING: (
        (
            Line(
                "This server cannot start because of a setting of this site. Trying again does "
                "not help; please pass this on to the staff:"
            ),
        ),
        (
            Line("{setting}: {why}", needs=("setting", "why"), own_line=True),
            Line("{setting}", needs=("setting",), own_line=True),
        ),
    ),
    Code.ALL_IN_USE: (
        (
            Line(
                "All {total} places of “{profile}” are taken: {in_use} in use, {unavailable} "
                "unavailable.",
                needs=("total", "in_use", "unavailable"),
            ),
            Line(
                "All {total} places of “{profile}” are unavailable right now.",
                needs=("total", "unavailable"),
                one="The one place of “{profile}” is unavailable right now.",
                count="total",
            ),
            Line(
                "All {total} places of “{profile}” are in use.",
                needs=("total",),
                one="The one place of “{profile}” is in use.",
                count="total",
            ),
            Line("“{profile}” is not free right now."),
        ),
        (
            Line(
                "Free right now: {alternatives}. Or try again when somebody stops a server.",
                needs=("alternatives", "in_use"),
            ),
            _FREE,
            Line("Try again when somebody stops a server.", needs=("in_use",)),
            Line("Try again later; the staff can see why."),
        ),
    ),
    Code.LEDGER_AWAY: (
        (
            Line(
                "The record of who uses which GPU does not answer right now, so no GPU can be "
                "handed out. Servers without a GPU still start. Try again in a few minutes; if it "
                "stays like this, tell the staff: “the GPU ledger does not answer”."
            ),
        ),
    ),
    Code.ENGINE_AWAY: (
        (
            Line(
                "The machine that runs the servers does not answer right now, so no server can be "
                "started or stopped. Try again in a few minutes; if it stays like this, tell the "
                "staff: “the container engine does not answer”."
            ),
        ),
    ),
    Code.INVENTORY_AWAY: (
        (
            Line(
                "No GPU can be handed out right now: the last report about the GPUs is from "
                "{since}.",
                needs=("since",),
            ),
            Line("No GPU can be handed out right now: no report about the GPUs has come yet."),
        ),
        (
            Line(
                "Servers without a GPU still start. Try again in a few minutes; if it stays like "
                "this, tell the staff: “the GPU agent does not report”."
            ),
        ),
    ),
    Code.POLICY_AWAY: (
        (
            Line(
                "What you may use cannot be checked right now, so no GPU can be handed out. "
                "Servers without a GPU still start. Try again in a few minutes; if it stays like "
                "this, tell the staff: “GPU permissions cannot be checked”."
            ),
        ),
    ),
}
