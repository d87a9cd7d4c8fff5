"""Sessions worded by a model: it is told what the shopper means, turn by turn, and says it in its own words.

What is meant comes from the template session of the same cell. The model's words are trusted with nothing else: the
sessions carry no golden record and no plan hint, and go through the gate and the votes like a log.
"""

import json
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from scripts.chat import check_text
from scripts.data.gate_splits import DRAFT
from scripts.data.sessions import Session, turn, turn_texts
from scripts.data.vote_client import VoteClient
from swift_plugin.cards import Card

TEMPERATURE = 0.9  # other words each time is what the model is asked for
TONES = {"plain": "平实", "polite": "客气", "terse": "极短，像打关键词", "chatty": "随意唠嗑"}
_TASK = """\
你扮演在购物 App 搜索框里打字的中国买家。下面是这位买家几轮话的草稿，请用自己的话重写每一轮：
意思、金额、要与不要的东西都不能变，不能加条件，不能漏条件；商品可以叫：{names}。
语气：{tone}。口语，不要书面语，每轮最多 60 个字。
只输出一个 JSON 对象：{{"turns": ["第一轮", "第二轮"]}}，轮数与草稿相同。"""


def messages(session: Session, card: Card | None) -> list[dict[str, str]]:
    """The request for one session."""
    names = "、".join(card.names) if card else "（没有具体商品）"
    task = _TASK.format(names=names, tone=TONES[session["dimensions"]["tone"]])
    return [
        {"role": "system", "content": task},
        {"role": "user", "content": json.dumps({"turns": turn_texts(session)}, ensure_ascii=False)},
    ]


def read_turns(content: str, count: int) -> list[str] | None:
    """The turns of an answer; None when it is not one object with `count` texts. A Markdown fence is looked through.

    A text with half a character is none: no file could hold it.
    """
    text = content.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    turns = data.get("turns") if isinstance(data, dict) else None
    if not isinstance(turns, list) or len(turns) != count:
        return None
    if not all(isinstance(one, str) and one.strip() for one in turns):
        return None
    try:
        check_text("".join(turns))
    except ValueError:
        return None
    return turns


def asked_sessions(
    client: VoteClient, drafts: Sequence[Session], cards: Sequence[Card]
) -> tuple[list[Session], dict[str, Any]]:
    """The drafts in the model's words, in order, without those it gave no usable answer for; and what it cost.

    They keep the template of their draft and name it: the gate holds both out or neither.

    Raises EndpointError when the endpoint stays down; answers so far are cached.
    """
    by_id = {card.id: card for card in cards}
    requests = [client.request(messages(one, by_id.get(one["card"])), TEMPERATURE) for one in drafts]
    worded: dict[int, list[str]] = {}
    for at, answer in tqdm(client.ask_all(requests), total=len(requests), desc="wording", unit="session", disable=None):
        turns = read_turns(answer.content, len(drafts[at]["turns"])) if answer.complete else None
        if turns is not None:
            worded[at] = turns
    sessions = [
        {
            **draft,
            "id": draft["id"].replace("query-", "llm-"),
            "source": "llm",
            "dimensions": {**draft["dimensions"], DRAFT: draft["id"]},
            "turns": [turn(text) for text in worded[at]],
        }
        for at, draft in enumerate(drafts)
        if at in worded
    ]
    usage = client.usage.report(None, None)
    return sessions, {**usage, "unusable_answers": len(drafts) - len(sessions)}
