"""Which catalogue was searched: a short digest that tells two stores of one size apart, for two small requests."""

import hashlib
import json

from scripts.catalog.point_survey import points_of
from swift_plugin.stores import EdgeStore, QdrantStore

LOOKED_AT = 64  # of the ids' order, which every store of one catalogue shares
DIGITS = 16


def titles_digest(store: EdgeStore | QdrantStore) -> str:
    """The first DIGITS hex digits of a sha256 over the titles of the first LOOKED_AT ids; raises StoreError.

    Titles are read by id and not searched for: an encoder's rounding and an approximate index would make two answers of
    one store differ. A store that differs only behind the first ids has the same digest.
    """
    points = points_of(store)
    ids = next(points.pages(LOOKED_AT), [])
    titles = [payload.get("title") for _, payload, _ in points.fetch(ids)] if ids else []
    return hashlib.sha256(json.dumps(sorted(map(str, titles))).encode()).hexdigest()[:DIGITS]
