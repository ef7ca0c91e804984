"""Kernels for NVIDIA GPUs: sources that NVRTC compiles at first use, and how they are launched. See docs/gpu.md."""
