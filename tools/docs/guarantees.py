"""The page of guarantees: what holds, and the tests that prove it, read from their markers.

A test proves a guarantee by ``@pytest.mark.proves("P2", "R3")`` on the function, on its class, or
by ``pytestmark`` for a whole module. The markers are read from the source, without importing it.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.docs.guarantee_texts import (
    GUARANTEES,
    NOT_YET,
    PROMISES,
    RELIABILITY,
    SECURITY,
    Guarantee,
)

ROOT: Final = Path(__file__).resolve().parents[2]
_HEAD: Final = """
# Guarantees

What gpuspawner promises, and for each promise the tests that prove it. A run of the whole suite
fails if a promise has no test that passed, or if one of its tests was skipped.

In the code, in the tests and in the invariant checker the promises are named by their ids.
"""
_SECTIONS: Final = {
    "Promises": PROMISES,
    "When things go wrong": RELIABILITY,
    "Who may do what": SECURITY,
}
# Where a docstring says which fact or case it is about, by a number that no reader knows.
_REFERENCE: Final = re.compile(r" \((?:case \d+|moby \d+|[A-Z]\d+(?:, [A-Z]\d+)*)\)")
_Marked = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class MarkerError(ValueError):
    """A marker, or the lack of one, that the page cannot be made with; says where."""


@dataclass(frozen=True, order=True)
class Proof:
    """A test, a class of tests or a module of tests, and what it proves."""

    file: str  # from the root, with slashes
    name: str  # "test_it", "TestThis", "TestThis.test_it"; empty for a whole module
    summary: str  # the first line of its docstring
    ids: tuple[str, ...]


def page() -> str:
    """Return the page.

    Raises:
        MarkerError: a marker is wrong, or a guarantee has no test.
    """
    found = proofs(ROOT)
    check(found)
    parts = [_HEAD.strip()]
    for title, guarantees in _SECTIONS.items():
        parts.append(f"## {title}")
        for name, guarantee in guarantees.items():
            parts += _section(name, guarantee, [proof for proof in found if name in proof.ids])
    return "\n\n".join(parts)


def _section(name: str, guarantee: Guarantee, found: list[Proof]) -> list[str]:
    lines = [_line(proof) for proof in found] or ["Not proven yet: no test of this version does."]
    return [f"### {name}: {guarantee.title}", guarantee.text, "\n".join(lines)]


def _line(proof: Proof) -> str:
    where = f"`{proof.name}` in `{proof.file}`" if proof.name else f"all of `{proof.file}`"
    return f"- {where}: {proof.summary}" if proof.summary else f"- {where}"


def check(found: list[Proof], not_yet: frozenset[str] = NOT_YET) -> None:
    """Hold markers, guarantees and the list of what is not proven yet against each other.

    Raises:
        MarkerError: a guarantee has no test and is not listed, or is listed and has one.
    """
    proven = {name for proof in found for name in proof.ids}
    without = [name for name in GUARANTEES if name not in proven | not_yet]
    if without:
        raise MarkerError(f"no test proves {', '.join(without)}")
    listed = sorted(not_yet & proven) or sorted(not_yet - GUARANTEES.keys())
    if listed:
        raise MarkerError(f"take {', '.join(listed)} from NOT_YET")


def proofs(root: Path) -> list[Proof]:
    """Return what the tests of a checkout prove, in the order of their files and lines.

    Raises:
        MarkerError: a marker is not one of those that the page is made from.
    """
    found: list[Proof] = []
    for file in sorted((root / "tests").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "proves" in text:
            found += _of_file(file.relative_to(root).as_posix(), ast.parse(text))
    return found


def _of_file(file: str, module: ast.Module) -> Iterator[Proof]:
    read = 0
    for node, outer in _tests(module):
        markers = [each for each in _markers_of(node) if _is_proves(each)]
        ids = tuple(name for marker in markers for name in _ids(file, marker))
        read += len(markers)
        if ids:
            summary = _REFERENCE.sub("", (ast.get_docstring(node) or "").split("\n", 1)[0])
            name = "" if isinstance(node, ast.Module) else f"{outer}{node.name}"
            yield Proof(file, name, summary, ids)
    if read != sum(map(_is_attribute, ast.walk(module))):
        raise MarkerError(f"{file}: a marker `proves` that is not on a test, a class or pytestmark")


def _tests(module: ast.Module) -> Iterator[tuple[_Marked, str]]:
    """Yield what may be marked, with the name of the class around it."""
    yield module, ""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node, ""
            for inner in node.body:
                if _is_test(inner):
                    yield inner, f"{node.name}."
        elif _is_test(node):
            yield node, ""


def _is_test(node: ast.AST) -> bool:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and node.name.startswith("test")


def _markers_of(node: _Marked) -> list[ast.expr]:
    markers = [] if isinstance(node, ast.Module) else list(node.decorator_list)
    if isinstance(node, ast.Module | ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.Assign) and _names(each) == ["pytestmark"]:
                many = isinstance(each.value, ast.List | ast.Tuple)
                markers += each.value.elts if many else [each.value]
    return markers


def _names(assignment: ast.Assign) -> list[str]:
    return [target.id for target in assignment.targets if isinstance(target, ast.Name)]


def _is_attribute(node: ast.AST) -> bool:
    is_attribute = isinstance(node, ast.Attribute) and node.attr == "proves"
    return is_attribute and ast.unparse(node.value).endswith("mark")


def _is_proves(marker: ast.expr) -> bool:
    return _is_attribute(marker.func if isinstance(marker, ast.Call) else marker)


def _ids(file: str, marker: ast.expr) -> list[str]:
    where = f"{file}:{marker.lineno}"
    arguments = marker.args if isinstance(marker, ast.Call) else []
    ids = [each.value for each in arguments if isinstance(each, ast.Constant)]
    if not ids or len(ids) != len(arguments):
        raise MarkerError(f"{where}: expected ids as texts, such as proves('P1')")
    unknown = [name for name in ids if name not in GUARANTEES]
    if unknown:
        raise MarkerError(f"{where}: there is no guarantee {unknown[0]!r}")
    return ids
