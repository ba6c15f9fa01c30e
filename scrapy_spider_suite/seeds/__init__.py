"""Where a crawl begins: lines, lists of them, and millions of them taken in piece by piece."""
