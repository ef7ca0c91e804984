"""Characters to predict: the text of Python's own standard library, which every machine has; nothing is downloaded."""

import sysconfig
from pathlib import Path

import numpy as np
import torch

HELD_OUT = 10  # every tenth file is not trained on
ALPHABET = 128  # ASCII


class Text:
    """training, validation: int64 vectors of characters, the same on all ranks; name: what it is called in results."""

    def __init__(self, most=8 << 20):
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        parts = [], []
        for number, file in enumerate(files):
            content = np.frombuffer(file.read_bytes(), np.uint8)
            parts[number % HELD_OUT == 0].append(content[content < ALPHABET])
        self.training, self.validation = (
            torch.from_numpy(np.concatenate(each)[:most].astype(np.int64)) for each in parts
        )
        self.name = f"standard library of Python {sysconfig.get_python_version()}: {len(self.training)} characters"

    def batch(self, generator, sequences, length, validation=False):
        """(characters, the ones after each), both (sequences, length), at places that the generator draws."""
        source = self.validation if validation else self.training
        starts = torch.randint(len(source) - length, (sequences, 1), generator=generator)
        places = starts + torch.arange(length)
        return source[places], source[places + 1]
