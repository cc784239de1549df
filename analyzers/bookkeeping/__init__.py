"""The one bookkeeping: block pool, group managers, coordinator and scheduler, as vLLM's scheduler process keeps them.

The replay runs it with no model, an engine runs it with tensors, and a live server is compared with it. It knows
lengths and prefix names; it holds no token, tensor or clock. Source of the rules: vLLM 0.33's scheduler and cache
manager; where older releases differ, their profile says so.

    Scheduler -> ChunkSplitter         where a prefill chunk ends
              -> Coordinator           one admission: look up, make room, adopt, allocate, register
                   -> PrefixLookup     the longest prefix that every group can serve
                   -> GroupManager     one per group: which blocks a request needs, keeps and gives a key
                        -> PrefixIndex key -> blocks of one group
                        -> BlockPool   ids, reference counts, who is evicted next
"""
