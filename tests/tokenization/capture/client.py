"""What a client of the proxy sends, and how."""

from __future__ import annotations


def chat(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def fetch(session, url, body, headers=None):
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.read()
