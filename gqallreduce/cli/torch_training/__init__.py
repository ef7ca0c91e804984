"""`bench/train_torch.py`: a PyTorch model trained by several schemes and optimizers from the same start."""
