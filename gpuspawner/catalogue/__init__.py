"""Words for people: reasons, slices and page strings in the reader's language and time zone.

The one place where codes and numbers become sentences. English texts are the keys; the Chinese
ones are read from ``locale/``. `gpuspawner.catalogue.extract` collects what has to be translated.
"""

from gpuspawner.catalogue.catalogue import Catalogue
from gpuspawner.catalogue.language import SUPPORTED, choose_locale

__all__ = ["SUPPORTED", "Catalogue", "catalogue_for"]


def catalogue_for(accept_language: str | None, default: str = "en") -> Catalogue:
    """Return the catalogue that suits a reader best, by the Accept-Language header (or None)."""
    return Catalogue(choose_locale(accept_language, default))
