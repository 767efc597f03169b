"""The rulesets that turn computation into compute units (docs/spec/compute-units.md#rulesets).

Versions 1 and 2 price operations one by one. Version 3 is semantic: it prices a model and its
token counts (:mod:`tallystick.compute.semantic`), whatever the engine's graph looked like. A
ruleset's id is the hash of its whole rule as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tallystick.canonical.hashing import domain_hash
from tallystick.compute.operations import KINDS, Operation
from tallystick.errors import EvidenceError

U64_MAX: Final = 2**64 - 1
U128_MAX: Final = 2**128 - 1


@dataclass(frozen=True, slots=True)
class Price:
    """``max(1, ceil(product of the factors * units / reference))``."""

    factors: tuple[str, ...]
    reference: int
    units: int


_BASE: Final[Mapping[str, Price]] = MappingProxyType(
    {
        "gemm": Price(("m", "n", "k", "batch"), 4096**3, 120),
        "attention": Price(
            ("query_tokens", "kv_tokens", "heads", "head_dim", "batch"), 4096 * 4096 * 32 * 128, 80
        ),
        "layer_norm": Price(("elements", "batch"), 4096, 8),
        "rms_norm": Price(("elements", "batch"), 4096, 8),
        "rotary": Price(("tokens", "heads", "head_dim"), 4096, 4),
        "expert_route": Price(("tokens", "experts", "top_k"), 4096, 16),
        "kv_cache_read": Price(("bytes",), 1024 * 1024, 1),
        "kv_cache_write": Price(("bytes",), 1024 * 1024, 1),
        "silu": Price(("elements",), 4096, 2),
        "elementwise_multiply": Price(("elements",), 4096, 2),
        "softmax": Price(("elements",), 4096, 4),
        "elementwise_add": Price(("elements",), 4096, 2),
        "tensor_copy": Price(("bytes",), 1024 * 1024, 1),
        "embedding_lookup": Price(("elements",), 4096, 1),
    }
)
_WITH_GENERIC: Final[Mapping[str, Price]] = MappingProxyType(
    {**_BASE, "generic": Price(("elements",), 4096, 2)}
)
_SEMANTIC: Final = (
    "semantic;"
    "n=prefill+generated;"
    "matrix=n*in*out;"
    "experts=n*used*matrices+n*shared*matrices;"
    "shared_gate=0;"
    "conv=n*kernel*channels;"
    "state=n*2*heads*key*value;"
    "attention=pairs*heads*(key+value);"
    "pairs=sum(i=1..n,min(i,window));"
    "head=n*hidden*vocabulary;"
    "cu=ceil(2*mac/1000000)"
)


def _payload(prices: Mapping[str, Price]) -> bytes:
    terms = [f"{name}={price.units}/{price.reference}" for name, price in prices.items()]
    return ";".join([*terms, "ceil", "min1"]).encode("ascii")


@dataclass(frozen=True, slots=True)
class ComputeUnitRules:
    """One ruleset. ``payload`` is its rule as text; ``prices`` is empty for the semantic one."""

    version: int
    payload: bytes
    ruleset_id: bytes
    prices: Mapping[str, Price]

    def cost(self, operation: Operation) -> int:
        """Return the compute units of ``operation``, at least 1 and within 64 bits.

        Raises EvidenceError for an operation that the ruleset does not price, and when a product
        leaves 128 bits or the result 64.
        """
        price = self.prices.get(operation.name)
        if price is None:
            raise EvidenceError(
                f"ruleset v{self.version} does not price a {operation.name} operation",
                expected=self._priced(),
                found=operation.name,
            )
        work = 1
        for factor in price.factors:
            work = _within(work * getattr(operation, factor), U128_MAX, operation)
        scaled = _within(work * price.units, U128_MAX, operation)
        return _within(max(1, -(-scaled // price.reference)), U64_MAX, operation)

    def _priced(self) -> str:
        if not self.prices:
            return "a model and its token counts, which this ruleset prices as a whole"
        last = KINDS[len(self.prices) - 1]
        return f"an operation of kind 0..{last.tag} ({KINDS[0].name} to {last.name})"


def _within(value: int, high: int, operation: Operation) -> int:
    if value > high:
        raise EvidenceError(
            f"the price of a {operation.name} operation overflows",
            expected=f"at most {high.bit_length()} bits",
            found=f"{value.bit_length()} bits",
        )
    return value


RULES_V1: Final = ComputeUnitRules(
    1, _payload(_BASE), domain_hash("palw.cu-ruleset-v1", 1, [_payload(_BASE)]), _BASE
)
RULES_V2: Final = ComputeUnitRules(
    2,
    _payload(_WITH_GENERIC),
    domain_hash("palw.cu-ruleset-v2", 2, [_payload(_WITH_GENERIC)]),
    _WITH_GENERIC,
)
RULES_V3: Final = ComputeUnitRules(
    3,
    _SEMANTIC.encode("ascii"),
    domain_hash("palw.cu-ruleset-v3", 3, [_SEMANTIC.encode("ascii")]),
    MappingProxyType({}),
)
RULESETS: Final = (RULES_V1, RULES_V2, RULES_V3)


def ruleset_of_version(version: int) -> ComputeUnitRules:
    """Return the ruleset of a version number. Raises EvidenceError for an unknown one."""
    for rules in RULESETS:
        if rules.version == version:
            return rules
    raise EvidenceError(
        "unknown version of the compute-unit ruleset", expected="1, 2 or 3", found=str(version)
    )


def matching_ruleset_id(ruleset_id: bytes) -> ComputeUnitRules | None:
    """Return the ruleset whose 32-byte id this is, None when there is none."""
    return next((rules for rules in RULESETS if rules.ruleset_id == ruleset_id), None)


class ComputeUnitCounter:
    """Adds up the prices of operations under one ruleset.

    An operation that is refused, by its kind or by an overflow of price or sum, changes nothing.
    """

    __slots__ = ("_operations", "_total", "rules")

    def __init__(self, rules: ComputeUnitRules) -> None:
        self.rules = rules
        self._total = 0
        self._operations = 0

    @property
    def total(self) -> int:
        """Compute units so far."""
        return self._total

    @property
    def operations(self) -> int:
        """Number of operations recorded so far."""
        return self._operations

    def record(self, operation: Operation, times: int = 1) -> int:
        """Add ``operation``, executed ``times`` times, and return the price of one.

        Raises what :meth:`ComputeUnitRules.cost` raises.
        """
        cost = self.rules.cost(operation)
        total = self._total + cost * times
        if total > U64_MAX:
            raise EvidenceError(
                "the sum of compute units overflows",
                expected="at most 64 bits",
                found=f"{total.bit_length()} bits",
            )
        self._total = total
        self._operations += times
        return cost
