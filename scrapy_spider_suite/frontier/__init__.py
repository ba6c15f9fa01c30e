"""The decisions of a crawl: who may be visited, when, and what an answer means.

Nothing here opens a file or a socket or reads a clock: every method takes ``now`` (monotonic
seconds) and returns what to do, so a whole crawl can be simulated in virtual time.
"""
