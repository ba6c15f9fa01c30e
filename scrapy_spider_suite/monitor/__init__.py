"""Watching a crawl: the fetch log, tallies, reports, and logs that stay readable."""
