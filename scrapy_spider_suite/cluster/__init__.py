"""Several agents, one crawl: assignment of URLs, membership, messages, hand-over, rate ledger."""
