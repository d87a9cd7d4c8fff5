"""The one place where a request becomes a prompt: SFT, GRPO, evaluation and serving all call `build_messages`.

The system text is a file under `data/prompts/` that people edit: `full.txt` for real models, `short.txt` for the
nano model of the demo (at most 40 tokens). The closed domain list is filled in from the reward file's constant,
so prompt and reward cannot drift apart.
"""

from collections.abc import Sequence
from pathlib import Path

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN
from swift_plugin.settings import PROMPT_STYLES

PROMPT_DIR = Path(__file__).resolve().parent.parent / "data" / "prompts"


def system_prompt(style: str) -> str:
    """The system text of `style`, with `{domains}` replaced by the domains a planner may use.

    Raises ValueError for an unknown style and FileNotFoundError if the prompt file is gone.
    """
    if style not in PROMPT_STYLES:
        raise ValueError(f"PLANNER_PROMPT={style!r} is not a prompt style; use one of {', '.join(PROMPT_STYLES)}")
    text = (PROMPT_DIR / f"{style}.txt").read_text(encoding="utf-8").strip()
    usable = ", ".join(domain for domain in DOMAINS if domain != RESERVED_DOMAIN)
    return text.replace("{domains}", usable)


def render_user(text: str, prior_context: Sequence[str] = ()) -> str:
    """This turn's words, below the earlier turns where there are any.

    >>> render_user("要防水的", ["想买跑鞋"])
    '上文：想买跑鞋\\n本轮：要防水的'
    >>> render_user("想买跑鞋")
    '想买跑鞋'
    """
    if not prior_context:
        return text
    return f"上文：{' / '.join(prior_context)}\n本轮：{text}"


def build_messages(text: str, prior_context: Sequence[str], style: str) -> list[dict[str, str]]:
    """The prompt as chat messages (system, user), without an answer.

    Args:
        text: this turn's words, verbatim (exclusion evidence is checked against them).
        prior_context: the shopper's earlier turns of the session, oldest first; empty when there are none.
        style: one of PROMPT_STYLES.
    """
    return [
        {"role": "system", "content": system_prompt(style)},
        {"role": "user", "content": render_user(text, prior_context)},
    ]
