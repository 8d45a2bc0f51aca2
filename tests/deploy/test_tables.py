from __future__ import annotations

from typing import Any

import pytest

from deploy.errors import ConfigError
from deploy.tables import Table, near_match


def table(**values: Any) -> Table:
    return Table(values, "section", ["key", "other", "capacity"])


def test_unknown_key_is_named_with_its_table_and_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as caught:
        table(capactiy=10)
    assert str(caught.value) == (
        "section.capactiy (10) must be a known key (key, other, capacity); "
        "got an unknown one, did you mean section.capacity?"
    )


def test_a_value_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^section \(3\) must be a table; got int$"):
        Table(3, "section", ["key"])


def test_absent_keys_give_the_default() -> None:
    empty = table()
    assert empty.text("key", "x") == "x"
    assert empty.integer("key", 3) == 3
    assert empty.number("key") is None
    assert empty.boolean("key") is False
    assert empty.choice("key", ("a",), "a") == "a"
    assert empty.size_bytes("key") is None
    assert empty.amounts("key") == {}


def test_good_values_come_out() -> None:
    assert table(key=" x ").text("key") == " x "
    assert table(key=5).integer("key", least=5, most=5) == 5
    assert table(key=5).number("key") == 5.0
    assert table(key=True).boolean("key") is True
    assert table(key={"spot": 2, "node": 0.5}).amounts("key") == {"spot": 2.0, "node": 0.5}


@pytest.mark.parametrize(
    ("value", "size"), [(1, 1), ("1B", 1), ("1.5 kB", 1500), ("4GiB", 4 * 2**30), ("2MB", 2_000_000), ("1TiB", 2**40)]
)
def test_sizes_are_bytes_or_carry_a_unit(value: Any, size: int) -> None:
    assert table(key=value).size_bytes("key") == size


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "4 apples", "GiB", "0GB", [], "-1GB"])
def test_other_sizes_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be a positive number of bytes"):
        table(key=value).size_bytes("key")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1], 4, 9])
def test_integers_stay_in_their_bounds(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be an integer of at least 5 and at most 8; got"):
        table(key=value).integer("key", least=5, most=8)


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 0, -1.0, {}])
def test_numbers_are_finite_and_above_their_bound(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be a number above 0; got"):
        table(key=value).number("key", above=0.0)


@pytest.mark.parametrize("value", ["", "  ", 1, None, ["a"]])
def test_texts_are_not_empty(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be a string that is not empty; got"):
        table(key=value).text("key")


@pytest.mark.parametrize("value", [0, "true", None])
def test_booleans_are_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be true or false; got"):
        table(key=value).boolean("key")


@pytest.mark.parametrize("value", ["rya", 3, ["ray"], {}])
def test_choices_are_listed(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"section\.key \(.*\) must be one of auto, ray"):
        table(key=value).choice("key", ("auto", "ray"))


def test_amounts_name_the_inner_key() -> None:
    with pytest.raises(ConfigError, match=r"^section\.key\.spot \('x'\) must be a number of at least 0; got str$"):
        table(key={"spot": "x"}).amounts("key")
    with pytest.raises(ConfigError, match=r"^section\.key \(3\) must be a table of amounts; got int$"):
        table(key=3).amounts("key")


def test_near_match_is_silent_without_one() -> None:
    assert near_match("zebra", ("capacity", "device")) == ""
    assert near_match("Capacity", ("capacity",)) == ", did you mean capacity?"
