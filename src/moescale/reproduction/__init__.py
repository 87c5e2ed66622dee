"""What Yun et al. 2024 claim, computed again: every claim with its error, and every figure."""
