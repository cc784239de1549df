"""The bookkeeping executed for real: the bundled paged-KV engine, and a vLLM server."""
