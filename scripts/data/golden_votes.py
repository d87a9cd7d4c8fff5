"""Three votes on what a session asks for: the prompts that make them differ, reading an answer, and the majority.

Pure functions. A vote judges the last turn of a session with all its earlier turns in view. It gives category,
domains, must_have and anchor; the budget and the exclusion are decided by rule and are never asked.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN, parse_plan, words
from swift_plugin.prompts import render_user

VOTE_KEYS = ("category", "domains", "must_have", "anchor")
VOTES_NEEDED = 2
_LEGAL = tuple(domain for domain in DOMAINS if domain != RESERVED_DOMAIN)
# Which language a field is in, as _TASK asks: categories in Chinese, search words in the catalogue's English.
_CHINESE = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True)
class Variant:
    """How one vote is asked: its temperature, by how much the domain list is turned, whether reasons come first."""

    name: str
    temperature: float
    turn: int
    reasons_first: bool


VARIANTS = (Variant("t0", 0.0, 0, False), Variant("t0.3", 0.3, 7, True), Variant("t0.6", 0.6, 14, False))

_TASK = """\
你在为购物搜索标注标准答案。读下面一段对话（上文在前，本轮在后），判断本轮要找的商品。
{order}JSON 对象四个键：
"category"：主商品品类，中文 2–10 个字；对话里看不出来就写 null。
"domains"：列表，只能取自：{domains}；看不出来就写 null。
"must_have"：英文列表，除品类之外用户要求的属性，写商品标题里会出现的词；没有写 []。
"anchor"：英文品类短语，中心词在最后，如 running shoes；看不出来写 ""。
"""
_ORDERS = {
    True: "先用一两句话说理由（理由里不要用括号），再另起一行输出一个 JSON 对象。",
    False: "只输出一个 JSON 对象，不要别的。",
}


class Vote(NamedTuple):
    """One opinion. `category` None and `domains` None say that it cannot be known."""

    category: str | None
    domains: tuple[str, ...] | None
    must_have: tuple[str, ...]
    anchor: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**self._asdict(), "domains": None if self.domains is None else list(self.domains)}


class Verdict(NamedTuple):
    """What the votes say together. `status`: agree, review, or None where fewer than two votes came in.

    `agreed` names the fields in which every vote that came in said the same. `category_carried`: two votes agree on
    the category; in `vote` stands only a proposal where they do not.
    """

    status: str | None
    vote: Vote | None
    agreed: tuple[str, ...] = ()
    category_carried: bool = False


def vote_messages(variant: Variant, turns: Sequence[str]) -> list[dict[str, str]]:
    """The request of one vote; `turns` oldest first, the last one is judged."""
    turned = _LEGAL[variant.turn :] + _LEGAL[: variant.turn]
    task = _TASK.format(order=_ORDERS[variant.reasons_first], domains=", ".join(turned))
    return [{"role": "system", "content": task}, {"role": "user", "content": render_user(turns[-1], list(turns[:-1]))}]


def read_vote(text: str) -> Vote | None:
    """The vote in an answer; None when it is not exactly one object with the four keys and legal values.

    A category without Chinese characters is not legal, nor a must-have or an anchor that is no English: it could
    never be found in a title. A must-have or an anchor without a letter or a digit says nothing and is left out.

    >>> read_vote('{"category": "跑鞋", "domains": ["footwear"], "must_have": [], "anchor": "running shoes"}').category
    '跑鞋'
    """
    found = parse_plan(text).plan  # the one parser of model output: strict JSON, prose around it allowed
    if found is None or set(found) != set(VOTE_KEYS):
        return None
    category, domains, must_have, anchor = (found[key] for key in VOTE_KEYS)
    if category is not None and not isinstance(category, str):
        return None
    if domains is not None and not (isinstance(domains, list) and all(name in _LEGAL for name in domains)):
        return None
    if not isinstance(must_have, list) or not all(isinstance(term, str) for term in must_have):
        return None
    if anchor is not None and not isinstance(anchor, str):
        return None
    category, anchor = (category or "").strip(), _spoken(anchor or "")
    terms = tuple(dict.fromkeys(filter(None, map(_spoken, must_have))))
    if category and not _CHINESE.search(category):
        return None
    if any(_CHINESE.search(term) or not _LATIN.search(term) for term in filter(None, (*terms, anchor))):
        return None
    return Vote(
        category or None,
        tuple(sorted(set(domains), key=DOMAINS.index)) or None if domains is not None else None,
        terms,
        anchor,
    )


def _spoken(term: str) -> str:
    return term.strip() if words(term) else ""


def same_category(first: str | None, second: str | None) -> bool:
    """Whether two categories agree: both unknown, equal, or one ends with the other, as the reward compares them.

    The head of a Chinese name stands last: 男士跑鞋 is a 跑鞋, and 手机壳 is no 手机.
    """
    short, long = sorted((words("".join((name or "").split())) for name in (first, second)), key=len)
    return long[len(long) - len(short) :] == short if short else not long


def majority(votes: Sequence[Vote | None]) -> Verdict:
    """The golden fields that the votes carry; None among them is a failed vote, never an opinion.

    Fewer than two votes give nothing. The category needs two that agree (the broader, shorter name wins), the
    domains the same whole set twice, a must-have two votes by its Words, the anchor two votes by its Words. A
    category or domain set without a majority gives `review`, with the first vote's value as a proposal.
    """
    cast = [vote for vote in votes if vote is not None]
    if len(cast) < VOTES_NEEDED:
        return Verdict(None, None)
    category, category_sure = _category([vote.category for vote in cast])
    sets = Counter(vote.domains for vote in cast)
    domains, count = sets.most_common(1)[0]
    sure = category_sure and count >= VOTES_NEEDED
    terms = _must_have(cast)
    anchors = Counter(words(vote.anchor) for vote in cast)
    anchor_words, anchor_count = anchors.most_common(1)[0]
    anchor = next(vote.anchor for vote in cast if words(vote.anchor) == anchor_words)
    if anchor_count < VOTES_NEEDED:
        sure, anchor = False, cast[0].anchor
    carried = Vote(category, domains if count >= VOTES_NEEDED else cast[0].domains, terms, anchor)
    same = {
        "category": all(same_category(vote.category, category) for vote in cast),
        "domains": len(sets) == 1,
        "must_have": all(_term_words(vote.must_have) == _term_words(terms) for vote in cast),
        "anchor": len(anchors) == 1,
    }
    agreed = tuple(name for name, equal in same.items() if equal)
    return Verdict("agree" if sure else "review", carried, agreed, category_sure)


def _category(names: Sequence[str | None]) -> tuple[str | None, bool]:
    groups = [[other for other in names if same_category(name, other)] for name in names]
    best = max(groups, key=len)  # the first of equals
    if len(best) < VOTES_NEEDED:
        return names[0], False
    known = [name for name in best if name]
    return (min(known, key=len) if known else None), True


def _must_have(votes: Sequence[Vote]) -> tuple[str, ...]:
    """The terms that two votes name, in the order in which they are first named."""
    counts = Counter(key for vote in votes for key in _term_words(vote.must_have))
    first: dict[tuple[str, ...], str] = {}
    for vote in votes:
        for term in vote.must_have:
            first.setdefault(words(term), term)
    return tuple(term for key, term in first.items() if counts[key] >= VOTES_NEEDED)


def _term_words(terms: Sequence[str]) -> set[tuple[str, ...]]:
    return {words(term) for term in terms if words(term)}


def disagreements(golden: dict[str, Any], vote: Vote) -> list[str]:
    """The audited fields in which the votes' result differs from a golden record known by construction.

    A must-have differs when none of the golden terms is named (one of several is enough in a title).
    """
    wrong = []
    if not same_category(golden["category"], vote.category):
        wrong.append("category")
    if set(golden["domains"] or ()) != set(vote.domains or ()):
        wrong.append("domains")
    expected, given = _term_words(golden["must_have"]), _term_words(vote.must_have)
    if bool(expected) != bool(given) or (expected and not expected & given):
        wrong.append("must_have")
    if words(golden["category_anchor"] or "")[-1:] != words(vote.anchor)[-1:]:
        wrong.append("anchor")
    return wrong
