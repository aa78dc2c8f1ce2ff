"""Networks of values that are kept or made again."""

from __future__ import annotations

from hloom.passes.analysis.budgeted_cut import budgeted_vertex_cut
from hloom.passes.analysis.keep import KeepNetwork
from hloom.passes.analysis.mincut import Solved


def _pair(weight: int = 3, price: int = 4) -> KeepNetwork[str]:
    """Two results of one operation that reads an argument, both wanted."""
    network = KeepNetwork[str](never=100)
    network.add("argument", 0)
    network.add("left", weight)
    network.add("right", weight)
    network.make(["left", "right"], ["argument"], price)
    network.want(["left", "right"])
    return network


def _kept(network: KeepNetwork[str]) -> set[str]:
    return network.values_at(network.lightest())


def test_what_costs_more_to_make_than_to_keep_is_kept() -> None:
    assert _kept(_pair(weight=3, price=7)) == {"left", "right"}
    assert _kept(_pair(weight=3, price=5)) == {"argument"}


def test_an_operation_with_several_results_is_paid_once() -> None:
    network = _pair(price=4)
    assert network.price_of(network.lightest()) == 4
    assert network.price_of(frozenset({network.vertices["left"]})) == 4
    assert network.price_of(frozenset(map(network.vertices.__getitem__, ("left", "right")))) == 0


def test_a_value_that_no_operation_makes_is_kept() -> None:
    network = KeepNetwork[str]()
    network.add("big", 50)
    network.add("small", 20)
    network.want(["big"])
    assert _kept(network) == {"big"}
    network.make(["big"], ["small"])
    assert _kept(network) == {"small"}


def test_an_operation_without_operands_makes_its_result_for_nothing() -> None:
    network = KeepNetwork[str]()
    network.add("constant", 8)
    network.make(["constant"], [])
    network.want(["constant"])
    assert _kept(network) == set()


def test_a_price_beyond_all_is_as_good_as_never() -> None:
    assert _kept(_pair(price=2**60)) == {"left", "right"}


def test_where_nothing_can_be_kept_all_results_of_the_operation_are_named() -> None:
    """Of cuts that weigh `never` the nearest is at the operation."""
    network = KeepNetwork[str](never=10)
    for value in ("token", "left", "right"):
        network.add(value, network.never)
    network.make(["left", "right"], ["token"])
    network.want(["left", "right"])
    assert _kept(network) == {"left", "right"}
    assert network.weigh(network.lightest()) == network.never


def test_no_limit_is_so_high_that_what_cannot_be_kept_is() -> None:
    network = KeepNetwork[str](never=10)
    network.add("token", network.never)
    network.want(["token"])
    assert budgeted_vertex_cut(network, 1000) is None


def test_equal_networks_are_solved_once() -> None:
    solved: Solved = {}
    _pair().lightest(solved)
    _pair().lightest(solved)
    assert len(solved) == 1
    other = _pair().priced({3: 9})
    assert other.values_at(other.lightest(solved)) == {"left", "right"}
    assert len(solved) == 2


def test_no_cut_costs_less_than_the_least() -> None:
    network = _pair(weight=3, price=4)
    assert network.least({}) == 4
    assert _pair(weight=3, price=2**60).least({}) == 6


def test_more_weight_leaves_what_cannot_be_kept_as_it_was() -> None:
    network = KeepNetwork[str](never=100)
    network.add("input", 100)
    network.add("made", 4)
    network.make(["made"], ["input"], 200)
    network.want(["made"])
    assert network.values_at(network.lightest()) == {"made"}
    heavy = network.weighed({1: 1000}, 1000)
    assert heavy.weights == [1100, 1004]
    assert heavy.values_at(heavy.lightest()) == {"made"}
    assert network.weights == [100, 4]
    assert network.key != heavy.key
