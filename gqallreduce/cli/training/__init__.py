"""A data-parallel training of a small network, as LBANN trains: what `bench/train_mlp.py` runs.

To read in this order: `weights`, `network`, `optimizers`, `data`, `rules`, `sums`, `trainer`, `experiment`, `command`.
`convnet` and `convolutions` train a convolutional network in torch, for `bench/gradiveq.py`.
"""
