"""The gate's checks that compare a row with others: duplicates, leakage into held-out texts, coverage and balance."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scripts.data.gate_checks import COVERAGE, DUPLICATE, LEAK, Finding
from scripts.data.near_duplicate_index import NearDuplicateIndex
from scripts.data.near_duplicates import HeldTexts, normalised
from scripts.data.sessions import Session, turn_texts
from swift_plugin.cards import Card

NEAR = 0.8  # Jaccard overlap of character pairs from which two sessions count as one wording
NGRAM = 5  # characters
NGRAM_OVERLAP = 0.7  # of a held-out text's n-grams in one training turn: a card swapped in one template stays below
FEWEST_PER_FAMILY = 10
UNEVEN = 3.0  # times the mean: a card or a dimension's value above it is out of balance
RARE = 1 / 3  # of the mean
ADVERSARIAL_SHARE = 0.20  # of the training sessions, at least


# ------------------------------------------------------------------------------------------------- duplicates


def session_key(session: Mapping[str, Any]) -> str:
    """All turns without case, spaces and punctuation: equal for exact duplicates."""
    return " / ".join(normalised(text) for text in turn_texts(session))


def last_golden(session: Mapping[str, Any]) -> str:
    """The last turn's golden as comparable text; "null" where it is not known yet."""
    return json.dumps(session["turns"][-1]["golden"], sort_keys=True, ensure_ascii=False)


class Seen:
    """The sessions kept so far, to compare the next one with."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._goldens: dict[str, str] = {}
        self._near = NearDuplicateIndex(NEAR)

    def add(self, session: Session) -> None:
        """Remember a session that is kept."""
        key = session_key(session)
        self._exact.setdefault(key, session["id"])
        self._goldens[session["id"]] = last_golden(session)
        self._near.add(session["id"], key)

    def findings(self, session: Session) -> list[Finding]:
        """Exact and near duplicates of earlier sessions.

        Unusable: the same words again, and nearly the same words with the same golden. Nearly the same words with
        another golden differ in a word that matters; such a pair teaches, so it is reported and kept.
        """
        identity, key = session["id"], session_key(session)
        if key in self._exact:
            return [Finding(DUPLICATE, "exact", identity, f"says what {self._exact[key]} says", unusable=True)]
        twin = self._near.twin(key)
        if twin is None:
            return []
        same = self._goldens[twin.name] == last_golden(session)
        kind = "near" if same else "near_other_golden"
        return [Finding(DUPLICATE, kind, identity, f"{twin.jaccard:.2f} alike with {twin.name}", unusable=same)]


# ---------------------------------------------------------------------------------------------------- leakage


def ngrams(text: str) -> frozenset[str]:
    """The character n-grams of a text after normalisation; a shorter text is one n-gram."""
    plain = normalised(text)
    return frozenset(plain[at : at + NGRAM] for at in range(len(plain) - NGRAM + 1)) or frozenset({plain})


class HeldOut:
    """Held-out texts that training must not hold.

    Two rules: `dev` texts are worded by people and few, so a training turn must not even come near one (the rule of
    `near_duplicates`). `test` and `watch` texts come from the same builders as training, so the wording of a template
    may be shared and the rule is the share of a held text's n-grams that one training turn holds.

    Args:
        dev, generated: (id, text) of the judged turns.
    """

    def __init__(self, dev: Iterable[tuple[str, str]], generated: Iterable[tuple[str, str]]) -> None:
        dev = list(dev)
        self._dev = HeldTexts(text for _, text in dev)
        self._dev_ids = {text: identity for identity, text in dev}
        self._held = [(identity, ngrams(text)) for identity, text in generated]
        self._holders: dict[str, list[int]] = {}
        for at, (_, grams) in enumerate(self._held):
            for gram in grams:
                self._holders.setdefault(gram, []).append(at)

    def findings(self, session: Mapping[str, Any]) -> list[Finding]:
        """What a training session gives away, by the closest held text of each kind."""
        found = []
        text, near = self._dev.closest(turn_texts(session))
        if near.near_duplicate:
            overlap = f"Jaccard {near.jaccard:.2f}, containment {near.containment:.2f}"
            found.append(Finding(LEAK, "dev", session["id"], f"{self._dev_ids[text]}: {overlap}", unusable=True))
        share, identity = max((self._closest(turn) for turn in turn_texts(session)), default=(0.0, ""))
        if share >= NGRAM_OVERLAP:
            reason = f"holds {share:.0%} of the {NGRAM}-grams of {identity}"
            found.append(Finding(LEAK, "test", session["id"], reason, unusable=True))
        return found

    def _closest(self, text: str) -> tuple[float, str]:
        shared = Counter(at for gram in ngrams(text) for at in self._holders.get(gram, ()))
        overlaps = ((count / len(self._held[at][1]), self._held[at][0]) for at, count in shared.items())
        return max(overlaps, default=(0.0, ""))


# --------------------------------------------------------------------------------------- coverage and balance


def coverage_findings(
    sessions: Sequence[Session], cards: Sequence[Card], adversarial: frozenset[str] = frozenset()
) -> list[Finding]:
    """Categories without a session, rare families, values of a dimension out of balance, too few adversarial rows.

    `unusable` here means that the set, not a row, will not do: a card that no session speaks of, or an adversarial
    share of the training sessions below its floor (asked only where such a family is present).
    """
    by_card = Counter(session["card"] for session in sessions if session["card"])
    found = [
        Finding(COVERAGE, "uncovered_card", "", f"no session for card {card.id} ({card.zh})", unusable=True)
        for card in cards
        if card.id not in by_card
    ]
    mean = sum(by_card.values()) / max(1, len(by_card))
    for name, count in sorted(by_card.items()):
        if count > UNEVEN * mean:
            reason = f"card {name} has {count} sessions, the mean is {mean:.1f}"
            found.append(Finding(COVERAGE, "uneven_card", "", reason, unusable=False))
    families = Counter(session["family"] for session in sessions)
    found += [
        Finding(COVERAGE, "rare_family", "", f"family {name} has {count} sessions", unusable=False)
        for name, count in sorted(families.items())
        if count < FEWEST_PER_FAMILY
    ]
    found += _dimension_findings(sessions)
    train = [session for session in sessions if session["split"] == "train"]
    hard = sum(session["family"] in adversarial for session in train)
    if hard and hard < ADVERSARIAL_SHARE * len(train):
        reason = f"{hard} of {len(train)} training sessions are adversarial, fewer than {ADVERSARIAL_SHARE:.0%}"
        found.append(Finding(COVERAGE, "few_adversarial", "", reason, unusable=True))
    return found


MOST_VALUES = 12  # a dimension with more values (a seed, a template) is a label and has no balance to keep


def _dimension_findings(sessions: Sequence[Session]) -> list[Finding]:
    """Values of a dimension far from an even share, source by source (an adversarial set varies other things)."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for session in sessions:
        for name, value in session["dimensions"].items():
            counts.setdefault((session["source"], name), Counter())[str(value)] += 1
    found = []
    for (source, name), values in sorted(counts.items()):
        if not 1 < len(values) <= MOST_VALUES:
            continue
        mean = sum(values.values()) / len(values)
        for value, count in sorted(values.items()):
            if not RARE * mean <= count <= UNEVEN * mean:
                reason = f"{source}: {name}={value} has {count} sessions, the mean of its values is {mean:.0f}"
                found.append(Finding(COVERAGE, "uneven_dimension", "", reason, unusable=False))
    return found
