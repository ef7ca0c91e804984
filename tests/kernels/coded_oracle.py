"""The decoder of entropy-coded buckets in docs/wire.md, and what a coder may take at best."""

import heapq
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
from level_oracles import units

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
SECTION = re.search(r"^### Entropy codes$.*?^```python$(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL).group(1)
DECODER = {"itertools": itertools, "units": units}
exec(SECTION, DECODER)
PREFIX, SPARSE, RANS = (DECODER[name] for name in ("PREFIX", "SPARSE", "RANS"))
as_without, elias, elias_patterns, ascending_places, format_places = (
    DECODER[name] for name in ("as_without", "elias", "elias_patterns", "ascending_places", "format_places")
)


def huffman_bits(codes) -> int:
    """What a Huffman code of these takes at best."""
    heap = sorted(Counter(codes).values())
    total = 0 if len(heap) > 1 else sum(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def entropy_bits(codes) -> float:
    counts = np.array(list(Counter(codes).values()), np.float64)
    return float((counts * np.log2(counts.sum() / counts)).sum())
