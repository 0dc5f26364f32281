"""The shape in which a reason's sentences are kept.

A reason is told in parts. Of each part the first line whose condition holds is said, or none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One or two sentences that are said together, or not at all.

    ``needs`` names values that must be there: not None, not empty, not zero. ``one`` is said
    instead when the value ``count`` is 1. ``own_line`` starts a new line, for text that comes
    from elsewhere.
    """

    text: str
    needs: tuple[str, ...] = ()
    one: str = ""
    count: str = ""
    own_line: bool = False


Part = tuple[Line, ...]
