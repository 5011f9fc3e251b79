"""The numerical engine: random numbers, optimisers, memory, CUDA graphs. Imports nothing of the package but errors."""
