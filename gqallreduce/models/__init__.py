"""The gradients of a whole model: which scheme sums which, in which messages, and what that costs."""
