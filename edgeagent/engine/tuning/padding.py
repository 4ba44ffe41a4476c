"""Chooses to how many tokens a batch is padded on a CPU, by measuring steps with and without added tokens.

llama.cpp's CPU kernels multiply the weights with several tokens at once, in tiles. They multiply each remaining token
separately, which is slow. The size of a tile depends on the type of the weights and on the processor. So 15 tokens may
take longer than 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeagent.engine.tuning.workload import Workload, tokens_of
from edgeagent.types.choices import Alternative, SettingChoice

LARGE_TILE = 16
# Padding must save at least this share of a step's time. Repeated measurements differ by about as much.
_MARGIN = 0.03
# The work with one token less than a tile, and the work with a whole tile.
_TILES: Mapping[int, tuple[Workload, Workload]] = {
    4: (Workload.THREE_ALONE, Workload.FOUR_ALONE),
    8: (Workload.SEVEN_ALONE, Workload.EIGHT_ALONE),
    LARGE_TILE: (Workload.FIFTEEN_ALONE, Workload.SIXTEEN_ALONE),
}
_MOST_ADDED = LARGE_TILE - tokens_of(Workload.THIRTEEN_ALONE)
PADDING_WORKS = tuple(sorted([Workload.THIRTEEN_ALONE, *sum(_TILES.values(), ())], key=tokens_of))
"""The kinds of work that are measured to choose the padding."""


@dataclass(frozen=True, slots=True)
class WeightPadding:
    """How many tokens are added to a batch to fill the tiles in which the weights are multiplied.

    `tile`: one token is added if it completes a multiple of this number; 0: no batch is padded. `most`: up to this many
    tokens are added if they complete a multiple of 16.
    """

    tile: int = 0
    most: int = 0

    def __str__(self) -> str:
        if not self.tile:
            return "none"
        if self.most == 1:
            return f"1 token to a multiple of {self.tile}"
        small = f"1 token to a multiple of {self.tile}, and " if self.tile < LARGE_TILE else ""
        return f"{small}up to {self.most} tokens to a multiple of {LARGE_TILE}"


def choose_padding(seconds: Mapping[str, float], usual: WeightPadding) -> tuple[WeightPadding, SettingChoice]:
    """Choose the padding by the measured seconds of PADDING_WORKS. Return it, and the choice with its reason.

    `usual`: the padding for the type of the weights. It is chosen if one of PADDING_WORKS was not measured.
    """
    name = "padding for weights"
    if any(work not in seconds for work in PADDING_WORKS):
        return usual, SettingChoice(name, str(usual), "default", "usual for weights of this type; not measured")
    ratios = {tile: seconds[whole] / seconds[less] for tile, (less, whole) in _TILES.items()}
    # A tile of 4 tokens is of use only if larger ones are too: a batch of 8 has two tiles of 4.
    pays = [tile for tile in _TILES if all(ratios[each] < 1 - _MARGIN for each in _TILES if each >= tile)]
    padding = WeightPadding()
    if pays:
        ratio = seconds[Workload.SIXTEEN_ALONE] / seconds[Workload.THIRTEEN_ALONE]
        padding = WeightPadding(pays[0], _MOST_ADDED if ratio < 1 - _MARGIN else 1)
    why = "; ".join(f"{tile} tokens take {ratio:.2f} of the time of {tile - 1}" for tile, ratio in ratios.items())
    times = {str(work): round(1000 * seconds[work], 3) for work in PADDING_WORKS}
    # The steps were measured without padding.
    return padding, SettingChoice(name, str(padding), "measurement", why, (Alternative("none", times),))
