"""What commands ask of the agents of a crawl through Redis: for ``-j redis://...``.

`place` says which crawl is meant, `asking` asks its agents and waits, `spreading` divides a list of
URLs among them, `looks` puts together what they have found, `answers` what they have done.
"""
