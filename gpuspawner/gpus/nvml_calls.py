"""Calls into NVML that never raise: a failing one is an unknown value, and its code is kept.

The binding arrives as an argument: only `gpuspawner.gpus.nvml` imports it.
"""

from dataclasses import dataclass, field
from typing import Any

# Codes by their NVML names (gpu mechanics 1.2), spelled here because the binding comes late.
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999
NO_ANSWER = 0
"""The binding raises ``NVMLError(0)`` where the library had nothing to say (gpu mechanics 1.7)."""

LOST_CODES = frozenset({GPU_IS_LOST, UNKNOWN})
OLDER_DRIVER = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
NO_ACCESS = frozenset({NO_PERMISSION, OPERATING_SYSTEM})
# Failures that an answering GPU gives: it, or its driver, says that it has no such thing.
_ANSWERS = frozenset({NO_ANSWER, NOT_SUPPORTED}) | OLDER_DRIVER


@dataclass(slots=True)
class Calls:
    """The calls of one look at one GPU: a failing one is unknown, and its code is kept."""

    nvml: Any
    answered: int = 0
    codes: set[int] = field(default_factory=set)

    def call(self, name: str, *arguments: Any) -> tuple[Any, int | None]:
        """Return (value, None), or (None, code) when the call failed. Never raises.

        A missing symbol is code 13 however it shows: in the library, in an older binding, or as
        the binding's own mismatch error (gpu mechanics 1.2).
        """
        code: int
        try:
            value = getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            code = error.value
        except (AttributeError, getattr(self.nvml, "NVMLLibraryMismatchError", AttributeError)):
            code = FUNCTION_NOT_FOUND
        except ValueError:  # bytes that are no text, from a board that is not well
            code = NO_ANSWER
        else:
            self.answered += 1
            return value, None
        self.codes.add(code)
        return None, code

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the value, or ``None`` when the call failed."""
        return self.call(name, *arguments)[0]

    @property
    def deaf(self) -> bool:
        """Whether the GPU answered nothing at all, not even that it lacks something."""
        return not self.answered and bool(self.codes) and not self.codes & _ANSWERS

    @property
    def stale(self) -> bool:
        """Whether a new NVML session may help (gpu mechanics 1.11); it gives nobody access."""
        return bool(self.codes & {UNINITIALIZED, GPU_IS_LOST}) or (
            self.deaf and not self.codes <= NO_ACCESS
        )
