"""The pool of blocks as traffic sees it: what a request takes of it, and what its size decides.

replays of the units -> footprint: smallest pool for the longest request, blocks that a running one pins
                     -> capacity: every unit over a ladder of pools -> knees, the best unit of each pool
"""
