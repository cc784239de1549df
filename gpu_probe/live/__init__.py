"""A vLLM server of the user's own, executed: started per candidate or already running, replayed, and compared.

    validate --> server (start, ready, stop) --> facts (what it resolved)      --> prediction (what the bookkeeping says)
             --> client (HTTP)               --> canary (empty? which grid?)
                                             --> load (requests, clocks)       --> verdict (predicted against measured)
                                             --> counters (before, after)

It needs the extra `live` and knows neither trace formats nor how results are shown.
"""
