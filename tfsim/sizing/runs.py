"""Training runs of shapes on a named system: how many devices, what batch, how fast, each asked once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfsim.economics import SECONDS_PER_HOUR, Rates, money
from tfsim.errors import InputError
from tfsim.hardware import System
from tfsim.scaling import recipe
from tfsim.serving import ServingEstimate, serve
from tfsim.sizing.shapes import ModelShape
from tfsim.software import precision
from tfsim.training import TrainingEstimate, train

BATCH_LAW = "steplaw-2025-batch"
USUAL_DAYS = 60.0  # as long as the pre-training of the largest published models took (Llama 3 405B: 54 days)
MOST_SERVING = 1024  # devices of one replica: a model that needs more is not served
GUESSED_MFU = 0.4  # only where to begin looking


@dataclass(frozen=True)
class Runs:
    """A system, what it charges (``charges``: price, power, PUE and carbon as given), and how training runs on it."""

    system: System
    rates: Rates
    charges: Mapping[str, Any]
    precision: str
    software: str
    plan: Mapping[str, Any] | str
    _found: dict[Any, TrainingEstimate] = field(default_factory=dict, repr=False)
    _served: dict[ModelShape, ServingEstimate] = field(default_factory=dict, repr=False)

    @property
    def peak(self) -> float:
        """Dense FLOP/s of one device."""
        return self.system.device.matmul_peak(precision(self.precision).matmul).flop_per_s

    def step(self, shape: ModelShape, devices: int, batch: int) -> TrainingEstimate:
        """One step of the best plan (or the plan asked for). Raises: InputError when no plan is possible."""
        key = (shape, devices, batch)
        if key not in self._found:
            self._found[key] = self._train(shape, devices, batch, plan=self.plan)
        return self._found[key]

    def whole(self, shape: ModelShape, devices: int, batch: int, tokens: float) -> TrainingEstimate:
        """The run over so many tokens."""
        return self._train(shape, devices, batch, plan=self.step(shape, devices, batch).plan, tokens=tokens)

    def _train(self, shape: ModelShape, devices: int, batch: int, **more: Any) -> TrainingEstimate:
        how = {"precision": self.precision, "software": self.software, "seq_len": shape.seq_len, **self.charges}
        model = shape.spec(model_name(shape))
        return train(model, self.system, devices=devices, global_batch=batch, **how, **more)

    def serving(self, shape: ModelShape) -> ServingEstimate:
        """The shape served with the best plan on the fewest nodes (a power of two) that hold it, requests as
        tfsim.serve's default. Raises: InputError when all devices of the system do not hold it."""
        if shape not in self._served:
            devices: int | None = self.system.devices_per_node
            model = shape.spec(model_name(shape))
            while devices is not None:
                found = serve(model, self.system, devices=devices, **self.charges)
                if found.fits:
                    break
                devices = self.more_devices(devices) if devices < MOST_SERVING else None
            else:
                raise InputError(f"serve_tokens: {self.system.name} cannot hold {model.name} to serve it")
            self._served[shape] = found
        return self._served[shape]

    def serving_device_s(self, shape: ModelShape) -> float:
        """Device-seconds per token served, prompts and answers alike."""
        found = self.serving(shape)
        return float(found.devices / found.total_tokens_per_s)

    def affordable_tokens(self, shape: ModelShape, devices: int, batch: int, device_s: float) -> float:
        """Tokens that so many device-seconds buy, not rounded to steps."""
        return device_s * float(self.step(shape, devices, batch).tokens_per_s_per_device)

    def usd(self, device_s: float) -> float | None:
        """Dollars for so many device-seconds; None without a price."""
        price = self.rates.price_usd_per_device_hour
        return None if price is None else float(money(hours(device_s), price))

    def price(self) -> float:
        """Dollars per device-hour. Raises: InputError when nobody published one."""
        if self.rates.price_usd_per_device_hour is None:
            raise InputError(f"budget: dollars need a price: {self.rates.price_source}")
        if not self.rates.price_usd_per_device_hour > 0:
            raise InputError("price: dollars buy no device-hours that cost nothing: give a price or device-hours")
        return float(self.rates.price_usd_per_device_hour)

    def devices_for(self, device_s: float, seconds: float) -> int:
        """The fewest nodes, a power of two of them, that spend so many device-seconds in a time; at most all there are.
        Powers of two divide batches, heads and layers."""
        node = self.system.devices_per_node
        nodes = max(1, math.ceil(device_s / (seconds * node) * (1 - 1e-9)))
        wanted = node << (nodes - 1).bit_length()
        most = self.system.most_devices
        return wanted if most is None or wanted <= most else node << (max(1, most // node).bit_length() - 1)

    def more_devices(self, devices: int) -> int | None:
        """Twice as many, where the system joins so many."""
        most = self.system.most_devices
        return 2 * devices if most is None or 2 * devices <= most else None


def model_name(shape: ModelShape) -> str:
    """Such as sized-28.4b, and sized-45b-a8b with experts."""
    size = _short(shape.total)
    return f"sized-{size}" if shape.experts == 1 else f"sized-{size}-a{_short(shape.active)}"


def _short(count: float) -> str:
    for unit, letter in ((1e12, "t"), (1e9, "b"), (1e6, "m")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return f"{count / 1e3:.3g}k"


def batch_of(tokens: float, seq_len: int, devices: int) -> int:
    """Sequences per step: the Step Law's batch for so many tokens, as the nearest power of two times the devices.

    Raises: InputError.
    """
    wanted = max(1.0, float(recipe(BATCH_LAW, tokens=tokens)) / seq_len)
    twos = (devices & -devices).bit_length() - 1  # how often the devices can be halved
    return int(devices * 2.0 ** max(-twos, round(math.log2(wanted / devices))))


def hours(device_s: float) -> float:
    """Device-hours."""
    return device_s / SECONDS_PER_HOUR


def solve(following: Callable[[float], float], start: float, tolerance: float = 2e-3) -> float:
    """x where following(x) = x, to ``tolerance`` (both are logarithms of N).

    ``following`` may jump (plans and shapes are discrete) but grows by less than x does, so the difference falls and
    has one root: it is bracketed from where the first step leads, then narrowed (Brent).
    """
    from scipy.optimize import brentq

    def gap(x: float) -> float:
        return following(x) - x

    low, at_low = start, gap(start)
    if abs(at_low) < tolerance:
        return start + at_low
    high, at_high = low, at_low
    stride = at_low
    for _ in range(20):
        high = low + 1.2 * stride
        at_high = gap(high)
        if at_low * at_high <= 0:
            break
        low, at_low, stride = high, at_high, 2 * stride
    else:
        raise InputError("budget: no size of model spends it: the speed on this system changes faster than the size")
    return float(brentq(gap, low, high, xtol=tolerance)) if at_high else high
