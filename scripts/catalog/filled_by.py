"""Was a store filled by this encoder? Two encoders' vectors in one search find nothing, and nobody says so."""

import sys
from statistics import fmean

import numpy as np

from scripts.catalog.point_survey import points_of
from swift_plugin.encoders import Encoder
from swift_plugin.flag_encoder import FlagEncoder
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError

# Points: the first page of ids, which are hashes of content and so spread over the catalogue; few enough for a slow
# encoder within preflight's seconds.
LOOKED_AT = 8
SAME_ENCODER = 0.99  # cosine of a title's stored and fresh vector: half precision stays above, another model below
UNRELATED = 0.3  # two models' vectors lie at 0 to each other; those of one model, of a title and of more, far above


def title_cosines(encoder: Encoder, store: EdgeStore | QdrantStore) -> dict[str, float]:
    """Of some stored titles, the cosine of the vector there with the one `encoder` gives the title today.

    Empty for a store without points, or without titles. Raises StoreError for vectors of another size.
    """
    points = points_of(store)
    ids = next(points.pages(LOOKED_AT), [])
    found = points.fetch(ids) if ids else []
    held = {payload["title"]: vector for _, payload, vector in found if isinstance(payload.get("title"), str)}
    cosines = {}
    for (title, vector), fresh in zip(held.items(), encoder.encode(list(held)) if held else [], strict=True):
        stored = np.asarray(vector, dtype=np.float32)
        if stored.shape != fresh.shape:
            raise StoreError(f"the store holds vectors of size {stored.size}, {encoder.name} makes {fresh.size}")
        lengths = max(1e-9, float(np.linalg.norm(stored) * np.linalg.norm(fresh)))
        cosines[title] = float(stored @ fresh) / lengths
    return cosines


def check_same_encoder(encoder: Encoder, store: EdgeStore | QdrantStore) -> None:
    """Raise StoreError unless every title looked at has the vector `encoder` gives it: for adding points to a store."""
    for title, cosine in title_cosines(encoder, store).items():
        if cosine < SAME_ENCODER:
            raise StoreError(
                f"the store was filled by another encoder, or with vectors of more than titles: {title!r:.200} has one"
                f" there whose cosine with that of {encoder.name} is {cosine:.3f}. Set the encoder that filled it, or"
                " name a new store"
            )


def check_before_search(encoder: Encoder, store: EdgeStore | QdrantStore) -> str | None:
    """`check_related` for a process that loads models later.

    An encoder of this process is loaded on the CPU for it and dropped: on the GPU it would take the memory that the
    planner's engine, or a rank, is about to measure.
    """
    if isinstance(encoder, FlagEncoder):
        print(f"loading {encoder.name} on the CPU: were the store's vectors made by it?", file=sys.stderr, flush=True)
        encoder = encoder.on_cpu()
    return check_related(encoder, store)


def check_related(encoder: Encoder, store: EdgeStore | QdrantStore) -> str | None:
    """Raise StoreError if the store's vectors are another encoder's: for searching in it.

    Returns a remark if they are this encoder's at most in part: vectors of a title and more are legitimate.
    """
    cosines = title_cosines(encoder, store)
    if not cosines:
        return None  # no titles: a search of them raises by itself
    mean = fmean(cosines.values())
    if mean < UNRELATED:
        raise StoreError(
            f"the vectors in the store are not those of {encoder.name}: for {len(cosines)} stored titles the one there"
            f" and the encoder's have a mean cosine of {mean:.3f}, where its own have 1. Every search would find chance"
            " titles. Set PLANNER_EMBED_URL or PLANNER_EMBED_MODEL to the encoder that filled it"
        )
    if mean < SAME_ENCODER:
        return (
            f"of {len(cosines)} stored titles, the vector there and that of {encoder.name} have a mean cosine of"
            f" {mean:.3f}: was the store filled by another version of it, or with vectors of more than titles?"
        )
    return None
