"""A completion as the trainers pass it: ms-swift a string, TRL a list of chat messages."""

from typing import Any


def completion_text(completion: Any) -> str:
    """The text of a completion; of chat messages the last one counts. Raises TypeError for anything else.

    >>> completion_text("{}"), completion_text([{"role": "assistant", "content": "{}"}])
    ('{}', '{}')
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        return completion_text(completion[-1].get("content"))
    raise TypeError(
        f"a completion is a string or a list of chat messages, not {type(completion).__name__}; "
        "rollouts that return token ids need --log_completions off or a newer ms-swift"
    )
