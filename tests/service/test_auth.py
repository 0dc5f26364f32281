"""Who a token stands for, by what the hub says of it (hub facts H3)."""

import pytest

from gpuspawner.service.askers import Asker, Kind, asker_from
from tests.service.doubles import ACCESS, notebook_model, service_model, user_model


def kind(*scopes: str, **values) -> Kind:
    return asker_from(user_model("ada", scopes, **values), "gpu").kind


def test_a_person_brings_groups_and_the_admin_flag():
    asker = asker_from(user_model("ada", groups=["ml101"], admin=True), "gpu")
    assert asker == Asker(
        kind=Kind.PERSON, name="ada", admin=True, groups=frozenset({"ml101"}), server=None
    )


@pytest.mark.parametrize("server", ["", "thesis", "a/b"])
def test_a_notebook_speaks_for_one_server_and_is_never_an_admin(server):
    asker = asker_from(notebook_model("ada", server, admin=True, groups=["ml101"]), "gpu")
    assert asker == Asker(kind=Kind.NOTEBOOK, name="ada", server=server)


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ([ACCESS], Kind.PERSON),
        (["access:services"], Kind.PERSON),
        ([], Kind.OTHER),
        (["access:services!service=grader"], Kind.OTHER),
        ([ACCESS, "access:servers!server=ada/"], Kind.NOTEBOOK),
        # A site may give its notebooks more: they stay notebooks.
        ([ACCESS, "access:servers!server=ada/", "access:servers!user=ada"], Kind.NOTEBOOK),
        ([ACCESS, "access:servers!server=ada/", "access:servers"], Kind.NOTEBOOK),
        # Two servers: nobody knows for which it speaks.
        ([ACCESS, "access:servers!server=ada/", "access:servers!server=ada/x"], Kind.OTHER),
        # A server that somebody shared with ada stands in her own tokens too.
        ([ACCESS, "access:servers!server=ben/", "access:servers!user=ada"], Kind.PERSON),
        ([ACCESS, "access:servers!server=ben/", "access:servers"], Kind.PERSON),
        # Only somebody else's server: no person's token looks like that.
        ([ACCESS, "access:servers!server=ben/"], Kind.OTHER),
        ([ACCESS, "access:servers!server=adab/"], Kind.OTHER),
    ],
)
def test_scopes_decide(scopes, expected):
    assert kind(*scopes) is expected
    assert kind(*scopes, admin=True) is expected


def test_other_services_have_no_business_here():
    assert (
        asker_from(service_model("grader", ["access:services", ACCESS]), "gpu").kind is Kind.OTHER
    )


def test_an_admin_flag_that_is_missing_or_odd_is_none():
    model = user_model("ada")
    del model["admin"]
    assert asker_from(model, "gpu").admin is False
    assert asker_from({**model, "admin": "yes"}, "gpu").admin is False
