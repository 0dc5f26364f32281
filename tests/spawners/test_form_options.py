"""What the options form remembers and sends, and that it is safe and accessible."""

import pytest

from gpuspawner.domain.choices import judge
from gpuspawner.domain.policy import parse_policy
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.spawners.form import options_from_form
from tests.spawners.form_page import CPU, EVIL, HUGE, PROFILES, SHARE, WHOLE, render, take


async def test_the_last_choice_is_remembered(make_site, broker):
    page = await render(make_site(), chosen={"profile": "share", "image": "jax"})
    assert page.checked == ["share"]
    assert page.cards["share"]["selected"] == "jax"


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"profile": EVIL, "image": EVIL},
        {"profile": ["mig"], "image": {"a": 1}},
        {"profile": None, "image": 7},
        {"user_options": {}, EVIL: EVIL},
    ],
)
async def test_what_is_not_on_offer_falls_back_to_the_default(make_site, broker, chosen):
    page = await render(make_site(), chosen=chosen)
    assert page.checked == ["cpu"]
    assert all(card["selected"] is None for card in page.cards.values())
    assert "alert(" not in page.text


async def test_image_lists_belong_to_their_cards(make_site, broker):
    page = await render(make_site(), images=["base", "r"], chosen={"image": "r"})
    assert page.cards["share"]["images"] == ["torch", "jax"]
    assert page.cards["share"]["field"] == "image:share"
    assert page.cards["cpu"]["images"] == ["", "base", "r"]
    assert page.cards["cpu"]["selected"] == "r"
    one = make_site([{**SHARE, "images": ["torch"]}])
    assert not (await render(one)).all("select")
    assert not (await render(make_site([CPU]), images=["base"])).all("select")


async def test_what_the_form_sends_is_allowed(make_site, broker):
    """Each card, each image, sent as a browser would: the choice means what was shown."""
    site = make_site()
    names = ["base", "r"]
    page = await render(site, images=names)
    for name, card in page.cards.items():
        for image in card["images"] or [None]:
            sent = {"_xsrf": ["token"], "profile": [name]}
            for other in page.cards.values():
                if other["field"]:
                    sent[other["field"]] = [other["images"][0]]
            if card["field"]:
                sent[card["field"]] = [image]
            options = options_from_form(sent)
            choice = judge(
                options, site.policy.profiles, frozenset({"ml101"}), {n: f"{n}:1" for n in names}
            )
            assert choice.profile.name == name
            expected = image if name == "share" else f"{image}:1" if image else None
            assert choice.image == expected


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({}, {}),
        ({"_xsrf": ["t"]}, {}),
        ({"profile": ["mig"], "image": [""]}, {"profile": "mig"}),
        ({"profile": ["mig"], "image": ["torch"]}, {"profile": "mig", "image": "torch"}),
        ({"profile": "mig"}, {"profile": "mig"}),
        (
            {"profile": ["a"], "image:a": ["x"], "image:b": ["y"]},
            {"profile": "a", "image": "x"},
        ),
        ({"profile": ["a"], "image:a": [""], "image:b": ["y"]}, {"profile": "a"}),
        (
            {"profile": ["a"], "image:a": ["x"], "image": ["z"]},
            {"profile": "a", "image": "z"},
        ),
        ({"profile": ["a"], "image:a": ["x", "y"]}, {"profile": "a", "image": ["x", "y"]}),
        ({"image:a": ["x"]}, {"image:a": "x"}),
        ({"profile": ["a", "b"]}, {"profile": ["a", "b"]}),
        ({"gpu": ["1"], "x_file": [{"body": b""}]}, {"gpu": "1", "x_file": {"body": b""}}),
    ],
)
def test_options_from_form(data, options):
    assert options_from_form(data) == options


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"profile": ["cpu"], "device": ["GPU-0"]}, Code.OPTION_UNKNOWN),
        ({"image:cpu": ["x"]}, Code.OPTION_UNKNOWN),
        ({"profile": ["cpu"], "image:cpu": ["x", "y"]}, Code.OPTION_TYPE),
        ({"profile": ["share"], "image:share": ["elsewhere"]}, Code.IMAGE_UNKNOWN),
    ],
)
def test_what_does_not_belong_in_the_form_is_still_judged(data, code):
    profiles = parse_policy(PROFILES, []).profiles
    with pytest.raises(RefusedError) as refused:
        judge(options_from_form(data), profiles, frozenset({"ml101"}))
    assert refused.value.reason.code is code


# Safe and accessible.


async def test_nothing_from_outside_is_html(make_site, broker):
    site = make_site(
        [
            {**CPU, "title": EVIL, "description": EVIL},
            {**WHOLE, "title": EVIL + "2", "images": [EVIL, "b"]},
            {**HUGE, "title": EVIL + "3"},
        ]
    )
    take(site, broker, "ben", "h100")
    page = await render(site, images=[EVIL, "b"], chosen={"profile": EVIL, "image": EVIL})
    assert "<script" not in page.text
    assert not page.all("img")
    assert page.said.count(EVIL) >= 6
    assert EVIL in page.cards["h100"]["images"]
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)


async def test_every_field_has_a_label_and_every_id_is_unique(make_site, broker):
    page = await render(make_site(), images=["base", "r"])
    ids = [values["id"] for _, values in page.tags if "id" in values]
    assert len(ids) == len(set(ids))
    labelled = [values["for"] for values in page.all("label")]
    fields = [values["id"] for values in page.all("input") + page.all("select")]
    assert sorted(labelled) == sorted(fields)
    for values in page.all("input"):
        assert set(values["aria-describedby"].split()) <= set(ids)
    assert len(page.all("fieldset")) == len(page.all("legend")) == 1
    assert {values["name"] for values in page.all("input")} == {"profile"}
