"""Tests of GPU prices, the cost of usage, and cost records in the FOCUS format."""

import json
from decimal import Decimal

import pytest

from apportion.core.ledger.moments import HOUR
from apportion.core.reports.focus import COLUMNS, MANDATORY, focus_rows
from apportion.core.reports.meters import CARD
from apportion.core.reports.prices import MODELS_MAX, PriceError, prices_of
from apportion.core.reports.report import report_answer
from tests.support.accounts import Accounted
from tests.support.fleet import A100_80, T4, gpu, node
from tests.support.pods import placed as placement
from tests.support.pods import pod, share

FILE = b"""
currency = "EUR"
[models]
"NVIDIA A100-SXM4-80GB" = 2.10
"*A100*" = 9
"Tesla*" = 0.3
"*" = 100
"""
MAY_BE_EMPTY = {"ChargeClass"}
"""Mandatory column that is null unless a record corrects another one."""


def spent(*, step: int = 0) -> Accounted:
    """Return the accounting for half of an A100 during ten hours and a quarter of a T4 during
    five."""
    cards = node("n1", gpu("g0", model=A100_80), gpu("g1", model=T4, memory_mib=16_000))
    accounted = Accounted(step=step).at(0, cards, pod("p1"), pod("p2", namespace="web"))
    accounted.at(0, placement("p1", shares=[share("g0", 40_960)]))
    return accounted.at(5, placement("p2", namespace="web", shares=[share("g1", 4_000)]))


def test_a_models_own_price_goes_before_a_pattern_and_a_longer_pattern_before_a_shorter() -> None:
    """A price for a model's exact name overrides a pattern. A longer pattern overrides a shorter
    one."""
    prices = prices_of(FILE)
    assert prices.of(A100_80) == Decimal("2.10")
    assert prices.of("NVIDIA A100-PCIE-40GB") == 9
    assert prices.of(T4) == Decimal("0.3")
    assert prices.of("Ascend310P") == 100
    assert prices.cost(A100_80, CARD * HOUR * 3) == Decimal("6.30")


def test_cost_is_the_price_of_what_was_granted() -> None:
    """A pod costs its allocated GPU-hours, used or not. The fleet costs all of its capacity."""
    answer = spent().report(prices_of(FILE))
    assert {row.key: row.cost for row in answer.rows} == {"default": 10.5, "web": 0.375}
    assert (answer.total.cost, answer.currency) == (10.875, "EUR")
    assert answer.total.capacity_cost == 10 * 2.10 + 10 * 0.3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency = 'eur'\n[models]\n'*'=1", "currency is 'eur'; write a code of ISO 4217"),
        ("[models]\n'*'=1", "no currency is set; write a code"),
        ("currency = 'EUR'", "write a table [models]"),
        ("currency = 'EUR'\n[models]\n'T4'=-1", "models.'T4' is -1; write the price"),
        ("currency = 'EUR'\n[models]\n'T4'=nan", "models.'T4' is Decimal('NaN')"),
        ("currency = 'EUR'\n[models]\n'T4'='1'", "models.'T4' is '1'"),
        ("currency = 'EUR'\n[models]\n'T4'=true", "models.'T4' is True"),
        ("currency = 'EUR'\nunit=1\n[models]\n'*'=1", "unknown key 'unit'"),
        ("currency = ", "the file is not valid TOML"),
        ("currency = 'EUR'\n[models]\n" + "\n".join(f"m{at}=1" for at in range(MODELS_MAX + 1)),
         "1 to 1000 prices"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(text: str, said: str) -> None:
    """An invalid price file is refused with field, value and fix."""
    with pytest.raises(PriceError) as refused:
        prices_of(text.encode())
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["'T4' = 1", "currency = 'EUR'"])
def test_a_file_of_another_form_is_shown_one_that_will_do(text: str) -> None:
    """If a price file has another format, the error contains the lines of a valid price file to
    copy."""
    with pytest.raises(PriceError) as refused:
        prices_of(text.encode())
    example = "\n".join(str(refused.value).splitlines()[1:])
    model = "NVIDIA H100 80GB HBM3"
    assert prices_of(example.encode()).of(model) == Decimal("2.5")


@pytest.mark.parametrize("data", [b"a = " + b"[" * 100_000, b".".join([b"a"] * 50_000) + b" = 1"])
def test_a_file_that_is_nested_too_deep_is_refused(data: bytes) -> None:
    """A deeply nested price file is refused quickly, without a RecursionError."""
    with pytest.raises(PriceError):
        prices_of(data)


def test_a_model_without_a_price_is_named() -> None:
    """If models have no price, all of them are named at once. None of them is counted as free."""
    prices = prices_of(b"currency = 'EUR'\n[models]\n'*A100*' = 1")
    with pytest.raises(PriceError, match="no price for 'Tesla T4'"):
        report_answer("cost", spent().reading(), prices)
    none = prices_of(b"currency = 'EUR'\n[models]\n'H100' = 1")
    with pytest.raises(PriceError, match=f"no price for '{A100_80}' and 'Tesla T4'"):
        report_answer("cost", spent().reading(), none)


def test_hours_are_told_without_a_price_and_say_why_there_is_no_money() -> None:
    """If any model has no price, the report names that model and shows no cost at all.

    It still shows GPU-hours."""
    prices = prices_of(b"currency = 'EUR'\n[models]\n'*A100*' = 1")
    answer = spent().report(prices)
    assert {row.key: row.allocated_gpu_hours for row in answer.rows} == {
        "default": 5.0,
        "web": 1.25,
    }
    assert {row.cost for row in (*answer.rows, answer.total)} == {None}
    assert (answer.currency, answer.unpriced) == ("", (T4,))
    assert spent().report(prices_of(FILE)).unpriced == ()


def test_focus_records_have_every_mandatory_column() -> None:
    """FOCUS 1.0 records have every mandatory column. A column is empty only where FOCUS allows
    null."""
    records = list(focus_rows(spent(step=5).reading(), prices_of(FILE), "lab"))
    assert len(records) == 3
    for record in records:
        assert tuple(record) == COLUMNS
        assert {name for name in MANDATORY if not record[name]} == MAY_BE_EMPTY
        assert record["ChargeCategory"] == "Usage"
        assert record["BillingAccountId"] == "lab"
        assert len(record["BillingCurrency"]) == 3
        assert record["BillingPeriodStart"] == "1970-01-01T00:00:00Z"
        assert record["BillingPeriodEnd"] == "1970-02-01T00:00:00Z"
        assert record["BillingPeriodStart"] <= record["ChargePeriodStart"]
        assert record["ChargePeriodStart"] < record["ChargePeriodEnd"] <= "1970-01-01T10:00:00Z"
        charged = Decimal(record["PricingQuantity"]) * Decimal(record["ListUnitPrice"])
        assert Decimal(record["BilledCost"]) == charged
        assert json.loads(record["Tags"]) == {"namespace": record["SubAccountId"]}


def test_no_charge_period_begins_before_the_ledger() -> None:
    """No charge period of a FOCUS record begins before the first event of the ledger."""
    accounted = Accounted(hours=24).at(22, node("n1", gpu("g0")), pod("p1"))
    accounted.at(23, placement("p1", shares=[share("g0", 40_960)]))
    [record] = focus_rows(accounted.reading(), prices_of(FILE), "lab")
    period = record["ChargePeriodStart"], record["ChargePeriodEnd"]
    assert period == ("1970-01-01T22:00:00Z", "1970-01-02T00:00:00Z")
    assert record["BilledCost"] == "1.050000000"


def test_focus_leaves_the_account_of_who_has_no_label_empty() -> None:
    """In FOCUS records, the sub-account of pods without the label is empty."""
    accounted = Accounted("label:team").at(0, node("n1", gpu("g0")), pod("p1"))
    accounted.at(0, placement("p1", shares=[share("g0", 40_960)]))
    [record] = focus_rows(accounted.reading(), prices_of(FILE), "lab")
    assert (record["SubAccountId"], json.loads(record["Tags"])) == ("", {"label:team": ""})


def test_focus_records_come_to_the_cost() -> None:
    """The costs in all FOCUS records add up to the total cost of the fleet, including unallocated
    capacity."""
    records = focus_rows(spent(step=3).reading(), prices_of(FILE), "lab")
    assert sum(Decimal(record["BilledCost"]) for record in records) == Decimal("10.875")
