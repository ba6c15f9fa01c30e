"""Many agents, one crawl: who a URL belongs to, who is there, and how they tell each other.

No module of it knows Scrapy. Hosts and URLs are in normal form.

One agent of a crawl at work: what it holds, its messages, what it hands to others, its heartbeat.

What agents have to agree on is in `agents`; here a frontier and a connection come together. No
module of it knows Scrapy: `crawl.agent` does.
"""

from __future__ import annotations


