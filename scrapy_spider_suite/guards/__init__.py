"""What stands between a crawl and the machine that it runs on, without any of Scrapy.

Room on disks, the limits that the system sets, a loop that stands still, and how a supervisor is
told. Whatever reads ``/proc`` or ``/sys`` takes their root as an argument.
"""
