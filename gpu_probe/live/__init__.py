"""A vLLM server of the user's own, executed: started per candidate or already running, replayed, and compared.

    validate   the order of things
      server     start, wait until ready, stop          command, failure, guard
      facts      what the server resolved
      measure    one run: canary, counters, load, and the judgement of it; candidates makes rows of runs
        canary, isolation   is the cache empty and ours, and which grid do hits land on
        load, requests      what is sent, and when
        counters            the engine's own account, before and after
        prediction, verdict what the bookkeeping says, and where that parts from what was measured
        chat                the server's token ids against ours
      client     HTTP, event streams, metrics pages     answer, event_stream, exposition

It needs the extra `live` and knows neither trace formats nor how results are shown.
"""
