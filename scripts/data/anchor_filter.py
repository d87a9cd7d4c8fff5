"""What of a log is worth keeping: no greetings, no second copy of the same request; fragments are marked.

Pure functions over sessions; `build_planner_anchors.py` runs them on a log, `dev_from_anchors.py` on the anchors that
the repository ships.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.data.near_duplicate_index import NearDuplicateIndex
from scripts.data.near_duplicates import normalised
from scripts.data.personal_data import MASK
from scripts.data.sessions import Session, turn_texts
from swift_plugin.cards import Card

# One greeting, thanks or call after another and nothing else. Thanks that say more ("谢谢，问题解决了") stay.
# No alternative is made of others: a text splits in one way only, so that matching stays linear.
_GREETING = re.compile(
    r"(?:你好|您好|哈喽|哈啰|嗨|嘿|hi|hello|hey|在吗|在不在|在么|在嘛|有人吗|有人在吗|客服|人工|亲|老板|"
    r"早上好|上午好|中午好|下午好|晚上好|早安|晚安|早|谢谢你?|多谢|感谢|谢了|谢啦|thanks|thx|"
    r"拜拜|再见|bye|呀|啊|啦|哈|哦|呢|哟|吗)+"
)
# Assent asks for nothing either, but inside a session it is part of the talk and stays.
_ASSENT = re.compile(r"(?:好的?|好滴|好吧|好嘞|行吧?|可以|嗯|哦|ok|okay|收到|知道了|明白)+")
# Words that point at something said or shown before.
_POINTING = re.compile(
    r"刚(?:才|刚|那|说|发|看)|这(?:款|个|件|双|种|些|几)|那(?:款|个|件|双|种|些|几)|上(?:面|一|次|个月)|前面|之前|"
    r"你(?:发|推|给|说)的|另外一|第[一二两三四五六七八九十\d]+[个款条件双]|剩下|里头|其余|别的都|其他都|"
    r"一模一样|同款|换[个一]?(?:颜色|款|个)?|再(?:便宜|贵|看|找|来|要|推|给|大|小)|还有(?:别|其他|吗|没)|补货|哪个|"
    r"(?:统统|全都?|都|全部)(?:不要|去掉|剔|去)"
)
# A turn that holds nothing but a limit, a size, a colour or a refusal: its subject was named elsewhere.
_BARE = re.compile(
    r"^(?:要是|只要|就要|要|有没有|有|能|得|最好|预算|价格|价位|不要|别要|别|不想要|不考虑|去掉|便宜|贵|大|小|浅|深|"
    r"\d|[一二两三四五六七八九十百千]+[块百千])"
)
_WISH = re.compile(r"送|礼|推荐|想买|买点|添点|淘点|挑个|看看有什么|逛|新家|生日")
SAME_REQUEST = 0.6  # Jaccard overlap; at 0.5 short requests that differ in a colour would count as one
LONGEST_BARE = 24  # letters, digits and characters


def greeting_only(text: str) -> bool:
    """Whether a turn greets, thanks or calls and asks for nothing.

    >>> greeting_only("你好，在吗～"), greeting_only("你好，想买跑鞋")
    (True, False)
    """
    plain = normalised(text)
    return not plain or _GREETING.fullmatch(plain) is not None


def names_category(text: str, cards: Sequence[Card]) -> bool:
    """Whether the turn says a name of a card."""
    return any(name in text for card in cards for name in card.names)


def is_fragment(texts: Sequence[str], cards: Sequence[Card]) -> bool:
    """Whether the last of a session's turns follows up on something that the session does not hold.

    Judged by words, so it is a mark for a reviewer and for the golden's `context_missing`, never a reason to drop:
    no turn names a category, and the last one points back, or is short and states a limit or a refusal alone.
    """
    if any(names_category(text, cards) for text in texts):
        return False
    last = texts[-1]
    if _POINTING.search(last):
        return True
    return len(normalised(last)) <= LONGEST_BARE and bool(_BARE.search(normalised(last))) and not _WISH.search(last)


def without_greetings(session: Mapping[str, Any]) -> Session | None:
    """The session without its greeting turns; None where nothing is left but assent."""
    turns = [one for one in session["turns"] if not greeting_only(one["text"])]
    asks = any(_ASSENT.fullmatch(normalised(one["text"])) is None for one in turns)
    return {**session, "turns": turns} if asks else None


def keep(sessions: Sequence[Session]) -> tuple[list[Session], list[dict[str, str]]]:
    """The sessions worth keeping, in order, and for each of the others its id and the reason.

    A session is dropped when it only greets or assents, or when it is nearly word for word an earlier one. That one
    text contains the other is no reason: a short request may stand inside a longer one that asks for more.
    """
    kept: list[Session] = []
    dropped: list[dict[str, str]] = []
    index = NearDuplicateIndex(SAME_REQUEST)
    for session in sessions:
        cleaned = without_greetings(session)
        if cleaned is None:
            dropped.append({"id": session["id"], "reason": "greeting only"})
            continue
        said = MASK.sub("", " ".join(turn_texts(cleaned)))  # two phone numbers make no two requests alike
        twin = index.twin(said)
        if twin is not None:
            dropped.append({"id": session["id"], "reason": f"near-duplicate of {twin.name}"})
            continue
        kept.append(cleaned)
        index.add(session["id"], said)
    return kept, dropped
