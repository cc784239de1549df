"""Op sets with one meaning: `reference` states it, `fast` computes it in chunks and batches on CPU and CUDA."""
