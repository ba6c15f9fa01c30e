"""uvloop where it can be had, and never a crash where it cannot.

Scrapy creates the event loop before there is a crawler, and stops the crawl when the loop that it
finds later is not the one that ``ASYNCIO_EVENT_LOOP`` names. A project's add-on is asked before
the loop is created, but it cannot know whether Scrapy or a script will create it. So it names a
class that counts every loop as its own once a reactor is installed: then it is too late to choose.

Importing this module needs uvloop.
"""

from __future__ import annotations

import asyncio
import atexit

import uvloop
from scrapy.utils.reactor import is_reactor_installed


class _AnyLoopIsFine(type):
    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, uvloop.Loop) or is_reactor_installed():
            return True
        if isinstance(instance, asyncio.AbstractEventLoop):
            # Scrapy drops this loop without closing it. Python would end with a traceback.
            atexit.register(instance.close)
        return False


class PreferredLoop(uvloop.Loop, metaclass=_AnyLoopIsFine):
    """A uvloop for Scrapy to create if it creates one, and to accept any other in its place."""
