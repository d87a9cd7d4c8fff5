"""Group statistics: cases computed by hand, then properties."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.group_stats import (
    SIGMA_EPS,
    compose_rewards,
    exact_match,
    group_advantages,
    pattern_match,
    reinforce_marks,
    zero_sigma_share,
)

BY_HAND = [
    # rewards, advantages, mean-only advantages, reason
    ([1, 0, 0, 1], [1, -1, -1, 1], [0.5, -0.5, -0.5, 0.5], "mean 1/2, population sigma 1/2"),
    ([4, 0], [1, -1], [2, -2], "a pair is always one sigma off"),
    ([0, 0, 0, 4], [-(3**-0.5)] * 3 + [3**0.5], [-1, -1, -1, 3], "mean 1, sigma sqrt 3"),
    ([0.7, 0.7, 0.7], [0, 0, 0], [0, 0, 0], "all equal"),
    ([5], [0], [0], "one alone"),
    ([[1, 0], [2, 2]], [[1, -1], [0, 0]], [[0.5, -0.5], [0, 0]], "each row for itself"),
    ([[[1, 0]], [[0, 1]]], [[[1, -1]], [[-1, 1]]], [[[0.5, -0.5]], [[-0.5, 0.5]]], "the last axis"),
]  # fmt: skip


@pytest.mark.parametrize(("rewards", "scaled", "centred", "reason"), BY_HAND)
def test_advantages_by_hand(rewards: Any, scaled: Any, centred: Any, reason: str) -> None:
    np.testing.assert_allclose(group_advantages(rewards), scaled, atol=1e-6, err_msg=reason)
    np.testing.assert_allclose(group_advantages(rewards, scale=False), centred, atol=1e-15, err_msg=reason)
    assert group_advantages(rewards).shape == np.shape(rewards)


def test_eps_is_added_to_sigma() -> None:
    np.testing.assert_allclose(group_advantages([1, 0], eps=0.5), [0.5, -0.5])
    np.testing.assert_array_equal(group_advantages([1, 0], eps=0), [1, -1])
    np.testing.assert_array_equal(group_advantages([1, 1], eps=0), [0, 0], err_msg="no division by zero")
    assert SIGMA_EPS == 1e-8
    for eps in (-1e-9, math.nan):
        with pytest.raises(ValueError, match="eps"):
            group_advantages([1, 0], eps=eps)


def test_equal_rewards_give_exact_zeros_whatever_rounding_does() -> None:
    for value in (0.1, 0.7, 1 / 3, 1e300, -0.3):
        for size in (3, 7, 8, 13):
            assert not group_advantages([value] * size).any()
            assert not group_advantages([value] * size, scale=False).any()
            assert zero_sigma_share([value] * size) == 1.0


@pytest.mark.parametrize("bad", [[1.0, math.nan], [1.0, None], [math.inf, 1.0], [], 1.0, [[]]])
def test_a_reward_that_is_no_number_is_an_error(bad: Any) -> None:
    for function in (group_advantages, zero_sigma_share):
        with pytest.raises(ValueError, match="reward"):
            function(bad)


def test_an_error_names_the_place() -> None:
    with pytest.raises(ValueError, match=r"rewards\[1, 0\] is nan"):
        group_advantages([[1, 2], [None, 3]])


groups = st.integers(2, 8).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(-1000, 1000).map(lambda n: n / 1000), min_size=size, max_size=size),
        min_size=1,
        max_size=5,
    )
)


@settings(deadline=None, max_examples=100)
@given(groups, st.integers(-100, 100))
def test_a_constant_shift_changes_nothing(rewards: list[list[float]], shift: int) -> None:
    moved = np.asarray(rewards) + shift
    for scale in (True, False):
        before, after = group_advantages(rewards, scale=scale), group_advantages(moved, scale=scale)
        np.testing.assert_allclose(after, before, atol=1e-9)
    assert zero_sigma_share(moved) == zero_sigma_share(rewards)


@settings(deadline=None, max_examples=100)
@given(groups)
def test_advantages_have_mean_zero_and_sigma_one_or_zero(rewards: list[list[float]]) -> None:
    advantages = group_advantages(rewards)
    np.testing.assert_allclose(advantages.mean(axis=-1), 0, atol=1e-9)
    sigma = advantages.std(axis=-1)
    assert np.all((sigma == 0) | (abs(sigma - 1) < 1e-4))
    assert zero_sigma_share(rewards) == np.mean(sigma == 0)
    doubled = group_advantages(np.asarray(rewards) * 2)
    np.testing.assert_allclose(doubled, advantages, atol=1e-4)


def test_reinforce_marks_are_what_lies_above_zero() -> None:
    assert reinforce_marks(group_advantages([1, 0, 0, 1])).tolist() == [True, False, False, True]
    assert reinforce_marks([0.0, -0.0, 1e-12, -1.0]).tolist() == [False, False, True, False]
    assert not reinforce_marks(group_advantages([[1, 1], [0, 0]])).any(), "a group of equals marks none"


def test_zero_sigma_share() -> None:
    assert zero_sigma_share([[1, 1], [0, 1], [0.3, 0.3], [2, 3]]) == 0.5
    assert zero_sigma_share([1, 2]) == 0.0
    with pytest.raises(ValueError, match="no groups"):
        zero_sigma_share(np.empty((0, 4)))


COMPOSED = [
    # parts, weights, total, reason
    ([1.0, 0.5], [3, 1], 0.875, "weighted mean"),
    ([None, 0.5], [3, 1], 0.5, "None abstains: the weights are renormalised"),
    ([math.nan, 0.5], [3, 1], 0.5, "so does NaN"),
    ([None, None], [3, 1], 0.0, "nothing takes part"),
    ([1.0, 1.0], [0, 0], 0.0, "total weight 0 gives 0"),
    ([1.0, None], [0, 1], 0.0, "total weight 0 of what takes part"),
    ([1.0, 0.0], [0, 1], 0.0, "a weight of 0 counts for nothing"),
    ([-1.0, 1.0], [1, 1], 0.0, "parts may be negative"),
    ([], [], 0.0, "no parts"),
]


@pytest.mark.parametrize(("parts", "weights", "total", "reason"), COMPOSED)
def test_compose_rewards(parts: Any, weights: Any, total: float, reason: str) -> None:
    assert compose_rewards(parts, weights) == total, reason
    assert compose_rewards([parts, parts], weights).tolist() == [total, total]


@pytest.mark.parametrize(
    ("parts", "weights"),
    [
        ([1.0, 2.0], [1]),
        ([1.0], [[1]]),
        (1.0, [1]),
        ([1.0], [-1]),
        ([1.0], [math.nan]),
        ([1.0], [math.inf]),
        ([math.inf], [1]),
    ],
)
def test_compose_rewards_refuses(parts: Any, weights: Any) -> None:
    with pytest.raises(ValueError, match="weights|parts"):
        compose_rewards(parts, weights)


def test_exact_match() -> None:
    assert exact_match(["42", " 42\n", "42.0", ""], ["42", "42", "42", ""]).tolist() == [1, 1, 0, 1]
    assert exact_match([], []).shape == (0,)
    with pytest.raises(ValueError, match="argument"):
        exact_match(["1"], [])


def test_pattern_match() -> None:
    pattern = r"<answer>[0-9]+</answer>"
    texts = ["<answer>7</answer>", " <answer>7</answer>\n", "so <answer>7</answer>", "<answer></answer>", ""]
    assert pattern_match(texts, pattern).tolist() == [1, 1, 0, 0, 0]
    assert pattern_match([], pattern).shape == (0,)


def test_arguments_are_left_as_they_were() -> None:
    rewards = np.array([[1.0, 1.0], [0.0, 1.0]])
    before = rewards.copy()
    group_advantages(rewards)
    zero_sigma_share(rewards)
    compose_rewards(rewards, [1, 1])
    np.testing.assert_array_equal(rewards, before)
