"""Where values live and who computes on them: host memory and GPUs, and the arrays that users give."""
