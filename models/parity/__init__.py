"""Whether the reference models compute what transformers computes with the same weights, family by family."""
