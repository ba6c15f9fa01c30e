"""URLs, pure: normal form, spelling rules, links of pages, scope, filters, traps, sitemaps, twins.
"""
