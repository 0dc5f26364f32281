"""What the tests of the options form share: profiles, and the fragment as a browser reads it."""

from datetime import UTC, datetime
from html.parser import HTMLParser

from gpuspawner.catalogue import Catalogue
from gpuspawner.spawners.form import Form
from tests.builders import claim

CPU = {"name": "cpu", "title": "Notebook without GPU", "description": "For writing and reading."}
SLICE = {"name": "mig", "title": "GPU slice", "mode": "mig", "instance": "2g.10gb"}
SHARE = {
    "name": "share", "title": "Class share", "mode": "time-sliced", "memory": "5GiB",
    "groups": ["ml101"], "images": ["torch", "jax"],
}  # fmt: skip
WHOLE = {"name": "h100", "title": "One H100", "mode": "whole", "models": ["H100"]}
PAIR = {"name": "pair", "title": "Two GPUs", "mode": "whole", "count": 2, "memory": "10GiB"}
HUGE = {"name": "huge", "title": "A huge GPU", "mode": "whole", "memory": "200GiB"}
PROFILES = [CPU, SLICE, SHARE, WHOLE, PAIR, HUGE]
SHARED_2080 = [{"select": "2080", "modes": ["time-sliced", "whole"]}]
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


class Page(HTMLParser):
    """What a browser would make of the fragment."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.cards, self.said = text, [], {}, ""
        self._card = self._select = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append((tag, values))
        if tag == "input":
            self._card = self.cards[values["value"]] = {
                "checked": "checked" in values, "disabled": "disabled" in values, "text": "",
                "images": [], "selected": None, "field": None,
            }  # fmt: skip
        elif tag == "select":
            self._card["field"] = values["name"]
        elif tag == "option":
            self._card["images"].append(values["value"])
            if "selected" in values:
                self._card["selected"] = values["value"]

    def handle_data(self, data):
        if self.lasttag == "style":
            return
        self.said += data
        if self._card is not None:
            self._card["text"] += data

    def all(self, tag):
        return [values for name, values in self.tags if name == tag]

    @property
    def checked(self):
        return [name for name, card in self.cards.items() if card["checked"]]


def now():
    return datetime.now(UTC)


async def render(site, *, chosen=None, images=(), groups=("ml101",), locale="en"):
    form = Form(
        site=site, groups=frozenset(groups), chosen=chosen or {}, images=list(images),
        reader=Catalogue(locale),
    )  # fmt: skip
    return Page(await form.render())


def take(site, broker, user, name, times=1):
    """Let somebody have a profile."""
    site.publish()
    profile = next(each for each in site.policy.profiles if each.name == name)
    for at in range(times):
        broker.request(claim(user, profile, f"s{at}"), now())
