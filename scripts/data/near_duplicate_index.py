"""Near-duplicates among many texts: MinHash signatures (datasketch) propose, the exact Jaccard overlap decides.

Texts are compared by the character pairs of `near_duplicates`, so this finds what a full comparison would find, up to
the index's few misses, in time that grows with the number of texts and not with its square.
"""

from typing import TYPE_CHECKING, NamedTuple

from scripts.data.near_duplicates import closeness, pairs

if TYPE_CHECKING:
    from datasketch import MinHash

PERMUTATIONS = 128
PROPOSED_BELOW = 0.2  # candidates are asked for at this much below the limit: the signature only estimates the overlap


class Twin(NamedTuple):
    """An earlier text close to the one asked about: its name, and the Jaccard overlap of the two in [0, 1]."""

    name: str
    jaccard: float


class NearDuplicateIndex:
    """Texts by name, searchable for one that shares at least `limit` of its character pairs.

    >>> index = NearDuplicateIndex(0.6)
    >>> index.add("a", "车脚垫一套咋卖的呀")
    >>> index.twin("车脚垫，一套咋卖呀").name, index.twin("想买跑鞋")
    ('a', None)
    """

    def __init__(self, limit: float) -> None:
        from datasketch import MinHashLSH  # brings SciPy along: not before an index is wanted

        self._limit = limit
        self._index = MinHashLSH(threshold=max(0.1, limit - PROPOSED_BELOW), num_perm=PERMUTATIONS)
        self._pairs: dict[str, frozenset[str]] = {}

    def add(self, name: str, text: str) -> None:
        """Index `text` under `name`; a name that is taken is a ValueError."""
        if name in self._pairs:
            raise ValueError(f"{name!r} is indexed already: names must be unique")
        self._pairs[name] = pairs(text)
        self._index.insert(name, _signature(self._pairs[name]))

    def twin(self, text: str) -> Twin | None:
        """The closest indexed text at or above the limit (the first indexed of equals), or None."""
        mine = pairs(text)
        found = [Twin(name, closeness(self._pairs[name], mine).jaccard) for name in self._index.query(_signature(mine))]
        order = {name: at for at, name in enumerate(self._pairs)} if len(found) > 1 else {}
        close = [one for one in found if one.jaccard >= self._limit]
        return min(close, key=lambda one: (-one.jaccard, order.get(one.name, 0)), default=None)


def _signature(held: frozenset[str]) -> "MinHash":
    from datasketch import MinHash

    signature = MinHash(num_perm=PERMUTATIONS)
    signature.update_batch([pair.encode() for pair in sorted(held)])
    return signature
