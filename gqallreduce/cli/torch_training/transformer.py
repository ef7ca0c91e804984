"""A transformer that predicts the next character: blocks of causal attention and a perceptron, normalized before each.

Source: Vaswani et al., 2017, with the normalization of Radford et al., 2019 (GPT-2); no dropout, no bias in products.
"""

from torch import nn
from torch.nn import functional

HEAD = 32  # width of one attention head


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        """x: (sequences, length, width)."""
        sequences, length, width = x.shape
        heads = self.attention(self.norm1(x)).view(sequences, length, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(sequences, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Logits (sequences, length, alphabet) of (sequences, length) characters."""

    def __init__(self, alphabet, layers, width, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(alphabet, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, alphabet, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        for block in self.blocks:  # sums of so many branches begin with the variance of one
            for layer in (block.projection, block.down):
                nn.init.normal_(layer.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, characters):
        x = self.embed(characters) + self.place.weight[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, characters, following):
    """The mean cross-entropy in nats per character."""
    return functional.cross_entropy(model(characters).flatten(0, 1), following.flatten())
