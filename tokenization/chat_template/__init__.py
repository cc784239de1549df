"""Chat requests to prompt text, as vLLM and the template's own engine render them. No token ids here."""
