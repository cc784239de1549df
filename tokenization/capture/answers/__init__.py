"""What a server answered, put together from its bytes: per endpoint one file, `read` chooses.

Field names as the APIs' references and vLLM's server write them. Knows no HTTP; bytes may be anything.
"""
