"""The link graph of a crawl: its pages and hosts as vertices and edges, in the forms of the field.

No module of it knows Scrapy: it reads records of pages, wherever they come from, and writes files.
"""
